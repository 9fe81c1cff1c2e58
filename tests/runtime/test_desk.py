"""What a worker process has in hand, as its parent sees it."""

import mmap
import os
from math import inf

import pytest

from penstock.memory.segment import Mapping
from penstock.program.desk import READING, Desk, new_desk
from penstock.provenance import Passed, counter


@pytest.fixture
def desks():
    """The same desk from both sides: the worker's and the parent's."""
    fd, parent = new_desk()
    worker = Desk(Mapping(fd, mmap.PAGESIZE))
    os.close(fd)
    return worker, parent


def test_an_empty_desk_has_no_ticket_no_sample_and_no_deadline(desks):
    _, parent = desks
    assert (parent.ticket, parent.sample, parent.deadline) == (0, None, inf)


@pytest.mark.parametrize("place", [0, 7, (7, 2), (7, 2, 5), range(5, 9), [(3, 0), (4, 1)], Passed(7, 3), 2**40])
def test_a_sample_in_hand_is_seen_with_its_step_and_place(desks, place):
    worker, parent = desks
    worker.take(12)
    worker.at(3, 1, place)
    sample = parent.sample
    assert parent.ticket == 12
    assert (sample.step, sample.position, sample.way) == (3, *counter(place))
    assert sample.epoch == (3 if isinstance(place, Passed) else 1)


def test_each_sample_is_put_down_as_it_is_taken(desks):
    worker, parent = desks
    worker.take(1)
    for places in (range(10, 14), [4, (5, 1), (5, 2), 9]):
        seen = [
            (sample, parent.sample.position, parent.sample.way)
            for sample in worker.watch(2, 0, list("abcd"), places)
        ]
        assert seen == [(letter, *counter(place)) for letter, place in zip("abcd", places, strict=True)]


def test_a_new_ticket_has_no_sample_in_hand_yet(desks):
    worker, parent = desks
    worker.take(1)
    worker.at(READING, 0, 5)
    assert parent.sample.step == READING
    worker.take(2)
    assert parent.sample is None


def test_a_deadline_is_seen_until_the_next_ticket(desks):
    worker, parent = desks
    worker.heed(123.5)
    assert parent.deadline == 123.5
    worker.take(2)
    assert parent.deadline == inf


def test_a_worker_sees_which_tickets_nobody_waits_for(desks):
    worker, parent = desks
    assert worker.wanted(1)
    parent.forgo(3)
    assert [worker.wanted(ticket) for ticket in (2, 3, 4)] == [False, False, True]
