"""A remote file as a stream that is read forward, for gzip, zstd and the like."""

from __future__ import annotations

import io
from typing import Any, BinaryIO, Protocol, cast

__all__ = ["forward"]

#: asked for at a time: few requests, and little that is asked for in vain
_CHUNK_BYTES = 4 << 20


class _Readable(Protocol):
    path: str

    @property
    def size(self) -> int: ...

    def read_at(self, offset: int, length: int) -> bytes: ...


def forward(file: _Readable) -> BinaryIO:
    """A stream over `file` in ranges, each with the retries of a read: a connection that breaks costs one range."""
    return cast(BinaryIO, io.BufferedReader(_Ranges(file), _CHUNK_BYTES))


class _Ranges(io.RawIOBase):
    def __init__(self, file: _Readable) -> None:
        self.name = file.path
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), self._file.size - self._at)
        buffer[:count] = self._file.read_at(self._at, count)
        self._at += count
        return count

    def tell(self) -> int:
        return self._at
