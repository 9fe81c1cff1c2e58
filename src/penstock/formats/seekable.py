"""A file of any storage as a Python file object that can seek, for libraries that ask for one."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from penstock import storage

__all__ = ["arrow_name", "seekable"]


def arrow_name(path: str) -> str | None:
    """A local path that libraries take which know names as UTF-8 only; None for other names, and for URLs."""
    here = storage.local(path)
    return here if here is not None and "\\ud" not in ascii(here) else None


def seekable(path: str, options: Mapping[str, Any] | None = None) -> io.RawIOBase:
    """`path` as an unbuffered file object. Each read is one request."""
    return _Seekable(storage.file(path, options))


class _Seekable(io.RawIOBase):
    def __init__(self, file: storage.File) -> None:
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def size(self) -> int:
        """In bytes; Arrow asks for it."""
        return self._file.size

    def readinto(self, buffer: Any) -> int:
        count = max(0, min(len(buffer), self._file.size - self._at))
        if count:
            buffer[:count] = self._file.read_at(self._at, count)
        self._at += count
        return count
