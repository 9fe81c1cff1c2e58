"""``penstock measure module:name``: how fast a pipeline is, and where its time goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.cli.explain import add_target, find_pipeline
from penstock.cli.numbers import at_least_one, not_negative, positive, whole
from penstock.cli.screen import Screen

if TYPE_CHECKING:
    import argparse

    from penstock.measuring.measure import Measurement


SUMMARY = "run a pipeline for some seconds and print how fast it is, and where its time goes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    add_target(parser)
    add_run_options(parser)


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """How long a pipeline is run, and on what."""
    parser.add_argument("--seconds", type=positive, default=2.0, metavar="S", help="how long to run (2)")
    parser.add_argument("--steps", type=at_least_one, metavar="N", help="the most batches to read")
    parser.add_argument(
        "--step-ms", type=not_negative, default=0.0, metavar="MS", help="how long a training step takes (0)"
    )
    parser.add_argument("--workers", type=whole, metavar="N", help="workers for ops that do not say how many")
    parser.add_argument("--on", metavar="WHERE", help="where ops run that do not say so: thread, process, async")
    parser.add_argument("--seed", type=whole, default=0, help="the seed of the loader (0)")
    parser.add_argument("--json", action="store_true", help="print it as JSON, for programs")


def run(args: argparse.Namespace) -> int:
    """Measure, and print."""
    found = measured(args)
    printed(args, found.to_dict(), str(found))
    return 0


def measured(args: argparse.Namespace) -> Measurement:
    """What a run of the pipeline has shown."""
    # Imported here so that `penstock --help` does not wait for it.
    from penstock.measuring.measure import measure

    return measure(
        find_pipeline(args.target),
        args.seconds,
        steps=args.steps,
        step_ms=args.step_ms,
        workers=args.workers,
        on=args.on,
        seed=args.seed,
    )


def printed(args: argparse.Namespace, data: dict[str, Any], text: str) -> None:
    """Print what was found: as JSON if asked, else as text, its first line and what limits standing out."""
    if args.json:
        import json

        print(json.dumps(data, indent=2))
        return
    screen = Screen.of()
    for number, line in enumerate(text.replace("→", screen.glyphs.arrow).splitlines()):
        colour = "bold" if number == 0 else "yellow" if line.startswith(">") else ""
        if line[:1].isalnum():
            screen.say(line, colour)
        else:
            screen.line(screen.paint(line, colour))
