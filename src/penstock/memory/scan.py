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

__all__ = ["DOOR", "Limits", "check"]


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

#: first byte -> how many bytes of a length follow, for what has one
_STRINGS = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_LISTS = {0xDC: 2, 0xDD: 4}
_MAPS = {0xDE: 2, 0xDF: 4}
_EXTS = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_FIXED_EXTS = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
#: first byte -> how many bytes follow, for numbers, None and bools
_PLAIN = {
    0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8,
    0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8,
}  # fmt: skip


def check(data: memoryview, limits: Limits, nested: int, leaves: Collection[int]) -> None:
    """Refuse what is no single value within `limits`.

    Extensions of kind `nested` hold another value, those of the kinds in `leaves` are not looked into.
    """
    if data.nbytes > limits.header_bytes:
        raise BadHeader(f"the header has {data.nbytes} bytes, and {limits.header_bytes} are accepted")
    _Walk(data, limits, nested, leaves).value(0, data.nbytes, 0)


class _Walk:
    def __init__(self, data: memoryview, limits: Limits, nested: int, leaves: Collection[int]) -> None:
        self.data = data
        self.limits = limits
        self.nested = nested
        self.leaves = leaves
        self.nodes = 0

    def value(self, at: int, stop: int, depth: int) -> None:
        """Walk one value that takes all bytes from `at` to `stop`."""
        # What is open: [values left, whether keys and values alternate], the innermost last.
        open_: list[list[int]] = [[1, 0]]
        while open_:
            top = open_[-1]
            if not top[0]:
                open_.pop()
                continue
            top[0] -= 1
            is_key = top[1] and top[0] % 2
            at, inside, alternates = self.step(at, stop, bool(is_key), depth + len(open_))
            if inside:
                open_.append([inside, alternates])
                if depth + len(open_) - 1 > self.limits.depth:
                    raise BadHeader(f"the header is nested deeper than {self.limits.depth}")
        if at != stop:
            raise BadHeader(f"the header is damaged: {stop - at} trailing bytes")

    def step(self, at: int, stop: int, is_key: bool, depth: int) -> tuple[int, int, int]:
        """The end of the value at `at`; for a container the end of its head, and what it holds."""
        self.nodes += 1
        if self.nodes > self.limits.nodes:
            raise BadHeader(f"the header holds more than the {self.limits.nodes} values that are accepted")
        if at >= stop:
            raise BadHeader("the header is damaged: it is truncated")
        first = self.data[at]
        if 0xA0 <= first <= 0xBF:
            return self.past(at + 1 + (first & 31), stop), 0, 0
        if first in _STRINGS:
            head = at + 1 + _STRINGS[first]
            return self.past(head + self.number(at + 1, head, stop), stop), 0, 0
        if is_key:
            raise BadHeader("the header has a dict with a key that is no string")
        if first <= 0x7F or first >= 0xE0:
            return at + 1, 0, 0
        if first in _PLAIN:
            return self.past(at + 1 + _PLAIN[first], stop), 0, 0
        if first <= 0x8F:
            return at + 1, 2 * (first & 15), 1
        if first <= 0x9F:
            return at + 1, first & 15, 0
        return self.long_step(first, at, stop, depth)

    def long_step(self, first: int, at: int, stop: int, depth: int) -> tuple[int, int, int]:
        for sizes in (_BYTES, _LISTS, _MAPS, _EXTS):
            if first in sizes:
                head = at + 1 + sizes[first]
                size = self.number(at + 1, head, stop)
                if sizes is _LISTS:
                    return head, size, 0
                if sizes is _MAPS:
                    return head, 2 * size, 1
                if sizes is _EXTS:
                    return self.extension(head, size, stop, depth), 0, 0
                return self.past(head + size, stop), 0, 0
        if first in _FIXED_EXTS:
            return self.extension(at + 1, _FIXED_EXTS[first], stop, depth), 0, 0
        raise BadHeader(f"the header is damaged: no value begins with {first:#x}")

    def extension(self, at: int, size: int, stop: int, depth: int) -> int:
        end = self.past(at + 1 + size, stop)
        kind = self.data[at]
        if kind == self.nested:
            self.value(at + 1, end, depth)
        elif kind not in self.leaves:
            raise BadHeader(f"the header holds a value of kind {kind}, which is not known")
        return end

    def number(self, at: int, end: int, stop: int) -> int:
        return int.from_bytes(self.data[at : self.past(end, stop)], "big")

    def past(self, end: int, stop: int) -> int:
        if end > stop:
            raise BadHeader("the header is damaged: it is truncated")
        return end
