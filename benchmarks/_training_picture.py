"""Draws docs/images/training.svg from benchmarks/results/training.json: penstock beside torch's DataLoader.

    python benchmarks/training.py --json benchmarks/results/training.json
    python benchmarks/_training_picture.py

A bar is the median of all runs, and the line across its end reaches from the smallest to the largest. A test
compares the picture with the results that are committed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "training.json"
PICTURE = ROOT / "docs" / "images" / "training.svg"

COLOURS = {"torch": "#9a9a9a", "ours": "#2f7fb8"}
NAMES = {"torch": "DataLoader", "ours": "penstock"}
WIDTH, LEFT, LONGEST, HIGH = 640, 110, 400, 84


@dataclass(frozen=True, slots=True)
class Panel:
    """One question: the result it is in, the figure of each run, and how that is written."""

    title: str
    result: str
    figure: str
    times: float
    unit: str


PANELS = (
    Panel("Waiting for data; a timed step stands in for a GPU", "timed step", "wait_share", 100, "% of the time"),
    Panel("Training a small network on the same two cores", "network", "images_per_s", 1, "images/s"),
    Panel("Reading only", "no step", "images_per_s", 1, "images/s"),
    Panel("Memory of 8 workers over a list of a million names", "8 workers", "mb", 1, "MB"),
)  # fmt: skip


def picture(results: dict[str, Any]) -> str:
    """The drawing of one file of results."""
    body = [draw(panel, results["results"], 8 + HIGH * number) for number, panel in enumerate(PANELS)]
    height = 8 + HIGH * len(PANELS) + 22
    machine, versions = results["machine"], results["versions"]
    caption = (
        f"{machine['cpus']} cores, {machine['system']} {machine['arch']}; Python {versions['python']}, "
        f"torch {versions['torch']}, penstock {versions['penstock']}; {results['date']}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
            'font-size="13" fill="#333">',
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
            *body,
            f'<text x="10" y="{height - 10}" font-size="11">{caption}</text>',
            "</svg>\n",
        ]
    )


def draw(panel: Panel, results: list[dict[str, Any]], top: int) -> str:
    """One panel: a bar for each side."""
    runs = next(one["runs"] for one in results if one["name"].startswith(panel.result))
    sides = {side: [panel.times * run[f"{side}_{panel.figure}"] for run in runs] for side in COLOURS}
    scale = LONGEST / max(max(values) for values in sides.values())
    parts = [f'<text x="10" y="{top + 14}" font-weight="bold">{panel.title}</text>']
    for row, (side, values) in enumerate(sides.items()):
        y = top + 22 + 24 * row
        low, middle, high = (scale * value for value in (min(values), median(values), max(values)))
        parts += [
            f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{NAMES[side]}</text>',
            f'<rect x="{LEFT}" y="{y}" width="{middle:.1f}" height="20" fill="{COLOURS[side]}"/>',
            f'<path d="M{LEFT + low:.1f} {y + 10}H{LEFT + high:.1f}" stroke="#333" stroke-width="2"/>',
            f'<text x="{LEFT + high + 8:.1f}" y="{y + 15}">{written(median(values))} {panel.unit}</text>',
        ]
    return "\n".join(parts)


def written(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


if __name__ == "__main__":
    PICTURE.write_text(picture(json.loads(RESULTS.read_text(encoding="utf-8"))), encoding="utf-8")
