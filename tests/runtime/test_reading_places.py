"""A loader can be read from any thread, and inside a running event loop."""

import asyncio
import queue
import threading

import pytest
from tests.cases import for_each
from tests.runtime.helpers import LAYOUTS, SOON_S, in_thread, placed

import penstock as ps

N = 50


def double(sample):
    return 2 * sample


async def fetch(sample):
    await asyncio.sleep(0)
    return 2 * sample


EXPECTED = [2 * sample for sample in range(N)]
SOURCE = ps.from_sequence(range(N))
PIPELINES = {
    **{layout: lambda layout=layout: SOURCE.map(double, **placed(layout)) for layout in LAYOUTS},
    "async": lambda: SOURCE.map(fetch, workers=4),
    "async, then plain": lambda: SOURCE.map(fetch, workers=4).map(lambda sample: sample),
}
every_pipeline = for_each("name", PIPELINES)


@every_pipeline
def test_a_loader_can_be_made_and_read_in_another_thread(name):
    def train():
        with PIPELINES[name]().loader() as loader:
            return [list(loader), list(loader)]

    assert in_thread(train) == [EXPECTED, EXPECTED]


@every_pipeline
def test_a_loader_can_be_read_by_another_thread_than_made_it(name):
    with PIPELINES[name]().loader() as loader:
        assert in_thread(lambda: list(loader)) == EXPECTED
        assert list(loader) == EXPECTED
        assert in_thread(lambda: list(loader)) == EXPECTED


@every_pipeline
def test_an_iteration_may_move_between_threads(name):
    with PIPELINES[name]().loader() as loader:
        batches = iter(loader)
        halves = [next(batches) for _ in range(20)]
        halves += in_thread(lambda: [next(batches) for _ in range(20)])
        assert halves + list(batches) == EXPECTED


@every_pipeline
@for_each("inline", [False, True])
def test_a_loader_can_be_read_inside_a_running_event_loop(name, inline):
    async def train():
        with PIPELINES[name]().loader(inline=inline) as loader:
            return [list(loader), list(loader)]

    assert asyncio.run(train()) == [EXPECTED, EXPECTED]


def test_a_failing_async_def_inside_a_running_loop_raises_its_own_exception():
    async def bad(sample):
        raise KeyError(sample)

    async def train(inline):
        with SOURCE.map(bad).loader(inline=inline) as loader:
            list(loader)

    for inline in (False, True):
        with pytest.raises(KeyError):
            asyncio.run(train(inline))


def test_a_system_exit_of_an_async_def_arrives_inline_too():
    async def leave(sample):
        raise SystemExit(3)

    for inline in (False, True):
        with pytest.raises(SystemExit), SOURCE.map(leave).loader(inline=inline) as loader:
            list(loader)


def test_other_tasks_of_the_loop_go_on_when_the_reader_is_in_a_thread():
    async def train():
        ticks = 0
        reading = asyncio.create_task(asyncio.to_thread(lambda: list(SOURCE.map(double, workers=2))))
        while not reading.done():
            await asyncio.sleep(0)
            ticks += 1
        return ticks, await reading

    async def bounded():
        return await asyncio.wait_for(train(), SOON_S)

    ticks, got = asyncio.run(bounded())
    assert ticks > 0
    assert got == EXPECTED


@for_each("readers", [2, 8])
def test_many_threads_read_loaders_of_their_own(readers):
    data = SOURCE.map(double, workers=2)
    got = queue.SimpleQueue()
    barrier = threading.Barrier(readers)

    def train():
        barrier.wait(SOON_S)
        with data.loader() as loader:
            got.put(list(loader))

    threads = [threading.Thread(target=train) for _ in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON_S)
    assert [got.get(timeout=SOON_S) for _ in range(readers)] == [EXPECTED] * readers


def test_many_threads_share_one_pool():
    with ps.Threads(2) as pool:
        data = SOURCE.map(double, on=pool)
        got = queue.SimpleQueue()
        threads = [threading.Thread(target=lambda: got.put(list(data))) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON_S)
        assert [got.get(timeout=SOON_S) for _ in range(6)] == [EXPECTED] * 6
