"""Files on this machine: reading, and listing folders.

A descriptor is opened when it is first needed. A process keeps a limited number of them open, and a forked child
opens its own.
"""

from __future__ import annotations

import os
import stat
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import AnyStr, BinaryIO
from weakref import ref

from penstock import system
from penstock.errors import PlanError, ReadError
from penstock.storage.paths import matcher

#: descriptors that are kept open between reads; the one that was opened first is closed for another
_MOST_OPEN = 256
#: read at once by `DiskFile.open`
_BUFFER_BYTES = 1 << 20
#: Linux returns at most so many bytes of one read
_MOST_READ = 0x7FFFF000


#: Windows has no O_CLOEXEC, and without O_BINARY it would change line ends
#: O_NONBLOCK means nothing to a file; opening a named pipe would otherwise wait for somebody who writes to it
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)


def read_whole(path: str) -> bytes:
    """All bytes of a file; ReadError if somebody writes to it at the same time."""
    # Half the system calls of open(path, "rb").read()
    fd = os.open(path, _FLAGS)
    try:
        found = os.fstat(fd)
        size = found.st_size
        if not size:  # pipes and devices have no size
            _check_kind(path, found.st_mode)
        data = os.read(fd, size + 1)
        if len(data) != size:
            data = _all_of(fd, data, size, path)
    except OSError as exc:
        if exc.filename is None and not isinstance(exc, ReadError):
            exc.filename = path  # a folder can be opened, but not be read
        raise
    finally:
        os.close(fd)
    return data


def _check_kind(path: str, mode: int) -> None:
    """Refuse what has no content of its own. Reading a folder says what it is."""
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ReadError(f"{path}: a pipe, a socket or a device; only files can be read: copy its content to one")


def _all_of(fd: int, data: bytes, size: int, path: str) -> bytes:
    """The rest of a file of which less or more was read than it is said to have."""
    parts = [data]
    while part := os.read(fd, _MOST_READ):
        parts.append(part)
    data = b"".join(parts)
    if len(data) != size and size:  # files of /proc have no size
        raise ReadError(
            f"{path}: it had {size} bytes when it was opened, and {len(data)} were read; is something "
            "still writing to it?"
        )
    return data


class DiskFile:
    """See `files.File`."""

    __slots__ = ("__weakref__", "_handle", "_status", "_where", "path")

    def __init__(self, path: str, where: str) -> None:
        #: as the user wrote it
        self.path = path
        # Worker processes may have another working directory.
        self._where = os.path.abspath(where)
        self._handle: _Handle | None = None
        self._status: tuple[int, int] | None = None

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.path, self._where)

    def __repr__(self) -> str:
        return f"<file {self.path}>"

    @property
    def size(self) -> int:
        return self._told()[0]

    @property
    def content(self) -> str:
        return "{} bytes of {}".format(*self._told())

    def _told(self) -> tuple[int, int]:
        if self._status is None:
            found = os.stat(self._where)
            _check_kind(self.path, found.st_mode)
            self._status = found.st_size, found.st_mtime_ns
        return self._status

    def read(self) -> bytes:
        return read_whole(self._where)

    def read_at(self, offset: int, length: int) -> bytes:
        # The local name keeps the descriptor open, even if another thread has it closed meanwhile.
        handle = self._handle or _opened(self)
        data = _pread(handle.fd, length, offset)
        while len(data) < length:
            more = _pread(handle.fd, length - len(data), offset + len(data))
            if not more:
                raise ReadError(
                    f"{self.path}: {length} bytes at position {offset} were asked for, and it ends at "
                    f"{os.fstat(handle.fd).st_size}"
                )
            data += more
        return data

    def read_many(self, offsets: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        handle = self._handle or _opened(self)
        fd, pread = handle.fd, _pread
        found = [pread(fd, length, offset) for offset, length in zip(offsets, lengths, strict=True)]
        if list(map(len, found)) != lengths:
            return [self.read_at(offset, length) for offset, length in zip(offsets, lengths, strict=True)]
        return found

    def open(self) -> BinaryIO:
        return open(self._where, "rb", buffering=_BUFFER_BYTES)


class _Handle:
    """A descriptor that is closed when nobody refers to it."""

    __slots__ = ("_close", "fd")

    def __init__(self, path: str) -> None:
        self._close = os.close  # at the exit of the interpreter `os` may be gone before this is
        self.fd = os.open(path, _FLAGS)

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            self._close(self.fd)


_lock = threading.Lock()
#: files with an open descriptor, in the order in which they were opened
_open_files: deque[ref[DiskFile]] = deque()


def _opened(file: DiskFile) -> _Handle:
    handle = _Handle(file._where)
    with _lock:
        if file._handle is not None:
            return file._handle  # another thread was faster, and ours is closed as it goes
        file._handle = handle
        _open_files.append(ref(file))
        while len(_open_files) > _MOST_OPEN:
            other = _open_files.popleft()()
            if other is not None:
                other._handle = None
    return handle


def _seek_and_read(fd: int, length: int, offset: int) -> bytes:
    """`os.pread` for systems that lack it."""
    with _lock:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.read(fd, length)


_pread = getattr(os, "pread", _seek_and_read)


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    for one in _open_files:
        file = one()
        if file is not None:
            file._handle = None
    _open_files.clear()


system.at_fork(after_in_child=_after_fork_in_child)


# ---------------------------------------------------------------------- listing


def walk(folder: str, pattern: str) -> Iterator[bytes]:
    """The names of files below `folder` that match, relative to it, in the order of their bytes.

    Links are followed; one that leads back to a folder above it is a PlanError. A link to nothing is listed, so
    that reading it says so. What is neither a file nor a folder is left out.
    """
    if not os.path.isdir(folder):
        there = os.path.lexists(folder)
        raise PlanError(
            f"{folder!r} is not a folder"
            if there
            else f"{folder!r}: no such folder; check the spelling and the working directory"
        )
    parts = tuple(pattern.split("/"))
    here = os.stat(folder)
    step = _Step(parts)
    return _named(_walk(os.fsencode(folder), b"", step, step.first, ((here.st_dev, here.st_ino),)))


def _named(names: Iterator[bytes]) -> Iterator[bytes]:
    """The same; errors of the system name their folder as users do."""
    try:
        yield from names
    except OSError as exc:
        if isinstance(exc.filename, bytes):
            exc.filename = os.fsdecode(exc.filename)
        raise


class _Step:
    """A pattern as states: number i means that the parts before i have matched the folders so far."""

    def __init__(self, parts: tuple[str, ...]) -> None:
        self.parts = parts
        self.tests = [None if part in ("*", "**") else matcher(part) for part in parts]
        self.first = self._closed({0})

    def _closed(self, states: set[int]) -> frozenset[int]:
        """With those that a ``**`` reaches as no folder at all."""
        for number, part in enumerate(self.parts[:-1]):
            if number in states and part == "**":
                states.add(number + 1)
        return frozenset(states)

    def into(self, states: frozenset[int], name: bytes) -> frozenset[int]:
        """The states inside the folder `name`."""
        return self._closed(
            {number + (self.parts[number] != "**") for number in states if self._fits(number, name)}
            - {len(self.parts)}
        )

    def ends(self, states: frozenset[int], name: bytes) -> bool:
        """Whether the file `name` matches the whole pattern."""
        last = len(self.parts) - 1
        return last in states and self._fits(last, name)

    def _fits(self, number: int, name: bytes) -> bool:
        test = self.tests[number]
        if test is None:
            return not name.startswith(b".")
        return test(os.fsdecode(name)) is not None


def _walk(
    folder: bytes, prefix: bytes, step: _Step, states: frozenset[int], above: tuple[tuple[int, int], ...]
) -> Iterator[bytes]:
    names: list[bytes] = []
    folders: dict[bytes, frozenset[int]] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if _leads_into(entry):
                if inside := step.into(states, name):
                    folders[name + b"/"] = inside
            elif step.ends(states, name) and (entry.is_symlink() or entry.is_file()):
                names.append(name)
    # With a slash behind each folder this is the order of the whole paths, as object stores list them.
    names += folders
    names.sort()
    for name in names:
        if name not in folders:
            yield prefix + name
            continue
        path = os.path.join(folder, name[:-1])
        there = os.stat(path)
        if (there.st_dev, there.st_ino) in above:
            raise PlanError(
                f"{os.fsdecode(path)!r} is a link to a folder above it, so that the listing has no end; remove it"
            )
        yield from _walk(path, prefix + name, step, folders[name], (*above, (there.st_dev, there.st_ino)))


def _leads_into(entry: os.DirEntry[AnyStr]) -> bool:
    """Whether this is a folder, or a link to one. A link to itself is none, and reading it says why."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def folders_in(folder: str) -> list[str]:
    """The names of the folders right below `folder`, but hidden ones."""
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if _leads_into(entry) and not entry.name.startswith(".")]
