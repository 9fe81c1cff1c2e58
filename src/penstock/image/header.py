"""What the first bytes of an image say: its format, its size, how it is to be turned. Pure.

Decoders allocate memory for as many pixels as the header says, so the header is read before them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_ORIENTATION = 0x0112
#: frames of every kind of JPEG; C4, C8 and CC are tables
_FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_STANDALONE = frozenset({0x01, *range(0xD0, 0xD8)})
_SCAN, _END, _APP1 = 0xDA, 0xD9, 0xE1
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, slots=True)
class Jpeg:
    """What the segments before the first scan say."""

    width: int
    height: int
    components: int
    #: as EXIF has it: 1 is upright
    orientation: int
    #: where the compressed data begins
    scan: int


def is_jpeg(data: bytes) -> bool:
    return data[:3] == b"\xff\xd8\xff"


def png_size(data: bytes) -> tuple[int, int] | None:
    """Width and height of a PNG; None for anything else."""
    if data[:8] != _PNG or data[12:16] != b"IHDR" or len(data) < 24:
        return None
    width, height = struct.unpack_from(">II", data, 16)
    return width, height


def jpeg_header(data: bytes) -> Jpeg:
    """The header of a JPEG; ValueError says what is wrong with it."""
    try:
        return _jpeg_header(data)
    except (IndexError, struct.error):
        raise ValueError("it ends within its header") from None


def _jpeg_header(data: bytes) -> Jpeg:
    at, orientation, frame = 2, 1, (0, 0, 0)
    while True:
        while data[at] != 0xFF or data[at + 1] == 0xFF:  # bytes that mean nothing, and fill bytes
            at += 1
        marker = data[at + 1]
        if marker == 0 or marker in _STANDALONE:
            at += 2
            continue
        if marker == _END:
            raise ValueError("it has no image data")
        length = data[at + 2] << 8 | data[at + 3]
        if length < 2 or at + 2 + length > len(data):
            raise ValueError("it ends within its header")
        if marker == _SCAN:
            if not frame[0] or not frame[1]:
                raise ValueError("its header does not say how large it is")
            return Jpeg(*frame, orientation, at + 2 + length)
        if marker in _FRAMES and not frame[0]:
            height, width, components = struct.unpack_from(">HHB", data, at + 5)
            frame = (width, height, components)
        elif marker == _APP1 and data[at + 4 : at + 10] == b"Exif\0\0":
            orientation = _orientation(data[at + 10 : at + 2 + length])
        at += 2 + length


def _orientation(tiff: bytes) -> int:
    """How EXIF says the image is to be turned; 1, which is upright, if it does not say so or is damaged."""
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None:
        return 1
    try:
        (start,) = struct.unpack_from(order + "I", tiff, 4)
        (count,) = struct.unpack_from(order + "H", tiff, start)
        for number in range(count):
            tag, kind, _, value = struct.unpack_from(order + "HHIH", tiff, start + 2 + 12 * number)
            if tag == _ORIENTATION and kind == 3:
                return int(value) if 1 <= value <= 8 else 1
    except struct.error:
        return 1
    return 1
