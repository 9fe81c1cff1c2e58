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
import stat
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from typing import TypeAlias

from penstock.frames import frame_of
from penstock.machine import children

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
    fresh = [key for key in _inventory() if key not in before]
    if any(kind == "shared memory" for kind, *_ in fresh):
        others = _mapped_by_others()
        fresh = [key for key in fresh if key[0] != "shared memory" or key[1] not in others]
    texts = map(_describe, fresh)
    return [text for text in texts if not any(allowed in text for allowed in allow)]


def _inventory() -> list[_Key]:
    """Everything that could leak. Tests take it twice each: what only a description needs is not read here."""
    return [*_threads(), *_processes(), *_descriptors(), *_shared_memory()]


def _describe(key: _Key) -> str:
    kind, number, name = key
    if kind == "thread":
        return _thread_text(number)
    if kind == "process":
        return f"process {number}: {_command(number)}"
    if kind == "descriptor":
        return f"descriptor {number}: {_target(number)}"
    return f"shared memory /dev/shm/{name}"


def _threads() -> Iterator[_Key]:
    for thread in threading.enumerate():
        # A dummy stands for a thread that Python did not start, and may outlive it.
        if not isinstance(thread, threading._DummyThread):
            yield "thread", thread.native_id or 0, ""


def _thread_text(native_id: int) -> str:
    for thread in threading.enumerate():
        if thread.native_id == native_id:
            frame = frame_of(thread)
            where = f" at {frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""
            return f"thread {thread.name!r}{where}"
    return f"thread {native_id}, ending"


def _processes() -> Iterator[_Key]:
    tracker = getattr(resource_tracker._resource_tracker, "_pid", None)
    for pid, started in _descendants().items():
        if pid != tracker:
            yield "process", pid, started


def _descendants() -> dict[int, str]:
    """The processes below this one, and when each was started."""
    return {pid: stat[19].decode() for pid in children(os.getpid()) if (stat := _stat(pid))}


def _stat(pid: int) -> list[bytes]:
    """The fields after the command; none if there is no such process."""
    # The command, in parentheses, may itself contain blanks and parentheses.
    return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def _command(pid: int) -> str:
    if not _stat(pid):
        return "ending"
    words = _read(f"/proc/{pid}/cmdline").decode(errors="replace").split("\0")
    return " ".join(words).strip() or "ended, but nobody has waited for it"


def _descriptors() -> Iterator[_Key]:
    tracker = getattr(resource_tracker._resource_tracker, "_fd", None)
    for number in map(int, _names("/proc/self/fd")):
        with suppress(OSError):  # the one that listed this directory is closed by now
            status = os.fstat(number)
            if number != tracker:
                yield "descriptor", number, f"{status.st_dev}:{status.st_ino}"


def _target(number: int) -> str:
    with suppress(OSError):
        return os.readlink(f"/proc/self/fd/{number}")
    return "closed meanwhile"


def _shared_memory() -> Iterator[_Key]:
    for name in _names("/dev/shm"):
        with suppress(OSError):  # removed meanwhile
            status = os.stat(f"/dev/shm/{name}")
            # Folders, and files of `tempfile`, are of programs that keep them there for speed.
            shared = stat.S_ISREG(status.st_mode) and not name.startswith(tempfile.gettempprefix())
            if shared and status.st_uid == os.getuid():
                yield "shared memory", status.st_ino, name


def _mapped_by_others() -> set[int]:
    """Inodes of shared memory that processes use which are none of ours.

    A name would not do: a semaphore is mapped before it has the one that it is found by.
    """
    ours = {os.getpid(), *_descendants()}
    found: set[int] = set()
    for name in _names("/proc"):
        if name.isdigit() and int(name) not in ours:
            lines = _read(f"/proc/{name}/maps").splitlines()
            found.update(int(line.split()[4]) for line in lines if b"/dev/shm/" in line)
    return found


def _names(folder: str) -> list[str]:
    """What a folder holds: nothing if there is no such folder, or it is of a process that has ended."""
    with suppress(OSError):
        return os.listdir(folder)
    return []


def _read(path: str) -> bytes:
    """A file of /proc: empty if the process has ended, or belongs to another user."""
    with suppress(OSError), open(path, "rb", buffering=0) as file:
        return file.read()
    return b""
