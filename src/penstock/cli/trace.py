"""``penstock trace module:name``: run some steps of a pipeline, and write what every worker did when."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from penstock.cli.explain import add_target, find_pipeline
from penstock.cli.measure import printed
from penstock.cli.numbers import at_least_one, not_negative, whole
from penstock.cli.screen import Screen

if TYPE_CHECKING:
    import argparse


SUMMARY = "run some steps of a pipeline and write what every worker did when, for ui.perfetto.dev"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    add_target(parser)
    parser.add_argument(
        "-o",
        "--output",
        default="trace.json",
        metavar="FILE",
        help="the file to write (trace.json); .gz compresses",
    )
    parser.add_argument("--steps", type=at_least_one, default=100, metavar="N", help="batches to read (100)")
    parser.add_argument(
        "--step-ms", type=not_negative, default=0.0, metavar="MS", help="how long a training step takes (0)"
    )
    parser.add_argument("--seed", type=whole, default=0, help="the seed of the loader (0)")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON, for programs")


def run(args: argparse.Namespace) -> int:
    """Trace the first steps, start-up included."""
    from time import perf_counter, sleep

    screen = Screen.of()
    began = perf_counter()
    with find_pipeline(args.target).loader(seed=args.seed) as loader, loader.trace(args.output):
        for _ in loader.steps(args.steps):
            sleep(args.step_ms / 1e3)
    seconds, size = perf_counter() - began, os.path.getsize(args.output)
    dot = screen.glyphs.dot
    text = (
        f"{args.output}: {args.steps} steps in {seconds:.3g} s {dot} {size / 1e6:.2g} MB {dot} "
        "open it at https://ui.perfetto.dev, or in chrome://tracing"
    )
    printed(args, {"output": args.output, "steps": args.steps, "seconds": seconds, "bytes": size}, text)
    return 0
