"""A running loader in a few lines of a terminal. Pure: what the loader shows comes in, lines come out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.cli.screen import Screen
from penstock.stats.report import per_second, percent

#: columns of what is neither a bar nor the stage's name
_FIGURES = 33
#: columns of the bar of a worker's time and of the one of what is ready, with a space; where the screen is narrow,
#: names need the room
_BARS, _NARROW_BARS, _NARROW = (16, 7), (8, 0), 76

_RARE = {"errors": "failed", "deaths": "processes died", "stuck": "calls stuck"}


def board(screen: Screen, shot: Mapping[str, Any]) -> list[str]:
    """The lines for one loader, none wider than the screen; `shot` is what its page would show."""
    separator = f" {screen.glyphs.dot} "
    verdict = shot["verdict"]
    advice = plain(verdict["advice"]).replace("→", screen.glyphs.arrow)
    time, ready = _bars(screen)
    waits = shot["wait_share"]
    head = f"process {shot['pid']}, {shot['state']}"
    title = _cut(plain(shot["title"]), screen.width - len(head) - 2)
    figures = [
        f"{per_second(shot['samples_per_s'])[:-2]} samples/s",
        f"the loop waits {percent(waits)}",
        f"{shot['cores']:.1f} cores",
        f"epoch {shot['epoch']:.0f}",
        f"{shot['samples']:.0f} samples",
    ]
    figures += [f"{shot[key]:.0f} {words}" for key, words in _RARE.items() if shot[key]]
    lines = [f"{screen.paint(title, 'bold')}  {head}"]
    lines += screen.wrapped(separator.join(figures))
    lines += ["", *(screen.paint(line, "bold") for line in screen.wrapped(advice))]
    names = ("", "workers", "time".ljust(time), "ready".ljust(ready + 5), "could do")
    lines += ["", screen.paint(_row(screen, False, *names), "dim")]
    lines += [_stage(screen, stage) for stage in shot["stages"]]
    working = 1 - waits if shot["state"] == "running" else 0.0  # else the loop neither works nor waits
    shares = {"working": working, "waiting_input": waits, "waiting_room": 0.0}
    could = _could(verdict["loop_capacity"])
    limits = verdict["limiting"] == "training loop"
    lines.append(_row(screen, limits, "training loop", "", _shares(screen, shares), " " * (ready + 5), could))
    meanings = [f"{screen.paint(glyph, colour)} {words}" for _, words, glyph, colour in _looks(screen)]
    lines.append(f"  {'   '.join(meanings)}")
    for error in shot["recent_errors"][:1]:
        told = f"last error: {error['op']}, sample {error['sample']}: {error['type']}: {error['message']}"
        lines += ["", screen.paint(_cut(plain(told), screen.width), "red")]
    return lines


def plain(text: str) -> str:
    """The text without what would change the terminal: names and messages may hold anything.

    >>> plain("a\\x1b[31mb")
    'a?[31mb'
    """
    return "".join(char if char.isprintable() else "?" for char in text)


def _stage(screen: Screen, stage: Mapping[str, Any]) -> str:
    ready = f"{percent(stage['fill']):>5}"
    if columns := _bars(screen)[1]:
        ready = f"{screen.bar(stage['fill'], columns - 1, 'blue')} {ready}"
    workers = f"{stage['workers']:.0f} {stage['on']}"
    shares = _shares(screen, stage)
    return _row(screen, stage["limits"], plain(stage["label"]), workers, shares, ready, _could(stage["capacity"]))


def _row(screen: Screen, limits: bool, name: str, workers: str, shares: str, ready: str, could: str) -> str:
    """One line of the table. `shares` and `ready` have their width already: colours take no columns."""
    width = screen.width - _FIGURES - sum(_bars(screen))
    name = f"{'>' if limits else ' '} {_cut(name, width):{width}}"
    return f"{screen.paint(name, 'bold') if limits else name} {workers:>10}  {shares}  {ready}  {could:>9}"


def _shares(screen: Screen, shares: Mapping[str, float | None]) -> str:
    parts = [(shares[key] or 0.0, glyph, colour) for key, _, glyph, colour in _looks(screen)]
    return screen.stack(parts, _bars(screen)[0])


def _bars(screen: Screen) -> tuple[int, int]:
    return _BARS if screen.width >= _NARROW else _NARROW_BARS


def _looks(screen: Screen) -> list[tuple[str, str, str, str]]:
    """How the shares of a worker's time are drawn: each with its key, what it means, its character and colour."""
    glyphs = screen.glyphs
    return [
        ("working", "working", glyphs.working, "green"),
        ("waiting_input", "waits for input", glyphs.waiting_input, "yellow"),
        ("waiting_room", "waits for room", glyphs.waiting_room, "dim"),
    ]


def _could(capacity: float | None) -> str:
    return "" if capacity is None else per_second(capacity)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."
