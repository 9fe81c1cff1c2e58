"""What does the library itself cost per sample, when the work is next to nothing?

Contestants: 2 million integers through three `x + 1` calls, in int64 batches of 64;
  bare    a plain `for` loop that makes the same calls and the same batches
  ours    the three maps fused into one stage of 4 threads        target: at least 0.8 of the bare rate
          the three maps forced apart into stages of 4 threads    target: at least 0.4
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from _measure import Bench

import penstock as ps

BATCH = 64


def add_one(x: int) -> int:
    return x + 1


def plain_loop(n: int) -> Iterator[Any]:
    """What a user would write by hand."""
    row: list[int] = []
    for x in range(n):
        row.append(add_one(add_one(add_one(x))))
        if len(row) == BATCH:
            yield np.array(row, dtype=np.int64)
            row = []
    if row:
        yield np.array(row, dtype=np.int64)


def consume(batches: Iterable[Any]) -> tuple[int, int, str]:
    """Read all batches; equal for both sides if the batches are of the same kind, order and content."""
    samples, lasts, kind = 0, 0, ""
    for i, batch in enumerate(batches):
        samples += len(batch)
        lasts += i * int(batch[-1])
        kind = f"{type(batch).__name__} of {batch.dtype}"
    return samples, lasts, kind


def main() -> None:
    bench = Bench("overhead", __doc__)
    n = bench.size(2_000_000, quick=200_000)
    integers = ps.from_sequence(range(n))
    fused = integers.map(add_one, workers=4).map(add_one).map(add_one).batch(BATCH)
    apart = integers.map(add_one, workers=4).map(add_one, workers=4).map(add_one, workers=4).batch(BATCH)

    bench.versus("3 maps, one stage", lambda: consume(fused), lambda: consume(plain_loop(n)), at_least=0.8)
    bench.versus("3 maps, three stages", lambda: consume(apart), lambda: consume(plain_loop(n)), at_least=0.4)
    bench.finish()


if __name__ == "__main__":
    main()
