"""``loader(isolate=True)`` whose process dies, with functions that fail for other samples in every process.

The next process goes on from a state, and counts nothing. So no sample is delivered twice, and each is delivered or
reported once.
"""

import os
from contextlib import suppress
from functools import partial
from zlib import crc32

import pytest
from tests.runtime.process_helpers import kill, spend, workers

import penstock as ps
from penstock.remote.isolated import Isolated
from penstock.remote.wire import Gone

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


def fails_at_the_end(marker, number):
    """In the first process that comes here, and in no other."""
    with suppress(FileExistsError):
        marker.symlink_to(str(os.getpid()))
    if number > 3 and os.readlink(marker) == str(os.getpid()):
        raise ValueError(number)
    return number


def test_what_was_lost_last_is_reported_with_the_end_of_the_epoch(monkeypatch, tmp_path):
    heard, due, dead = Isolated._heard, [], []

    def killed_behind_a_chunk(self, connection, run, message):
        if dead:
            dead.clear()
            raise Gone  # what it had sent after that chunk is lost with it
        if due and message.head[0] == "chunk":
            due.clear()
            dead.extend(workers())
            for pid in dead:
                kill(pid)
        return heard(self, connection, run, message)

    fails = partial(fails_at_the_end, tmp_path / "pid")
    with ps.from_sequence(range(8)).map(fails, on_error="skip", workers=1).loader(isolate=True, epochs=1) as loader:
        monkeypatch.setattr(Isolated, "_heard", killed_behind_a_chunk)
        got = []
        for number in loader:
            got.append(number)
            if number == 3:
                due.append(True)
        lost = [record.index for record in loader.errors()]
    assert sorted(got + lost) == list(range(8))
