"""epoch: epochs of a chosen length that keep their place in the data."""

import pytest
from tests.cases import for_each
from tests.helpers import INLINE, any_workers, few_layouts

import penstock as ps

FIVE = [[1, 2, 3], [4, 5, 1], [2, 3, 4], [5, 1, 2]]


def sources():
    return {
        "indexed": ps.from_sequence([1, 2, 3, 4, 5]),
        "stream": ps.from_iterable(lambda: [1, 2, 3, 4, 5]),
        "map": ps.from_sequence([1, 2, 3, 4, 5]).map(int),
        "filter": ps.from_sequence(range(10)).filter(lambda x: 0 < x < 6),
        "flat_map": ps.from_sequence([1, 3]).flat_map(lambda x: [x, x + 1] if x == 1 else [3, 4, 5]),
        "concat": ps.concat(ps.from_sequence([1, 2]), ps.from_sequence([3, 4, 5])),
    }


any_source = for_each("source", list(sources()))


@any_workers
@any_source
def test_an_epoch_goes_on_where_the_last_one_ended(layout, source):
    assert layout.epochs(sources()[source].epoch(3), 4) == FIVE


@any_workers
def test_five_samples_in_epochs_of_three_are_123_451_234(layout):
    assert layout.epochs(ps.from_sequence([1, 2, 3, 4, 5]).epoch(3), 3) == [[1, 2, 3], [4, 5, 1], [2, 3, 4]]


@any_workers
@any_source
@for_each("n", [5, 12])
def test_an_epoch_may_be_as_long_as_the_data_or_longer(layout, source, n):
    flat = [1, 2, 3, 4, 5] * 8
    assert layout.epochs(sources()[source].epoch(n), 3) == [flat[s : s + n] for s in (0, n, 2 * n)]


@few_layouts
@any_source
def test_an_epoch_that_was_broken_off_counts_as_whole(layout, source):
    with sources()[source].epoch(3).loader(**layout.loader) as loader:
        assert next(iter(loader)) == 1
        assert list(loader) == [4, 5, 1]
        assert next(iter(loader)) == 2
        assert list(loader) == [5, 1, 2]


@few_layouts
@any_source
def test_set_epoch_finds_the_place_of_that_epoch(layout, source):
    with sources()[source].epoch(3).loader(**layout.loader) as loader:
        for epoch in (2, 0, 3, 1, 1):
            loader.set_epoch(epoch)
            assert list(loader) == FIVE[epoch]


@few_layouts
def test_each_pass_through_the_data_has_an_order_of_its_own(layout):
    epochs = layout.epochs(ps.from_sequence(range(20)).shuffle().epoch(10), 4)
    passes = [tuple(epochs[0] + epochs[1]), tuple(epochs[2] + epochs[3])]
    assert all(sorted(one) == list(range(20)) for one in passes)
    assert passes[0] != passes[1]


@few_layouts
def test_a_shuffle_behind_it_shuffles_each_epoch(layout):
    epochs = layout.epochs(ps.from_sequence(range(20)).epoch(10).shuffle(), 2)
    assert [sorted(epoch) for epoch in epochs] == [list(range(10)), list(range(10, 20))]
    assert epochs[0] != list(range(10))


@any_workers
def test_batches_are_cut_within_an_epoch(layout):
    pipeline = ps.from_iterable(lambda: range(7)).map(lambda x: x, **layout.place).epoch(5).batch(2)
    batches = [[b.tolist() for b in epoch] for epoch in layout.epochs(pipeline, 2)]
    assert batches == [[[0, 1], [2, 3], [4]], [[5, 6], [0, 1], [2]]]


@any_workers
def test_an_epoch_of_batches_counts_batches(layout):
    pipeline = ps.from_sequence(range(5)).batch(2).epoch(2)
    batches = [[b.tolist() for b in epoch] for epoch in layout.epochs(pipeline, 2)]
    assert batches == [[[0, 1], [2, 3]], [[4], [0, 1]]]


@any_workers
def test_samples_that_a_function_skips_are_not_counted(layout):
    def odd(x):
        if x % 2 == 0:
            raise ps.Skip
        return x

    pipeline = ps.from_sequence(range(10)).map(odd, **layout.place).epoch(3)
    assert layout.epochs(pipeline, 3) == [[1, 3, 5], [7, 9, 1], [3, 5, 7]]


@few_layouts
def test_without_data_an_epoch_is_empty(layout):
    for source in (ps.from_sequence([]), ps.from_iterable(list), ps.from_sequence([1]).filter(lambda x: False)):
        assert layout.epochs(source.epoch(3), 2) == [[], []]


@few_layouts
def test_an_epoch_of_a_stream_reads_the_stream_once(layout):
    opened = []

    def stream():
        opened.append(1)
        yield from range(100)

    assert layout.epochs(ps.from_iterable(stream).epoch(10), 5) == [
        list(range(s, s + 10)) for s in range(0, 50, 10)
    ]
    assert len(opened) == 1


def test_its_length_is_known_over_any_source():
    assert {len(source.epoch(3)) for source in sources().values()} == {3}
    assert INLINE.run(ps.from_sequence([1]).epoch(4)) == [1, 1, 1, 1]


@for_each("n", [0, -1, True, 1.5, None])
def test_what_is_no_length_is_refused(n):
    with pytest.raises(ps.PlanError, match="epoch"):
        ps.from_sequence([1]).epoch(n)
