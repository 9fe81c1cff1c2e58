"""A client's connection through libzmq, which encrypts it (CURVE) and connects anew by itself."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from penstock.service.extra import zmq_module
from penstock.service.keys import Key
from penstock.service.protocol import FRAME_BYTES
from penstock.service.sockets import HANDSHAKE_MS

#: messages that wait to be looked at; while so many do, libzmq reads no more from the connection
_UNREAD = 100


class KeyedConnection:
    """A DEALER socket with a context of its own. Used by one thread at a time."""

    #: it sends in a thread of libzmq, and never waits for room
    unsent = 0
    #: bytes that have come: libzmq does not say
    received = 0

    def __init__(self, address: str, key: Key) -> None:
        zmq = self._zmq = zmq_module()
        self._now = int(zmq.NOBLOCK)
        self._context = zmq.Context()
        socket = self._socket = self._context.socket(zmq.DEALER)
        socket.ipv6 = "[" in address
        socket.linger = 200
        socket.sndhwm = 0
        socket.rcvhwm = _UNREAD
        socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES)
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        socket.setsockopt(zmq.RECONNECT_IVL, 50)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        socket.curve_serverkey = key.server.encode()
        socket.curve_secretkey, socket.curve_publickey = key.secret.encode(), key.public.encode()
        socket.connect(address)
        self._descriptor = int(socket.getsockopt(zmq.FD))

    def fileno(self) -> int:
        return self._descriptor

    @property
    def pending(self) -> bool:
        """A message is there. Ask before a wait: the descriptor becomes readable once for several messages."""
        return bool(self._socket.getsockopt(self._zmq.EVENTS) & self._zmq.POLLIN)

    def holds(self, nbytes: int) -> bool:
        """Whether a message of so many bytes can be received without a wait."""
        return self.pending

    def receive(self) -> Sequence[memoryview] | None:
        """The frames of the next message; None if there is none."""
        try:
            frames = self._socket.recv_multipart(self._now, copy=False)
        except self._zmq.Again:
            return None
        return [frame.buffer for frame in frames]

    def send(self, frame: bytes) -> None:
        with contextlib.suppress(self._zmq.Again):  # it is said again with the next beat
            self._socket.send(frame, self._now)

    def look_after(self, now: float) -> bool:
        """Whether a connection was just made, so that the session must be begun anew. libzmq does not say."""
        return False

    def close(self) -> None:
        self._context.destroy(linger=200)
