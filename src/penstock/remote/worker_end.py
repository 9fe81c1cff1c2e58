"""The other end of a `Connection`, in a worker process or an isolated one: messages, the desk, its blocks."""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

from penstock.errors import PenstockError
from penstock.memory.block_map import BlockMap
from penstock.memory.codec import Layout
from penstock.memory.segment import Mapping
from penstock.program.chunk import Chunk
from penstock.program.desk import Desk
from penstock.remote.cargo import Cargo, stowed
from penstock.remote.wire import SMALL_BYTES, Message, Wire

#: asks the parent for a block of a size in bytes; returns its number
Ask = Callable[[int], int | None]


class WorkerEnd:
    """Receives the messages of the parent, and itself handles those about memory."""

    def __init__(self, sock: socket.socket) -> None:
        self.wire = Wire(sock)
        self.blocks = BlockMap()
        self.desk: Desk | None = None

    def receive(self) -> Message:
        """The next message."""
        while True:
            message = self.wire.receive(fds=True)
            kind, *said = message.head
            if kind == "attach":
                self._attach(message, *said)
            elif kind == "desk":
                (fd,) = message.fds
                self.desk = Desk(Mapping(fd, mmap.PAGESIZE))
                os.close(fd)
            else:
                return message

    def _attach(self, message: Message, named: list[tuple[int, int]], dropped: list[int]) -> None:
        """Map the blocks that came with a message, and drop others."""
        for (number, size), fd in zip(named, message.fds, strict=True):
            with suppress(PenstockError):  # no memory to map it; chunks go through the socket
                self.blocks.attach(number, fd, size)
        for number in dropped:
            self.blocks.drop(number)

    def stow(
        self, chunk: Chunk, layout: Layout, grant: int | None, ask: Ask, tightly: bool = False
    ) -> tuple[Cargo, Sequence[bytearray]]:
        """Write a chunk into the block that was granted, or that `ask` gets for it; else it is the message's body.

        `tightly`, without leaving more than half of the block unused.
        """
        block = grant if layout.nbytes > SMALL_BYTES else None
        if layout.nbytes > SMALL_BYTES and not self._fits(grant, layout.nbytes, tightly):
            block = ask(layout.nbytes)
        if block is None or block not in self.blocks:
            return stowed(chunk, layout, None), layout.buffers()
        layout.write(self.blocks.view(block).data)
        return stowed(chunk, layout, block), ()

    def _fits(self, number: int | None, nbytes: int, tightly: bool) -> bool:
        if number is None or number not in self.blocks:
            return False
        size = self.blocks.view(number).nbytes
        return size >= nbytes and (not tightly or size <= 2 * nbytes)
