"""Random draws depend on seed, epoch, op and sample alone: never on the layout."""

import random

import numpy as np
import pytest
from tests.helpers import BACKGROUND, INLINE, any_layout, any_workers, few_layouts

import penstock as ps


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
            ps.from_sequence(range(120))
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


@pytest.mark.parametrize("again", ["repeat", "epoch"])
@pytest.mark.parametrize("workers", [1, 3])
def test_draws_before_a_second_pass_do_not_depend_on_what_is_fused(again, workers):
    def run(one, place):
        pipeline = ps.from_sequence(range(20)).map(draw, rng=True, **place).map(draw, rng=True, **place)
        pipeline = pipeline.repeat(2) if again == "repeat" else pipeline.epoch(30)
        return one.epochs(pipeline, 2)

    assert run(BACKGROUND, {"workers": workers}) == run(INLINE, {}) == run(BACKGROUND, {})


def test_worker_draws_are_all_distinct():
    pipeline = ps.from_sequence([0] * 300).map(lambda x, rng: rng.integers(1 << 62), rng=True, workers=4)
    assert len({int(value) for value in pipeline}) == 300


# ---------------------------------------------------------------------- rng="global"


def global_draws(x):
    return random.random(), float(np.random.random())


@pytest.mark.parametrize("place", [{}, {"workers": 1}, {"on": "inline"}], ids=str)
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
    assert list(pipeline) == list(pipeline)
    assert len(set(pipeline)) == 20


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
