"""How long does a user wait for the first batch, between epochs and at the end? What does idling cost?

Each time is the median of 21 loaders (three per pair) made in this process, over cheap samples:
  first batch, everything in the caller      below 5 ms      from loader() to the first batch
  first batch, 4 threads                     below 10 ms
  end of an epoch                            below 2 ms      from the last batch to the end of the loop
  next epoch                                 below 2 ms      from the last batch to the next epoch's first
  close, in the middle of an epoch           below 20 ms
  idle for 2 s with full buffers             below 0.01 s of CPU, all threads counted
With two worker processes:
  first batch in a new interpreter           below 1 s       numpy and penstock imported, nothing started
  the same with torch's DataLoader, spawn    for comparison, if installed; any time will do
  next epoch                                 below 30 ms     from the last batch to the next epoch's first
  a second pipeline on the same pool         below 30 ms     from loader() to the first batch
"""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.util import find_spec
from typing import Any

from _measure import Bench

import penstock as ps

SETTLE_S = 0.5


def add_one(x: int) -> int:
    return x + 1


def first_batch_s(pipeline: Any, *, inline: bool) -> float:
    start = time.perf_counter()
    with pipeline.loader(inline=inline) as loader:
        next(iter(loader))
        return time.perf_counter() - start


def between_epochs_s(pipeline: Any) -> tuple[float, float]:
    """From the last batch to the end of the loop, and to the first batch of the next epoch."""
    with pipeline.loader() as loader:
        last = 0.0
        for _batch in loader:
            last = time.perf_counter()
        ended = time.perf_counter()
        next(iter(loader))
        return ended - last, time.perf_counter() - last


def close_s(pipeline: Any) -> float:
    loader = pipeline.loader()
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    start = time.perf_counter()
    loader.close()
    return time.perf_counter() - start


def idle_cpu_s(pipeline: Any, seconds: float) -> float:
    with pipeline.loader() as loader:
        batches = iter(loader)
        next(batches)
        time.sleep(SETTLE_S)  # the workers fill their buffers and come to rest
        start = time.process_time()
        time.sleep(seconds)
        return time.process_time() - start


COLD = """
import time, numpy
import penstock as ps
start = time.perf_counter()
with ps.from_sequence(range(10_000)).map(lambda x: x + 1, on="process", workers=2).batch(64).loader() as loader:
    next(iter(loader))
    print(time.perf_counter() - start)
"""
COLD_TORCH = """
import time, numpy
from torch.utils.data import DataLoader
start = time.perf_counter()
batches = iter(DataLoader(range(10_000), 64, num_workers=2, multiprocessing_context="spawn"))
next(batches)
print(time.perf_counter() - start)
batches._shutdown_workers()
"""


def cold_s(script: str) -> float:
    """What a script prints, run in an interpreter of its own."""
    ran = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True, timeout=120)
    return float(ran.stdout)


def second_pipeline_s(pool: ps.Processes, number: int) -> float:
    """From loader() to the first batch, of a pipeline that the pool has not seen."""
    pipeline = ps.from_sequence(range(10_000)).map(lambda x: x + number, on=pool).batch(64)
    return first_batch_s(pipeline, inline=False)


def processes(bench: Bench, times: range) -> None:
    few = range(bench.pairs)
    bench.limit("2 processes: first batch, cold", [cold_s(COLD) for _ in few], below=1.0, unit="s")
    if find_spec("torch") is None:
        print("  torch: left out, it is not installed", flush=True)
    else:
        torch = [cold_s(COLD_TORCH) for _ in range(3)]
        bench.limit("torch DataLoader, 2 spawned workers: the same", torch, below=60, unit="s")
    pipeline = ps.from_sequence(range(1000)).map(add_one, on="process", workers=2).batch(64)
    epochs = [1e3 * between_epochs_s(pipeline)[1] for _ in few]
    bench.limit("2 processes: last batch to the next epoch's", epochs, below=30, unit="ms")
    with ps.Processes(2) as pool:
        second_pipeline_s(pool, 0)
        others = [1e3 * second_pipeline_s(pool, number) for number in times]
    bench.limit("2 processes: a second pipeline on the pool", others, below=30, unit="ms")


def main() -> None:
    bench = Bench("startup", __doc__)
    pipeline = ps.from_sequence(range(10_000)).map(add_one, workers=4).batch(64)
    times = range(3 * bench.pairs)

    inline = [1e3 * first_batch_s(pipeline, inline=True) for _ in times]
    bench.limit("first batch, inline", inline, below=5, unit="ms")
    threads = [1e3 * first_batch_s(pipeline, inline=False) for _ in times]
    bench.limit("first batch, 4 threads", threads, below=10, unit="ms")
    epochs = [between_epochs_s(pipeline) for _ in times]
    bench.limit("last batch to the end of its epoch", [1e3 * e for e, _ in epochs], below=2, unit="ms")
    bench.limit("last batch to the next epoch's first", [1e3 * f for _, f in epochs], below=2, unit="ms")
    bench.limit("close", [1e3 * close_s(pipeline) for _ in times], below=20, unit="ms")
    bench.limit("CPU of 2 s idle", [idle_cpu_s(pipeline, 2.0) for _ in range(3)], below=0.01, unit="s")
    processes(bench, times)
    bench.finish()


if __name__ == "__main__":
    main()
