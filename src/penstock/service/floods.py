"""Connections over which a message comes that has no end.

libzmq limits the size of a frame, and keeps the frames of a message until the last one is there, however many come.
So the bytes that a connection has received since its last whole message are counted: more than a client's longest
messages have together, and the connection is cut, which lets go of them. The kernel counts; looking costs a few
system calls per connection and look. On systems whose kernel does not say, and for ``ipc://``, nothing is cut.
"""

from __future__ import annotations

import os
import socket
import struct

#: since the last whole message; as many messages as libzmq takes in ahead have 30 MB at most
MOST_BYTES = 40_000_000
#: `tcpi_bytes_received` in Linux's `struct tcp_info`, and its end
_AT, _END = 128, 136


class Floods:
    """The connections of the server's socket, known by their descriptors. Used by the server's thread."""

    def __init__(self, port: int) -> None:
        self._port = port
        #: descriptor -> bytes that had come when its last whole message did, as far as looked at
        self._before: dict[int, int] = {}
        self._heard: set[int] = set()
        self.cut = 0

    def accepted(self, descriptor: int) -> None:
        self._before[descriptor] = 0

    def heard(self, descriptor: int) -> None:
        """A whole message came over this connection."""
        self._heard.add(descriptor)

    def look(self) -> None:
        """Cut connections that have sent too much."""
        for descriptor, before in list(self._before.items()):
            received = self._received(descriptor, before)
            if received is None:
                del self._before[descriptor]
            elif descriptor in self._heard:
                self._before[descriptor] = received
        self._heard.clear()

    def _received(self, descriptor: int, before: int) -> int | None:
        """Bytes that came so far; None if the connection is gone or was cut."""
        try:
            # A copy, so that libzmq's own descriptor stays open; its number may have another meaning by now.
            connection = _socket_of(os.dup(descriptor))
        except OSError:
            return None
        with connection:
            try:
                if connection.getsockname()[1] != self._port:
                    return None
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _END)
                received: int = struct.unpack_from("=Q", info, _AT)[0]
                if descriptor not in self._heard and received - before > MOST_BYTES:
                    # So that libzmq's close sends a reset. A sender that waits for room would hear nothing of a
                    # shutdown for a minute: no window update follows it.
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    connection.shutdown(socket.SHUT_RDWR)
                    self.cut += 1
                    return None
            except (OSError, LookupError, TypeError, AttributeError, struct.error):
                return None
            return received


def _socket_of(descriptor: int) -> socket.socket:
    """The socket of a descriptor, which it owns from here on."""
    try:
        return socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        raise
