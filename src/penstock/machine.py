"""What this machine gives to this process: memory of the process and its children, so far.

Everything is read from the files of the system, below a root that a test can replace. Where a file is missing,
as on other systems, the answer is None.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["children", "memory_bytes"]


def _text(path: Path) -> str:
    """What the file says; nothing where there is no such file, or it may not be read."""
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""


def children(pid: int, root: Path = Path("/")) -> list[int]:
    """The processes that `pid` has started, those that they have started, and so on."""
    parents: dict[int, list[int]] = {}
    for entry in (root / "proc").glob("[0-9]*"):
        # The name of the program, in parentheses, may contain anything; the parent is the second word after it.
        after = _text(entry / "stat").rpartition(")")[2].split()
        if len(after) > 1:
            parents.setdefault(int(after[1]), []).append(int(entry.name))
    found, left = [], [pid]
    while left:
        some = parents.get(left.pop(), [])
        found += some
        left += some
    return found


def memory_bytes(pid: int | None = None, root: Path = Path("/")) -> int | None:
    """The memory of a process (this one) and all that it has started. Pages that they share count once."""
    pid = os.getpid() if pid is None else pid
    own = _proportional(root / "proc" / str(pid))
    if own is None:
        return None
    return own + sum(_proportional(root / "proc" / str(one)) or 0 for one in children(pid, root))


def _proportional(process: Path) -> int | None:
    for line in _text(process / "smaps_rollup").splitlines():
        name, _, amount = line.partition(":")
        if name == "Pss":
            return int(amount.split()[0]) * 1024
    pages = _text(process / "statm").split()
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if len(pages) > 1 else None
