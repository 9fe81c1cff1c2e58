"""A server that speaks the protocol and means harm: its client ends with an error and holds its credit at most."""

import random

import pytest
from tests.cases import for_each
from tests.random_examples import seeds

from penstock.service import protocol
from penstock.service.lane import Lane, Plan
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
