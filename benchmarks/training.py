"""Does a torch training loop wait less, and run faster, with the same dataset object behind penstock?

Contestants: one map-style dataset that decodes JPEGs of 500 x 375 to 224 x 224 with Pillow, in batches of 32,
shuffled, on two worker processes that are up; both sides get the same `DataLoader` object
  torch   for batch in loader
  ours    for batch in ps.from_torch(loader).loader()
and
  a timed step that leaves the cores alone, as an accelerator does, 1.3 times as long as two bare decode loops need
          for a batch                             target: wait share at most max(1 %, a tenth of DataLoader's)
  no step, so that data limits                    target: at least DataLoader's rate
  a small convolutional network trained on the CPU, which shares the cores
                                                  target: at least DataLoader's rate
  a list of a million (path, label) pairs on 8 workers: memory of all processes beyond the parent's own, after 4 000
          batches; what several share counts once target: at most half of DataLoader's
Waits are counted from the second batch on.
"""

from __future__ import annotations

import io
import time
import warnings
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from statistics import mean
from typing import Any

import numpy as np
from _measure import BareProcesses, Bench
from dataset import measured
from decode import make_jpegs
from PIL import Image

import penstock as ps

SIDE, BATCH, WORKERS = 224, 32, 2
HEADROOM = 1.3


class Photos:
    """A dataset as users write it: encoded images in memory, a decoded one per item."""

    def __init__(self, jpegs: list[bytes]) -> None:
        self.jpegs = jpegs

    def __len__(self) -> int:
        return len(self.jpegs)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        import torch

        return torch.from_numpy(decoded(self.jpegs[index])), index % 10


def decoded(jpeg: bytes) -> Any:
    image = Image.open(io.BytesIO(jpeg)).convert("RGB").resize((SIDE, SIDE))
    return np.asarray(image).transpose(2, 0, 1).copy()


def decode_all(jpegs: list[bytes]) -> int:
    return sum(1 for jpeg in jpegs if decoded(jpeg) is not None)


def read(batches: Iterable[Any], step: Callable[[Any], object]) -> tuple[float, float]:
    """The share of the time that the loop waited, and batches per second, from the second batch on."""
    waited = 0.0
    count = 0
    iterator = iter(batches)
    next(iterator)
    began = now = time.perf_counter()
    for batch in iterator:
        waited += time.perf_counter() - now
        step(batch)
        count += 1
        now = time.perf_counter()
    waited += time.perf_counter() - now
    return waited / (now - began), count / (now - began)


def trained() -> Callable[[Any], object]:
    """A step of a small network, on one thread."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    layers = [nn.Conv2d(3, 8, 7, 4), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(batch: Any) -> None:
        images, labels = batch
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images.float() / 255), labels)
        loss.backward()
        optimizer.step()

    return step


def in_turn(
    bench: Bench, torch_side: Any, ours: Any, step: Callable[[Any], object]
) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """What each side measured, pair by pair; each goes first in every second one."""
    read(torch_side, step), read(ours, step)
    pairs = []
    for number in range(bench.pairs):
        if number % 2:
            first = read(torch_side, step)
            pairs.append((first, read(ours, step)))
        else:
            second = read(ours, step)
            pairs.append((read(torch_side, step), second))
    return pairs


def loops(bench: Bench) -> None:
    from torch.utils.data import DataLoader

    jpegs = make_jpegs(bench.size(1024, quick=128))
    bare = BareProcesses(decode_all, [jpegs[::2], jpegs[1::2]])
    bare()
    took = []
    for _ in range(3):
        began = time.perf_counter()
        bare()
        took.append(time.perf_counter() - began)
    bare.close()
    step_s = HEADROOM * mean(took) / len(jpegs) * BATCH
    rate = len(jpegs) / mean(took)
    print(f"  two bare loops decode {rate:.0f} images/s; the timed step takes {step_s * 1000:.0f} ms")
    loader = DataLoader(Photos(jpegs), BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True)
    with ps.from_torch(loader).loader() as ours:
        for name, step in (
            ("timed step", lambda batch: time.sleep(step_s)),
            ("no step", lambda batch: None),
            ("network on the CPU", trained()),
        ):
            pairs = in_turn(bench, loader, ours, step)
            runs = [figures(torch_side=pair[0], ours=pair[1]) for pair in pairs]
            theirs, own = ([run[f"{side}_wait_share"] for run in runs] for side in ("torch", "ours"))
            print(f"  {name}: wait share of DataLoader {mean(theirs):.3f}, ours {mean(own):.3f}")
            if name == "timed step":
                over = [one / max(0.01, other / 10) for other, one in zip(theirs, own, strict=True)]
                bench.limit("timed step: wait share, of what is allowed", over, below=1.0, unit="x", runs=runs)
            else:
                slower = [run["torch_images_per_s"] / run["ours_images_per_s"] for run in runs]
                bench.limit(f"{name}: DataLoader's rate over ours", slower, below=1.0, unit="x", runs=runs)


def figures(torch_side: tuple[float, float], ours: tuple[float, float]) -> dict[str, float]:
    """What `read` measured on both sides of a pair, by name."""
    return {
        f"{side}_{what}": value
        for side, (share, rate) in (("torch", torch_side), ("ours", ours))
        for what, value in (("wait_share", share), ("images_per_s", rate * BATCH))
    }


def memory(bench: Bench) -> None:
    samples, batches = bench.size(1_000_000, quick=100_000), bench.size(4000, quick=100)
    runs = []
    for _ in range(1 if bench.quick else 3):
        ours, theirs = (measured(name, 8, samples, batches) for name in ("from_torch", "fork"))
        grown = [one["end_mb"] - one["parent_mb"] for one in (ours, theirs)]
        runs.append({"ours_mb": grown[0], "torch_mb": grown[1]})
    ratios = [run["ours_mb"] / run["torch_mb"] for run in runs]
    name = "8 workers, a million names: memory, over DataLoader"
    bench.limit(name, ratios, below=0.5, unit="x", runs=runs)


def main() -> None:
    bench = Bench("training", __doc__)
    warnings.filterwarnings("ignore", "This DataLoader will create")
    if find_spec("torch") is None:
        print("  left out: torch is not installed")
    else:
        loops(bench)
        memory(bench)
    bench.finish()


if __name__ == "__main__":
    main()
