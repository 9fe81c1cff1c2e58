"""A line on a terminal that says how far writing has come. Anywhere else it writes nothing."""

from __future__ import annotations

import sys
import time
from typing import TextIO

__all__ = ["Progress"]

_WIDTH = 24
#: seconds between two lines
_EVERY_S = 0.2


class Progress:
    """Redraws one line of a terminal, a few times a second.

    `total` is the number of samples if it is known, `done` how many were written by earlier runs.
    """

    def __init__(
        self, what: str, total: int | None, done: int, out: TextIO | None = None, shown: bool = True
    ) -> None:
        self.what = what
        self.total = total
        self.done = done
        self._out = out or sys.stderr
        self._shown = shown and self._out.isatty()
        self._began = self._last = time.monotonic()
        self._first = done
        self._drawn = False

    def step(self, shards: int) -> None:
        """A sample was written."""
        self.done += 1
        if self._shown and not self.done & 15:
            now = time.monotonic()
            if now - self._last >= _EVERY_S:
                self._last = now
                self._draw(shards, now)

    def line(self, shards: int, now: float) -> str:
        """What the line says."""
        rate = (self.done - self._first) / max(now - self._began, 1e-9)
        told = f"{self.done:,} samples, {shards:,} shards, {rate:,.0f}/s"
        if not self.total:
            return f"{self.what}  {told}"
        share = min(1.0, self.done / self.total)
        filled = int(share * _WIDTH)
        left_s = (self.total - self.done) / rate if rate else 0.0
        bar = "#" * filled + "." * (_WIDTH - filled)
        return f"{self.what} [{bar}] {share:4.0%}  {told}, {left_s:,.0f} s left"

    def _draw(self, shards: int, now: float) -> None:
        self._out.write(f"\r{self.line(shards, now)}\x1b[K")
        self._out.flush()
        self._drawn = True

    def close(self, shards: int) -> None:
        """Leave the last line where it is."""
        if self._shown:
            self._draw(shards, time.monotonic())
            self._out.write("\n")
            self._out.flush()
