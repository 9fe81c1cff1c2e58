"""One contestant of `dataset.py`, in an interpreter of its own: python _dataset.py NAME WORKERS SAMPLES BATCHES

It prints what it has measured as JSON. torch is imported in all of them, as in a training script.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BATCH = 32


class Paths:
    """A data set as users write it: a list of (path, label), and an item made of one of them."""

    def __init__(self, n: int) -> None:
        self.samples = [(f"/data/train/n{i % 1000:08d}/n{i % 1000:08d}_{i:012d}.JPEG", i % 1000) for i in range(n)]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[int, int]:
        path, label = self.samples[index]
        return int(path[-17:-5]), label


def with_torch(x: int) -> Any:
    """A function that uses torch. The worker imports it when it is called, if not before."""
    import torch

    return int(torch.tensor(x) + 1)


def family() -> list[int]:
    """This process and all that have come from it."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_bytes().rpartition(b")")[2].split()[1])
        except OSError:  # it has ended
            continue
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return list(found)


def pss_mb(pids: list[int]) -> float:
    """Memory of processes; what several of them share counts once."""
    kb = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        kb += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kb / 1000


@contextmanager
def penstock_batches(source: Any, function: Any, workers: int) -> Iterator[Any]:
    import penstock as ps

    pipeline = ps.from_sequence(source).shuffle(seed=0)
    if function is not None:
        pipeline = pipeline.map(function)
    with pipeline.batch(BATCH).loader(on="process", workers=workers) as loader:
        yield loader


@contextmanager
def from_torch_batches(source: Any, workers: int) -> Iterator[Any]:
    import penstock as ps

    with ps.from_torch(source, batch_size=BATCH, shuffle=True, workers=workers).loader() as loader:
        yield loader


class Mapped:
    """What DataLoader needs for a function."""

    def __init__(self, source: Any, function: Any) -> None:
        self.source, self.function = source, function

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Any:
        return self.function(self.source[index])


@contextmanager
def torch_batches(source: Any, function: Any, workers: int, context: str) -> Iterator[Any]:
    from torch.utils.data import DataLoader

    warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than there are cores
    dataset = source if function is None else Mapped(source, function)
    yield DataLoader(dataset, BATCH, shuffle=True, num_workers=workers, multiprocessing_context=context)


def main(name: str, workers: int, samples: int, batches: int) -> None:
    began = time.perf_counter()
    import torch  # noqa: F401

    import_s = time.perf_counter() - began
    how, _, what = name.partition(" ")
    function = with_torch if what == "function" else None
    source: Any = range(samples) if function else Paths(samples)
    round_trip_s = 0.0
    if function is None:
        began = time.perf_counter()
        pickle.loads(pickle.dumps(source, pickle.HIGHEST_PROTOCOL))
        round_trip_s = time.perf_counter() - began
    import penstock  # noqa: F401

    parent_mb = pss_mb([os.getpid()])
    began = time.perf_counter()
    if how == "penstock":
        made = penstock_batches(source, function, workers)
    elif how == "from_torch":
        made = from_torch_batches(source, workers)
    else:
        made = torch_batches(source, function, workers, how)
    with made as loader:
        iterator = iter(loader)
        next(iterator)
        first_s = time.perf_counter() - began
        start_mb = pss_mb(family())
        began = time.perf_counter()
        for number, _batch in enumerate(iterator, 1):
            if number == batches:
                break
        rate = BATCH * number / (time.perf_counter() - began)
        end_mb = pss_mb(family())
        del iterator
    print(
        json.dumps(
            {
                "first_s": first_s,
                "import_s": import_s,
                "round_trip_s": round_trip_s,
                "parent_mb": parent_mb,
                "start_mb": start_mb,
                "end_mb": end_mb,
                "samples_per_s": rate,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
