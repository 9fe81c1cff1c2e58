"""Two progress bars, one under the other: redrawn in place on a live screen, else a line per quarter."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.cli.screen import Screen
    from penstock.cli.showcase.race import Progress


NAMES = ("plain loop", "penstock")
COLOURS = ("yellow", "green")

# Often enough to look smooth; drawing takes time from the loop that is being measured.
_REDRAW_S = 0.05


@dataclass(slots=True)
class _Row:
    name: str
    colour: str
    share: float = 0.0
    steps: int = 0
    elapsed_s: float = 0.0
    quarters: int = 0

    def figures(self) -> str:
        if not self.steps:
            return f"{'waits for its turn':>30}"
        rate = self.steps / self.elapsed_s
        return f"{self.steps:>5} batches {self.elapsed_s:>6.1f} s {rate:>5.1f}/s"


class Scoreboard:
    """How far each of the two runs is."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._rows = [_Row(name, colour) for name, colour in zip(NAMES, COLOURS, strict=True)]
        self._drawn_at = 0.0
        if screen.live:
            screen.redraw(self._lines(), again=False)

    def timed(self, which: int, seconds: float) -> Progress:
        """The progress function of a run that ends after ``seconds``."""
        return lambda steps, elapsed_s: self.update(which, elapsed_s / seconds, steps, elapsed_s)

    def counted(self, which: int, total: int) -> Progress:
        """The progress function of a run that ends after ``total`` steps."""
        return lambda steps, elapsed_s: self.update(which, steps / total, steps, elapsed_s)

    def update(self, which: int, share: float, steps: int, elapsed_s: float) -> None:
        """Run ``which`` has made ``steps`` steps, a ``share`` of what it is to do."""
        row = self._rows[which]
        row.share, row.steps, row.elapsed_s = min(1.0, share), steps, elapsed_s
        if self._screen.live:
            self._redraw(finished=share >= 1)
        else:
            self._print_quarters(row)

    def _redraw(self, *, finished: bool) -> None:
        now = time.monotonic()
        if finished or now - self._drawn_at >= _REDRAW_S:
            self._drawn_at = now
            self._screen.redraw(self._lines(), again=True)

    def _print_quarters(self, row: _Row) -> None:
        reached = int(row.share * 4)
        if reached > row.quarters:
            row.quarters = reached
            self._screen.line(self._line(row))

    def _lines(self) -> list[str]:
        return [self._line(row) for row in self._rows]

    def _line(self, row: _Row) -> str:
        figures = row.figures()
        bar = self._screen.bar(row.share, self._screen.width - 15 - len(figures), row.colour)
        return f"  {row.name:<11} {bar}{figures}"
