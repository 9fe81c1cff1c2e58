"""Samples for the network: a header and raw bytes. Nothing that came is ever run, and no class imported by name.

The header is msgpack. It holds everything but arrays and tensors, and says where those lie, each at a multiple of
64 bytes: in one memory (the cache on disk), or in several frames, of which the first holds all small arrays and
each other one a large array (the data server). Between our own processes, `penstock.memory.codec` is faster and
carries more.

* **Copied once.** `layout_of` only measures; `Layout.write` copies every array to its place.
* **Viewed, not copied.** Decoded arrays and tensors look into the memory and keep it alive.
* **Any header is safe to decode.** It gives samples that hold no more than the header and the memory do, up to a
  constant factor, or a `CodecError`. A tensor in it imports torch, and nothing else is imported.
* **With `limits`, for headers of strangers**, the header is looked through before anything is made of it
  (`penstock.memory.scan`), keys are strings, and nothing at all is imported: a tensor needs torch to be there.

Carried are dicts, lists, tuples, arrays and scalars of numpy without fields or objects, tensors of torch, str,
bytes, int of 64 bits, float, bool and None. A named tuple arrives as a tuple, a dataclass as a dict, a tensor on
the CPU, and an array in C order. Anything else is refused, with its place among the samples.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.errors import BadHeader, CodecError, NotCarried
from penstock.memory.scan import DOOR, Limits, check
from penstock.tensors import ARRAY_DTYPES, array_of, dtype_name, is_tensor, tensor_of

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

#: the first byte of every header; another one for each change that an older reader would misread
VERSION = 3
#: where arrays begin: a multiple of the cache line, which suits every dtype
ALIGNMENT = 64
#: containers inside of containers
DEEPEST = 100

#: an array of at least this many bytes has a frame of its own, so that nobody copies it
LARGE_BYTES = 32 << 10
#: a bytes object of at least this length is not part of the header
_LONG_BYTES = 1024
#: a place is the number of its frame in the high bits, and the offset in that frame
_FRAME = 1 << 48
#: the most bytes that the dimensions of an array without elements may stand for
_LARGEST_EMPTY = 1 << 32

#: what msgpack has no type of its own for
_TUPLE, _ARRAY, _SCALAR, _TENSOR, _BYTES = range(5)
_LEAVES = frozenset({_ARRAY, _SCALAR, _TENSOR, _BYTES})

_Size = Annotated[int, msgspec.Meta(ge=0)]
_Shape = Annotated[tuple[_Size, ...], msgspec.Meta(max_length=64)]
#: dtype, shape and offset of an array
_Place: TypeAlias = tuple[Annotated[str, msgspec.Meta(max_length=40)], _Shape, _Size]

_ENCODER = msgspec.msgpack.Encoder()
_PLACE: msgspec.msgpack.Decoder[_Place] = msgspec.msgpack.Decoder(_Place)
_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
_SHORT = _PLAIN - {bytes}
_STRING = frozenset({str})
#: this machine's byte order, as dtypes write it
_ORDER = "<" if sys.byteorder == "little" else ">"

#: dtypes of plain values: no objects, and no fields
_DTYPE = re.compile(r"[<>|]([biufc][0-9]{1,2}|[SUV][0-9]{1,9}|[mM]8(\[([1-9][0-9]{0,8})?[a-zA-Z]{1,2}\])?)")


class Layout:
    """Samples that have been measured: their header, and how many bytes of memory their arrays need.

    It looks at their arrays until it is dropped; what is written is what they hold by then.

    >>> layout = layout_of([{"x": np.arange(3), "name": "a"}])
    >>> memory = bytearray(layout.nbytes)
    >>> layout.write(memory)
    >>> decode(layout.header, memory)
    [{'x': array([0, 1, 2]), 'name': 'a'}]
    """

    def __init__(self, samples: Any, in_frames: bool = False) -> None:
        #: of the memory, or of the first frame
        self.nbytes = 0
        self._in_frames = in_frames
        self._arrays: list[tuple[NDArray[Any], int]] = []
        self._large: list[NDArray[Any]] = []
        try:
            self.header = bytes((VERSION,)) + _ENCODER.encode(self._plain(samples))
        except (NotCarried, OverflowError, UnicodeEncodeError) as exc:
            raise NotCarried(f"samples{exc if isinstance(exc, NotCarried) else f': {exc}'}") from None

    def write(self, memory: WriteableBuffer) -> None:
        """Copy every array to its place. What lies between them is left as it is."""
        view = memoryview(memory)
        if view.nbytes < self.nbytes:
            raise ValueError(f"the arrays need {self.nbytes} bytes, the memory has {view.nbytes}")
        for array, offset in self._arrays:
            np.copyto(np.ndarray(array.shape, array.dtype, view, offset), array)

    def frames(self) -> list[memoryview]:
        """The raw frames: the small arrays together, and every large one alone, without a copy if in C order."""
        small = bytearray(self.nbytes)
        self.write(small)
        return [memoryview(small), *(one.reshape(-1).view(np.uint8).data for one in self._large)]

    def _plain(self, value: Any, depth: int = 0) -> Any:
        """The same in types that msgpack knows."""
        kind = type(value)
        if kind is bytes and self._in_frames and len(value) >= _LONG_BYTES:
            return self._place(_BYTES, np.frombuffer(value, np.uint8), "|u1")
        if kind in _PLAIN:
            return value
        if kind is np.ndarray or kind is np.memmap:
            return self._place(_ARRAY, value, value.dtype.str)
        if isinstance(value, (np.str_, np.bytes_)):
            return value.item()
        if isinstance(value, np.generic):
            return self._place(_SCALAR, np.asarray(value), value.dtype.str)
        if is_tensor(value) and value.is_leaf and (name := dtype_name(value)) is not None:
            return self._place(_TENSOR, array_of(value), _ORDER + name)
        if kind is list and self._in_header.issuperset(map(type, value)):
            return value
        if depth == (DOOR.depth if self._in_frames else DEEPEST):
            raise NotCarried(f": nested deeper than {depth}, or inside of itself")
        if kind is dict:
            if self._in_frames and not _STRING.issuperset(map(type, value)):
                found = next(key for key in value if type(key) is not str)
                raise NotCarried(
                    f": a dict with the key {found!r} cannot be sent over the network; use strings as keys"
                )
            return dict(zip(value, self._each(value.values(), list(value), depth), strict=True))
        if dataclasses.is_dataclass(kind):
            names = [field.name for field in dataclasses.fields(kind)]
            return dict(zip(names, self._each([getattr(value, name) for name in names], names, depth), strict=True))
        if kind is list:
            return self._each(value, range(len(value)), depth)
        if kind is tuple or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
            return msgspec.msgpack.Ext(_TUPLE, _ENCODER.encode(self._each(value, range(len(value)), depth)))
        raise NotCarried(
            f": a {kind.__module__}.{kind.__qualname__} cannot be sent over the network; make it an array, a "
            "number, a string or bytes, or a dict, list or tuple of these"
        )

    @property
    def _in_header(self) -> frozenset[type]:
        """Types that are in the header whatever their value."""
        return _SHORT if self._in_frames else _PLAIN

    def _each(self, values: Iterable[Any], names: Any, depth: int) -> list[Any]:
        found: list[Any] = []
        try:
            for value in values:
                found.append(self._plain(value, depth + 1))
        except NotCarried as exc:
            raise NotCarried(f"[{names[len(found)]!r}]{exc}") from None
        return found

    def _place(self, kind: int, array: NDArray[Any], name: str) -> msgspec.msgpack.Ext:
        if array.dtype.names is not None or not _DTYPE.fullmatch(array.dtype.str):
            raise NotCarried(
                f": values of dtype {array.dtype} cannot be sent over the network; make it an array of numbers "
                "or of strings of a fixed size, or a dict of such arrays"
            )
        offset = 0
        if self._in_frames and array.nbytes >= LARGE_BYTES:
            self._large.append(np.ascontiguousarray(array))
            offset = len(self._large) * _FRAME
        elif array.nbytes:
            offset = -(-self.nbytes // ALIGNMENT) * ALIGNMENT
            self._arrays.append((array, offset))
            self.nbytes = offset + array.nbytes
        return msgspec.msgpack.Ext(kind, _ENCODER.encode((name, array.shape, offset)))


def layout_of(samples: Any, *, in_frames: bool = False) -> Layout:
    """Measure samples; no array is copied. Raises NotCarried, with the place of what cannot be sent.

    With `in_frames` it is for a stranger, who takes it in with limits: keys must be strings, and what is large has
    a frame of its own.

    >>> layout_of({"x": [1, {2, 3}]})
    Traceback (most recent call last):
    ...
    penstock.errors.NotCarried: samples['x'][1]: a builtins.set cannot be sent over the network; ...
    """
    return Layout(samples, in_frames)


def decode(
    header: ReadableBuffer, memory: ReadableBuffer | Sequence[ReadableBuffer] = b"", limits: Limits | None = None
) -> Any:
    """The samples that a header describes, with arrays that look into `memory`, to which a layout was written.

    A sequence stands for the frames of the layout. With `limits` nothing is decoded that has not been looked at.
    """
    data = memoryview(header)
    if not data.nbytes or data[0] != VERSION:
        found = f"of version {data[0]}" if data.nbytes else "empty"
        raise BadHeader(f"the header is {found}, and not of version {VERSION}; use one penstock on both sides")
    frames: Sequence[Any] = memory if isinstance(memory, (list, tuple)) else [memory]
    views = [memoryview(one) for one in frames]
    if limits is not None:
        _check_frames(views, limits)
        check(data[1:], limits, _TUPLE, _LEAVES)
    try:
        # Kept by nobody: a cycle of decoder and hook would keep the frames until the garbage collector runs.
        return msgspec.msgpack.Decoder(ext_hook=_Reading(views, limits).made).decode(data[1:])
    except CodecError:
        raise
    except (msgspec.DecodeError, TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise BadHeader(f"the header is damaged: {exc}") from None


@lru_cache(256)
def _dtype_of(name: str) -> np.dtype[Any]:
    if not _DTYPE.fullmatch(name):
        raise BadHeader(f"the header names the dtype {name!r}, which is not one of plain values")
    return np.dtype(name)


def _check_frames(frames: Sequence[memoryview], limits: Limits) -> None:
    total = sum([one.nbytes for one in frames])
    if len(frames) > limits.frames or total > limits.body_bytes:
        raise BadHeader(
            f"the body has {total} bytes in {len(frames)} frames, "
            f"and {limits.body_bytes} in {limits.frames} are accepted"
        )


class _Reading:
    """Makes what msgpack has no type for. msgspec checks types; sizes, places and names are checked here."""

    def __init__(self, views: Sequence[memoryview], limits: Limits | None) -> None:
        self.frames = [view.cast("B") if view.nbytes else memoryview(b"") for view in views]
        #: how far each frame has been given away
        self.ends = [0] * len(views)
        self.limits = limits

    def made(self, kind: int, data: memoryview) -> Any:
        if kind == _TUPLE:
            return tuple(msgspec.msgpack.Decoder(list, ext_hook=self.made).decode(data))
        if kind not in _LEAVES:
            raise BadHeader(f"the header holds a value of kind {kind}, which is not known")
        name, shape, offset = _PLACE.decode(data)
        if self.limits is not None and len(shape) > self.limits.dimensions:
            raise BadHeader(
                f"the header names an array of {len(shape)} dimensions, and {self.limits.dimensions} are accepted"
            )
        if kind == _TENSOR:
            return self.tensor(name, shape, offset)
        dtype = _dtype_of(name)
        if kind == _ARRAY:
            return self.array(dtype, shape, offset)
        if kind == _BYTES:
            return self.array(dtype, shape, offset).tobytes()
        if shape or dtype.kind == "U":  # numpy does not check its characters
            raise BadHeader(f"the header names a scalar of shape {shape} and dtype {dtype}")
        return self.array(dtype, shape, offset)[()]

    def tensor(self, name: str, shape: tuple[int, ...], offset: int) -> Any:
        full, name = name, name[1:]
        if name not in ARRAY_DTYPES or full[0] not in "<>":
            raise BadHeader(f"the header names a tensor of {full!r}, which is not carried")
        if self.limits is not None and "torch" not in sys.modules:
            raise CodecError(
                "the samples hold tensors, and torch is not imported here; import torch before reading them"
            )
        array = self.array(ARRAY_DTYPES[name].newbyteorder("<" if full[0] == "<" else ">"), shape, offset)
        return tensor_of(array.astype(ARRAY_DTYPES[name], copy=False), name)

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int) -> NDArray[Any]:
        nbytes = prod(shape) * dtype.itemsize
        if not nbytes:
            if prod(max(size, 1) for size in shape) * max(dtype.itemsize, 1) > _LARGEST_EMPTY:
                raise BadHeader(
                    f"the header names an empty array of shape {shape}, which no array has been cut from"
                )
            return np.ndarray(shape, dtype)
        frame, offset = divmod(offset, _FRAME)
        size = self.frames[frame].nbytes if frame < len(self.frames) else 0
        end = self.ends[frame] if frame < len(self.frames) else 0
        # No byte is claimed twice, or a short header could ask for the same memory a million times.
        if offset < end or offset % ALIGNMENT or offset + nbytes > size:
            raise BadHeader(
                f"the header puts {nbytes} bytes at {offset}, which is not a multiple of {ALIGNMENT} "
                f"between {end} and the end of the memory at {size}"
            )
        self.ends[frame] = offset + nbytes
        return np.ndarray(shape, dtype, self.frames[frame][offset : offset + nbytes])
