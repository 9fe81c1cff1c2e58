"""take: the first samples of an epoch."""

from itertools import count

import numpy as np
import pytest
from tests.cases import for_each
from tests.helpers import any_workers, few_layouts, until_error

import penstock as ps


def sources():
    return [ps.from_sequence(range(20)), ps.from_iterable(lambda: range(20)), ps.from_sequence(range(20)).map(int)]


@any_workers
@for_each("number", [0, 1, 2])
@for_each("n", [0, 1, 7, 20, 99])
def test_take_gives_the_first_n_or_all(layout, number, n):
    assert layout.epochs(sources()[number].take(n), 2) == [list(range(20))[:n]] * 2


@any_workers
def test_take_counts_what_is_delivered_to_it(layout):
    pipeline = ps.from_sequence(range(100)).filter(lambda x: x % 3 == 0, **layout.place).take(4).batch(3)
    assert [b.tolist() for b in layout.run(pipeline)] == [[0, 3, 6], [9]]


@any_workers
def test_take_behind_a_function_that_skips_counts_what_is_left(layout):
    def odd(x):
        if x % 2 == 0:
            raise ps.Skip
        return x

    assert layout.run(ps.from_sequence(range(20)).map(odd, **layout.place).take(4)) == [1, 3, 5, 7]


@few_layouts
def test_take_ends_an_endless_stream_and_pulls_little_more(layout):
    pulled = []

    def endless():
        for number in count():
            pulled.append(number)
            yield number

    assert layout.run(ps.from_iterable(endless).take(10)) == list(range(10))
    assert len(pulled) < 10_000


@few_layouts
def test_take_of_batches_takes_batches(layout):
    assert [b.tolist() for b in layout.run(ps.from_sequence(range(9)).batch(2).take(2))] == [[0, 1], [2, 3]]


@few_layouts
def test_take_of_a_shuffle_is_the_beginning_of_its_order(layout):
    pipeline = ps.from_sequence(range(50)).shuffle()
    assert layout.epochs(pipeline.take(5), 2) == [order[:5] for order in layout.epochs(pipeline, 2)]


@few_layouts
def test_an_error_behind_the_last_sample_taken_never_comes(layout):
    def bad(x):
        if x == 5:
            raise ValueError
        return x

    pipeline = ps.from_sequence(range(20)).map(bad, **layout.place)
    assert layout.run(pipeline.take(5)) == [0, 1, 2, 3, 4]
    with pipeline.take(6).loader(**layout.loader) as loader:
        assert until_error(loader, ValueError)[0] == [0, 1, 2, 3, 4]


@for_each("n", [-1, True, 1.5, "two", None])
def test_what_is_no_count_is_refused(n):
    with pytest.raises(ps.PlanError, match="take"):
        ps.from_sequence([1]).take(n)


def test_a_numpy_count_will_do():
    assert list(ps.from_sequence(range(5)).take(np.int64(2))) == [0, 1]
