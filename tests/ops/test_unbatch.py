"""unbatch: the inverse of batch."""

import dataclasses
from collections import namedtuple
from itertools import pairwise

import numpy as np
import pytest
from tests.cases import for_each
from tests.helpers import any_workers, few_layouts, plain, until_error

import penstock as ps
from penstock.testing import check_resume

Point = namedtuple("Point", "x y")


@dataclasses.dataclass
class Record:
    x: int
    y: str


SAMPLES = {
    "numbers": list(range(17)),
    "floats": [x / 4 for x in range(17)],
    "strings": list("abcdefghijklmnopq"),
    "bytes": [bytes([x]) for x in range(17)],
    "nothing": [None] * 17,
    "big": [2**70 + x for x in range(17)],
    "arrays": [np.arange(x, x + 3) for x in range(17)],
    "dicts": [{"x": x, "s": str(x), "in": {"y": -x}} for x in range(17)],
    "tuples": [(x, str(x), (x, x)) for x in range(17)],
    "named": [Point(x, str(x)) for x in range(17)],
    "dataclasses": [Record(x, str(x)) for x in range(17)],
}


def as_plain(sample):
    return dataclasses.astuple(sample) if isinstance(sample, Record) else plain(sample)


@any_workers
@for_each("kind", list(SAMPLES))
def test_unbatch_undoes_batch(layout, kind):
    samples = SAMPLES[kind]
    pipeline = ps.from_sequence(samples).map(lambda s: s, **layout.place).batch(5).unbatch()
    out = layout.run(pipeline)
    assert [as_plain(s) for s in out] == [as_plain(s) for s in samples]
    if kind not in ("numbers", "floats"):
        assert {type(s) for s in out} == {type(s) for s in samples}


@any_workers
def test_batches_are_cut_anew_from_what_they_held(layout):
    pipeline = ps.from_sequence(range(20)).batch(6).map(lambda b: b * 2, **layout.place).unbatch().batch(4)
    assert plain(layout.run(pipeline)) == [list(range(s, s + 8, 2)) for s in range(0, 40, 8)]


@any_workers
def test_two_by_thirty_cut_into_tens_loses_nothing(layout):
    halves = [np.arange(30), np.arange(30, 60)]
    pipeline = ps.from_sequence(halves).map(lambda b: b, **layout.place).unbatch().batch(10)
    assert plain(layout.run(pipeline)) == [list(range(s, s + 10)) for s in range(0, 60, 10)]


@few_layouts
def test_lists_and_empty_batches_are_taken_apart_too(layout):
    assert layout.run(ps.from_sequence([["a", "b"], [], ["c"]]).unbatch()) == ["a", "b", "c"]


@few_layouts
def test_fields_of_different_lengths_are_an_error_that_names_them(layout):
    pipeline = ps.from_sequence([{"x": [1, 2], "y": [1, 2]}, {"x": [1, 2], "y": [1]}]).unbatch()
    with pipeline.loader(**layout.loader) as loader:
        seen, error = until_error(loader, ps.RaggedBatch)
    assert seen == [{"x": 1, "y": 1}, {"x": 2, "y": 2}]
    assert "'x': 2, 'y': 1" in str(error)


@few_layouts
def test_what_is_no_batch_is_a_type_error(layout):
    with pytest.raises(TypeError):
        layout.run(ps.from_sequence([1, 2]).unbatch())


def test_draws_behind_it_are_those_of_the_samples():
    def draw(x, rng):
        return int(x), rng.random()

    plainly = ps.from_sequence(range(20)).map(draw, rng=True)
    behind = ps.from_sequence(range(20)).batch(6).unbatch().map(draw, rng=True)
    assert list(plainly) == list(behind)


def doubled(batch):
    return np.concatenate([batch, batch + 100])


#: samples that were never put into a batch one by one, so that their batch and their number are all they have
BATCHES_FROM_ELSEWHERE = {
    "the source": lambda: ps.from_sequence([np.arange(n, n + 4) for n in range(0, 24, 4)]),
    "a stream": lambda: ps.from_iterable([np.arange(n, n + 4) for n in range(0, 24, 4)]),
    "a function": lambda: ps.from_sequence(range(12)).batch(4).map(doubled),
    "several pipelines": lambda: ps.concat(*(ps.from_sequence(range(n, n + 12)).batch(4) for n in (0, 20))),
}


@for_each("where", BATCHES_FROM_ELSEWHERE)
def test_samples_of_batches_from_elsewhere_have_draws_and_turns_of_their_own(where):
    samples = BATCHES_FROM_ELSEWHERE[where]().unbatch()
    draws = list(samples.map(lambda _, rng: rng.random(), rng=True))
    assert len(set(draws)) == len(draws) == 24
    order = list(samples.shuffle(window=24))
    assert sorted(order) == sorted(samples)
    assert sum(abs(int(one) - int(other)) == 1 for one, other in pairwise(order)) < 8


@for_each("where", BATCHES_FROM_ELSEWHERE)
def test_a_window_over_samples_of_batches_from_elsewhere_is_resumed_exactly(where):
    check_resume(BATCHES_FROM_ELSEWHERE[where]().unbatch().shuffle(window=10).batch(5, collate=list), every=2)
