"""A record: what was made of one sample of the source, as bytes with a checksum. Nothing in it is ever run.

A record is a header of 64 bytes, the samples in the format of `penstock.memory.network`, and zeros up to a multiple
of 64. What may be relied on:

* A record of which any byte has changed is taken for absent. The header has a CRC-32 of its own. The rest has a
  CRC-32 too; from 16 KB on, one of the sums of its pages, which takes an eighth of the time and misses only changes
  within one page that cancel out.
* A sample comes back as what it was: dataclasses and named tuples, which the network format would turn into dicts
  and tuples, are refused.
"""

from __future__ import annotations

import dataclasses
import struct
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.errors import CodecError, NotCarried
from penstock.memory.network import decode, layout_of

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


MAGIC = b"penstok1"
#: what a record holds: samples; the table of a finished segment; where that table is
SAMPLES, INDEX, END = range(3)

ALIGNMENT = HEADER_BYTES = 64
#: magic, number, bytes after the header, bytes of the network header, kind, checksum of what follows
_HEADER = struct.Struct("<8sQQIII24x")
_CHECKED = struct.Struct("<I")
_LARGEST = 1 << 40

#: below this a CRC of all bytes is as fast as one of the sums of pages
_SMALL = 1 << 14
_PAGE_WORDS = 512
_KEYS = frozenset({str, int, bytes, bool, float, type(None)})
_LEAVES = _KEYS | {np.ndarray}


class Header(NamedTuple):
    """The first 64 bytes of a record that were found sound."""

    number: int
    #: bytes of the record behind the header
    body: int
    #: bytes of the network header in it
    head: int
    kind: int
    checksum: int

    @property
    def length(self) -> int:
        """Bytes of the whole record."""
        return HEADER_BYTES + self.body


def packed(number: int, samples: list[Any], ways: list[list[int]] | None) -> bytearray:
    """The record of sample `number` of the source: what was made of it, and by which way each came.

    Raises NotCarried, with the place of what a record cannot hold.
    """
    for sample in samples:
        _check(sample, "")
    layout = layout_of([ways, samples])
    start = _aligned(len(layout.header))
    body = _aligned(start + layout.nbytes)
    record = bytearray(HEADER_BYTES + body)
    record[HEADER_BYTES : HEADER_BYTES + len(layout.header)] = layout.header
    if layout.nbytes:
        layout.write(memoryview(record)[HEADER_BYTES + start :])
    _finish(record, number, len(layout.header), SAMPLES)
    return record


def raw(kind: int, number: int, data: bytes) -> bytearray:
    """A record of other data."""
    record = bytearray(HEADER_BYTES + _aligned(len(data)))
    record[HEADER_BYTES : HEADER_BYTES + len(data)] = data
    _finish(record, number, len(data), kind)
    return record


def header_at(data: ReadableBuffer, offset: int = 0) -> Header | None:
    """The header at `offset`; None if it is damaged or none."""
    view = memoryview(data)[offset : offset + HEADER_BYTES]
    if len(view) < HEADER_BYTES or view[:8] != MAGIC:
        return None
    if zlib.crc32(view[:60]) != _CHECKED.unpack_from(view, 60)[0]:
        return None
    _, number, body, head, kind, checksum = _HEADER.unpack_from(view)
    if body % ALIGNMENT or body > _LARGEST or head > body:
        return None
    return Header(number, body, head, kind, checksum)


def sound(record: memoryview, number: int, kind: int) -> Header | None:
    """The header of a whole record if every byte of it is as it was written, and it is the one looked for."""
    header = header_at(record)
    if header is None or header.number != number or header.kind != kind or header.length != len(record):
        return None
    return header if _checksum(record[HEADER_BYTES:]) == header.checksum else None


def samples_in(record: memoryview, number: int) -> tuple[list[Any], list[list[int]] | None] | None:
    """What `packed` was given, with arrays that look into `record`; None if that is damaged."""
    header = sound(record, number, SAMPLES)
    if header is None:
        return None
    start = HEADER_BYTES + _aligned(header.head)
    try:
        ways, samples = decode(record[HEADER_BYTES : HEADER_BYTES + header.head], record[start:])
    except (CodecError, TypeError, ValueError):
        return None  # of another version, or written by somebody else
    if type(samples) is not list or (ways is not None and not _are_ways(ways, len(samples))):
        return None
    return samples, ways


def _are_ways(ways: Any, count: int) -> bool:
    return (
        type(ways) is list
        and len(ways) == count
        and all(type(way) is list and all(type(step) is int for step in way) for way in ways)
    )


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _finish(record: bytearray, number: int, head: int, kind: int) -> None:
    view = memoryview(record)
    body = len(record) - HEADER_BYTES
    _HEADER.pack_into(record, 0, MAGIC, number, body, head, kind, _checksum(view[HEADER_BYTES:]))
    _CHECKED.pack_into(record, 60, zlib.crc32(view[:60]))


def _checksum(data: memoryview) -> int:
    if len(data) < _SMALL:
        return zlib.crc32(data)
    words = np.frombuffer(data, "<u8")
    whole = len(words) // _PAGE_WORDS * _PAGE_WORDS
    pages = np.add.reduce(words[:whole].reshape(-1, _PAGE_WORDS), axis=1)
    return zlib.crc32(words[whole:].data, zlib.crc32(pages.data))


def _check(value: Any, place: str) -> None:
    """Refuse what would come back as something else."""
    kind = type(value)
    if kind in _LEAVES:
        return
    if kind is dict:
        for name, one in value.items():
            if type(name) not in _KEYS:
                raise NotCarried(f"{place}: a dict with the key {name!r}; use names or numbers")
            _check(one, f"{place}[{name!r}]")
    elif kind is list or kind is tuple:
        if not _LEAVES.issuperset(map(type, value)):
            for number, one in enumerate(value):
                _check(one, f"{place}[{number}]")
    elif dataclasses.is_dataclass(kind) or isinstance(value, tuple):
        raise NotCarried(
            f"{place}: a {kind.__qualname__} would come back as a {'tuple' if isinstance(value, tuple) else 'dict'}"
        )
