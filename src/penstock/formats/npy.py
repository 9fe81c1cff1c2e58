"""Arrays as the bytes of a ``.npy`` file, without pickle in either direction.

Reading parses each kind of header once: thousands of arrays of one dtype and shape share it.
"""

from __future__ import annotations

import io
import threading
from functools import lru_cache
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

_MAGIC = b"\x93NUMPY"
#: magic, version and the longest length field
_PREFIX = 12

# numpy parses a header with `ast`, and two threads that do so at once may get a SystemError from Python 3.11.
_parsing = threading.Lock()

Header = tuple[np.dtype[Any], bool, tuple[int, ...]]


class Pickled(ValueError):
    """A sound file that holds objects."""


def npy_bytes(array: NDArray[Any]) -> bytes:
    """`array` as a ``.npy`` file. Raises TypeError for a dtype that such a file cannot hold as it is.

    >>> npy_array(npy_bytes(np.array([[1, 2]], dtype="int16")))
    array([[1, 2]], dtype=int16)
    """
    dtype = array.dtype
    if dtype.hasobject or npy.descr_to_dtype(npy.dtype_to_descr(dtype)) != dtype:
        raise TypeError(f"an array of {dtype} cannot be written to a .npy file")
    buffer = io.BytesIO()
    npy.write_array(buffer, np.asarray(array), version=None, allow_pickle=False)
    return buffer.getvalue()


def header_length(start: bytes) -> int:
    """How many bytes stand before the values, from the first 12 of a file. Raises ValueError if it is none."""
    if start[:6] != _MAGIC or len(start) < _PREFIX:
        raise ValueError("this is not a .npy file")
    if start[6] == 1:
        return 10 + int.from_bytes(start[8:10], "little")
    if start[6] in (2, 3):
        return 12 + int.from_bytes(start[8:12], "little")
    raise ValueError(f"a .npy file of version {start[6]}, which is not known")


@lru_cache(maxsize=1024)
def npy_header(head: bytes) -> Header:
    """dtype, Fortran order and shape, from all that stands before the values. Raises ValueError if damaged."""
    file = io.BytesIO(head)
    version = npy.read_magic(file)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    try:
        with _parsing:
            shape, fortran, dtype = read(file)
    except TokenError as exc:  # numpy looks for headers of Python 2 in what is none
        raise ValueError(f"its header cannot be parsed: {exc}") from exc
    if dtype.hasobject:
        raise Pickled("its values are pickled objects, which are never unpickled; save numbers or strings instead")
    return dtype, fortran, shape


def npy_array(data: bytes) -> NDArray[Any]:
    """The array of a ``.npy`` file, in memory of its own. Raises ValueError if the file is damaged."""
    length = header_length(data[:_PREFIX])
    if length > 1 << 16 or length > len(data):
        raise ValueError("a .npy header that is longer than the file")
    dtype, fortran, shape = npy_header(data[:length])
    count = 1
    for size in shape:
        count *= size
    if count < 0 or length + count * dtype.itemsize != len(data):
        raise ValueError(f"{dtype}{list(shape)} takes {count * dtype.itemsize} bytes, got {len(data) - length}")
    if not count or not dtype.itemsize:
        return np.empty(shape, dtype, order="F" if fortran else "C")
    flat = np.frombuffer(data, dtype, count, length).copy()
    return flat.reshape(shape, order="F" if fortran else "C")
