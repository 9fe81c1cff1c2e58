"""Blocks: shared memory that the parent process owns, lends out and uses again.

A batch that a worker process makes is written into a block, and the parent looks at it there. New memory
costs a page fault for every 4 KB, many times the copy itself; a block that is used again costs none.

Guarantees:

* A block is lent again only when the last view of its array has died: of numpy, torch, DLPack or anything
  else that holds the array. A batch that is kept keeps its memory, also after `Blocks.close`.
* Under a bound on memory (`spare`), idle blocks take at most what the bound leaves beside the lent ones.
* Memory is reserved when a block is made. Too little of it is an exception there, never a bus error later.
* Blocks have no name, so nothing is left of them when their processes have ended, however they ended.
* A process holds one descriptor per block that it owns, within a bound over all `Blocks`, and none for a
  block that it was handed. The owner keeps its descriptor for workers that start later.
* A forked child owns none of its parent's blocks.
"""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections.abc import Callable
from itertools import count
from queue import SimpleQueue
from typing import Self

import numpy as np

from penstock import system
from penstock.errors import PenstockError
from penstock.interrupts import uninterrupted
from penstock.memory.block_map import Bytes, Lease, Use, refused, whole_pages
from penstock.memory.segment import SENDABLE, Mapping, new_segment

#: blocks of one process, over all `Blocks`, whatever the limit on descriptors
_MOST_BLOCKS = 256
#: blocks may take this part of the descriptors of the process, as a divisor; the others are for the user
_SHARE_OF_DESCRIPTORS = 8
#: lent blocks that make the others scarce, as a share of the blocks and bytes that there may be
_SCARCE = 0.75
#: after so many acquires, idle blocks beyond the peak of the last two such spans are given back
_SPAN = 256

_numbers = count()


class Block:
    """One shared-memory segment: its number, its size in bytes, and the descriptor to send to other processes.

    Page-aligned. The content is arbitrary: what the last use left.
    """

    __slots__ = ("_mapping", "_returned", "fd", "generation", "lent", "number", "size")

    def __init__(self, size: int, returned: SimpleQueue[Use]) -> None:
        self._mapping: Mapping | None
        self.fd, self._mapping = new_segment(size)
        self.number = next(_numbers)
        self.size = size
        #: which use this is; a view of an earlier one that dies late does not end it
        self.generation = 0
        #: `array` was called: the death of that array ends the use
        self.lent = False
        self._returned = returned

    def view(self) -> Bytes:
        """The memory, to write or read while the block is acquired. Keeps it mapped, but not acquired."""
        return np.asarray(self._mapped())

    def array(self) -> Bytes:
        """The memory as an array whose death, views and all, releases the block. Once per `acquire`."""
        if self.lent:
            raise RuntimeError(f"block {self.number} has an array already; take views of that")
        lease = Lease(self._mapped(), self._returned, (self.number, self.generation))
        self.lent = True
        return np.asarray(lease)

    def release(self) -> None:
        """Give a block back that has no array, such as one that a dead worker was to write to. Never waits.

        Nobody may write to it afterwards. Does nothing after `array`: then the death of the array gives it back.
        """
        if not self.lent:
            self._returned.put((self.number, self.generation))

    @property
    def closed(self) -> bool:
        """Whether it was given back to the system. A process that has mapped it may drop it."""
        return self._mapping is None

    def _mapped(self) -> Mapping:
        if self._mapping is None:
            raise PenstockError(f"block {self.number} is closed, or belongs to another process")
        return self._mapping

    def close(self, *, idle: bool = False) -> None:
        """Let go of descriptor and memory. Arrays stay valid; the memory is free when the last has died.

        With `idle`, nobody looks at it: it is free at once, even where a worker still maps it.
        """
        mapping, self._mapping = self._mapping, None
        if mapping is None:
            return
        _owned.discard(self.number)
        fd, self.fd = self.fd, -1
        os.close(fd)
        if idle:
            mapping.free()

    def __del__(self) -> None:
        if hasattr(self, "_returned"):  # it was made
            self.close()


class Blocks:
    """The blocks of one owner, at most `limit_bytes` of them. May be used by several threads.

    `spare` is for a bound on memory: given how many bytes are out, it says how many idle ones may be kept. It is
    asked whenever blocks are made, lent or come back, and may change its mind. As long as there is room for
    another, an idle block is lent only for content that takes at least the part `filled` of it.

    >>> blocks = Blocks(limit_bytes=1_000_000)
    >>> block = blocks.acquire(600_000)
    >>> batch = block.array()
    >>> blocks.acquire(600_000)              # all are out: copy, do not wait
    >>> row = batch[:1000]
    >>> del batch, row
    >>> blocks.acquire(600_000) is block     # warm
    True
    >>> blocks.close()
    """

    def __init__(self, limit_bytes: int, spare: Callable[[int], int] | None = None, filled: float = 0.5) -> None:
        self.limit_bytes = limit_bytes
        self._spare = spare
        self._filled = filled
        self._lock = threading.Lock()
        self._blocks: dict[int, Block] = {}
        self._idle: dict[int, Block] = {}  # the one idle longest first
        self._returned: SimpleQueue[Use] = SimpleQueue()
        self._bytes = self._bytes_out = 0
        #: the most bytes of blocks that there have been, idle ones included
        self.peak_bytes = 0
        self._acquired = self._peak = self._peak_before = 0
        self._closed = self._elsewhere = False
        _living[id(self)] = self

    def acquire(self, nbytes: int) -> Block | None:
        """A block of at least `nbytes`; None where the limit allows none now, and after `close`.

        Raises PenstockError where the system refuses the memory.
        """
        if self._elsewhere:
            raise PenstockError("the blocks belong to another process; make a new loader after the fork")
        block = None
        try:
            with self._lock:
                self._drain()
                if not self._closed and SENDABLE:
                    block = self._idle_for(size := _size_for(nbytes)) or self._new(size)
                if block is not None:
                    self._lend(block)
                self._keep_spare()
        finally:
            self._empty_if_closed()
        return None if self._closed else block

    def descriptor(self, block: Block) -> int | None:
        """A descriptor of the block to send and then to close; None if it is closed, or there are too many.

        That of the block itself may be closed by another thread, and be another file's when it is sent.
        """
        try:
            with self._lock:
                return None if block.closed else os.dup(block.fd)
        except OSError:
            return None
        finally:
            self._empty_if_closed()

    def trim(self) -> None:
        """Give back idle blocks that the bound has no room for: somebody needs the memory elsewhere."""
        if self._spare is None or not self._blocks:
            return
        with self._lock:
            self._drain()
            self._keep_spare()
        self._empty_if_closed()

    @property
    def scarce(self) -> bool:
        """Whether so much is lent that a chunk that can be copied should be."""
        out = len(self._blocks) - len(self._idle)
        return self._bytes_out > _SCARCE * self.limit_bytes or out > _SCARCE * _most_blocks()

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks, idle ones included. Never waits."""
        return self._bytes

    def stats(self) -> dict[str, int]:
        """How many blocks and bytes there are, and how many of them are out."""
        with self._lock:
            self._drain()
            stats = {
                "blocks": len(self._blocks),
                "blocks_out": len(self._blocks) - len(self._idle),
                "bytes": self._bytes,
                "bytes_out": self._bytes_out,
            }
        self._empty_if_closed()
        return stats

    def bound(self, spare: Callable[[int], int] | None) -> None:
        """Ask this from now on how many idle bytes may be kept."""
        self._spare = spare

    def close(self) -> None:
        """Give everything back; what is still looked at, when the last view dies. May be called again.

        Never waits: the garbage collector may call it while its own thread is inside `acquire`.
        """
        self._closed = True
        self._empty_if_closed()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _drain(self) -> None:
        returned = self._returned
        while not returned.empty():
            number, generation = returned.get_nowait()
            block = self._blocks.get(number)
            if block is not None and block.generation == generation and number not in self._idle:
                self._take_back(block)

    def _take_back(self, block: Block) -> None:
        block.lent = False
        self._bytes_out -= block.size
        self._idle[block.number] = block

    def _lend(self, block: Block) -> None:
        block.generation += 1
        self._bytes_out += block.size
        self._peak = max(self._peak, self._bytes_out)
        self._acquired += 1
        if self._acquired % _SPAN == 0:
            # Two spans, so that a peak is remembered for at least one.
            self._shrink(to_bytes=max(self._peak, self._peak_before))
            self._peak_before, self._peak = self._peak, self._bytes_out

    def _idle_for(self, size: int) -> Block | None:
        """The idle block used last of this size, or a larger one where that is no great waste."""
        best: Block | None = None
        for block in reversed(self._idle.values()):
            if block.size == size:
                best = block
                break
            if block.size > size and (best is None or block.size < best.size):
                best = block
        if best is None or (size < self._filled * best.size and self._has_room(size)):
            return None
        return self._idle.pop(best.number)

    @uninterrupted()
    def _new(self, size: int) -> Block | None:
        if self._bytes_out + size > self.limit_bytes:
            return None
        self._keep_spare(size)  # before there is another
        while self._idle and not self._has_room(size):
            self._give_back_oldest()
        if not self._has_room(size):
            return None  # other owners have all the descriptors
        while True:
            try:
                block = Block(size, self._returned)
                break
            except OSError as exc:
                if self._idle:  # they may be what is in the way
                    self._shrink(to_bytes=0)
                elif exc.errno in (errno.EMFILE, errno.ENFILE):
                    return None
                else:
                    raise refused(size, exc, self._blocks.values()) from exc
        _owned.add(block.number)
        self._blocks[block.number] = block
        self._bytes += size
        self.peak_bytes = max(self.peak_bytes, self._bytes)
        return block

    def _has_room(self, size: int) -> bool:
        return self._bytes + size <= self.limit_bytes and len(_owned) < _most_blocks()

    def _keep_spare(self, more_out: int = 0) -> None:
        """Keep no more idle blocks than the bound on memory allows when `more_out` more bytes are lent."""
        if self._spare is not None and self._idle:
            self._shrink(to_bytes=self._bytes_out + self._spare(self._bytes_out + more_out))

    def _shrink(self, to_bytes: int) -> None:
        while self._bytes > to_bytes and self._idle:
            self._give_back_oldest()

    def _give_back_oldest(self) -> None:
        self._give_back(next(iter(self._idle.values())))

    @uninterrupted()
    def _give_back(self, block: Block) -> None:
        del self._idle[block.number], self._blocks[block.number]
        self._bytes -= block.size
        block.close(idle=True)

    def _empty_if_closed(self) -> None:
        """Give everything back if this is closed. Whoever has the lock comes here after letting go of it."""
        if self._closed and self._lock.acquire(blocking=False):
            try:
                self._drain()
                self._shrink(to_bytes=0)
                self._forget()
            finally:
                self._lock.release()

    def _forget(self) -> None:
        for block in self._blocks.values():
            block.close()
        self._blocks, self._idle = {}, {}
        self._bytes = self._bytes_out = 0

    def _after_fork_in_child(self) -> None:
        self._elsewhere = True
        self._lock = threading.Lock()  # nobody may be left to release the other
        self._forget()


def single_block(nbytes: int) -> Block:
    """A block of at least `nbytes` that belongs to no `Blocks`: it ends with `close`, or when it is dropped."""
    size = whole_pages(nbytes)
    try:
        return Block(size, SimpleQueue())
    except OSError as exc:
        raise refused(size, exc) from exc


def _size_for(nbytes: int) -> int:
    """Eight sizes per doubling, in whole pages: at most an eighth is unused, and batches share blocks.

    >>> [_size_for(n) / 2**20 for n in (9_633_792, 9_700_000, 10_485_760, 10_485_761)]
    [10.0, 10.0, 10.0, 11.0]
    """
    step = 1 << max(0, (nbytes - 1).bit_length() - 4)
    return whole_pages(-(-nbytes // step) * step)


def _most_blocks() -> int:
    descriptors = os.sysconf("SC_OPEN_MAX")
    return min(_MOST_BLOCKS, descriptors // _SHARE_OF_DESCRIPTORS) if descriptors > 0 else _MOST_BLOCKS


#: numbers of the blocks of all `Blocks` of this process, each with a descriptor
_owned: set[int] = set()
_living: weakref.WeakValueDictionary[int, Blocks] = weakref.WeakValueDictionary()


def _after_fork_in_child() -> None:
    for reference in _living.valuerefs():
        if (blocks := reference()) is not None:
            blocks._after_fork_in_child()


system.at_fork(after_in_child=_after_fork_in_child)
