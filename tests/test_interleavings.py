"""No order in which threads may run ends in a deadlock or changes the stream."""

import itertools

import pytest
from tests.cases import for_each
from tests.random_examples import seeds

import penstock as ps
from penstock.testing import interleave
from penstock.testing.layouts import fitting

pytestmark = pytest.mark.fuzz

#: of each pipeline: 75 interleavings in all, and 20 times as many in `make fuzz`
SEEDS = seeds(3)
FEW_SEEDS = SEEDS[: max(3, len(SEEDS) // 2)]


def plus_one(x):
    return x + 1


def double(x):
    return 2 * x


def not_by_three(x):
    return x % 3 != 0


def repeated(x):
    return [x] * (x % 4)


def letters(x):
    for number in range(x % 5):
        yield f"{x}.{number}"


def skipping(x):
    if x % 7 == 3:
        raise ps.Skip("on purpose")
    return x


def stages(pool=None):
    return ps.from_sequence(range(40)).map(plus_one, workers=2).map(double, workers=3).map(str, workers=2)


def stages_of_one_pool(pool=None):
    pool = pool or ps.Threads(2)
    source = ps.from_sequence(range(40)).map(plus_one, on=pool).map(double, on=pool, workers=1)
    return source.batch(3).map(sum, on=pool)


def varying(pool=None):
    pipeline = ps.from_sequence(range(40)).filter(not_by_three, workers=2).flat_map(repeated, workers=3)
    return pipeline.batch(4, drop_last=True).map(list, workers=2)


def skips(pool=None):
    return ps.from_sequence(range(40)).map(skipping, workers=3).batch(4).map(list, workers=2)


def alternating(pool=None):
    return ps.from_sequence(range(20)).map(plus_one, workers=2).flat_map(letters, interleave=3, workers=3)


def a_stream(pool=None):
    pipeline = ps.from_iterable(range(40)).map(plus_one, workers=3).shuffle(window=8).take(20)
    return pipeline.repeat(2).map(double, workers=2)


def together(pool=None):
    left = ps.from_sequence(range(20)).filter(not_by_three, workers=2)
    right = ps.from_iterable(range(30)).map(double, workers=2)
    return ps.concat(ps.zip(left, right).map(sum, workers=2), ps.from_sequence(range(5)).map(plus_one, workers=1))


def nested(pool=None):
    pool = pool or ps.Threads(2)

    def inner(x):
        return sum(ps.from_sequence(range(x % 4)).map(plus_one, on=pool).map(double, on=pool))

    return ps.from_sequence(range(12)).map(inner, on=pool).map(plus_one, on=pool, workers=1)


PIPELINES = [stages, stages_of_one_pool, varying, skips, alternating, a_stream, together, nested]


def read(loader, epochs=2):
    return [list(loader) for _ in range(epochs)]


def inline(make):
    with make().loader(inline=True) as loader:
        return read(loader)


@for_each("make", PIPELINES)
def test_any_interleaving_gives_the_stream_of_the_inline_run(make):
    expected = inline(make)
    for seed in SEEDS:
        with interleave(seed), make().loader() as loader:
            assert read(loader) == expected, f"seed {seed}"


@for_each("make", [stages, varying, skips, a_stream, alternating])
def test_any_interleaving_gives_the_same_stream_under_a_memory_bound(make):
    expected = inline(make)
    for seed in FEW_SEEDS:
        with interleave(seed), make().loader(memory=fitting(make(), (1, 300, 10_000)[seed % 3])) as loader:
            assert read(loader) == expected, f"seed {seed}"


@for_each("kept", [1, 3])
@for_each("make", [stages, varying, alternating])
def test_any_interleaving_gives_the_same_stream_with_few_samples_kept_ready(make, kept):
    expected = inline(make)
    for seed in SEEDS:
        with interleave(seed), make().prefetch(kept).loader() as loader:
            assert read(loader) == expected, f"seed {seed}"


@for_each("workers", [1, 2])
def test_a_pipeline_inside_a_function_on_the_same_pool_never_locks_it_up(workers):
    expected = inline(nested)
    for seed in SEEDS:
        with interleave(seed), ps.Threads(workers) as pool, nested(pool).loader() as loader:
            assert read(loader) == expected, f"seed {seed}"


def test_two_loaders_on_one_pool_do_not_disturb_each_other():
    for seed in SEEDS:
        with interleave(seed), ps.Threads(2) as pool:
            pipeline = ps.from_sequence(range(30)).map(plus_one, on=pool).filter(not_by_three, on=pool, workers=1)
            with pipeline.loader() as one, pipeline.batch(2, collate=list).loader() as other:
                pairs = list(itertools.zip_longest(one, other))
        single = [number for number in range(1, 31) if number % 3]
        assert [first for first, _ in pairs] == single, f"seed {seed}"
        batches = [single[at : at + 2] for at in range(0, len(single), 2)]
        assert [second for _, second in pairs if second is not None] == batches, f"seed {seed}"


@for_each("make", [stages, stages_of_one_pool, varying, a_stream])
def test_an_epoch_that_is_broken_off_anywhere_is_followed_by_a_whole_one(make):
    expected = inline(make)
    for seed in SEEDS:
        with interleave(seed), make().loader() as loader:
            begun = list(itertools.islice(loader, seed % 7))
            assert begun == expected[0][: len(begun)]
            assert list(loader) == expected[1], f"seed {seed}"


@for_each("make", PIPELINES)
def test_closing_with_full_buffers_ends_all_workers(make):
    for seed in FEW_SEEDS:
        with interleave(seed), make().loader() as loader:
            loader.start()
            next(iter(loader))
