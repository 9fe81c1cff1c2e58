"""Workers start once and stay; hundreds of epochs cost no more than one; an idle loader costs nothing."""

import gc
import math
import os
import threading
import tracemalloc

import pytest
from tests.cases import for_each
from tests.runtime.helpers import run_script
from tests.runtime.process_helpers import await_true

import penstock as ps
from penstock.core import saving
from penstock.stats import history

pytestmark = pytest.mark.alone

PIPELINES = {
    "threads": lambda: ps.from_sequence(range(12)).map(lambda x: x, workers=3).batch(4, collate=list),
    "stream": lambda: ps.from_iterable(lambda: iter(range(12))).map(lambda x: x, workers=2),
    "two stages": lambda: ps.from_sequence(range(12)).map(lambda x: x, workers=2).map(lambda x: x, workers=2),
    "inline": lambda: ps.from_sequence(range(12)).map(lambda x: x, on="inline"),
    "async": lambda: ps.from_sequence(range(12)).map(returned, workers=3),
    "shuffle": lambda: (
        ps.from_sequence(range(12)).shuffle().map(lambda x: x, workers=2).filter(bool).batch(2, collate=list)
    ),
}


async def returned(sample):
    return sample


def test_threads_are_the_same_over_all_epochs():
    seen = []
    with ps.from_sequence(range(40)).map(lambda x: threading.current_thread(), workers=3).loader() as loader:
        for _ in range(20):
            seen.append(set(loader))
        everyone = set().union(*seen)
    assert len(everyone) <= 3


def test_no_thread_is_started_after_the_first_epoch():
    barrier = threading.Barrier(3)

    def meet_once(sample):
        if sample < 3 and not met.is_set():
            barrier.wait(60)
            met.set()
        return sample

    met = threading.Event()
    with ps.from_sequence(range(40)).map(meet_once, workers=3).loader() as loader:
        list(loader)
        before = {thread.ident for thread in threading.enumerate()}
        for _ in range(50):
            list(loader)
        assert {thread.ident for thread in threading.enumerate()} == before


def test_only_as_many_workers_start_as_there_is_work_for():
    before = threading.active_count()
    with ps.from_sequence([1]).map(str, workers=50).loader(epochs=1) as loader:
        assert list(loader) == ["1"]
        assert threading.active_count() - before <= 3


@pytest.fixture
def _short_memory(monkeypatch):
    """What a loader remembers depends on the machine: a snapshot of its counters every 0.1 s, and where its last 48
    chunks came from, of which each may have been made in one step or in several.
    """
    monkeypatch.setattr(history, "_EVERY_S", math.inf)
    monkeypatch.setattr(saving, "_REMEMBERED", 1)


def resources():
    gc.collect()
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


def objects():
    gc.collect()
    return len(gc.get_objects())


def traced():
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def assert_at_most(most, count, what):
    """What is still being let go of, by an event loop or a worker, may take its time; a leak does not go."""
    await_true(lambda: count() <= most, f"at most {most} {what}")


@pytest.mark.usefixtures("_short_memory")
@for_each("name", PIPELINES)
def test_threads_descriptors_and_objects_are_flat_over_hundreds_of_epochs(name):
    with PIPELINES[name]().loader() as loader:
        for _ in range(60):
            for _ in loader:
                pass
        before, count = resources(), objects()
        for _ in range(120):
            for _ in loader:
                pass
        # A worker that looks up the limits of the machine has a file open for a moment.
        await_true(lambda: resources() == before, f"{before} threads and descriptors")
        assert_at_most(count + 100, objects, "objects")


@pytest.mark.usefixtures("_short_memory")
def test_memory_is_flat_over_hundreds_of_epochs():
    with PIPELINES["two stages"]().loader() as loader:
        for _ in range(50):
            list(loader)
        gc.collect()
        tracemalloc.start()
        try:
            for _ in range(50):
                list(loader)
            before = traced()
            for _ in range(300):
                list(loader)
            assert_at_most(before + 30_000, traced, "bytes")
        finally:
            tracemalloc.stop()


@pytest.mark.usefixtures("_short_memory")
def test_memory_is_flat_over_many_loaders():
    data = PIPELINES["threads"]()
    for _ in range(20):
        list(data)
    before = objects()
    for _ in range(200):
        list(data)
    assert_at_most(before + 190, objects, "objects")


@pytest.mark.usefixtures("_short_memory")
def test_memory_is_flat_over_many_epochs_that_are_broken_off():
    with PIPELINES["threads"]().loader() as loader:
        for _ in range(50):
            next(iter(loader))
        before = objects()
        for _ in range(250):
            next(iter(loader))
        assert_at_most(before + 220, objects, "objects")


IDLE = """
import asyncio, resource, time
import penstock as ps

async def fetch(sample):
    return sample

def cpu_s():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime

loaders = [
    ps.from_sequence(range(100_000)).map(str, workers=4).loader().start(),
    ps.from_sequence(range(100_000)).map(fetch, workers=8).loader().start(),
    ps.from_iterable(lambda: iter(range(100_000))).map(str, workers=2).batch(8).loader().start(),
]
iterators = [iter(loader) for loader in loaders]
for iterator in iterators:
    next(iterator)
# Idle once all buffers are full, whenever that is: polling would use more than a hundredth of the time.
deadline = time.monotonic() + 50
while True:
    before = cpu_s()
    time.sleep(0.5)
    if cpu_s() - before < 0.005:
        break
    assert time.monotonic() < deadline, "it does not become idle"
"""


def test_an_idle_loader_uses_no_cpu():
    done = run_script(IDLE, timeout_s=60)
    assert done.returncode == 0, done.stderr
