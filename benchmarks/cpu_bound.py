"""Do processes give pure-Python work all their cores, and leave the training loop's interpreter alone?

Part 1: samples that take 2 ms of pure Python each, in batches of 16. What is fixed is the number of turns of a
loop, found once: spinning for 2 ms would hide whatever slows a worker down.
  ours    map(..., on=pool, workers=2).batch(16): a new loader on a pool of two warm processes, whole epochs
  bare    two warm processes, each with half the batches; nothing leaves them      target: at least 0.95
  torch, Grain if installed, with two warm workers                                 target: at least their rate
Part 2: a training loop whose step is 10 ms of pure Python; the loader's work is 8 ms of pure Python per batch
on one worker, so it keeps up on one core of its own. Against the same steps over a list of batches:
  loader(isolate=True)     target: at least 0.95
  loader(), a thread       for comparison; any rate will do
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from time import perf_counter
from typing import Any

import numpy as np
from _measure import BareProcesses, Bench
from numpy.typing import NDArray

import penstock as ps

WORKERS, BATCH = 2, 16
SAMPLE_S, STEP_S = 0.002, 0.010
#: of a step, what the loader's work for its batch takes
KEEPS_UP = 0.8
ENDLESS = 10_000_000


def spin(turns: int) -> int:
    total = 0
    for i in range(turns):
        total += i & 7
    return total


def turns_in(seconds: float) -> int:
    """How many turns take so long while nothing else runs."""
    turns = 20_000
    times = []
    for _ in range(50):
        start = perf_counter()
        spin(turns)
        times.append(perf_counter() - start)
    return round(turns * seconds / min(times))


class Work:
    """Makes a sample in so many turns. Is a data set as well."""

    def __init__(self, turns: int, size: int = ENDLESS) -> None:
        self.turns = turns
        self.size = size

    def __call__(self, i: int) -> NDArray[np.int64]:
        return np.array([int(i), spin(self.turns)])

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, i: int) -> NDArray[np.int64]:
        if i >= self.size:
            raise IndexError(i)
        return self(i)


# ---------------------------------------------------------------------- part 1


class Share:
    """What a bare process does: every other batch."""

    def __init__(self, work: Work, samples: int) -> None:
        self.work = work
        self.samples = samples

    def __call__(self, first: int) -> int:
        done = 0
        for start in range(first * BATCH, self.samples, WORKERS * BATCH):
            done += len(np.stack([self.work(i) for i in range(start, min(start + BATCH, self.samples))]))
        return done


class Taking:
    """A contestant: takes samples of a stream that is open, in whole batches."""

    def __init__(self, stream: Iterator[Any], samples: int) -> None:
        self.stream = stream
        self.batches = samples // BATCH

    def prepare(self) -> None:
        """What was made ahead does not count."""
        for _ in islice(self.stream, 8):
            pass

    def __call__(self) -> int:
        return sum(len(batch) for batch in islice(self.stream, self.batches))


@contextmanager
def torch_stream(work: Work) -> Iterator[Iterator[Any]]:
    from torch.utils.data import DataLoader

    stream = iter(DataLoader(work, BATCH, num_workers=WORKERS))  # type: ignore[arg-type]
    yield stream
    stream._shutdown_workers()


@contextmanager
def grain_stream(work: Work) -> Iterator[Iterator[Any]]:
    import grain

    # Without threads of its own: they would fight for the interpreter lock of their worker.
    data = grain.MapDataset.range(ENDLESS).map(work).batch(BATCH).to_iter_dataset(grain.ReadOptions(0, 0))
    stream = iter(data.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(WORKERS)))
    yield stream
    stream.close()


PEERS: dict[str, Callable[[Work], Any]] = {"torch DataLoader": torch_stream, "Grain": grain_stream}


def two_processes(bench: Bench, work: Work, samples: int) -> None:
    bare = BareProcesses(Share(work, samples), range(WORKERS))
    with ps.Processes(WORKERS) as pool:
        pipeline = ps.from_sequence(range(samples)).map(work, on=pool).batch(BATCH)
        ours = lambda: sum(len(batch) for batch in pipeline)  # noqa: E731
        bench.versus("two bare processes", ours, bare, at_least=0.95, cores=WORKERS)
    bare.close()


def peers(bench: Bench, work: Work, samples: int) -> None:
    for name, opened in PEERS.items():
        try:
            # Before ours, since some of them fork, and a process with threads should not be forked.
            peer = opened(work)
            theirs = peer.__enter__()
            next(theirs)
        except ImportError as exc:
            print(f"  {name}: left out, {exc}", flush=True)
            continue
        ours = ps.from_sequence(range(ENDLESS)).map(work, on="process", workers=WORKERS).batch(BATCH)
        with ours.loader() as loader:
            bench.versus(name, Taking(iter(loader), samples), Taking(theirs, samples), at_least=1)
        peer.__exit__(None, None, None)


# ---------------------------------------------------------------------- part 2


def training(bench: Bench, steps: int) -> None:
    step_turns = turns_in(STEP_S)
    work = Work(turns_in(KEEPS_UP * STEP_S / BATCH))
    samples = ps.from_sequence(range(ENDLESS)).map(work, workers=1).batch(BATCH)
    ready = [np.stack([work(i) for i in range(BATCH)]) for _ in range(8)]

    def train(batches: Iterator[Any]) -> int:
        done = 0
        for batch in islice(batches, steps):
            spin(step_turns)
            done += len(batch)
        return done

    def stand_alone() -> int:
        return train(ready[i % len(ready)] for i in range(steps))

    with samples.loader(isolate=True) as loader:
        stream = iter(loader)
        bench.versus("training loop, isolate=True", lambda: train(stream), stand_alone, at_least=0.95)
    with samples.loader() as loader:
        stream = iter(loader)
        bench.versus("training loop, a thread beside it", lambda: train(stream), stand_alone, at_least=0)


def main() -> None:
    bench = Bench("cpu_bound", __doc__)
    samples = bench.size(1600, quick=320)
    work = Work(turns_in(SAMPLE_S))
    two_processes(bench, work, samples)
    peers(bench, work, samples)
    training(bench, bench.size(200, quick=40))
    bench.finish()


if __name__ == "__main__":
    main()
