"""A line on a terminal that says how far a measurement is. Anywhere else it writes nothing."""

from __future__ import annotations

import sys
from time import monotonic
from typing import TextIO

from penstock.stats.report import per_second

__all__ = ["Bar"]

_LETTERS = 24
_REFRESH_S = 0.1


class Bar:
    """Redraws one line, ten times a second."""

    def __init__(self, what: str, shown: bool = True, out: TextIO | None = None) -> None:
        self._what = what
        self._out = out or sys.stderr
        self._shown = shown and self._out.isatty()
        self._due = 0.0
        self._drawn = False

    def show(self, share: float, batches: int, seconds: float) -> None:
        """So much is done."""
        if not self._shown or (now := monotonic()) < self._due:
            return
        self._due = now + _REFRESH_S
        rate = per_second(batches / seconds) if seconds > 0 else "begun"
        done = "#" * int(_LETTERS * min(share, 1.0))
        self._out.write(f"\r{self._what} [{done:<{_LETTERS}}] {batches} batches, {rate}\x1b[K")
        self._out.flush()
        self._drawn = True

    def close(self) -> None:
        """Leave no trace: what was measured is printed by whoever asked."""
        if self._drawn:
            self._out.write("\r\x1b[K")
            self._out.flush()
