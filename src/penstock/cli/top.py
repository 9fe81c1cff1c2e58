"""``penstock top``: the running loaders of this user, as they are now.

Only loaders that have a page can be found: ``loader(dashboard=True)``, or ``PENSTOCK_DASHBOARD=1`` for a script
that does not say so.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.cli.board import board
from penstock.cli.command import UsageError
from penstock.cli.numbers import positive
from penstock.cli.screen import Screen
from penstock.errors import PenstockError

if TYPE_CHECKING:
    import argparse

    from penstock.dashboard.notices import Notice


SUMMARY = "watch the running loaders of this user: stages, buffers, rates and what limits them"

_NONE = (
    "no loader of this user can be watched; make one with pipeline.loader(dashboard=True), "
    "or run the script with PENSTOCK_DASHBOARD=1"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    parser.add_argument("--once", action="store_true", help="print what there is now, and end")
    parser.add_argument("--json", action="store_true", help="one line of JSON per loader and look, for programs")
    parser.add_argument(
        "--web", action="store_true", help="open the page of the newest loader, and print its address"
    )
    parser.add_argument("--pid", type=int, metavar="N", help="only loaders of this process")
    parser.add_argument("--every", type=positive, default=1.0, metavar="S", help="seconds between two looks (1)")


def run(args: argparse.Namespace) -> int:
    """Show them until the user has seen enough, or until none is left where nobody looks at a terminal."""
    if args.web and (args.json or args.once):
        raise UsageError("--web opens a page, which goes with neither --json nor --once; use one of them")
    screen = Screen.of()
    if args.web:
        return _web(args, screen)
    if args.json or args.once or not screen.live:
        return _print(args, screen)
    return _live(args, screen)


def _found(args: argparse.Namespace) -> list[tuple[Notice, dict[str, Any]]]:
    """Loaders and what they show."""
    from penstock.dashboard.client import look
    from penstock.dashboard.notices import notices

    shots = [(one, look(one)) for one in notices() if args.pid in (None, one.pid)]
    return [(one, shot) for one, shot in shots if shot is not None]


def _web(args: argparse.Namespace, screen: Screen) -> int:
    import webbrowser

    found = _found(args)
    if not found:
        raise PenstockError(_NONE)
    url = found[0][0].url
    screen.line(url)
    if screen.live:
        webbrowser.open(url)
    return 0


def _print(args: argparse.Namespace, screen: Screen) -> int:
    """Finished lines, one look after the other."""
    found = _found(args)
    if not found:
        raise PenstockError(_NONE)
    while found:
        for _, shot in found:
            if args.json:
                screen.line(json.dumps(shot))
            else:
                for line in [*board(screen, shot), ""]:
                    screen.line(line.rstrip())
        if args.once:
            break
        time.sleep(args.every)
        found = _found(args)
    return 0


def _live(args: argparse.Namespace, screen: Screen) -> int:
    """The whole terminal, drawn again and again; the last picture stays when it ends."""
    lines: list[str] = []
    with _whole_terminal(screen), _keys() as pressed:
        try:
            while True:
                screen = Screen.of(screen.out)  # its user may have made it wider or narrower
                lines = _picture(args, screen)
                height = shutil.get_terminal_size().lines
                shown = [*lines[: height - 2], "", screen.paint("q ends", "dim")]
                screen.out.write("\x1b[H" + "".join(f"{line}\x1b[K\r\n" for line in shown[:-1]))
                screen.out.write(f"{shown[-1]}\x1b[K\x1b[J")
                screen.out.flush()
                keys = pressed(args.every)
                if keys == "\x1b" or keys[:1] in ("q", "Q"):
                    break
        except KeyboardInterrupt:
            pass  # how one leaves such a program
    for line in lines:
        screen.line(line)
    return 0


def _picture(args: argparse.Namespace, screen: Screen) -> list[str]:
    found = _found(args)
    if not found:
        return [_NONE]
    lines: list[str] = []
    for _, shot in found:
        lines += [*board(screen, shot), "", ""]
    return lines[:-2]


@contextmanager
def _whole_terminal(screen: Screen) -> Iterator[None]:
    """The other screen of the terminal, so that what was there before comes back. Long lines are cut."""
    with screen.without_cursor():
        screen.out.write("\x1b[?1049h\x1b[?7l")
        try:
            yield
        finally:
            screen.out.write("\x1b[?7h\x1b[?1049l")
            screen.out.flush()


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """A function that waits so many seconds for keys; where keys cannot be read it only waits."""
    try:
        import termios
        import tty

        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
    except Exception:  # not a terminal, or not this kind of system
        yield _only_waits
        return

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        # All at once, and past the buffer of sys.stdin: an arrow key is Escape and two letters.
        # Nothing to read: the terminal is gone.
        return os.read(descriptor, 64).decode(errors="replace") or "q" if ready else ""

    tty.setcbreak(descriptor)
    try:
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _only_waits(seconds: float) -> str:
    time.sleep(seconds)
    return ""
