"""Where ops run: beside the op before them, on workers of their own, on a shared pool, on an event loop."""

import asyncio
import threading

import pytest
from tests.cases import for_each
from tests.helpers import awaited

import penstock as ps


def thread_of(x):
    return threading.current_thread()


def both(x):
    return (*x, threading.current_thread()) if isinstance(x, tuple) else (threading.current_thread(),)


def test_unplaced_ops_run_in_one_background_thread():
    threads = set(ps.from_sequence(range(50)).map(both).map(both))
    (pair,) = threads
    assert len(set(pair)) == 1
    assert threading.current_thread() not in pair


def test_inline_loaders_and_ops_run_in_the_calling_thread():
    with ps.from_sequence(range(9)).map(both, workers=4).map(both, workers=2).loader(inline=True) as loader:
        assert set(loader) == {(threading.current_thread(),) * 2}
    assert set(ps.from_sequence(range(9)).map(thread_of, on="inline")) == {threading.current_thread()}


def test_an_unplaced_op_rides_with_the_op_before_it():
    for first, second in ps.from_sequence(range(50)).map(both, workers=3).map(both):
        assert first is second


def test_ops_before_the_first_placed_one_ride_with_it():
    for first, second in ps.from_sequence(range(50)).map(both).map(both, workers=3):
        assert first is second


def test_ops_with_workers_of_their_own_do_not_share_threads():
    pairs = list(ps.from_sequence(range(50)).map(both, workers=2).map(both, workers=2))
    assert not {first for first, _ in pairs} & {second for _, second in pairs}


def test_one_inline_op_among_others_runs_in_the_reader():
    pipeline = ps.from_sequence(range(20)).map(both, workers=2).map(both, on="inline").map(both, workers=2)
    for first, second, third in pipeline:
        assert second is threading.current_thread()
        assert threading.current_thread() not in (first, third)


def test_one_worker_is_one_caller():
    assert len(set(ps.from_sequence(range(200)).map(thread_of, workers=1))) == 1


def test_workers_stay_warm_between_epochs():
    with ps.from_sequence(range(20)).map(thread_of, workers=1).loader() as loader:
        assert len({thread for _ in range(5) for thread in loader}) == 1


def test_the_loader_places_what_has_no_place():
    pipeline = ps.from_sequence(range(100)).map(both).map(both, workers=1)
    with ps.from_sequence(range(4)).map(meet(4)).loader(workers=4) as loader:
        assert list(loader) == [True] * 4
    assert len({second for _, second in pipeline}) == 1


def meet(n):
    barrier = threading.Barrier(n, timeout=60)
    return lambda x: barrier.wait() >= 0


def test_a_pool_is_shared_by_pipelines_and_survives_them():
    with ps.Threads(1) as pool:
        threads = {thread for _ in range(3) for thread in ps.from_sequence(range(9)).map(thread_of, on=pool)}
        assert len(threads) == 1
    (thread,) = threads
    assert not thread.is_alive()


def test_workers_on_a_pool_are_a_cap_within_it():
    lock, now, most = threading.Lock(), 0, 0

    def count(x):
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        with lock:
            now -= 1
        return x

    with ps.Threads(6) as pool:
        pipeline = ps.from_sequence(range(300)).map(count, on=pool, workers=2).map(str, on=pool)
        assert list(pipeline) == list(map(str, range(300)))
    assert most <= 2


def test_stages_of_two_loaders_on_a_pool_of_one_do_not_lock_up():
    with ps.Threads(1) as pool:
        pipeline = ps.from_sequence(range(50)).map(str, on=pool).shuffle(window=5).map(int, on=pool).batch(4)
        with pipeline.loader() as one, pipeline.loader() as other:
            assert all((a == b).all() for a, b in zip(one, other, strict=True))


def test_coroutines_overlap_as_many_as_there_are_workers_and_no_more():
    now = most = 0

    async def count(x):
        nonlocal now, most
        now += 1
        most = max(most, now)
        for _ in range(3):
            await asyncio.sleep(0)
        now -= 1
        return x

    assert list(ps.from_sequence(range(300)).map(count, workers=5)) == list(range(300))
    assert 1 < most <= 5


def test_a_plain_function_never_rides_on_an_event_loop():
    async def fetch(x):
        return (threading.current_thread(),)

    for loop, plain in ps.from_sequence(range(20)).map(fetch, workers=4).map(both):
        assert loop is not plain


def test_a_coroutine_function_behind_threads_gets_a_loop_of_its_own():
    async def fetch(x):
        return (*x, asyncio.get_running_loop().is_running())

    assert all(running for _, running in ps.from_sequence(range(20)).map(both, workers=2).map(fetch))


def test_coroutine_functions_in_a_row_ride_together():
    async def fetch(x):
        return (*x, threading.current_thread())

    for first, second in ps.from_sequence([()] * 20).map(fetch, workers=4).map(fetch):
        assert first is second


@for_each("on", ["thread", "inline"])
def test_where_an_async_def_may_run_is_clear(on):
    if on == "inline":
        assert list(ps.from_sequence([1, 2]).map(awaited(abs), on=on)) == [1, 2]
    else:
        with pytest.raises(ps.PlanError, match="runs on='async'"):
            ps.from_sequence([1]).map(awaited(abs), on=on)


def test_an_inline_loader_works_inside_a_running_event_loop():
    pipeline = ps.from_sequence([1, 2, 3]).map(awaited(lambda x: 6 // x), workers=2)

    async def main():
        return pipeline.peek(3)

    assert asyncio.run(main()) == [6, 3, 2]


def test_an_error_of_a_coroutine_inside_a_running_event_loop_is_the_users():
    pipeline = ps.from_sequence([0]).map(awaited(lambda x: 1 / x), workers=2)

    async def main():
        return pipeline.peek(1)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())
