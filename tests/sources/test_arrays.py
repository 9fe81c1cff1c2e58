"""from_arrays: rows of arrays, and of whatever is indexed like one."""

from contextlib import nullcontext
from itertools import product

import numpy as np
import pytest
from tests.cases import for_each
from tests.helpers import (
    FEW_THREADS,
    PROCESSES,
    TWO_PROCESSES,
    any_threads,
    few_layouts,
    few_threads,
    plain,
    with_layouts,
)

import penstock as ps

X = np.arange(60).reshape(30, 2)
Y = np.arange(30) * 10


class Lazy:
    """An accessor of a user's own: it takes an int or a 1-D integer array, and notes what it was given."""

    def __init__(self, array):
        self.array = array
        self.asked = []

    def __len__(self):
        return len(self.array)

    def __getitem__(self, key):
        self.asked.append(key)
        plain_int = type(key) is int
        index_array = isinstance(key, np.ndarray) and key.ndim == 1 and key.dtype.kind == "i"
        if not plain_int and not index_array:
            raise TypeError(f"an int or a 1-D integer array, not {key!r}")
        return self.array[key]


class Increasing:
    """Like an h5py dataset: a shape, a dtype, and index arrays only in increasing order without repeats."""

    def __init__(self, array):
        self.array = array
        self.shape, self.dtype = array.shape, array.dtype

    def __len__(self):
        return len(self.array)

    def __getitem__(self, key):
        if isinstance(key, np.ndarray) and key.dtype.kind != "b" and (np.diff(key) <= 0).any():
            raise TypeError("Indexing elements must be in increasing order")
        return self.array[key]


COLUMNS = {"array": lambda a: a, "lazy": Lazy, "increasing": Increasing, "list": lambda a: list(a)}
any_column = for_each("column", COLUMNS)
#: processes are slow to start, and what is indexed at all is indexed there as here
any_column_and_layout = for_each(
    "column, layout",
    [*product(COLUMNS, FEW_THREADS), ("array", TWO_PROCESSES), ("lazy", TWO_PROCESSES)],
)


@any_column_and_layout
def test_several_arrays_give_tuples_a_dict_gives_dicts_and_one_gives_rows(layout, column):
    x, y = COLUMNS[column](X), COLUMNS[column](Y)
    rows = list(zip(X.tolist(), Y.tolist(), strict=True))
    assert plain(layout.run(ps.from_arrays(x, y))) == rows
    assert plain(layout.run(ps.from_arrays({"x": x, "y": y}))) == [{"x": a, "y": b} for a, b in rows]
    assert plain(layout.run(ps.from_arrays(x))) == X.tolist()


@any_column_and_layout
@for_each("shuffled", [False, True])
def test_batches_are_those_of_the_rows(layout, column, shuffled):
    x, y = COLUMNS[column](X), COLUMNS[column](Y)
    pipeline = ps.from_arrays(x, y)
    pipeline = pipeline.shuffle() if shuffled else pipeline
    expected = plain(layout.run(pipeline.map(lambda s: s, **layout.place).batch(7)))
    batches = layout.run(pipeline.batch(7))
    assert plain(batches) == expected
    assert all(isinstance(part, np.ndarray) for batch in batches for part in batch)
    assert {part.dtype for batch in batches for part in batch} == {np.dtype("int64")}


@any_column
def test_dict_batches_and_single_batches(column):
    x, y = COLUMNS[column](X), COLUMNS[column](Y)
    first = ps.from_arrays({"x": x, "y": y}).batch(4).peek()[0]
    assert plain(first) == {"x": X[:4].tolist(), "y": Y[:4].tolist()}
    assert plain(ps.from_arrays(x).batch(4).peek()[0]) == X[:4].tolist()


@few_threads
@for_each("shuffled", [False, True])
def test_a_lazy_accessor_only_ever_gets_an_int_or_a_1d_integer_array(layout, shuffled):
    lazy = Lazy(X)
    pipeline = ps.from_arrays(lazy, indices=[3, 3, 1, -1, *range(20)])
    pipeline = pipeline.shuffle() if shuffled else pipeline
    assert len(layout.run(pipeline)) == 24
    assert sum(map(len, layout.run(pipeline.batch(5)))) == 24
    assert lazy.asked


def test_a_batch_of_a_lazy_accessor_is_one_read():
    lazy = Lazy(X)
    assert len(list(ps.from_arrays(lazy).shuffle().batch(10))) == 3
    assert [len(key) for key in lazy.asked] == [10, 10, 10]


def test_a_batch_of_a_real_array_is_one_read():
    class Watched(np.ndarray):
        reads = 0

        def __getitem__(self, key):
            Watched.reads += 1
            return super().__getitem__(key)

    batches = list(ps.from_arrays(X.view(Watched)).shuffle().batch(10))
    assert len(batches) == Watched.reads == 3


@any_column
@for_each("dtype", ["bool", "uint8", "float32", "int16", "datetime64[s]", "complex64"])
def test_the_dtype_is_kept(column, dtype):
    array = np.zeros((9, 2), dtype)
    for batch in ps.from_arrays(COLUMNS[column](array)).batch(4):
        assert batch.dtype == dtype


def test_strings_and_objects_are_rows_too():
    names = np.array(["ab", "c", "def"])
    assert list(ps.from_arrays(names)) == ["ab", "c", "def"]
    (batch,) = ps.from_arrays({"name": names, "tags": [["a"], [], ["b", "c"]]}).batch(3)
    assert list(batch["name"]) == ["ab", "c", "def"]
    assert batch["tags"] == [["a"], [], ["b", "c"]]


@few_layouts
def test_a_memmap_is_read_like_an_array(layout, tmp_path):
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert plain(layout.run(ps.from_arrays(mapped).shuffle())) == plain(layout.run(ps.from_arrays(X).shuffle()))
    for pipeline in (ps.from_arrays(mapped), ps.from_arrays(mapped).shuffle()):
        for batch in layout.run(pipeline.batch(8)):
            assert not np.shares_memory(batch, mapped)
            batch += 1
    del mapped, batch, pipeline


@few_layouts
def test_rows_of_a_writable_memmap_do_not_reach_the_file(layout, tmp_path):
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r+")
    for row in layout.run(ps.from_arrays(mapped)):
        with nullcontext() if layout.processes else pytest.raises(ValueError, match="read-only"):
            row += 1  # what comes from a process is a copy
    for batch in layout.run(ps.from_arrays(mapped).batch(8)):
        batch += 1
    assert (mapped == X).all()


# ---------------------------------------------------------------------- whose memory it is


@any_threads
@for_each("shuffled", [False, True])
def test_rows_are_read_only(layout, shuffled):
    x = X.copy()
    pipeline = ps.from_arrays({"x": x})
    for sample in layout.run(pipeline.shuffle() if shuffled else pipeline):
        with pytest.raises(ValueError, match="read-only"):
            sample["x"] += 1
    assert x.flags.writeable


@with_layouts(*PROCESSES)
def test_rows_are_read_only_to_functions_in_processes_and_copies_to_the_reader(layout):
    x = X.copy()
    pipeline = ps.from_arrays({"x": x}).map(lambda row: {**row, "writable": row["x"].flags.writeable})
    with pipeline.loader(**layout.loader) as loader:
        for _ in range(2):
            for number, sample in enumerate(loader):
                assert sample["x"].tolist() == X[number].tolist()
                assert not sample["writable"]
                sample["x"] += 1
    assert (x == X).all()


@any_column_and_layout
@for_each("shuffled", [False, True])
def test_batches_are_writable_and_never_reach_the_source(layout, column, shuffled):
    x = X.copy()
    pipeline = ps.from_arrays(COLUMNS[column](x))
    pipeline = pipeline.shuffle() if shuffled else pipeline
    for size in (1, 7, 30, 99):
        for batch in layout.run(pipeline.batch(size)):
            batch += 1
    assert (x == X).all()


@few_layouts
def test_batches_of_two_epochs_do_not_share_memory(layout):
    first, second = layout.epochs(ps.from_arrays(X).batch(30), 2)
    assert not np.shares_memory(first[0], second[0])


def test_torch_tensors_give_the_same_kind_of_row_whatever_the_chunk():
    torch = pytest.importorskip("torch")
    tensor = torch.arange(60).reshape(30, 2)
    rows = list(ps.from_arrays(tensor))
    assert {type(row) for row in rows} == {torch.Tensor}
    assert [row.tolist() for row in rows] == tensor.tolist()
    for batch in ps.from_arrays(tensor).batch(1):
        batch += 1
    assert plain(tensor) == X.tolist()


@few_threads
def test_rows_of_a_tensor_do_not_write_through_to_it(layout):
    torch = pytest.importorskip("torch")
    tensor = torch.arange(60).reshape(30, 2)

    def spoil(row):
        try:
            row += 1
        except ValueError:
            return row
        return row

    layout.run(ps.from_arrays(tensor).map(spoil, **layout.place))
    assert plain(tensor) == X.tolist()


def test_a_tensor_that_requires_grad_or_has_no_rows_is_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(ps.PlanError, match=r"array 0 is a tensor that requires grad; give x\.detach"):
        ps.from_arrays(torch.ones(3, requires_grad=True))
    with pytest.raises(ps.PlanError, match=r"'x' is a tensor of .*to_dense"):
        ps.from_arrays({"x": torch.eye(3).to_sparse()})


# ---------------------------------------------------------------------- indices


@any_column_and_layout
def test_indices_choose_rows_in_their_order_with_repeats_and_from_the_end(layout, column):
    chosen = [5, 0, 5, -1, 29, 7]
    pipeline = ps.from_arrays(COLUMNS[column](Y), indices=chosen)
    assert plain(layout.run(pipeline)) == Y[chosen].tolist()
    assert plain(layout.run(pipeline.batch(4))) == [Y[chosen[:4]].tolist(), Y[chosen[4:]].tolist()]
    assert len(pipeline) == 6


@for_each(
    "indices",
    [[2, 4], (2, 4), np.array([2, 4]), np.array([2, 4], "uint8"), range(2, 5, 2), iter([2, 4])],
)
def test_indices_may_be_any_sequence_of_integers(indices):
    assert plain(list(ps.from_arrays(Y, indices=indices))) == [20, 40]


def test_no_indices_are_no_rows():
    assert list(ps.from_arrays(Y, indices=[]).batch(3)) == []
    assert len(ps.from_arrays(Y, indices=np.array([], dtype=int))) == 0


@for_each("bad", [[30], [0, -31], [1.5], [[1, 2]], [True, False], ["a"]])
def test_indices_that_are_none_are_refused(bad):
    with pytest.raises(ps.PlanError, match="ind"):
        ps.from_arrays(Y, indices=bad)


def test_changing_the_index_array_later_changes_nothing():
    chosen = np.array([1, 2])
    pipeline = ps.from_arrays(Y, indices=chosen)
    chosen[:] = 5
    assert plain(list(pipeline)) == [10, 20]


@any_column_and_layout
@for_each("shuffled", [False, True])
def test_the_index_column_matches_the_rows(layout, column, shuffled):
    y = COLUMNS[column](Y)
    pipelines = [ps.from_arrays(y, with_index=True), ps.from_arrays(y, with_index=True, indices=[4, 2, 9])]
    for pipeline in pipelines:
        pipeline = pipeline.shuffle() if shuffled else pipeline
        assert all(row == 10 * index for index, row in layout.run(pipeline))
        assert all((rows == 10 * index).all() for index, rows in layout.run(pipeline.batch(4)))
    for batch in layout.run(ps.from_arrays({"y": y}, with_index=True).batch(4)):
        assert (batch["y"] == 10 * batch["index"]).all()
    assert set(ps.from_arrays({"y": y}, with_index=True).peek()[0]) == {"y", "index"}


def test_the_index_column_is_writable_and_of_int64():
    for index, _ in ps.from_arrays(Y, with_index=True, indices=[4, 2, 9]).batch(2):
        assert index.dtype == "int64"
        index += 1


# ---------------------------------------------------------------------- refusals


def test_arrays_of_different_lengths_are_refused_with_their_lengths():
    with pytest.raises(ps.PlanError, match="array 0: 30, array 1: 29"):
        ps.from_arrays(X, Y[:-1])
    with pytest.raises(ps.PlanError, match="'x': 30, 'y': 29"):
        ps.from_arrays({"x": X, "y": Y[:-1]})


@for_each("bad", [5, None, "abc", b"abc", np.float64(3), np.array(5), iter([1])])
def test_what_has_no_rows_is_refused(bad):
    with pytest.raises((ps.PlanError, TypeError)):
        ps.from_arrays(bad)


def test_no_array_at_all_is_refused():
    with pytest.raises(ps.PlanError, match="at least one"):
        ps.from_arrays()
    with pytest.raises(ps.PlanError, match="at least one"):
        ps.from_arrays({})


@few_layouts
def test_an_accessor_that_fails_is_the_users_error(layout):
    class Broken(Lazy):
        def __getitem__(self, key):
            if np.any(np.asarray(key) == 17):
                raise OSError("sector 17")
            return super().__getitem__(key)

    for pipeline in (ps.from_arrays(Broken(X)), ps.from_arrays(Broken(X)).batch(4)):
        with pytest.raises(OSError, match="sector 17") as caught:
            layout.run(pipeline)
        assert any("from_arrays" in note for note in caught.value.__notes__)


@few_layouts
def test_an_accessor_that_gives_too_few_rows_is_an_error(layout):
    class Short(Lazy):
        def __getitem__(self, key):
            rows = super().__getitem__(key)
            return rows[:-1] if isinstance(key, np.ndarray) else rows

    with pytest.raises((IndexError, ValueError, ps.PenstockError)):
        layout.run(ps.from_arrays(Short(X)).batch(5))
