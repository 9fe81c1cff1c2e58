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

__all__ = ["Chunks", "mapped_chunks"]


class Chunks(Rows):
    """The rows of a data set, by the position of its chunks in the file."""

    def __init__(self, file: NDArray[np.uint8], at: NDArray[np.int64], rows: int, dataset: Any) -> None:
        super().__init__(dataset.dtype, dataset.shape)
        self._file = file
        #: where each chunk begins, in the order of the rows
        self._at = at.tolist()
        #: rows of a chunk
        self._rows = rows
        self._row_bytes = self.dtype.itemsize * int(np.prod(self.shape[1:]))

    def block(self, numbers: range | NDArray[np.int64]) -> NDArray[Any]:
        out = np.empty((len(numbers), *self.shape[1:]), self.dtype)
        self.fill(numbers, out)
        return out

    def fill(self, numbers: range | NDArray[np.int64], out: NDArray[Any]) -> None:
        if isinstance(numbers, range):
            at, place = numbers.start, 0
            while at < numbers.stop:
                count = min(self._rows - at % self._rows, numbers.stop - at)
                out[place : place + count] = self._view(at, count)
                at, place = at + count, place + count
            return
        for place, number in enumerate(numbers.tolist()):
            out[place] = self._view(number, 1)[0]

    def _view(self, first: int, count: int) -> NDArray[Any]:
        """Consecutive rows of one chunk, in the file."""
        chunk, within = divmod(first, self._rows)
        offset = self._at[chunk] + within * self._row_bytes
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
