"""What does a shuffle of 100 million samples cost before the first, for the next million, and in memory?

Contestants, each in a new interpreter whose imports are done before the clock starts:
  the order           penstock's permutation, asked for in blocks as a pipeline does
  a pipeline          from_sequence(range(n)).shuffle(), sample by sample, its loader made on the clock
  numpy, torch, Grain random.permutation, RandomSampler, MapDataset.shuffle; whoever is missing is named
Targets, for both of ours: first sample below 10 ms, the next million below 0.25 s, peak memory below 10 MB
more. For the others 60 s and 60 000 MB are no targets: their figures are for comparison.
Second question: is the cost of a place the same from 1 sample to 10**9? In blocks of 16 384, the dearest n
below twice the cost at 10**6; one place alone below 20 µs; and the first of an order below 200 µs.
Third question: what does a sample's own generator cost (`rng=True`)? Re-keying below 3 µs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from _measure import Bench

from penstock.randomness import Draws, derive, permute

BLOCK = 16_384
SIZES = [1, 10, 100, 128, 1000, 2048, 2049, 65_536, 10**6, 10**8, 10**9]

#: Every contestant defines `samples(n)`, an iterator over the shuffled numbers; what it needs is imported above.
CONTESTANTS = {
    "the order": """
from penstock.randomness import derive, permute
def samples(n):
    key = derive("shuffle", 0, 0, "shuffle")
    for start in range(0, n, 16_384):
        yield from permute(np.arange(start, min(start + 16_384, n)), n, key).tolist()
""",
    "a pipeline": """
import penstock as ps
def samples(n):
    return iter(ps.from_sequence(range(n)).shuffle())
""",
    "numpy": """
def samples(n):
    yield from map(int, np.random.default_rng(0).permutation(n))
""",
    "torch": """
from torch.utils.data import RandomSampler
def samples(n):
    return iter(RandomSampler(range(n)))
""",
    "Grain": """
import logging
logging.disable()
import grain
def samples(n):
    shuffled = grain.MapDataset.range(n).shuffle(seed=0)
    return map(shuffled.__getitem__, range(n))
""",
}
OURS = ("the order", "a pipeline")

#: What runs in the new interpreter. Once with few samples, so that nothing is imported on the clock.
HARNESS = """
import gc, json, re, sys, time
from collections import deque
from itertools import islice
from pathlib import Path
import numpy as np
{contestant}
def peak_mb():
    try:
        return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
    except OSError:  # not Linux
        import resource
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 1024)
deque(samples(5000), 0)
gc.collect()
before = peak_mb()
start = time.perf_counter()
stream = samples({n})
next(stream)
first = time.perf_counter()
deque(islice(stream, {count}), 0)
end = time.perf_counter()
print(json.dumps(dict(first_ms=1e3 * (first - start), next_s=end - first, mb=peak_mb() - before)))
"""


def run(name: str, n: int, count: int) -> dict[str, float]:
    """The figures of one contestant in an interpreter of its own."""
    code = HARNESS.format(contestant=CONTESTANTS[name], n=n, count=count)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def large_shuffle(bench: Bench) -> None:
    n, count = bench.size(100_000_000, quick=10_000_000), bench.size(1_000_000, quick=100_000)
    for name in CONTESTANTS:
        try:
            runs = [run(name, n, count) for _ in range(bench.pairs)]
        except RuntimeError as exc:
            if name in OURS:
                raise
            print(f"  {name}: left out, {str(exc)[:100]}", flush=True)
            continue
        ours = name in OURS
        first_ms, next_s, mb = ([one[part] for one in runs] for part in ("first_ms", "next_s", "mb"))
        bench.limit(f"{name}: first sample", first_ms, below=10 if ours else 60_000, unit="ms")
        bench.limit(f"{name}: next {count:,}", next_s, below=0.25 * count / 1e6 if ours else 60, unit="s")
        bench.limit(f"{name}: memory", mb, below=10 if ours else 60_000, unit="MB")


# ---------------------------------------------------------------------- one place, for any n


def seconds(call: Callable[[], Any], times: int) -> float:
    """The median of single calls: a machine with other work makes a few of them slow."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return median(taken)


def costs(n: int, number: int, times: int) -> tuple[float, float, float]:
    """For one n: ns per place in blocks, µs for one place alone, µs for the first place of a new order."""
    key = derive("flat", number, n)
    block, one = np.arange(BLOCK) % n, np.array([n // 2])
    fresh = [derive(key, epoch) for epoch in range(times)]
    new_s = seconds(lambda: permute(one, n, fresh.pop()), times)
    permute(one, n, key)
    one_s = seconds(lambda: permute(one, n, key), times)
    return 1e9 / BLOCK * seconds(lambda: permute(block, n, key), times), 1e6 * one_s, 1e6 * new_s


def flat(bench: Bench) -> None:
    times = bench.size(100, quick=20)
    rounds = [{n: costs(n, number, times) for n in SIZES} for number in range(bench.pairs)]
    print(f"\n  {'n':>12} {'ns per place':>13} {'µs, one place':>14} {'µs, a new order':>16}")
    for n in SIZES:
        block_ns, one_us, new_us = (median(one[n][part] for one in rounds) for part in range(3))
        print(f"  {n:>12} {block_ns:>13.2f} {one_us:>14.2f} {new_us:>16.2f}")
    worst = [[max(one[n][part] for n in SIZES) for one in rounds] for part in range(3)]
    ratios = [dearest / one[10**6][0] for dearest, one in zip(worst[0], rounds, strict=True)]
    bench.limit("blocks: dearest n over 10**6", ratios, below=2, unit="x")
    bench.limit("one place alone, dearest n", worst[1], below=20, unit="us")
    bench.limit("first place of a new order, dearest n", worst[2], below=200, unit="us")


def generators(bench: Bench) -> None:
    draws, key, times = Draws(), derive("op"), bench.size(20_000, quick=2000)
    rekeyed, made = [], []
    for _ in range(bench.pairs):
        start = time.perf_counter()
        for position in range(times):
            draws.at(key, position)
        between = time.perf_counter()
        for position in range(times // 10):
            np.random.Generator(np.random.Philox(key=key, counter=[0, position, 0, 0]))
        rekeyed.append(1e6 * (between - start) / times)
        made.append(10e6 * (time.perf_counter() - between) / times)
    bench.limit("re-keying a sample's generator", rekeyed, below=3, unit="us")
    bench.limit("making one instead", made, below=60_000, unit="us")


def main() -> None:
    bench = Bench("shuffle", __doc__)
    large_shuffle(bench)
    flat(bench)
    generators(bench)
    bench.finish()


if __name__ == "__main__":
    main()
