"""Images side by side in one PNG, without another library: numpy lays them out, zlib compresses."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.showing.describe import array_of
from penstock.trees import fields_of

#: the least size of an image, the largest that is shown, and the space between two
_LEAST, _LARGEST, _GAP = 8, 160, 4
_COLUMNS = 8
_CHANNELS = (1, 3, 4)


def images_in(tree: Any) -> Iterator[NDArray[np.uint8]]:
    """The images in a sample, a batch or a list of these, as (height, width, 3) of uint8.

    An image is an array or tensor with one, three or four channels, last or first, or with none; with one more
    dimension it is a batch of images. Floats are scaled to what can be seen.
    """
    array = array_of(tree)
    if array is not None:
        yield from _images(array)
        return
    inside: Iterable[Any] = tree if isinstance(tree, list) else (fields_of(tree) or {}).values()
    for value in inside:
        yield from images_in(value)


def _images(array: NDArray[Any]) -> Iterator[NDArray[np.uint8]]:
    if array.dtype.kind not in "uif" or (array.dtype.kind == "i" and array.dtype.itemsize > 2):
        return
    if array.ndim == 4 or (array.ndim == 3 and not _has_channels(array) and array.dtype == np.uint8):
        for one in array:
            yield from _images(one)
        return
    if array.ndim == 3 and array.shape[-1] not in _CHANNELS and array.shape[0] in _CHANNELS:
        array = np.moveaxis(array, 0, -1)
    if array.ndim == 2 and array.dtype == np.uint8:
        array = array[:, :, None]
    if array.ndim == 3 and array.shape[-1] in _CHANNELS and min(array.shape[:2]) >= _LEAST:
        yield _visible(array[:, :, :3] if array.shape[-1] == 4 else np.repeat(array, 3 // array.shape[-1], axis=2))


def _has_channels(array: NDArray[Any]) -> bool:
    return array.shape[-1] in _CHANNELS or array.shape[0] in _CHANNELS


def _visible(image: NDArray[Any]) -> NDArray[np.uint8]:
    """The image, small enough, as bytes."""
    step = -(-max(image.shape[:2]) // _LARGEST)
    image = image[::step, ::step]
    if image.dtype == np.uint8:
        return image
    # Doubles: the range of float32 numbers may be too large for a float32.
    values = image.astype(np.float64)
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    values = np.nan_to_num(values, nan=low, posinf=high, neginf=low)
    if low < 0 or high > 1:  # normalised, or of another range: from its darkest to its brightest
        values = (values - low) / (high - low or 1.0)
    return (values * 255).astype(np.uint8)


def sheet(images: Iterable[NDArray[np.uint8]], most: int = 64) -> NDArray[np.uint8] | None:
    """Some images side by side, eight in a row; None if there is none."""
    shown = [image for image, _ in zip(images, range(most), strict=False)]
    if not shown:
        return None
    height, width = (max(image.shape[axis] for image in shown) + _GAP for axis in (0, 1))
    columns = min(_COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    out = np.full((rows * height - _GAP, columns * width - _GAP, 3), 128, np.uint8)
    for number, image in enumerate(shown):
        top, left = number // columns * height, number % columns * width
        out[top : top + image.shape[0], left : left + image.shape[1]] = image
    return out


def png(image: NDArray[np.uint8]) -> bytes:
    """An image of (height, width, 3) as a PNG file."""
    height, width, _ = image.shape
    lines = np.zeros((height, 1 + 3 * width), np.uint8)  # each begins with the number of its filter: none
    lines[:, 1:] = image.reshape(height, 3 * width)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = b"".join(
        _chunk(kind, data)
        for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b""))
    )
    return b"\x89PNG\r\n\x1a\n" + body


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
