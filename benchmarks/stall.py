"""How long does a training loop wait for data, when that is made unevenly or too slowly?

The loop: steps that sleep 10 ms, as if an accelerator worked; batches of 64 samples of 64 x 64 x 3 bytes. Two
workers make the samples. 3 of every 14 batches, at places drawn with a seed, take 15 times as long as the others:
  uneven      2 ms or 30 ms of wall time per batch, 8 ms in the mean: quick enough but for the bursts
  too slow    5 ms or 75 ms, 20 ms in the mean: twice as long as a step
With two workers, each takes twice that for a batch of its own. Two kinds of production:
  sleep       the first sample of a batch waits for the whole of it, like a read that brings 64 samples
  burn        every sample is a number of turns of a loop in a worker process; these fill both cores
Contestants, each with 16 batches ahead:
  no loader   copies a batch that is there: what waits here, the machine has delayed
  plain loop  makes the samples itself, between the steps
  prefetch    map(...).batch(64).prefetch(16)
  reservoir   map(...).reservoir(1024).batch(64)     targets: total time below 1.03 of that of the steps alone;
              less than 1 % of the steps wait more than 1 ms; samples are served about once, or twice if too slow
  torch       DataLoader(num_workers=2, prefetch_factor=8); trw's SequenceAsyncReservoir, if installed
In every round each of them runs once, and so do the steps without any loader: a sleep takes longer than it says,
so these, and not 10 ms, are the ideal. The clock starts behind the first batch and its step, when workers are up
and the reservoir has had its `min_fill`. Where production alone takes 1.25 times what it should in most rounds,
other programs had the cores, and the case is not measured.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from random import Random
from statistics import median
from typing import Any

import numpy as np
from _measure import Bench, Result
from cpu_bound import spin, turns_in
from numpy.typing import NDArray

import penstock as ps

STEP_S = 0.010
WORKERS, BATCH, DEPTH = 2, 64, 16
SHAPE = (64, 64, 3)
#: of so many batches, so many are slow, and take so many times as long
BLOCK, SLOW, TIMES = 14, 3, 15
#: a step that waits longer is counted
NOTICED_S = 0.001
#: production that takes so many times as long as it should, without any loader, lacked cores
LATE = 1.25
ENDLESS = 10_000_000


class Production:
    """Makes a sample from its number. Is a data set as well.

    `mean_s` is what a batch takes when all workers make batches. Which of them are slow hangs on `seed`.
    """

    def __init__(self, mean_s: float, seed: int, turns_per_s: float | None = None) -> None:
        quick_s = WORKERS * mean_s * BLOCK / (BLOCK - SLOW + SLOW * TIMES)
        block = [quick_s] * (BLOCK - SLOW) + [quick_s * TIMES] * SLOW
        rng = Random(seed)
        self.batch_s = [seconds for _ in range(100) for seconds in rng.sample(block, BLOCK)]
        self.turns_per_s = turns_per_s

    def __call__(self, i: int) -> NDArray[np.uint8]:
        number, place = divmod(int(i), BATCH)
        seconds = self.batch_s[number % len(self.batch_s)]
        if self.turns_per_s is not None:
            spin(round(self.turns_per_s * seconds / BATCH))
        elif place == 0:
            time.sleep(seconds)
        return np.full(SHAPE, number & 255, np.uint8)

    def batch(self, number: int) -> NDArray[np.uint8]:
        return np.stack([self(i) for i in range(number * BATCH, (number + 1) * BATCH)])

    def nothing(self, number: int) -> None:
        """Make a batch and leave it where it is."""
        self.batch(number)

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, i: int) -> NDArray[np.uint8]:
        if i >= ENDLESS:
            raise IndexError(i)
        return self(i)


# ---------------------------------------------------------------------- contestants: streams without an end

#: batches, and what their loader counts
Opened = AbstractContextManager[tuple[Iterator[Any], Callable[[], dict[str, float]]]]


@contextmanager
def no_loader(work: Production) -> Iterator[Any]:
    ready = np.ones((BATCH, *SHAPE), np.uint8)
    yield (ready.copy() for _ in range(ENDLESS)), dict


@contextmanager
def plain_loop(work: Production) -> Iterator[Any]:
    yield map(work.batch, range(ENDLESS)), dict


@contextmanager
def penstock_loader(work: Production, *, reservoir: bool) -> Iterator[Any]:
    on = "thread" if work.turns_per_s is None else "process"
    samples = ps.from_sequence(range(ENDLESS)).map(work, on=on, workers=WORKERS)
    kept = samples.reservoir(DEPTH * BATCH).batch(BATCH) if reservoir else samples.batch(BATCH).prefetch(DEPTH)
    with kept.loader() as loader:
        yield iter(loader), loader.stats


@contextmanager
def torch_loader(work: Production) -> Iterator[Any]:
    from torch.utils.data import DataLoader

    ahead = DEPTH // WORKERS
    stream = iter(DataLoader(work, BATCH, num_workers=WORKERS, prefetch_factor=ahead))  # type: ignore[arg-type]
    yield stream, dict
    stream._shutdown_workers()


@contextmanager
def trw_reservoir(work: Production) -> Iterator[Any]:
    """Its reservoir holds what a job returns, here a batch. Results are fetched when an iteration begins."""
    import collections
    import collections.abc

    for name in collections.abc.__all__:  # It was written for Python 3.7.
        setattr(collections, name, getattr(collections.abc, name))
    from trw.train import SamplerSequential, SequenceArray, SequenceAsyncReservoir

    numbers = SequenceArray({"number": np.arange(100_000)}, sampler=SamplerSequential())
    data = SequenceAsyncReservoir(
        numbers,
        DEPTH,
        partial(_trw_batch, work),
        min_reservoir_samples=DEPTH // 2,
        nb_workers=WORKERS,
        max_jobs_at_once=DEPTH,
    )
    yield (job["x"] for _ in range(ENDLESS) for (job,) in data), dict
    data.close()


def _trw_batch(work: Production, job: Any) -> dict[str, Any]:
    return {"x": work.batch(int(job["number"][0]))}


CONTESTANTS: dict[str, Callable[[Production], Opened]] = {
    "no loader": no_loader,
    "plain loop": plain_loop,
    "prefetch": partial(penstock_loader, reservoir=False),
    "reservoir": partial(penstock_loader, reservoir=True),
    "torch DataLoader": torch_loader,
    "trw": trw_reservoir,
}
NEEDS = {"torch DataLoader": "torch", "trw": "trw"}


# ---------------------------------------------------------------------- the training loop


def steps_alone(steps: int) -> float:
    """What so many steps take without any loader, in seconds."""
    start = time.perf_counter()
    for _ in range(steps):
        time.sleep(STEP_S)
    return time.perf_counter() - start


def trained(opened: Opened, steps: int, alone_s: float) -> dict[str, float]:
    """Train so many steps and tell how that went."""
    gc.collect()
    waits = np.empty(steps)
    with opened as (stream, stats):
        next(stream)
        time.sleep(STEP_S)
        start = time.perf_counter()
        for step in range(steps):
            before = time.perf_counter()
            batch = next(stream)
            waits[step] = time.perf_counter() - before
            if tuple(batch.shape) != (BATCH, *SHAPE):
                raise AssertionError(f"expected a batch of {(BATCH, *SHAPE)}, got one of {tuple(batch.shape)}")
            time.sleep(STEP_S)
        total_s = time.perf_counter() - start
        counted = stats()
    return {
        "total": total_s / alone_s,
        "waited_percent": 100 * float(np.mean(waits > NOTICED_S)),
        "mean_ms": 1e3 * float(waits.mean()),
        "median_ms": 1e3 * float(np.median(waits)),
        "largest_ms": 1e3 * float(waits.max()),
        **{name: counted[key] for name in REUSE if (key := f"reservoir.{name}") in counted},
    }


REUSE = ("reuse_mean", "fresh_share", "reuse_max")


# ---------------------------------------------------------------------- the question


@dataclass
class Case:
    """One way to make batches, and how all contestants fared with it, a dict per round."""

    name: str
    mean_s: float
    most_reuse: float
    turns_per_s: float | None = None
    step_ms: list[float] = field(default_factory=list)
    batch_ms: list[float] = field(default_factory=list)
    runs: dict[str, list[dict[str, float]]] = field(default_factory=dict)

    def round(self, number: int, steps: int, names: list[str]) -> None:
        """Every contestant once, each going first in turn."""
        work = Production(self.mean_s, number, self.turns_per_s)
        self.batch_ms.append(self._production_alone(work, 5 * BLOCK))
        alone_s = steps_alone(steps)
        self.step_ms.append(1e3 * alone_s / steps)
        first = number % len(names)
        for name in names[first:] + names[:first]:
            # A plain loop has nothing ahead that could run out: fewer steps tell as much.
            few = 3 * BLOCK if name == "plain loop" else steps
            run = trained(CONTESTANTS[name](work), few, alone_s * few / steps)
            self.runs.setdefault(name, []).append(run)

    def _production_alone(self, work: Production, batches: int) -> float:
        """What a batch takes when nobody takes it, in milliseconds."""
        with self._executor() as executor:
            list(executor.map(work.nothing, range(WORKERS)))
            start = time.perf_counter()
            list(executor.map(work.nothing, range(batches)))
            return 1e3 * (time.perf_counter() - start) / batches

    def _executor(self) -> Executor:
        if self.turns_per_s is None:
            return ThreadPoolExecutor(WORKERS)
        return ProcessPoolExecutor(WORKERS, get_context("fork"))

    def told(self, bench: Bench) -> None:
        print(
            f"  {self.name}: a step alone takes {median(self.step_ms):.2f} ms, "
            f"production alone {median(self.batch_ms):.2f} ms a batch; medians of {len(self.step_ms)} rounds:\n"
            f"    {'':<18} {'total/ideal':>11} {'waits > 1 ms':>13} {'median':>10} {'largest':>10}",
            flush=True,
        )
        for name, runs in self.runs.items():
            mid = {key: median(run[key] for run in runs) for key in runs[0]}
            reuse = "".join(f"  {key} {mid[key]:.3g}" for key in REUSE if key in mid)
            print(
                f"    {name:<18} {mid['total']:>11.3f} {mid['waited_percent']:>11.1f} % "
                f"{mid['median_ms']:>7.2f} ms {mid['largest_ms']:>7.1f} ms{reuse}",
                flush=True,
            )
        for name, runs in self.runs.items():
            self._result(bench, name, "total", 1.03 if name == "reservoir" else 60, runs)
        ours = self.runs["reservoir"]
        self._result(bench, "reservoir, steps that wait", "waited_percent", 1, ours, unit="%")
        self._result(bench, "reservoir, mean use", "reuse_mean", self.most_reuse, ours)

    def _result(
        self, bench: Bench, name: str, key: str, below: float, runs: list[dict[str, float]], unit: str = "x"
    ) -> None:
        """Record one quantity. Where the cores were not there to be had, production was not what it is called."""
        slow = sum(batch_ms > LATE * 1e3 * self.mean_s for batch_ms in self.batch_ms)
        measured = slow <= len(self.batch_ms) // 2
        values = [run[key] for run in runs]
        lost = 0 if measured else slow
        full = f"{self.name}: {name}"
        result = Result(full, values, below, False, unit, runs=runs, discarded=lost, measured=measured)
        bench.results.append(result)
        print(result.line(), flush=True)


def main() -> None:
    warnings.filterwarnings("ignore", category=DeprecationWarning)  # of peers that fork
    bench = Bench("stall", __doc__)
    steps = bench.size(15 * BLOCK, quick=3 * BLOCK)
    missing = [name for name, module in NEEDS.items() if find_spec(module) is None]
    for name in missing:
        print(f"  {name}: not installed", flush=True)
    names = [name for name in CONTESTANTS if name not in missing]
    turns_per_s = turns_in(1.0)
    for kind, turns in (("sleep", None), ("burn", turns_per_s)):
        for pace, mean_s, most_reuse in (("uneven", 0.008, 1.1), ("too slow", 0.020, 2.2)):
            case = Case(f"{kind}, {pace}", mean_s, most_reuse, turns)
            for number in range(bench.pairs):
                case.round(number, steps, names)
            case.told(bench)
    bench.finish()


if __name__ == "__main__":
    main()
