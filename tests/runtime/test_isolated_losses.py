"""``loader(isolate=True)`` whose process dies, with functions that fail for other samples in every process.

The next process goes on from a state, and counts nothing. So no sample is delivered twice, and each is delivered or
reported once.
"""

import os
from functools import partial
from zlib import crc32

import pytest
from tests.runtime.process_helpers import kill, spend, workers

import penstock as ps

pytestmark = pytest.mark.usefixtures("warm_processes")


def fails_in_some_processes(number):
    spend(0.002)  # so tickets are small, and a process that is killed has not made all samples
    if crc32(f"{os.getpid()} {number}".encode()) % 12 == 0:
        raise ValueError(number)
    return number


PIPELINES = {
    "in order": lambda numbers: numbers().batch(4),
    "without order": lambda numbers: numbers(ordered=False).batch(4),
    "in a window": lambda numbers: numbers().shuffle(window=20).batch(4),
}


def check_every_sample_once(name, count, kills):
    """Kill the process after so many samples each."""
    numbers = partial(ps.from_sequence(range(count)).map, fails_in_some_processes, on_error="skip", workers=2)
    got, kills = [], list(kills)
    with PIPELINES[name](numbers).loader(isolate=True, epochs=1, timeout_s=60) as loader:
        for batch in loader:
            got += batch.tolist()
            if kills and len(got) >= kills[0]:
                kills.pop(0)
                for pid in workers():
                    kill(pid)
        lost = [record.index for record in loader.errors()]
        assert loader.stats()["deaths"] > 0
    assert not kills
    assert sorted(got + lost) == list(range(count))
    assert lost


def test_each_sample_is_delivered_or_reported_once_though_failures_do_not_repeat():
    check_every_sample_once("in order", 90, [20])


@pytest.mark.soak
@pytest.mark.parametrize("name", PIPELINES)
def test_of_600_samples_and_4_deaths_each_is_delivered_or_reported_once(name):
    check_every_sample_once(name, 600, [50, 150, 300, 450])
