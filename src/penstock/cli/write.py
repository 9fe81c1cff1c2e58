"""``penstock write module:name DST``: write the samples of a pipeline to files, and go on after a kill."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cli.explain import add_target, find_pipeline
from penstock.writers.write import FORMATS

if TYPE_CHECKING:
    import argparse


SUMMARY = "write the samples of a pipeline to files, and go on where an earlier run was ended"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    add_target(parser)
    parser.add_argument("folder", metavar="DST", help="the folder to write to")
    parser.add_argument("--format", choices=sorted(FORMATS), default="tar", help="what to write (tar)")
    parser.add_argument(
        "--shard-size", default="256MB", metavar="SIZE", help="samples per shard, or a size such as 256MB (256MB)"
    )
    parser.add_argument("--seed", type=int, default=0, help="decides all random choices (0)")
    parser.add_argument("--workers", type=int, metavar="N", help="workers for ops that do not say how many")
    parser.add_argument("--overwrite", action="store_true", help="remove what was written before")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def run(args: argparse.Namespace) -> int:
    """Write, and say what was written."""
    size = int(args.shard_size) if args.shard_size.isdigit() else args.shard_size
    done = find_pipeline(args.target).write(
        args.folder,
        format=args.format,
        shard_size=size,
        seed=args.seed,
        workers=args.workers,
        overwrite=args.overwrite,
        progress=not args.quiet,
    )
    skipped = f", {done.skipped:,} left out" if done.skipped else ""
    print(f"{done.samples:,} samples in {done.shards:,} shards in {args.folder}{skipped}")
    return 0
