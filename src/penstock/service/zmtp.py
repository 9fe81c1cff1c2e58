"""One connection without keys: ZMTP 3 with the mechanism NULL over a plain socket. Both ends are made of this.

Specification: RFC 37 of ZeroMQ (greeting, READY, PING and PONG), as far as a DEALER and a ROUTER need it. A peer of
libzmq cannot tell this end from one of its own. Nothing here waits, connects or accepts: the owner does.

* Large frames are sent from where they lie. What waits to be sent keeps its memory alive, and nothing else does.
* Whatever is no ZMTP, or exceeds what `Frames` admits, is `Malformed`; a lost connection is an `OSError`.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any

from penstock.service.frames import COMMAND, Frames
from penstock.service.protocol import Malformed

#: commands that are obeyed before anything else is looked at
_COMMANDS_AT_ONCE = 64
#: with so many unsent bytes PING is not answered: the other side does not read, or hears from this one anyway
_MOST_UNREAD = 1 << 20
#: a frame of so many bytes is sent from where it lies; shorter ones are joined
_LARGE_BYTES = 32 << 10
#: parts that one call sends
_PARTS_AT_ONCE = 256

#: of a frame of 256 bytes or more
_LONG_HEAD = struct.Struct(">BQ").pack

_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)


def target_of(address: str) -> tuple[int, Any]:
    """The family and address of a socket, for an address of the service that was checked."""
    if address.startswith("ipc://"):
        return socket.AF_UNIX, address.removeprefix("ipc://")
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if host == "*":
        return socket.AF_INET, ("0.0.0.0", 0 if port == "*" else int(port))
    found = socket.getaddrinfo(host.strip("[]"), 0 if port == "*" else int(port), type=socket.SOCK_STREAM)
    ours = [one for one in found if one[0] == socket.AF_INET or "[" in host] or found
    family, _, _, _, target = ours[0]
    return family, (str(target[0]), int(target[1]))


def _property(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + struct.pack(">I", len(value)) + value


class Wire:
    """One connected socket. Used by one thread at a time."""

    def __init__(self, sock: socket.socket, kind: bytes, frames: Frames) -> None:
        self.socket = sock
        self._frames = frames
        self._ready_said = b"\x05READY" + _property(b"Socket-Type", kind) + _property(b"Identity", b"")
        #: their greeting is here; and both sides are ready
        self._greeted = self.ready = False
        self._parts: deque[bytes | memoryview] = deque()
        #: bytes that were ever said, and sent; and how many were said with each message that is not sent whole
        self._said = self._sent = 0
        self._ends: deque[int] = deque()
        self._say(_GREETING)

    @property
    def unsent(self) -> int:
        """Bytes that wait to be sent."""
        return self._said - self._sent

    @property
    def messages_unsent(self) -> int:
        """Messages of which some bytes wait to be sent."""
        return len(self._ends)

    @property
    def hungry(self) -> bool:
        """Without more bytes there is no further message."""
        return self._frames.hungry

    @property
    def received(self) -> int:
        """Bytes that came so far."""
        return self._frames.received

    @property
    def unread(self) -> int:
        """Bytes that are here and were not looked at."""
        return self._frames.unread

    # ------------------------------------------------------------------ messages

    def receive(self) -> Sequence[memoryview] | None:
        """The frames of the next message; None if it is not there whole."""
        if not self._greeted and not self._greet():
            return None
        for _ in range(_COMMANDS_AT_ONCE):
            found = self._frames.message()
            if found is None:
                return None
            flags, frames = found
            if not flags & COMMAND:
                if not self.ready:
                    raise Malformed("a message before the handshake")
                return frames
            self._obey(bytes(frames[0]))
        return None

    def send(self, frames: Sequence[bytes | memoryview]) -> None:
        """Say one message. `flush` sends it."""
        joined: list[bytes | memoryview] = []
        last = len(frames) - 1
        for number, frame in enumerate(frames):
            size = len(frame)
            joined.append(bytes((number < last, size)) if size < 256 else _LONG_HEAD(2 | (number < last), size))
            if size < _LARGE_BYTES:
                joined.append(frame)
            else:
                self._parts += (b"".join(joined), frame)
                self._said += sum(map(len, joined)) + size
                joined = []
        if joined:
            self._say(b"".join(joined))
        self._ends.append(self._said)

    def ping(self) -> None:
        """Ask for a sign of life."""
        self._command(b"\x04PING\0\0")

    def flush(self) -> bool:
        """Send what the socket takes; whether that is all."""
        parts = self._parts
        while parts:
            some = list(islice(parts, _PARTS_AT_ONCE))
            try:
                sent = self.socket.sendmsg(some, (), socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                return False
            self._sent += sent
            while self._ends and self._ends[0] <= self._sent:
                self._ends.popleft()
            for part in some:
                if sent < len(part):
                    parts[0] = memoryview(part)[sent:]
                    return False  # it takes no more now
                sent -= len(part)
                parts.popleft()
        return True

    def _say(self, part: bytes | memoryview) -> None:
        if part:
            self._parts.append(part)
            self._said += len(part)

    def _command(self, body: bytes) -> None:
        self._say(bytes((COMMAND, len(body))) + body)

    def _greet(self) -> bool:
        theirs = self._frames.exactly(64)
        if theirs is None:
            return False
        if theirs[0] != 0xFF or theirs[9] != 0x7F or theirs[10] < 3 or theirs[12:32] != _GREETING[12:32]:
            raise Malformed("no greeting of ZMTP 3 without keys")
        self._greeted = True
        self._command(self._ready_said)
        self.flush()
        return True

    def _obey(self, body: bytes) -> None:
        if body.startswith(b"\x05READY"):
            self.ready = True
        elif body.startswith(b"\x04PING"):
            if self.unsent < _MOST_UNREAD:
                self._command(b"\x04PONG" + body[7:23])
                self.flush()
        elif body.startswith(b"\x05ERROR"):
            raise ConnectionRefusedError("the other side has refused the handshake")
