"""Worker processes and the end of the interpreter; and whether a process was stopped by somebody else."""

from __future__ import annotations

import atexit
import os
import weakref

from penstock.core.workers import LOCK, Crew

#: how long workers of a pool have to end at the end of the interpreter
_EXIT_S = 0.5

#: crews with worker processes; guarded by LOCK
_crews: weakref.WeakSet[Crew] = weakref.WeakSet()


def end_with_interpreter(crew: Crew) -> None:
    """End the worker processes of `crew` with the interpreter, if they are still there."""
    with LOCK:
        _crews.add(crew)


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped, by SIGSTOP or a debugger, and so cannot see that its time is up."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False


def _end_pools() -> None:
    """At the end of the interpreter, when all loaders are closed and no process has been killed yet.

    Pools outlive loaders, and their workers would replace every process that is killed.
    """
    with LOCK:
        crews = [crew for crew in _crews if crew.pid == os.getpid() and not crew.closed]
    for crew in crews:
        crew.dismiss()
    for crew in crews:
        crew.close(_EXIT_S, quiet=True)


# The last registered runs first: the engines close their loaders, then this, then `startup` kills what is left.
atexit.register(_end_pools)
