"""``penstock demo``: the same training loop twice, fed by a plain loop and by penstock."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path

from penstock.cli.numbers import at_least_one, positive
from penstock.cli.screen import Screen

SUMMARY = "feed a stand-in training step from JPEG files, with a plain loop and with penstock"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    parser.add_argument("--images", type=at_least_one, default=192, metavar="N", help="photos to make (192)")
    parser.add_argument(
        "--seconds", type=positive, default=8.0, metavar="S", help="how long the plain loop runs (8)"
    )
    parser.add_argument("--workers", type=at_least_one, metavar="N", help="threads of penstock (one per core)")
    parser.add_argument("--batch", type=at_least_one, default=32, metavar="B", help="photos in a batch (32)")


def run(args: argparse.Namespace) -> int:
    """Make the photos, run both, and say what the difference was."""
    # Imported here so that `penstock --help` does not wait for Pillow.
    import tempfile

    from penstock.cli.showcase import photos, race, results, scoreboard

    screen = Screen.of()
    workers = args.workers or min(8, race.cores())
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
        _title(screen, args, f"{photos.WIDTH} {screen.glyphs.times} {photos.HEIGHT}", workers)
        paths = photos.make_photos(Path(folder), args.images)
        step_s = race.suitable_step_s(paths, args.batch, workers)
        _introduce(screen, step_s, workers)
        data = race.pipeline(paths, args.batch, workers)
        with screen.without_cursor():
            board = scoreboard.Scoreboard(screen)
            batches = race.plain_batches(paths, args.batch)
            plain = race.feed(batches, step_s, board.timed(0, args.seconds), seconds=args.seconds)
            steps = len(plain.begun)
            with data.loader(seed=0) as loader:
                fed = race.feed(
                    (batch for _, batch in loader.steps(steps)), step_s, board.counted(1, steps), steps=steps
                )
                diagnosis = loader.diagnose()
    results.show_gain(screen, plain, fed)
    results.show_stages(screen, diagnosis)
    screen.line()
    screen.line(screen.paint("  The pipeline, in its own words: print(data.explain())", "bold"))
    _wrapped(screen, str(data.explain()))
    return 0


def _title(screen: Screen, args: argparse.Namespace, size: str, workers: int) -> None:
    dot = screen.glyphs.dot
    screen.line()
    screen.line(
        f"  {screen.paint('penstock demo', 'bold')}  {args.images} JPEG photos of {size} {dot} "
        f"batches of {args.batch} {dot} {workers} worker{'s' * (workers > 1)}"
    )


def _introduce(screen: Screen, step_s: float, workers: int) -> None:
    story = (
        "Shuffle, read, decode, crop, flip and stack the photos, then a training step. The step is a "
        f"sleep of {step_s * 1000:.0f} ms: no CPU, as on a GPU, and about as long as {workers} "
        f"core{'s need' if workers > 1 else ' needs'} to make a batch."
    )
    screen.line(textwrap.indent(textwrap.fill(story, screen.width - 4), "  "))
    screen.line()


def _wrapped(screen: Screen, text: str) -> None:
    """Long lines are broken to the width of the screen, and keep their indentation."""
    for line in text.splitlines():
        indent = " " * (4 + len(line) - len(line.lstrip()))
        screen.line(
            textwrap.fill(line.strip(), screen.width - 1, initial_indent=indent, subsequent_indent=f"{indent}  ")
        )
