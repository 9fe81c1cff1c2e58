"""A server that ends takes no new clients, and keeps those that it has until their epoch is over."""

import os

import pytest
from tests.cases import for_each
from tests.service.served import HERE, locally, plain, seen
from tests.service.test_hostile_clients import TOKEN, Victim

import penstock as ps
from penstock.service import protocol
from penstock.service.protocol import Ask, Bye, Hello, Ready, Refused, Welcome
from penstock.service.split import SplitBroker


@for_each("mode", ["split", "shard", "each"])
def test_a_client_whose_session_begins_anew_is_no_new_client(mode):
    with Victim(mode) as victim:
        broker = victim.broker
        victim.hear(Ask(protocol.VERSION, TOKEN, 1))
        victim.hear(Hello(TOKEN, 1, 0))
        broker.draining = True
        victim.hear(Ask(protocol.VERSION, os.urandom(16), 1))
        victim.hear(Ask(protocol.VERSION, TOKEN, 2))
        broker.interrupt(broker.sessions[TOKEN])
        assert broker.read
        victim.hear(Ask(protocol.VERSION, TOKEN, 3))
        victim.hear(Hello(TOKEN, 3, 0))
        assert broker.read
        victim.hear(Bye(TOKEN, 3))
        assert not broker.read
        assert [type(one) for one in victim.said] == [Welcome, Ready, Refused, Welcome, Welcome, Ready]


def test_a_client_that_leaves_while_its_session_is_interrupted_is_not_waited_for():
    with Victim("shard") as victim:
        victim.hear(Hello(TOKEN, 1, 0))
        victim.broker.interrupt(victim.broker.sessions[TOKEN])
        victim.hear(Bye(TOKEN, 1))
        assert not victim.broker.read


def test_the_end_of_an_epoch_in_mode_split_takes_no_further_turn(monkeypatch):
    """Its client hears first that its last batch is handed, and then that all are."""
    turns = []
    welcome = SplitBroker.welcome
    monkeypatch.setattr(SplitBroker, "welcome", lambda broker, ask: turns.append(ask) or welcome(broker, ask))
    with ps.serve(plain(), HERE) as server:
        assert seen(ps.connect(server.address)) == locally(plain())[0]
    assert len(turns) == 1


def test_clients_read_their_epoch_to_its_end_while_a_server_drains():
    for mode in ("split", "shard", "each"):
        with ps.serve(plain(), HERE, mode=mode) as server, ps.connect(server.address).loader() as loader:
            batches = iter(loader)
            found = seen([next(batches)])
            assert not server.drain(0)
            with pytest.raises(ps.ServiceError, match="this server is ending"):
                list(ps.connect(server.address, timeout_s=1))
            assert found + seen(batches) == locally(plain())[0]
            assert server.drain(60)
