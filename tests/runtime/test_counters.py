"""Where the time of a stage goes, as numbers."""

import random

import pytest

from penstock.stats.counters import ReaderCounters, StageCounters


def test_time_goes_to_the_state_the_slots_were_in():
    counters = StageCounters(now=100.0)
    counters.advance(101.0, idle=3, working=1, fill=0.0)
    counters.blocked = True
    counters.advance(103.0, idle=2, working=2, fill=1.0)
    assert (counters.working_s, counters.waiting_input_s, counters.waiting_room_s) == (5.0, 3.0, 4.0)


def test_time_that_does_not_pass_is_not_counted():
    counters = StageCounters(now=10.0)
    counters.advance(10.0, 1, 1, 1.0)
    counters.advance(9.0, 1, 1, 1.0)
    counters.advance(11.0, 0, 1, 0.0)
    assert counters.working_s == 1.0


def test_occupancy_is_the_mean_fill_over_time():
    counters = StageCounters(now=0.0)
    assert counters.occupancy == 0.0
    counters.advance(3.0, 0, 1, fill=1.0)
    counters.advance(4.0, 0, 1, fill=0.0)
    assert counters.occupancy == pytest.approx(0.75)


def test_the_accounts_of_all_slots_add_up_to_the_time_that_passed():
    for seed in range(10):
        rng = random.Random(seed)
        counters, now, workers = StageCounters(now=0.0), 0.0, 4
        for _ in range(200):
            now += rng.random()
            working = rng.randint(0, workers)
            counters.blocked = rng.random() < 0.5
            counters.advance(now, workers - working, working, rng.random())
        total = counters.working_s + counters.waiting_input_s + counters.waiting_room_s
        assert total == pytest.approx(workers * now)
        assert 0 <= counters.occupancy <= 1


def test_tickets_that_wait_long_do_not_count_as_if_they_computed():
    # All tickets take 0.1 ms of CPU; one in forty sleeps for 80 ms, the others for 0.5 ms. By one ticket at a time
    # the CPU time was 4 to 5 times too high.
    for seed in range(10):
        rng = random.Random(seed)
        counters, now, tickets = StageCounters(now=0.0), 0.0, 8000
        for _ in range(tickets):
            due = now >= counters.cpu_due
            seconds = 0.08 if rng.random() < 1 / 40 else 0.0005
            now += seconds
            counters.advance(now, 0, 1, 0.0)
            if due:
                counters.measured(seconds, 0.0001)
            else:
                counters.unmeasured_s += seconds
        assert 0.5 < counters.cpu_s / (tickets * 0.0001) < 2.5


def test_the_cpu_time_of_a_stage_follows_when_its_work_changes():
    counters, now = StageCounters(now=0.0), 0.0
    for cpu_share in (0.0, 1.0):
        before = counters.cpu_s
        for _ in range(2000):
            now += 0.01
            counters.advance(now, 0, 1, 0.0)
            counters.unmeasured_s += 0.005
            counters.measured(0.005, 0.005 * cpu_share)
        assert counters.cpu_s - before == pytest.approx(20.0 * cpu_share, rel=0.1)


def test_what_was_counted_before_the_first_batch_is_start_up():
    counters = ReaderCounters()
    assert counters.startup_s is None
    counters.wait_begins(10.0)
    counters.wait_ends(13.0)
    counters.running_s, counters.cpu_s = 3.5, 1.0
    counters.first_came()
    assert (counters.startup_s, counters.running_s, counters.cpu_s, counters.wait_s) == (3.5, 0, 0, 0)
    counters.wait_begins(14.0)
    assert counters.waited_s(15.0) == 1.0


def test_a_wait_counts_while_it_is_under_way():
    counters = ReaderCounters()
    counters.wait_begins(10.0)
    assert counters.waited_s(12.0) == 2.0
    counters.wait_ends(13.0)
    counters.wait_ends(20.0)
    assert counters.wait_s == counters.waited_s(30.0) == 3.0
