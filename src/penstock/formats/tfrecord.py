"""TFRecord files: records of any bytes, each with its length and checksums of the length and of the data.

A record is its length in 8 bytes, the checksum of these in 4, the data, and its checksum in 4; all little-endian.
The checksum of a length is always compared before anything is done with the length, so a damaged one is refused
before memory is taken for it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from penstock import storage
from penstock.errors import ReadError
from penstock.formats.crc32c import crc32c, crc32c_of_rows, fastest, masked

KIND = "tfrecord 1"
HEADER = 12
FOOTER = 4

_LENGTH = struct.Struct("<QI")
_CHECK = struct.Struct("<I")
_GZIP = b"\x1f\x8b"
_LOCAL_CHUNK, _REMOTE_CHUNK = 1 << 14, 1 << 20
#: lengths whose checksums are compared at once
_AT_ONCE = 1 << 14


def framed(data: bytes) -> bytes:
    """A record as it stands in a file."""
    length = struct.pack("<Q", len(data))
    return length + _CHECK.pack(masked(crc32c(length))) + data + _CHECK.pack(masked(crc32c(data)))


def build_index(file: storage.File) -> dict[str, NDArray[Any]]:
    """``at`` and ``size`` of the data of each record, from the headers alone."""
    path, size = file.path, file.size
    chunk = _LOCAL_CHUNK if storage.local(path) is not None else _REMOTE_CHUNK
    held, start, at = b"", 0, 0
    places: list[int] = []
    headers: list[bytes] = []
    verified = 0
    while at < size:
        if at + HEADER > size:
            _verify(path, places, headers, verified)
            raise ReadError(f"{path}: byte {at}: the file ends within the header of a record: it was cut short")
        if not start <= at <= start + len(held) - HEADER:
            held, start = file.read_at(at, min(chunk, size - at)), at
        header = held[at - start : at - start + HEADER]
        places.append(at)
        headers.append(header)
        if len(headers) - verified >= _AT_ONCE:
            verified = _verify(path, places, headers, verified)
        length = int.from_bytes(header[:8], "little")
        if at + HEADER + length + FOOTER > size:
            _verify(path, places, headers, verified)
            raise ReadError(
                f"{path}: byte {at}: a record of {length} bytes, and {size - at - HEADER} follow: it was cut short"
            )
        at += HEADER + length + FOOTER
    _verify(path, places, headers, verified)
    table = np.frombuffer(b"".join(headers), dtype=[("length", "<u8"), ("check", "<u4")])
    return {"at": np.array(places, dtype=np.int64) + HEADER, "size": table["length"].astype(np.int64)}


def _verify(path: str, places: list[int], headers: list[bytes], first: int) -> int:
    """Compare the checksums of all lengths from number `first` on; how many there are."""
    if first == len(headers):
        return first
    rows = np.frombuffer(b"".join(headers[first:]), dtype=np.uint8).reshape(-1, HEADER)
    crc = crc32c_of_rows(rows[:, :8])
    told = rows[:, 8:].copy().view("<u4")[:, 0]
    wrong = np.flatnonzero(_masked(crc) != told)
    if len(wrong):
        raise _bad_length(path, places[first + int(wrong[0])], headers[first + int(wrong[0])])
    return len(headers)


def _bad_length(path: str, at: int, header: bytes) -> ReadError:
    if at == 0 and header.startswith(_GZIP):
        return ReadError(f"{path}: this file is compressed; read it with from_tfrecord(compression='gzip')")
    what = "this is not a TFRecord file" if at == 0 else "the length of a record is damaged"
    return ReadError(f"{path}: byte {at}: {what}: its checksum does not fit")


def all_checked(path: str, at: Sequence[int], pieces: Sequence[bytes]) -> list[bytes]:
    """The data of records, each with its checksum behind it, which is compared; `at` says where the data begins."""
    records = [piece[:-FOOTER] for piece in pieces]
    told = np.frombuffer(b"".join([piece[-FOOTER:] for piece in pieces]), dtype="<u4")
    found = np.fromiter(map(fastest(), records), dtype=np.uint32, count=len(records))
    wrong = np.flatnonzero(_masked(found) != told)
    if len(wrong):
        raise _bad_data(path, at[int(wrong[0])] - HEADER)
    return records


def _masked(crc: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(0xA282EAD8)


def _bad_data(path: str, at: int) -> ReadError:
    return ReadError(f"{path}: byte {at}: the data of a record is damaged: its checksum does not fit")


def _checked(path: str, at: int, data: bytes) -> bytes:
    """The data of a record whose checksum stands behind it in `data`; `at` is where the record begins."""
    content = data[:-FOOTER]
    if _CHECK.unpack(data[-FOOTER:])[0] != masked(crc32c(content)):
        raise _bad_data(path, at)
    return content


def forward(path: str, stream: BinaryIO, most: int, skip: int, check: bool) -> Iterator[bytes]:
    """The records of a file that is read forward, without the first `skip`. One of more than `most` is refused."""
    at = number = 0
    while header := stream.read(HEADER):
        if len(header) < HEADER:
            raise ReadError(f"{path}: byte {at}: the file ends within the header of a record: it was cut short")
        length, told = _LENGTH.unpack(header)
        if told != masked(crc32c(header[:8])):
            raise _bad_length(path, at, header)
        if length > most:
            raise ReadError(f"{path}: byte {at}: a record of {length} bytes, more than max_bytes={most}")
        data = stream.read(length + FOOTER)
        if len(data) < length + FOOTER:
            raise ReadError(
                f"{path}: byte {at}: a record of {length} bytes, and {len(data)} follow: it was cut short"
            )
        if number >= skip:
            yield _checked(path, at, data) if check else data[:-FOOTER]
        at += HEADER + length + FOOTER
        number += 1
