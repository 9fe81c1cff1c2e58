"""Packed lists: a long list of plain values, as bytes that all worker processes share.

A list of two million (path, label) pairs is six million objects. A worker that unpickles it has a copy of its
own; one that was forked with it gets a copy too, page by page, since Python counts references inside the objects.
So a worker gets a look-alike that makes an item from its bytes when it is asked for one.

Guarantees:

* Only lists whose items are all str, bytes, int, float, complex, bool, None or tuples of these are packed. They
  cannot be changed, so nothing but ``is`` tells a new item from the one before.
* Everything that a list can do gives what a list would give. ``isinstance(packed, list)`` is true, and C code that
  asks for a real list finds out that this is none, instead of an empty one.
* The first call that changes the list makes it a real one, in this process alone.
"""

from __future__ import annotations

import marshal
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["PackedList", "pack_list", "worth_packing"]

_ATOMS = frozenset({str, bytes, int, float, complex, bool, type(None)})
_PLAIN = _ATOMS | {tuple}
#: tuples in tuples in tuples
_DEEPEST = 4
#: items looked at to see what they are and how large
_LOOKED_AT = 100
#: items packed at a time: so many small objects live at once
_STRETCH = 512
#: neither references between objects nor interned strings, so that each item stands by itself
_VERSION = 2

_loads = marshal.loads


def worth_packing(items: list[Any], least_bytes: int) -> bool:
    """Whether a list may be packed, and takes about so many bytes."""
    if len(items) * 8 * 4 < least_bytes // 4:
        return False
    some = items[:: max(1, len(items) // _LOOKED_AT)]
    if sum(map(_size, some)) / len(some) * len(items) < least_bytes:
        return False
    return _all_plain(some) and _all_plain(items)


def pack_list(items: list[Any]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Where each item ends, after a 0, and the bytes of all items."""
    ends = np.zeros(len(items) + 1, np.int64)
    parts: list[bytes] = []
    for first in range(0, len(items), _STRETCH):
        packed = list(map(marshal.dumps, items[first : first + _STRETCH], repeat(_VERSION)))
        ends[first + 1 : first + 1 + len(packed)] = np.fromiter(map(len, packed), np.int64, len(packed))
        parts.append(b"".join(packed))
    np.cumsum(ends, out=ends)
    data = np.empty(int(ends[-1]), np.uint8)
    end = len(data)
    while parts:
        part = parts.pop()  # so that the items are not there twice
        data[end - len(part) : end] = np.frombuffer(part, np.uint8)
        end -= len(part)
    return ends, data


def _size(item: Any) -> int:
    size = 8 + sys.getsizeof(item)
    return size + sum(map(sys.getsizeof, item)) if type(item) is tuple else size


def _all_plain(items: Iterable[Any], depth: int = 0) -> bool:
    kinds = set(map(type, items))
    if not kinds <= _PLAIN or depth > _DEEPEST:
        return False
    if tuple not in kinds:
        return True
    tuples = items if kinds == {tuple} else [item for item in items if type(item) is tuple]
    if depth == 0 and set(map(type, chain.from_iterable(tuples))) <= _ATOMS:
        return True
    return _all_plain([*chain.from_iterable(tuples)], depth + 1)


class PackedList(Sequence[Any]):
    """A list of plain values in shared memory."""

    __slots__ = ("_data", "_ends", "_items", "_size")

    def __init__(self, ends: NDArray[np.uint8], data: NDArray[np.uint8]) -> None:
        self._ends = ends.data.cast("B").cast("q")
        self._data = data.data
        self._size = len(self._ends) - 1
        #: the real list, once it is one
        self._items: list[Any] | None = None

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return list

    @property
    def memory(self) -> tuple[NDArray[Any], NDArray[Any]] | None:
        """As `pack_list` gives it; None if it has become a real list."""
        return None if self._items is not None else (np.frombuffer(self._ends, np.int64), np.asarray(self._data))

    def real(self) -> list[Any]:
        """This list as a real one, from now on."""
        if self._items is None:
            self._items = list(self)
        return self._items

    def __len__(self) -> int:
        return self._size if self._items is None else len(self._items)

    def __getitem__(self, index: Any) -> Any:
        if self._items is not None:
            return self._items[index]
        ends = self._ends
        if isinstance(index, slice):
            return [_loads(self._data[ends[at] : ends[at + 1]]) for at in range(*index.indices(self._size))]
        at = operator.index(index)
        if at < 0:
            at += self._size
        if not 0 <= at < self._size:
            raise IndexError("list index out of range")
        return _loads(self._data[ends[at] : ends[at + 1]])

    def __iter__(self) -> Iterator[Any]:
        at = 0
        while at < len(self):  # which may change on the way, as with a list
            yield self[at]
            at += 1

    def __reversed__(self) -> Iterator[Any]:
        return (self[at] for at in range(len(self) - 1, -1, -1))

    def __contains__(self, value: Any) -> bool:
        return any(item is value or item == value for item in self)

    def copy(self) -> list[Any]:
        """A real list of the same items."""
        return self[:]  # type: ignore[no-any-return]

    def __add__(self, other: Any) -> Any:
        return self[:] + other[:] if isinstance(other, list) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return other[:] + self[:] if isinstance(other, list) else NotImplemented

    def __mul__(self, times: Any) -> Any:
        return self[:] * times

    __rmul__ = __mul__

    def __iadd__(self, other: Any) -> PackedList:
        self.real().extend(other)
        return self

    def __imul__(self, times: Any) -> PackedList:
        items = self.real()
        items *= times
        return self

    def __repr__(self) -> str:
        return repr(self[:])

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return list, (self[:],)

    __hash__ = None  # type: ignore[assignment]


def _compared(name: str) -> Callable[[PackedList, Any], Any]:
    compare = getattr(list, name)

    def method(self: PackedList, other: Any) -> Any:
        if type(other) is PackedList:
            other = other[:]
        return compare(self[:], other) if isinstance(other, list) else NotImplemented

    return method


def _changed(name: str) -> Callable[..., Any]:
    change = getattr(list, name)

    def method(self: PackedList, *args: Any, **kwargs: Any) -> Any:
        return change(self.real(), *args, **kwargs)

    return method


for _name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):
    setattr(PackedList, _name, _compared(_name))
for _name in (
    *("append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"),
    *("__setitem__", "__delitem__"),
):
    setattr(PackedList, _name, _changed(_name))
