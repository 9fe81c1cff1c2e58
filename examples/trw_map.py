"""A map on worker processes, which augments the next batches while the training step is busy with this one.

The flow of trw's SequenceMap: the data is in memory, the augmentation takes long, and the accelerator would
wait for it. Processes take it over; the main thread orchestrates. The array is in shared memory once, only
positions reach the processes, and a sample that fails is left out of every epoch and told.
"""

from __future__ import annotations

import time
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

import penstock as ps

SAMPLES = 85
BATCH = 10
SIDE = 16
STEP_S = 0.01

Image = npt.NDArray[np.float32]


class Summary(TypedDict):
    """What ``main`` returns."""

    batch_sizes: list[int]
    same_batches: bool
    in_the_loop_s: float
    overlapped_s: float
    kept: list[int]
    left_out: list[int]


def augment(image: Image, rng: np.random.Generator) -> Image:
    """Smear the pixels, in plain Python: threads would take turns at it, processes need not."""
    rows = image.tolist()
    shift = int(rng.integers(SIDE))
    for _ in range(30):
        rows = [[0.5 * value + 0.5 * row[(at + shift) % SIDE] for at, value in enumerate(row)] for row in rows]
    return np.array(rows, np.float32)


def not_seven(sample: dict[str, Any]) -> dict[str, Any]:
    """One image of the set is broken."""
    if sample["y"] == 7:
        raise ValueError("a broken image")
    return sample


def train(loader: ps.Loader[Any]) -> tuple[list[Any], float]:
    """One epoch with a stand-in step: a sleep takes time and no CPU, as on a GPU."""
    batches = []
    began = time.perf_counter()
    for batch in loader:
        batches.append(batch)
        time.sleep(STEP_S)
    return batches, time.perf_counter() - began


def main() -> Summary:
    """Augment in the loop, then ahead of it; and leave a broken image out."""
    rng = np.random.default_rng(0)
    arrays = {"x": rng.random((SAMPLES, SIDE, SIDE), np.float32), "y": np.arange(SAMPLES)}
    data = ps.from_arrays(arrays).shuffle().map(augment, key="x", rng=True, on="process", workers=2).batch(BATCH)

    with data.loader(seed=1, inline=True) as loader:
        train(loader)
        in_the_loop, in_the_loop_s = train(loader)
    with data.loader(seed=1) as loader:
        train(loader)  # the first epoch starts the processes, and they stay
        ahead, overlapped_s = train(loader)
    print(f"augmented in the loop: {in_the_loop_s:.2f} s; by two processes ahead of it: {overlapped_s:.2f} s")

    broken = ps.from_arrays(arrays).take(20).map(not_seven, on_error="skip", on="process", workers=2).batch(BATCH)
    with broken.loader(epochs=5) as loader:
        epochs = [[int(y) for batch in batches for y in batch["y"]] for _, batches in loader.epochs(5)]
        left_out = [record.index for record in loader.errors()]
    print(f"{len(epochs[0])} of 20 samples in each of 5 epochs; left out: {left_out}")

    return Summary(
        batch_sizes=[len(batch["y"]) for batch in ahead],
        same_batches=all(
            np.array_equal(a[key], b[key]) for a, b in zip(in_the_loop, ahead, strict=True) for key in ("x", "y")
        ),
        in_the_loop_s=in_the_loop_s,
        overlapped_s=overlapped_s,
        kept=[len(epoch) for epoch in epochs],
        left_out=left_out,
    )


if __name__ == "__main__":
    main()
