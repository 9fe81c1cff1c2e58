"""What a terminal can show, and bars drawn with it.

A live screen has colours and redraws its progress in place. Any other output (a file, a pipe,
``NO_COLOR``, a dumb terminal) gets finished lines and not one escape.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


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
    """Where a command writes. ``live``: escapes are understood. ``width``: columns that a table may take."""

    out: TextIO
    live: bool
    width: int
    glyphs: Glyphs
    #: columns for sentences: no more than the terminal has, where tables need more than that
    columns: int = 100

    @classmethod
    def of(cls, out: TextIO | None = None, environ: Mapping[str, str] = os.environ) -> Screen:
        """The screen behind ``out`` (standard output), as its user has set it up."""
        out = out or sys.stdout
        live = out.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        columns = shutil.get_terminal_size((80, 24)).columns
        width = max(60, min(100, columns))
        unicode = (out.encoding or "").lower().replace("-", "") == "utf8"
        return cls(out, live, width, _UNICODE if unicode else _ASCII, max(20, columns))

    def line(self, text: str = "") -> None:
        """One finished line, visible at once."""
        print(text, file=self.out, flush=True)

    def wrapped(self, text: str) -> list[str]:
        """A sentence or more as lines, none wider than the screen."""
        return textwrap.wrap(text, min(self.width, self.columns))

    def say(self, text: str, colour: str) -> None:
        """A finished sentence: wrapped at words on a terminal, one line for a program or a file."""
        for part in self.wrapped(text) if self.live else [text]:
            self.line(self.paint(part, colour))

    def paint(self, text: str, colour: str) -> str:
        """``text`` in a colour, if it is to have one, or as it is where there are none."""
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self.live and text and colour else text

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
