"""Which ops work on positions: decided by what ops are, never by where they run."""

import pytest
from tests.cases import for_each

import penstock as ps
from penstock.plan.plan import Step
from penstock.plan.positions import on_positions


def times_ten(x):
    return x * 10


def one_more(x):
    return x + 1


async def awaited(x):
    return x


def decided(pipeline):
    steps = [Step(op, number, op.title) for number, op in enumerate(pipeline.ops)]
    found = on_positions(pipeline, steps)
    return [step.op.verb for step in found.orders], found.cache is not None


SOURCE = ps.from_sequence(range(100))
STREAM = ps.from_iterable(range(100))


@for_each(
    "pipeline, orders",
    [
        (SOURCE.shuffle(), ["shuffle"]),
        (SOURCE.map(times_ten).shuffle(), ["shuffle"]),
        (SOURCE.map(times_ten, workers=2).map(one_more, workers=3).shuffle(), ["shuffle"]),
        (SOURCE.map(awaited).shuffle(), ["shuffle"]),
        (SOURCE.shuffle().repeat(2).shuffle(), ["shuffle", "repeat", "shuffle"]),
        (SOURCE.filter(times_ten).repeat(2), ["repeat"]),
        (SOURCE.filter(times_ten).repeat(), []),
        (SOURCE.take(5).skip(2), ["take", "skip"]),
        (SOURCE.map(times_ten).take(5), []),
        (SOURCE.map(times_ten).take(5).shuffle(), ["take", "shuffle"]),
        (SOURCE.map(times_ten, on_error="skip").take(5), []),
        (SOURCE.epoch(7), ["epoch"]),
        (SOURCE.map(times_ten).epoch(7), []),
        (SOURCE.batch(2).repeat(2), []),
        (SOURCE.shuffle(window=5).take(3), []),
        (STREAM.take(5).repeat(2), []),
    ],
)
def test_what_goes_to_the_source(pipeline, orders):
    assert decided(pipeline)[0] == orders


@for_each(
    "pipeline, single",
    [
        (SOURCE.map(times_ten).cache(), True),
        (SOURCE.map(times_ten, workers=2).map(one_more).cache(), True),
        (SOURCE.map(times_ten, workers=2).map(one_more, workers=3).cache(), False),
        (SOURCE.map(awaited).cache(), False),
        (SOURCE.filter(times_ten).cache().cache(), True),
        (SOURCE.batch(3).cache(), False),
        (STREAM.cache(), False),
    ],
)
def test_which_cache_keeps_single_samples(pipeline, single):
    assert decided(pipeline)[1] is single


@for_each("loader", [{"inline": True}, {}, {"workers": 3}])
def test_a_shuffle_behind_two_stages_is_that_of_the_fused_pipeline(loader):
    apart = SOURCE.map(times_ten, workers=2).map(one_more, workers=3).shuffle()
    fused = SOURCE.map(times_ten).map(one_more).shuffle()
    with apart.loader(seed=3, **loader) as one, fused.loader(seed=3, inline=True) as other:
        for _ in range(2):
            assert list(one) == list(other)


@for_each(
    "pipeline, why",
    [
        (STREAM.shuffle(), "is a stream, which can only be read forward"),
        (SOURCE.filter(times_ten).shuffle(), r"filter\(times_ten\) before it varies the count"),
        (SOURCE.repeat().shuffle(), "endless"),
        (SOURCE.batch(2).shuffle(), r"batch\(2\) takes samples in the order of delivery"),
        (ps.zip(SOURCE, SOURCE).shuffle(), "what comes from zip of 2"),
    ],
)
def test_a_shuffle_that_cannot_work_on_positions_says_why_and_what_to_do(pipeline, why):
    with pytest.raises(ps.PlanError, match=why) as error:
        pipeline.explain()
    assert "shuffle(window=" in str(error.value)
