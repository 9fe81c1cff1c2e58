"""Look at a msgpack header before it is decoded: how large a tree it would make, and of what. Pure.

A decoder makes objects while it reads. A header of a stranger is therefore walked first, one value after the
other, without making any of them. `check` refuses a header of more bytes, values or levels than `Limits` allow,
a dict with a key that is no string (integers can be chosen so that all collide, which takes quadratic time), and
an extension of a kind that is not known. A header that passes makes a tree of at most `nodes` objects.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from penstock.errors import BadHeader


@dataclass(frozen=True, slots=True)
class Limits:
    """What is accepted of somebody who is not trusted."""

    header_bytes: int = 16 << 20
    #: bytes of all arrays, and of any one of them
    body_bytes: int = 2 << 30
    #: values, keys included
    nodes: int = 1_000_000
    depth: int = 32
    dimensions: int = 32
    #: raw frames that arrays lie in
    frames: int = 1024


DOOR = Limits()

#: what a first byte begins
_SCALAR, _STRING, _BYTES, _LIST, _MAP, _EXT, _NOTHING = range(7)


def _table() -> list[tuple[int, int, int]]:
    """For each first byte: what it begins, how many bytes of a length follow, and the length if none do."""
    table = [(_NOTHING, 0, 0)] * 256
    for first in (*range(0x80), *range(0xE0, 0x100), 0xC0, 0xC2, 0xC3):
        table[first] = (_SCALAR, 0, 0)
    for number in range(16):
        table[0x80 + number] = (_MAP, 0, 2 * number)
        table[0x90 + number] = (_LIST, 0, number)
    for number in range(32):
        table[0xA0 + number] = (_STRING, 0, number)
    for first, size in ((0xCA, 4), (0xCB, 8), (0xCC, 1), (0xCD, 2), (0xCE, 4), (0xCF, 8)):
        table[first] = (_SCALAR, 0, size)
    for number, size in enumerate((1, 2, 4, 8)):
        table[0xD0 + number] = (_SCALAR, 0, size)
    for first, kind in ((0xC4, _BYTES), (0xC7, _EXT), (0xD9, _STRING)):
        for number, size in enumerate((1, 2, 4)):
            table[first + number] = (kind, size, 0)
    for first, kind in ((0xDC, _LIST), (0xDE, _MAP)):
        for number, size in enumerate((2, 4)):
            table[first + number] = (kind, size, 0)
    for number, size in enumerate((1, 2, 4, 8, 16)):
        table[0xD4 + number] = (_EXT, 0, size)
    return table


_TABLE = _table()


def check(data: memoryview, limits: Limits, nested: int, leaves: Collection[int]) -> None:
    """Refuse what is no single value within `limits`.

    Extensions of kind `nested` hold another value, those of the kinds in `leaves` are not looked into.
    """
    if data.nbytes > limits.header_bytes:
        raise BadHeader(f"the header has {data.nbytes} bytes, and {limits.header_bytes} are accepted")
    raw = bytes(data)
    at, end, nodes, depth = 0, len(raw), 0, 0
    # What is open, the innermost last: values that are left, whether keys and values alternate; and of what is no
    # container where it must end.
    open_ = [[1, 0, end]]
    while open_:
        top = open_[-1]
        if not top[0]:
            if top[2] and at != top[2]:
                raise BadHeader(f"the header is damaged: {top[2] - at} trailing bytes")
            depth -= not top[2]
            open_.pop()
            continue
        top[0] -= 1
        nodes += 1
        if nodes > limits.nodes:
            raise BadHeader(f"the header holds more than the {limits.nodes} values that are accepted")
        if at >= end:
            raise BadHeader("the header is damaged: it is truncated")
        kind, width, size = _TABLE[raw[at]]
        at += 1
        if width:
            size = int.from_bytes(raw[at : at + width], "big")
            at += width
        if kind == _STRING:
            at += size
        elif top[1] and top[0] & 1:
            raise BadHeader("the header has a dict with a key that is no string")
        elif kind in (_SCALAR, _BYTES):
            at += size
        elif kind == _LIST:
            depth += 1
            open_.append([size, 0, 0])
        elif kind == _MAP:
            depth += 1
            open_.append([2 * size if width else size, 1, 0])
        elif kind == _EXT:
            at = _extension(raw, at, size, nested, leaves, open_)
        else:
            raise BadHeader(f"the header is damaged: no value begins with {raw[at - 1]:#x}")
        if at > end:
            raise BadHeader("the header is damaged: it is truncated")
        if depth > limits.depth:
            raise BadHeader(f"the header is nested deeper than {limits.depth}")


def _extension(raw: bytes, at: int, size: int, nested: int, leaves: Collection[int], open_: list[list[int]]) -> int:
    """Where to go on: after an extension, or inside of one that holds a value."""
    kind = raw[at] if at < len(raw) else -1
    if kind == nested:
        if at + 1 + size > len(raw):
            raise BadHeader("the header is damaged: it is truncated")
        open_.append([1, 0, at + 1 + size])
        return at + 1
    if kind not in leaves:
        raise BadHeader(f"the header holds a value of kind {kind}, which is not known")
    return at + 1 + size
