"""``penstock``: choose a command, and turn what it raises into a message and an exit code.

0 done · 1 penstock could not do it · 2 the command line is wrong · 130 ended by Ctrl-C.
An exception of the user's own code is told in a few lines: what, where in their code, and for which sample. With
``--debug`` everything that is raised keeps its traceback.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from typing import TYPE_CHECKING, Any

from penstock.cli import demo, diagnose, doctor, explain, keygen, measure, serve, top, trace, write
from penstock.cli.command import Command, UsageError
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


COMMANDS: Mapping[str, Command] = {
    "demo": demo,
    "diagnose": diagnose,
    "doctor": doctor,
    "explain": explain,
    "keygen": keygen,
    "measure": measure,
    "serve": serve,
    "top": top,
    "trace": trace,
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
        child.add_argument("--debug", action="store_true", help="show the traceback of an error")
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
        if args.debug:
            raise
        return _say(f"penstock {args.command_name}: {error}", 1)
    except BrokenPipeError:
        # The reader (head, less) has left. Python would complain once more while flushing at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except SystemExit as error:
        # Of the user's code. Its own exit code could say that all went well.
        if args.debug:
            raise
        told = f"the pipeline's own code ended the program, by sys.exit({error.code!r})"
        return _say(f"penstock {args.command_name}: {told}{_where(error)}", 1)
    except Exception as error:
        if args.debug:
            raise
        return _say(f"penstock {args.command_name}: {type(error).__name__}: {_message(error)}{_where(error)}", 1)
    return code


def _message(error: Exception) -> str:
    try:
        return str(error)
    except Exception:
        return "(its message cannot be printed)"


def _where(error: BaseException) -> str:
    """Where in the user's code it was raised, and for which sample; a line each."""
    import traceback

    ours = os.path.dirname(os.path.dirname(__file__))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename, ours)]
    frames = [frame for frame in frames if not _is_installed(frame.filename)] or frames
    where = [f"at {frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name}"] if frames else []
    lines = [*where, *getattr(error, "__notes__", ()), "--debug shows the traceback"]
    return "".join(f"\n  {line}" for line in lines)


def _is_ours(filename: str, ours: str) -> bool:
    """Whether a frame is of this package, of how Python imports, or of no file at all."""
    return filename.startswith((ours, "<")) or f"{os.sep}importlib{os.sep}" in filename


def _is_installed(filename: str) -> bool:
    """Whether a frame is of the standard library, or of another package that is installed."""
    import sysconfig

    return filename.startswith(tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")))


def _never_fail_on_a_character() -> None:
    """A terminal that cannot show a character gets a question mark instead of a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _say(message: str, code: int) -> int:
    """Write the message without what would change the terminal: those of the user's code may hold anything."""
    sys.stdout.flush()
    print("".join(char if char.isprintable() or char in "\n\t" else "?" for char in message), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
