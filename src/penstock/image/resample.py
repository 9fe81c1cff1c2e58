"""Another size for an image, with antialiasing, by OpenCV or Pillow.

Where OpenCV is installed, it makes an image smaller by averaging the area under each new pixel (``INTER_AREA``),
and larger by linear interpolation. Otherwise Pillow does both with its linear filter, whose support grows with the
factor. Neither skips pixels, which is what causes aliasing. The two give slightly different values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import missing_extra

Image = NDArray[Any]

#: that OpenCV resizes at once
_MOST_CHANNELS = 4


def opencv() -> Any:
    """The module cv2; None if it is not installed."""
    try:
        import cv2
    except ImportError:
        return None
    return cv2


def pillow() -> Any:
    """The module PIL.Image; None if it is not installed."""
    try:
        from PIL import Image as module
    except ImportError:
        return None
    return module


def checked_image(image: Any, what: str) -> Image:
    """`image`, if it is an array of height × width, or of these × channels."""
    if not isinstance(image, np.ndarray) or image.ndim not in (2, 3) or 0 in image.shape:
        shown = f"{image.dtype} {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
        raise TypeError(f"{what} takes an image as an array of height × width × channels, got {shown}")
    return image


def resized(image: Image, height: int, width: int) -> Image:
    """A new array of that size. Width and height may be scaled by different factors."""
    if image.shape[:2] == (height, width):
        return image.copy()
    if image.ndim == 3 and image.shape[2] > _MOST_CHANNELS:
        starts = range(0, image.shape[2], _MOST_CHANNELS)
        parts = [resized(image[..., start : start + _MOST_CHANNELS], height, width) for start in starts]
        return np.concatenate(parts, axis=2)
    cv2 = opencv()
    small = _by_opencv(cv2, image, height, width) if cv2 is not None else _by_pillow(image, height, width)
    return small.reshape(height, width, *image.shape[2:])  # OpenCV drops a single channel


def _by_opencv(cv2: Any, image: Image, height: int, width: int) -> Image:
    # With one side smaller and one larger, INTER_AREA would not average: one side after the other.
    low = min(height, image.shape[0]), min(width, image.shape[1])
    if low != image.shape[:2]:
        image = cv2.resize(image, (low[1], low[0]), interpolation=cv2.INTER_AREA)
    if low != (height, width):
        image = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
    return image


def _by_pillow(image: Image, height: int, width: int) -> Image:
    module = pillow()
    if module is None:
        raise missing_extra("pillow or opencv-python", "images", "resizing images")
    if image.dtype != np.uint8:
        raise TypeError(f"resizing images of {image.dtype} needs opencv-python; Pillow takes uint8")
    # One channel after the other: with four, Pillow would take the last for alpha and darken the colours.
    channels = [image] if image.ndim == 2 else [image[..., number] for number in range(image.shape[2])]
    if len(channels) == 3:
        return _through_pillow(module, image, height, width)
    return np.stack([_through_pillow(module, one, height, width) for one in channels], axis=-1)


def _through_pillow(module: Any, image: Image, height: int, width: int) -> Image:
    picture = module.fromarray(np.ascontiguousarray(image))
    return np.array(picture.resize((width, height), module.Resampling.BILINEAR))


def mirrored(image: Image) -> Image:
    """A new array, left to right."""
    cv2 = opencv()
    if cv2 is None or image.dtype != np.uint8:
        return np.ascontiguousarray(image[:, ::-1])
    return cv2.flip(image, 1).reshape(image.shape)  # type: ignore[no-any-return]
