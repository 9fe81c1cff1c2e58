"""filter: keep the samples for which the function is true."""

from collections import Counter, namedtuple

import numpy as np
from tests.cases import for_each
from tests.helpers import any_layout, any_workers, until_error

import penstock as ps

Point = namedtuple("Point", "x y")


def is_even(x):
    return x % 2 == 0


@any_layout
def test_filter_keeps_what_is_true_in_its_order(layout):
    pipeline = ps.from_sequence(range(500)).filter(layout.fn(is_even), **layout.place)
    assert layout.run(pipeline) == list(range(0, 500, 2))


@any_layout
@for_each("keep", [True, False])
def test_filter_may_keep_all_or_nothing(layout, keep):
    pipeline = ps.from_sequence(range(50)).filter(layout.fn(lambda x: keep), **layout.place)
    assert layout.epochs(pipeline, 2) == [list(range(50)) if keep else []] * 2


@for_each("truth", [1, "yes", [0], np.bool_(True), np.array([1])])
@for_each("falsehood", [0, "", [], None, np.bool_(False)])
def test_filter_goes_by_the_truth_of_the_result(truth, falsehood):
    pipeline = ps.from_sequence(range(4)).filter(lambda x: truth if x % 2 else falsehood)
    assert list(pipeline) == [1, 3]


@any_layout
@for_each("sample", [{"x": 2, "y": 1}, (2, 1), Point(2, 1)])
def test_with_a_key_the_field_decides_and_the_sample_stays_whole(layout, sample):
    key = 0 if type(sample) is tuple else "x"
    pipeline = ps.from_sequence([sample]).filter(layout.fn(is_even), key=key, **layout.place)
    assert layout.run(pipeline) == [sample]
    pipeline = ps.from_sequence([sample]).filter(layout.fn(lambda x: not is_even(x)), key=key, **layout.place)
    assert layout.run(pipeline) == []


@any_layout
def test_star_and_info_reach_the_function(layout):
    fn = layout.fn(lambda a, b, info: a < b and info.index != 1)
    pipeline = ps.from_sequence([(1, 2), (1, 2), (2, 1)]).filter(fn, star=True, info=True, **layout.place)
    assert layout.run(pipeline) == [(1, 2)]


@any_workers
def test_batches_behind_a_filter_are_the_same_for_any_layout(layout):
    pipeline = ps.from_sequence(range(100)).filter(lambda x: x % 3 == 0, **layout.place).batch(5)
    kept = list(range(0, 100, 3))
    assert [b.tolist() for b in layout.run(pipeline)] == [kept[s : s + 5] for s in range(0, len(kept), 5)]


@any_layout
def test_an_error_comes_after_the_samples_before_it(layout):
    pipeline = ps.from_sequence(range(20)).filter(layout.fn(lambda x: 1 // (x - 11)), **layout.place)
    with pipeline.loader(**layout.loader) as loader:
        seen, _ = until_error(loader, ZeroDivisionError)
    assert seen == list(range(11))


@any_layout
def test_what_fails_may_be_skipped_or_dropped_on_purpose(layout):
    def choose(x):
        if x == 3:
            raise ValueError
        if x == 5:
            raise ps.Skip
        return x != 7

    pipeline = ps.from_sequence(range(10)).filter(layout.fn(choose), on_error="skip", **layout.place)
    with pipeline.loader(**layout.loader) as loader:
        assert list(loader) == [0, 1, 2, 4, 6, 8, 9]
        assert [record.index for record in loader.errors()] == [3, 5]


def test_unordered_filter_gives_the_same_multiset():
    pipeline = ps.from_sequence(range(300)).filter(is_even, workers=5, ordered=False)
    assert Counter(pipeline) == Counter(range(0, 300, 2))


def test_what_a_filter_drops_is_no_error():
    with ps.from_sequence(range(10)).filter(is_even).loader() as loader:
        list(loader)
        assert loader.errors() == []
        assert loader.stats()["errors"] == 0
