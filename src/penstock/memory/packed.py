"""Packed lists: a long list of plain values, as bytes that all worker processes share.

A list of two million (path, label) pairs is six million objects. A worker that unpickles it has a copy of its
own; one that was forked with it gets a copy too, page by page, since Python counts references inside the objects.
So a worker gets a look-alike that makes an item from its bytes when it is asked for one.

Guarantees:

* Only lists whose items are all str, bytes, int, float, complex, bool, None or tuples of these are packed. They
  cannot be changed, so nothing but ``is`` tells a new item from the one before.
* Everything that a list can do gives what a list would give, and ``isinstance(packed, list)`` is true.
* The first call that changes the list makes it a real one, in this process alone.
"""

from __future__ import annotations

import marshal
import operator
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    """Whether a list may be packed, and takes about `least_bytes` or more."""
    if len(items) * 8 * 4 < least_bytes // 4:
        return False
    some = items[:: max(1, len(items) // _LOOKED_AT)]
    if sum(map(_size, some)) / len(some) * len(items) < least_bytes:
        return False
    return _all_plain(some) and _all_plain(items)


def pack_list(items: list[Any]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Where each item ends, after a 0, and the bytes of all items."""
    ends = np.zeros(len(items) + 1, np.int64)
    data = bytearray()  # grows in place; many small pieces would leave holes in the memory of this process
    for first in range(0, len(items), _STRETCH):
        packed = list(map(marshal.dumps, items[first : first + _STRETCH], repeat(_VERSION)))
        ends[first + 1 : first + 1 + len(packed)] = np.fromiter(map(len, packed), np.int64, len(packed))
        data += b"".join(packed)
    np.cumsum(ends, out=ends)
    return ends, np.frombuffer(data, np.uint8)


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

    __slots__ = ("_data", "_ends", "_items")

    def __init__(self, ends: NDArray[np.uint8], data: NDArray[np.uint8]) -> None:
        self._ends = ends.data.cast("B").cast("q")
        self._data = data.data
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
            self._items = self[:]
        return self._items

    def __len__(self) -> int:
        return len(self._ends) - 1 if self._items is None else len(self._items)

    def __getitem__(self, index: Any) -> Any:
        if self._items is not None:
            return self._items[index]
        ends, size = self._ends, len(self)
        if isinstance(index, slice):
            return [_loads(self._data[ends[at] : ends[at + 1]]) for at in range(*index.indices(size))]
        at = operator.index(index)
        if at < 0:
            at += size
        if not 0 <= at < size:
            raise IndexError("list index out of range")
        return _loads(self._data[ends[at] : ends[at + 1]])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(list, name):
            raise AttributeError(f"'list' object has no attribute {name!r}")
        return getattr(self.real(), name)  # append, sort and others that change a list

    def copy(self) -> list[Any]:
        """A real list of the same items."""
        return self[:]  # type: ignore[no-any-return]

    def __radd__(self, other: Any) -> Any:
        return other + self[:] if isinstance(other, list) else NotImplemented

    def __repr__(self) -> str:
        return repr(self[:])

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return list, (self[:],)

    __hash__ = None  # type: ignore[assignment]


def _like_a_list(name: str, changes: bool) -> Callable[..., Any]:
    method = getattr(list, name)

    def operation(self: PackedList, *args: Any) -> Any:
        items = self.real() if changes else self[:]
        found = method(items, *(one[:] if type(one) is PackedList else one for one in args))
        return self if found is items else found

    return operation


for _name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__add__", "__mul__", "__rmul__"):
    setattr(PackedList, _name, _like_a_list(_name, changes=False))
for _name in ("__iadd__", "__imul__", "__setitem__", "__delitem__"):
    setattr(PackedList, _name, _like_a_list(_name, changes=True))
