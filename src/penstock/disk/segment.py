"""Segments: files of records, appended to by one writer each and read by any number of processes.

* A record counts once the file is long enough to hold all of it. One that a killed writer left unfinished is
  ignored, and cut off by the next writer of that file.
* A writer holds a lock on its file (flock), which the system drops when the writer's process ends. A file without
  one may be gone on with.
* A full file ends in a table of its records. Readers walk through the file only if it has none, or a damaged one.
* A damaged header hides its own record only: readers look for the next one.
"""

from __future__ import annotations

import mmap
import os
import secrets
import time
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import system
from penstock.disk.record import ALIGNMENT, END, HEADER_BYTES, INDEX, MAGIC, SAMPLES, header_at, raw, sound

try:
    import fcntl
except ImportError:  # on Windows
    _flock: Any = None
else:
    _flock = fcntl.flock

#: whether the system has locks that end with their process
LOCKS = _flock is not None


SUFFIX = ".seg"
#: behind the name of a segment that is not locked yet
UNNAMED = ".new"
#: records of this size and more are looked at in the mapped file; smaller ones are read
MAPPED_BYTES = 1 << 16
#: read at once when a file of small records is walked through
_STRETCH = 1 << 16

Table = NDArray[np.int64]
_NO_TABLE: Table = np.empty((0, 3), np.int64)


def lock(fd: int, shared: bool = False, wait: bool = False) -> bool:
    """Lock an open file as long as it is open; False if somebody else has it, or the system cannot."""
    if _flock is None:
        return False
    try:
        _flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


class OpenFile:
    """A segment that is open for reading. It is closed when nobody looks at it any more."""

    def __init__(self, path: str) -> None:
        self.fd = -1
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._map: mmap.mmap | None = None

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)

    @property
    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def read(self, offset: int, length: int) -> memoryview:
        """Bytes of the file, read-only; fewer if it ends before."""
        if length < MAPPED_BYTES:
            return memoryview(os.pread(self.fd, length, offset))
        if self._map is None or len(self._map) < offset + length:
            if self.size < offset + length:
                return memoryview(b"")
            self._map = mmap.mmap(self.fd, self.size, access=mmap.ACCESS_READ)
        return memoryview(self._map)[offset : offset + length]


def scan(file: OpenFile, start: int) -> tuple[Table, int, bool]:
    """The records from `start` on, each as number, offset and length; where they end; whether no more will come."""
    size = file.size
    if start == 0 and (table := _table_of(file, size)) is not None:
        return table, size, True
    rows: list[tuple[int, int, int]] = []
    offset, step = start, 0
    block, first = memoryview(b""), 0
    while offset + HEADER_BYTES <= size:
        if not first <= offset <= first + len(block) - HEADER_BYTES:
            first = offset
            block = memoryview(os.pread(file.fd, HEADER_BYTES if step > _STRETCH // 4 else _STRETCH, offset))
        header = header_at(block, offset - first)
        if header is None:
            found = _next_record(file, offset + ALIGNMENT, size)
            if found is None:
                break
            offset = found
            continue
        step = header.length
        if offset + step > size:
            break
        if header.kind == END:
            return _as_table(rows), size, True
        if header.kind == SAMPLES:
            rows.append((header.number, offset, step))
        offset += step
    return _as_table(rows), offset, False


def _as_table(rows: list[tuple[int, int, int]]) -> Table:
    return np.array(rows, np.int64) if rows else _NO_TABLE


def _table_of(file: OpenFile, size: int) -> Table | None:
    """The table at the end of a full segment."""
    end = header_at(os.pread(file.fd, HEADER_BYTES, size - HEADER_BYTES)) if size >= 2 * HEADER_BYTES else None
    if end is None or end.kind != END or end.number >= size:
        return None
    record = memoryview(os.pread(file.fd, size - HEADER_BYTES - end.number, end.number))
    header = sound(record, 0, INDEX)
    if header is None or header.head % 24:
        return None
    table = np.frombuffer(record[HEADER_BYTES : HEADER_BYTES + header.head], "<i8").reshape(-1, 3)
    inside = (table[:, 1] >= 0) & (table[:, 2] > 0) & (table[:, 1] + table[:, 2] <= end.number)
    return table if bool(np.all(inside)) else None


def _next_record(file: OpenFile, start: int, size: int) -> int | None:
    """Where the next sound header is, behind one that is damaged."""
    for first in range(start, size - HEADER_BYTES + 1, _STRETCH):
        block = os.pread(file.fd, _STRETCH + HEADER_BYTES, first)
        at = block.find(MAGIC)
        while at >= 0:
            header = header_at(block, at) if at % ALIGNMENT == 0 else None
            if header is not None and first + at + header.length <= size:
                return first + at
            at = block.find(MAGIC, at + 1)
    return None


class Writer:
    """The one writer of a segment, for the process that made it."""

    def __init__(self, fd: int, path: str, rows: Table, end: int) -> None:
        self.fd = fd
        self.path = path
        self.end = end
        self._rows: list[Any] = list(rows)
        self.pid = system.process.pid

    def __del__(self) -> None:
        os.close(self.fd)

    @classmethod
    def create(cls, folder: str) -> Writer:
        """A new, empty segment. Names are in the order of their making."""
        name = f"{time.time_ns():016x}-{os.getpid()}-{secrets.token_hex(4)}{SUFFIX}"
        path = os.path.join(folder, name)
        fd = os.open(path + UNNAMED, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            # Locked before anybody can find it, or another process could go on with it.
            lock(fd)
            os.rename(path + UNNAMED, path)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd, path, _NO_TABLE, 0)

    @classmethod
    def adopt(cls, path: str, most: int) -> Writer | None:
        """Go on with a segment that nobody writes any more; None if somebody does, or it is full."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            if os.fstat(fd).st_size < most and lock(fd) and os.fstat(fd).st_nlink:
                rows, end, full = scan(OpenFile(path), 0)
                if not full and end < most:
                    writer, fd = cls(fd, path, rows, end), -1
                    return writer
        finally:
            if fd >= 0:
                os.close(fd)
        return None

    def append(self, record: bytearray, number: int) -> int:
        """Write a record of samples; where it is. If it cannot be written, what was is cut off again."""
        offset = self._write(record)
        self._rows.append((number, offset, len(record)))
        return offset

    def _write(self, data: bytearray) -> int:
        offset, view = self.end, memoryview(data)
        size = os.fstat(self.fd).st_size
        if size < offset:
            raise OSError(f"{self.path} was cut off by somebody else")
        if size > offset:  # an interrupt came in the middle of the record before
            os.ftruncate(self.fd, offset)
        try:
            while view:
                view = view[os.write(self.fd, view) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(self.fd, offset)
            raise
        self.end = offset + len(data)
        return offset

    def seal(self) -> None:
        """Append the table; nothing is appended after that."""
        with suppress(OSError):  # without it readers walk through the file
            table = np.array(self._rows, "<i8").tobytes()
            self._write(raw(INDEX, 0, table) + raw(END, self.end, b""))
