"""Training from a loader that is too slow: with a reservoir the steps go on, with samples that were served before.

A small network learns to read digits. They are drawn here: ten glyphs, moved, turned, scaled and blurred. Each
sample takes some milliseconds to load, as from a slow disk, so that a batch takes several times as long as a
training step. The same training runs twice, without and with a reservoir, to the same accuracy on digits that it
has never seen. What counts is the time until then, the first filling of the reservoir included: a step with
samples served before is sooner there, but teaches less than one with new samples.

The slower the loader, the more each sample is reused, and the less each reuse teaches; the sweep shows how much of
the gain is left, and how many more steps it costs.

    python examples/reservoir_training.py                  # a loader four times too slow
    python examples/reservoir_training.py --slower 8 --svg accuracy.svg
    python examples/reservoir_training.py --sweep          # 1 to 16 times too slow: where does reuse stop paying?
    python examples/reservoir_training.py --sweep --noise 0.45   # the same with harder digits
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt

import penstock as ps

SIDE = 28
TRAINING = 2048
TEST = 1000
BATCH = 32
WORKERS = 2
RESERVOIR = 512
HIDDEN = 64
RATE = 0.03
TEST_EVERY = 10
#: an accuracy counts as reached when the mean of so many tests is there: a single one may be luck
TESTS = 3
SWEEP = (1, 2, 4, 8, 16)
MAX_REUSE = 4
WITHOUT, UNBOUNDED, BOUNDED = "no reservoir", f"reservoir({RESERVOIR})", f"max_reuse={MAX_REUSE}"

Image = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Setting:
    """What a run is like."""

    #: how many times longer a batch takes to load than a step takes to train
    slower: float = 4
    step_s: float = 0.008
    #: the accuracy at which the run ends, and after how many seconds it ends without it
    target: float = 0.95
    limit_s: float = 40
    #: of each pixel, at every load; the figures have a brightness of 1
    noise: float = 0.3
    seed: int = 0

    @property
    def load_s(self) -> float:
        """How long one sample takes one worker."""
        return self.slower * self.step_s * WORKERS / BATCH


# ---------------------------------------------------------------------- the data

GLYPHS = """
01110 00100 01110 11111 00010 11111 00110 11111 01110 01110
10001 01100 10001 00010 00110 10000 01000 00001 10001 10001
10011 00100 00001 00100 01010 11110 10000 00010 10001 10001
10101 00100 00010 00010 10010 00001 11110 00100 01110 01111
11001 00100 00100 00001 11111 00001 10001 01000 10001 00001
10001 00100 01000 10001 00010 10001 10001 01000 10001 00010
01110 01110 11111 01110 00010 01110 01110 01000 01110 01100
"""


@functools.cache
def glyphs() -> Image:
    """The ten digits, each with an empty border of one pixel."""
    rows = [[[int(bit) for bit in part] for part in line.split()] for line in GLYPHS.split("\n") if line]
    return np.pad(np.array(rows, np.float32).swapaxes(0, 1), ((0, 0), (1, 1), (1, 1)))


def draw(digit: int, rng: np.random.Generator) -> Image:
    """One digit, moved, turned, scaled and blurred."""
    scale, angle, blur = rng.uniform(2.3, 3.2), rng.uniform(-0.15, 0.15), rng.uniform(0, 0.5)
    y, x = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2 - rng.uniform(-2, 2, 2).reshape(2, 1, 1)
    # Where each pixel lies in the glyph, whose middle is (4, 3); what lies outside gets the border.
    u = np.clip((np.cos(angle) * y + np.sin(angle) * x) / scale + 4, 0, 7.999)
    v = np.clip((np.cos(angle) * x - np.sin(angle) * y) / scale + 3, 0, 5.999)
    i, j = u.astype(int), v.astype(int)
    glyph = glyphs()[digit]
    upper = (1 - v + j) * glyph[i, j] + (v - j) * glyph[i, j + 1]
    lower = (1 - v + j) * glyph[i + 1, j] + (v - j) * glyph[i + 1, j + 1]
    image = (1 - u + i) * upper + (u - i) * lower
    beside = sum(np.roll(image, by, axis) for by in (-1, 1) for axis in (0, 1)) / 4
    drawn: Image = ((1 - blur) * image + blur * beside).astype(np.float32)
    return drawn


@functools.cache
def make_digits(count: int, seed: int) -> tuple[Image, Labels]:
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 10
    return np.stack([draw(int(digit), rng) for digit in labels]), labels


def augment(image: Image, rng: np.random.Generator, noise: float) -> Image:
    """Moved by up to a pixel, with noise; no two loads of a sample are the same."""
    moved = np.roll(image, rng.integers(-1, 2, 2), (0, 1))
    return moved + np.float32(noise) * rng.standard_normal(image.shape, dtype=np.float32)


def make_pipeline(setting: Setting, reservoir: bool, max_reuse: int | None = None) -> ps.Pipeline[dict[str, Any]]:
    images, labels = make_digits(TRAINING, seed=1)

    def load(image: Image, rng: np.random.Generator) -> Image:
        """Takes as long as a slow disk, the augmentation included."""
        due = time.perf_counter() + setting.load_s
        loaded = augment(image, rng, setting.noise)
        time.sleep(max(0, due - time.perf_counter()))
        return loaded

    samples = ps.from_arrays({"image": images, "label": labels}).shuffle()
    samples = samples.map(load, key="image", rng=True, workers=WORKERS)
    if reservoir:
        samples = samples.reservoir(RESERVOIR, max_reuse=max_reuse)
    return samples.batch(BATCH)


# ---------------------------------------------------------------------- the training


class Network:
    """One hidden layer, trained by gradient descent with momentum."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        sizes = [(SIDE * SIDE, HIDDEN), (HIDDEN, 10)]
        weights = [rng.standard_normal(size, dtype=np.float32) * np.float32((2 / size[0]) ** 0.5) for size in sizes]
        self.params = [weights[0], np.zeros(HIDDEN, np.float32), weights[1], np.zeros(10, np.float32)]
        self.speeds = [np.zeros_like(one) for one in self.params]

    def __call__(self, images: Image) -> tuple[Image, Image, Image]:
        """The inputs as rows, the hidden layer, and a score for each digit."""
        into, at_first, out, at_last = self.params
        rows = images.reshape(len(images), -1)
        hidden = np.maximum(rows @ into + at_first, 0)
        return rows, hidden, hidden @ out + at_last

    def learn(self, images: Image, labels: Labels) -> None:
        rows, hidden, scores = self(images)
        error = np.exp(scores - scores.max(axis=1, keepdims=True))
        error /= error.sum(axis=1, keepdims=True)
        error[np.arange(len(labels)), labels] -= 1
        error /= len(labels)
        behind = (error @ self.params[2].T) * (hidden > 0)
        slopes = [rows.T @ behind, behind.sum(axis=0), hidden.T @ error, error.sum(axis=0)]
        for param, speed, slope in zip(self.params, self.speeds, slopes, strict=True):
            speed *= 0.9
            speed += slope
            param -= RATE * speed

    def accuracy(self, images: Image, labels: Labels) -> float:
        return float((self(images)[2].argmax(axis=1) == labels).mean())


class Point(NamedTuple):
    """One test, and when it was."""

    step: int
    seconds: float
    #: the mean of the last tests
    accuracy: float


class Run(NamedTuple):
    """What came of one training."""

    points: list[Point]
    reuse_mean: float
    wait_share: float

    def reached(self, accuracy: float) -> Point | None:
        return next((point for point in self.points if point.accuracy >= accuracy), None)


@functools.cache
def held_out(noise: float) -> tuple[Image, Labels]:
    images, labels = make_digits(TEST, seed=2)
    rng = np.random.default_rng(3)
    return np.stack([augment(image, rng, noise) for image in images]), labels


def train(setting: Setting, reservoir: bool, max_reuse: int | None = None) -> Run:
    """Train until the target is reached. The clock starts with the loader, and does not stop for the tests."""
    images, labels = held_out(setting.noise)
    pipeline = make_pipeline(setting, reservoir, max_reuse)
    network = Network(setting.seed)
    tests = [network.accuracy(images, labels)]
    points = [Point(0, 0.0, tests[0])]
    with pipeline.loader(seed=setting.seed) as loader:
        began = time.perf_counter()
        for step, batch in loader.steps(1_000_000):
            due = time.perf_counter() + setting.step_s
            network.learn(batch["image"], batch["label"])
            # The rest of the step is the accelerator's: this process only waits for it.
            time.sleep(max(0, due - time.perf_counter()))
            if (step + 1) % TEST_EVERY:
                continue
            tests.append(network.accuracy(images, labels))
            points.append(Point(step + 1, time.perf_counter() - began, statistics.mean(tests[-TESTS:])))
            if points[-1].accuracy >= setting.target or points[-1].seconds > setting.limit_s:
                break
        stats = loader.stats()
    return Run(points, stats.get("reservoir.reuse_mean", 1.0), stats["wait_share"])


# ---------------------------------------------------------------------- what is told


class Told(TypedDict):
    """One training, in numbers."""

    reached: bool
    seconds: float
    steps: int
    reuse_mean: float
    wait_share: float


class Summary(TypedDict):
    """What ``main`` returns."""

    target: float
    no_reservoir: Told
    reservoir: Told


def told(run: Run, target: float) -> Told:
    last = run.points[-1]
    return Told(
        reached=last.accuracy >= target,
        seconds=round(last.seconds, 3),
        steps=last.step,
        reuse_mean=round(run.reuse_mean, 2),
        wait_share=round(run.wait_share, 3),
    )


def compare(setting: Setting, svg: Path | None) -> Summary:
    """Train without and with the reservoir, and print both side by side."""
    print(f"a batch takes {setting.slower:g} times as long to load as a step of {1000 * setting.step_s:g} ms")
    runs = {WITHOUT: train(setting, False), UNBOUNDED: train(setting, True)}
    targets = [accuracy for accuracy in (0.8, 0.9) if accuracy < setting.target] + [setting.target]
    heads = [f"to {100 * accuracy:g} %" for accuracy in targets]
    print(" " * 16 + "".join(f"{head:>10}" for head in [*heads, "steps", "reuse", "waiting"]))
    for name, run in runs.items():
        times = [f"{point.seconds:.1f} s" if (point := run.reached(one)) else "never" for one in targets]
        rest = [str(run.points[-1].step), f"{run.reuse_mean:.1f}", f"{100 * run.wait_share:.0f} %"]
        print(f"{name:<16}" + "".join(f"{cell:>10}" for cell in [*times, *rest]))
    if svg is not None:
        svg.write_text(plot(runs, setting.target), encoding="utf-8")
        print(f"accuracy over time: {svg}")
    no_reservoir, reservoir = (told(run, setting.target) for run in runs.values())
    return Summary(target=setting.target, no_reservoir=no_reservoir, reservoir=reservoir)


class Row(NamedTuple):
    """One line of the sweep: medians over the runs."""

    slower: float
    way: str
    #: endless if the target is not reached
    seconds: float
    #: how many times sooner that is than without a reservoir, with the same seed
    gain: float
    steps: float
    reuse_mean: float
    wait_share: float


def measure(setting: Setting, seeds: int) -> list[Row]:
    """Train in all ways, one after the other with each seed: what else the machine does then concerns all alike."""
    ways = {WITHOUT: (False, None), UNBOUNDED: (True, None), BOUNDED: (True, MAX_REUSE)}
    runs: dict[str, list[Run]] = {way: [] for way in ways}
    for seed in range(seeds):
        for way, (reservoir, max_reuse) in ways.items():
            runs[way].append(train(replace(setting, seed=seed), reservoir, max_reuse))
    times = {way: [seconds_to(setting.target, run) for run in runs[way]] for way in ways}
    return [
        Row(
            setting.slower,
            way,
            statistics.median(times[way]),
            statistics.median(a / b for a, b in zip(times[WITHOUT], times[way], strict=True)),
            statistics.median(run.points[-1].step for run in runs[way]),
            statistics.median(run.reuse_mean for run in runs[way]),
            statistics.median(run.wait_share for run in runs[way]),
        )
        for way in ways
    ]


def seconds_to(accuracy: float, run: Run) -> float:
    point = run.reached(accuracy)
    return math.inf if point is None else point.seconds


def sweep(setting: Setting, seeds: int) -> list[Row]:
    """How much sooner the target is reached, for loaders of several speeds."""
    print(f"to {100 * setting.target:g} %, noise {setting.noise:g}, medians of {seeds} runs;")
    print("gain: the time without a reservoir divided by the time with it")
    print("too slow" + "".join(f"{head:>15}" for head in ("", "time", "steps", "reuse", "waiting", "gain")))
    rows: list[Row] = []
    for slower in SWEEP:
        for row in measure(replace(setting, slower=slower), seeds):
            rows.append(row)
            cells = [
                row.way,
                f"{row.seconds:.1f} s" if row.seconds < math.inf else "never",
                f"{row.steps:.0f}",
                f"{row.reuse_mean:.1f}",
                f"{100 * row.wait_share:.0f} %",
                f"{row.gain:.2f}",
            ]
            print(f"{slower:>6g} x" + "".join(f"{cell:>15}" for cell in cells), flush=True)
    return rows


# ---------------------------------------------------------------------- the plot

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 60, 620, 30, 345
COLOURS = ("#b3541e", "#1f6f8b")


def plot(runs: dict[str, Run], target: float) -> str:
    """Accuracy over time, as an SVG."""
    end = max(run.points[-1].seconds for run in runs.values())
    every = next(step for step in (0.5, 1, 2, 5, 10, 20, 50, 100) if end / step <= 8 or step == 100)

    def x(seconds: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * seconds / end, 1)

    def y(accuracy: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * accuracy, 1)

    parts = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for percent in range(0, 101, 20):
        at = y(percent / 100)
        parts.append(f'<path d="M{LEFT} {at}H{RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{at + 4}" text-anchor="end">{percent}</text>')
    for number in range(int(end / every) + 1):
        at = x(number * every)
        parts.append(f'<path d="M{at} {BOTTOM}v5" stroke="#444"/>')
        parts.append(f'<text x="{at}" y="{BOTTOM + 19}" text-anchor="middle">{number * every:g}</text>')
    parts.append(f'<path d="M{LEFT} {TOP}V{BOTTOM}H{RIGHT}" fill="none" stroke="#444"/>')
    parts.append(f'<path d="M{LEFT} {y(target)}H{RIGHT}" stroke="#888" stroke-dasharray="4 4"/>')
    parts.append(f'<text x="{LEFT + 6}" y="{y(target) - 5}" fill="#666">{100 * target:g} %</text>')
    middle = (TOP + BOTTOM) / 2
    parts.append(f'<text x="{(LEFT + RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle">wall time, s</text>')
    turned = f'transform="translate(18 {middle}) rotate(-90)" text-anchor="middle"'
    parts.append(f"<text {turned}>accuracy on the test set, %</text>")
    for number, ((name, run), colour) in enumerate(zip(runs.items(), COLOURS, strict=True)):
        points = " ".join(f"{x(point.seconds)},{y(point.accuracy)}" for point in run.points)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        at = BOTTOM - 50 + 22 * number
        parts.append(f'<path d="M{RIGHT - 150} {at}h26" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{RIGHT - 116}" y="{at + 4}">{name}</text>')
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    )
    return f'{head} font-family="sans-serif" font-size="12" fill="#222">\n' + "\n".join(parts) + "\n</svg>\n"


def main(arguments: list[str] | None = None) -> Summary | list[Row]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--slower", type=float, default=4, help="how many times too slow the loader is (4)")
    parser.add_argument("--noise", type=float, default=0.3, help="the noise of each pixel; more is harder (0.3)")
    parser.add_argument("--svg", metavar="FILE", type=Path, help="write a plot of accuracy over time")
    parser.add_argument("--quick", action="store_true", help="shorter steps, and only to 90 %%")
    parser.add_argument("--sweep", action="store_true", help="loaders of several speeds; takes minutes")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each kind in the sweep (3)")
    given = parser.parse_args(arguments)
    setting = Setting(slower=given.slower, noise=given.noise)
    if given.quick:
        setting = replace(setting, step_s=0.003, target=0.9)
    if given.sweep:
        return sweep(replace(setting, limit_s=120), given.seeds)
    return compare(setting, given.svg)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
