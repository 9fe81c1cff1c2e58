"""A batch is of one kind, however it was made: by one read of the source, of rows through a map, in a process."""

import numpy as np
import pytest

import penstock as ps
from penstock.testing.same import difference

PAIR = np.dtype([("x", "f4", (2,)), ("y", "i8")])
SPACED = np.dtype({"names": ["x", "y"], "formats": [">i2", "f8"], "offsets": [0, 16], "itemsize": 32})
N = 4


def filled(dtype, shape=(N, 3)):
    return np.arange(np.prod(shape), dtype="i8").reshape(shape).astype(dtype)


def structured(dtype, shape=(N,)):
    """Every byte of a field is a small number, and so the value is a number as well."""
    found = np.zeros(shape, dtype)
    for number, name in enumerate(found.dtype.names):
        found[name] = np.arange(found[name].size).reshape(found[name].shape) + number
    return found


def kinds():
    yield from ((f"dtype {name}", filled(name)) for name in ("?", "u1", "i4", "f2", "f8", "c16", "M8[s]", "m8[D]"))
    yield from ((f"dtype {name}", filled(name)) for name in (">i2", ">u4", ">f4", ">f8", ">c8", ">M8[s]"))
    yield "numbers", filled("f4", (N,))
    yield "numbers, big-endian", filled(">i4", (N,))
    yield "structured", structured(PAIR)
    yield "structured, rows of several", structured(PAIR, (N, 3))
    yield "structured, aligned", structured(np.dtype(PAIR.descr, align=True))
    yield "structured, big-endian", structured(PAIR.newbyteorder(">"))
    yield "structured, with room between", structured(SPACED)
    yield "structured, large", structured(SPACED, (N, 3000))
    yield "records", structured(PAIR).view(np.recarray)
    yield "bytes of no type", filled("i8", (N,)).view("V8")
    yield "matrix", filled("i8").view(np.matrix)
    yield "strings", np.array(["a", "bc", "", "d"])
    yield "bytes", np.array([b"a", b"bc", b"", b"d"])
    yield "objects", np.array(["a", (1,), {2}, "b"], object)
    yield "structured with objects", np.array([(1, "a"), (2, None)] * 2, [("n", "i4"), ("o", object)])
    yield "a list of numbers", [1, 2, 3, 4]
    yield "a list of strings", ["a", "b", "c", "d"]
    yield "a column of its own", Lazy(filled(">f4"))
    yield "strings of a column of its own", Lazy(np.array(["a", "b", "c", "d"]))
    yield "an array of its own", Lazy(filled(">f4"), dense=True)
    yield "objects of an array of its own", Lazy(np.array(["a", "b", "c", "d"], object), dense=True)


class Lazy:
    """Something that is indexed like an array, as h5py (dense) or an accessor of the user's."""

    def __init__(self, array, dense=False):
        self.array = array
        if dense:
            self.shape, self.dtype = array.shape, array.dtype

    def __len__(self):
        return len(self.array)

    def __getitem__(self, index):
        return self.array[index]


def same(row):
    return row


def check(name, column, pool):
    rows = ps.from_arrays({"x": column})
    (expected,) = rows.map(same).batch(N)
    ways = {
        "one read": rows.batch(N),
        "one read of chosen rows": ps.from_arrays({"x": column}, indices=[3, 1, 0, 2]).batch(N),
        "rows of a sequence": ps.from_sequence(list(rows)).batch(N),
        "in a process": rows.map(same, on=pool).batch(N),
    }
    found = {way: next(iter(pipeline)) for way, pipeline in ways.items()}
    with rows.batch(N).loader(on=pool) as loader:
        (found["one read in a process"],) = loader
    for way, batch in found.items():
        wanted = expected
        if "chosen" in way:
            (wanted,) = ps.from_arrays({"x": column}, indices=[3, 1, 0, 2]).map(same).batch(N)
        assert difference(wanted, batch) is None, f"{name}, {way}"
        array = batch["x"]
        if isinstance(array, np.ndarray):
            assert array.dtype.isnative, f"{name}, {way}"
            assert array.flags.writeable, f"{name}, {way}"


@pytest.mark.usefixtures("warm_processes")
def test_a_batch_is_of_one_kind_however_it_was_made():
    with ps.Processes(1) as pool:
        for name, column in kinds():
            check(name, column, pool)


def test_what_stacks_is_an_array_with_the_values_of_its_rows():
    for name, column in kinds():
        (batch,) = ps.from_arrays(column).batch(N)
        listed = any(word in name for word in ("strings", "objects", "dtype U")) or name == "bytes"
        assert isinstance(batch, list if listed else np.ndarray), name
        if not listed and isinstance(column, np.ndarray):
            assert batch.shape == column.shape, name
            assert np.array_equal(batch, np.asarray(column).astype(batch.dtype)), name
