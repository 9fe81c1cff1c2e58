"""When the reader tries how long it takes to get the interpreter lock back. The clocks are the test's own."""

import pytest

from penstock.stats import lock
from penstock.stats.lock import LockProbe


class Clocks:
    """Time, and CPU time as a share of it."""

    def __init__(self, share):
        self.now = 100.0
        self.share = share

    def pass_until_a_try(self, probe):
        """Seconds until a reader that has something to read has tried once more; at most 10."""
        tries, began = probe.tries, self.now
        while probe.tries == tries and self.now < began + 10:
            self.now += 0.01
            probe.try_if_due(busy=True)
        return round(self.now - began, 2)


@pytest.fixture
def clocks(monkeypatch):
    clocks = Clocks(share=1.0)
    monkeypatch.setattr(lock, "perf_counter", lambda: clocks.now)
    monkeypatch.setattr(lock, "process_time", lambda: clocks.now * clocks.share)
    monkeypatch.setattr(lock, "sleep", lambda seconds: None)
    return clocks


def test_a_reader_tries_soon_after_a_loader_has_begun_and_then_less_often(clocks):
    probe = LockProbe()
    probe.try_if_due(busy=True)
    waits = [clocks.pass_until_a_try(probe) for _ in range(100)]
    # Of so many tries, three or more find the lock held, even where three in four do not.
    assert sum(waits[:20]) < 1.2
    assert waits[-1] == pytest.approx(1.0, abs=0.1)
    probe.begin()
    assert clocks.pass_until_a_try(probe) < 0.05


def test_tries_meet_all_batches_of_a_burst_alike(clocks, monkeypatch):
    # The first of four batches comes after a long step, and then the lock is free; else it is held for 2 ms.
    probe, first = LockProbe(), True

    def nap(seconds):
        clocks.now += seconds if first else seconds + 0.002

    monkeypatch.setattr(lock, "sleep", nap)
    for number in range(2000):
        first = number % 4 == 0
        clocks.now += 0.008 if first else 0.0005
        probe.try_if_due(busy=True)
    assert probe.held / probe.tries == pytest.approx(3 / 4, abs=0.1)


def test_a_reader_with_something_to_read_does_not_try_where_the_process_is_idle(clocks):
    clocks.share = 0.05
    assert clocks.pass_until_a_try(LockProbe()) == 10


def test_a_reader_tries_where_other_programs_leave_this_process_a_fifth_of_a_core(clocks):
    clocks.share = 0.2
    probe = LockProbe()
    probe.try_if_due(busy=True)
    assert clocks.pass_until_a_try(probe) < 0.05


def test_a_reader_that_waits_tries_five_times_a_second_however_often_it_has_something_to_read(clocks):
    clocks.share = 0.05  # too little for a reader that has something to read
    probe = LockProbe()
    for _ in range(500):
        clocks.now += 0.01
        probe.try_if_due(busy=True)
        probe.try_if_due(busy=False)
    assert 20 <= probe.tries <= 25


def test_a_machine_that_stands_still_during_a_try_does_not_outweigh_the_others(clocks, monkeypatch):
    def stand_still(seconds):
        clocks.now += 0.05

    monkeypatch.setattr(lock, "sleep", stand_still)
    probe = LockProbe()
    probe.try_if_due(busy=False)
    assert (probe.tries, probe.wait_s) == (1, 0.005)
