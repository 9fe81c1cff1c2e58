"""The two runs of ``penstock demo``: one plain loop, then the same work with penstock.

Both feed the same stand-in for an accelerator: a step is a sleep, so that like a real one it takes
time and no CPU. Nothing here prints; a ``progress`` function is told after every step.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

import penstock as ps
from penstock.cli.showcase.photos import augment, load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import TypeAlias

    Progress: TypeAlias = Callable[[int, float], None]


@dataclass(frozen=True, slots=True)
class Run:
    """When each step began, in seconds since the run's start, and how long all of it took."""

    begun: tuple[float, ...]
    step_s: float
    elapsed_s: float

    @property
    def busy_share(self) -> float:
        """The share of the time in which the accelerator had something to do."""
        return min(1.0, len(self.begun) * self.step_s / self.elapsed_s)

    @property
    def steps_per_s(self) -> float:
        return len(self.begun) / self.elapsed_s


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def plain_batches(paths: Sequence[str], size: int) -> Iterator[Any]:
    """What one writes without a loader: shuffle, read, decode, augment and stack, epoch after epoch."""
    rng = np.random.default_rng(0)
    for _ in count():
        order = rng.permutation(len(paths))
        for first in range(0, len(order), size):
            yield np.stack([augment(load(paths[i]), rng) for i in order[first : first + size]])


def pipeline(paths: Sequence[str], size: int, workers: int) -> ps.Pipeline[Any]:
    """The same with penstock."""
    return ps.from_sequence(paths).shuffle().map(load, workers=workers).map(augment, rng=True).batch(size)


def suitable_step_s(paths: Sequence[str], size: int, workers: int) -> float:
    """A step as long as the cores need to make its batch, with a little to spare.

    Shorter, and data would limit however it is loaded; longer, and there would be nothing to gain.
    """
    batches = plain_batches(paths, size)
    times = []
    for _ in range(6):
        began = time.perf_counter()
        next(batches)
        times.append(time.perf_counter() - began)
    # The median: the first batches pay for warming up, and any one may be disturbed.
    return 1.2 * statistics.median(times) / min(workers, cores())


def feed(
    batches: Iterable[Any],
    step_s: float,
    progress: Progress,
    *,
    seconds: float = math.inf,
    steps: float = math.inf,
) -> Run:
    """Train on the batches until the time or the number of steps is reached."""
    begun: list[float] = []
    elapsed = 0.0
    start = time.perf_counter()
    for _ in batches:
        begun.append(time.perf_counter() - start)
        time.sleep(step_s)
        elapsed = time.perf_counter() - start
        progress(len(begun), elapsed)
        if elapsed >= seconds or len(begun) >= steps:
            break
    return Run(tuple(begun), step_s, elapsed)
