"""decode_image: from the bytes of an image file to an array.

What may be relied on:

* The array is new, writable, uint8 and contiguous, and always has three dimensions.
* EXIF orientation is applied, whatever decodes.
* The number of pixels is compared with a limit before any memory is allocated for them.
* Data that is empty, truncated or no image raises `DecodeError`. No half-decoded image is returned. Damage in the
  middle of a JPEG is found where the decoder finds it: JPEG has no checksum.

JPEG is decoded by simplejpeg, by OpenCV where that is missing, and by Pillow where both are. Everything else is
decoded by Pillow; of several frames it takes the first. Gray and palette images become the mode that was asked for.
Alpha is dropped, not blended, unless the mode has it. CMYK is converted without a colour profile. Of 16 bits the
upper 8 are kept. Files that another program would have to run, such as EPS, are refused.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from penstock.checks import whole_number
from penstock.errors import DecodeError, PlanError, missing_extra
from penstock.image.header import Jpeg, is_jpeg, jpeg_header, png_size
from penstock.image.resample import opencv, pillow, resized

#: as Pillow has it: a quarter of a GB in three colours
MAX_PIXELS = 89_478_485

Mode: TypeAlias = Literal["RGB", "L", "RGBA"]
Layout: TypeAlias = Literal["HWC", "CHW"]
Size: TypeAlias = int | tuple[int, int] | None
Pixels: TypeAlias = NDArray[np.uint8]

_CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4}
_NOT_GIVEN: Any = object()
#: simplejpeg has no name for this subsampling, and others can decode it
_UNUSUAL = "subsampling"
#: formats of Pillow whose files another program would run (Ghostscript runs EPS), or that may hold such a file
_PROGRAMS = frozenset({"EPS", "WMF", "IPTC"})
_USUAL = {b"\xff\xd8\xff": ("JPEG",), b"\x89PNG": ("PNG",), b"GIF8": ("GIF",)}


@overload
def decode_image(
    *, mode: Mode = "RGB", size: Size = None, layout: Layout = "HWC", max_pixels: int = MAX_PIXELS
) -> ImageDecoder: ...
@overload
def decode_image(
    data: bytes, *, mode: Mode = "RGB", size: Size = None, layout: Layout = "HWC", max_pixels: int = MAX_PIXELS
) -> Pixels: ...
def decode_image(
    data: Any = _NOT_GIVEN,
    *,
    mode: Mode = "RGB",
    size: Size = None,
    layout: Layout = "HWC",
    max_pixels: int = MAX_PIXELS,
) -> Any:
    """The bytes of an image file as a new uint8 array; without data, a function that decodes with these settings.

    ``map(ps.decode_image, key="image")`` and ``map(ps.decode_image(size=256), key="image")`` both work.

    * ``mode``: ``"RGB"``, ``"L"`` (gray, one channel) or ``"RGBA"``.
    * ``size``: an int decodes a JPEG at the smallest of the scales 1, 1/2, 1/4 and 1/8 at which its shorter side is
      not below this number; that takes less time, and a crop or a resize follows. ``(height, width)`` gives exactly
      this size, with antialiasing.
    * ``layout``: ``"HWC"`` or ``"CHW"``.
    * ``max_pixels``: an image with more pixels is refused before it is decoded.

    Empty, truncated and damaged data raise `ps.DecodeError`.

    >>> import io
    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (640, 480), "red").save(file, "JPEG")
    >>> decode_image(file.getvalue()).shape, decode_image(size=200)(file.getvalue()).shape
    ((480, 640, 3), (240, 320, 3))
    """
    decoder = ImageDecoder(mode, size, layout, max_pixels)
    return decoder if data is _NOT_GIVEN else decoder(data)


@dataclass(frozen=True)
class ImageDecoder:
    """`decode_image` with settings. Made by it."""

    mode: Mode = "RGB"
    size: Size = None
    layout: Layout = "HWC"
    max_pixels: int = MAX_PIXELS

    __name__ = "decode_image"

    def __post_init__(self) -> None:
        if self.mode not in _CHANNELS:
            raise PlanError(f"decode_image: mode is one of {', '.join(_CHANNELS)}, got {self.mode!r}")
        if self.layout not in ("HWC", "CHW"):
            raise PlanError(f"decode_image: layout is HWC or CHW, got {self.layout!r}")
        sides = self.size if isinstance(self.size, tuple) else () if self.size is None else (self.size,)
        if isinstance(self.size, tuple) and len(self.size) != 2:
            raise PlanError(f"decode_image: size is a number or (height, width), got {self.size!r}")
        for side in sides:
            whole_number(side, "decode_image: size", least=1)
        whole_number(self.max_pixels, "decode_image: max_pixels", least=1)

    def __call__(self, data: Any) -> Pixels:
        """The image in `data`, the bytes of a file."""
        data = _checked(data)
        if is_jpeg(data):
            image, orientation = self._jpeg(data)
        else:
            image, orientation = self._other(data)
        if isinstance(self.size, tuple):
            height, width = self.size if orientation < 5 else self.size[::-1]
            if image.shape[:2] != (height, width):
                image = resized(image, height, width)
        image = _upright(image, orientation)
        return np.ascontiguousarray(image.transpose(2, 0, 1) if self.layout == "CHW" else image)

    # ------------------------------------------------------------------ JPEG

    def _jpeg(self, data: bytes) -> tuple[Pixels, int]:
        try:
            header = jpeg_header(data)
        except ValueError as exc:
            raise _broken(data, str(exc)) from None
        self._check_pixels(header.width, header.height)
        # The compressed data itself never contains this. It is at the very end of most files.
        if data.rfind(b"\xff\xd9", header.scan) < 0:
            raise _broken(
                data, f"it is truncated: its header says {header.width} × {header.height}, and its end is missing"
            )
        least = self._least(header)
        image = None
        # Only Pillow knows what the values of four colours mean.
        if header.components < 4:
            image = _by_simplejpeg(data, self.mode, least)
        if image is None and (header.components < 4 or pillow() is None):
            image = _by_opencv(data, self.mode, _reduction(header, least))
        if image is None:
            image, _ = _by_pillow(data, self.mode, self._check_pixels, _reduction(header, least))
        return image, header.orientation

    def _least(self, header: Jpeg) -> tuple[int, int]:
        """The height and width that a scaled decoding must not go below."""
        height, width = header.height, header.width
        if self.size is None:
            return height, width
        if isinstance(self.size, tuple):
            least = self.size if header.orientation < 5 else self.size[::-1]
            return min(least[0], height), min(least[1], width)
        # Of the scales between these, decoders have slow code or none.
        scale = max((one for one in (1, 2, 4, 8) if -(-min(height, width) // one) >= self.size), default=1)
        return -(-height // scale), -(-width // scale)

    def _check_pixels(self, width: int, height: int) -> None:
        if width * height > self.max_pixels:
            raise DecodeError(
                f"an image of {width} × {height} has {width * height:,} pixels, and max_pixels is "
                f"{self.max_pixels:,}; if you trust the file, raise the limit: decode_image(max_pixels=...)"
            )

    # ------------------------------------------------------------------ everything else

    def _other(self, data: bytes) -> tuple[Pixels, int]:
        if (size := png_size(data)) is not None:
            self._check_pixels(*size)
        return _by_pillow(data, self.mode, self._check_pixels)


def _checked(data: Any) -> bytes:
    if isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.ndim == 1:
        data = data.tobytes()
    if isinstance(data, (bytearray, memoryview)):
        data = bytes(data)
    if not isinstance(data, bytes):
        raise TypeError(f"decode_image takes the bytes of an image file, got {type(data).__name__}")
    if not data:
        raise DecodeError("the image is empty: 0 bytes")
    return data


def _broken(data: bytes, why: str) -> DecodeError:
    kind = "JPEG" if is_jpeg(data) else "PNG" if png_size(data) else f"image that begins with {data[:8]!r}"
    return DecodeError(f"the {kind} of {len(data)} bytes cannot be decoded: {why}")


# ---------------------------------------------------------------------- decoders


def _by_simplejpeg(data: bytes, mode: str, least: tuple[int, int]) -> Pixels | None:
    """None if simplejpeg is not installed, or does not know this kind of JPEG."""
    try:
        from simplejpeg import decode_jpeg
    except ImportError:
        return None
    try:
        found: Pixels = decode_jpeg(data, "GRAY" if mode == "L" else mode, min_height=least[0], min_width=least[1])
    except ValueError as exc:
        if _UNUSUAL in str(exc):
            return None
        raise _broken(data, str(exc)) from exc
    return found


def _reduction(header: Jpeg, least: tuple[int, int]) -> int:
    """By how much a JPEG may be made smaller while it is decoded."""
    height, width = header.height, header.width
    return max(
        one for one in (1, 2, 4, 8) if one == 1 or (-(-height // one) >= least[0] and -(-width // one) >= least[1])
    )


def _by_opencv(data: bytes, mode: str, reduction: int) -> Pixels | None:
    """None if OpenCV is not installed."""
    cv2 = opencv()
    if cv2 is None:
        return None
    kind = "GRAYSCALE" if mode == "L" else "COLOR"
    flag = getattr(cv2, f"IMREAD_REDUCED_{kind}_{reduction}" if reduction > 1 else f"IMREAD_{kind}")
    direct = mode == "RGB" and reduction == 1 and hasattr(cv2, "IMREAD_COLOR_RGB")  # since 4.11
    flag = cv2.IMREAD_COLOR_RGB if direct else flag
    image = cv2.imdecode(np.frombuffer(data, np.uint8), flag | cv2.IMREAD_IGNORE_ORIENTATION)
    if image is None:
        raise _broken(data, "OpenCV finds it damaged")
    if mode != "L" and not direct:
        image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB if mode == "RGB" else cv2.COLOR_BGR2RGBA)
    return image.reshape(*image.shape[:2], _CHANNELS[mode])  # type: ignore[no-any-return]


def _by_pillow(data: bytes, mode: str, check: Any, reduction: int = 0) -> tuple[Pixels, int]:
    """The image and its orientation. `reduction` is for a JPEG, whose orientation the caller knows."""
    module = pillow()
    if module is None:
        raise missing_extra("pillow", "images", "decoding this image")
    try:
        with module.open(io.BytesIO(data), formats=_formats(module, data)) as image:
            check(*image.size)
            if reduction:
                image.draft("L" if mode == "L" else None, tuple(side // reduction for side in image.size))
            image.load()
            check(*image.size)  # an icon may hold a larger image than its header says
            orientation = 1 if reduction else int(image.getexif().get(0x0112, 1))
            return _converted(module, image, mode), orientation if 1 <= orientation <= 8 else 1
    except (DecodeError, MemoryError):
        raise
    except module.DecompressionBombError as exc:
        raise _broken(data, f"{exc} That limit is Pillow's own: PIL.Image.MAX_IMAGE_PIXELS sets it") from None
    except module.UnidentifiedImageError:
        raise _broken(data, "it is of no kind that Pillow knows") from None
    except Exception as exc:  # its plugins raise whatever parsing raises
        raise _broken(data, str(exc) or type(exc).__name__) from exc


def _formats(module: Any, data: bytes) -> tuple[str, ...]:
    """What Pillow may take the data for: the format that its first bytes name, or all but those of programs."""
    return next((names for start, names in _USUAL.items() if data.startswith(start)), None) or _others(module)


@cache
def _others(module: Any) -> tuple[str, ...]:
    module.init()  # which imports all plugins: usual images do without it
    return tuple(name for name in module.ID if name not in _PROGRAMS)


def _converted(module: Any, image: Any, mode: str) -> Pixels:
    if image.mode == "F":
        raise ValueError("it has floating-point values, which have no common range")
    if image.mode.startswith("I"):
        values = np.asarray(image)
        if image.mode == "I" and (values.min() < 0 or values.max() > 0xFFFF):
            raise ValueError("it has values of 32 bits, which have no common range")
        # Pillow would clip 16 bits to 255.
        image = module.fromarray((values.astype(np.uint32) >> 8).astype(np.uint8))
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    if image.mode != mode:
        image = image.convert(mode)
    pixels = np.array(image)
    return pixels.reshape(*pixels.shape[:2], _CHANNELS[mode])


def _upright(image: Pixels, orientation: int) -> Pixels:
    """The image as it is to be seen, by the number that EXIF has for how it is stored."""
    if orientation in (2, 3, 6, 7):
        image = image[:, ::-1] if orientation < 4 else image[::-1]
    if orientation in (3, 4):
        image = image[::-1]
    if orientation in (7, 8):
        image = image[:, ::-1]
    return image.swapaxes(0, 1) if orientation > 4 else image
