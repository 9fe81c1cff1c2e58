"""len: known where it can be, a clear error where it cannot; and list() works all the same."""

from itertools import count

import numpy as np
import pytest
from tests.cases import for_each

import penstock as ps

TEN = ps.from_sequence(range(10))
STREAM = ps.from_iterable(lambda: range(10))

KNOWN = {
    "sequence": TEN,
    "arrays": ps.from_arrays(np.zeros((10, 2))),
    "dict of arrays": ps.from_arrays({"x": np.zeros(10)}),
    "subset": ps.from_sequence(range(10), indices=[1, 1, 5]),
    "fake": ps.fake(((2,), "uint8"), 10),
    "iterable with len": ps.from_iterable(list(range(10))),
    "map": TEN.map(str, workers=2),
    "tap": TEN.tap(str),
    "shuffle": TEN.shuffle(),
    "window": TEN.shuffle(window=4),
    "batch": TEN.batch(3),
    "batch exact": TEN.batch(5),
    "batch large": TEN.batch(99),
    "drop_last": TEN.batch(3, drop_last=True),
    "drop_last large": TEN.batch(99, drop_last=True),
    "batch of batch": TEN.batch(3).batch(3),
    "take": TEN.take(4),
    "take more": TEN.take(99),
    "take endless": TEN.repeat().take(4),
    "skip": TEN.skip(4),
    "skip more": TEN.skip(99),
    "repeat": TEN.repeat(3),
    "repeat 0": TEN.repeat(0),
    "epoch": TEN.epoch(7),
    "epoch of stream": STREAM.epoch(7),
    "epoch of filter": TEN.filter(bool).epoch(7).batch(2),
    "cache": TEN.cache(),
    "prefetch": TEN.prefetch(3),
    "zip": ps.zip(TEN, TEN.take(4)),
    "zip endless": ps.zip(TEN, TEN.repeat()),
    "concat": ps.concat(TEN, TEN.batch(3)),
    "empty": ps.from_sequence([]).filter(bool),
    "chain": TEN.shuffle().map(str).repeat(2).batch(3, collate=list).skip(1).take(5),
}


@for_each("name", list(KNOWN))
def test_the_length_is_what_comes_out(name):
    pipeline = KNOWN[name]
    with pipeline.loader() as loader:
        assert len(pipeline) == len(loader) == len(list(loader)) == len(list(loader))


UNKNOWN = {
    "stream": (STREAM, "from_iterable"),
    "filter": (TEN.filter(bool), r"filter\(bool\)"),
    "flat_map": (TEN.flat_map(range), r"flat_map\(range\)"),
    "unbatch": (TEN.batch(3).unbatch(), "unbatch"),
    "skipping map": (TEN.map(str, on_error="skip"), r"map\(str\)"),
    "retrying map": (TEN.map(str, on_error=ps.Retry()), r"map\(str\)"),
    "batch behind a filter": (TEN.filter(bool).batch(3), "filter"),
    "take of a filter": (TEN.filter(bool).take(3), "filter"),
    "zip": (ps.zip(TEN, STREAM), "zip"),
    "concat": (ps.concat(TEN, STREAM), "concat"),
}


@for_each("name", list(UNKNOWN))
def test_an_unknown_length_is_an_error_that_names_the_cause_and_list_works_all_the_same(name):
    pipeline, cause = UNKNOWN[name]
    with pytest.raises(ps.LengthUnknown, match=cause):
        len(pipeline)
    with pytest.raises(TypeError), pipeline.loader() as loader:
        len(loader)
    assert len(list(pipeline)) == sum(1 for _ in pipeline)


@for_each(
    "pipeline",
    [
        TEN.repeat(),
        TEN.repeat().batch(3),
        TEN.repeat().map(str),
        TEN.repeat().skip(5),
        ps.concat(TEN, TEN.repeat()),
    ],
)
def test_an_endless_length_is_an_error_with_the_remedy(pipeline):
    with pytest.raises(ps.LengthUnknown, match=r"endless.*take\(n\)"):
        len(pipeline)


def test_a_take_of_an_endless_stream_of_unknown_length_still_ends():
    assert list(ps.from_iterable(count).take(3)) == [0, 1, 2]
