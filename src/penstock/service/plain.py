"""A client's connection without keys: a plain socket, which whoever reads batches receives from itself.

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
from penstock.service.frames import Frames
from penstock.service.protocol import Malformed
from penstock.service.sockets import HANDSHAKE_MS
from penstock.service.zmtp import Wire, target_of

#: how long a frame that has begun to arrive is waited for at once
_WAIT_S = 0.02
#: pauses between attempts: the first, and the longest
_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 0.5


class PlainConnection:
    """One connection at a time to one address. Used by one thread at a time."""

    def __init__(self, address: str, recycler: Recycler) -> None:
        self._address = address
        self._recycler = recycler
        self._wire: Wire | None = None
        #: when the next attempt is due, or this one has to be through
        self._due = 0.0
        #: the owner knows that both sides are ready
        self._told = False
        self._pause_s = _PAUSE_S
        self._dial()

    def fileno(self) -> int:
        """To wait for; -1 between two attempts."""
        return -1 if self._wire is None else self._wire.socket.fileno()

    @property
    def ready(self) -> bool:
        return self._wire is not None and self._wire.ready

    @property
    def unsent(self) -> int:
        """Bytes that wait until it can send, or is connected."""
        return 0 if self._wire is None else self._wire.unsent

    @property
    def pending(self) -> bool:
        """A message may be there without any more bytes."""
        return self._wire is not None and not self._wire.hungry

    @property
    def received(self) -> int:
        """Bytes that came over this connection so far."""
        return 0 if self._wire is None else self._wire.received

    def holds(self, nbytes: int) -> bool:
        """Whether a message of so many bytes can be received without a wait."""
        try:
            return self._wire is not None and self._wire.unread >= nbytes
        except OSError:
            return False

    # ------------------------------------------------------------------ messages

    def receive(self) -> Sequence[memoryview] | None:
        """The frames of the next message; None if it is not there."""
        wire = self._wire
        if wire is None:
            return None
        try:
            if wire.unsent:
                wire.flush()
            return wire.receive()
        except OSError:
            self._drop()
        except Malformed:
            was_ready = wire.ready
            self._drop()
            if was_ready:
                raise
        return None

    def send(self, frame: bytes) -> None:
        """Say it, if there is a connection; otherwise the session begins anew with the next one."""
        if self._wire is not None and self._wire.ready:
            self._wire.send([frame])
            try:
                self._wire.flush()
            except OSError:
                self._drop()

    # ------------------------------------------------------------------ the connection

    def look_after(self, now: float) -> bool:
        """Try again where it is due; whether a connection was just made, so that the session must be begun anew."""
        ready = self.ready
        if not ready and now >= self._due:
            if self._wire is None:
                self._dial()
            else:
                self._drop()
        elif ready:
            self._pause_s = _PAUSE_S
        new, self._told = ready and not self._told, ready
        return new

    def _dial(self) -> None:
        self._due = monotonic() + HANDSHAKE_MS / 1000
        try:
            family, target = target_of(self._address)
            sock = socket.socket(family, socket.SOCK_STREAM)
            self._wire = Wire(sock, b"DEALER", Frames(sock, self._recycler))
            sock.setblocking(False)
            code = sock.connect_ex(target)
            if code not in (0, errno.EINPROGRESS, errno.EAGAIN):
                raise OSError(code, "no connection")
            # Blocking for Python, so that one call can wait for a whole frame; the kernel ends each wait.
            sock.settimeout(None)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, int(_WAIT_S * 1e6)))
            if family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            self._drop()

    def _drop(self) -> None:
        """Leave the connection; the next attempt is after a pause."""
        if self._wire is not None:
            self._wire.socket.close()
            self._wire = None
        self._told = False
        self._due = monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def close(self) -> None:
        """Leave the connection, once what was said last is sent as far as the other side takes it."""
        if self._wire is None:
            return
        with contextlib.suppress(OSError):
            self._wire.flush()
        self._wire.socket.close()
        self._wire = None
