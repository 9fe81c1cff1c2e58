"""A client's connection without keys: a plain socket that speaks ZMTP 3 with the server's libzmq.

Whoever reads batches receives them here itself, without a thread of libzmq in between. Specification: RFC 37 of
ZeroMQ (greeting, mechanism NULL, READY, PING and PONG); only what a DEALER needs that talks to one ROUTER.

A connection that cannot be made, ends, or does not speak ZMTP is tried again after 0.05 to 0.5 s, until it is
closed. Nothing here waits longer than `_WAIT_S`, but for the name of a host to be looked up.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from collections.abc import Sequence
from time import monotonic

from penstock.memory.recycle import Recycler
from penstock.service.frames import COMMAND, Frames
from penstock.service.protocol import Malformed
from penstock.service.sockets import HANDSHAKE_MS

__all__ = ["PlainConnection"]

#: how long a frame that has begun to arrive is waited for at once
_WAIT_S = 0.02
#: pauses between attempts: the first, and the longest
_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 0.5
#: what closing may take to send what was said last
_LINGER_S = 0.2
#: commands that are obeyed before anything else is looked at
_COMMANDS_AT_ONCE = 64
#: bytes that wait to be sent, besides what was said since
_MOST_UNSENT = 1 << 20

_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
_READY = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER" + b"\x08Identity" + bytes(4)


def _command(body: bytes) -> bytes:
    return bytes((COMMAND, len(body))) + body


def _target(address: str) -> tuple[int, str | tuple[str, int]]:
    """The family and address of a socket, for an address that was checked."""
    if address.startswith("ipc://"):
        return socket.AF_UNIX, address.removeprefix("ipc://")
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    ours = [one for one in found if one[0] == socket.AF_INET or "[" in host] or found
    family, _, _, _, target = ours[0]
    return family, (str(target[0]), int(target[1]))


class PlainConnection:
    """One connection at a time to one address. Used by one thread at a time."""

    def __init__(self, address: str, recycler: Recycler) -> None:
        self._address = address
        self._recycler = recycler
        self._socket: socket.socket | None = None
        self._frames: Frames
        #: when the next attempt is due, or this one has to be through
        self._due = 0.0
        #: their greeting is here; both sides are ready; and the owner knows of that
        self._greeted = self.ready = self._told = False
        self._outbox = bytearray()
        self._pause_s = _PAUSE_S
        self._dial()

    def fileno(self) -> int:
        """To wait for; -1 between two attempts."""
        return -1 if self._socket is None else self._socket.fileno()

    @property
    def sending(self) -> bool:
        """It waits until it can send, or is connected."""
        return bool(self._outbox)

    @property
    def pending(self) -> bool:
        """A message may be there without any more bytes."""
        return self._socket is not None and not self._frames.hungry

    # ------------------------------------------------------------------ messages

    def receive(self) -> Sequence[memoryview] | None:
        """The frames of the next message; None if it is not there."""
        if self._socket is None or not self._flush():
            return None
        try:
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
        except OSError:
            self._drop()
        except Malformed:
            was_ready = self.ready
            self._drop()
            if was_ready:
                raise
        return None

    def send(self, frame: bytes) -> None:
        """Say it, if there is a connection; otherwise the session begins anew with the next one."""
        if self.ready:
            size = len(frame)
            head = bytes((0, size)) if size < 256 else b"\x02" + struct.pack(">Q", size)
            self._outbox += head + frame
            self._flush()

    def _greet(self) -> bool:
        theirs = self._frames.exactly(64)
        if theirs is None:
            return False
        if theirs[0] != 0xFF or theirs[9] != 0x7F or theirs[10] < 3 or theirs[12:32] != _GREETING[12:32]:
            raise Malformed("no greeting of ZMTP 3 without keys")
        self._greeted = True
        self._outbox += _command(_READY)
        self._flush()
        return True

    def _obey(self, body: bytes) -> None:
        if body.startswith(b"\x05READY"):
            self.ready = True
            self._pause_s = _PAUSE_S
        elif body.startswith(b"\x04PING"):
            if len(self._outbox) > _MOST_UNSENT:
                raise ConnectionResetError("the other side asks, and does not read the answers")
            self._outbox += _command(b"\x04PONG" + body[7:23])
            self._flush()
        elif body.startswith(b"\x05ERROR"):
            raise ConnectionRefusedError("the other side has refused the handshake")

    # ------------------------------------------------------------------ the connection

    def look_after(self, now: float) -> bool:
        """Try again where it is due; whether a connection was just made, so that the session must be begun anew."""
        if self._socket is None and now >= self._due:
            self._dial()
        elif self._socket is not None and not self.ready and now >= self._due:
            self._drop()
        new, self._told = self.ready and not self._told, self.ready
        return new

    def _dial(self) -> None:
        self._greeted = self.ready = self._told = False
        self._outbox[:] = _GREETING
        self._due = monotonic() + HANDSHAKE_MS / 1000
        try:
            family, target = _target(self._address)
            self._socket = socket.socket(family, socket.SOCK_STREAM)
            self._frames = Frames(self._socket, self._recycler)
            self._socket.setblocking(False)
            code = self._socket.connect_ex(target)
            if code not in (0, errno.EINPROGRESS, errno.EAGAIN):
                raise OSError(code, "no connection")
            # Blocking for Python, so that one call can wait for a whole frame; the kernel ends each wait.
            self._socket.settimeout(None)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, int(_WAIT_S * 1e6)))
            if family != socket.AF_UNIX:
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            self._drop()

    def _flush(self) -> bool:
        """Send what the socket takes; whether it is connected."""
        if not self._outbox or self._socket is None:
            return self._socket is not None
        try:
            sent = self._socket.send(self._outbox, socket.MSG_DONTWAIT)
            del self._outbox[:sent]
        except (BlockingIOError, InterruptedError):
            return self.ready or self._greeted
        except OSError:
            self._drop()
            return False
        return True

    def _drop(self) -> None:
        """Leave the connection; the next attempt is after a pause."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self.ready = self._told = False
        self._outbox.clear()
        self._due = monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def close(self) -> None:
        """Send what was said last, if the other side takes it soon."""
        if self._socket is not None and self.ready and self._outbox:
            with contextlib.suppress(OSError):
                self._socket.settimeout(_LINGER_S)
                self._socket.sendall(self._outbox)
        if self._socket is not None:
            self._socket.close()
            self._socket = None
