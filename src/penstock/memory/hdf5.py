"""h5py files, groups and data sets in worker processes: opened again by file and name, by whoever uses them.

HDF5 must not be used by two processes over one open file, so nothing that is open crosses. A worker gets a
stand-in that opens the file when something of it is first read there, and hands everything on to the h5py object.
All stand-ins for one file share one open file per process.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from penstock.memory.unsendable import Unsendable

#: file name and settings
_Key = tuple[str, bool, tuple[Any, ...]]

_KINDS = ("File", "Group", "Dataset")

#: open files of this process, with its pid: a forked child opens its own
_files: dict[tuple[int, _Key], Any] = {}


def kinds(h5py: Any) -> list[type]:
    """The classes of h5py that can be opened again."""
    return [getattr(h5py, kind) for kind in _KINDS if hasattr(h5py, kind)]


def reopened(obj: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """How to make `obj` in another process. Raises Unsendable where that process could not open it."""
    kind = type(obj).__name__
    if not obj:
        raise Unsendable(f"an h5py {kind} whose file is closed", "keep the file open, or open it in the function")
    file, name = obj.file, obj.name
    if name is None:
        raise Unsendable(f"an h5py {kind} without a name", "give it a name in its file")
    path = os.path.abspath(os.fsdecode(file.filename))
    if file.driver not in ("sec2", "stdio") or not os.path.exists(path):
        raise Unsendable(
            f"an h5py {kind} of a file that another process cannot open ({file.filename!r}, {file.driver})",
            "write it to a file on disk, and open that",
        )
    swmr = bool(file.swmr_mode)
    if file.mode != "r" and not swmr:
        raise Unsendable(
            f"an h5py {kind} of a file that is open for writing ({file.filename!r})",
            "close the file, and open it with h5py.File(name, 'r')",
        )
    cache = tuple(file.id.get_access_plist().get_cache()[1:])
    return Reopened, (kind, (path, swmr, cache), name, len(obj) if getattr(obj, "shape", True) else 0)


class Reopened:
    """Stands in for an object of h5py."""

    __slots__ = ("_key", "_kind", "_length", "_name", "_opened")

    def __init__(self, kind: str, key: _Key, name: str, length: int) -> None:
        self._kind = kind
        self._key = key
        self._name = name
        #: known without opening it: a source is asked for its length before anything is read
        self._length = length
        #: the object, and the process that has opened it
        self._opened: tuple[int, Any] = 0, None

    def _object(self) -> Any:
        pid, found = self._opened
        if pid != os.getpid():
            pid = os.getpid()
            if (file := _files.get((pid, self._key))) is None:
                file = _files[pid, self._key] = _open(self._key)
            found = file if self._kind == "File" else file[self._name]
            self._opened = pid, found
        return found

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        kind: type = getattr(importlib.import_module("h5py"), self._kind)
        return kind

    def __getattr__(self, name: str) -> Any:
        return getattr(self._object(), name)

    def __getitem__(self, key: Any) -> Any:
        return self._object()[key]

    def __len__(self) -> int:
        return len(self._opened[1]) if self._opened[0] == os.getpid() else self._length

    def __iter__(self) -> Iterator[Any]:
        return iter(self._object())

    def __contains__(self, key: Any) -> bool:
        return key in self._object()

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self._object().__array__(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{self._kind} {self._name!r} of {self._key[0]!r}, opened when it is used>"

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return Reopened, (self._kind, self._key, self._name, self._length)


def _open(key: _Key) -> Any:
    path, swmr, (slots, nbytes, w0) = key
    h5py = importlib.import_module("h5py")
    return h5py.File(path, "r", swmr=swmr, rdcc_nslots=slots, rdcc_nbytes=nbytes, rdcc_w0=w0)
