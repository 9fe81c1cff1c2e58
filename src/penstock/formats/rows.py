"""Arrays in ``.npy`` and ``.npz`` files, by row: mapped into memory, read by position, or decompressed.

Local ``.npy`` files are mapped, and so are the members of a ``.npz`` file that are not compressed. Compressed
members are decompressed no further than their header says. What is damaged or cut short raises ValueError or what
zipfile raises; pickled objects are refused.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import storage
from penstock.errors import ReadError
from penstock.formats.npy import Pickled, header_length, npy_array, npy_header
from penstock.formats.seekable import seekable
from penstock.formats.spans import read_pieces

#: consecutive rows, or any
Indices = range | NDArray[np.int64]


class Rows:
    """The rows of one array, wherever its values are."""

    #: blocks are in memory of their own, and nobody else's
    owned = False

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.dtype = dtype
        self.shape = shape
        #: text, or what numpy does not know: a batch of its rows is a list
        self.listed = dtype.kind in "USO" or dtype.hasobject

    def block(self, numbers: Indices) -> NDArray[Any]:
        """The rows with these numbers."""
        raise NotImplementedError

    def fill(self, numbers: Indices, out: NDArray[Any]) -> None:
        """Copy the rows with these numbers into `out`."""
        out[...] = self.block(numbers)

    def whole(self) -> NDArray[Any]:
        """The array itself, which may have no dimension, and so no rows."""
        raise NotImplementedError


class Mapped(Rows):
    """In memory, or mapped into it."""

    def __init__(self, array: NDArray[Any]) -> None:
        super().__init__(array.dtype, array.shape)
        self.array = array

    def block(self, numbers: Indices) -> NDArray[Any]:
        return self.array[numbers.start : numbers.stop] if isinstance(numbers, range) else self.array[numbers]

    def fill(self, numbers: Indices, out: NDArray[Any]) -> None:
        array = self.array
        if isinstance(numbers, range) or not array.flags.c_contiguous or array.dtype != out.dtype:
            super().fill(numbers, out)
        else:
            # Without "clip" numpy would go through a buffer of its own. The numbers are in range.
            array.take(numbers, axis=0, out=out, mode="clip")

    def whole(self) -> NDArray[Any]:
        return self.array


class _Remote(Rows):
    """In a file that is read by position."""

    def __init__(self, file: storage.File, dtype: np.dtype[Any], shape: tuple[int, ...], at: int) -> None:
        super().__init__(dtype, shape)
        self.file = file
        self.at = at
        self.row_bytes = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))

    def block(self, numbers: Indices) -> NDArray[Any]:
        at = self.at + np.asarray(numbers, dtype=np.int64) * self.row_bytes
        pieces = read_pieces(self.file, at, np.full(len(at), self.row_bytes))
        return np.frombuffer(b"".join(pieces), self.dtype).reshape(len(at), *self.shape[1:])

    def whole(self) -> NDArray[Any]:
        size = self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))
        return np.frombuffer(self.file.read_at(self.at, size), self.dtype).reshape(self.shape)


def npy_rows(path: str, file: storage.File, at: int, size: int) -> Rows:
    """The rows of a ``.npy`` file that takes ``file[at : at + size]``."""
    start = file.read_at(at, min(12, size))
    length = header_length(start)
    if length > min(size, 1 << 16):
        raise ValueError("its header is longer than the file")
    dtype, fortran, shape = npy_header(file.read_at(at, length))
    count = 1
    for one in shape:
        count *= one
    if count < 0 or length + count * dtype.itemsize > size:
        raise ValueError(f"{dtype}{list(shape)} takes {count * dtype.itemsize} bytes, and {size - length} follow")
    here = storage.local(path)
    if not count or not dtype.itemsize:
        return Mapped(np.empty(shape, dtype))
    if here is not None:
        order = "F" if fortran else "C"
        found = np.memmap(here, dtype, mode="r", offset=at + length, shape=shape, order=order)  # type: ignore[call-overload]
        return Mapped(np.asarray(found))
    if fortran:
        return Mapped(npy_array(file.read_at(at, size)))
    return _Remote(file, dtype, shape, at + length)


class Arrays:
    """The arrays of a ``.npz`` file by name."""

    def __init__(self, rows: Mapping[str, Rows], nbytes: int) -> None:
        self.rows = rows
        self.nbytes = nbytes


def npz_arrays(path: str, file: storage.File, options: Mapping[str, Any] | None) -> Arrays:
    rows: dict[str, Rows] = {}
    nbytes = 0
    with zipfile.ZipFile(io.BufferedReader(seekable(path, options), 1 << 16)) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name in rows:
                raise ValueError(f"it has the array {name!r} twice")
            try:
                rows[name] = _member_rows(path, file, archive, member)
            except (ValueError, OSError) as exc:
                if isinstance(exc, OSError) and (exc.errno is not None or isinstance(exc, ReadError)):
                    raise  # of the system; that of bz2 over damaged data has no number
                kind = Pickled if isinstance(exc, Pickled) else ValueError
                raise kind(f"{member.filename!r}: {exc}") from exc
            if member.compress_type != zipfile.ZIP_STORED:
                nbytes += rows[name].whole().nbytes
    if not rows:
        raise ValueError("there is no array in it")
    return Arrays(rows, nbytes)


def _member_rows(path: str, file: storage.File, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Rows:
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
        return Mapped(_decompressed(archive, member))
    if member.header_offset < 0:
        raise ValueError("it begins before the file")
    head = file.read_at(member.header_offset, 30)
    # The lengths of name and extra field are those of the member's own header, not of the directory.
    skipped = 30 + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
    return npy_rows(path, file, member.header_offset + skipped, member.file_size)


def _decompressed(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """An array of a compressed member, read only as far as its header says: what follows may be a bomb."""
    if member.flag_bits & 1:
        raise ValueError("it is encrypted")
    with archive.open(member) as stream:
        start = stream.read(12)
        length = header_length(start)
        head = start + stream.read(min(length, 1 << 16) - len(start))
        dtype, _, shape = npy_header(head)
        size = dtype.itemsize
        for one in shape:
            size *= one
        if size < 0 or length + size != member.file_size:
            raise ValueError(f"{dtype}{list(shape)} does not take {member.file_size - length} bytes")
        data = stream.read(size)
        if len(data) < size or stream.read(1):
            raise ValueError(f"it does not have the {size} bytes that it should have")
    array = npy_array(head + data)
    array.flags.writeable = False
    return array
