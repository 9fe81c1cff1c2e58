"""What the contestants of formats.py have in common: how samples are counted and held, and what is timed apart."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

BATCH = 256
ROWS = 1024


def held(samples: Iterable[Any]) -> int:
    """The number of samples. As many as a batch has are held at once, so the memory of each is new, as in training.

    Both sides are read by this loop, or by `rows_in`.
    """
    number, batch = 0, []
    for sample in samples:
        batch.append(sample)
        if len(batch) == BATCH:
            number += BATCH
            batch = []
    return number + len(batch)


def rows_in(batches: Iterable[Any]) -> int:
    """The rows of all batches. A batch is held until the next one is there, as a training loop holds it.

    Both sides are read by this loop. A bare loop that lets go of each batch at once gets the same memory for the
    next one, which the processor still has in its cache; no training loop does that.
    """
    number = 0
    for batch in batches:
        number += len(next(iter(batch.values())) if isinstance(batch, dict) else batch)
    return number


#: How often one run reads data that takes some 10 ms to read, on both sides: otherwise most of what is measured is
#: how long a loader takes to start and to close, about 2 ms, which is the question of startup.py.
PASSES = 8


def ours(pipeline: Any, passes: int = 1) -> Callable[[], int]:
    def run() -> int:
        with pipeline.loader(epochs=passes) as loader:
            return sum(held(loader) for _ in range(passes))

    return run


def indexed(name: str, pipeline: Any) -> Any:
    """`pipeline`, after its index has been made, which is timed."""
    start = time.perf_counter()
    samples = len(pipeline)
    took = time.perf_counter() - start
    print(f"  index of {name}: {took:.2f} s, {took / max(samples, 1) * 1e6:.1f} us per sample", flush=True)
    return pipeline


def rows_of(make: Callable[[], Any], passes: int = 1, **options: Any) -> Callable[[], int]:
    """Batches of a new pipeline each time, so that nothing is left decoded from the run before."""

    def run() -> int:
        with make().batch(ROWS).loader(epochs=passes, **options) as loader:
            return rows_in(batch for _ in range(passes) for batch in loader)

    return run


#: whether this system can take a file out of the page cache
CAN_BE_COLD = hasattr(os, "posix_fadvise")


class Cold:
    """A contestant that finds nothing of its files in the page cache."""

    def __init__(self, run: Callable[[], int], paths: Sequence[str | Path]) -> None:
        self._run = run
        self._paths = paths

    def prepare(self) -> None:
        for path in self._paths:
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)  # what is not on the disk yet would stay
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)

    def __call__(self) -> int:
        return self._run()
