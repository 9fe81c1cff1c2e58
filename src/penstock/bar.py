"""A line on a terminal that says how far something has come. Anywhere else it writes nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from time import monotonic
from typing import TextIO

_LETTERS = 24
_REFRESH_S = 0.1


class Bar:
    """Redraws one line, at most ten times a second.

    `share` is what is done, up to 1, or None if nobody knows how much there is. `told()` returns what else the line
    says.
    """

    def __init__(self, what: str = "", shown: bool = True, out: TextIO | None = None) -> None:
        self._what = what
        self._out = out or sys.stderr
        self._shown = shown and self._out.isatty()
        self._due = 0.0

    def show(self, share: float | None, told: Callable[[], str]) -> None:
        """Draw the line, if the last time was long enough ago."""
        if self._shown and (now := monotonic()) >= self._due:
            self._due = now + _REFRESH_S
            self._draw(share, told)

    def finish(self, share: float | None, told: Callable[[], str]) -> None:
        """Draw the line for the last time, and leave it there."""
        if self._shown:
            self._draw(share, told, end="\n")

    def erase(self) -> None:
        """Leave no trace."""
        if self._due:
            self._out.write("\r\x1b[K")
            self._out.flush()

    def _draw(self, share: float | None, told: Callable[[], str], end: str = "") -> None:
        done = "" if share is None else f"[{'#' * int(_LETTERS * min(share, 1.0)):<{_LETTERS}}]"
        line = " ".join(filter(None, [self._what, done, told()]))
        # A line that is broken could not be drawn again.
        self._out.write(f"\r{line[: _columns(self._out) - 1]}\x1b[K{end}")
        self._out.flush()


def _columns(out: TextIO) -> int:
    try:
        return os.get_terminal_size(out.fileno()).columns or 80
    except (AttributeError, OSError, ValueError):  # it says that it is a terminal
        return 80
