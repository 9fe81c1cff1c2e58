"""CRC-32C (Castagnoli), the checksum of TFRecord files: by `google-crc32c` where it is installed, or by numpy.

A checksum is linear over bits, so a long text is cut into lanes that numpy takes a step in at once, and the lanes
are then put together pair by pair. Short texts are summed byte by byte.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78
_ONES = 0xFFFFFFFF
#: shorter texts are summed byte by byte
_SHORT = 3000
#: the most lanes; more do not fit into the fast caches of a processor
_LANES = 2048

Words = NDArray[np.uint32]


def masked(crc: int) -> int:
    """The form in which TFRecord files hold a checksum."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & _ONES


def crc32c(data: bytes) -> int:
    """The checksum of `data`.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    return fastest()(data)


@cache
def fastest() -> Callable[[bytes], int]:
    """What is used: the library's function if there is one in C, or our own."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says so if it has no C part
            import google_crc32c
    except ImportError:
        return by_numpy
    return google_crc32c.value if google_crc32c.implementation == "c" else by_numpy


def by_numpy(data: bytes) -> int:
    """The same without the library, which is a hundred times faster."""
    if len(data) < _SHORT:
        table, crc = _list(), _ONES
        for byte in data:
            crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
        return crc ^ _ONES
    raw = _of_lanes(data)
    # What the initial value of all ones has become after so many bytes.
    return raw ^ _shifted_one(_ONES, len(data)) ^ _ONES


def crc32c_of_rows(rows: NDArray[np.uint8]) -> Words:
    """The checksums of the rows of an array of bytes, all at once."""
    table = _table()
    crc = np.full(len(rows), _ONES, dtype=np.uint32)
    for column in rows.T:
        crc = table[(crc ^ column) & 0xFF] ^ (crc >> 8)
    return crc ^ np.uint32(_ONES)


def _of_lanes(data: bytes) -> int:
    """The checksum without initial and final value: zeros in front of the text then change nothing."""
    lanes = 8
    while lanes < _LANES and lanes * lanes < len(data):
        lanes *= 2
    words = -(-len(data) // (4 * lanes))
    padded = np.zeros(4 * lanes * words, dtype=np.uint8)
    padded[len(padded) - len(data) :] = np.frombuffer(data, dtype=np.uint8)
    columns = np.ascontiguousarray(padded.view("<u4").reshape(lanes, words).T)
    low, high = _double_tables()
    crc = np.zeros(lanes, dtype=np.uint32)
    for column in columns:
        crc ^= column
        crc = low[crc & 0xFFFF] ^ high[crc >> 16]
    length = 4 * words
    while len(crc) > 1:
        crc = _shifted(crc[0::2], length) ^ crc[1::2]
        length *= 2
    return int(crc[0])


# ---------------------------------------------------------------------- tables


@cache
def _table() -> Words:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1)
    return table


@cache
def _list() -> list[int]:
    found: list[int] = _table().tolist()
    return found


@cache
def _double_tables() -> tuple[Words, Words]:
    """What four bytes of zeros make of the low half and of the high half of a checksum."""
    return _halves(_matrix(4))


def _halves(matrix: Words) -> tuple[Words, Words]:
    numbers = np.arange(1 << 16, dtype=np.uint32)
    return _times(matrix[:16], numbers), _times(matrix[16:], numbers)


def _times(matrix: Words, numbers: Any) -> Words:
    """A matrix over bits, its columns given as words, times each of `numbers`."""
    out: Words = np.zeros_like(numbers)
    for bit, column in enumerate(matrix):
        out ^= ((numbers >> np.uint32(bit)) & np.uint32(1)) * column
    return out


@cache
def _matrix(length: int) -> Words:
    """What so many bytes of zeros do to a checksum, as a matrix: by squaring."""
    if length == 1:
        units = np.uint32(1) << np.arange(32, dtype=np.uint32)
        ones: Words = _table()[units & 0xFF] ^ (units >> np.uint32(8))
        return ones
    half = _matrix(length // 2)
    whole = _times(half, half)
    return _times(_matrix(1), whole) if length % 2 else whole


@cache
def _bytes_tables(length: int) -> Words:
    """The same as tables, one for each byte of a checksum."""
    matrix, numbers = _matrix(length), np.arange(256, dtype=np.uint32)
    return np.stack([_times(matrix[8 * part : 8 * part + 8], numbers) for part in range(4)])


def _shifted(crc: Words, length: int) -> Words:
    one, two, three, four = _bytes_tables(length)
    shifted: Words = one[crc & 0xFF] ^ two[(crc >> 8) & 0xFF] ^ three[(crc >> 16) & 0xFF] ^ four[crc >> 24]
    return shifted


def _shifted_one(crc: int, length: int) -> int:
    """One checksum after any number of zeros, by the bits of that number."""
    found = np.array([crc], dtype=np.uint32)
    power = 1
    while length:
        if length & 1:
            found = _shifted(found, power)
        length >>= 1
        power *= 2
    return int(found[0])
