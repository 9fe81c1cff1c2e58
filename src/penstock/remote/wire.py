"""Messages between a worker process and its parent, one after the other over one socket.

A message is a head (a pickled tuple: both ends are ours) and, for samples that are not in a block, a
body of raw bytes. Descriptors of blocks ride along with a message that names them.

Parent to worker::

    desk                        the page on which the worker shows what it has in hand
    program  number, ...        what a stage runs; sent once, without a body to a worker that was forked with it
    run      a `Request`         one ticket
    go       ticket, ...        continue a paused ticket, under a new number
    grant    number             a block to write to; none if there is none
    forget   tickets, programs  drop these paused tickets and these programs

Worker to parent::

    chunk    a `Reply`         what a ticket has made
    need     ticket, nbytes     a larger block than the one that came with the ticket
"""

from __future__ import annotations

import array
import pickle
import socket
import struct
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.provenance import Place

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

#: bytes of the head, bytes of the body, descriptors
_PREFIX = struct.Struct("<IQI")
_BUFFER_BYTES = 64 * 1024
#: descriptors in one message at the most; the kernel allows 253
MOST_FDS = 200
#: buffers in one call of the system at the most
_MOST_PARTS = 512
#: what takes less goes through the socket: a block would cost more than the copy
SMALL_BYTES = 32 * 1024


class Gone(Exception):
    """The other end has closed, or its process has ended."""


class Request(NamedTuple):
    """A ticket for a worker process."""

    ticket: int
    program: int
    epoch: int
    first: int
    last: int
    step: int
    #: where the samples stand that came along; None if the worker reads them itself
    places: Sequence[Place] | None
    #: header of what came along, and the block it is in; without a block it is the message's body
    header: bytes | None
    block: int | None
    #: the block to write the chunk to
    grant: int | None
    #: bytes after which to hand in what there is; 0 if it does not matter
    portion: int
    #: calls that ran out of time before, and samples that have killed their worker, by step and place
    timeouts: dict[tuple[int, int, int], int]
    condemned: dict[tuple[int, int, int], str]
    #: only find out whether a sample kills its worker
    probe: bool


class Reply(NamedTuple):
    """What a ticket has made, so far or in all."""

    ticket: int
    done: bool
    seconds: float
    cpu_s: float
    #: see `penstock.remote.cargo`
    cargo: Any
    #: blocks that were sent with tickets and that no array looks into any more: number and use
    returned: list[tuple[int, int]]
    #: what a cache is to keep, pickled
    kept: bytes | None
    #: the times of its calls, if they were timed: see `penstock.stats.calls`
    timed: Any = None


class Message(NamedTuple):
    """A message that was received: head, body and descriptors."""

    head: Any
    body: NDArray[np.uint8]
    fds: list[int]


class Wire:
    """One end of the socket. Used by one thread.

    A message that has begun is waited for, however long it takes. Wait with a deadline for its first bytes.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        #: bytes that were received, and of which `receive` has made no message yet
        self._buffer = bytearray(_BUFFER_BYTES)
        self._start = self._end = 0
        #: descriptors that were received, in the order of their messages
        self._fds: list[int] = []

    @property
    def pending(self) -> bool:
        """Bytes of the next message are in the buffer, so the socket does not show them any more."""
        return self._end > self._start

    def send(self, head: Any, body: Sequence[ReadableBuffer] = (), fds: Sequence[int] = ()) -> None:
        """Send a message. Raises Gone if nobody can receive it."""
        data = pickle.dumps(head, pickle.HIGHEST_PROTOCOL)
        views = [memoryview(one).cast("B") for one in body if memoryview(one).nbytes]
        size = sum(one.nbytes for one in views)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        parts = [memoryview(_PREFIX.pack(len(data), size, len(fds)) + data), *views]
        while parts:
            try:
                sent = self.sock.sendmsg(parts[:_MOST_PARTS], rights)
            except OSError as exc:
                raise Gone from exc
            rights = []
            while parts and sent >= parts[0].nbytes:
                sent -= parts.pop(0).nbytes
            if sent:
                parts[0] = parts[0][sent:]

    def receive(self, fds: bool = False) -> Message:
        """The next message. Waits for it; raises Gone at the end."""
        self._await(_PREFIX.size, fds)
        head_size, body_size, fd_count = _PREFIX.unpack_from(self._buffer, self._start)
        self._start += _PREFIX.size
        if head_size <= len(self._buffer) - _PREFIX.size:
            self._await(head_size, fds)
            head = pickle.loads(memoryview(self._buffer)[self._start : self._start + head_size])
            self._start += head_size
        else:
            head = pickle.loads(self._taken(head_size).data)
        body = self._taken(body_size)
        got, self._fds = self._fds[:fd_count], self._fds[fd_count:]
        return Message(head, body, got)

    def _await(self, size: int, fds: bool) -> None:
        """Read until at least `size` bytes are in the buffer."""
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start + size > len(self._buffer):
            left = self._end - self._start
            self._buffer[:left] = self._buffer[self._start : self._end]
            self._start, self._end = 0, left
        while self._end - self._start < size:
            self._end += self._read(memoryview(self._buffer)[self._end :], fds)

    def _taken(self, size: int) -> NDArray[np.uint8]:
        """The next bytes as memory of their own: what is in the buffer, and then straight from the socket."""
        memory = np.empty(size, np.uint8)
        view = memory.data
        have = min(size, self._end - self._start)
        view[:have] = memoryview(self._buffer)[self._start : self._start + have]
        self._start += have
        while have < size:
            have += self._read(view[have:], False)
        return memory

    def _read(self, memory: memoryview, fds: bool) -> int:
        """Some bytes, at least one."""
        try:
            count = self._with_fds(memory) if fds else self.sock.recv_into(memory)
        except OSError as exc:
            raise Gone from exc
        if not count:
            raise Gone
        return count

    def _with_fds(self, memory: memoryview) -> int:
        flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        count, rights, *_ = self.sock.recvmsg_into([memory], _room_for_fds(), flags)
        for level, kind, content in rights:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                found = array.array("i")
                found.frombytes(content[: len(content) - len(content) % found.itemsize])
                self._fds += found
        return count


@cache
def _room_for_fds() -> int:
    # Not at import: Windows has no CMSG_SPACE.
    return socket.CMSG_SPACE(MOST_FDS * array.array("i").itemsize)
