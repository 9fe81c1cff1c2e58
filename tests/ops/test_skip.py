"""skip: leave out the first samples of an epoch."""

import pytest
from tests.cases import for_each
from tests.helpers import any_workers, few_layouts

import penstock as ps


def sources():
    return [ps.from_sequence(range(20)), ps.from_iterable(lambda: range(20)), ps.from_sequence(range(20)).map(int)]


@any_workers
@for_each("number", [0, 1, 2])
@for_each("n", [0, 1, 7, 20, 99])
def test_skip_leaves_out_the_first_n(layout, number, n):
    assert layout.epochs(sources()[number].skip(n), 2) == [list(range(20))[n:]] * 2


@any_workers
def test_skip_counts_what_is_delivered_to_it(layout):
    pipeline = ps.from_sequence(range(30)).filter(lambda x: x % 3 == 0, **layout.place).skip(4).batch(3)
    assert [b.tolist() for b in layout.run(pipeline)] == [[12, 15, 18], [21, 24, 27]]


@few_layouts
def test_take_and_skip_cut_a_stretch_out(layout):
    for source in sources():
        assert layout.run(source.skip(5).take(3)) == [5, 6, 7]
        assert layout.run(source.take(8).skip(5)) == [5, 6, 7]


@few_layouts
def test_take_and_skip_split_a_shuffle_in_two(layout):
    pipeline = ps.from_sequence(range(20)).shuffle()
    first, second = layout.run(pipeline.take(12)), layout.run(pipeline.skip(12))
    assert first + second == layout.run(pipeline)


@for_each("n", [-1, True, 1.5, "two", None])
def test_what_is_no_count_is_refused(n):
    with pytest.raises(ps.PlanError, match="skip"):
        ps.from_sequence([1]).skip(n)
