"""Random draws depend on seed, epoch, op and sample alone: never on the layout."""

import random
from dataclasses import dataclass

import numpy as np
import pytest
from tests.cases import for_each
from tests.helpers import (
    BACKGROUND,
    INLINE,
    TWO_PROCESSES,
    Layout,
    any_layout,
    any_workers,
    few_layouts,
    with_layouts,
)

import penstock as ps
from penstock.ops import Effect, Op, Order
from penstock.randomness import derive


def draw(x, rng):
    return x, rng.random()


def draw_by_info(x, info):
    return x, info.rng.random()


def draws(layout, epochs=1, seed=0, n=200, **arguments):
    pipeline = ps.from_sequence(range(n)).map(layout.fn(draw), rng=True, **arguments, **layout.place)
    return layout.epochs(pipeline, epochs, seed)


@any_layout
def test_the_draws_are_the_same_for_any_layout(layout):
    assert draws(layout, epochs=2) == draws(INLINE, epochs=2)


@any_layout
def test_the_draws_differ_between_samples_and_between_epochs(layout):
    values = [value for epoch in draws(layout, epochs=3) for _, value in epoch]
    assert len(set(values)) == 600


@few_layouts
def test_the_draws_differ_between_seeds_and_seed_0_epoch_1_is_not_seed_1_epoch_0(layout):
    zero, one = draws(layout, epochs=2, seed=0), draws(layout, epochs=2, seed=1)
    assert not {value for _, value in zero[0] + zero[1]} & {value for _, value in one[0] + one[1]}


@few_layouts
def test_the_second_draw_of_a_sample_is_not_its_first(layout):
    pipeline = ps.from_sequence(range(50)).map(
        lambda x, rng: (rng.random(), rng.random()), rng=True, **layout.place
    )
    assert all(first != second for first, second in layout.run(pipeline))


@few_layouts
def test_asking_info_for_its_generator_twice_goes_on_drawing(layout):
    pipeline = ps.from_sequence(range(50)).map(
        lambda x, info: (info.rng.random(), info.rng.random()), info=True, **layout.place
    )
    assert all(first != second for first, second in layout.run(pipeline))


@any_layout
def test_info_draws_the_same_for_any_layout(layout):
    def run(one):
        return one.run(ps.from_sequence(range(100)).map(one.fn(draw_by_info), info=True, **one.place))

    assert run(layout) == run(INLINE)


@few_layouts
def test_two_ops_with_one_function_draw_differently(layout):
    def jitter(x, rng):
        return [*x, rng.random()]

    pipeline = ps.from_sequence([[]] * 50).map(jitter, rng=True, **layout.place).map(jitter, rng=True)
    assert all(first != second for first, second in layout.run(pipeline))


@few_layouts
def test_the_draws_of_an_op_hang_on_its_name_not_on_what_stands_before_it(layout):
    alone = ps.from_sequence(range(50)).map(draw, rng=True, name="crop", **layout.place)
    behind = ps.from_sequence(range(50)).map(lambda x: x).map(draw, rng=True, name="crop", **layout.place)
    assert layout.run(alone) == layout.run(behind)


@any_layout
def test_a_retry_sees_the_same_draws(layout):
    seen = {}

    def flaky(x, rng):
        seen.setdefault(x, []).append(rng.random())
        if len(seen[x]) < 3:
            raise TimeoutError
        return seen[x]

    pipeline = ps.from_sequence(range(20)).map(layout.fn(flaky), rng=True, on_error=ps.Retry(2, 0), **layout.place)
    for first, second, third in layout.run(pipeline):
        assert first == second == third


@any_workers
def test_draws_behind_filter_flat_map_window_and_batch_are_the_same_for_any_layout(layout):
    def run(one):
        pipeline = (
            ps.from_sequence(range(60))
            .shuffle()
            .map(draw, rng=True, **one.place)
            .filter(lambda s, rng: rng.random() < 0.7, rng=True)
            .flat_map(lambda s: [s, s])
            .map(draw, rng=True)
            .shuffle(window=7)
            .map(draw, rng=True)
            .batch(4, collate=list)
            .map(draw, rng=True)
        )
        return one.epochs(pipeline, 2)

    assert run(layout) == run(INLINE)


def test_outputs_of_one_input_draw_differently():
    pipeline = ps.from_sequence(range(20)).flat_map(lambda x: [x] * 5).map(draw, rng=True)
    assert len({value for _, value in pipeline}) == 100


@any_workers
def test_a_generator_draws_the_same_for_any_layout(layout):
    def augmented(x, rng):
        for _ in range(3):
            yield x, rng.random()

    def run(one):
        return one.run(ps.from_sequence(range(60)).flat_map(augmented, rng=True, **one.place))

    samples = run(layout)
    assert samples == run(INLINE)
    assert len(set(samples)) == 180


@any_workers
def test_alternating_generators_draw_the_same_for_any_layout(layout):
    def augmented(x, rng):
        for _ in range(3):
            yield x, rng.random()

    def run(one, interleave):
        pipeline = ps.from_sequence(range(12)).flat_map(augmented, rng=True, interleave=interleave, **one.place)
        return sorted(one.run(pipeline))

    assert run(layout, 3) == run(INLINE, 1)


@few_layouts
def test_each_pass_of_a_repeat_draws_anew(layout):
    pipeline = ps.from_sequence(range(20)).map(draw, rng=True, **layout.place).repeat(3)
    samples = layout.run(pipeline)
    assert [x for x, _ in samples] == list(range(20)) * 3
    assert len({value for _, value in samples}) == 60


@for_each("again", ["repeat", "epoch"])
@for_each("workers", [1, 3])
def test_draws_before_a_second_pass_do_not_depend_on_what_is_fused(again, workers):
    def run(one, place):
        pipeline = ps.from_sequence(range(20)).map(draw, rng=True, **place).map(draw, rng=True, **place)
        pipeline = pipeline.repeat(2) if again == "repeat" else pipeline.epoch(30)
        return one.epochs(pipeline, 2)

    assert run(BACKGROUND, {"workers": workers}) == run(INLINE, {}) == run(BACKGROUND, {})


def test_worker_draws_are_all_distinct():
    pipeline = ps.from_sequence([0] * 300).map(lambda x, rng: rng.integers(1 << 62), rng=True, workers=4)
    assert len({int(value) for value in pipeline}) == 300


@any_layout
def test_draws_of_parallel_workers_are_all_distinct(layout):
    def word(x, rng):
        return int(rng.integers(1 << 62))

    pipeline = ps.from_sequence([0] * 500).map(layout.fn(word), rng=True, **layout.place)
    assert len({value for epoch in layout.epochs(pipeline, 3) for value in epoch}) == 1500


@few_layouts
def test_no_draw_of_a_sample_is_a_draw_of_another(layout):
    # Each sample's numbers are a stretch of one sequence; stretches of neighbours must not overlap.
    def words(x, rng):
        return rng.integers(1 << 62, size=300).tolist()

    pipeline = ps.from_sequence(range(40)).map(words, rng=True, **layout.place)
    values = [value for epoch in layout.epochs(pipeline, 2) for many in epoch for value in many]
    assert len(set(values)) == len(values) == 24_000


@few_layouts
def test_what_one_sample_draws_does_not_reach_the_next(layout):
    # Odd counts and small types leave halves of words behind.
    def greedy(x, rng):
        rng.integers(0, 256, size=x % 7, dtype=np.uint8)
        rng.standard_normal(x % 3)
        return rng.random()

    def modest(x, rng):
        rng.integers(0, 256, size=x % 7, dtype=np.uint8)
        rng.standard_normal(x % 3)
        return rng.random()

    greedy_ones = ps.from_sequence(range(60)).map(greedy, rng=True, name="op", **layout.place)
    alone = ps.from_sequence(range(60)).map(modest, rng=True, name="op")
    assert layout.run(greedy_ones) == [alone.peek(index=index)[0] for index in range(60)]


@few_layouts
def test_info_and_rng_draw_alike(layout):
    by_rng = ps.from_sequence(range(50)).map(draw, rng=True, name="op", **layout.place)
    by_info = ps.from_sequence(range(50)).map(draw_by_info, info=True, name="op", **layout.place)
    assert layout.run(by_rng) == layout.run(by_info)


@few_layouts
def test_info_says_epoch_and_index_wherever_the_sample_stands(layout):
    def told(x, info):
        return x, info.epoch, info.index

    pipeline = ps.from_sequence(range(100, 130)).shuffle().map(told, info=True, **layout.place)
    for number, epoch in enumerate(layout.epochs(pipeline, 2)):
        assert sorted(epoch) == [(100 + index, number, index) for index in range(30)]
        assert [index for _, _, index in epoch] != list(range(30))


@few_layouts
def test_a_retry_of_info_sees_the_same_draws(layout):
    seen = {}

    def flaky(x, info):
        seen.setdefault(x, []).append((info.rng.random(), info.rng.random()))
        if len(seen[x]) < 3:
            raise TimeoutError
        return seen[x]

    pipeline = ps.from_sequence(range(20)).map(flaky, info=True, on_error=ps.Retry(2, 0), **layout.place)
    for first, second, third in layout.run(pipeline):
        assert first == second == third
        assert first[0] != first[1]


@few_layouts
@for_each("verb", ["filter", "flat_map", "tap"])
def test_every_op_with_a_function_draws_the_same_for_any_layout(layout, verb):
    def run(one):
        noted = {"filter": lambda x, rng: rng.random() < 0.5, "flat_map": lambda x, rng: [x] * rng.integers(3)}
        function = noted.get(verb, lambda x, rng: rng.random())
        pipeline = getattr(ps.from_sequence(range(80)), verb)(function, rng=True, **one.place)
        return one.epochs(pipeline.map(draw, rng=True), 2)

    first, second = run(layout)
    assert [first, second] == run(INLINE)
    assert first != second


def test_an_isolated_loader_draws_the_same():
    pipeline = ps.from_sequence(range(60)).shuffle().map(draw, rng=True, workers=2)
    assert Layout("isolated", loader={"isolate": True}).epochs(pipeline, 2) == INLINE.epochs(pipeline, 2)


# ---------------------------------------------------------------------- one sample alone: peek(index=)


@dataclass(frozen=True)
class Doubled(Op):
    """Every sample twice, half an epoch apart: an order in which an index stands at several positions."""

    verb = "doubled"
    effect = Effect.PASSES

    def order(self):
        return _Doubled()


class _Doubled(Order):
    def length(self, n):
        return 2 * n

    def trace(self, epoch, positions, n, key):
        return epoch, (positions + derive("doubled", key.seed, epoch) % n) % n


def identity(pipeline):
    return pipeline


ORDERS = {
    "plain": identity,
    "shuffle": lambda p: p.shuffle(),
    "shuffle behind a map": lambda p: p.map(draw, rng=True).shuffle(),
    "two shuffles": lambda p: p.shuffle().shuffle(),
    "take of a shuffle": lambda p: p.shuffle().take(5),
    "doubled": lambda p: p.apply(Doubled()),
    "doubled and shuffled": lambda p: p.apply(Doubled()).shuffle(),
    "shuffle, repeated": lambda p: p.shuffle().repeat(3),
    "repeat, shuffled": lambda p: p.repeat(2).shuffle(),
}
WAYS = {
    "map": identity,
    "filter": lambda p: p.filter(lambda s, rng: rng.random() < 0.7, rng=True),
    "flat_map": lambda p: p.flat_map(lambda s, rng: [s] * int(rng.integers(3)), rng=True),
    "both": lambda p: p.flat_map(lambda s: [s, s]).filter(lambda s, rng: rng.random() < 0.6, rng=True),
}


@for_each("way, again", [*((way, False) for way in WAYS), ("both", True)])
@for_each("order", ORDERS)
def test_one_index_alone_is_made_as_its_epoch_makes_it(order, way, again):
    """What `peek` gives for an index are the samples at the first of its positions, in their order."""
    ordered = ORDERS[order](ps.from_sequence(range(100, 108)))
    pipeline = WAYS[way](ordered.map(draw, rng=True)).map(draw, rng=True).map(placed, info=True)
    if again:
        ordered, pipeline = ordered.repeat(2), pipeline.repeat(2)
    for epoch in (0, 3):
        whole = {}
        for index, root, sample in pipeline.peek(1000, epoch=epoch):
            whole.setdefault((index, root), []).append(sample)
        standing = [index for index, _, _ in ordered.map(placed, info=True).peek(1000, epoch=epoch)]
        for index in (0, 7):
            if index not in standing:
                with pytest.raises(ps.PlanError, match=f"index {index}"):
                    pipeline.peek(index=index, epoch=epoch)
                continue
            expected = whole.get((index, standing.index(index)), [])
            assert [sample for _, _, sample in pipeline.peek(index=index, epoch=epoch)] == expected


def placed(sample, info):
    root = info.place
    while not isinstance(root, int):
        root = root[0]
    return info.index, root, sample


@with_layouts(BACKGROUND, TWO_PROCESSES)
def test_one_index_alone_is_made_as_workers_made_it(layout):
    pipeline = (
        ps.from_sequence(range(60))
        .shuffle()
        .map(draw, rng=True, **layout.place)
        .filter(lambda s, rng: rng.random() < 0.8, rng=True)
        .flat_map(lambda s: [s, s])
        .map(draw, rng=True)
    )
    for epoch, samples in enumerate(layout.epochs(pipeline, 2)):
        for index in range(0, 60, 7):
            assert pipeline.peek(index=index, epoch=epoch) == [one for one in samples if one[0][0] == index]


# ---------------------------------------------------------------------- rng="global"


def global_draws(x):
    return random.random(), float(np.random.random())


@for_each("place", [{}, {"workers": 1}, {"on": "inline"}])
def test_global_generators_are_seeded_per_sample(place):
    pipeline = ps.from_sequence(range(50)).map(global_draws, rng="global", **place)
    samples = list(pipeline)
    assert samples == INLINE.run(ps.from_sequence(range(50)).map(global_draws, rng="global"))
    assert len({value for pair in samples for value in pair}) == 100


def test_global_draws_differ_between_epochs_and_repeat_with_the_seed():
    pipeline = ps.from_sequence(range(10)).map(global_draws, rng="global")
    first, second = INLINE.epochs(pipeline, 2)
    assert first != second
    assert INLINE.epochs(pipeline, 2) == [first, second]


def test_torch_is_seeded_with_the_global_generators():
    torch = pytest.importorskip("torch")
    pipeline = ps.from_sequence(range(20)).map(lambda x: torch.rand(1).item(), rng="global")
    one, other = (list(ps.Pipeline(pipeline.source, pipeline.ops)) for _ in range(2))
    assert one == other
    assert len(set(one)) == 20


@pytest.mark.parametrize("place", [{"workers": 2}, {"on": "thread", "workers": 7}], ids=str)
def test_global_generators_on_several_threads_are_refused(place):
    with pytest.raises(ps.PlanError, match=r"workers=1.*or rng=True"):
        list(ps.from_sequence(range(5)).map(global_draws, rng="global", **place))


def test_global_generators_on_several_workers_of_the_loader_are_refused():
    with pytest.raises(ps.PlanError, match="global"):
        ps.from_sequence(range(5)).map(global_draws, rng="global").loader(workers=2)


def test_global_generators_in_two_one_thread_stages_are_refused():
    pipeline = (
        ps.from_sequence(range(5))
        .map(global_draws, rng="global", workers=1)
        .map(lambda s: global_draws(s), rng="global", workers=1)
    )
    with pytest.raises(ps.PlanError, match="global"):
        list(pipeline)


def test_global_generators_ride_with_an_op_that_has_one_thread():
    pipeline = ps.from_sequence(range(5)).map(str, workers=1).map(global_draws, rng="global")
    assert len(set(pipeline)) == 5


@with_layouts(INLINE, BACKGROUND, TWO_PROCESSES)
def test_global_draws_are_the_same_for_any_layout(layout):
    # A process has its own generators, so several of them are as good as one.
    def run(one):
        return one.epochs(ps.from_sequence(range(30)).shuffle().map(global_draws, rng="global", **one.place), 2)

    first, second = run(layout)
    assert [first, second] == run(INLINE)
    assert len({value for pair in first + second for value in pair}) == 120


@with_layouts(INLINE, BACKGROUND)
def test_all_three_global_generators_are_seeded_per_sample(layout):
    torch = pytest.importorskip("torch")

    def three(x):
        return random.random(), float(np.random.random()), torch.rand(1, dtype=torch.float64).item()

    pipeline = ps.from_sequence(range(30)).map(three, rng="global", **layout.place)
    samples = layout.run(pipeline)
    assert len({value for three in samples for value in three}) == 90
    assert pipeline.peek(index=17) == [samples[17]]


def test_the_second_global_draw_of_a_sample_is_not_its_first():
    pipeline = ps.from_sequence(range(50)).map(lambda x: (random.random(), random.random()), rng="global")
    values = [value for pair in pipeline for value in pair]
    assert len(set(values)) == 100


def test_a_retry_sees_the_same_global_draws():
    seen = {}

    def flaky(x):
        seen.setdefault(x, []).append(global_draws(x))
        if len(seen[x]) < 3:
            raise TimeoutError
        return seen[x]

    pipeline = ps.from_sequence(range(20)).map(flaky, rng="global", on_error=ps.Retry(2, 0))
    for first, second, third in pipeline:
        assert first == second == third


def test_two_ops_and_two_seeds_draw_differently_from_global_generators():
    pipeline = (
        ps.from_sequence(range(20))
        .map(global_draws, rng="global")
        .map(lambda s: (*s, *global_draws(s)), rng="global")
    )
    values = [value for seed in (0, 1) for sample in INLINE.run(pipeline, seed) for value in sample]
    assert len(set(values)) == 160


@for_each("rng", ["local", 2, None, "Global"])
def test_any_other_rng_is_refused(rng):
    with pytest.raises(ps.PlanError, match="rng"):
        ps.from_sequence([1]).map(global_draws, rng=rng)


def test_inline_global_generators_are_put_back():
    before = random.getstate(), np.random.get_state()[1].tolist()
    pipeline = ps.from_sequence(range(5)).map(lambda x: x + random.random(), rng="global")
    with pipeline.loader(inline=True, seed=3) as loader:
        first = list(loader)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    with pipeline.loader(seed=3) as loader:
        assert list(loader) == first
