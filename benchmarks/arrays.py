"""How near does a shuffled epoch over arrays in memory come to bare fancy indexing?

Contestants: 50 000 uint8 images of 32 x 32 x 3 with labels, in shuffled batches of 256, five epochs in a row;
  bare    `x[idx], y[idx]` with random permutations made beforehand
  ours    from_arrays(x, y).shuffle().batch(256), which also has to work out the order
Target: at least 0.8 of the bare rate.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from _measure import Bench
from numpy.typing import NDArray

import penstock as ps

BATCH = 256
EPOCHS = 5


def bare(x: NDArray[np.uint8], y: NDArray[np.int64], orders: list[NDArray[np.int64]]) -> int:
    samples = 0
    for order in orders:
        for first in range(0, len(order), BATCH):
            idx = order[first : first + BATCH]
            images, _labels = x[idx], y[idx]
            samples += len(images)
    return samples


def ours(pipeline: Any) -> int:
    samples = 0
    with pipeline.loader(epochs=EPOCHS) as loader:
        for _epoch, batches in loader.epochs(EPOCHS):
            for images, _labels in batches:
                samples += len(images)
    return samples


def main() -> None:
    bench = Bench("arrays", __doc__)
    n = bench.size(50_000, quick=10_000)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
    y = rng.integers(0, 10, n)
    orders = [rng.permutation(n) for _ in range(EPOCHS)]
    pipeline = ps.from_arrays(x, y).shuffle().batch(BATCH)

    bench.versus("shuffled batches of 256", lambda: ours(pipeline), lambda: bare(x, y, orders), at_least=0.8)
    bench.finish()


if __name__ == "__main__":
    main()
