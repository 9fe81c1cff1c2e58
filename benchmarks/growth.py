"""Does the cost per sample stay flat as samples, stages or workers grow?

Integers through `x + 1` in batches of 64, on a warm loader (its first epoch is not timed). One thing grows:
  samples    1e3 to 1e6 in an epoch, one stage of 4 threads
  stages     1 to 8, each one thread of its own; the cost is per sample and stage
  workers    1 to 64 threads in one stage
All points are visited in turn, round after round. Target: the cost at the largest size is less than 1.5 times
the lowest cost at any size, so a fixed cost that small sizes cannot spread out does not count as growth.
A text plot is printed; a full run also draws results/growth.svg.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from _measure import Bench

import penstock as ps

BATCH = 64
FLAT = 1.5
PANEL, HEIGHT = 280, 220  # of the drawing
DRAWING = Path(__file__).parent / "results" / "growth.svg"


def add_one(x: int) -> int:
    return x + 1


def chain(samples: int, stages: int, workers: int) -> Any:
    """`stages` maps, each with `workers` threads of its own."""
    pipeline: Any = ps.from_sequence(range(samples))
    for _ in range(stages):
        pipeline = pipeline.map(add_one, workers=workers)
    return pipeline.batch(BATCH)


@dataclass(slots=True)
class Point:
    """One size of what grows, and its cost in each round."""

    size: int
    samples: int
    stages: int = 1
    workers: int = 4
    costs_us: list[float] = field(default_factory=list)

    def measure(self, at_least_samples: int) -> None:
        """Time warm epochs until enough samples went by for the clock.

        `epochs(n)` begins no epoch after its last, so nothing is made outside of the time that is taken.
        """
        epochs = max(1, at_least_samples // self.samples)
        with chain(self.samples, self.stages, self.workers).loader() as loader:
            _drain(loader.epochs(1))
            start = time.perf_counter()
            _drain(loader.epochs(epochs))
            elapsed = time.perf_counter() - start
        self.costs_us.append(1e6 * elapsed / (epochs * self.samples * self.stages))

    @property
    def cost_us(self) -> float:
        return median(self.costs_us)


def _drain(epochs: Any) -> None:
    for _epoch, batches in epochs:
        for _batch in batches:
            pass


def text_plot(name: str, points: list[Point], width: int = 50) -> str:
    highest = max(point.cost_us for point in points)
    unit = "µs per sample and stage" if name == "stages" else "µs per sample"
    lines = [f"\n  {name:>9}   {unit}"]
    for point in points:
        bar = "#" * max(1, round(width * point.cost_us / highest))
        lines.append(f"  {point.size:>9}   {point.cost_us:7.3f}  {bar}")
    return "\n".join(lines)


def svg(series: dict[str, list[Point]]) -> str:
    """The three plots side by side."""
    panels = [_panel(name, points, left=PANEL * k) for k, (name, points) in enumerate(series.items())]
    size = f'width="{PANEL * len(panels)}" height="{HEIGHT}"'
    style = 'font-family="sans-serif" font-size="11" fill="#333"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n' + "\n".join(panels) + "\n</svg>\n"


def _panel(name: str, points: list[Point], *, left: int) -> str:
    """Sizes evenly spaced from left to right, cost from zero up."""
    width, floor, ceiling = PANEL - 90, HEIGHT - 40, 40
    top_us = 1.2 * max(point.cost_us for point in points)
    xs = [60 + width * i / (len(points) - 1) for i in range(len(points))]
    ys = [floor - (floor - ceiling) * point.cost_us / top_us for point in points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
    parts = [
        f'<g transform="translate({left} 0)">',
        f'<text x="60" y="24" font-weight="bold">{name}</text>',
        f'<path d="M60 {ceiling}V{floor}H{60 + width}" fill="none" stroke="#999"/>',
        f'<text x="54" y="{ceiling + 4}" text-anchor="end">{top_us:.2f} µs</text>',
        f'<text x="54" y="{floor + 4}" text-anchor="end">0</text>',
        f'<polyline points="{line}" fill="none" stroke="#06c"/>',
    ]
    for x, y, point in zip(xs, ys, points, strict=True):
        label = _short(point.size)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#06c"/>')
        parts.append(f'<text x="{x:.1f}" y="{floor + 18}" text-anchor="middle">{label}</text>')
    return "\n".join([*parts, "</g>"])


def _short(size: int) -> str:
    return f"{size:.0e}".replace("e+0", "e") if size >= 1000 else str(size)


def main() -> None:
    bench = Bench("growth", __doc__)
    n, exponents = bench.size(1_000_000, quick=20_000), range(3, bench.size(7, quick=6))
    series = {
        "samples": [Point(10**e, samples=10**e) for e in exponents],
        "stages": [Point(s, samples=n, stages=s, workers=1) for s in (1, 2, 4, 8)],
        "workers": [Point(w, samples=n, workers=w) for w in (1, 2, 4, 8, 16, 32, 64)],
    }
    for _round in range(bench.pairs):
        for points in series.values():
            for point in points:
                point.measure(at_least_samples=n)

    for name, points in series.items():
        rounds = zip(*(point.costs_us for point in points), strict=True)
        print(text_plot(name, points))
        bench.limit(f"{name}: largest over cheapest", [r[-1] / min(r) for r in rounds], below=FLAT, unit="x")
    if not bench.quick:
        DRAWING.parent.mkdir(exist_ok=True)
        DRAWING.write_text(svg(series))
    bench.finish()


if __name__ == "__main__":
    main()
