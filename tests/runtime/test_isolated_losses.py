"""``loader(isolate=True)`` whose process dies, with functions that fail for other samples in every process.

The next process goes on from a state, and counts nothing. So no sample is delivered twice, and each is delivered or
reported once.
"""

import os
from zlib import crc32

import pytest
from tests.runtime.process_helpers import kill, workers

import penstock as ps

pytestmark = pytest.mark.usefixtures("warm_processes")


def fails_in_some_processes(number):
    if crc32(f"{os.getpid()} {number}".encode()) % 12 == 0:
        raise ValueError(number)
    return number


def numbers(count, **more):
    return ps.from_sequence(range(count)).map(fails_in_some_processes, on_error="skip", workers=2, **more)


PIPELINES = {
    "in order": lambda count: numbers(count).batch(4),
    "without order": lambda count: numbers(count, ordered=False).batch(4),
    "in a window": lambda count: numbers(count).shuffle(window=20).batch(4),
}


def check_every_sample_once(pipeline, count, kills):
    """Kill the process `kills` times, evenly over the epoch."""
    got, due = [], [count * (number + 1) // (kills + 1) for number in range(kills)]
    with pipeline.loader(isolate=True, epochs=1, timeout_s=60) as loader:
        for batch in loader:
            got += batch.tolist()
            if due and len(got) >= due[0]:
                due.pop(0)
                for pid in workers():
                    kill(pid)
        lost = [record.index for record in loader.errors()]
        assert loader.stats()["deaths"] > 0
    assert not due
    assert sorted(got + lost) == list(range(count))
    assert lost


@pytest.mark.parametrize("name", PIPELINES)
def test_each_sample_is_delivered_or_reported_once_though_failures_do_not_repeat(name):
    check_every_sample_once(PIPELINES[name](120), 120, kills=1)


@pytest.mark.soak
@pytest.mark.parametrize("name", PIPELINES)
def test_of_600_samples_and_4_deaths_each_is_delivered_or_reported_once(name):
    check_every_sample_once(PIPELINES[name](600), 600, kills=4)
