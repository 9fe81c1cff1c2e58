"""The parent's end of the connection to one process: messages, the desk, and the blocks that it may write to.

Guarantees:

* Every block that is out with the process is known here, and is free again when the process has been buried.
* Grants are answered in the order in which they were given: a chunk is written into the oldest.

The other end is `penstock.remote.worker_end`.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Sequence
from math import inf
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from penstock.executors.ending import Exit
from penstock.executors.parking import at_a_time
from penstock.executors.startup import Process
from penstock.interrupts import uninterrupted
from penstock.memory.block import Block, Blocks
from penstock.memory.codec import Layout
from penstock.memory.parcel import Parcel
from penstock.program.chunk import Chunk
from penstock.program.desk import Desk, Sample, new_desk
from penstock.program.task import CallKey
from penstock.remote.cargo import Cargo, unstowed
from penstock.remote.wire import SMALL_BYTES, Gone, Message, Wire


class Connection:
    """One process and the blocks it knows. Another process is another connection."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.wire = Wire(process.socket)
        #: where the process shows what it has in hand, once it has been asked to
        self.desk: Desk | None = None
        #: blocks that the process maps, of whatever loader
        self._attached: dict[int, Block] = {}
        #: for what it has not answered: the block to write to, the oldest first
        self._grants: deque[Block | None] = deque()
        #: blocks that hold the samples of a ticket, by the ticket
        self._lent: dict[int, Block] = {}
        self._poll = select.poll()
        self._fd = process.socket.fileno()
        self._poll.register(self._fd, select.POLLIN)
        self._poll.register(process.ended_fileno(), select.POLLIN)

    # ------------------------------------------------------------------ waiting

    @property
    def spoken(self) -> bool:
        """Whether the process has sent something that was not received yet, or has ended."""
        with self.process.keeping_open():
            return bool(self.wire.pending or self._poll.poll(0))

    def wait(self, deadline: float = inf) -> bool:
        """Wait until the process has sent something; False if the deadline passed first. Gone if it has ended."""
        if self.wire.pending:
            return True
        while True:
            left_s = deadline - perf_counter()
            wait_s = at_a_time(left_s)
            with self.process.keeping_open():  # somebody else may close it
                events = self._poll.poll(None if wait_s == inf else max(wait_s, 0) * 1000 + 1)
            if events or wait_s == left_s:
                break
        # Its end is seen by a descriptor of its own: a child of the process may keep the socket open.
        if events and all(fd != self._fd for fd, _ in events):
            raise Gone
        return bool(events)

    # ------------------------------------------------------------------ what the process gets

    def watch(self) -> Desk:
        """Ask the process to show what it has in hand."""
        fd, self.desk = new_desk()
        try:
            self.wire.send(("desk",), fds=[fd])
        finally:
            os.close(fd)
        return self.desk

    def send_parcel(self, head: Any, parcel: Parcel) -> None:
        """Send a program, and with it the blocks of its arrays."""
        self.wire.send(head, [parcel.data], [block.fd for block in parcel.blocks])

    def lend(self, blocks: Blocks, ticket: int, layout: Layout) -> tuple[int | None, Sequence[bytearray]]:
        """The samples of a ticket: the number of the block they are in, or else the body of a message."""
        block = self._block_for(blocks, layout.nbytes)
        if block is None:
            return None, layout.buffers()
        self._lent[ticket] = block
        layout.write(block.view().data)
        return block.number, ()

    def lent_back(self, ticket: int) -> None:
        """The process holds no array any more of the samples that were sent with a ticket."""
        _release(self._lent.pop(ticket, None))

    def grant(self, blocks: Blocks, nbytes: int) -> int | None:
        """The number of a block to write the next chunk to; None for little, or if there is none."""
        self._grants.append(None)
        self._grants[-1] = self._block_for(blocks, nbytes)
        return self._number(-1)

    def regrant(self, blocks: Blocks, nbytes: int) -> None:
        """The process needs a larger block for its next chunk."""
        self._take_back(0)
        self._grants[0] = self._block_for(blocks, nbytes)
        self.wire.send(("grant", self._number(0)))

    def revoke(self, left: int) -> None:
        """Take back the newest grants, which were not sent: the process has only `left` chunks to write."""
        while len(self._grants) > left:
            self._take_back(-1)
            self._grants.pop()

    def _number(self, which: int) -> int | None:
        block = self._grants[which]
        return None if block is None else block.number

    def _take_back(self, which: int) -> None:
        # In this order: Ctrl-C in between leaves nothing out, and a block that is released twice is so once.
        _release(self._grants[which])
        self._grants[which] = None

    def take_back_all(self) -> None:
        """Free all blocks that the process was given: it will not write to them any more."""
        while self._grants:
            _release(self._grants.popleft())
        while self._lent:
            _release(self._lent.popitem()[1])

    def _block_for(self, blocks: Blocks, nbytes: int) -> Block | None:
        """A block of that size that the process knows; None for little, or if there is none."""
        if nbytes <= SMALL_BYTES:
            return None
        block = blocks.acquire(nbytes)
        if block is None or block.number in self._attached:
            return block
        with uninterrupted():  # until somebody closes it, wherever Ctrl-C comes
            sent = _Descriptor(blocks.descriptor(block))
        if sent.fd is None:
            block.release()
            return None
        try:
            self.wire.send(("attach", [(block.number, block.size)], self._dropped()), fds=[sent.fd])
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

    # ------------------------------------------------------------------ what comes back

    def received(self, blocks: Blocks, cargo: Cargo, message: Message) -> Chunk:
        """The chunk that came: views of the block it was granted, or copies if too much is out already."""
        try:
            memory, shown = self._memory(blocks, cargo, message)
        finally:  # also where the loader has been closed meanwhile, and its blocks with it
            self._take_back(0)  # which does nothing where an array decides
            self._grants.popleft()
        chunk = unstowed(cargo, memory)
        chunk.nbytes = memory.nbytes if shown else 0
        return chunk

    def _memory(self, blocks: Blocks, cargo: Cargo, message: Message) -> tuple[Any, bool]:
        """The memory that a chunk is in, and whether that memory is the block itself."""
        grant = self._grants[0]
        if cargo.block is None:
            return message.body, False
        if grant is None or grant.number != cargo.block:
            raise Gone  # it names a block that it was not given
        return (np.array(grant.view()[: cargo.nbytes]), False) if blocks.scarce else (grant.array(), True)


class Death(NamedTuple):
    """How a process ended, and what it had in hand."""

    end: Exit | None
    #: 0 if it had no ticket
    ticket: int
    sample: Sample | None
    #: the call in hand had run out of time
    late: bool

    @property
    def call(self) -> CallKey | None:
        """The call in hand."""
        return None if self.sample is None else (self.sample.step, self.sample.position, self.sample.way)


def bury(process: Process, connection: Connection | None) -> Death:
    """End a process that has died or cannot be used any more, and free the blocks that it was given."""
    process.kill()
    end = process.exit(1.0)
    if connection is not None:
        connection.take_back_all()
    if connection is None or connection.desk is None:
        return Death(end, 0, None, False)
    return Death(end, connection.desk.ticket, connection.desk.sample, connection.desk.deadline <= perf_counter())


class _Descriptor:
    """The descriptor of a block, to be sent; it is closed when nobody holds it any more."""

    __slots__ = ("fd",)

    def __init__(self, fd: int | None) -> None:
        self.fd = fd

    def __del__(self) -> None:
        if self.fd is not None:
            os.close(self.fd)


def _release(block: Block | None) -> None:
    if block is not None:
        block.release()
