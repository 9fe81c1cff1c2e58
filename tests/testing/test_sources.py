"""check_source accepts every source of ours, and finds each kind of source that breaks the contract."""

import itertools
import os
import random

import numpy as np
import pytest
from tests.cases import for_each

import penstock as ps
from penstock.sources.source import IndexedSource, StreamSource
from penstock.testing import check_source
from penstock.testing import sources as checked
from penstock.testing.layouts import FEW_PROCESS_LAYOUTS, LAYOUTS

pytestmark = pytest.mark.usefixtures("warm_processes")


class Accessor:
    """Rows made on demand, by an int or an array of ints."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return np.asarray(index) * 2.0 if np.ndim(index) else float(index) * 2.0


X = np.arange(24.0).reshape(12, 2)
GOOD = [
    ps.from_sequence(range(20)),
    ps.from_sequence([]),
    ps.from_sequence("hello", indices=[4, 1, 1], with_index=True),
    ps.from_arrays(X),
    ps.from_arrays(X, np.arange(12), with_index=True),
    ps.from_arrays({"x": X, "y": list("abcdefghijkl")}, indices=range(0, 12, 3)),
    ps.from_arrays(Accessor()),
    ps.from_iterable(range(300)),
    ps.from_iterable(lambda: iter("abc")),
    ps.fake({"x": ((3,), "float32")}, length=10),
    ps.fake(((3,), "uint8"), length=10, constant=True),
]


@for_each("source", GOOD)
def test_our_own_sources_pass(source):
    check_source(source)


def test_a_source_passes_on_all_layouts(monkeypatch):
    monkeypatch.setattr(checked, "LAYOUTS", LAYOUTS)
    monkeypatch.setattr(checked, "FEW_PROCESS_LAYOUTS", FEW_PROCESS_LAYOUTS)
    check_source(ps.from_arrays(X, np.arange(12), with_index=True))


class Indexed(IndexedSource):
    verb = "indexed"

    def __len__(self):
        return 9

    def read(self, indices):
        return [int(index) for index in indices]


class Stream(StreamSource):
    verb = "stream"

    def shards(self):
        return [0, 10]

    def open(self, shard, skip):
        return iter(range(shard + skip, shard + 10))


class Local(Indexed):
    """Gives something else in another process."""

    def __init__(self):
        self.here = os.getpid()

    def read(self, indices):
        return [int(index) + (os.getpid() != self.here) for index in indices]


class Random(Indexed):
    def read(self, indices):
        return [random.random() for _ in indices]


class Sorted(Indexed):
    def read(self, indices):
        return sorted(int(index) for index in indices)


class Short(Indexed):
    def read(self, indices):
        return [int(index) for index in indices][:5]


class Longer(Indexed):
    def length(self):
        return 10


class ReadOnly(Indexed):
    reads_batches = True

    def read_batch(self, indices):
        batch = np.array(indices)
        batch.flags.writeable = False
        return batch


class OtherBatches(Indexed):
    reads_batches = True

    def read_batch(self, indices):
        return np.array(indices, dtype=np.float64)


class OneIterator(Stream):
    def __init__(self):
        self.iterators = {}

    def open(self, shard, skip):
        return self.iterators.setdefault(shard, iter(range(shard + skip, shard + 10)))

    def __getstate__(self):
        return {"iterators": {}}


class NoSkip(Stream):
    def open(self, shard, skip):
        return iter(range(shard, shard + 10))


class Shared(Stream):
    """All iterators go on from where the last one stood, until one has ended."""

    def __init__(self):
        self.at = 0

    def open(self, shard, skip):
        self.at = skip
        return itertools.takewhile(lambda value: value < shard + 10, iter(lambda: self.step(shard), None))

    def step(self, shard):
        self.at += 1
        return shard + self.at - 1


class WrongLength(Stream):
    def length(self):
        return 19


def test_sources_written_from_the_contract_pass():
    check_source(Indexed())
    check_source(Stream())


@for_each(
    "source, text",
    [
        (Local(), "on 2 process workers, epoch 0: sample 0: 0, then 1"),
        (Random(), "read again: sample 0"),
        (Sorted(), "read in another order"),
        (Short(), "must give a list of 9 samples, got a list of 5"),
        (Longer(), r"length\(\) is 10, len\(\) is 9"),
        (ReadOnly(), "must not be read-only"),
        (OtherBatches(), r"then read_batch\(\): batch: dtype int64, then float64"),
        (OneIterator(), "shard 0 opened again: 10 samples, then 0"),
        (NoSkip(), "shard 0 opened with skip=1: sample 0: 1, then 0"),
        (Shared(), "one of two iterators at once"),
        (WrongLength(), r"length\(\) is 19, but its shards have 20 records"),
    ],
)
def test_a_source_that_breaks_the_contract_is_found(source, text):
    with pytest.raises(AssertionError, match=text):
        check_source(source)


def test_ops_and_composites_are_sent_to_check_op():
    with pytest.raises(ValueError, match="check_op"):
        check_source(ps.from_sequence(range(3)).batch(2))
    with pytest.raises(ValueError, match="check_op"):
        check_source(ps.zip(ps.from_sequence(range(3))))
