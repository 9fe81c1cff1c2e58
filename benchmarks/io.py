"""Does a stage that waits for storage keep all its workers waiting at once, and no more than that?

Contestants: 4000 calls that sleep 5 ms, 64 at a time, starting and closing the workers included;
  threads      against the ideal, 4000 * 5 ms / 64                target: at least 0.93, if a bare pool reaches it
               against a bare ThreadPoolExecutor                  target: at least 0.95
  bare pool    against the ideal, for comparison
  async def    against a bare asyncio loop with a semaphore       target: at least 0.95
The most calls ever seen in flight must not exceed 64: running more of them would be an easy way to win.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from _measure import Bench

import penstock as ps

SLEEP_S = 0.005
WIDTH = 64


def sleepy(i: int) -> int:
    time.sleep(SLEEP_S)
    return i


async def asleepy(i: int) -> int:
    await asyncio.sleep(SLEEP_S)
    return i


class Gauge:
    """Counts the calls in flight and remembers the most."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 0
        self.most = 0

    def _change(self, by: int) -> None:
        with self._lock:
            self._now += by
            self.most = max(self.most, self._now)

    def sleepy(self, i: int) -> int:
        self._change(+1)
        time.sleep(SLEEP_S)
        self._change(-1)
        return i

    async def asleepy(self, i: int) -> int:
        self._change(+1)
        await asyncio.sleep(SLEEP_S)
        self._change(-1)
        return i


def bare_pool(n: int) -> int:
    with ThreadPoolExecutor(WIDTH) as pool:
        return sum(pool.map(sleepy, range(n)))


def bare_asyncio(n: int) -> int:
    gate = asyncio.Semaphore(WIDTH)

    async def call(i: int) -> int:
        async with gate:
            return await asleepy(i)

    async def calls() -> list[int]:
        return await asyncio.gather(*(call(i) for i in range(n)))

    return sum(asyncio.run(calls()))


def main() -> None:
    bench = Bench("io", __doc__)
    n = bench.size(4000, quick=640)
    indices = ps.from_sequence(range(n))
    threads = indices.map(sleepy, workers=WIDTH)
    coroutines = indices.map(asleepy, on="async", workers=WIDTH)

    bench.versus("threads, ideal", lambda: sum(threads), n * SLEEP_S / WIDTH, at_least=0.93)
    bench.versus("threads, bare thread pool", lambda: sum(threads), lambda: bare_pool(n), at_least=0.95)
    bench.versus("for comparison: bare thread pool, ideal", lambda: bare_pool(n), n * SLEEP_S / WIDTH, at_least=0)
    bench.versus("async def, bare asyncio", lambda: sum(coroutines), lambda: bare_asyncio(n), at_least=0.95)
    by_threads, by_coroutines = Gauge(), Gauge()
    sum(indices.map(by_threads.sleepy, workers=WIDTH))
    sum(indices.map(by_coroutines.asleepy, on="async", workers=WIDTH))
    bench.limit("threads: most calls in flight", [by_threads.most], below=WIDTH + 1, unit="")
    bench.limit("async def: most calls in flight", [by_coroutines.most], below=WIDTH + 1, unit="")
    bench.finish()


if __name__ == "__main__":
    main()
