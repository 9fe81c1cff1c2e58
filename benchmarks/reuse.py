"""How often does a reservoir serve a sample, and does the training loop wait, as its upstream gets slower?

Steps of 10 ms, batches of 16 samples, and an upstream that makes between a quarter and twice the samples that the
steps need; without a reservoir and with one of 16 batches. Against the steps alone.
  time over ideal with the reservoir, at every speed               target: below 1.03
  times a sample is served, over what it takes                     target: below 1.1
`--svg FILE` draws what was measured: `docs/images/reservoir.svg` is made that way.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from _measure import Bench

import penstock as ps

STEP_S = 0.010
BATCH = 16
#: samples made over samples needed
SPEEDS = (0.25, 0.33, 0.5, 0.67, 0.8, 1.25, 1.6, 2.0)
WORKERS = 2


class Found(NamedTuple):
    """One run: its time over that of the steps alone, and how often a sample was served."""

    time: float
    reuse: float


def run(speed: float, steps: int, reservoir: bool) -> Found:
    """Train for so many steps behind an upstream of this speed. The first batch is not counted."""

    def load(number: int) -> int:
        time.sleep(STEP_S * WORKERS / BATCH / speed)
        return number

    data = ps.from_sequence(range(100_000)).map(load, workers=WORKERS)
    data = data.reservoir(16 * BATCH) if reservoir else data
    with data.batch(BATCH).loader() as loader:
        batches = iter(loader)
        next(batches)
        stats = loader.stats()
        began, busy = time.perf_counter(), 0.0
        for _ in range(steps):
            next(batches)
            step = time.perf_counter()
            time.sleep(STEP_S)
            busy += time.perf_counter() - step
        took = time.perf_counter() - began
        late = loader.stats()
        if not reservoir:
            return Found(took / busy, 1.0)
        draws = late["reservoir.draws"] - stats["reservoir.draws"]
        first = late["reservoir.draws"] * late["reservoir.fresh_share"]
        first -= stats["reservoir.draws"] * stats["reservoir.fresh_share"]
        return Found(took / busy, draws / max(first, 1))


def picture(plain: dict[float, Found], ours: dict[float, Found]) -> str:
    """What was measured, as an SVG: the speed to the right, ratios upwards."""
    left, top, width, height, most = 60, 30, 520, 250, 4.5

    def at(speed: float, value: float) -> str:
        return f"{left + width * (speed - 0.25) / 1.75:.1f},{top + height * (1 - min(value, most) / most):.1f}"

    def line(values: dict[float, float], colour: str, style: str = "") -> str:
        dots = "".join(
            f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>'
            for x, y in (at(speed, value).split(",") for speed, value in values.items())
        )
        points = " ".join(at(speed, value) for speed, value in values.items())
        return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{style}/>{dots}'

    def text(x: float, y: float, what: str, more: str = "") -> str:
        return f'<text x="{x:.0f}" y="{y:.0f}"{more}>{what}</text>'

    middle = ' text-anchor="middle"'
    grid = []
    for value in range(5):
        y = top + height * (1 - value / most)
        grid.append(f'<line x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        grid.append(text(left - 10, y + 4, str(value), ' text-anchor="end"'))
    for speed in (0.25, 0.5, 1.0, 1.5, 2.0):
        grid.append(text(left + width * (speed - 0.25) / 1.75, top + height + 18, f"{speed:g}", middle))
    fair = at(1.0, 0).split(",")[0]
    legend = [
        (plain, "time over ideal, without a reservoir", "#c0392b", "time", ""),
        (ours, "time over ideal, with one", "#2c7fb8", "time", ""),
        (ours, "times a sample is served", "#7a7a7a", "reuse", ' stroke-dasharray="5 4"'),
    ]
    shown = []
    for number, (found, what, colour, field, style) in enumerate(legend):
        shown.append(line({speed: getattr(one, field) for speed, one in found.items()}, colour, style))
        y = top + 14 + 20 * number
        shown.append(f'<line x1="300" x2="330" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"{style}/>')
        shown.append(text(338, y + 4, what))
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 620 330" font-family="sans-serif" font-size="12" '
        'fill="#333"><rect width="620" height="330" fill="white"/>'
        + "".join(grid)
        + f'<line x1="{fair}" x2="{fair}" y1="{top}" y2="{top + height}" stroke="#bbb" stroke-dasharray="2 3"/>'
        + "".join(shown)
        + text(
            left + width / 2,
            top + height + 40,
            "samples that the upstream makes, over those that the loop needs",
            middle,
        )
        + "</svg>\n"
    )


def main() -> None:
    svg = None
    if "--svg" in sys.argv:
        where = sys.argv.index("--svg")
        svg = Path(sys.argv[where + 1])
        del sys.argv[where : where + 2]
    bench = Bench("reuse", __doc__)
    steps, rounds = bench.size(200, 40), bench.size(3, 1)
    plain: dict[float, Found] = {}
    ours: dict[float, Found] = {}
    for speed in SPEEDS:
        runs: dict[bool, list[Found]] = {False: [], True: []}
        for number in range(rounds):
            for reservoir in (False, True) if number % 2 else (True, False):
                runs[reservoir].append(run(speed, steps, reservoir))
        for into, reservoir in ((plain, False), (ours, True)):
            found = runs[reservoir]
            into[speed] = Found(median(one.time for one in found), median(one.reuse for one in found))
        bench.limit(
            f"time over ideal, upstream at {speed:g}", [one.time for one in runs[True]], below=1.03, unit="x"
        )
        needed = max(1.0, 1 / speed)
        served = [one.reuse / needed for one in runs[True]]
        bench.limit(f"times served over what it takes, at {speed:g}", served, below=1.1, unit="x")
        print(f"  without a reservoir, upstream at {speed:g}: {plain[speed].time:.2f} of ideal", flush=True)
    if svg is not None:
        svg.write_text(picture(plain, ours))
    bench.finish()


if __name__ == "__main__":
    main()
