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

#: bytes of freed arrays kept, over all shapes
_MOST_BYTES = 64 * 1024 * 1024
#: smaller arrays come out of the allocator's own store
_LEAST_BYTES = 64 * 1024

_Key = tuple[tuple[int, ...], np.dtype[Any]]


class _Lease:
    """Owns an array until the last view of it dies. Its `__del__` may run inside the garbage collector."""

    __slots__ = ("__array_interface__", "owner", "raw")

    def __init__(self, raw: NDArray[Any], interface: dict[str, Any], owner: Recycler) -> None:
        self.raw = raw
        self.owner = owner
        self.__array_interface__ = interface

    def __del__(self) -> None:
        self.owner.take_back(self.raw, self.__array_interface__)


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
        # No lock guards these: each step is one that cannot be interrupted.
        self._free: dict[_Key, list[tuple[NDArray[Any], dict[str, Any]]]] = {}
        self._bytes = 0

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array with arbitrary content, the caller's own for as long as it lives."""
        if prod(shape) * dtype.itemsize < _LEAST_BYTES or dtype.hasobject:
            return np.empty(shape, dtype)
        try:
            raw, interface = self._free[shape, dtype].pop()
            self._bytes -= raw.nbytes
        except (KeyError, IndexError):
            raw = np.empty(shape, dtype)
            interface = raw.__array_interface__
        array = np.asarray(_Lease(raw, interface, self))
        return array.view(dtype) if dtype.names else array  # numpy's interface does not tell all of a structure

    def take_back(self, raw: NDArray[Any], interface: dict[str, Any]) -> None:
        """Nobody looks at the memory of `raw` any more."""
        if raw.nbytes > _MOST_BYTES:
            return
        if self._bytes + raw.nbytes > _MOST_BYTES:
            # Other shapes are of the past, or this one has enough.
            self._free, self._bytes = {}, 0
        self._free.setdefault((raw.shape, raw.dtype), []).append((raw, interface))
        self._bytes += raw.nbytes

    def __reduce__(self) -> tuple[type[Recycler], tuple[()]]:
        return Recycler, ()
