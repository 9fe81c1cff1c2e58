"""What does it cost to bring to workers what users really have? Time to the first batch, and memory.

A data set object that holds a list of 2 million (path, label) pairs, read in shuffled batches of 32 on 2 and on 8
worker processes; and a function that uses torch, on 8. Every contestant runs in an interpreter of its own that has
imported torch. Memory is the PSS of all processes of the contestant: what several share counts once.
  first batch, data set                      below P + 1 s   P: one dumps + loads of the data set, in the same run
  first batch, data set, over forkserver     below 1 x       against torch DataLoader with forkserver
  first batch, torch                         below T + 1 s   T: `import torch`, in the same run
  memory after 4 000 batches, 8 workers      below 0.5 x     against torch DataLoader with fork, which is copied
                                                             page by page as its workers read
  growth over the parent alone, data set     below 1.3 x     of the data
The rest is for comparison: DataLoader with fork shares everything at first, and starts at once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from _measure import Bench

HERE = Path(__file__).parent
Measured = dict[str, float]


def measured(name: str, workers: int, samples: int, batches: int) -> Measured:
    """What a contestant prints, run in an interpreter of its own."""
    command = [sys.executable, str(HERE / "_dataset.py"), name, *map(str, (workers, samples, batches))]
    ran = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=1800)
    found: Measured = json.loads(ran.stdout.splitlines()[-1])
    print(
        f"  {name}, {workers} workers: first batch {found['first_s']:.2f} s, memory {found['start_mb']:.0f} MB, "
        f"after {batches} batches {found['end_mb']:.0f} MB (parent alone {found['parent_mb']:.0f}), "
        f"{found['samples_per_s']:.0f} samples/s; import torch {found['import_s']:.2f} s, "
        f"dumps + loads {found['round_trip_s']:.2f} s",
        flush=True,
    )
    return found


def data_set(bench: Bench, samples: int, batches: int, rounds: int) -> None:
    data_mb = 387.0 * samples / 2_000_000
    for workers in (2, 8):
        runs = [
            {name: measured(name, workers, samples, batches) for name in ("penstock", "fork", "forkserver")}
            for _ in range(rounds)
        ]
        ours = [run["penstock"] for run in runs]
        title = f"data set, {workers} workers"
        late = [one["first_s"] - one["round_trip_s"] for one in ours]
        bench.limit(f"{title}: first batch, beyond P", late, below=1.0, unit="s")
        share = [run["penstock"]["first_s"] / run["forkserver"]["first_s"] for run in runs]
        bench.limit(f"{title}: first batch, over forkserver", share, below=1.0, unit="x")
        fork = [run["fork"]["first_s"] for run in runs]
        bench.limit(f"{title}: first batch, DataLoader by fork", fork, below=60, unit="s")
        grown = [(one["end_mb"] - one["parent_mb"]) / data_mb for one in ours]
        bench.limit(f"{title}: growth over the data", grown, below=1.3, unit="x")
        memory = [run["penstock"]["end_mb"] / run["fork"]["end_mb"] for run in runs]
        bench.limit(f"{title}: memory, over fork", memory, below=0.5 if workers == 8 else 60, unit="x")
        rate = [run["fork"]["samples_per_s"] / run["penstock"]["samples_per_s"] for run in runs]
        bench.limit(f"{title}: time per sample, over fork", rate, below=60, unit="x")


def torch_function(bench: Bench, samples: int, batches: int, rounds: int) -> None:
    ours = [measured("penstock function", 8, samples, batches) for _ in range(rounds)]
    late = [one["first_s"] - one["import_s"] for one in ours]
    bench.limit("torch, 8 workers: first batch, beyond T", late, below=1.0, unit="s")
    grown = [one["end_mb"] - one["parent_mb"] for one in ours]
    bench.limit("torch, 8 workers: growth over the parent", grown, below=60_000, unit="MB")
    measured("fork function", 8, samples, batches)


def main() -> None:
    bench = Bench("dataset", __doc__)
    if find_spec("torch") is None:
        print("  left out: torch is not installed")
    else:
        rounds = 1 if bench.quick else 3
        samples, batches = bench.size(2_000_000, quick=100_000), bench.size(4000, quick=100)
        data_set(bench, samples, batches, rounds)
        torch_function(bench, samples, batches, rounds)
    bench.finish()


if __name__ == "__main__":
    main()
