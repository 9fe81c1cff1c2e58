"""What a terminal can show, and bars drawn with it.

A live screen has colours and redraws its progress in place. Any other output (a file, a pipe,
``NO_COLOR``, a dumb terminal) gets finished lines and not one escape.
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Glyphs", "Screen"]

_COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
_EIGHTHS = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters of the bars."""

    full: str
    rest: str
    working: str
    waiting_input: str
    waiting_room: str
    dot: str
    times: str
    arrow: str


_UNICODE = Glyphs("█", "·", "█", "▒", "░", "·", "×", "→")
_ASCII = Glyphs("#", ".", "#", "-", ".", "-", "x", "->")


@dataclass(frozen=True, slots=True)
class Screen:
    """Where a command writes. ``live``: escapes are understood. ``width``: columns to use."""

    out: TextIO
    live: bool
    width: int
    glyphs: Glyphs

    @classmethod
    def of(cls, out: TextIO | None = None, environ: Mapping[str, str] = os.environ) -> Screen:
        """The screen behind ``out`` (standard output), as its user has set it up."""
        out = out or sys.stdout
        live = out.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        width = max(60, min(100, shutil.get_terminal_size((80, 24)).columns))
        unicode = (out.encoding or "").lower().replace("-", "") == "utf8"
        return cls(out, live, width, _UNICODE if unicode else _ASCII)

    def line(self, text: str = "") -> None:
        """One finished line, visible at once."""
        print(text, file=self.out, flush=True)

    def paint(self, text: str, colour: str) -> str:
        """``text`` in a colour, or as it is where there are none."""
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self.live and text else text

    def bar(self, share: float, width: int, colour: str) -> str:
        """``share`` of ``width`` columns filled; eighths of a column where the font has them."""
        filled = max(0.0, min(1.0, share)) * width
        full = int(filled)
        part = _EIGHTHS[int((filled - full) * 8)].strip() if self.glyphs is _UNICODE else ""
        rest = self.glyphs.rest * (width - full - len(part))
        return self.paint(self.glyphs.full * full + part, colour) + self.paint(rest, "dim")

    def stack(self, parts: Sequence[tuple[float, str, str]], width: int) -> str:
        """Shares side by side in one bar, each with its own character and colour."""
        text, drawn, total = "", 0, 0.0
        for share, glyph, colour in parts:
            total += share
            end = min(width, round(total * width))
            text += self.paint(glyph * (end - drawn), colour)
            drawn = max(drawn, end)
        return text + " " * (width - drawn)

    def redraw(self, lines: Sequence[str], *, again: bool) -> None:
        """Draw a block of lines; ``again`` replaces the block that was drawn just before."""
        up = f"\x1b[{len(lines)}F" if again else ""
        self.out.write(up + "".join(f"{line}\x1b[K\n" for line in lines))
        self.out.flush()

    @contextmanager
    def without_cursor(self) -> Iterator[None]:
        """No blinking cursor over the bars; it comes back however the block ends."""
        if not self.live:
            yield
            return
        self.out.write("\x1b[?25l")
        try:
            yield
        finally:
            self.out.write("\x1b[?25h")
            self.out.flush()
