"""``penstock``: choose a command, and turn what it raises into a message and an exit code.

0 done · 1 penstock could not do it · 2 the command line is wrong · 130 ended by Ctrl-C.
An exception of the user's own code is left as it is: its traceback is the message.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from typing import TYPE_CHECKING, Any

from penstock.cli import demo, explain, keygen, serve, write
from penstock.cli.command import Command, UsageError
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["COMMANDS", "build_parser", "main"]

COMMANDS: Mapping[str, Command] = {
    "demo": demo,
    "explain": explain,
    "keygen": keygen,
    "serve": serve,
    "write": write,
}


class _Version(argparse.Action):
    """Looks the version up only when it is asked for: reading metadata takes longer than parsing."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import PackageNotFoundError, version

        try:
            found = version("penstock")
        except PackageNotFoundError:
            found = "(not installed)"
        print(f"penstock {found}")
        parser.exit()


def build_parser() -> argparse.ArgumentParser:
    """The parser of every command; ``args.command`` is the chosen one."""
    parser = argparse.ArgumentParser(
        prog="penstock",
        description="Carries samples from storage to the accelerator, and says what limits them.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="command", required=True)
    for name, command in COMMANDS.items():
        child = commands.add_parser(name, help=command.SUMMARY, description=command.SUMMARY)
        command.add_arguments(child)
        child.set_defaults(command=command, command_name=name)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; the exit code."""
    _never_fail_on_a_character()
    args = build_parser().parse_args(argv)
    try:
        code: int = args.command.run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        # The terminal has written ^C where the cursor was.
        return _say("\npenstock: stopped" if sys.stderr.isatty() else "penstock: stopped", 130)
    except UsageError as error:
        return _say(f"penstock {args.command_name}: {error}", 2)
    except PenstockError as error:
        return _say(f"penstock {args.command_name}: {error}", 1)
    except BrokenPipeError:
        # The reader (head, less) has left. Python would complain once more while flushing at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _never_fail_on_a_character() -> None:
    """A terminal that cannot show a character gets a question mark instead of a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _say(message: str, code: int) -> int:
    sys.stdout.flush()
    print(message, file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
