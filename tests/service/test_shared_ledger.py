"""Mode "split" over several servers: one ledger file, and every batch goes to one client of one server."""

import json
import random
from collections import Counter, deque
from contextlib import contextmanager, nullcontext

import pytest
from tests import nursery
from tests.cases import for_each
from tests.random_examples import seeds
from tests.runtime.process_helpers import await_true
from tests.service.served import HERE, SOON_S, locally, plain, seen, server_process, stream
from tests.service.test_messages import Network
from tests.service.test_split import CLIENT, in_threads, saved_and_resumed

import penstock as ps
from penstock.service import broker, line, protocol
from penstock.service.lane import Plan
from penstock.service.ledger import Ledger
from penstock.service.split import SplitBroker
from penstock.service.split_lane import be_split

MADE = {"plain": plain, "stream": stream}


def handed(path):
    """The numbers of batches that the file names as handed."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return sorted(number for kind, *rest in lines if kind == "h" for number in rest[2])


@for_each("made", list(MADE))
def test_clients_of_two_servers_together_get_every_batch_once(tmp_path, made):
    whole = locally(MADE[made](), 2)
    options = {"ledger": str(tmp_path / made), "pipeline": made, "credit": 3}
    with server_process(**options) as one, server_process(**options) as other:
        loaders = [ps.connect([one.address, other.address]).loader() for _ in range(2)]
        for epoch in range(2):
            assert sorted(in_threads(loaders)) == sorted(whole[epoch])
        for loader in loaders:
            loader.close()
        # Each has made its own half, and no more.
        sent = [process.stats()["server.batches"] for process in (one, other)]
        assert min(sent) >= len(whole[0]) - 1


@for_each("restarted", [False, True])
def test_when_a_server_is_killed_every_batch_is_still_handed_once(tmp_path, monkeypatch, restarted):
    monkeypatch.setattr(line, "TAKE_OVER_S", 0.3)
    whole = locally(stream(300))[0]
    path = tmp_path / f"ledger-{restarted}"
    options = {"ledger": str(path), "pipeline": "stream", "args": [300], "credit": 2}
    with server_process(**options) as one, server_process(**options) as other:
        loaders = [ps.connect([one.address, other.address]).loader() for _ in range(2)]
        parts = [iter(loader) for loader in loaders]
        found = seen([next(part) for _ in range(2) for part in parts])
        one.kill()
        with server_process(bind=one.address, **options) if restarted else nullcontext():
            found += in_threads(parts)
        for loader in loaders:
            loader.close()
    assert sorted(found) == sorted(whole)
    assert handed(path) == list(range(len(whole)))


def test_what_a_killed_client_of_two_servers_was_not_handed_goes_to_others(tmp_path, monkeypatch):
    monkeypatch.setattr(broker, "LEASE_S", 1.0)
    path = tmp_path / "ledger"
    whole = locally(plain(160))[0]
    with ps.serve(plain(160), HERE, ledger=path) as one, ps.serve(plain(160), HERE, ledger=path) as other:
        addresses = [one.address, other.address]
        client = nursery.Forked(CLIENT.replace("sys.argv[1]", "sys.argv[1:]"), *addresses, server=False)
        found = [json.loads(client.line(SOON_S))]
        await_true(lambda: all(server.stats()["server.leased"] for server in (one, other)), "leases")
        client.kill()
        client.close()
        with ps.connect(addresses).loader() as loader:
            found += seen(loader)
    assert handed(path) == list(range(len(whole)))
    assert len(set(map(str, found))) == len(found)


def test_clients_that_know_different_servers_get_no_batch_twice(tmp_path):
    """Both servers deal all batches, and the ledger decides about each."""
    whole = locally(plain())[0]
    path = tmp_path / "ledger"
    with ps.serve(plain(), HERE, ledger=path, credit=3) as one, ps.serve(plain(), HERE, ledger=path) as other:
        known = [one.address, other.address, [one.address, other.address], [other.address, one.address]]
        loaders = [ps.connect(addresses).loader() for addresses in known]
        found = in_threads(loaders)
        for loader in loaders:
            loader.close()
    assert sorted(found) == sorted(whole)
    assert handed(path) == list(range(len(whole)))


def test_states_of_all_clients_roll_back_the_ledger_of_all_servers(tmp_path):
    path = tmp_path / "ledger"

    @contextmanager
    def two_servers():
        with ps.serve(plain(), HERE, ledger=path, credit=3) as one, ps.serve(plain(), HERE, ledger=path) as other:
            yield [one.address, other.address]

    assert sorted(saved_and_resumed((2, 1), two_servers)) == sorted(locally(plain())[0])


def test_a_client_that_reads_on_while_others_go_back_gets_an_error(tmp_path):
    path = tmp_path / "ledger"
    with (
        ps.serve(plain(), HERE, ledger=path, credit=2) as one,
        ps.serve(plain(), HERE, ledger=path) as other,
        ps.connect(one.address).loader() as loader,
    ):
        batches = iter(loader)
        next(batches)
        # The other server does not see this client, and so takes it for dead.
        with ps.connect(other.address).loader(state=loader.state_dict()) as back:
            assert len(list(back)) == 23
        with pytest.raises(ps.ServiceError, match="other clients have gone back"):
            list(batches)


@for_each("ledgers", [(None, None), ("a", "b"), ("a", None)])
def test_servers_with_different_ledgers_are_refused_with_the_next_step(tmp_path, ledgers):
    refused = pytest.raises(ps.PlanError, match=r"needs one ledger.* start all of them with ledger= and the same")
    one, other = (None if name is None else tmp_path / name for name in ledgers)
    with ps.serve(plain(), HERE, ledger=one) as first, ps.serve(plain(), HERE, ledger=other) as second, refused:
        list(ps.connect([first.address, second.address]))


# ---------------------------------------------------------------------- the ledger itself


@pytest.fixture
def two(tmp_path):
    """One file, as two servers see it."""
    ledgers = [Ledger(tmp_path / "ledger", "abc") for _ in range(2)]
    yield ledgers
    for ledger in ledgers:
        ledger.close()


def test_a_batch_is_handed_by_one_of_two_servers(two):
    one, other = two
    assert one.id == other.id
    assert one.hand(0, "a", [0, 1])
    assert not other.hand(0, "b", [1, 2])
    assert other.hand(0, "b", [2])
    assert one.has(0, "b", [1, 2]) == []
    one.catch_up()
    assert one.has(0, "b", [1, 2]) == [2]
    assert one.entries(0).low == 3


def test_a_client_that_went_on_at_another_server_is_handed_nothing_at_the_first(two):
    one, other = two
    assert one.enter("a", 1)
    assert other.enter("a", 2)
    assert not one.hand(0, "a", [0], turn=1)
    assert not one.enter("a", 1)
    assert other.hand(0, "a", [0], turn=2)


def test_a_rollback_holds_at_all_servers(two):
    one, other = two
    one.enter("a", 1)
    one.hand(0, "a", [0, 1], turn=1)
    one.stand(0, 1, b"{}", (0, 2))
    other.roll_back(0, 0, {"a": 1}, "x")
    assert not one.hand(0, "a", [2], turn=1)
    assert one.catch_up()
    assert (one.generation, one.entries(0).low, one.entries(0).states) == (1, 1, {(0, 2): (1, b"{}")})


def test_half_a_line_of_a_killed_server_is_cut_off_by_the_next_entry(two, tmp_path):
    one, other = two
    with open(tmp_path / "ledger", "ab") as file:
        file.write(b'["h",0,"b",[0')
    assert one.hand(0, "a", [0])
    assert not other.hand(0, "b", [0])
    assert handed(tmp_path / "ledger") == [0]


# ---------------------------------------------------------------------- without sockets


class Servers(Network):
    """Several servers, one of which is slow: what it is told may come long after its client has gone elsewhere."""

    def __init__(self, seed, served, clients, servers, path):
        self.path, self.servers = path, servers
        self.queues = [deque() for _ in range(servers)]
        self.at = [number % servers for number in range(clients * servers)]
        super().__init__(seed, "split", served, clients * servers)
        self.brokers = [self.broker, *(self.new_broker() for _ in range(servers - 1))]

    def new_broker(self):
        ledger = Ledger(self.path, self.flows.fingerprint)
        return SplitBroker(self.flows, ledger, self.credit, self.send, self.woken.set)

    def plan_of(self, number):
        client, part = divmod(number, self.servers)

        def plan(welcome):
            lanes = self.lanes[client * self.servers : (client + 1) * self.servers]
            be_split(self.lanes[number], lanes)
            return Plan(0, part, self.servers, self.servers)

        return plan

    def say(self, number, messages):
        for message in messages:
            if self.draw.random() >= self.loss:
                self.queues[self.at[number]].append((self.names[number], [protocol.encode(message)]))

    def step(self):
        """One of the servers has its turn, the first one seldom."""
        number = self.draw.randrange(self.servers)
        if number == 0 and self.draw.random() < 0.7:
            number = 1
        self.broker, self.up = self.brokers[number], self.queues[number]
        if self.draw.random() < 0.02:
            self.broker.tick()
        self.broker.made()
        super().step()

    def fault(self, number, lane):
        if self.draw.random() < 0.5:
            self.at[number] = self.draw.randrange(self.servers)
            self.names[number] += b"."
            self.say(number, lane.begin(self.now))
            return
        where, before = self.brokers.index(self.broker), self.broker.ledger
        super().fault(number, lane)
        if self.broker is not self.brokers[where]:
            before.close()
            self.brokers[where] = self.broker

    def run(self):
        found = super().run()
        for one in self.brokers:
            one.close()
            await_true(lambda one=one: all(run.join(0) for run in one.ended), "ends of runs")
        return found


def check(seed, path):
    draw = random.Random(seed)
    made = draw.choice([plain, stream])
    found = Servers(seed, made(80), draw.randrange(1, 4), draw.randrange(2, 4), path).run()
    whole = locally(made(80))[0]
    assert Counter(str(batch) for part in found for batch in part) == Counter(map(str, whole))
    assert handed(path) == list(range(len(whole)))


@pytest.mark.fuzz
@for_each("seed", seeds(6))
def test_no_batch_is_lost_or_doubled_between_servers(seed, tmp_path):
    check(seed, tmp_path / f"ledger-{seed}")
