"""Find what code leaves behind: threads, processes, file descriptors and shared memory.

Guarantees:

* Whatever was there when the snapshot was taken is never reported, however it has changed since.
* What is merely on its way out is not reported: garbage is collected, and ends are awaited for `grace_s`.
* Every kind is found by looking at the process from outside, so code cannot forget to register itself.

Not counted: threads that Python did not start (OpenMP pools, drivers), since nobody can join them, shared
memory that other programs have in use, and multiprocessing's resource tracker, which lives until the
interpreter exits. Processes count with all their descendants. Where there is no `/proc`, only threads are seen.

>>> with no_leaks():
...     worker = threading.Thread(target=print, args=("working",))
...     worker.start()
...     worker.join()
working
"""

import gc
import os
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TypeAlias

__all__ = ["Snapshot", "leaks_since", "no_leaks", "snapshot"]

_Key: TypeAlias = tuple[str, int, str]  # kind, number, and what tells it from others that had its number
Snapshot: TypeAlias = frozenset[_Key]


def snapshot() -> Snapshot:
    """Remember what exists now, for `leaks_since`."""
    return frozenset(_inventory())


def leaks_since(before: Snapshot, grace_s: float = 2.0, *, allow: Collection[str] = ()) -> list[str]:
    """Describe, one line each, what exists now and did not at `before`; an empty list means no leak.

    Returns at once if there is none; otherwise collects garbage and waits up to `grace_s` for the rest to
    end. A leak whose description contains one of the texts in `allow` is left out.

    >>> before = snapshot()
    >>> read, write = os.pipe()
    >>> leaks_since(before, grace_s=0)
    ['descriptor ...: pipe:[...]', 'descriptor ...: pipe:[...]']
    >>> leaks_since(before, grace_s=0, allow=["pipe:"])
    []
    >>> os.close(read), os.close(write)
    (None, None)
    """
    deadline = time.monotonic() + grace_s
    while found := _new_since(before, allow):
        gc.collect()
        if time.monotonic() >= deadline:
            return _new_since(before, allow)
        time.sleep(0.01)
    return found


@contextmanager
def no_leaks(grace_s: float = 2.0, *, allow: Collection[str] = ()) -> Iterator[None]:
    """Raise AssertionError, naming each leak, if the block leaves anything behind.

    An exception from the block passes unchanged and unchecked: its traceback may rightly keep things alive.
    """
    before = snapshot()
    yield
    if found := leaks_since(before, grace_s, allow=allow):
        raise AssertionError("\n  ".join(["left behind:", *found]))


def _new_since(before: Snapshot, allow: Collection[str]) -> list[str]:
    fresh = {key: text for key, text in _inventory().items() if key not in before}
    if any(kind == "shared memory" for kind, *_ in fresh):
        others = _mapped_by_others()
        fresh = {key: text for key, text in fresh.items() if key[0] != "shared memory" or key[2] not in others}
    return [text for text in fresh.values() if not any(allowed in text for allowed in allow)]


def _inventory() -> dict[_Key, str]:
    """Everything that could leak, with its description."""
    return {**_threads(), **_processes(), **_descriptors(), **_shared_memory()}


def _threads() -> dict[_Key, str]:
    found: dict[_Key, str] = {}
    frames = sys._current_frames()
    for thread in threading.enumerate():
        if isinstance(thread, threading._DummyThread):
            continue  # stands for a thread that Python did not start, and may outlive it
        frame = frames.get(thread.ident or 0)
        where = f" at {frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""
        found["thread", thread.native_id or 0, ""] = f"thread {thread.name!r}{where}"
    return found


def _processes() -> dict[_Key, str]:
    tracker = getattr(resource_tracker._resource_tracker, "_pid", None)
    ours = {pid: started for pid, started in _descendants().items() if pid != tracker}
    return {("process", pid, started): f"process {pid}: {_command(pid)}" for pid, started in ours.items()}


def _descendants() -> dict[int, str]:
    """The processes below this one, and when each was started."""
    parent: dict[int, int] = {}
    started: dict[int, str] = {}
    for entry in _entries("/proc"):
        with suppress(OSError, ValueError):  # it ended meanwhile, or is no process
            pid = int(entry.name)
            # The command, in parentheses, may itself contain blanks and parentheses.
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            parent[pid], started[pid] = int(fields[1]), fields[19]

    def is_ours(pid: int) -> bool:
        return pid in parent and (parent[pid] == os.getpid() or is_ours(parent[pid]))

    return {pid: started[pid] for pid in parent if is_ours(pid)}


def _command(pid: int) -> str:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        return " ".join(words).strip() or "ended, but nobody has waited for it"
    return "ending"


def _descriptors() -> dict[_Key, str]:
    tracker = getattr(resource_tracker._resource_tracker, "_fd", None)
    found: dict[_Key, str] = {}
    for entry in _entries("/proc/self/fd"):
        with suppress(OSError):  # the one that listed this directory is closed by now
            number, status = int(entry.name), entry.stat()
            if number != tracker:
                key = ("descriptor", number, f"{status.st_dev}:{status.st_ino}")
                found[key] = f"descriptor {number}: {os.readlink(entry)}"
    return found


def _shared_memory() -> dict[_Key, str]:
    found: dict[_Key, str] = {}
    for entry in _entries("/dev/shm"):
        with suppress(OSError):  # removed meanwhile
            status = entry.stat()
            if status.st_uid == os.getuid():
                found["shared memory", status.st_ino, entry.name] = f"shared memory {entry}"
    return found


def _mapped_by_others() -> set[str]:
    """Names of shared memory that processes use which are none of ours."""
    ours = {os.getpid(), *_descendants()}
    found: set[str] = set()
    for entry in _entries("/proc"):
        if entry.name.isdigit() and int(entry.name) not in ours:
            with suppress(OSError):
                lines = (entry / "maps").read_text(errors="replace").splitlines()
                found.update(line.rpartition("/dev/shm/")[2] for line in lines if "/dev/shm/" in line)
    return found


def _entries(folder: str) -> list[Path]:
    return list(Path(folder).iterdir()) if os.path.isdir(folder) else []
