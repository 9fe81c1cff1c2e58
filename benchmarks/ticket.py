"""What does a ticket cost, where every call is a ticket of its own?

CPU seconds per sample, and Python calls per ticket. Contestants:
  64 calls that wait 5 ms, kept in flight and in order
    bare    concurrent.futures.ThreadPoolExecutor(64); for `async def`, tasks of a bare asyncio loop
    ours    map(workers=64) on threads                target: at most 1.2 times the CPU of the bare side
            map(async def, workers=64)                target: at most 2 times
  4 threads with calls that take 2 ms of numpy
    bare    ThreadPoolExecutor(4)
    ours    map(workers=4)                            target: at most 1.2 times
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from _measure import Bench

import penstock as ps

WAIT_S, NUMPY_S = 0.005, 0.002
IN_FLIGHT, THREADS = 64, 4


def waits(sample: int) -> int:
    time.sleep(WAIT_S)
    return sample


async def waits_async(sample: int) -> int:
    await asyncio.sleep(WAIT_S)
    return sample


def numpy_work() -> Callable[[int], int]:
    """A function that takes about `NUMPY_S` of numpy, which lets go of the interpreter lock."""
    size = 1 << 14
    while True:
        data = np.random.default_rng(0).random(size)
        began = time.perf_counter()
        for _ in range(5):
            np.sort(data)
        if (time.perf_counter() - began) / 5 >= NUMPY_S:
            break
        size = int(size * 1.3)

    def work(sample: int) -> int:
        np.sort(data)
        return sample

    return work


def in_order(pool: ThreadPoolExecutor, fn: Callable[[int], int], n: int, ahead: int) -> Iterator[int]:
    """What `fn` returns for 0 to n - 1, with so many calls submitted ahead."""
    pending: deque[Any] = deque()
    for sample in range(n):
        pending.append(pool.submit(fn, sample))
        if len(pending) >= ahead:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


async def in_order_async(n: int) -> int:
    pending: deque[asyncio.Task[int]] = deque()
    total = 0
    for sample in range(n):
        pending.append(asyncio.create_task(waits_async(sample)))
        if len(pending) >= IN_FLIGHT:
            total += await pending.popleft()
    while pending:
        total += await pending.popleft()
    return total


class Executor:
    """The bare side. Both sides start their workers in every run.

    A loader that is kept would make a part of its next epoch while the other side runs, at the other's expense.
    """

    def __init__(self, fn: Callable[[int], int], n: int, workers: int) -> None:
        self.fn, self.n, self.workers = fn, n, workers

    def __call__(self) -> int:
        with ThreadPoolExecutor(self.workers) as pool:
            return sum(in_order(pool, self.fn, self.n, 2 * self.workers))


class Ours:
    def __init__(self, fn: Any, n: int, workers: int) -> None:
        self.data = ps.from_sequence(range(n)).map(fn, workers=workers)

    def __call__(self) -> int:
        return sum(self.data)


def cpu_ratios(bench: Bench, ours: Callable[[], int], bare: Callable[[], int]) -> list[float]:
    """Our CPU seconds over those of the bare side, in alternating pairs."""

    def cpu_s(side: Callable[[], int]) -> tuple[float, int]:
        began = time.process_time()
        outcome = side()
        return time.process_time() - began, outcome

    cpu_s(ours), cpu_s(bare)
    ratios = []
    for number in range(bench.pairs):
        (first, one), (second, other) = (
            (cpu_s(ours), cpu_s(bare)) if number % 2 else tuple(reversed((cpu_s(bare), cpu_s(ours))))
        )
        assert one == other
        ratios.append(first / second)
    return ratios


def calls_per_ticket(fn: Callable[[int], int], workers: int, n: int) -> float:
    """Python and C calls of all threads per sample, without those of the function, and without the start."""
    counts: dict[int, int] = {}

    def count(frame: Any, event: str, arg: Any) -> None:
        if event in ("call", "c_call"):
            ident = threading.get_ident()
            counts[ident] = counts.get(ident, 0) + 1

    def calls(run: Callable[[], object]) -> int:
        counts.clear()
        run()
        return sum(counts.values())

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        short, long = (calls(Ours(fn, length, workers)) for length in (n // 2, n))
        own = calls(lambda: fn(0)) - 1
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return (long - short) / (n - n // 2) - own


def main() -> None:
    bench = Bench("ticket", __doc__)
    n = bench.size(16_000, 400)
    work = numpy_work()
    bench.limit(
        "64 waits on threads: CPU of a bare pool",
        cpu_ratios(bench, Ours(waits, n, IN_FLIGHT), Executor(waits, n, IN_FLIGHT)),
        below=1.2,
        unit="x",
    )
    bench.limit(
        "64 waits of async def: CPU of bare asyncio",
        cpu_ratios(bench, Ours(waits_async, n, IN_FLIGHT), lambda: asyncio.run(in_order_async(n))),
        below=2.0,
        unit="x",
    )
    few = n // 16
    bench.limit(
        "4 threads of numpy: CPU of a bare pool",
        cpu_ratios(bench, Ours(work, few, THREADS), Executor(work, few, THREADS)),
        below=1.2,
        unit="x",
    )
    bench.limit("calls per ticket, 4 threads", [calls_per_ticket(waits, THREADS, few)], below=80, unit="")
    bench.finish()


if __name__ == "__main__":
    main()
