"""A pool of worker processes in the place of a pool of threads, shared by training and validation.

The second half of BatchUp's "Parallel processing for faster batching": the augmentation is pure Python
and would hold the interpreter lock, so processes take it over; 32 batches are kept ready, and filling
begins before the loop asks. The two things to beware of there are none here: batches come back through
shared memory, and functions may be defined anywhere, inside another one too, without a main guard.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

import penstock as ps

IMAGES = 300
SIDE = 24
BATCH = 64
SEED = 12345

Pixels = npt.NDArray[np.float32]


class Summary(TypedDict):
    """What ``main`` returns."""

    batches: int
    last_batch: int
    labels_seen_once: bool
    augmented_here: bool
    same_as_threads: bool
    same_as_serial: bool
    validated: int


class ImageFiles:
    """Looks like an array of images of different sizes; reads a file when it is indexed."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Pixels:
        image: Pixels = np.load(self.paths[index])
        return image


def write_images(folder: Path) -> ImageFiles:
    """One file per image, of several widths."""
    rng = np.random.default_rng(0)
    paths = [folder / f"{number:04d}.npy" for number in range(IMAGES)]
    for number, path in enumerate(paths):
        np.save(path, rng.random((SIDE, SIDE + number % 7), np.float32))
    return ImageFiles(paths)


def same(one: list[Any], other: list[Any]) -> bool:
    """Whether two epochs have the same images and labels, bit for bit."""
    return len(one) == len(other) and all(
        np.array_equal(a[field], b[field]) for a, b in zip(one, other, strict=True) for field in (0, 1)
    )


def main() -> Summary:
    """Compare the batches of processes with those of threads and of a serial run."""
    gain = 1.5

    def augment(sample: tuple[Pixels, int], rng: np.random.Generator) -> tuple[Pixels, int, int]:
        """A random crop and a gamma curve, pixel by pixel: the slow kind of Python."""
        image, label = sample
        left = int(rng.integers(image.shape[1] - SIDE + 1))
        gamma = float(rng.uniform(0.8, 1.2)) * gain
        rows = [[value**gamma for value in row[left : left + SIDE]] for row in image.tolist()]
        return np.array(rows, np.float32), label, os.getpid()

    def build(images: ImageFiles, pool: ps.Processes | ps.Threads) -> ps.Pipeline[Any]:
        data = ps.from_arrays(images, np.arange(len(images))).shuffle()
        return data.map(augment, on=pool, rng=True).batch(BATCH).prefetch(32)

    def run(data: ps.Pipeline[Any], **options: Any) -> list[Any]:
        with data.loader(seed=SEED, **options) as loader:
            loader.start()
            # Other preparations go here. Meanwhile the pool fills its buffer.
            return list(loader)

    with tempfile.TemporaryDirectory() as folder, ps.Processes(2) as processes, ps.Threads(2) as threads:
        images = write_images(Path(folder))
        parallel = run(build(images, processes))
        threaded = run(build(images, threads))
        serial = run(build(images, processes), inline=True)
        # The same processes, still warm, serve the validation set.
        validated = run(build(ImageFiles(images.paths[:100]), processes))

    assert same(parallel, serial), "the batches of the pool differ from those of one thread"
    workers = {int(pid) for _, _, pids in parallel + validated for pid in pids}
    print(f"{len(parallel)} batches by {len(workers)} processes, equal to those of threads and of a serial run")
    return Summary(
        batches=len(parallel),
        last_batch=len(parallel[-1][1]),
        labels_seen_once=sorted(int(y) for _, labels, _ in parallel for y in labels) == list(range(IMAGES)),
        augmented_here=os.getpid() in workers or len(workers) > 2,
        same_as_threads=same(parallel, threaded),
        same_as_serial=same(parallel, serial),
        validated=sum(len(labels) for _, labels, _ in validated),
    )


if __name__ == "__main__":
    main()
