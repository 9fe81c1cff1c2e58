"""Ctrl-C at a chosen line of penstock, so that every moment can be tried."""

from __future__ import annotations

import _thread
import os
import sys
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any, Self

import penstock

_OURS = str(Path(penstock.__file__).parent)


class Interrupts:
    """Presses Ctrl-C when the n-th line of penstock runs in this thread, for each given n.

    The signal is handled as a real one is: by the handler that is installed, within the next few instructions.
    Lines that `__del__` runs do not count: Python prints what is raised there, and goes on.
    """

    def __init__(self, *lines: int) -> None:
        self._due = set(lines)
        #: lines that have run
        self.lines = 0
        #: where the interrupts came, for messages
        self.where: list[str] = []
        # A subscript, since the trace function itself would be interrupted after a call, and never be called again.
        self._press: defaultdict[int, Any] = defaultdict(_thread.interrupt_main)

    def __enter__(self) -> Self:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(_OURS):
            return None
        if event == "line" and not _in_del(frame):
            self.lines += 1
            if self.lines in self._due:
                self.where.append(f"{os.path.basename(code.co_filename)}:{frame.f_lineno}")
                self._press[self.lines]
        return self._trace


def _in_del(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


def descendants() -> set[tuple[int, str]]:
    """All processes below this one, also those that have ended and that nobody has waited for: pid, state."""
    parents: dict[int, int] = {}
    states: dict[int, str] = {}
    for entry in os.listdir("/proc"):
        try:
            fields = Path(f"/proc/{int(entry)}/stat").read_text().rpartition(")")[2].split()
        except (ValueError, OSError):
            continue
        states[int(entry)], parents[int(entry)] = fields[0], int(fields[1])

    def is_ours(pid: int) -> bool:
        return pid in parents and (parents[pid] == os.getpid() or is_ours(parents[pid]))

    return {(pid, states[pid]) for pid in parents if is_ours(pid)}


def descriptors() -> int:
    """How many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))
