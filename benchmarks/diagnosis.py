"""Does a diagnosis name what limits a run, and does the gain that it predicts come true?

Runs with a known bottleneck, then the same with the change that the diagnosis advises, in turn; the training loop
sleeps, as one does that waits for an accelerator.
  where functions wait: how far the predicted gain is from the measured one      target: below 15 % of it
  where they compute, which other programs disturb: the runs in which the change made it no faster, or was not
  predicted to                                                                   target: below 0.01 of them
  runs in which another stage was blamed, or another change advised              target: below 0.01 of them
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from _measure import Bench

import penstock as ps

#: a gain that is one
FASTER = 1.05

NUMBERS = ps.from_sequence(range(10_000_000))


def wait(number: int) -> int:
    time.sleep(0.004)
    return number


def python(number: int) -> int:
    count = 0
    while count < 20_000:
        count += 1
    return number


def sort(number: int) -> int:
    np.sort(np.random.default_rng(0).random(60_000))
    return number


class Case(NamedTuple):
    """A run, the change that should be advised, the words that should advise it, and who is to blame."""

    name: str
    before: Callable[[], Any]
    after: Callable[[], Any]
    step_s: float
    blamed: str
    words: str
    computes: bool = False


CASES = (
    Case(
        "waiting, 1 thread to 4",
        lambda: NUMBERS.map(wait, workers=1).batch(4).loader(),
        lambda: NUMBERS.map(wait, workers=4).batch(4).loader(),
        0.004,
        "wait",
        "1 → 4 workers",
    ),
    Case(
        "numpy, 1 thread to 2",
        lambda: NUMBERS.map(sort, workers=1).batch(8).loader(),
        lambda: NUMBERS.map(sort, workers=2).batch(8).loader(),
        0.0005,
        "sort",
        "1 → 2 workers",
        computes=True,
    ),
    Case(
        "pure Python, 2 threads to 2 processes",
        lambda: NUMBERS.map(python, workers=2).batch(8).loader(),
        lambda: NUMBERS.map(python, workers=2, on="process").batch(8).loader(),
        0.0005,
        "python",
        'on="process", workers=2',
        computes=True,
    ),
    Case(
        "pure Python, 1 process to 2",
        lambda: NUMBERS.map(python, workers=1, on="process").batch(8).loader(),
        lambda: NUMBERS.map(python, workers=2, on="process").batch(8).loader(),
        0.0005,
        "python",
        "1 → 2 workers",
        computes=True,
    ),
    Case(
        "inline to a worker",
        lambda: NUMBERS.map(wait).batch(4).loader(inline=True),
        lambda: NUMBERS.map(wait, workers=1).batch(4).loader(),
        0.016,
        "wait",
        "workers=1",
    ),
    Case(
        "up to the next stage, 2 threads to 3",
        lambda: NUMBERS.map(wait, workers=2, name="slow").map(wait, workers=3, name="next").batch(4).loader(),
        lambda: NUMBERS.map(wait, workers=3, name="slow").map(wait, workers=3, name="next").batch(4).loader(),
        0.001,
        "slow",
        "2 → 3 workers",
    ),
)


def run(make: Callable[[], Any], step_s: float, seconds: float) -> ps.Diagnosis:
    """A training loop of so many seconds from its first batch on."""
    began = None
    with make() as loader:
        for _ in loader:
            began = began or time.perf_counter()
            time.sleep(step_s)
            if time.perf_counter() - began > seconds:
                break
        return loader.diagnose()


def main() -> None:
    bench = Bench("diagnosis", __doc__)
    seconds = bench.size(12, 8) / 10
    wrong = []
    for case in CASES:
        if not bench.wanted(case.name):
            continue
        off, astray = [], []
        for _ in range(bench.pairs):
            found = run(case.before, case.step_s, seconds)
            then = run(case.after, case.step_s, seconds)
            gain = then.samples_per_s / found.samples_per_s
            off.append(abs(found.expected_gain / gain - 1) * 100)
            astray.append(0.0 if min(found.expected_gain, gain) > FASTER else 1.0)
            right = case.blamed in found.limiting and case.words in found.advice
            wrong.append(0.0 if right else 1.0)
            print(f"    predicted {found.expected_gain:.2f}, came {gain:.2f}{'' if right else ': ' + found.advice}")
        if case.computes:
            bench.limit(f"no faster: {case.name}", [sum(astray) / len(astray)], below=0.01, unit="")
        else:
            bench.limit(f"predicted gain, off by: {case.name}", off, below=15, unit="%")
    bench.limit("runs that blamed or advised otherwise", [sum(wrong) / len(wrong)], below=0.01, unit="")
    bench.finish()


if __name__ == "__main__":
    main()
