"""The parent's end of the line to one process: messages, and the blocks that go to and fro with them."""

from __future__ import annotations

import os
import select
from math import inf
from time import perf_counter
from typing import Any

import numpy as np

from penstock.executors.parking import at_a_time
from penstock.executors.startup import Process
from penstock.interrupts import uninterrupted
from penstock.memory.block import Block, Blocks
from penstock.program.chunk import Chunk
from penstock.remote.cargo import Cargo, unstowed
from penstock.remote.wire import SMALL_BYTES, Gone, Message, Wire

__all__ = ["Line", "take_back"]


class Line:
    """One process and the blocks it knows. A dead process is a new line."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.wire = Wire(process.socket)
        #: blocks that the process maps, of whatever loader
        self._attached: dict[int, Block] = {}
        self._poll = select.poll()
        self._fd = process.socket.fileno()
        self._poll.register(self._fd, select.POLLIN)
        self._poll.register(process.ended_fileno(), select.POLLIN)

    @property
    def spoken(self) -> bool:
        """The process has said something that was not heard yet, or has ended."""
        with self.process.held():
            return bool(self.wire.pending or self._poll.poll(0))

    def wait(self, deadline: float = inf) -> bool:
        """Wait until the process has said something; False when `deadline` came first. Gone if it has ended."""
        if self.wire.pending:
            return True
        while True:
            left_s = deadline - perf_counter()
            wait_s = at_a_time(left_s)
            with self.process.held():  # somebody else may close it
                events = self._poll.poll(None if wait_s == inf else max(wait_s, 0) * 1000 + 1)
            if events or wait_s == left_s:
                break
        # Not the end of the socket alone: a process that it has started may hold that open.
        if events and all(fd != self._fd for fd, _ in events):
            raise Gone
        return bool(events)

    def block_for(self, blocks: Blocks, nbytes: int) -> Block | None:
        """A block of that size that the process knows; None for little, or if there is none."""
        if nbytes <= SMALL_BYTES:
            return None
        block = blocks.acquire(nbytes)
        if block is None or block.number in self._attached:
            return block
        with uninterrupted():  # until somebody closes it, wherever Ctrl-C comes
            lent = _Lent(blocks.descriptor(block))
        if lent.fd is None:
            block.release()
            return None
        try:
            self.wire.send(("attach", [(block.number, block.size)], self._dropped()), fds=[lent.fd])
        except BaseException:
            block.release()
            raise
        self._attached[block.number] = block
        return block

    def tidy(self) -> None:
        """Tell the process of blocks that there are no more."""
        if dropped := self._dropped():
            self.wire.send(("attach", [], dropped))

    def _dropped(self) -> list[int]:
        closed = [number for number, block in self._attached.items() if block.closed]
        for number in closed:
            del self._attached[number]
        return closed

    def received(self, blocks: Blocks, cargo: Cargo, message: Message, grant: Block | None) -> Chunk:
        """The chunk that came: views of the block it was granted, or copies if too much is out already."""
        if cargo.block is None:
            take_back(grant)
            return unstowed(cargo, message.body)
        if grant is None or grant.number != cargo.block:
            raise Gone  # it speaks of a block that it was not given
        if not blocks.scarce:
            chunk = unstowed(cargo, grant.array())
            chunk.nbytes = grant.size
            return chunk
        memory: Any = np.array(grant.view()[: cargo.nbytes])
        take_back(grant)
        return unstowed(cargo, memory)


class _Lent:
    """The descriptor of a block, to be sent; it is closed when nobody holds it any more."""

    __slots__ = ("fd",)

    def __init__(self, fd: int | None) -> None:
        self.fd = fd

    def __del__(self) -> None:
        if self.fd is not None:
            os.close(self.fd)


def take_back(block: Block | None) -> None:
    """A block is not needed any more; the process will not write to it."""
    if block is not None:
        block.release()
