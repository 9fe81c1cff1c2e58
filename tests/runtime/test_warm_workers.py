"""Workers start once and stay; a thousand epochs cost no more than one; an idle loader costs nothing."""

import gc
import os
import threading
import tracemalloc

import pytest
from tests.runtime.helpers import run_script

import penstock as ps

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
            barrier.wait(20)
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


def resources():
    gc.collect()
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


def objects():
    """How many objects there are; what an event loop is still letting go of is not counted."""
    counts = []
    for _ in range(10):
        gc.collect()
        counts.append(len(gc.get_objects()))
        threading.Event().wait(0.005)
    return min(counts)


@pytest.mark.parametrize("name", PIPELINES)
def test_threads_descriptors_and_objects_are_flat_over_a_thousand_epochs(name):
    with PIPELINES[name]().loader() as loader:
        for _ in range(100):
            for _ in loader:
                pass
        before, count = resources(), objects()
        for _ in range(1000):
            for _ in loader:
                pass
        assert resources() == before
        assert objects() - count < 900


def test_memory_is_flat_over_a_thousand_epochs():
    with PIPELINES["two stages"]().loader() as loader:
        for _ in range(200):
            list(loader)
        gc.collect()
        tracemalloc.start()
        try:
            for _ in range(100):
                list(loader)
            gc.collect()
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(1000):
                list(loader)
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert after - before < 100_000


def test_memory_is_flat_over_many_loaders():
    data = PIPELINES["threads"]()
    for _ in range(20):
        list(data)
    before = objects()
    for _ in range(200):
        list(data)
    assert objects() - before < 190


def test_memory_is_flat_over_many_epochs_that_are_broken_off():
    with PIPELINES["threads"]().loader() as loader:
        for _ in range(50):
            next(iter(loader))
        before = objects()
        for _ in range(500):
            next(iter(loader))
        assert objects() - before < 450


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
time.sleep(0.3)     # buffers are full by now
before = cpu_s()
time.sleep(1)
print(cpu_s() - before)
"""


def test_an_idle_loader_uses_no_cpu():
    done = run_script(IDLE)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 0.02
