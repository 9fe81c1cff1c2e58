"""A file by its path or URL, whatever reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, Protocol

from penstock.storage.disk import DiskFile
from penstock.storage.objects import SCHEMES, ObjectFile
from penstock.storage.paths import local, scheme_of
from penstock.storage.systems import SystemFile

#: requests that one call of `read_all` has under way, and that all calls of a process have together
_AT_ONCE = 16
_AT_ONCE_IN_ALL = 64


#: one item for each call of `read_all` that is under way
_calls: list[None] = []


class File(Protocol):
    """A file: cheap to make, picklable, and safe for several threads at once. Made by `file`."""

    #: as the user wrote it
    path: str

    @property
    def size(self) -> int:
        """In bytes; asked for once."""

    @property
    def content(self) -> str:
        """What tells this version of the file from another: its size, and the time or tag of the last change."""

    def read(self) -> bytes:
        """All of it."""

    def read_at(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset` on; ReadError with file and position if there are fewer."""

    def read_many(self, offsets: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        """`read_at` for each offset and length, one after the other."""

    def open(self) -> BinaryIO:
        """A new stream that is read forward. The caller closes it."""


def file(path: str, options: Mapping[str, Any] | None = None) -> File:
    """The file at a path or URL. Nothing is looked at before it is used.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as made:
    ...     made.write(b"penstock") and made.flush()
    ...     one = file(made.name)
    ...     one.size, one.read_at(3, 2)
    (8, b'st')
    """
    here = local(path)
    if here is not None:
        return DiskFile(path, here)
    if scheme_of(path) in SCHEMES:
        return ObjectFile(path, options)
    return SystemFile(path, options)


def read_all(files: Sequence[File]) -> list[bytes]:
    """All bytes of several remote files, some at a time. The first error in their order is raised."""
    if len(files) < 2:
        return [one.read() for one in files]
    from concurrent.futures import ThreadPoolExecutor

    _calls.append(None)  # an append and a pop of a list are atomic
    try:
        count = max(1, min(_AT_ONCE, _AT_ONCE_IN_ALL // len(_calls), len(files)))
        with ThreadPoolExecutor(count, thread_name_prefix="penstock-read") as pool:
            reads = [pool.submit(one.read) for one in files]
            try:
                return [read.result() for read in reads]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    finally:
        _calls.pop()
