"""A client that speaks the protocol and means harm: the server goes on, and forgets nothing."""

import json
import random

import pytest
from tests.cases import for_each
from tests.random_examples import seeds
from tests.runtime.process_helpers import await_true
from tests.service.served import locally, pipeline

from penstock.memory.network import decode
from penstock.memory.scan import DOOR
from penstock.service import protocol
from penstock.service.broker import MOST_LINES, MOST_RUNS, Broker
from penstock.service.flows import Flows
from penstock.service.ledger import Ledger
from penstock.service.protocol import Ask, Bye, Hello, Want
from penstock.service.split import SplitBroker

TOKEN = bytes(16)


class Victim:
    """A broker without sockets, and what it has said."""

    def __init__(self, mode):
        #: by session: the samples of the batches that were sent to it, by their number
        self.batches = {}
        self.flows = Flows(pipeline(24), 0, b"secret")
        self.said = []
        self.ledger = Ledger(None, self.flows.fingerprint)
        if mode == "split":
            self.broker = SplitBroker(self.flows, self.ledger, 3, self.send, lambda: None)
        else:
            self.broker = Broker(self.flows, mode, 3, self.send, lambda: None)

    def send(self, identity, frames):
        head, *rest = [memoryview(bytes(one)) for one in frames]
        found = protocol.decode_from_server([head, *rest])
        self.said.append(found)
        if isinstance(found, protocol.Batch):
            batch = decode(rest[0], rest[1:], DOOR)["i"].tolist()
            self.batches.setdefault(found.session, {})[found.number] = batch

    def hear(self, message):
        self.broker.received(b"x", [protocol.encode(message)])

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.broker.close()
        await_true(lambda: all(run.join(0) for run in self.broker.ended), "ends of runs")
        self.flows.close()


@for_each("generation", ["1e999", "-1", "-1e999", "NaN", "0.5", '"0"', "true", "1", "9" * 4000])
def test_a_made_up_state_neither_ends_the_server_nor_clears_its_ledger(generation):
    with Victim("split") as victim:
        victim.ledger.hand(0, "somebody", [0, 1, 2])
        state = f'{{"clients": {{}}, "generation": {generation}, "ledger": "{victim.ledger.id}"}}'
        victim.hear(Hello(TOKEN, 1, 0, state=state.encode()))
        assert [one.code for one in victim.said] == ["state"]
        assert victim.ledger.entries(0).count == 3


WHOLE = locally(pipeline(24))[0]


def read(victim, token, first, state=b""):
    """One client reads from batch `first` on, where the state stands: its batches, and its states by number."""
    before = len(victim.said)
    victim.hear(Hello(token, 1, 0, first, state_at=first, state=state))

    def over():
        ours = [one for one in victim.said[before:] if one.session == token]
        came = sum(isinstance(one, protocol.Batch) for one in ours)
        victim.hear(Want(token, 1, came, came + 3, 1 << 40))
        return any(isinstance(one, (protocol.End, protocol.Refused)) for one in ours)

    await_true(over, "the end")
    batches = victim.batches.get(token, {})
    said = [one for one in victim.said[before:] if isinstance(one, protocol.Batch)]
    return [batches.get(number) for number in range(first, len(WHOLE))], {one.number + 1: one.state for one in said}


def test_a_made_up_state_spoils_no_batches_of_others(monkeypatch):
    monkeypatch.setattr("penstock.service.run._STATE_S", 0)
    with Victim("shard") as victim:
        found, states = read(victim, TOKEN, 0)
    assert found == WHOLE
    elsewhere, unsealed = states[2], b'{"seal":"","state":' + states[2].partition(b'"state":')[2]
    for forged in (elsewhere, unsealed, elsewhere.replace(b'{"seal":"', b'{"seal":"0')):
        with Victim("shard") as victim:
            spoilt, made = read(victim, TOKEN, 1, forged)  # it stands before batch 2
            assert spoilt != WHOLE[1:]
            # Another client gets what it should, while that pass has just what it wants.
            assert read(victim, b"b" * 16, 1)[0] == WHOLE[1:]
        with Victim("shard") as victim:  # nor does a server vouch for what was made of it
            read(victim, TOKEN, 2, made[2])
            assert read(victim, b"b" * 16, 2)[0] == WHOLE[2:]
            assert victim.broker.counts["runs"] == 2


def test_clients_that_come_back_with_their_states_share_a_pass(monkeypatch):
    """As after a restart of the server: nothing is made once for each of them."""
    monkeypatch.setattr("penstock.service.run._STATE_S", 0)
    with Victim("shard") as victim:
        _, states = read(victim, TOKEN, 0)
    with Victim("shard") as victim:
        for number in (1, 2, 3):
            assert read(victim, bytes([number]) * 16, number, states[number])[0] == WHOLE[number:]
        assert victim.broker.counts["runs"] == 1


def ask_for(victim, number, mode, batches):
    """A client that wants a pass that nobody else reads."""
    token = number.to_bytes(16, "big")
    victim.hear(Hello(token, 1, number))
    victim.hear(Want(token, 1, 0, batches, 1 << 40))


@for_each("mode", ["shard", "split"])
def test_clients_start_no_more_than_so_many_passes_and_all_of_them_come_to_their_turn(mode):
    with Victim(mode) as victim:
        waiting = set(range(3 * MOST_RUNS))

        def served():
            for number in list(waiting):
                ask_for(victim, number, mode, 1)
                assert len(victim.broker.runs) + len(victim.broker.ended) <= MOST_RUNS
            victim.broker.tick()
            for one in victim.said:
                if isinstance(one, protocol.Batch):
                    waiting.discard(int.from_bytes(one.session, "big"))
            victim.said.clear()
            return not waiting

        await_true(served, "a batch for each of them")


def test_what_clients_cause_does_not_fill_the_log(caplog):
    with Victim("shard") as victim:
        failed = set()

        def all_failed():
            for number in range(2 * MOST_LINES):
                if number not in failed:
                    victim.hear(Hello(number.to_bytes(16, "big"), 1, 0, state=b"{}"))
                    victim.hear(Want(number.to_bytes(16, "big"), 1, 0, 1, 1 << 40))
            victim.broker.tick()
            for one in victim.said:
                if isinstance(one, protocol.Refused):
                    failed.add(int.from_bytes(one.session, "big"))
            return len(failed) == 2 * MOST_LINES

        await_true(all_failed, "failures of all")
        assert 0 < len(caplog.records) <= MOST_LINES


def any_message(draw, ledger):
    """A message that is well-formed, with numbers that need not make sense."""

    def number():
        return draw.choice([0, 0, 1, 1, 2, 3, 10, 1 << 20, 1 << 62])

    def value():
        return draw.choice([0, 1, -1, 1 << 70, 1.5, float("inf"), float("nan"), "0", None, [], {}, True])

    token = draw.choice([TOKEN, TOKEN, bytes(15) + b"x"])
    turn = draw.choice([0, 1, 1, 2])
    match draw.randrange(8):
        case 0:
            return Ask(draw.choice([1, 1, 2]), token, turn)
        case 1:
            return Bye(token, turn)
        case 2 | 3:
            made_up = {
                "clients": {TOKEN.hex(): value()},
                "generation": value(),
                "ledger": ledger,
                "version": value(),
            }
            state = draw.choice([b"", b"{}", b"[" * 9999, b"1e999", json.dumps(made_up).encode()])
            servers = draw.choice([1, 1, 2, 4096])
            step = servers * draw.choice([1, 1, 2, 1 << 18])
            claims = tuple(number() for _ in range(draw.randrange(3)))
            epoch, first = draw.choice([0, 0, 1, 1 << 62]), number()
            return Hello(token, turn, epoch, first, step, servers, "", number(), state, claims)
        case _:
            return Want(
                token, turn, number(), number(), number(), draw.choice([0.0, float("inf")]), draw.random() < 0.5
            )


@pytest.mark.fuzz
@for_each("seed", seeds(12))
def test_whatever_clients_say_in_whatever_order_the_server_goes_on(seed, caplog):
    draw = random.Random(seed)
    with Victim(("shard", "each", "split")[seed % 3]) as victim:
        for _ in range(60):
            victim.hear(any_message(draw, victim.ledger.id))
            if draw.random() < 0.3:
                victim.broker.made()
            if draw.random() < 0.1:
                victim.broker.tick()
        assert victim.said
