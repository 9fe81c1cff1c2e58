"""What does the library itself cost per sample, when the work is next to nothing?

Contestants: 2 million integers through three `x + 1` calls, in int64 batches of 64;
  bare    a plain `for` loop that makes the same calls and the same batches
  ours    the three maps fused into one stage of 4 threads        target: at least 1.0 of the bare rate
          the same with prefetch(4)                               target: at least 0.7
          the three maps forced apart into stages of 4 threads    target: at least 0.6
          three maps of `async def` in one stage                  target: at least 0.3
  For comparison, with no target: the three calls written out in one loop over lists of 8192, and batches cut from
  these, which is the least that a fused stage has to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from _measure import Bench

import penstock as ps

BATCH, CHUNK = 64, 8192


def add_one(x: int) -> int:
    return x + 1


async def add_one_async(x: int) -> int:
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


def written_out(n: int) -> Iterator[Any]:
    """The same by the chunk: what a fused stage does, without a library around it."""
    for first in range(0, n, CHUNK):
        out: list[int] = []
        for x in range(first, min(first + CHUNK, n)):
            out.append(add_one(add_one(add_one(x))))
        for start in range(0, len(out), BATCH):
            yield np.array(out[start : start + BATCH])


def consume(batches: Iterable[Any]) -> tuple[int, int, str]:
    """Read all batches; equal for both sides if the batches are of the same kind, order and content."""
    samples = lasts = 0
    batch: Any = None
    for i, batch in enumerate(batches):
        samples += len(batch)
        lasts += i * int(batch[-1])
    return samples, lasts, f"{type(batch).__name__} of {batch.dtype}"


def main() -> None:
    bench = Bench("overhead", __doc__)
    n = bench.size(2_000_000, quick=200_000)
    integers = ps.from_sequence(range(n))
    fused = integers.map(add_one, workers=4).map(add_one).map(add_one).batch(BATCH)
    apart = integers.map(add_one, workers=4).map(add_one, workers=4).map(add_one, workers=4).batch(BATCH)
    awaited = integers.map(add_one_async, workers=4).map(add_one_async).map(add_one_async).batch(BATCH)
    for name, ours, least in (
        ("3 maps, one stage", fused, 1.0),
        ("3 maps, one stage, prefetch(4)", fused.prefetch(4), 0.7),
        ("3 maps, three stages", apart, 0.6),
        ("3 maps of async def, one stage", awaited, 0.3),
    ):
        bench.versus(name, lambda ours=ours: consume(ours), lambda: consume(plain_loop(n)), at_least=least)
    bench.versus(
        "for comparison: written out", lambda: consume(written_out(n)), lambda: consume(plain_loop(n)), at_least=0
    )
    bench.finish()


if __name__ == "__main__":
    main()
