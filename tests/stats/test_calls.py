"""The times of calls: timed ones stand for all of their ticket, and percentiles come from a histogram."""

import asyncio
import time

import pytest
from tests.cases import for_each

from penstock.stats.calls import CallTimes, Timing


def test_calls_are_timed():
    timing = Timing()
    double = timing.function(3, lambda x: 2 * x, False)
    assert [double(x) for x in range(10)] == [2 * x for x in range(10)]
    ((step, calls, times),) = timing.ops
    assert (step, calls, len(times)) == (3, 10, 10)
    assert all(seconds >= 0 for seconds in times)


def test_a_call_that_fails_took_its_time_too():
    timing = Timing()
    with pytest.raises(ZeroDivisionError):
        timing.function(0, lambda x: 1 / x, False)(0)
    assert timing.ops[0][1] == 1
    assert len(timing.ops[0][2]) == 1


def test_coroutines_are_timed_until_they_are_awaited():
    async def fetch(x):
        await asyncio.sleep(0.01)
        return x

    timing = Timing()
    timed = timing.function(0, fetch, True)
    assert asyncio.run(timed(7)) == 7
    assert timing.ops[0][2][0] >= 0.009


def test_one_run_over_many_samples_counts_as_many_calls():
    timing = Timing()
    assert timing.whole(1, 8, sorted, [3, 1, 2]) == [1, 2, 3]
    assert timing.ops[0][1] == 8


def test_what_was_found_travels_as_plain_data():
    timing = Timing()
    timing.whole(1, 8, len, [1])
    timing.end()
    copy = Timing.of(timing.plain, 5)
    assert (copy.plain, copy.nbytes) == (timing.plain, 5)


def test_work_is_told_from_waiting():
    waits = Timing(time.thread_time)
    time.sleep(0.05)
    waits.end()
    assert waits.seconds >= 0.05
    works = Timing(time.thread_time)
    while time.thread_time() - works._began[1] < 0.05:
        pass
    works.end()
    assert 0.05 <= works.busy_s <= works.seconds
    assert works.busy_s > waits.busy_s


@for_each("seconds", [1e-7, 3e-6, 0.0004, 0.02, 7.0])
def test_percentiles_are_within_a_tenth(seconds):
    times = CallTimes()
    for number in range(1000):
        times.add(1, [seconds * (1 + number / 1000)])
    for share in (0.5, 0.95, 0.99):
        exact = seconds * (1 + share)
        assert times.percentile(share) == pytest.approx(exact, rel=0.1) or exact < 0.3e-6


def test_a_tail_is_what_takes_ten_times_the_median():
    even, tailed = CallTimes(), CallTimes()
    for number in range(1000):
        even.add(1, [0.001 if number % 2 else 0.003])
        tailed.add(1, [0.08 if number % 40 == 0 else 0.0005])
    assert even.tail_share == 0.0
    assert tailed.tail_share == pytest.approx(0.8, abs=0.05)
    assert tailed.figures()["longest_s"] == 0.08
    assert tailed.seconds == pytest.approx(25 * 0.08 + 975 * 0.0005)


def test_without_calls_there_is_nothing_to_say():
    assert CallTimes().percentile(0.5) == 0.0
    assert CallTimes().tail_share == 0.0
