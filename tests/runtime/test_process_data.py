"""Samples of every kind go through worker processes as they are, and batches are the user's own."""

import gc
import os
import threading
from functools import cache

import numpy as np
import pytest
from tests.cases import for_each
from tests.helpers import POOL
from tests.runtime import kinds_of_data
from tests.runtime.kinds_of_data import MAKERS, Point, Record

import penstock as ps
from penstock.testing import difference

pytestmark = pytest.mark.usefixtures("warm_pool")

TWO = {"on": POOL}


def same(sample):
    return sample


@cache
def all_made(name):
    return list(MAKERS[name]().values())


def made(name, number):
    """The sample with that number, made where this is called."""
    return all_made(name)[number]


def made_there(name, values, on):
    return ps.from_sequence(range(len(values))).map(lambda x: made(name, x), on=on)


#: ways for a sample to get into a process and out of it
ROUTES = {
    "made there": made_there,
    "from a list": lambda name, values, on: ps.from_sequence(list(values.values())).map(same, on=on),
    "from a stream": lambda name, values, on: ps.from_iterable(list(values.values())).map(same, on=on),
    "to another process": lambda *args: made_there(*args).map(same, workers=1).map(same, on=args[-1]),
    "in a list": lambda *args: made_there(*args).batch(5, collate=list).flat_map(same),
    "from a cache": lambda *args: made_there(*args).cache().map(same),
}


def test_samples_of_every_kind_arrive_as_they_were():
    with ps.Processes(2) as pool:
        for route in ROUTES:
            check_route("values", route, pool)


def check_route(name, route, pool):
    pipeline = ROUTES[route](name, MAKERS[name](), pool)
    with pipeline.loader(epochs=1, inline=True) as loader:
        expected = list(loader)
    with pipeline.loader(epochs=2) as loader:
        for _ in range(2):
            wrong = [
                text
                for kind, one, other in zip(MAKERS[name](), expected, loader, strict=True)
                if (text := told(one, other, kind)) is not None
            ]
            assert not wrong, f"{route}: " + "\n".join(wrong)


def told(one, other, kind):
    """How two samples differ, in words."""
    if kind.startswith("local ") and type(one) is not type(other):
        # Made by another call, so their classes are two.
        assert type(one).__name__ == type(other).__name__
        return difference(plain(one), plain(other), kind)
    if type(one) is not type(other):
        return difference(one, other, kind)
    if kind.startswith("tensor "):
        if (one.dtype, one.layout) != (other.dtype, other.layout):
            return f"{kind}: {one.dtype} {one.layout}, then {other.dtype} {other.layout}"
        one, other = ((x.to_dense() if x.is_sparse else x).to("cpu").resolve_conj() for x in (one, other))
        one, other = ((x.float() if str(x.dtype) == "torch.bfloat16" else x) for x in (one, other))
    if isinstance(one, np.ma.MaskedArray):
        if one.fill_value != other.fill_value or not np.array_equal(one.mask, other.mask):
            return f"{kind}: {one!r}, then {other!r}"
        one, other = one.filled(), other.filled()
    if getattr(one, "unit", None) != getattr(other, "unit", None):
        return f"{kind}: its unit is lost"
    return difference(one, other, kind)


def plain(sample):
    return list(sample) if isinstance(sample, tuple) else vars(sample)


# ---------------------------------------------------------------------- writable, and one's own


def arrays_in(tree):
    if isinstance(tree, np.ndarray):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from arrays_in(value)
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            yield from arrays_in(value)


@for_each("size", [3, 3000, 300_000])
@for_each("made", ["rows", "batches"])
def test_what_is_delivered_is_writable_and_nobody_elses(size, made):
    x = np.arange(8 * size).reshape(8, size)
    rows = ps.from_arrays({"x": x, "y": np.arange(8)})
    rows = rows.map(lambda row: {"x": row["x"] * 1, "y": row["y"]}, **TWO) if made == "rows" else rows
    with rows.batch(3).loader(**TWO) as loader:
        for _ in range(3):
            kept = list(loader)
            assert np.array_equal(np.concatenate([batch["x"] for batch in kept]), x)
            for array in arrays_in(kept):
                assert array.flags.writeable
                array[...] = -1
            assert all((array == -1).all() for array in arrays_in(kept))
    assert x[-1, -1] == 8 * size - 1


def test_samples_of_a_chunk_can_be_written_without_changing_their_neighbours():
    pipeline = ps.from_sequence(range(200)).map(lambda x: {"a": np.full(100, x), "b": [np.full(3, x)]}, **TWO)
    for number, sample in enumerate(pipeline):
        assert (sample["a"] == number).all()
        assert (sample["b"][0] == number).all()
        sample["a"][:] = sample["b"][0][:] = -1


@for_each("length", [10, 10_000])
def test_batches_that_are_kept_stay_as_they_were(length):
    descriptors = "/proc/self/fd"
    with ps.from_sequence(range(300)).map(lambda x: np.full(length, x), **TWO).batch(2).loader() as loader:
        list(loader)
        gc.collect()
        before = len(os.listdir(descriptors))
        kept = [*loader, *loader]
        open_now = len(os.listdir(descriptors))
    gc.collect()
    assert [int(batch[1, -1]) for batch in kept] == [*range(1, 300, 2)] * 2
    for number, batch in enumerate(kept):
        assert (batch[0] == 2 * number % 300).all()
    # what is kept takes blocks of its own at the most, and never one per batch
    assert open_now - before < 150


def test_views_keep_their_memory_when_the_batch_and_the_loader_are_gone():
    torch = pytest.importorskip("torch")
    with ps.from_sequence(range(6)).map(lambda x: np.full(100_000, x), **TWO).batch(2).loader() as loader:
        views = [(batch[1, ::50_000], torch.from_numpy(batch)[0, 5:7]) for batch in loader]
        for _ in range(3):
            list(loader)  # blocks are used again
    for number, (view, tensor) in enumerate(views):
        assert view.tolist() == [2 * number + 1] * 2
        assert tensor.tolist() == [2 * number] * 2


def test_a_function_may_write_to_what_it_is_given_by_a_stream():
    def add(sample):
        sample["x"] += 1
        sample["small"] += 1
        return sample

    stream = ps.from_iterable(lambda: ({"x": np.zeros(20_000), "small": np.zeros(2)} for _ in range(20)))
    for sample in stream.map(add, **TWO).map(add, **TWO):
        assert (sample["x"] == 2).all()
        assert (sample["small"] == 2).all()


def test_a_function_may_keep_what_it_was_given():
    kept = []

    def first_so_far(sample):
        kept.append(sample)
        return [int(one[0]) for one in kept], sample

    with (
        ps.from_iterable(lambda: (np.full(20_000, x) for x in range(30)))
        .map(first_so_far, on="process")
        .loader(epochs=1) as loader
    ):
        for number, (seen, sample) in enumerate(loader):
            assert seen == list(range(number + 1))
            assert (sample == number).all()


def test_batches_are_made_in_the_process_field_by_field():
    def row(x):
        return {"x": np.full(3, x, "u1"), "p": Point(x, str(x)), "r": Record(x / 2, None), "t": (x, [x, x])}

    (batch,) = ps.from_sequence(range(4)).map(row, on="process").batch(4)
    (here,) = ps.from_sequence(range(4)).map(row).batch(4)
    assert difference(here, batch) is None
    assert type(batch["p"]) is Point
    assert type(batch["r"]) is Record


def test_ragged_rows_are_padded_or_refused_in_the_process_as_they_are_here():
    rows = ps.from_sequence(range(1, 6)).map(lambda x: {"x": np.arange(x)}, on="process")
    (batch,) = rows.batch(5, pad=-1)
    assert batch["x"].shape == (5, 5)
    assert batch["x_length"].tolist() == [1, 2, 3, 4, 5]
    with pytest.raises(ps.RaggedBatch, match=r"field 'x': \(1,\) then \(2,\) at sample 1"):
        list(rows.batch(5))


# ---------------------------------------------------------------------- what cannot be sent


def test_a_result_that_cannot_be_sent_is_an_error_that_names_op_and_sample():
    def locked(x):
        return threading.Lock() if x == 7 else x

    with ps.from_sequence(range(10, 30)).shuffle().map(locked, **TWO).loader(seed=1) as loader:
        list(loader)
    with ps.from_sequence(range(20)).map(locked, **TWO).loader() as loader:
        seen = []
        with pytest.raises(
            ps.PenstockError, match=r"map\(locked\) gave a lock for sample 7 .*on='thread'"
        ) as caught:
            for sample in loader:
                seen.append(sample)
        (record,) = loader.errors()
    assert seen == list(range(7))
    assert (record.index, record.exception) == (7, caught.value)


def test_a_sample_of_a_stream_that_cannot_be_sent_is_an_error_that_names_it():
    stream = ps.from_iterable(lambda: (threading.Lock() if x == 7 else x for x in range(20)))
    with stream.map(same, **TWO).loader() as loader:
        seen = []
        with pytest.raises(ps.PenstockError, match=r"sample 7 .*lock"):
            for sample in loader:
                seen.append(sample)
        assert seen == list(range(7))
        assert [record.index for record in loader.errors()] == [7]


def test_a_deeply_nested_sample_is_carried_as_on_threads():
    sample = kinds_of_data.deep(100)
    (found,) = ps.from_sequence([0]).map(lambda _: kinds_of_data.deep(100), on="process")
    for _ in range(100):
        found, sample = found["in"][0], sample["in"][0]
    assert difference(sample, found) is None
