"""Batches that the last of several stages makes of samples that come straight from an indexed source."""

import json
import os
import random

import numpy as np
import pytest
from tests.cases import for_each
from tests.helpers import POOL
from tests.random_examples import seeds
from tests.runtime.helpers import fail_at, until_error

import penstock as ps
from penstock.plan.rules import Options, make_plan


def plus(x):
    return x + 1


def times(x):
    return 2 * x


def here(batch):
    return os.getpid(), batch


def stages(n, first=plus, second=times, size=4, workers=(3, 2), **batch):
    data = ps.from_sequence(range(n))
    return data.map(first, workers=workers[0]).map(second, workers=workers[1]).batch(size, **batch)


def cut(samples, size=4):
    return [samples[start : start + size] for start in range(0, len(samples), size)]


def lists(batches):
    return [batch.tolist() for batch in batches]


def test_the_last_stage_makes_the_batches_and_says_so():
    plan = make_plan(stages(10), Options())
    assert [(stage.unit, stage.hopeful) for stage in plan.stages] == [(1, False), (4, True)]
    assert "batch(4) is made by the worker, where the samples are" in str(stages(10).explain())


def test_a_state_says_the_same_of_ops_behind_wherever_the_batches_are_made():
    wary = make_plan(stages(10), Options(wary=True)).root
    assert make_plan(stages(10), Options()).root.segment == wary.segment


@for_each(
    "pipeline, why",
    [
        (ps.from_iterable(lambda: range(9)).map(plus, workers=2).map(times, workers=3), "straight from an indexed"),
        (ps.from_sequence(range(9)).map(plus, workers=2, on_error="skip").map(times, workers=3), "may skip"),
        (ps.from_sequence(range(9)).map(plus, workers=2, ordered=False).map(times, workers=3), "keep the order"),
        (ps.from_sequence(range(9)).filter(plus, workers=2).map(times, workers=3), "varies the count"),
        (ps.from_sequence(range(9)).shuffle(window=3).map(times, workers=3), "straight from an indexed"),
    ],
)
def test_batches_are_cut_in_the_order_of_delivery_where_the_count_may_vary_before(pipeline, why):
    last = make_plan(pipeline.batch(4), Options()).root
    assert last.unit == 1
    assert why in " ".join(last.reasons)


@for_each("n", [0, 1, 4, 7, 50])
def test_batches_are_full_but_the_last(n):
    assert lists(stages(n)) == cut([2 * (x + 1) for x in range(n)])
    assert len(list(stages(n, drop_last=True))) == n // 4


@for_each("first, second", [(True, False), (False, True), (True, True)])
@for_each("bad", [0, 3, 4, 13, 39])
def test_batches_are_full_behind_a_sample_that_either_stage_skips(first, second, bad):
    skips = fail_at(bad, error=ps.Skip)
    data = stages(40, skips if first else plus, skips if second else times)
    kept = list(range(40))
    for used, fn in ((first, plus), (second, times)):
        kept = [x for x in kept if x != bad] if used else list(map(fn, kept))
    with data.loader(epochs=1) as loader:
        assert lists(loader) == cut(kept)
        assert len(loader.errors()) == 40 - len(kept)


@for_each("stage", [0, 1])
def test_a_failure_comes_behind_the_batches_before_it(stage):
    fails = fail_at(14)
    data = stages(40, *((fails, times) if stage == 0 else (plus, fails)))
    found, error = until_error(data)
    assert lists(found) == cut([2 * x for x in range(12)] if stage == 0 else [x + 1 for x in range(12)])
    assert str(error) == "bad 14"


@pytest.mark.usefixtures("warm_pool")
def test_batches_of_a_process_stage_are_made_there_and_not_here():
    data = ps.from_sequence(range(64)).map(plus, workers=2).map(times, on=POOL).batch(8, collate=here)
    pids, batches = zip(*data, strict=True)
    assert os.getpid() not in pids
    assert list(batches) == cut([2 * (x + 1) for x in range(64)], 8)


def test_what_a_batch_holds_stays_within_the_bound_on_memory():
    def large(x):
        return np.full(100_000, x, dtype=np.uint8)

    data = stages(200, large, lambda x: x, size=3)
    with data.loader(memory="1MB", epochs=1) as loader:
        assert [batch[0, 0] for batch in loader] == list(range(0, 200, 3))


def test_a_state_is_that_of_any_other_layout():
    data = stages(50)
    batches = cut([2 * (x + 1) for x in range(50)])
    for place, other in (({}, {"inline": True}), ({"inline": True}, {})):
        with data.loader(**place) as loader:
            for number, _ in loader.steps(12):
                state = json.loads(json.dumps(loader.state_dict()))
                with data.loader(state=state, epochs=1, **other) as again:
                    assert lists(again) == batches[number + 1 :]


@for_each("world", [1, 2, 3])
def test_ranks_in_step_continue_with_another_world(world):
    def rank(number, size, state=None):
        data = ps.from_sequence(range(96)).shard(number, size).map(plus, workers=2).map(times, workers=3).batch(4)
        return data.loader(state=state, epochs=1)

    with rank(0, 2) as loader:
        taken = [batch.tolist() for _, batch in loader.steps(3)]
        state = loader.state_dict()
    assert taken == [[2 * (x + 1) for x in range(start, start + 4)] for start in (0, 8, 16)]
    rest = []
    for number in range(world):
        with rank(number, world, state) as loader:
            rest += [x for batch in loader for x in batch.tolist()]
    assert sorted(rest) == [2 * (x + 1) for x in range(24, 96)]


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", seeds(6))
def test_any_stages_give_the_stream_of_one(seed):
    """Skips in any stage, any sizes, saved and resumed anywhere."""
    rng = random.Random(seed)
    n, size = rng.randrange(1, 120), rng.randrange(2, 9)
    functions = [
        fail_at(*rng.sample(range(n), k=min(n, rng.choice([0, 0, 1, 3]))), error=ps.Skip) for _ in range(3)
    ]

    def data(workers):
        pipeline = ps.from_sequence(range(n)).shuffle()
        for function, count in zip(functions, workers, strict=True):
            pipeline = pipeline.map(function, workers=count)
        return pipeline.batch(size)

    plain = data([None] * 3)
    whole = lists(plain.loader(inline=True, seed=seed, epochs=1))
    for _ in range(4):
        stop = rng.randrange(len(whole) or 1)
        with data([rng.choice([1, 2, 3]) for _ in range(3)]).loader(seed=seed, epochs=1) as loader:
            begun = [batch.tolist() for _, batch in zip(range(stop), loader, strict=False)]
            state = loader.state_dict()
        with data([rng.choice([1, 2, 3]) for _ in range(3)]).loader(seed=seed, epochs=1, state=state) as loader:
            assert begun + lists(loader) == whole
