"""A check for a source of your own: any way to read it gives the same samples."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import numpy as np

from penstock.executors.startup import keep_warm
from penstock.pipeline import Pipeline
from penstock.sources.source import IndexedSource, Source, StreamSource
from penstock.testing.layouts import FEW_PROCESS_LAYOUTS, INLINE, LAYOUTS, assert_same_stream, sendable
from penstock.testing.same import assert_same, difference
from penstock.trees import fields_of, stacked


def check_source(source: Source | Pipeline[Any], *, most: int = 100) -> None:
    """Raise AssertionError unless `source` keeps the contract of a source.

    Takes a source, or a pipeline without ops. Of a longer one about `most` samples are read.

    An indexed source must give the same sample for the same index every time: alone, in a range,
    in an array of indices in any order and with repeats, by several threads at once, and as a
    batch if it reads batches. A stream must give the same records whenever it is opened, without
    the first ones if so many are skipped, in iterators that do not disturb each other. Both must
    survive pickling, and give the same stream on every layout, on threads and on processes.

    >>> import penstock as ps
    >>> check_source(ps.from_arrays({"x": np.eye(5), "y": np.arange(5)}))
    >>> check_source(ps.from_iterable(range(30)))

    >>> import random
    >>> class Dice:
    ...     def __len__(self): return 5
    ...     def __getitem__(self, index): return random.random()
    >>> check_source(ps.from_sequence(Dice()))
    Traceback (most recent call last):
    ...
    AssertionError: from_sequence(Dice of 5) read again: sample 0: 0..., then 0...
    """
    if isinstance(source, Pipeline):
        if source.ops:
            raise ValueError(f"check_source takes a source alone; try {source.ops[0].label} with check_op")
        source = source.source
    _check_label(source)
    if isinstance(source, IndexedSource):
        _check_indexed(source, most)
    elif isinstance(source, StreamSource):
        _check_stream(source, most)
    else:
        raise ValueError(f"{source.label} brings pipelines together; check those, and the whole with check_op")
    _check_layouts(source, most)


def _check_label(source: Source) -> None:
    if not source.label.strip() or "\n" in source.label:
        raise AssertionError(f"{type(source).__name__}.label must be one line of text, got {source.label!r}")
    copy = cloudpickle.loads(cloudpickle.dumps(source))
    if copy.label != source.label:
        raise AssertionError(f"{source.label} comes out of pickling as {copy.label}")


# ---------------------------------------------------------------------- indexed


def _check_indexed(source: IndexedSource, most: int) -> None:
    label, n = source.label, len(source)
    if source.length() != n:
        raise AssertionError(f"{label}: length() is {source.length()}, len() is {n}")
    for nothing in (range(0), np.empty(0, dtype=np.int64)):
        _read(source, nothing)
    stop = min(n, most)
    first = _read(source, range(stop))
    assert_same(first, _read(source, range(stop)), f"{label} read again")
    singles = [_read(source, range(index, index + 1))[0] for index in range(stop)]
    assert_same(first, singles, f"{label} read one by one")
    assert_same(first, _read(source, np.arange(stop)), f"{label} read by an array of indices")
    if stop:
        some = np.random.default_rng(0).integers(0, stop, 2 * stop)  # any order, with repeats
        assert_same([first[index] for index in some], _read(source, some), f"{label} read in another order")
        _check_last(source, n)
        _check_names(source, n)
    _check_at_once(source, first)
    copy = cloudpickle.loads(cloudpickle.dumps(source))
    assert_same(first, _read(copy, range(stop)), f"{label} after pickling")
    if source.reads_batches:
        _check_batches(source, first)


def _read(source: IndexedSource, indices: Any) -> list[Any]:
    samples = source.read(indices)
    if not isinstance(samples, Sequence) or len(samples) != len(indices):
        size = len(samples) if hasattr(samples, "__len__") else "?"
        raise AssertionError(
            f"{source.label}: read() must give a list of {len(indices)} samples, "
            f"got a {type(samples).__name__} of {size}"
        )
    return list(samples)


def _check_last(source: IndexedSource, n: int) -> None:
    (last,) = _read(source, range(n - 1, n))
    (again,) = _read(source, np.array([n - 1]))
    assert_same([last], [again], f"{source.label}, the last sample by an array of indices")


def _check_names(source: IndexedSource, n: int) -> None:
    copy = cloudpickle.loads(cloudpickle.dumps(source))
    for index in {0, n - 1}:
        name = source.name(index)
        if not isinstance(name, str) or copy.name(index) != name or source.name(index) != name:
            raise AssertionError(f"{source.label}: name({index}) must be the same text every time, got {name!r}")
    if copy.content != source.content:
        raise AssertionError(f"{source.label}: content is {source.content!r}, and after pickling {copy.content!r}")


def _check_at_once(source: IndexedSource, first: list[Any]) -> None:
    orders = [np.random.default_rng(seed).permutation(len(first)) for seed in range(8)]
    with ThreadPoolExecutor(4) as threads:
        for order, samples in zip(orders, threads.map(lambda order: _read(source, order), orders), strict=True):
            assert_same([first[index] for index in order], samples, f"{source.label} read by 4 threads at once")


def _check_batches(source: IndexedSource, first: list[Any]) -> None:
    for indices in (range(len(first)), np.arange(len(first))[::-1].copy()):
        if not len(indices):
            continue
        expected = stacked([first[index] for index in indices], lambda number: f"sample {number}")
        batch = source.read_batch(indices)
        text = difference(expected, batch, "batch")
        if text is not None:
            raise AssertionError(f"{source.label}: samples stacked, then read_batch(): {text}")
        for array in _arrays(batch):
            if not array.flags.writeable:
                raise AssertionError(
                    f"{source.label}: a batch is the user's own, so its arrays must not be read-only"
                )


def _arrays(tree: Any) -> Iterator[np.ndarray[Any, Any]]:
    if isinstance(tree, np.ndarray):
        yield tree
    else:
        for value in (fields_of(tree) or {}).values():
            yield from _arrays(value)


# ---------------------------------------------------------------------- streams


def _check_stream(source: StreamSource, most: int) -> None:
    label = source.label
    shards = list(source.shards())
    assert_same(shards, list(source.shards()), f"{label}, its shards asked for again")
    total = 0
    for number, shard in enumerate(shards):
        what = f"{label}, shard {number}"
        records = _opened(source, shard, 0, most)
        total += len(records)
        assert_same(records, _opened(source, shard, 0, most), f"{what} opened again")
        for skip in sorted({0, 1, len(records) // 2, len(records)}):
            expected = records[skip:]
            assert_same(expected, _opened(source, shard, skip, len(expected)), f"{what} opened with skip={skip}")
        if len(records) < most and _opened(source, shard, len(records) + 3, most):
            raise AssertionError(f"{what}: more skipped than there is must give nothing")
        one, other = source.open(shard, 0), source.open(shard, 0)
        pairs = list(itertools.islice(zip(one, other, strict=False), most))
        assert_same(records, [first for first, _ in pairs], f"{what}, one of two iterators at once")
        assert_same(records, [second for _, second in pairs], f"{what}, the other of two iterators at once")
        if len(records) == most:
            return  # longer than what is read, so its length cannot be compared
    length = source.length()
    if length is not None and length != total:
        raise AssertionError(f"{label}: length() is {length}, but its shards have {total} records")


def _opened(source: StreamSource, shard: Any, skip: int, most: int) -> list[Any]:
    return list(itertools.islice(source.open(shard, skip), most))


# ---------------------------------------------------------------------- both


def _check_layouts(source: Source, most: int) -> None:
    pipeline: Pipeline[Any] = Pipeline(source).take(most)
    expected = INLINE.run(pipeline)
    processes = FEW_PROCESS_LAYOUTS if sendable(source, expected.epochs) else ()
    with keep_warm() if processes else nullcontext():  # so that each process starts in milliseconds
        for layout in [*LAYOUTS, *processes]:
            assert_same_stream(expected, layout.run(pipeline), f"{source.label}, {layout}")
