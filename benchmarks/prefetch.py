"""Does prefetch(n) ever slow a pipeline down?

Each pipeline with prefetch(n) behind it against the same pipeline without, for one epoch, its start included.
The ratio of the rates is to be at least 0.95, the noise of a run. `prefetch(n)` keeps up to n finished batches
ready; work in flight comes on top of that.
  16 threads that wait 5 ms, with prefetch(2)
  three cheap maps on 4 threads, with prefetch(4), in batches of 64 and sample by sample
  two processes that decode nothing, with prefetch(1)
"""

from __future__ import annotations

import time
from typing import Any

from _measure import Bench

import penstock as ps


def waits(sample: int) -> int:
    time.sleep(0.005)
    return sample


def one_more(sample: int) -> int:
    return sample + 1


def works(sample: int) -> int:
    return sum(range(sample % 1000 + 2000)) * 0 + sample


def read(data: ps.Pipeline[Any]) -> int:
    """All samples of one epoch, by workers that start and end with it.

    A loader that is kept makes as much of its next epoch as there is room for, while the other side runs.
    """
    return sum(1 for _ in data)


def main() -> None:
    bench = Bench("prefetch", __doc__)
    few, many = bench.size(3_000, 300), bench.size(400_000, 20_000)
    numbers = ps.from_sequence(range(many))
    cheap = numbers.map(one_more, workers=4).map(one_more).map(one_more)
    pipelines = {
        "16 waiting threads, prefetch(2)": (ps.from_sequence(range(few)).map(waits, workers=16), 2),
        "three cheap maps in batches, prefetch(4)": (cheap.batch(64), 4),
        "three cheap maps sample by sample, prefetch(4)": (cheap, 4),
        "two processes, prefetch(1)": (ps.from_sequence(range(few)).map(works, on="process", workers=2), 1),
    }
    for name, (data, ready) in pipelines.items():
        ours = data.prefetch(ready)
        bench.versus(name, lambda ours=ours: read(ours), lambda data=data: read(data), at_least=0.95)  # type: ignore[misc]
    bench.finish()


if __name__ == "__main__":
    main()
