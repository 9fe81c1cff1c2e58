"""What came of the two runs: the gain, the accelerator's time, and where the time of each stage went."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from penstock.cli.showcase.scoreboard import COLOURS, NAMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.cli.screen import Screen
    from penstock.cli.showcase.race import Run
    from penstock.stats.report import Diagnosis


_LABEL = 28
_STRIP_STEPS = 8
_NOTICEABLE = 1.05


def show_gain(screen: Screen, plain: Run, fed: Run) -> None:
    """How much faster the same work was, and how busy the accelerator was before and after."""
    gain = plain.elapsed_s / fed.elapsed_s * len(fed.begun) / len(plain.begun)
    headline = f"{gain:.1f} {screen.glyphs.times} faster" if gain >= _NOTICEABLE else "No gain"
    screen.line()
    screen.line(
        f"  {screen.paint(headline, 'bold')}: {len(fed.begun)} batches in {fed.elapsed_s:.1f} s "
        f"instead of {plain.elapsed_s:.1f} s"
    )
    screen.line()
    screen.line(screen.paint("  Share of the time the accelerator was busy", "bold"))
    for name, colour, run in zip(NAMES, COLOURS, (plain, fed), strict=True):
        bar = screen.bar(run.busy_share, screen.width - 22, colour)
        screen.line(f"  {name:<11} {bar} {run.busy_share:>5.0%}")
    window_s = min(_STRIP_STEPS * plain.elapsed_s / len(plain.begun), plain.elapsed_s, fed.elapsed_s)
    screen.line()
    screen.line(screen.paint(f"  {window_s * 1000:.0f} ms from the middle of each run", "bold"))
    for name, colour, run in zip(NAMES, COLOURS, (plain, fed), strict=True):
        screen.line(f"  {name:<11} {_strip(screen, run, window_s, colour)}")


def _strip(screen: Screen, run: Run, window_s: float, colour: str) -> str:
    cells = busy_cells(run.begun, run.step_s, window_s, screen.width - 16)
    full, rest = screen.glyphs.full, screen.glyphs.rest
    text, first = "", 0
    for at in range(1, len(cells) + 1):
        if at == len(cells) or cells[at] != cells[first]:
            busy, length = cells[first], at - first
            text += screen.paint((full if busy else rest) * length, colour if busy else "dim")
            first = at
    return text


def busy_cells(begun: Sequence[float], step_s: float, window_s: float, count: int) -> list[bool]:
    """About the middle of a run, ``window_s`` cut in ``count`` cells: was the accelerator busy?

    >>> busy_cells([0.0, 2.0], 1.0, 3.0, 3)
    [True, False, True]
    """
    latest = min(begun[len(begun) // 2], begun[-1] + step_s - window_s)
    first = max((at for at in begun if at <= latest), default=0.0)
    cell = window_s / count
    middles = [first + cell * (number + 0.5) for number in range(count)]
    return [any(at <= middle < at + step_s for at in begun) for middle in middles]


def show_stages(screen: Screen, diagnosis: Diagnosis) -> None:
    """A bar per stage and one for the training loop, and what the diagnosis says."""
    glyphs = screen.glyphs
    screen.line()
    screen.line(
        f"  {screen.paint('Where the time went', 'bold')}   "
        f"{screen.paint(glyphs.working, 'green')} working   "
        f"{screen.paint(glyphs.waiting_input, 'yellow')} waiting for input   "
        f"{screen.paint(glyphs.waiting_room, 'blue')} waiting for room"
    )
    for stage in diagnosis.stages:
        shares = (stage.working, stage.waiting_input, stage.waiting_room)
        screen.line(_stage_line(screen, stage.label, stage.workers, shares))
    waited = diagnosis.wait_share
    screen.line(_stage_line(screen, "training loop", 1, (1 - waited, waited, 0.0)))
    screen.line()
    screen.line(screen.paint("  print(loader.diagnose())", "bold"))
    advice = diagnosis.advice.replace("→", glyphs.arrow)
    screen.line(textwrap.indent(textwrap.fill(advice, screen.width - 6), "    "))


def _stage_line(screen: Screen, label: str, workers: int, shares: tuple[float, float, float]) -> str:
    glyphs = screen.glyphs
    label = label if len(label) <= _LABEL else label[: _LABEL - 2] + ".."
    looks = [(glyphs.working, "green"), (glyphs.waiting_input, "yellow"), (glyphs.waiting_room, "blue")]
    parts = [(share, *look) for share, look in zip(shares, looks, strict=True)]
    figures = "".join(f"{share:>5.0%}" for share, _, _ in parts)
    bar = screen.stack(parts, screen.width - _LABEL - 24)
    return f"  {label:<{_LABEL}} {glyphs.times}{workers:<2} {bar} {figures}"
