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
        return round(self.now - began, 1)


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
    waits = [clocks.pass_until_a_try(probe) for _ in range(20)]
    assert waits == sorted(waits)
    assert sum(waits[:7]) < 1.5  # in a run of that length so many tries do not all find the lock free by chance
    assert waits[-1] == 1.0
    probe.begin()
    assert clocks.pass_until_a_try(probe) == 0.1


def test_a_reader_with_something_to_read_does_not_try_where_the_process_is_idle(clocks):
    clocks.share = 0.05
    assert clocks.pass_until_a_try(LockProbe()) == 10


def test_a_reader_tries_where_other_programs_leave_this_process_a_fifth_of_a_core(clocks):
    clocks.share = 0.2
    probe = LockProbe()
    probe.try_if_due(busy=True)
    assert clocks.pass_until_a_try(probe) == 0.1


def test_a_reader_that_waits_tries_five_times_a_second_however_often_it_has_something_to_read(clocks):
    clocks.share = 0.1
    probe = LockProbe()
    for _ in range(500):
        clocks.now += 0.01
        probe.try_if_due(busy=True)
        probe.try_if_due(busy=False)
    assert 20 <= probe.tries <= 25
