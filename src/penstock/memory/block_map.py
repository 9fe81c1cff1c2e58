"""The blocks of another process that this one was handed, by number."""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection
from queue import SimpleQueue
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.errors import PenstockError
from penstock.memory.segment import Mapping

Bytes: TypeAlias = NDArray[np.uint8]
Use: TypeAlias = tuple[int, int]  # a block's number and which of its uses


class Lease:
    """Stands behind the array of a block. Its `__del__` may run in any thread, inside the garbage collector."""

    __slots__ = ("__array_interface__", "mapping", "returned", "use")

    def __init__(self, mapping: Mapping, returned: SimpleQueue[Use], use: Use) -> None:
        self.__array_interface__ = mapping.__array_interface__
        self.mapping = mapping
        self.returned = returned
        self.use = use

    def __del__(self) -> None:
        if hasattr(self, "use"):  # it was made
            self.returned.put(self.use)


class BlockMap:
    """The blocks that a process was handed, by number.

    The owner sends `block.fd` over a Unix socket once, with number and size, and from then on the number.
    It says which to drop: those that are closed.
    """

    def __init__(self) -> None:
        self._mappings: dict[int, Mapping] = {}

    def attach(self, number: int, fd: int, size: int) -> None:
        """Map a block, and close `fd`: receive it with `MSG_CMSG_CLOEXEC`, so that no other program gets it."""
        try:
            if (there := os.fstat(fd).st_size) < size:
                raise PenstockError(f"block {number} has {there} bytes, and not the {size} it should have")
            mapping = Mapping(fd, size, warm=True)
        except OSError as exc:
            raise refused(size, exc, self._mappings.values()) from exc
        finally:
            os.close(fd)
        self._mappings.pop(number, None)
        self._mappings[number] = mapping

    def view(self, number: int) -> Bytes:
        """The memory of a block. KeyError if it is not attached."""
        return np.asarray(self._mappings[number])

    def array(self, number: int, use: int, returned: SimpleQueue[Use]) -> Bytes:
        """The memory of a block that is lent: when the last view has died, `(number, use)` is in `returned`."""
        return np.asarray(Lease(self._mappings[number], returned, (number, use)))

    def drop(self, number: int) -> None:
        """Forget a block; its memory stays mapped while there are views. Does nothing if it is not attached."""
        self._mappings.pop(number, None)

    def __contains__(self, number: int | None) -> bool:
        return number in self._mappings

    def __len__(self) -> int:
        return len(self._mappings)

    def close(self) -> None:
        """Drop all."""
        self._mappings.clear()


def whole_pages(nbytes: int) -> int:
    """The size in bytes of memory for `nbytes`."""
    return max(1, -(-nbytes // mmap.PAGESIZE)) * mmap.PAGESIZE


def refused(size: int, exc: OSError, held: Collection[Any] = ()) -> PenstockError:
    """The error for shared memory that the system refuses. `held` are the blocks that exist already."""
    held_bytes = sum(one.size for one in held)
    return PenstockError(
        f"no shared memory for {size / 1e6:.1f} MB beside {len(held)} blocks of {held_bytes / 1e6:.1f} MB in all: "
        f"{exc.strerror}; prefetch fewer batches, set loader(memory=), or raise the limit on memory "
        "(the container's, ulimit -v or ulimit -f)"
    )
