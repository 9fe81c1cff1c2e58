"""repeat: the whole stream several times in one epoch."""

from itertools import islice

import pytest
from tests.cases import for_each
from tests.helpers import any_workers, few_layouts, until_error

import penstock as ps


def sources():
    return [ps.from_sequence(range(5)), ps.from_iterable(lambda: range(5)), ps.from_sequence(range(5)).map(int)]


@any_workers
@for_each("number", [0, 1, 2])
@for_each("times", [0, 1, 2, 5])
def test_repeat_runs_through_the_samples_so_many_times(layout, number, times):
    assert layout.epochs(sources()[number].repeat(times), 2) == [list(range(5)) * times] * 2


@any_workers
def test_three_times_fifty_by_twenty_are_eight_wrapped_batches(layout):
    pipeline = ps.from_sequence(range(50)).map(lambda x: x, **layout.place).repeat(3).batch(20)
    flat = list(range(50)) * 3
    assert [b.tolist() for b in layout.run(pipeline)] == [flat[s : s + 20] for s in range(0, 150, 20)]
    assert len(pipeline) == 8


@any_workers
def test_repeat_behind_a_batch_repeats_the_short_batch(layout):
    pipeline = ps.from_sequence(range(5)).map(lambda x: x, **layout.place).batch(2).repeat(2)
    assert [b.tolist() for b in layout.run(pipeline)] == [[0, 1], [2, 3], [4]] * 2


@any_workers
def test_each_pass_of_a_shuffle_has_an_order_of_its_own(layout):
    orders = []
    for epoch in layout.epochs(ps.from_sequence(range(50)).shuffle().repeat(2), 2):
        orders += [epoch[:50], epoch[50:]]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len(set(map(tuple, orders))) == 4


@any_workers
def test_each_pass_of_a_window_shuffle_has_an_order_of_its_own(layout):
    (epoch,) = layout.epochs(ps.from_iterable(lambda: range(50)).shuffle(window=50).repeat(2), 1)
    assert sorted(epoch[:50]) == sorted(epoch[50:]) == list(range(50))
    assert epoch[:50] != epoch[50:]


@few_layouts
def test_shuffle_behind_a_repeat_mixes_the_passes(layout):
    samples = layout.run(ps.from_sequence(range(20)).repeat(2).shuffle())
    assert sorted(samples) == sorted([*range(20), *range(20)])
    assert sorted(samples[:20]) != list(range(20))


@any_workers
@for_each("number", [0, 1, 2])
def test_repeat_without_a_number_never_ends(layout, number):
    with sources()[number].repeat().loader(**layout.loader) as loader:
        assert list(islice(iter(loader), 23)) == (list(range(5)) * 5)[:23]


@few_layouts
def test_an_endless_shuffle_differs_from_epoch_to_epoch(layout):
    with ps.from_sequence(range(20)).shuffle().repeat().loader(**layout.loader) as loader:
        epochs = [list(islice(iter(loader), 40)) for _ in range(2)]
    passes = {tuple(epoch[start : start + 20]) for epoch in epochs for start in (0, 20)}
    assert len(passes) == 4
    assert all(sorted(one) == list(range(20)) for one in passes)


@any_workers
def test_repeat_counts_passes_of_what_is_left_by_a_filter(layout):
    pipeline = ps.from_sequence(range(6)).filter(lambda x: x % 2, **layout.place).repeat(2).batch(4)
    assert [b.tolist() for b in layout.run(pipeline)] == [[1, 3, 5, 1], [3, 5]]


@few_layouts
def test_repeating_nothing_for_ever_is_nothing(layout):
    assert layout.run(ps.from_sequence([]).repeat()) == []
    assert layout.run(ps.from_iterable(list).repeat()) == []
    assert layout.run(ps.from_iterable(lambda: range(5)).filter(lambda x: False).repeat()) == []


@few_layouts
def test_repeating_for_ever_what_a_filter_empties_is_nothing(layout):
    assert layout.run(ps.from_sequence(range(5)).filter(lambda x: False, **layout.place).repeat()) == []


@few_layouts
def test_nested_repeats_multiply(layout):
    for source in sources():
        assert layout.run(source.take(2).repeat(2).repeat(3)) == [0, 1] * 6


@few_layouts
def test_a_failure_in_the_second_pass_comes_there(layout):
    passes = []

    def stream():
        passes.append(1)
        yield from range(3)
        if len(passes) == 2:
            raise ValueError

    with ps.from_iterable(stream).repeat(3).loader(**layout.loader) as loader:
        assert until_error(loader, ValueError)[0] == [0, 1, 2, 0, 1, 2]


@few_layouts
def test_functions_before_a_repeat_see_the_loaders_epoch_over_any_source(layout):
    def epochs_seen(source):
        return layout.epochs(source.map(lambda x, info: info.epoch, info=True, **layout.place).repeat(2), 2)

    indexed, stream = ps.from_sequence([0]), ps.from_iterable(lambda: [0])
    assert epochs_seen(indexed) == epochs_seen(stream)


@for_each("times", [-1, True, 1.5, "two"])
def test_what_is_no_count_is_refused(times):
    with pytest.raises(ps.PlanError, match="repeat"):
        ps.from_sequence([1]).repeat(times)
