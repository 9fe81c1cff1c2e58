"""from_arrays: rows of one or several arrays, or of anything that is indexed like one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import PlanError
from penstock.formats.columns import dicts
from penstock.memory.recycle import Recycler
from penstock.sources.chosen import ChosenSource, subset_of
from penstock.sources.source import Indices, length_of, why_long_list
from penstock.tensors import array_of, dtype_name, is_tensor, tensor_of
from penstock.trees import batch_dtype, stacked


class ArraySource(ChosenSource):
    """Row i of every array. Over real arrays a batch is one vectorised read.

    A column is read in one of three ways: a numpy array (a memmap too) by slices and index arrays;
    another array with a shape and a dtype (h5py, zarr) by index arrays, sorted and without
    repeats as h5py demands; anything else by an int, or by a 1-D integer array for a whole batch.
    Rows of a torch tensor are tensors. A batch is the same as if its rows had been stacked one by one.
    """

    verb = "from_arrays"

    def __init__(self, arrays: Any, indices: Any = None, with_index: bool = False) -> None:
        self.names: list[str] | None = None
        columns: Sequence[Any]
        if isinstance(arrays, Mapping):
            self.names, columns = list(arrays), list(arrays.values())
        else:
            columns = list(arrays)
        paths = self.names if self.names is not None else [str(number) for number in range(len(columns))]
        if len(columns) == 1 and self.names is None and not with_index:
            paths = [""]
        self.columns = [
            _Column(column, self._name(number), str(paths[number])) for number, column in enumerate(columns)
        ]
        if not columns:
            raise PlanError("from_arrays needs at least one array")
        lengths = {self._name(number): length_of(column, "from_arrays") for number, column in enumerate(columns)}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            raise PlanError(f"from_arrays needs arrays of one length, got {told}")
        self.rows: int = next(iter(lengths.values()))
        if with_index and self.names is not None and "index" in self.names:
            raise PlanError("from_arrays(with_index=True) adds a field 'index', and there is one; rename yours")
        self.subset = subset_of(self.rows, indices, "from_arrays")
        self.with_index = with_index

    def _name(self, number: int) -> str:
        return repr(self.names[number]) if self.names is not None else f"array {number}"

    @property
    def label(self) -> str:
        columns = ", ".join(
            (f"{name}: " if name else "") + column.describe()
            for name, column in zip(self.names or [""] * len(self.columns), self.columns, strict=True)
        )
        return f"from_arrays({columns})"

    @property
    def instant(self) -> bool:
        return all(type(column.array) is np.ndarray for column in self.columns)

    @property
    def reads_batches(self) -> bool:
        return True

    @property
    def stays(self) -> str:
        lists = [column.array for column in self.columns if column.listed]
        return next(filter(None, map(why_long_list, lists)), "")

    @property
    def heap_bytes(self) -> int:
        return sum(column.array.nbytes for column in self.columns if type(column.array) is np.ndarray)

    @property
    def whole_length(self) -> int:
        return self.rows

    def read(self, indices: Indices) -> list[Any]:
        indices = self.numbers(indices)
        columns = [column.rows(indices) for column in self.columns]
        if self.with_index:
            columns.append(_numbers(indices))
        return self._samples(columns)

    def _samples(self, columns: list[list[Any]]) -> list[Any]:
        if self.names is not None:
            names = [*self.names, "index"] if self.with_index else self.names
            return dicts(names, columns, len(columns[0]))
        if self.with_index:
            columns = [columns[-1], *columns[:-1]]
        return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))

    def read_batch(self, indices: Indices) -> Any:
        indices = self.numbers(indices)
        blocks = [column.block(indices) for column in self.columns]
        for number, block in enumerate(blocks):
            if len(block) != len(indices):
                raise IndexError(f"{self._name(number)} gave {len(block)} rows for {len(indices)} indices")
        if self.names is not None:
            batch = dict(zip(self.names, blocks, strict=True))
            return {**batch, "index": np.array(indices)} if self.with_index else batch
        if self.with_index:
            blocks = [np.array(indices), *blocks]
        return blocks[0] if len(blocks) == 1 else tuple(blocks)


def _numbers(indices: Indices) -> list[int]:
    return list(indices) if isinstance(indices, range) else indices.tolist()


def _is_listed(array: NDArray[Any]) -> bool:
    """Whether a batch of its rows is to be made one by one: strings, bytes and objects make a list of it."""
    return array.dtype.kind in "USO" or array.dtype.hasobject or isinstance(array, np.ma.MaskedArray)


def _opened(tensor: Any, name: str) -> tuple[str, NDArray[Any]]:
    """The dtype of a tensor, and its memory as an array."""
    if tensor.requires_grad:
        raise PlanError(f"from_arrays: {name} is a tensor that requires grad; give x.detach()")
    dtype = dtype_name(tensor)
    if dtype is None:
        raise PlanError(
            f"from_arrays: {name} is a tensor of {tensor.dtype}, {tensor.layout}, on {tensor.device}, which has no "
            "rows to read; give a plain tensor, as by x.to_dense(), or use from_sequence"
        )
    return dtype, array_of(tensor)


class _Column:
    """One array, and how it wants to be read."""

    def __init__(self, array: Any, name: str, path: str) -> None:
        if np.isscalar(array) or not hasattr(array, "__getitem__") or not hasattr(array, "__len__"):
            raise PlanError(f"from_arrays: {name} needs len() and [], got {type(array).__name__}")
        if isinstance(array, (Mapping, str, bytes)):
            raise PlanError(f"from_arrays: {name} is a {type(array).__name__}, which is not an array of rows")
        if isinstance(array, np.ma.MaskedArray):
            raise PlanError(
                f"from_arrays: {name} is a masked array, and a batch would lose the mask; "
                "give x.filled(value) and x.mask as two arrays"
            )
        #: what the field is called in messages about its samples
        self.path = path
        #: the dtype of the tensor that it is, or ""
        self.tensor = ""
        if is_tensor(array):
            self.tensor, array = _opened(array, name)
        if isinstance(array, np.matrix):
            array = np.asarray(array)  # a row of a matrix would be a matrix again, of one row
        self.array = array
        self.recycler = Recycler()
        self.listed = isinstance(array, (list, tuple, range))
        self.dense = not self.listed and hasattr(array, "shape") and hasattr(array, "dtype")
        #: its rows are numbers in memory, and a batch of them is one copy
        self._plain = type(array) in (np.ndarray, np.memmap) and not _is_listed(array)

    def describe(self) -> str:
        if self.dense:
            return f"{self.tensor or self.array.dtype}{list(self.array.shape)}"
        return f"{type(self.array).__name__} of {len(self.array)}"

    def rows(self, indices: Indices) -> list[Any]:
        """The rows one by one; those of arrays are read-only, since the array is not ours to change."""
        array = self.array
        if isinstance(array, np.ndarray):
            block = array[indices.start : indices.stop] if isinstance(indices, range) else array[indices]
            if self.tensor:
                # A tensor cannot be closed to writing: what is handed out is a copy.
                return list(tensor_of(block.copy() if isinstance(indices, range) else block, self.tensor))
            block = block.view()
            block.flags.writeable = False
            return list(block)
        if self.dense and len(indices) > 1:
            return list(self._sorted_read(np.asarray(indices)))
        return [array[number] for number in _numbers(indices)]

    def block(self, indices: Indices) -> Any:
        """The rows as one new array or tensor (or a list, if that is what rows like these make)."""
        array = self.array
        rows: Any
        if self._plain:
            return tensor_of(self._copied(indices), self.tensor) if self.tensor else self._copied(indices)
        if isinstance(array, np.ndarray) and _is_listed(array):
            rows = self.rows(indices)
        elif self.listed:
            rows = [array[number] for number in _numbers(indices)]
        elif self.dense:
            rows = self._sorted_read(np.asarray(indices))
        else:
            rows = array[np.asarray(indices)]
        if isinstance(rows, np.ndarray) and not _is_listed(rows):
            return np.asarray(rows, dtype=batch_dtype(rows.dtype))
        return stacked(list(rows), lambda number: f"sample {_numbers(indices)[number]}", path=self.path)

    def _copied(self, indices: Indices) -> NDArray[Any]:
        """The rows of an array, in new memory."""
        array = self.array
        dtype = batch_dtype(array.dtype)
        if isinstance(indices, range):
            part = array[indices.start : indices.stop]
            block = self.recycler.empty(part.shape, dtype)
            block[...] = part  # a slice is a view of the user's own array
            return block
        if not array.flags.c_contiguous or array.dtype != dtype:
            # `take` would copy all of it first, or through a buffer of its own.
            return np.asarray(array[indices], dtype=dtype)
        out = self.recycler.empty((len(indices), *array.shape[1:]), dtype)
        # Our indices are in range, and without "clip" numpy would go through a buffer of its own.
        taken: NDArray[Any] = array.take(indices, axis=0, out=out, mode="clip")
        return taken

    def _sorted_read(self, indices: NDArray[np.int64]) -> Any:
        if np.all(np.diff(indices) > 0):
            return np.asarray(self.array[indices])
        unique, back = np.unique(indices, return_inverse=True)
        return np.asarray(self.array[unique])[back]
