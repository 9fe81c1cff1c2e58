"""Does workers="auto" find as good a number of workers as somebody who tries them all?

Contestants: samples per second in the seconds 8 to 10 of a run
  four stages that wait 1, 12, 4 and 2 ms per sample
    best    numbers in proportion to these times, times 1, 2, 4, 8: the fastest of them
    ours    workers="auto" for all four                     target: the best is at most 1.11 times as fast
  two stages of pure Python on processes, one four times as expensive as the other
    best    1 and 1, 1 and 2, 2 and 2 processes: the fastest of them
    ours    workers="auto" for both                         target: the same
Also printed: when the search ended, and the workers it has found.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from _measure import Bench

import penstock as ps

WAITS_MS = (1, 12, 4, 2)
LOOPS = (5_000, 20_000)


def waits(ms: int) -> Callable[[int], int]:
    def wait(sample: int) -> int:
        time.sleep(ms / 1000)
        return sample

    return wait


def computes(loops: int) -> Callable[[int], int]:
    def compute(sample: int) -> int:
        total = 0
        for i in range(loops):
            total += i
        return sample

    return compute


def pipeline(functions: Sequence[Callable[[int], int]], workers: Sequence[Any], on: str) -> ps.Pipeline[int]:
    data = ps.from_sequence(range(10**8))
    for number, (function, count) in enumerate(zip(functions, workers, strict=True)):
        data = data.map(function, workers=count, on=on, name=f"op{number}")
    return data


def rate(data: ps.Pipeline[int], from_s: float, until_s: float) -> float:
    """Samples per second between two moments of a run."""
    count, first = 0, 0.0
    with data.loader() as loader:
        began = time.perf_counter()
        for _ in loader:
            now = time.perf_counter() - began
            if now >= from_s:
                first = first or now
                count += 1
                if now >= until_s:
                    break
        notes = [line for line in str(loader.explain()).splitlines() if "workers='auto'" in line]
    if notes:
        print(f"    {notes[-1]}", file=sys.stderr)
    return count / (now - first)


def main() -> None:
    bench = Bench("auto", __doc__)
    long, short = bench.size(8, 2), bench.size(2, 1)
    by_hand = [[times * share for share in WAITS_MS] for times in (1, 2, 4, 8)]
    cases = {
        "four stages that wait": ([waits(ms) for ms in WAITS_MS], by_hand, "thread"),
        "two stages on processes": ([computes(loops) for loops in LOOPS], [[1, 1], [1, 2], [2, 2]], "process"),
    }
    for name, (functions, hands, on) in cases.items():
        ratios = []
        for _ in range(bench.pairs):
            best = max(rate(pipeline(functions, hand, on), 1, 1 + short) for hand in hands)
            found = rate(pipeline(functions, ["auto"] * len(functions), on), long, long + short)
            ratios.append(best / found)
        bench.limit(f"{name}: the best numbers by hand", ratios, below=1 / 0.9, unit="x")
    bench.finish()


if __name__ == "__main__":
    main()
