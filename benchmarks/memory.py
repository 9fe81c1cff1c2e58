"""How much memory does a loader with memory="256MB" take, with samples from 1 KB to 50 MB?

Each case runs in a new interpreter: a first epoch of small samples, so that every worker is up, then one of large
ones, made with np.full. Another process looks every 10 ms at the anonymous memory of all processes of the loader
(their share of it, PSS) and at their blocks of shared memory, and keeps the most that their sum has grown.
  sizes    log-uniform; 1 KB with every twentieth 50 MB; 1 KB and 50 MB by turns; 50 of each by turns
  where    1, 2 and 4 processes; 4 threads; 4 processes behind isolate=True, whose own process counts as a worker
Target: the bound and two copies of the largest sample per worker. Without a bound there is none: that figure is for
comparison.
Second question: what does the bound cost? The rate with it over the rate without it, both loaders warm. Each side
reads several epochs: without a bound, one epoch takes up to ten times as long as another, as memory is warm or not.
Target: at least 0.8; none behind isolate=True, where that figure is for comparison.
"""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _measure import Bench
from numpy.typing import NDArray

import penstock as ps

MB = 1e6
MEMORY, SMALLEST, LARGEST = 256_000_000, 1000, 50_000_000
INTERVAL_S = 0.01
RUNS = 3
EPOCHS = 5

CASE, WATCH = "--case", "--watch"
#: name, sizes, workers, where they run, memory=, isolate=
CASES = [
    ("1 process", "log-uniform", 1, "process", MEMORY, False),
    ("2 processes", "log-uniform", 2, "process", MEMORY, False),
    ("4 processes", "log-uniform", 4, "process", MEMORY, False),
    ("4 processes, rarely large", "rarely large", 4, "process", MEMORY, False),
    ("4 processes, by turns", "by turns", 4, "process", MEMORY, False),
    ("4 processes, by turns of 50", "by turns of 50", 4, "process", MEMORY, False),
    ("4 threads", "log-uniform", 4, "thread", MEMORY, False),
    ("4 processes, isolated", "log-uniform", 4, "process", MEMORY, True),
    ("4 processes, no bound", "log-uniform", 4, "process", None, False),
]


def sizes(kind: str, n: int) -> NDArray[np.int64]:
    rng, number = np.random.default_rng(7), np.arange(n)
    if kind == "log-uniform":
        return np.exp(rng.uniform(np.log(SMALLEST), np.log(LARGEST), n)).astype(np.int64)
    large = {
        "rarely large": rng.random(n) < 0.05,
        "by turns": number % 2 == 1,
        "by turns of 50": number // 50 % 2 == 1,
    }
    return np.where(large[kind], LARGEST, SMALLEST)


class Make:
    """In the first epoch the number of its process, later a sample of the wanted size."""

    def __init__(self, wanted: NDArray[np.int64]) -> None:
        self.wanted = wanted

    def __call__(self, number: int, info: Any) -> Any:
        if info.epoch == 0:
            time.sleep(0.002)  # so that no worker can do them all
            return os.getpid()
        return np.full(self.wanted[number], number % 256, np.uint8)


def pipeline(kind: str, n: int, workers: int, on: str) -> ps.Pipeline[Any]:
    return ps.from_sequence(range(n)).map(Make(sizes(kind, n)), info=True, on=on, workers=workers)


def epoch(loader: Any, first: bool = False) -> int:
    """Read one epoch, and look at both ends of each sample. The bytes of it, or how many processes made it."""
    seen, total = set(), 0
    for _, samples in loader.epochs(1):
        for number, sample in enumerate(samples):
            if first:
                seen.add(sample)
            else:
                assert sample[0] == sample[-1] == number % 256
                total += len(sample)
    return len(seen) or total


def several(loader: Any) -> int:
    return sum(epoch(loader) for _ in range(EPOCHS))


# ---------------------------------------------------------------------- memory of a family of processes


def family(root: int) -> set[int]:
    """A process and all that have come from it."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            parents[int(stat.parent.name)] = int(stat.read_bytes().rpartition(b")")[2].split()[1])
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def memory_of(root: int) -> int:
    """Anonymous memory of a family but for this process, and their blocks, mapped or not."""
    anonymous = mapped = 0
    blocks: dict[int, int] = {}
    for pid in family(root) - {os.getpid()}:
        with suppress(OSError):
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            share = {name: 1024 * int(kb) for name, kb in re.findall(r"^(Pss_\w+):\s+(\d+) kB", rollup, re.M)}
            anonymous += share.get("Pss_Anon", 0)
            mapped += share.get("Pss_Shmem", 0)
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    if "memfd:penstock" in os.readlink(path := f"/proc/{pid}/fd/{fd}"):
                        found = os.stat(path)
                        blocks[found.st_ino] = 512 * found.st_blocks
    return anonymous + max(mapped, sum(blocks.values()))


def watch(root: int) -> None:
    """Print the memory now, and the most since the last time, whenever a line comes in."""
    most = 0
    while True:
        now = memory_of(root)
        most = max(most, now)
        if select.select([sys.stdin], [], [], INTERVAL_S)[0]:
            if not sys.stdin.readline():
                return
            print(json.dumps([now, most]), flush=True)
            most = 0


def run_case(case: list[Any]) -> None:
    """Print by how many bytes the memory of this process and its workers has grown at most."""
    n, kind, workers, on, memory, isolate = case
    command = [sys.executable, __file__, WATCH, str(os.getpid())]
    with (
        pipeline(kind, n, workers, on).loader(memory=memory, isolate=isolate) as loader,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watcher,
    ):
        assert watcher.stdin is not None
        assert watcher.stdout is not None

        def ask() -> list[int]:
            print(file=watcher.stdin, flush=True)
            answer: list[int] = json.loads(watcher.stdout.readline())
            return answer

        assert epoch(loader, first=True) == (workers if on == "process" else 1)
        ask()
        before, _ = ask()
        epoch(loader)
        _, most = ask()
        watcher.stdin.close()
    print(json.dumps(most - before))


def growth_mb(case: list[Any]) -> float:
    done = subprocess.run([sys.executable, __file__, CASE, json.dumps(case)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return float(json.loads(done.stdout.splitlines()[-1])) / MB


# ---------------------------------------------------------------------- the questions


def growth(bench: Bench) -> None:
    n = bench.size(500, quick=100)
    for name, kind, workers, on, memory, isolate in CASES:
        runs = 1 if bench.quick else RUNS
        values = [growth_mb([n, kind, workers, on, memory, isolate]) for _ in range(runs)]
        allowed = 60_000 if memory is None else (memory + 2 * LARGEST * (workers + isolate)) / MB
        bench.limit(f"growth, {name}", values, below=allowed, unit="MB")


def rate(bench: Bench) -> None:
    n = bench.size(300, quick=60)
    for name, kind, isolate, target in [
        ("4 processes", "log-uniform", False, 0.8),
        ("4 processes, rarely large", "rarely large", False, 0.8),
        ("4 processes, isolated", "log-uniform", True, 0.0),
    ]:
        with ExitStack() as stack:
            bounded, free = (
                stack.enter_context(pipeline(kind, n, 4, "process").loader(memory=memory, isolate=isolate))
                for memory in (MEMORY, None)
            )
            epoch(bounded, first=True)
            epoch(free, first=True)
            sides = partial(several, bounded), partial(several, free)
            bench.versus(f"rate, {name}, over no bound", *sides, at_least=target)


def main() -> None:
    bench = Bench("memory", __doc__)
    growth(bench)
    rate(bench)
    bench.finish()


if __name__ == "__main__":
    if sys.argv[1:2] == [CASE]:
        run_case(json.loads(sys.argv[2]))
    elif sys.argv[1:2] == [WATCH]:
        watch(int(sys.argv[2]))
    else:
        main()
