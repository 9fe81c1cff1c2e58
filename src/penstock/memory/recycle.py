"""Arrays whose memory is used again once nobody looks at it any more.

A new large array costs a page fault for every 4 KB of it, and its memory is not in the cache; both
can take longer than filling it. So the memory of a batch goes back to a small store when the last
view of it dies, and the next batch of that shape gets it, the one freed last first. A batch that is
kept keeps its memory.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Recycler"]

#: freed arrays kept per shape
_KEPT = 32
#: smaller arrays come out of the allocator's own store
_LEAST_BYTES = 64 * 1024


class _Lease:
    """Owns an array until the last view of it dies. Its `__del__` may run inside the garbage collector."""

    __slots__ = ("__array_interface__", "home", "raw")

    def __init__(self, raw: NDArray[Any], home: list[NDArray[Any]]) -> None:
        self.raw = raw
        self.home = home
        self.__array_interface__ = raw.__array_interface__

    def __del__(self) -> None:
        if len(self.home) < _KEPT:
            self.home.append(self.raw)


class Recycler:
    """Gives out arrays, and takes their memory back when they die. May be used by several threads.

    >>> recycler = Recycler()
    >>> batch = recycler.empty((256, 1024), np.dtype("uint8"))
    >>> where = batch.ctypes.data
    >>> row = batch[0]
    >>> del batch                     # row still looks at it
    >>> recycler.empty((256, 1024), np.dtype("uint8")).ctypes.data == where
    False
    >>> del row
    >>> recycler.empty((256, 1024), np.dtype("uint8")).ctypes.data == where
    True
    """

    def __init__(self) -> None:
        self._free: dict[tuple[tuple[int, ...], np.dtype[Any]], list[NDArray[Any]]] = {}

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array with arbitrary content, the caller's own for as long as it lives."""
        if prod(shape) * dtype.itemsize < _LEAST_BYTES or dtype.hasobject:
            return np.empty(shape, dtype)
        home = self._free.setdefault((shape, dtype), [])
        try:
            raw = home.pop()
        except IndexError:
            raw = np.empty(shape, dtype)
        return np.asarray(_Lease(raw, home))

    def __reduce__(self) -> tuple[type[Recycler], tuple[()]]:
        return Recycler, ()
