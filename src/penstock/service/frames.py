"""Bytes of a connection to messages: frames of ZMTP 3, the wire format of ZeroMQ. Reads from one plain socket.

libzmq receives every frame into new memory and hands it from thread to thread; for large batches page faults and
wake-ups then take as long as the copy. Here a large frame goes from the socket straight into memory that was used
for an earlier batch, which nobody looks at any more.

* A frame longer than `FRAME_BYTES`, or a message of more frames or bytes than the owner accepts (by default, than a
  batch may have), is `Malformed`.
* Memory of a frame is writable, and is used again only after the last array that looks into it is gone.
"""

from __future__ import annotations

import fcntl
import socket
import termios
from array import array
from collections.abc import Sequence

import numpy as np

from penstock.memory.recycle import Recycler
from penstock.service.protocol import FRAME_BYTES, MOST_FRAMES, Malformed

#: flags of a frame
_MORE, _LONG, COMMAND = 1, 2, 4
#: bytes that are read at once where no large frame is under way
_BUFFER_BYTES = 16 << 10
#: a frame of so many bytes is received into memory of its own
_LARGE_BYTES = 32 << 10
#: of a whole message, the header of the samples included
_MESSAGE_BYTES = FRAME_BYTES + (32 << 20)
_BYTE = np.dtype(np.uint8)


class Frames:
    """The messages that come over one socket, which does not block, or for a short time (`SO_RCVTIMEO`)."""

    def __init__(
        self,
        sock: socket.socket,
        recycler: Recycler,
        most_bytes: int = _MESSAGE_BYTES,
        most_frames: int = MOST_FRAMES,
    ) -> None:
        self._socket = sock
        self._recycler = recycler
        #: of one message
        self._most_bytes = most_bytes
        self._most_frames = most_frames
        #: bytes that came so far
        self.received = 0
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        #: the part of the buffer that was received and not looked at
        self._at = self._end = 0
        #: a large frame that is under way, and how much of it is there
        self._large: memoryview | None = None
        self._filled = 0
        #: frames of the message that is under way
        self._frames: list[memoryview] = []
        self._nbytes = 0
        self._flags = 0
        #: the last look found that more bytes are needed
        self.hungry = True

    @property
    def unread(self) -> int:
        """Bytes that are here and were not looked at."""
        waiting = array("i", [0])
        fcntl.ioctl(self._socket, termios.FIONREAD, waiting)
        return self._end - self._at + waiting[0]

    def exactly(self, nbytes: int) -> bytes | None:
        """The next bytes, where no frame is expected; None until they are there."""
        if self._end - self._at < nbytes and not self._more():
            return None
        if self._end - self._at < nbytes:
            return None
        self._at += nbytes
        return bytes(self._buffer[self._at - nbytes : self._at])

    def message(self) -> tuple[int, Sequence[memoryview]] | None:
        """The flags and the frames of the next message or command; None until it is there whole."""
        while True:
            if self._large is None:
                frame = self._begin()
                if frame is None:
                    if self._large is None and not self._more():
                        return None
                    continue
            elif self._fill():
                frame, self._large = self._large, None
            else:
                return None
            flags = self._flags
            if flags & COMMAND:
                # libzmq sends its heartbeats between two frames of a message too.
                self._nbytes -= len(frame)
                self.hungry = False
                return flags, [frame]
            self._frames.append(frame)
            if not flags & _MORE:
                frames, self._frames, self._nbytes = self._frames, [], 0
                self.hungry = False
                return flags, frames

    def _begin(self) -> memoryview | None:
        """The next frame if it is in the buffer whole; one that would not fit there is begun."""
        buffer, at, end = self._buffer, self._at, self._end
        if end - at < 2:
            return None
        flags = buffer[at]
        if flags & _LONG:
            if end - at < 9:
                return None
            size, begin = int.from_bytes(buffer[at + 1 : at + 9], "big"), at + 9
        else:
            size, begin = buffer[at + 1], at + 2
        nbytes = self._nbytes + size
        if flags > _LONG | _MORE or nbytes > self._most_bytes or len(self._frames) >= self._most_frames:
            self._check(flags, size)
        if begin + size <= end and size < _LARGE_BYTES:
            self._flags, self._at, self._nbytes = flags, begin + size, nbytes
            return memoryview(bytearray(buffer[begin : begin + size]))
        if size + 9 > _BUFFER_BYTES:
            self._check(flags, size)
            self._flags, self._nbytes = flags, nbytes
            large = (
                self._recycler.empty((size,), _BYTE).data if size >= _LARGE_BYTES else memoryview(bytearray(size))
            )
            self._filled = min(size, end - begin)
            large[: self._filled] = buffer[begin : begin + self._filled]
            self._large, self._at = large, begin + self._filled
        return None

    def _check(self, flags: int, size: int) -> None:
        if flags > COMMAND | _LONG or (flags & COMMAND and (flags & _MORE or size > _BUFFER_BYTES)):
            raise Malformed(f"a frame with flags {flags:#x}")
        if size > FRAME_BYTES or self._nbytes + size > self._most_bytes or len(self._frames) >= self._most_frames:
            raise Malformed(
                f"a frame of {size} bytes after {len(self._frames)} frames of {self._nbytes} bytes, which is more "
                "than a message may have"
            )

    # ------------------------------------------------------------------ the socket

    def _fill(self) -> bool:
        """Receive the large frame; whether it is there whole."""
        assert self._large is not None
        missing = self._large.nbytes - self._filled
        if missing:
            count = self._receive(self._large[self._filled :], socket.MSG_WAITALL)
            self._filled += count
            missing -= count
        # A slow connection has given a part: whoever reads has heartbeats to send in between.
        self.hungry = missing > 0
        return not missing

    def _more(self) -> bool:
        """Read on into the buffer; whether anything was there."""
        if self._at == self._end:
            self._at = self._end = 0
        elif self._end == _BUFFER_BYTES or self._at > _BUFFER_BYTES // 2:
            rest = bytes(self._buffer[self._at : self._end])
            self._buffer[: len(rest)] = rest
            self._at, self._end = 0, len(rest)
        count = self._receive(self._buffer[self._end :], socket.MSG_DONTWAIT)
        self._end += count
        return count > 0

    def _receive(self, into: memoryview, flags: int) -> int:
        """0 if nothing is there; ConnectionError at the end of the connection."""
        try:
            count = self._socket.recv_into(into, 0, flags)
        except (BlockingIOError, InterruptedError):
            self.hungry = True
            return 0
        if not count:
            raise ConnectionResetError("the other side has closed the connection")
        self.received += count
        return count
