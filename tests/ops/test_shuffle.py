"""shuffle: a new order every epoch, each sample once, the same for any layout."""

from collections import Counter

import pytest
from tests.cases import for_each
from tests.helpers import BACKGROUND, INLINE, any_workers, few_layouts

import penstock as ps


@any_workers
@for_each("n", [0, 1, 2, 3, 10, 255, 256, 257, 1000])
def test_every_sample_comes_once_per_epoch(layout, n):
    for epoch in layout.epochs(ps.from_sequence(range(n)).shuffle(), 2):
        assert sorted(epoch) == list(range(n))


@any_workers
@for_each("window", [None, 16])
def test_the_order_is_the_same_for_any_layout(layout, window):
    pipeline = ps.from_sequence(range(300)).map(lambda x: x, **layout.place).shuffle(window)
    bare = ps.from_sequence(range(300)).map(lambda x: x).shuffle(window)
    assert layout.epochs(pipeline, 3) == INLINE.epochs(bare, 3)


@for_each("window", [None, 100])
@for_each("own_seed", [None, 5])
def test_every_epoch_has_an_order_of_its_own(window, own_seed):
    orders = BACKGROUND.epochs(ps.from_sequence(range(100)).shuffle(window, seed=own_seed), 10)
    assert len(set(map(tuple, orders))) == 10
    assert list(range(100)) not in orders


@for_each("window", [None, 100])
def test_every_seed_has_orders_of_its_own_and_seed_0_epoch_1_is_not_seed_1_epoch_0(window):
    pipeline = ps.from_sequence(range(100)).shuffle(window)
    orders = [tuple(order) for seed in range(4) for order in INLINE.epochs(pipeline, 4, seed)]
    assert len(set(orders)) == 16


@for_each("window", [None, 100])
def test_the_ops_seed_stands_in_for_the_loaders(window):
    pipeline = ps.from_sequence(range(100)).shuffle(window, seed=3)
    assert INLINE.epochs(pipeline, 2, seed=0) == INLINE.epochs(pipeline, 2, seed=99)
    assert INLINE.epochs(pipeline, 2) == INLINE.epochs(ps.from_sequence(range(100)).shuffle(window), 2, seed=3)


@for_each("window", [None, 100])
def test_two_shuffles_in_a_row_do_not_undo_each_other(window):
    once = INLINE.run(ps.from_sequence(range(100)).shuffle(window))
    twice = INLINE.run(ps.from_sequence(range(100)).shuffle(window).shuffle(window))
    assert sorted(twice) == list(range(100))
    assert twice not in (once, list(range(100)))


def test_a_seed_gives_the_same_order_today_and_tomorrow():
    assert INLINE.run(ps.from_sequence(range(10)).shuffle(seed=0)) == INLINE.run(
        ps.from_sequence("abcdefghij").shuffle(seed=0).map("abcdefghij".index)
    )


def test_first_places_are_spread_evenly():
    firsts = Counter(INLINE.run(ps.from_sequence(range(8)).shuffle().take(1), seed)[0] for seed in range(400))
    assert len(firsts) == 8
    assert min(firsts.values()) > 20


@few_layouts
def test_shuffle_over_arrays_keeps_rows_together(layout):
    import numpy as np

    x = np.arange(100)
    for batch_x, batch_y in layout.run(ps.from_arrays(x, x * 2).shuffle().batch(32)):
        assert (batch_y == batch_x * 2).all()


@few_layouts
def test_shuffle_behind_map_and_take_is_global(layout):
    pipeline = ps.from_sequence(range(100)).take(50).map(lambda x: x * 2, **layout.place).shuffle()
    assert sorted(layout.run(pipeline)) == list(range(0, 100, 2))


# ---------------------------------------------------------------------- window


@any_workers
@for_each("n, window", [(0, 5), (1, 5), (5, 5), (12, 5), (23, 7), (10, 1), (10, 1000)])
def test_a_window_permutes_consecutive_blocks_ragged_tails_too(layout, n, window):
    pipeline = ps.from_iterable(lambda: range(n)).shuffle(window=window)
    for order in layout.epochs(pipeline, 2):
        for start in range(0, n, window):
            assert sorted(order[start : start + window]) == list(range(start, min(start + window, n)))
        assert len(order) == n


@any_workers
def test_a_window_over_a_stream_is_the_same_for_any_layout(layout):
    def run(one):
        pipeline = (
            ps.from_iterable(lambda: range(200)).map(str, **one.place).shuffle(window=16).batch(6, collate=list)
        )
        return one.epochs(pipeline, 2)

    assert run(layout) == run(INLINE)


@few_layouts
def test_a_window_shuffles_behind_filter_flat_map_and_batch(layout):
    pipeline = (
        ps.from_sequence(range(100))
        .filter(lambda x: x % 2, **layout.place)
        .flat_map(lambda x: [x, -x])
        .shuffle(window=8)
    )
    expected = [y for x in range(1, 100, 2) for y in (x, -x)]
    order = layout.run(pipeline)
    assert order != expected
    assert sorted(order) == sorted(expected)
    batches = ps.from_sequence(range(100)).batch(10).shuffle(window=10)
    assert sorted(b[0] for b in layout.run(batches)) == list(range(0, 100, 10))


def test_blocks_of_one_epoch_have_orders_of_their_own():
    order = INLINE.run(ps.from_sequence(range(100)).shuffle(window=10))
    assert len({tuple(x % 10 for x in order[start : start + 10]) for start in range(0, 100, 10)}) > 5


# ---------------------------------------------------------------------- refusals


@for_each(
    "make, why",
    [
        (lambda: ps.from_iterable(lambda: range(5)).shuffle(), "stream"),
        (lambda: ps.from_sequence(range(5)).filter(bool).shuffle(), "filter"),
        (lambda: ps.from_sequence(range(5)).flat_map(range).shuffle(), "flat_map"),
        (lambda: ps.from_sequence(range(5)).map(str, on_error="skip").shuffle(), "map"),
        (lambda: ps.from_sequence(range(5)).batch(2).shuffle(), "batch"),
        (lambda: ps.from_sequence(range(5)).repeat().shuffle(), "endless"),
        (lambda: ps.zip(ps.from_sequence(range(5))).shuffle(), "zip"),
        (lambda: ps.concat(ps.from_sequence(range(5))).shuffle(), "concat"),
        (lambda: ps.from_sequence(range(5)).shuffle(window=2).shuffle(), "window"),
    ],
)
def test_a_global_shuffle_without_random_access_is_refused_with_the_remedy(make, why):
    with pytest.raises(ps.PlanError) as caught:
        make().loader()
    assert why in str(caught.value)
    assert "right behind the source" in str(caught.value)
    assert "shuffle(window=" in str(caught.value)


@for_each("window", [0, -1, True, 1.5, "all"])
def test_a_window_that_is_no_count_is_refused(window):
    with pytest.raises(ps.PlanError, match="shuffle"):
        ps.from_sequence([1]).shuffle(window)


@for_each("seed", [True, 1.5, "x"])
def test_a_seed_that_is_no_integer_is_refused(seed):
    with pytest.raises(ps.PlanError, match="seed"):
        ps.from_sequence([1]).shuffle(seed=seed)
