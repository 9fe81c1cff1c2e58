"""The folder of a cache: a sub-folder for every key, and what goes when there is no more room.

* A process that uses a key holds a shared lock (flock) on that sub-folder's `about.json`. The system drops the lock
  when the process ends, however it ends.
* Room is made by removing segments of keys that no process uses: first those of the key used longest ago, and of
  one key the oldest first. What is in use is never removed: every epoch reads every sample, so replacing one sample
  by another gains nothing and costs the hits between the two (see docs/caching.md).
* Only sub-folders named like a key, and in them only segments and `about.json`, are ever removed.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from penstock.disk.segment import SUFFIX, UNNAMED, lock

ABOUT = "about.json"
_KEY = re.compile(r"[0-9a-f]{24}(-seed-?[0-9]+)?")


def prepare(folder: str, about: dict[str, Any]) -> None:
    """Make the sub-folder of a key, with a file that says what it is. Raises OSError."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, ABOUT)
    if os.path.exists(path):
        return
    other = f"{path}.{secrets.token_hex(4)}"
    try:
        with open(other, "w", encoding="utf-8") as file:
            json.dump(about, file, indent=1)
        os.replace(other, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(other)
        raise


def in_use(folder: str) -> int:
    """Mark a key as used by this process until the descriptor returned is closed; -1 if that is not possible."""
    path = os.path.join(folder, ABOUT)
    try:
        for _ in range(10):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            lock(fd, shared=True, wait=True)
            with suppress(OSError):
                if os.path.samestat(os.fstat(fd), os.stat(path)):
                    with suppress(OSError):
                        os.utime(path)
                    return fd
            os.close(fd)  # it was removed in the meantime
    except OSError:
        pass
    return -1


def segments(folder: str) -> list[tuple[str, int]]:
    """The segments of a key and their sizes, the oldest first."""
    found = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(SUFFIX):
                with suppress(OSError):
                    found.append((entry.path, entry.stat().st_size))
    return sorted(found)


def keys(path: str) -> Iterator[str]:
    """The sub-folders of a cache's folder."""
    with suppress(OSError), os.scandir(path) as entries:
        for entry in entries:
            if _KEY.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                yield entry.path


def content(path: str) -> int:
    """Bytes of all segments of all keys."""
    return sum(size for key in keys(path) for _, size in segments(key))


def make_room(path: str, own: str, nbytes: int) -> int:
    """Remove what nobody uses until `nbytes` are free; how many were."""
    freed = 0
    for key in sorted((one for one in keys(path) if one != own), key=_last_used):
        if freed >= nbytes:
            break
        freed += _emptied(key, nbytes - freed)
    return freed


def _last_used(key: str) -> int:
    try:
        return os.stat(os.path.join(key, ABOUT)).st_mtime_ns
    except OSError:
        return 0


def _emptied(key: str, nbytes: int) -> int:
    freed = 0
    about = os.path.join(key, ABOUT)
    try:
        fd = os.open(about, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:
        return 0
    try:
        if not lock(fd):
            return 0
        for path, size in segments(key):
            if freed >= nbytes:
                return freed
            with suppress(OSError):
                os.unlink(path)
                freed += size
        with suppress(OSError):
            for name in os.listdir(key):
                if name.endswith(SUFFIX + UNNAMED):  # of a process that was killed right then
                    os.unlink(os.path.join(key, name))
            os.unlink(about)
            os.rmdir(key)
    finally:
        os.close(fd)
    return freed
