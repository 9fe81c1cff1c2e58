"""Names of many files, packed: one array with all letters and one with their ends.

A million paths as Python strings are 110 MB that every worker process would copy. Packed they are the bytes of the
names and 8 bytes each, and since arrays of 1 MB and more are shared, all workers together have one copy.
Names are bytes as the file system has them, in any encoding; they cannot be changed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Names:
    """A sequence of bytes objects.

    >>> names = Names.of([b"cat.jpg", b"dog.jpg"])
    >>> len(names), names[1], names.nbytes
    (2, b'dog.jpg', 38)
    """

    __slots__ = ("_data", "_ends", "_fast_data", "_fast_ends")

    def __init__(self, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        self._data = data
        #: where each name ends, after a 0
        self._ends = ends
        # Items of a memoryview are Python's own numbers, and much faster than those of an array.
        self._fast_data = data.data
        self._fast_ends = ends.data

    @classmethod
    def of(cls, names: Iterable[bytes]) -> Names:
        """Packed one by one, so that no list of them is needed."""
        data, ends = bytearray(), array("q", [0])
        for name in names:
            data += name
            ends.append(len(data))
        return cls(np.frombuffer(bytes(data), np.uint8), np.frombuffer(ends.tobytes(), np.int64))

    def __reduce__(self) -> tuple[Any, ...]:
        return Names, (self._data, self._ends)

    def __len__(self) -> int:
        return len(self._fast_ends) - 1

    def __getitem__(self, index: int) -> bytes:
        ends = self._fast_ends
        return self._fast_data[ends[index] : ends[index + 1]].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        return map(self.__getitem__, range(len(self)))

    @property
    def nbytes(self) -> int:
        """The memory that they take."""
        return self._data.nbytes + self._ends.nbytes

    def digest(self) -> str:
        """A hash that tells one list of names from another."""
        from hashlib import blake2b

        found = blake2b(self._fast_ends, digest_size=16)
        found.update(self._fast_data)
        return found.hexdigest()
