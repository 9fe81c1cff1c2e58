"""Arrays in memory as batches; then a map in the background that overlaps the training step.

The two flows of trw's "Input pipeline": its SequenceArray, where the data is in memory and the only
cost is cutting batches; and its SequenceMap, where workers augment the next batches while the
accelerator is busy with this one.
"""

from __future__ import annotations

import time
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

import penstock as ps

SAMPLES = 85
BATCH = 10
SIDE = 384
STEP_S = 0.02

Image = npt.NDArray[np.float32]


class Summary(TypedDict):
    """What ``main`` returns."""

    batch_sizes: list[int]
    each_sample_once: bool
    same_batches: bool
    inline_s: float
    overlapped_s: float


def augment(image: Image, rng: np.random.Generator) -> Image:
    """Blur by a random amount, in the frequency domain: a few milliseconds of CPU."""
    ratios = np.fft.fftfreq(SIDE).astype(np.float32) ** 2
    blur = np.exp(-rng.uniform(5, 50) * (ratios[:, None] + ratios[None, :]))
    return np.fft.ifft2(np.fft.fft2(image) * blur).real.astype(np.float32)


def train(loader: ps.Loader[Any]) -> tuple[list[Any], float]:
    """One epoch with a stand-in step: a sleep takes time and no CPU, as on a GPU."""
    batches = []
    began = time.perf_counter()
    for batch in loader:
        batches.append(batch)
        time.sleep(STEP_S)
    return batches, time.perf_counter() - began


def main() -> Summary:
    """Batches from memory, then the same data with an augmentation, in the loop and ahead of it."""
    rng = np.random.default_rng(0)
    arrays = {"x": rng.random((SAMPLES, SIDE, SIDE), np.float32), "y": np.arange(SAMPLES)}

    in_memory = ps.from_arrays(arrays).shuffle().batch(BATCH)
    plain = list(in_memory)
    sizes = [len(batch["y"]) for batch in plain]
    print(f"{SAMPLES} samples by {BATCH}: {len(sizes)} batches, the last of {sizes[-1]}")

    mapped = ps.from_arrays(arrays).shuffle().map(augment, key="x", rng=True, workers=2).batch(BATCH)
    with mapped.loader(seed=1, inline=True) as loader:
        inline, inline_s = train(loader)
    with mapped.loader(seed=1) as loader:
        ahead, overlapped_s = train(loader)
    print(f"augmented in the loop: {inline_s:.2f} s; by two workers ahead of it: {overlapped_s:.2f} s")

    return Summary(
        batch_sizes=sizes,
        each_sample_once=sorted(np.concatenate([b["y"] for b in plain]).tolist()) == list(range(SAMPLES)),
        same_batches=all(
            np.array_equal(a[key], b[key]) for a, b in zip(inline, ahead, strict=True) for key in ("x", "y")
        ),
        inline_s=inline_s,
        overlapped_s=overlapped_s,
    )


if __name__ == "__main__":
    main()
