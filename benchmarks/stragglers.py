"""How much of the possible work do ordered workers do, if one call in a hundred takes a hundred times as long?

2 000 calls of 2 ms on 8 threads, 1 % of them 200 ms (a remote store). The work that is possible is the sum of all
waits over 8. Contestants:
  ordered, as a user writes it        target: at least 0.8 of what is possible
  with prefetch(256)                  target: at least 0.8
  with ordered=False                  target: at least 0.8
A bare ThreadPoolExecutor with everything submitted at once is beside them: it keeps all results.
"""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor

from _measure import Bench

import penstock as ps

CALL_S, LATE, SHARE, WORKERS = 0.002, 100, 0.01, 8


def main() -> None:
    bench = Bench("stragglers", __doc__)
    n = bench.size(2_000, 400)
    rng = random.Random(0)
    # None in the last tenth: at the very end nobody can do anything but wait for a late one.
    late = {number for number in range(int(n * 0.9)) if rng.random() < SHARE}

    def call(sample: int) -> int:
        time.sleep(CALL_S * (LATE if sample in late else 1))
        return sample

    ideal_s = (n - len(late) + LATE * len(late)) * CALL_S / WORKERS

    def bare() -> int:
        with ThreadPoolExecutor(WORKERS) as pool:
            return sum(pool.map(call, range(n)))

    source = ps.from_sequence(range(n))
    contestants = {
        "ordered, by default": source.map(call, workers=WORKERS),
        "ordered, prefetch(256)": source.map(call, workers=WORKERS).prefetch(256),
        "ordered=False": source.map(call, workers=WORKERS, ordered=False),
    }
    bench.versus("a bare thread pool, all submitted at once", bare, ideal_s, at_least=0.8)
    for name, data in contestants.items():
        with data.loader() as loader:
            bench.versus(name, lambda loader=loader: sum(loader), ideal_s, at_least=0.8)  # type: ignore[misc]
    bench.finish()


if __name__ == "__main__":
    main()
