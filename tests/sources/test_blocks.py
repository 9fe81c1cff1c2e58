"""Batches of arrays in files: the same as their rows stacked, however the values lie in the file."""

import h5py
import numpy as np
from tests.cases import for_each

import penstock as ps

ROWS = np.arange(60, dtype="int32").reshape(20, 3)
KINDS = {
    "plain": ROWS,
    "by column": np.asfortranarray(ROWS),
    "other byte order": ROWS.astype(">i4"),
    "text": np.array([f"row {number}" for number in range(20)], "S"),
}
ORDERS = {"in order": range(2, 9), "in any order": np.array([7, 0, 0, 19])}


def npy(folder, values):
    np.save(folder / "a.npy", values)
    return ps.from_npy(folder / "a.npy")


def hdf5(folder, values, **layout):
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("x", data=values, **layout)
    return ps.from_hdf5(folder / "a.h5", fields="x")


def chunked(folder, values):
    return hdf5(folder, values, chunks=(6, *values.shape[1:]))


def compressed(folder, values):
    return hdf5(folder, values, chunks=(6, *values.shape[1:]), compression="gzip")


@for_each("write", [npy, hdf5, chunked, compressed])
@for_each("kind", KINDS)
@for_each("order", ORDERS)
def test_a_batch_is_what_its_rows_stacked_would_be(write, kind, order, tmp_path):
    folder = tmp_path / f"{write.__name__}, {kind}, {order}"
    folder.mkdir()
    source = write(folder, KINDS[kind]).source
    batch, rows = source.read_batch(ORDERS[order]), source.read(ORDERS[order])
    if kind == "text":
        assert batch == [bytes(row) for row in rows] == KINDS[kind][np.asarray(ORDERS[order], int)].tolist()
        return
    assert batch.dtype == np.int32
    assert batch.flags.writeable
    assert np.array_equal(batch, KINDS[kind][np.asarray(ORDERS[order], int)])
    assert np.array_equal(batch, np.array(rows, "int32").reshape(batch.shape))


def test_files_of_other_types_lose_no_digits_in_a_batch(tmp_path):
    for number, dtype in enumerate(["int32", "float64"]):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["x"] = np.array([0.5, 1.5]).astype(dtype)
    assert ps.from_hdf5(tmp_path, fields="x").source.read_batch(range(4)).tolist() == [0, 1, 0.5, 1.5]
