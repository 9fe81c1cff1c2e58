"""Rows of chunked HDF5 data sets, copied from the mapped file."""

import numpy as np
import pytest
from tests.cases import for_each

import penstock as ps
from penstock.formats.hdf5_chunks import mapped_chunks

h5py = pytest.importorskip("h5py")


def write(path, data, **layout):
    with h5py.File(path, "w", userblock_size=layout.pop("userblock", 0)) as file:
        file.create_dataset("x", data=data, **layout)
    return str(path)


POINTS = np.array([(i, i / 3) for i in range(23)], dtype=[("a", "i2"), ("b", ">f8")])
ROWS = {
    "rows of one number": (np.arange(23), {"chunks": (5,)}),
    "one row each": (np.arange(46, dtype="f4").reshape(23, 2), {"chunks": (1, 2)}),
    "other byte order": (np.arange(23, dtype=">i4").reshape(23, 1), {"chunks": (4, 1)}),
    "compound": (POINTS, {"chunks": (7,)}),
    "bool": (np.arange(23) % 3 == 0, {"chunks": (23,)}),
    "fewer rows than a chunk": (np.arange(23, dtype="u1"), {"chunks": (100,), "maxshape": (None,)}),
}


@for_each("name", ROWS)
def test_any_rows_of_plain_chunks_are_those_that_h5py_reads_in_memory_of_their_own(tmp_path, name):
    data, layout = ROWS[name]
    path = write(tmp_path / f"{name}.h5", data, **layout)
    with h5py.File(path) as file:
        chunks = mapped_chunks(file["x"], path)
    for numbers in (range(23), range(3, 4), range(4, 16), range(22, 23), np.array([22, 0, 7, 7, 4])):
        found = chunks.block(numbers)
        assert found.dtype == data.dtype
        assert found.tolist() == data[np.asarray(numbers)].tolist()
        assert found.flags.writeable  # the file is mapped for reading alone
        assert found.flags.writeable


@for_each(
    "name, layout",
    {
        "filters": {"chunks": (4, 3), "compression": "gzip"},
        "parts of rows": {"chunks": (4, 1)},
        "no chunks": {},
    }.items(),
)
def test_what_does_not_lie_in_rows_in_the_file_is_left_to_h5py(tmp_path, name, layout):
    path = write(tmp_path / f"{name}.h5", np.arange(60).reshape(20, 3), **layout)
    with h5py.File(path) as file:
        assert mapped_chunks(file["x"], path) is None


def test_rows_that_were_never_written_are_the_fill_value(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (20, 2), "i4", chunks=(5, 2), fillvalue=-7)[:5] = 1
    assert [row.tolist() for row in ps.from_hdf5(tmp_path / "a.h5", fields="x")] == [[1, 1]] * 5 + [[-7, -7]] * 15


@for_each("lengths, rows", [([13], list(range(13))), ([13, 22], [*range(13), *[0] * 9])])
def test_a_data_set_that_was_made_shorter_or_longer_has_the_rows_that_it_has_now(tmp_path, lengths, rows):
    write(tmp_path / "a.h5", np.arange(20), chunks=(6,), maxshape=(None,))
    with h5py.File(tmp_path / "a.h5", "a") as file:
        for length in lengths:
            file["x"].resize((length,))
    assert list(ps.from_hdf5(tmp_path / "a.h5", fields="x")) == rows


def test_a_file_with_a_block_of_the_users_in_front_is_read_as_any_other(tmp_path):
    write(tmp_path / "a.h5", np.arange(20), chunks=(6,), userblock=1024)
    assert list(ps.from_hdf5(tmp_path / "a.h5", fields="x")) == list(range(20))


def test_a_file_that_was_cut_short_and_says_otherwise_is_an_error_and_no_crash(tmp_path):
    path = tmp_path / "a.h5"
    write(path, np.arange(100_000), chunks=(1000,))
    data = path.read_bytes()[:400_000]
    path.write_bytes(data[:40] + len(data).to_bytes(8, "little") + data[48:])  # where the file says that it ends
    with pytest.raises(ps.ReadError, match=r"a\.h5: .*"):
        list(ps.from_hdf5(path, fields="x"))
