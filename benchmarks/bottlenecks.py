"""Does a diagnosis name the bottleneck, and the op inside its stage, in fifteen runs whose bottleneck is known?

Each run has one thing that limits it. The verdict has to name it, in the words that a user would look for.
  runs with another verdict      target: below 0.01 of them
A CPU quota is set by a real cgroup, where one can be made. Elsewhere it is simulated: all workers run on one CPU,
and the diagnosis is told that there are more and that a quota allows one.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
from _measure import Bench

import penstock as ps
from penstock.core import reporting
from penstock.machine import usable_cpus

NUMBERS = ps.from_sequence(range(10_000_000))
GROUP = "/sys/fs/cgroup/cpu/penstock-bottlenecks"


def wait(number: int) -> int:
    time.sleep(0.004)
    return number


def quick(number: int) -> int:
    return number


def python(number: int) -> int:
    count = 0
    while count < 20_000:
        count += 1
    return number


def uneven(number: int) -> int:
    time.sleep(0.08 if number % 40 == 0 else 0.0005)
    return number


def tailed(number: int) -> int:
    time.sleep(0.25 if number % 60 == 0 else 0.0005)
    return number


def fails(number: int) -> int:
    wait(number)
    if number % 2:
        raise ValueError(number)
    return number


def heavy(number: int) -> Any:
    time.sleep(0.01)
    return np.zeros(1_000_000, np.uint8)


def threaded(number: int) -> int:
    import cv2

    cv2.setNumThreads(2)  # our workers allow it one
    cv2.GaussianBlur(np.zeros((1500, 1500), np.float32), (31, 31), 5)
    return number


async def fetch(number: int) -> int:
    await asyncio.sleep(0.01)
    return number


def rows() -> Iterator[int]:
    for number in range(1_000_000):
        time.sleep(0.002)
        yield number


def slow_collate(samples: list[int]) -> list[int]:
    time.sleep(0.01)
    return samples


def hog() -> None:
    while True:
        python(0)


@contextmanager
def neighbours() -> Iterator[None]:
    """Other programs on all cores."""
    found = [multiprocessing.get_context("spawn").Process(target=hog, daemon=True) for _ in range(usable_cpus())]
    for one in found:
        one.start()
    time.sleep(1.0)
    try:
        yield
    finally:
        for one in found:
            one.kill()
            one.join()


@contextmanager
def quota() -> Iterator[None]:
    """Half a core for this process and all that it starts."""
    os.mkdir(GROUP)
    try:
        _write("cpu.cfs_quota_us", "50000")
        _write("cgroup.procs", str(os.getpid()))
        yield
    finally:
        _write("../cgroup.procs", str(os.getpid()))
        time.sleep(0.5)
        os.rmdir(GROUP)


@contextmanager
def simulated_quota() -> Iterator[None]:
    """One core for this process and all that it starts, which looks like a quota."""
    before, (quota, all_cpus) = os.sched_getaffinity(0), (reporting.cpu_quota, reporting.cpus)
    seen = all_cpus()
    os.sched_setaffinity(0, {min(before)})
    reporting.cpu_quota, reporting.cpus = (lambda: 1.0), (lambda: seen)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        reporting.cpu_quota, reporting.cpus = quota, all_cpus


def _write(name: str, text: str) -> None:
    with open(os.path.join(GROUP, name), "w") as file:
        file.write(text)


class Case(NamedTuple):
    """A run, what should be named as limiting, words of the advice, and the op that takes the time."""

    name: str
    loader: Callable[[], Any]
    step_s: float
    limiting: str
    words: str
    op: str = ""
    around: Callable[[], Any] = nullcontext


CASES = [
    Case(
        "slow source",
        lambda: ps.from_iterable(rows).map(quick, workers=4).batch(4).loader(),
        0.001,
        "quick",
        "rows",
    ),
    Case(
        "slow download", lambda: NUMBERS.map(fetch, workers=4).batch(4).loader(), 0.001, "fetch", "workers", "fetch"
    ),
    Case(
        "Python in threads",
        lambda: NUMBERS.map(python, workers=2).batch(8).loader(),
        0.0005,
        "python",
        "interpreter lock",
    ),
    Case(
        "Python in processes",
        lambda: NUMBERS.map(python, workers=usable_cpus(), on="process").batch(8).loader(),
        0.0005,
        "python",
        "would not help",
        "python",
    ),
    Case(
        "slow collate",
        lambda: NUMBERS.map(quick, workers=1).batch(4, collate=slow_collate).loader(),
        0.001,
        "batch",
        "workers",
        "batch",
    ),
    Case(
        "tiny buffers",
        lambda: NUMBERS.map(uneven, workers=4).batch(4).prefetch(1).loader(),
        0.006,
        "uneven",
        "prefetch(",
    ),
    Case(
        "heavy tail", lambda: NUMBERS.map(tailed, workers=4).batch(4).loader(), 0.006, "tailed", "calls of tailed"
    ),
    Case("slow step", lambda: NUMBERS.map(wait, workers=4).batch(2).loader(), 0.02, "training loop", "nothing"),
    Case(
        "memory bound",
        lambda: NUMBERS.map(heavy, workers=8).batch(2).loader(memory="5MB"),
        0.0,
        "heavy",
        "memory='5MB'",
    ),
    Case(
        "errors",
        lambda: NUMBERS.map(fails, workers=2, on_error="skip").batch(4).loader(),
        0.001,
        "fails",
        "of the samples fail",
        "fails",
    ),
    Case(
        "CPU quota",
        lambda: NUMBERS.map(python, workers=2, on="process").batch(8).loader(),
        0.0005,
        "python",
        "CPU quota",
        "python",
        quota,
    ),
    Case(
        "busy neighbours",
        lambda: NUMBERS.map(python, workers=usable_cpus(), on="process").batch(8).loader(),
        0.0005,
        "python",
        "would not help",
        "python",
        neighbours,
    ),
    Case(
        "threads of OpenCV",
        lambda: NUMBERS.map(threaded, workers=2, on="process").batch(2).loader(),
        0.0005,
        "threaded",
        "its libraries start threads",
        "threaded",
    ),
    Case(
        "a slow op rides with a quick one",
        lambda: NUMBERS.map(quick, workers=2).map(wait).map(quick, name="quick2").batch(4).loader(),
        0.001,
        "wait",
        "2 → ",
        "wait",
    ),
    Case(
        "a reservoir hides it",
        lambda: NUMBERS.map(wait, workers=1).reservoir(200, min_fill=20).batch(4).loader(),
        0.008,
        "training loop",
        "reservoir hides wait",
    ),
]


def run(case: Case, seconds: float) -> ps.Diagnosis:
    """A training loop of so many seconds from its first batch on."""
    began = None
    with case.around(), case.loader() as loader:
        for _ in loader:
            began = began or time.perf_counter()
            time.sleep(case.step_s)
            if time.perf_counter() - began > seconds:
                break
        return loader.diagnose()


def can_set_a_quota() -> bool:
    try:
        os.mkdir(GROUP)
        os.rmdir(GROUP)
    except OSError:
        return False
    return sys.platform == "linux"


def main() -> None:
    bench = Bench("bottlenecks", __doc__)
    seconds = bench.size(30, 15) / 10
    wrong = []
    for case in CASES:
        if not bench.wanted(case.name):
            continue
        if case.around is quota and not can_set_a_quota():
            print(f"  {case.name}: simulated, as no cgroup can be made here")
            case = case._replace(around=simulated_quota)
        for _ in range(bench.pairs):
            found = run(case, seconds)
            right = case.limiting in found.limiting and case.words in found.advice and case.op in found.limiting_op
            wrong.append(0.0 if right else 1.0)
            print(f"  {'ok   ' if right else 'WRONG'} {case.name}: {found.limiting_op or found.limiting}: ", end="")
            print(found.advice)
    bench.limit("runs with another verdict", [sum(wrong) / len(wrong)], below=0.01, unit="")
    bench.finish()


if __name__ == "__main__":
    main()
