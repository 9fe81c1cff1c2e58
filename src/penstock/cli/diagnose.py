"""``penstock diagnose module:name``: what limits a pipeline, and what one change would bring."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cli.measure import add_arguments as add_arguments  # the same ones
from penstock.cli.measure import measured, printed

if TYPE_CHECKING:
    import argparse


SUMMARY = "run a pipeline for some seconds and say what limits it, and what one change would bring"


def run(args: argparse.Namespace) -> int:
    """Run it, and print the diagnosis."""
    found = measured(args).diagnosis
    printed(args, found.to_dict(), str(found))
    return 0
