"""What all remote files have in common, and any file as a Python file object."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, Protocol, cast

from penstock.errors import ReadError
from penstock.storage.retry import Retries, split_options

#: asked for at a time by `RemoteFile.open`: few requests, and little that is asked for in vain
_CHUNK_BYTES = 4 << 20


class RemoteFile(ABC):
    """See `files.File`."""

    __slots__ = ("_found", "_options", "_retries", "path")

    def __init__(self, path: str, options: Mapping[str, Any] | None) -> None:
        self.path = path
        self._options = options
        self._retries: Retries = split_options(options)[0]
        self._found: Mapping[str, Any] | None = None

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return type(self), (self.path, self._options)

    def __repr__(self) -> str:
        return f"<file {self.path}>"

    @property
    @abstractmethod
    def size(self) -> int: ...

    @property
    @abstractmethod
    def content(self) -> str: ...

    def _told(self) -> Mapping[str, Any]:
        """What the store says of the file; asked for once."""
        if self._found is None:
            self._found = self._ask()
        return self._found

    @abstractmethod
    def _ask(self) -> Mapping[str, Any]: ...

    @abstractmethod
    def read(self) -> bytes: ...

    def read_at(self, offset: int, length: int) -> bytes:
        if length == 0:
            return b""
        where = f"{length} bytes at position {offset}"
        data = self._range(offset, length, where)
        if len(data) != length:
            raise ReadError(f"{self.path}: {where} were asked for, and it ends at {offset + len(data)}")
        return data

    @abstractmethod
    def _range(self, offset: int, length: int, where: str) -> bytes:
        """`length` bytes from `offset` on, or what there is of them; `where` says so in messages."""

    def read_many(self, offsets: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        return [self.read_at(offset, length) for offset, length in zip(offsets, lengths, strict=True)]

    def open(self) -> BinaryIO:
        """A stream in ranges, each with the retries of a read: a connection that breaks costs one range."""
        return cast(BinaryIO, io.BufferedReader(Seekable(self), _CHUNK_BYTES))


class _Readable(Protocol):
    path: str

    @property
    def size(self) -> int: ...

    def read_at(self, offset: int, length: int) -> bytes: ...


class Seekable(io.RawIOBase):
    """A file as an unbuffered file object that can seek. Each read is one request."""

    def __init__(self, file: _Readable) -> None:
        self.name = file.path
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
