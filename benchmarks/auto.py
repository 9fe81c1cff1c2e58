"""Does workers="auto" find as good a number of workers as somebody who tries them all?

Contestants: samples per second in the seconds 8 to 10 after the first sample
  four stages that wait 1, 12, 4 and 2 ms per sample
    best    numbers in proportion to these times, times 1, 2, 4, 8: those with the best median
    ours    workers="auto" for all four                     target: the best is at most 1.11 times as fast
  four stages of pure Python on processes, the dearest eight times as expensive as the cheapest
    best    1, 1, 1, 1 processes, 1, 2, 1, 1, and 2 for each: those with the best median
    ours    workers="auto" for all four                     target: the same
  of ours, in the same seconds:
    changes of a number of workers                          target: none
    CPU time that this process and its workers used, as a share of the CPUs there are: below 1.05
Also printed: why the search ended, and the workers it has found.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

from _measure import Bench

import penstock as ps
from penstock.machine import usable_cpus

WAITS_MS = (1, 12, 4, 2)
#: how often the numbers of workers are looked at
LOOK_S = 0.2
#: the place of workers="auto" among the numbers by hand
_OURS = -1
LOOPS = (2_000, 16_000, 6_000, 4_000)


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


class Seen(NamedTuple):
    """What was seen between two moments of a run."""

    rate: float
    #: how often the workers of a stage were another number than before
    changes: int
    #: CPU seconds per second
    cores: float


def run(data: ps.Pipeline[int], from_s: float, until_s: float) -> Seen:
    """What was seen between two moments of a run, which begins with its first sample."""
    count, changes, first = 0, 0, 0.0
    before: dict[str, float] = {}
    with data.loader() as loader:
        samples = iter(loader)
        next(samples)
        began = time.perf_counter()
        for _ in samples:
            now = time.perf_counter() - began
            if now < from_s:
                continue
            if not before:
                first, before = now, loader.stats()
                workers, looked = _workers(before), now
            count += 1
            if now >= looked + LOOK_S:
                looked, found = now, _workers(loader.stats())
                changes, workers = changes + (found != workers), found
            if now >= first + until_s - from_s:
                break
        cores = (loader.stats()["cpu_s"] - before["cpu_s"]) / (now - first)
        note = next((note for note in loader.explain().plan.notes if "workers='auto'" in note), "")
    if note:
        print(f"    {' '.join(note.split())}", file=sys.stderr)
    return Seen(count / (now - first), changes, cores)


def _workers(stats: dict[str, float]) -> list[float]:
    return [stats[f"stage.op{number}.workers"] for number in range(len(WAITS_MS))]


def main() -> None:
    bench = Bench("auto", __doc__)
    long, short = bench.size(8, 2), bench.size(2, 1)
    by_hand = [[times * share for share in WAITS_MS] for times in (1, 2, 4, 8)]
    cases = {
        "waiting": ([waits(ms) for ms in WAITS_MS], by_hand, "thread"),
        "computing": ([computes(loops) for loops in LOOPS], [[1, 1, 1, 1], [1, 2, 1, 1], [2, 2, 2, 2]], "process"),
    }
    for name, (functions, hands, on) in cases.items():
        if not bench.wanted(name):
            continue
        ratios: list[list[float]] = [[] for _ in hands]
        found = []
        for pair in range(bench.pairs):
            # Half of them run before the one they are compared with, and half after it, by turns.
            order = [*range(len(hands))] if pair % 2 else [*reversed(range(len(hands)))]
            order.insert(len(hands) // 2, _OURS)
            rates = {}
            for number in order:
                if number == _OURS:
                    found.append(run(pipeline(functions, ["auto"] * len(functions), on), long, long + short))
                else:
                    rates[number] = run(pipeline(functions, hands[number], on), 1, 1 + short).rate
            for number, rate in rates.items():
                ratios[number].append(rate / found[-1].rate)
        for hand, values in zip(hands, ratios, strict=True):
            print(f"    {hand}: {median(values):.3f} x", file=sys.stderr)
        bench.limit(f"{name}: the best numbers by hand", max(ratios, key=median), below=1 / 0.9, unit="x")
        bench.limit(f"{name}: changes", [seen.changes for seen in found], below=0.5, unit="")
        bench.limit(f"{name}: CPUs used", [seen.cores / usable_cpus() for seen in found], below=1.05, unit="x")
    bench.finish()


if __name__ == "__main__":
    main()
