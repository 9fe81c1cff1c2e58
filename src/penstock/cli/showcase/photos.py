"""Photo-like pictures for ``penstock demo``, and what a vision pipeline does to them.

The pictures are soft patches at several scales with grain on top: about as costly to decode as a
photo of their size, and made in a few milliseconds each.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.errors import missing_extra

WIDTH, HEIGHT = 480, 360
CROP = 224

Pixels = npt.NDArray[np.uint8]

try:
    from PIL import Image
except ImportError:  # said by make_photos, the first thing the demo calls
    Image = None


def make_photos(folder: Path, count: int) -> list[str]:
    """Write ``count`` JPEG files, the same on every machine, and return their paths."""
    if Image is None:
        raise missing_extra("pillow", "demo", "penstock demo")
    rng = np.random.default_rng(7)
    paths = []
    for number in range(count):
        path = folder / f"{number:05d}.jpg"
        Image.fromarray(_photo(rng)).save(path, quality=85)
        paths.append(str(path))
    return paths


def _photo(rng: np.random.Generator) -> Pixels:
    light = np.zeros((HEIGHT, WIDTH, 3), np.float32)
    for cells, weight in ((3, 0.6), (9, 0.3), (40, 0.1)):
        patches = Image.fromarray(rng.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
        light += weight * np.asarray(patches.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), np.float32)
    light += 6 * rng.standard_normal((HEIGHT, WIDTH, 1), dtype=np.float32)
    return light.clip(0, 255).astype(np.uint8)


def load(path: str) -> Pixels:
    """Read and decode one file."""
    with Image.open(path) as image:
        return np.asarray(image)


def augment(photo: Pixels, rng: np.random.Generator) -> Pixels:
    """A random crop, flipped half of the time. Bytes, so that scaling is left to the accelerator."""
    top, left = (int(rng.integers(0, size - CROP + 1)) for size in photo.shape[:2])
    crop = photo[top : top + CROP, left : left + CROP]
    return crop[:, ::-1] if rng.random() < 0.5 else crop
