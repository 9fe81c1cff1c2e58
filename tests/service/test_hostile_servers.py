"""A server that speaks the protocol and means harm: its client ends with an error and holds its credit at most."""

import random
import socket
from contextlib import suppress

import pytest
from tests.cases import for_each
from tests.random_examples import seeds
from tests.service.test_security import READY, greeting

from penstock.memory.recycle import Recycler
from penstock.service import protocol
from penstock.service.lane import Lane, Plan
from penstock.service.plain import PlainConnection
from penstock.service.protocol import Batch, Beat, End, Ready, Refused, Welcome
from penstock.service.split_lane import be_split

CREDIT = 3


def lane_of(mode):
    def plan(welcome):
        if mode == "split":
            be_split(lane)
        return Plan(0)

    lane = Lane(plan, "", 0.0)
    lane.begin(0.0)
    return lane


def hear(lane, message, turn=None):
    message.session, message.turn = lane.token, lane.turn if turn is None else turn
    frames = [protocol.encode(message), *([b"x"] if isinstance(message, Batch) else [])]
    return lane.hear([memoryview(one) for one in frames], 0.0)


@for_each("mode", ["shard", "split"])
@for_each("early", [Batch(b"", 0, 0, 0), End(b"", 0, 0, 0), Beat(b"", 0, 0, 0), Ready(b"", 0)])
def test_what_comes_before_its_time_is_dropped(mode, early):
    lane = lane_of(mode)
    assert hear(lane, early) == []
    assert not lane.inbox
    assert not lane.over


@for_each("mode", ["shard", "split"])
def test_batches_beyond_the_credit_are_an_error(mode):
    lane = lane_of(mode)
    hear(lane, Welcome(b"", 0, mode, "abc", CREDIT))
    hear(lane, Ready(b"", 0))
    for seq in range(CREDIT + 1):
        assert lane.error is None
        hear(lane, Batch(b"", 0, seq, seq))
    assert "beyond the credit of 3" in str(lane.error)
    assert len(lane.inbox) == CREDIT


@for_each("mode", ["shard", "split"])
def test_bytes_beyond_the_credit_are_an_error(mode, monkeypatch):
    monkeypatch.setattr("penstock.service.lane.CREDIT_BYTES", 2)
    lane = lane_of(mode)
    hear(lane, Welcome(b"", 0, mode, "abc", 100))
    hear(lane, Ready(b"", 0))
    for seq in range(3):
        assert lane.error is None
        hear(lane, Batch(b"", 0, seq, seq))
    assert "beyond the credit of 100 batches and 2 bytes" in str(lane.error)
    assert len(lane.inbox) == 2


def test_what_a_server_says_cannot_write_to_the_terminal():
    lane = lane_of("shard")
    hear(lane, Refused(b"", 0, "pipeline", "\x1b]0;title\x07 no"))
    assert str(lane.error) == "?]0;title? no (pipeline)"


def test_a_server_that_asks_without_reading_the_answers_costs_a_client_no_memory():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        connection = PlainConnection(f"tcp://127.0.0.1:{listener.getsockname()[1]}", Recycler())
        ours, _ = listener.accept()
        ours.setblocking(False)
        ours.sendall(greeting() + bytes([4, len(READY)]) + READY)
        asked = bytes([4, 23]) + b"\x04PING" + bytes(2 + 16)
        asked, sent, rest = asked * 4000, 0, b""
        while sent < 9 << 20:  # more than the kernel keeps of answers
            rest = rest or asked
            with suppress(BlockingIOError):
                count = ours.send(rest)
                sent, rest = sent + count, rest[count:]
            connection.receive()
            assert connection.unsent < 2 << 20
        ours.close()
        connection.close()


@pytest.mark.fuzz
@for_each("seed", seeds(100))
def test_whatever_a_server_says_its_client_goes_on_or_ends_with_an_error(seed):
    draw = random.Random(seed)
    mode = draw.choice(["shard", "split"])
    lane = lane_of(mode)
    for _ in range(60):
        number, other = (draw.choice([0, 0, 1, 2, 3, lane.came, lane.next, 1 << 62]) for _ in range(2))
        said = [
            Welcome(b"", 0, mode, draw.choice(["abc", "abc", "abd"]), CREDIT, draw.choice(["", "", "other"])),
            Ready(b"", 0, (number,), draw.choice([0, 0, 1])),
            Refused(b"", 0, draw.choice(["unknown", "busy", "state"]), "no"),
            *[Batch(b"", 0, lane.came, lane.next)] * 4,
            Batch(b"", 0, number, other),
            End(b"", 0, number, other),
            Beat(b"", 0, number, other),
        ]
        hear(lane, draw.choice(said))
        lane.tick(draw.random() * 5)
        assert lane.available <= len(lane.inbox) <= CREDIT
        if lane.available and draw.random() < 0.5:
            lane.take()
