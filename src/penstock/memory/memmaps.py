"""Arrays of `np.memmap` files in other processes: opened again by file name, and never copied.

A worker never changes the file: what it writes stays in the worker. A file that is gone, or whose values this
process has changed in a private mapping, has to be copied like any other array.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class _File:
    """The memory of a memmap as bytes. Pickled, it is opened again."""

    root: np.memmap[Any, Any]
    has_values: bool

    def __reduce__(self) -> tuple[Any, ...]:
        mode = "r" if self.root.mode == "r" else "c"  # "c" keeps what is written in the process
        return np.memmap, (self.root.filename, np.uint8, mode, self.root.offset, (self.root.nbytes,))


class OpenFiles:
    """The files of the arrays in one pickle. Each is opened once in the other process, for all arrays from it."""

    def __init__(self) -> None:
        self._files: dict[int, _File] = {}

    def reduction(self, array: NDArray[Any]) -> tuple[Any, ...] | None:
        """How to make an array in another process from its file; None if it has none."""
        root = _root_of(array)
        if root is None or not array.size:
            return None
        file = self._files.get(id(root))
        if file is None:
            file = self._files[id(root)] = _File(root, _is_there(root) and not _is_changed(root))
        if not file.has_values:
            return None
        form = array.dtype, array.shape, address_of(array) - address_of(root), array.strides
        return _make_part, (file, *form, type(array) is np.memmap, array.flags.writeable)


def _make_part(
    file: Any, dtype: Any, shape: tuple[int, ...], offset: int, strides: Any, mapped: bool, writeable: bool
) -> NDArray[Any]:
    array: NDArray[Any] = np.ndarray(shape, dtype, file, offset, strides)
    if mapped:
        array = array.view(np.memmap)
        vars(array).update(vars(file), offset=vars(file)["offset"] + offset)
    array.flags.writeable = writeable
    return array


def _root_of(array: NDArray[Any]) -> np.memmap[Any, Any] | None:
    """The memmap that opened the file of which `array` is a view. Views of it have its `offset`, not theirs."""
    found: Any = array
    while isinstance(found, np.ndarray):
        base: Any = found.base
        if isinstance(found, np.memmap) and isinstance(base, mmap.mmap):
            return found
        found = base
    return None


def _is_there(root: np.memmap[Any, Any]) -> bool:
    try:
        return root.filename is not None and os.stat(root.filename).st_size >= root.offset + root.nbytes
    except OSError:
        return False


def _is_changed(root: np.memmap[Any, Any]) -> bool:
    """Whether this process has values of its own, which the file does not have. Only Linux can tell."""
    if root.mode != "c":
        return False
    start, inside = address_of(root), False
    try:
        with open("/proc/self/smaps", "rb") as smaps:
            for line in smaps:
                first, _, rest = line.partition(b" ")
                if not first.endswith(b":"):  # a new range
                    low, high = (int(end, 16) for end in first.split(b"-"))
                    inside = low < start + root.nbytes and start < high
                elif inside and first == b"Anonymous:" and int(rest.split()[0]):
                    return True
    except OSError:
        pass
    return False


def address_of(array: NDArray[Any]) -> int:
    """Where in memory an array begins."""
    address: int = array.__array_interface__["data"][0]
    return address
