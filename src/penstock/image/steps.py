"""The usual steps between decoding and a batch, each a function with settings.

Every name here is called with its settings and returns a function of an image, or of an image and a generator of
random numbers for ``map(..., rng=True)``. Two steps with the same settings are equal and can be sent to worker
processes. An image is an array of height × width × channels. A step does not change the array that it gets.
Sizes are ``(height, width)``, or one number for both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.checks import whole_number
from penstock.errors import PlanError
from penstock.image.resample import Image, checked_image, mirrored, resized

#: of ImageNet's training images, as most published models have it
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
#: crops that are drawn before the middle of the image is taken
_DRAWS = 10


def _pair(size: Any, what: str) -> tuple[int, int]:
    sides = tuple(size) if isinstance(size, Sequence) else (size, size)
    if len(sides) != 2:
        raise PlanError(f"{what}: size is a number or (height, width), got {size!r}")
    return whole_number(sides[0], f"{what}: size", least=1), whole_number(sides[1], f"{what}: size", least=1)


# ---------------------------------------------------------------------- resize


@dataclass(frozen=True)
class _Resize:
    size: int | tuple[int, int]

    __name__ = "resize"

    def __call__(self, image: Any) -> Image:
        image = checked_image(image, "resize")
        if isinstance(self.size, tuple):
            return resized(image, *self.size)
        height, width = image.shape[:2]
        shorter = min(height, width)
        return resized(image, *(max(1, round(side * self.size / shorter)) for side in (height, width)))


def resize(size: int | tuple[int, int]) -> _Resize:
    """Images of another size, with antialiasing: a number is the new shorter side, ``(height, width)`` both sides.

    >>> resize(100)(np.zeros((400, 600, 3), np.uint8)).shape
    (100, 150, 3)
    """
    if isinstance(size, Sequence):
        return _Resize(_pair(size, "resize"))
    return _Resize(whole_number(size, "resize: size", least=1))


# ---------------------------------------------------------------------- crops


@dataclass(frozen=True)
class _CenterCrop:
    size: tuple[int, int]

    __name__ = "center_crop"

    def __call__(self, image: Any) -> Image:
        image = checked_image(image, "center_crop")
        (height, width), (rows, columns) = self.size, image.shape[:2]
        if rows < height or columns < width:
            scale = max(height / rows, width / columns)
            rows, columns = max(height, round(rows * scale)), max(width, round(columns * scale))
            image = resized(image, rows, columns)
        top, left = (rows - height) // 2, (columns - width) // 2
        middle: Image = image[top : top + height, left : left + width].copy()
        return middle


def center_crop(size: int | tuple[int, int]) -> _CenterCrop:
    """The middle of an image. One that is smaller than that is first made as much larger as needed.

    >>> center_crop(100)(np.zeros((400, 600, 3), np.uint8)).shape
    (100, 100, 3)
    """
    return _CenterCrop(_pair(size, "center_crop"))


@dataclass(frozen=True)
class _RandomResizedCrop:
    size: tuple[int, int]
    scale: tuple[float, float]
    ratio: tuple[float, float]

    __name__ = "random_resized_crop"

    def __call__(self, image: Any, rng: np.random.Generator) -> Image:
        image = checked_image(image, "random_resized_crop")
        top, left, height, width = self.box(image.shape[0], image.shape[1], rng)
        return resized(image[top : top + height, left : left + width], *self.size)

    def box(self, rows: int, columns: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
        """Top, left, height and width of the part to take."""
        narrow, wide = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(_DRAWS):
            share, shape, down, right = rng.random(4).tolist()
            area = rows * columns * (self.scale[0] + share * (self.scale[1] - self.scale[0]))
            ratio = math.exp(narrow + shape * (wide - narrow))
            width, height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < width <= columns and 0 < height <= rows:
                return int(down * (rows - height + 1)), int(right * (columns - width + 1)), height, width
        # Nothing fits into an image as narrow as this: as much of its middle as the ratio allows.
        width = min(columns, max(1, round(rows * self.ratio[1])))
        height = min(rows, max(1, round(columns / self.ratio[0])))
        return (rows - height) // 2, (columns - width) // 2, height, width


def random_resized_crop(
    size: int | tuple[int, int],
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> _RandomResizedCrop:
    """A random part of an image, resized to ``size`` with antialiasing: the crop of most ImageNet recipes.

    ``scale`` bounds the share of the area, ``ratio`` width by height. For ``map(..., rng=True)``.

    >>> crop = random_resized_crop(32)
    >>> crop(np.zeros((400, 600, 3), np.uint8), np.random.default_rng(0)).shape
    (32, 32, 3)
    """
    for name, (low, high) in (("scale", scale), ("ratio", ratio)):
        if not 0 < low <= high:
            raise PlanError(f"random_resized_crop: {name} is (low, high) with 0 < low <= high, got {(low, high)}")
    if scale[1] > 1:
        raise PlanError(f"random_resized_crop: scale is a share of the area, at most 1, got {scale}")
    return _RandomResizedCrop(_pair(size, "random_resized_crop"), (scale[0], scale[1]), (ratio[0], ratio[1]))


# ---------------------------------------------------------------------- values


@dataclass(frozen=True)
class _Flip:
    p: float

    __name__ = "flip"

    def __call__(self, image: Any, rng: np.random.Generator) -> Image:
        image = checked_image(image, "flip")
        return mirrored(image) if rng.random() < self.p else image


def flip(p: float = 0.5) -> _Flip:
    """Mirror images left to right with the probability ``p``; the others pass. For ``map(..., rng=True)``.

    >>> flip(p=1)(np.array([[1, 2, 3]], np.uint8), np.random.default_rng(0)).tolist()
    [[3, 2, 1]]
    """
    if not 0 <= p <= 1:
        raise PlanError(f"flip: p is a probability from 0 to 1, got {p!r}")
    return _Flip(p)


@dataclass(frozen=True)
class _Normalize:
    mean: tuple[float, ...]
    std: tuple[float, ...]
    layout: Literal["HWC", "CHW"]

    __name__ = "normalize"

    def __call__(self, image: Any) -> NDArray[np.float32]:
        image = checked_image(image, "normalize")
        channels = image.shape[2] if image.ndim == 3 else 1
        if len(self.mean) not in (1, channels):
            raise ValueError(f"normalize has {len(self.mean)} means, and the image {channels} channels")
        scale = np.float32(1 / 255) if image.dtype == np.uint8 else np.float32(1)
        std = np.array(self.std, np.float32)
        factor, offset = scale / std, np.array(self.mean, np.float32) / std
        if self.layout == "CHW" and image.ndim == 3:
            image, factor, offset = image.transpose(2, 0, 1), factor[:, None, None], offset[:, None, None]
        out: NDArray[np.float32] = np.empty(image.shape, np.float32)
        np.multiply(image, factor, out=out)
        np.subtract(out, offset, out=out)
        return out


def normalize(
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    *,
    layout: Literal["HWC", "CHW"] = "HWC",
) -> _Normalize:
    """Images as float32, ``(x - mean) / std`` for each channel; values of uint8 images are first divided by 255.

    ``layout="CHW"`` gives channels × height × width, as torch wants them. The default values are ImageNet's.

    >>> normalize([0.5], [0.5])(np.array([[0, 255]], np.uint8)).tolist()
    [[-1.0, 1.0]]
    """
    if not isinstance(mean, Iterable) or not isinstance(std, Iterable):
        raise PlanError(f"normalize: mean and std are lists, got {mean!r} and {std!r}; for one channel: [0.5]")
    if len(mean) != len(std) or not len(mean):
        raise PlanError(f"normalize: mean and std have one value for each channel, got {len(mean)} and {len(std)}")
    if not all(value > 0 for value in std):
        raise PlanError(f"normalize: std is above 0, got {tuple(std)}")
    if layout not in ("HWC", "CHW"):
        raise PlanError(f"normalize: layout is HWC or CHW, got {layout!r}")
    return _Normalize(tuple(map(float, mean)), tuple(map(float, std)), layout)
