"""A thread pool over arrays that load themselves, started ahead, with the order of a serial run.

The flow of BatchUp's "Parallel processing for faster batching": images stay on disk behind an
object that looks like an array; a pool of four threads prepares batches in the background, up to 32
of them ahead, while the program is still busy with other preparations; and a seeded shuffle gives
exactly the batches that one thread alone would give.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

import penstock as ps

IMAGES = 400
SIDE = 32
BATCH = 64
SEED = 12345

Pixels = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


class Summary(TypedDict):
    """What ``main`` returns."""

    batches: int
    last_batch: int
    labels_seen_once: bool
    same_as_serial: bool


class ImageFiles:
    """Looks like an array of images; reads the files when it is indexed."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Any) -> Pixels:
        """One image for an int, a stack of them for a 1-D integer array."""
        if isinstance(index, int | np.integer):
            image: Pixels = np.load(self.paths[int(index)])
            return image
        return np.stack([np.load(self.paths[int(i)]) for i in index])


def augment(sample: tuple[Pixels, int], rng: np.random.Generator) -> tuple[Pixels, int]:
    """Flip half of the images, and add a little noise."""
    image, label = sample
    if rng.random() < 0.5:
        image = image[:, ::-1]
    return image + rng.standard_normal(image.shape, np.float32) * np.float32(0.01), label


def write_images(folder: Path) -> ImageFiles:
    """One file per image."""
    rng = np.random.default_rng(0)
    paths = [folder / f"{number:04d}.npy" for number in range(IMAGES)]
    for path in paths:
        np.save(path, rng.random((SIDE, SIDE), np.float32))
    return ImageFiles(paths)


def build(images: ImageFiles, labels: Labels, pool: ps.Threads) -> ps.Pipeline[Any]:
    """Whatever the pool: the order and the augmentation come from the seed alone."""
    return ps.from_arrays(images, labels).shuffle().map(augment, on=pool, rng=True).batch(BATCH).prefetch(32)


def main() -> Summary:
    """Compare the batches of the pool with those of a serial run."""
    labels = np.arange(IMAGES)
    with tempfile.TemporaryDirectory() as folder, ps.Threads(4) as pool:
        data = build(write_images(Path(folder)), labels, pool)
        with data.loader(seed=SEED) as loader:
            loader.start()
            # Other preparations go here: building the model, reading a checkpoint. Meanwhile the
            # pool fills its buffer, and the first batches are ready when the loop asks for them.
            parallel = list(loader)
        with data.loader(seed=SEED, inline=True) as loader:
            serial = list(loader)
    same = len(parallel) == len(serial) and all(
        np.array_equal(a, b)
        for left, right in zip(parallel, serial, strict=True)
        for a, b in zip(left, right, strict=True)
    )
    assert same, "the batches of the pool differ from those of one thread"
    seen = np.concatenate([y for _, y in parallel])
    print(f"{len(parallel)} batches by 4 threads, equal to the serial run bit for bit: {same}")
    return Summary(
        batches=len(parallel),
        last_batch=len(parallel[-1][1]),
        labels_seen_once=sorted(seen.tolist()) == list(range(IMAGES)),
        same_as_serial=same,
    )


if __name__ == "__main__":
    main()
