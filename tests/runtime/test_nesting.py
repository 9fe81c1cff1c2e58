"""Pipelines inside functions of pipelines, and several on one pool: nothing ever locks up."""

import threading

import pytest
from tests import random_examples
from tests.cases import for_each
from tests.runtime.helpers import SOON_S, Peak

import penstock as ps

#: the nasty ones are tried so often, and 20 times as often in `make fuzz`
TIMES = 3 * random_examples.TIMES

pytestmark = pytest.mark.fuzz


def inner_on(**place):
    """A function that reads a small pipeline for its sample."""

    def nested(sample):
        return sum(ps.from_sequence([sample] * 3).map(lambda x: x + 1, **place))

    return nested


def expected(n):
    return [3 * (sample + 1) for sample in range(n)]


@for_each("outer", [{}, {"on": "inline"}, {"workers": 1}, {"workers": 3}])
@for_each("inner", [{}, {"on": "inline"}, {"workers": 1}, {"workers": 3}])
def test_a_pipeline_inside_a_map_on_workers_of_its_own(outer, inner):
    assert list(ps.from_sequence(range(8)).map(inner_on(**inner), **outer)) == expected(8)


@for_each("workers", [1, 2, 3])
def test_a_pipeline_inside_a_map_on_one_shared_pool(workers):
    with ps.Threads(workers) as pool:
        data = ps.from_sequence(range(6)).map(inner_on(on=pool), on=pool)
        for _ in range(TIMES):
            assert list(data) == expected(6)


@for_each("workers", [1, 2])
def test_a_loader_kept_inside_a_map_on_one_shared_pool(workers):
    with ps.Threads(workers) as pool:

        def make():
            loader = ps.from_sequence(range(4)).map(lambda x: x, on=pool).loader()
            return lambda sample: (sample, list(loader))

        data = ps.from_sequence(range(12)).map(ps.per_worker(make), on=pool)
        for _ in range(10):
            assert list(data) == [(sample, [0, 1, 2, 3]) for sample in range(12)]


@for_each("workers", [1, 2])
def test_three_levels_on_one_shared_pool(workers):
    with ps.Threads(workers) as pool:

        def middle(sample):
            return sum(ps.from_sequence([sample, sample]).map(inner_on(on=pool), on=pool))

        data = ps.from_sequence(range(4)).map(middle, on=pool)
        for _ in range(10):
            assert list(data) == [2 * value for value in expected(4)]


@for_each("workers", [1, 2])
def test_a_nested_stream_with_two_stages_on_one_shared_pool(workers):
    with ps.Threads(workers) as pool:

        def nested(sample):
            records = ps.from_iterable(lambda: iter([sample] * 5))
            stages = records.map(lambda x: x + 1, on=pool, workers=1).filter(bool).batch(2, collate=sum)
            return sum(stages.map(lambda x: x, on=pool))

        data = ps.from_sequence(range(6)).map(nested, on=pool)
        for _ in range(TIMES):
            assert list(data) == [5 * (sample + 1) for sample in range(6)]


@for_each("a_workers, b_workers", [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_two_pools_nested_in_each_others_functions(a_workers, b_workers):
    with ps.Threads(a_workers) as a, ps.Threads(b_workers) as b:

        def on_a(sample):
            return sample + 1

        def on_b(sample):
            return sum(ps.from_sequence([sample] * 2).map(on_a, on=a))

        def outermost(sample):
            return sum(ps.from_sequence([sample] * 2).map(on_b, on=b))

        data = ps.from_sequence(range(5)).map(outermost, on=a)
        for _ in range(TIMES):
            assert list(data) == [4 * (sample + 1) for sample in range(5)]


def test_two_pools_that_read_each_other_from_both_sides_at_once():
    with ps.Threads(1) as a, ps.Threads(1) as b:
        from_a = ps.from_sequence(range(5)).map(inner_on(on=b), on=a)
        from_b = ps.from_sequence(range(5)).map(inner_on(on=a), on=b)
        for _ in range(TIMES):
            with from_a.loader(epochs=1) as left, from_b.loader(epochs=1) as right:
                assert list(zip(left, right, strict=True)) == list(zip(expected(5), expected(5), strict=True))


def test_two_readers_in_two_threads_nested_on_one_pool():
    with ps.Threads(2) as pool:
        data = ps.from_sequence(range(5)).map(inner_on(on=pool), on=pool)
        for _ in range(20):
            got = []
            threads = [threading.Thread(target=lambda: got.append(list(data))) for _ in range(3)]  # noqa: B023
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(SOON_S)
            assert got == [expected(5)] * 3


@for_each("workers", [1, 2])
def test_a_pipeline_that_is_never_consumed_does_not_stop_another_on_its_pool(workers):
    with ps.Threads(workers) as pool:
        for _ in range(TIMES):
            idle = ps.from_iterable(lambda: iter(range(10_000))).map(lambda x: x, on=pool).loader().start()
            busy = ps.from_sequence(range(200)).map(lambda x: x, on=pool)
            assert list(busy) == list(range(200))
            idle.close()


@for_each("workers", [1, 2])
def test_a_pipeline_broken_off_and_kept_does_not_stop_another_on_its_pool(workers):
    with ps.Threads(workers) as pool:
        data = ps.from_sequence(range(200)).map(lambda x: x, on=pool)
        with data.loader() as kept, data.loader() as other:
            held = iter(kept)
            assert next(held) == 0
            for _ in range(5):
                assert list(other) == list(range(200))
            assert list(held) == list(range(1, 200))


@for_each("workers", [1, 2, 3])
@for_each("source", ["indexed", "stream"])
def test_several_stages_of_one_pipeline_on_one_pool(workers, source):
    with ps.Threads(workers) as pool:
        start = ps.from_sequence(range(60)) if source == "indexed" else ps.from_iterable(lambda: range(60))
        data = (
            start.map(lambda x: x + 1, on=pool, workers=1)
            .filter(lambda x: x % 2, on=pool)
            .batch(4, collate=list)
            .map(sum, on=pool, workers=1)
            .shuffle(window=3)
            .map(lambda x: x, on=pool)
        )
        with data.loader(epochs=TIMES) as loader:
            for _ in range(TIMES):
                assert sum(loader) == sum(range(1, 61, 2))


@for_each("workers", [1, 2])
def test_a_thread_stage_between_two_stages_of_one_pool(workers):
    with ps.Threads(workers) as pool:
        data = ps.from_sequence(range(40)).map(str, on=pool).map(int, workers=1).map(float, on=pool)
        for _ in range(10):
            assert list(data) == [float(x) for x in range(40)]


@for_each("workers", [1, 2])
def test_an_async_stage_between_two_stages_of_one_pool(workers):
    async def fetch(sample):
        return sample

    with ps.Threads(workers) as pool:
        data = ps.from_sequence(range(40)).map(str, on=pool).map(fetch, workers=3).map(float, on=pool)
        for _ in range(10):
            assert list(data) == [float(x) for x in range(40)]


def test_zip_and_concat_of_pipelines_on_one_pool():
    with ps.Threads(1) as pool:
        one = ps.from_sequence(range(20)).map(lambda x: x, on=pool)
        two = ps.from_sequence(range(20)).map(lambda x: -x, on=pool)
        both = ps.concat(ps.zip(one, two).map(sum, on=pool), one)
        for _ in range(10):
            assert list(both) == [0] * 20 + list(range(20))


def test_loaders_of_one_pool_take_turns():
    """Neither of two loaders on one worker is starved by the other."""
    with ps.Threads(1) as pool:
        data = ps.from_sequence(range(100)).map(lambda x: x, on=pool)
        with data.loader(epochs=1) as one, data.loader(epochs=1) as other:
            assert list(zip(one, other, strict=True)) == [(x, x) for x in range(100)]


@for_each("workers", [1, 2])
def test_a_shared_pool_never_runs_more_calls_than_it_has_workers(workers):
    inside = Peak()

    def counted(sample):
        with inside:
            return sample

    with ps.Threads(workers) as pool:
        data = ps.from_sequence(range(100)).map(counted, on=pool)
        loaders = [data.loader(epochs=1) for _ in range(4)]
        assert list(zip(*loaders, strict=True)) == [(x,) * 4 for x in range(100)]
        for loader in loaders:
            loader.close()
    assert inside.most <= workers


def test_an_error_in_a_nested_pipeline_arrives_with_a_note_of_each_level():
    def bad(sample):
        raise KeyError(sample)

    with ps.Threads(1) as pool:

        def nested(sample):
            return list(ps.from_sequence([sample]).map(bad, on=pool))

        with pytest.raises(KeyError) as caught:
            list(ps.from_sequence([5]).map(nested, on=pool))
        notes = "\n".join(caught.value.__notes__)
        assert "map(bad)" in notes
        assert "map(nested)" in notes


def test_nested_pipelines_can_be_broken_off():
    with ps.Threads(1) as pool:

        def first(sample):
            return next(iter(ps.from_sequence(range(sample, sample + 1000)).map(lambda x: x, on=pool)))

        for _ in range(10):
            assert list(ps.from_sequence(range(20)).map(first, on=pool)) == list(range(20))
