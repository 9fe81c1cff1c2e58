"""What does it cost to get batches out of worker processes?

Contestants: two processes make batches of 64 x 224 x 224 x 3 bytes, 9.6 MB, with np.full; a loop takes them
and looks at two bytes of each. All streams are open and their first batches read before the clock starts:
starting is the subject of `startup.py`.
  bare    two processes that fill a batch and copy it into the same warm memory again and again, with the
          allocator set as in our workers; nothing leaves them       target: ours at least 0.5 of it
  peers   those that are installed, each in the way it documents     target: ours at least 3 times each
Second question: samples of five arrays, 10 KB in all, made one by one and collated by 64 in the workers,
against torch's DataLoader                                          target: at least its rate
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import count
from typing import Any

import numpy as np
from _measure import BareProcesses, Bench
from numpy.typing import NDArray

import penstock as ps

WORKERS = 2
SHAPE = (64, 224, 224, 3)
BATCH_BYTES = 64 * 224 * 224 * 3
SAMPLE_BATCH, FIELDS, FIELD_ITEMS = 64, 5, 512
SAMPLE_BYTES = FIELDS * FIELD_ITEMS * 4
SPDL_SLOTS = 8
#: longer than any run
ENDLESS = 10_000_000
#: batches read before the clock starts: more than anybody has made ahead
AHEAD = 64

Opened = AbstractContextManager[Iterator[Any]]


def make(i: int) -> NDArray[np.uint8]:
    return np.full(SHAPE, i & 255, np.uint8)


def make_sample(i: int) -> dict[str, NDArray[np.float32]]:
    return {f"field{k}": np.full(FIELD_ITEMS, i, np.float32) for k in range(FIELDS)}


class Made:
    """The same as a data set."""

    def __init__(self, one: Callable[[int], Any]) -> None:
        self.one = one

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, i: int) -> Any:
        if i >= ENDLESS:
            raise IndexError(i)
        return self.one(int(i))


def fill_and_copy(batches: int) -> int:
    """The share of a bare process."""
    if not _warm:
        _warm.append(np.ones(SHAPE, np.uint8))
    for i in range(batches):
        np.copyto(_warm[0], make(i))
    return batches


_warm: list[NDArray[np.uint8]] = []


class Taking:
    """A contestant: takes so many batches of a stream that is open."""

    def __init__(self, stream: Iterator[Any], batches: int) -> None:
        self.stream = stream
        self.batches = batches

    def prepare(self) -> None:
        for _ in range(AHEAD):
            next(self.stream)

    def __call__(self) -> int:
        for _ in range(self.batches):
            batch = next(self.stream)
            if batch.shape != SHAPE or batch[0, 0, 0, 0] != batch[-1, -1, -1, -1]:
                raise AssertionError(f"expected a batch of {SHAPE} with one value, got one of {batch.shape}")
        return self.batches


class TakingSamples(Taking):
    """The same with batches of samples."""

    def __call__(self) -> int:
        for _ in range(self.batches):
            batch = next(self.stream)
            if len(batch) != FIELDS or batch["field0"].shape != (SAMPLE_BATCH, FIELD_ITEMS):
                raise AssertionError(f"expected {FIELDS} fields of {SAMPLE_BATCH} samples, got {batch!r:.200}")
        return self.batches


# ---------------------------------------------------------------------- streams without an end


@contextmanager
def penstock_batches() -> Iterator[Iterator[Any]]:
    with ps.from_sequence(range(ENDLESS)).map(make, on="process", workers=WORKERS).loader() as loader:
        yield iter(loader)


@contextmanager
def penstock_samples() -> Iterator[Iterator[Any]]:
    samples = ps.from_sequence(range(ENDLESS)).map(make_sample, on="process", workers=WORKERS)
    with samples.batch(SAMPLE_BATCH).loader() as loader:
        yield iter(loader)


@contextmanager
def torch_batches(one: Callable[[int], Any] = make, batch_size: int | None = None) -> Iterator[Iterator[Any]]:
    from torch.utils.data import DataLoader

    stream = iter(DataLoader(Made(one), num_workers=WORKERS, batch_size=batch_size))  # type: ignore[arg-type]
    yield stream
    stream._shutdown_workers()


def _spdl_source(first: int) -> Iterator[Any]:
    return (make(i) for i in count(first, WORKERS))


@contextmanager
def spdl_batches(arena: str) -> Iterator[Iterator[Any]]:
    """One process per stream is what SPDL has; an arena of shared memory carries the arrays."""
    from spdl import pipeline

    def new_arena() -> Any:
        if arena == "ring":  # a batch is copied out of it
            return pipeline.SharedMemoryRingBuffer(SPDL_SLOTS * (BATCH_BYTES + 4096))
        return pipeline.SharedMemorySegmentPool(BATCH_BYTES + 4096, SPDL_SLOTS)  # a batch is a view

    streams: list[Any] = [
        pipeline.iterate_in_subprocess(partial(_spdl_source, first), arena=new_arena()) for first in range(WORKERS)
    ]

    def in_turn() -> Iterator[Any]:
        iterators = [iter(stream) for stream in streams]
        while True:
            for iterator in iterators:
                yield next(iterator)

    yield in_turn()
    for stream in streams:
        stream._shutdown()


@contextmanager
def grain_batches() -> Iterator[Iterator[Any]]:
    import grain

    # Without threads of its own and with a larger buffer it is more than twice as fast as by default.
    data = grain.MapDataset.range(ENDLESS).map(make).to_iter_dataset(grain.ReadOptions(0, 0))
    stream = iter(data.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(WORKERS, 4)))
    yield stream
    stream.close()


@contextmanager
def tensorpack_batches() -> Iterator[Iterator[Any]]:
    from tensorpack.dataflow import DataFlow, MultiProcessRunnerZMQ

    class Flow(DataFlow):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Any]:
            return ([make(i)] for i in count())

        def __len__(self) -> int:
            return ENDLESS

    data = MultiProcessRunnerZMQ(Flow(), WORKERS, hwm=4)  # by default it makes 200 batches ahead
    data.reset_state()
    yield (batch for (batch,) in data)
    for process in data._procs:
        process.terminate()


@contextmanager
def torchdata_batches() -> Iterator[Iterator[Any]]:
    from torchdata.nodes import IterableWrapper, ParallelMapper

    yield iter(ParallelMapper(IterableWrapper(range(ENDLESS)), make, num_workers=WORKERS, method="process"))


@contextmanager
def trw_batches() -> Iterator[Iterator[Any]]:
    import collections
    import collections.abc

    # It was written for Python 3.7.
    collections.Mapping = collections.abc.Mapping  # type: ignore[attr-defined]
    collections.Sequence = collections.abc.Sequence  # type: ignore[attr-defined]
    collections.Iterable = collections.abc.Iterable  # type: ignore[attr-defined]
    from trw.train import SequenceArray

    data = SequenceArray({"i": np.arange(100_000)}, sampler=None).map(_trw_make, nb_workers=WORKERS)
    yield (sample["x"] for sample in data)


def _trw_make(sample: Any) -> dict[str, Any]:
    return {"x": make(int(sample["i"][0]))}


@contextmanager
def batchup_batches() -> Iterator[Iterator[Any]]:
    from batchup.work_pool import WorkerProcessPool

    stream = WorkerProcessPool(WORKERS).work_stream((make, (i,)) for i in range(ENDLESS))
    yield stream.retrieve_iter()


PEERS: dict[str, Callable[[], Opened]] = {
    "torch DataLoader": torch_batches,
    "SPDL, shared segments": partial(spdl_batches, "segments"),
    "SPDL, ring buffer": partial(spdl_batches, "ring"),
    "Grain": grain_batches,
    "tensorpack, ZMQ": tensorpack_batches,
    "torchdata": torchdata_batches,
    "trw": trw_batches,
    "BatchUp": batchup_batches,
}


# ---------------------------------------------------------------------- the questions


def against_bare(bench: Bench, batches: int) -> None:
    bare = BareProcesses(fill_and_copy, [batches // WORKERS] * WORKERS)
    with penstock_batches() as stream:
        bench.versus("two bare processes", Taking(stream, batches), bare, at_least=0.5, cores=WORKERS)
    bare.close()
    rates(bench, batches * BATCH_BYTES / 1e9, "GB/s")


def against_peers(bench: Bench, batches: int) -> None:
    for name, opened in PEERS.items():
        try:
            # Before ours, since some of them fork, and a process with threads should not be forked.
            peer = opened()
            stream = peer.__enter__()
            next(stream)
        except Exception as exc:
            print(f"  {name}: left out, {type(exc).__name__}: {str(exc)[:80]}", flush=True)
            continue
        with penstock_batches() as ours:
            bench.versus(f"{name}", Taking(ours, batches), Taking(stream, batches), at_least=3)
        peer.__exit__(None, None, None)
        rates(bench, batches * BATCH_BYTES / 1e9, "GB/s")


def small_samples(bench: Bench, batches: int) -> None:
    try:
        peer = torch_batches(make_sample, SAMPLE_BATCH)
        stream = peer.__enter__()
    except ImportError as exc:
        print(f"  small samples: left out, {exc}", flush=True)
        return
    with penstock_samples() as ours:
        ours_taking, torch_taking = TakingSamples(ours, batches), TakingSamples(stream, batches)
        bench.versus("samples of 10 KB, torch DataLoader", ours_taking, torch_taking, at_least=1)
    peer.__exit__(None, None, None)
    rates(bench, batches * SAMPLE_BATCH / 1e3, "thousand samples/s")


def rates(bench: Bench, amount: float, unit: str) -> None:
    runs = bench.results[-1].runs
    ours, other = (np.median([amount / run[side] for run in runs]) for side in ("ours_s", "bare_s"))
    cpu = np.median([run["bare_cpu_s"] / run["ours_cpu_s"] for run in runs])
    print(f"      ours {ours:.2f} {unit}, the other {other:.2f} {unit}; ", end="")
    print(f"it takes {cpu:.2f} times our CPU seconds, all processes counted", flush=True)


def main() -> None:
    warnings.filterwarnings("ignore", category=DeprecationWarning)  # of peers that fork
    bench = Bench("transport", __doc__)
    batches = bench.size(400, quick=40)
    against_bare(bench, batches)
    against_peers(bench, bench.size(200, quick=20))
    small_samples(bench, bench.size(1000, quick=100))
    bench.finish()


if __name__ == "__main__":
    main()
