"""h5py objects on processes are opened again by file and name, in each process that uses them."""

import os

import numpy as np
import pytest

import penstock as ps
from penstock.errors import PlanError
from penstock.memory.hdf5 import Reopened
from penstock.memory.parcel import pack, unpack

h5py = pytest.importorskip("h5py")

pytestmark = pytest.mark.usefixtures("warm_processes")

ROWS = np.arange(4000).reshape(1000, 4)


@pytest.fixture
def path(tmp_path):
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["part/rows"] = ROWS
        file["labels"] = np.arange(1000) % 7
    return tmp_path / "rows.h5"


def there(value):
    parcel = pack(value, "the program")
    return unpack(parcel.data, [os.dup(block.fd) for block in parcel.blocks])


@pytest.fixture(autouse=True)
def _close_what_was_opened_here():
    from penstock.memory import hdf5

    yield
    for file in hdf5._files.values():
        file.close()
    hdf5._files.clear()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_data_set_is_read_on_processes_as_it_is_here(path, workers):
    with h5py.File(path) as file:
        pipeline = ps.from_arrays({"x": file["part/rows"], "y": file["labels"]}).shuffle(seed=3).batch(32)
        here = list(pipeline.loader(inline=True))
        there = list(pipeline.loader(on="process", workers=workers, timeout_s=30))
    assert len(here) == len(there) == 32
    for one, other in zip(here, there, strict=True):
        np.testing.assert_array_equal(one["x"], other["x"])
        np.testing.assert_array_equal(one["y"], other["y"])


def test_a_data_set_that_an_object_holds_is_opened_in_the_worker_and_not_in_the_template(path):
    class Rows:
        def __init__(self, file):
            self.rows = file["part/rows"]

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, index):
            return int(self.rows[index].sum()), isinstance(self.rows, h5py.Dataset)

    with h5py.File(path) as file:
        pipeline = ps.from_sequence(Rows(file)).map(lambda x: x, on="process", workers=2)
        with pipeline.loader(timeout_s=30) as loader:
            assert list(loader) == [(int(row.sum()), True) for row in ROWS]
            assert "by itself" not in loader.explain()


def test_the_stand_in_does_what_the_object_does(path):
    with h5py.File(path) as file:
        rows, group, whole = there((file["part/rows"], file["part"], file))
        assert type(rows) is type(group) is type(whole) is Reopened
        assert isinstance(rows, h5py.Dataset)
        assert isinstance(group, h5py.Group)
        assert isinstance(whole, h5py.File)
        assert "opened when it is used" in repr(rows)
        assert (rows.shape, rows.dtype, len(rows), bool(rows)) == (ROWS.shape, ROWS.dtype, 1000, True)
        np.testing.assert_array_equal(rows[10:20], ROWS[10:20])
        np.testing.assert_array_equal(np.asarray(rows), ROWS)
        assert [list(row) for row in rows][:2] == ROWS[:2].tolist()
        assert list(group) == ["rows"]
        assert "part/rows" in whole
        assert whole["part/rows"].shape == rows.shape


def test_stand_ins_of_one_file_share_one_open_file(path):
    with h5py.File(path) as file:
        rows, labels = there([file["part/rows"], file["labels"]])
        assert rows.file.id == labels.file.id


def test_what_another_process_cannot_open_is_refused(path, tmp_path):
    with h5py.File(path) as file:
        closed = file["labels"]
    writing = h5py.File(path, "r+")
    memory = h5py.File(tmp_path / "none.h5", "w", driver="core", backing_store=False)
    memory["x"] = [1, 2]
    for value, message in (
        (closed, "whose file is closed; keep the file open"),
        (writing["labels"], "open for writing .*h5py.File\\(name, 'r'\\)"),
        (memory["x"], "another process cannot open"),
    ):
        with pytest.raises(PlanError, match=message):
            pack({"held": value}, "map(f)")
    writing.close(), memory.close()
