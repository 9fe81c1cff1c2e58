"""Chunks of an HDF5 data set that hold whole rows as they are: rows are copied from the mapped file.

HDF5 copies each chunk into a cache of its own and from there to the caller, one caller at a time in a process. Here
a row is copied once, by any number of threads. This holds only for chunks without filters that span all dimensions
but the first. Rows come in memory of their own.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.formats.rows import Rows


class Chunks(Rows):
    """The rows of a data set, by the position of its chunks in the file."""

    owned = True

    def __init__(self, file: NDArray[np.uint8], at: NDArray[np.int64], rows: int, dataset: Any) -> None:
        super().__init__(dataset.dtype, dataset.shape)
        self._file = file
        #: where each chunk begins, in the order of the rows
        self._at = at
        #: rows of a chunk
        self._rows = rows
        self._row_bytes = self.dtype.itemsize * int(np.prod(self.shape[1:]))
        # A row can begin at any byte: item i of this view is what follows byte i.
        row = np.dtype((np.void, self._row_bytes))
        self._anywhere = np.ndarray((len(file) - self._row_bytes + 1,), row, file.data, strides=(1,))

    def block(self, numbers: range | NDArray[np.int64]) -> NDArray[Any]:
        if not isinstance(numbers, range):
            found: NDArray[Any] = self._anywhere[
                self._at[numbers // self._rows] + numbers % self._rows * self._row_bytes
            ]
            return np.reshape(found.view(self.dtype), (len(numbers), *self.shape[1:]))
        out = np.empty((len(numbers), *self.shape[1:]), self.dtype)
        at, place = numbers.start, 0
        while at < numbers.stop:
            count = min(self._rows - at % self._rows, numbers.stop - at)
            out[place : place + count] = self._view(at, count)
            at, place = at + count, place + count
        return out

    def _view(self, first: int, count: int) -> NDArray[Any]:
        """Consecutive rows of one chunk, in the file."""
        chunk, within = divmod(first, self._rows)
        offset = self._at.item(chunk) + within * self._row_bytes
        return np.ndarray((count, *self.shape[1:]), self.dtype, self._file.data, offset)


def mapped_chunks(dataset: Any, here: str) -> Chunks | None:
    """The chunks of a data set in the local file `here`; None where HDF5 has to read them.

    Raises ValueError if a chunk ends behind the file.
    """
    shape, chunks = dataset.shape, dataset.chunks
    listed = getattr(dataset.id, "chunk_iter", None)  # h5py before 3.8 lacks it
    if chunks is None or listed is None or dataset.is_virtual or dataset.dtype.hasobject or not dataset.size:
        return None
    if chunks[1:] != shape[1:] or dataset.id.get_create_plist().get_nfilters():
        return None
    rows = chunks[0]
    size = dataset.dtype.itemsize * int(np.prod(chunks))
    at = np.full(-(-shape[0] // rows), -1, dtype=np.int64)

    def note(chunk: Any) -> None:
        number = chunk.chunk_offset[0] // rows
        # Behind the rows of a data set that was made shorter there may be chunks that are no longer used.
        if number < len(at) and chunk.size == size and not chunk.filter_mask:
            at[number] = chunk.byte_offset

    listed(note)
    if at.min() < 0:
        return None  # a chunk that was never written has no place in the file: its rows are the fill value
    if int(at.max()) + size > os.path.getsize(here):
        raise ValueError(f"the data set {dataset.name!r} ends behind the file, which was cut short")
    found = Chunks(np.asarray(np.memmap(here, np.uint8, mode="r")), at, rows, dataset)
    for row in (0, shape[0] - 1):
        if found.block(range(row, row + 1))[0].tobytes() != np.asarray(dataset[row]).tobytes():
            return None  # the file counts its positions from somewhere else
    return found
