"""The door of a server without keys: plain sockets, which the server's thread sends and receives over itself.

A large batch goes from where it lies into the kernel, with no other thread in between. Strangers may connect, so:

* A connection has 5 s for its handshake, and is closed if nothing comes over it for 15 s.
* What is no ZMTP, or is longer than a client's longest message, closes its connection, by its length field alone.
* A connection whose client does not read holds up to `_UNSENT_BYTES` and one batch; what is more is dropped, and
  nothing is read from it while `_UNSENT` messages wait.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import selectors
import socket
from collections.abc import Sequence
from time import monotonic
from typing import Any

from penstock.memory.recycle import Recycler
from penstock.service import sockets
from penstock.service.frames import Frames
from penstock.service.protocol import Malformed
from penstock.service.sockets import cannot_bind
from penstock.service.waker import Waker
from penstock.service.zmtp import Wire, target_of

log = logging.getLogger("penstock.service")

#: connections at the same time; more wait to be accepted
_MOST_CONNECTIONS = 8192
#: connections that are accepted, and messages of one that are taken in, before anything else is looked at
_ACCEPTED_AT_ONCE, _AT_ONCE = 64, 16
#: what waits to be sent to one client
_UNSENT, _UNSENT_BYTES = 1000, 512 << 20
#: what the kernel holds for a client on this machine (Linux takes twice the number), so that the bytes are still in
#: the processor's cache when the client receives them; otherwise the kernel's copies take 1.7 times as long
_NEAR_BYTES = 512 << 10
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class _Guest:
    """A connection, and what it waits for."""

    __slots__ = ("began", "events", "heard", "identity", "pinged", "wire")

    def __init__(self, identity: bytes, sock: socket.socket, recycler: Recycler, now: float) -> None:
        # A message of a client has one frame; a second one is let in only for the broker to count it.
        self.wire = Wire(sock, b"ROUTER", Frames(sock, recycler, sockets.CLIENT_BYTES, 2))
        self.identity = identity
        self.events = 0
        self.began = self.heard = self.pinged = now

    @property
    def wanted(self) -> int:
        """What to wait for now."""
        reads = _READ if self.wire.messages_unsent < _UNSENT else 0
        return reads | (_WRITE if self.wire.unsent else 0)


class PlainDoor:
    """A listening socket and its connections."""

    def __init__(self, address: str) -> None:
        self._path = address.removeprefix("ipc://") if address.startswith("ipc://") else ""
        self._listener = _listening(address, self._path)
        self._listener.setblocking(False)
        self.address = _said(self._listener, address)
        self._recycler = Recycler()
        self._selector = selectors.DefaultSelector()
        #: connections are accepted now; and some could not be
        self._listens = self._full = False
        self._guests: dict[bytes, _Guest] = {}
        self._count = 0
        #: those that may have another message in their buffer, and those that something was said to
        self._unread: dict[bytes, _Guest] = {}
        self._dirty: dict[bytes, _Guest] = {}
        self._failed_handshakes = self._cut = 0
        self._listen(True)

    # ------------------------------------------------------------------ messages

    def wait(self, timeout_s: float, waker: Waker) -> list[tuple[bytes, Sequence[memoryview]]]:
        if waker.fileno() not in self._selector.get_map():
            self._selector.register(waker, _READ)
        for guest in self._dirty.values():
            self._flush(guest)
        self._dirty.clear()
        unread = {one: guest for one, guest in self._unread.items() if guest.wanted & _READ}
        for identity in unread:
            del self._unread[identity]
        for key, events in self._selector.select(0 if unread else timeout_s):
            if key.data is not None:
                if events & _WRITE:
                    self._flush(key.data)
                if events & _READ:
                    unread[key.data.identity] = key.data
            elif key.fileobj is waker:
                waker.clear()
            else:
                self._accept()
        return [message for guest in unread.values() for message in self._received(guest)]

    def send(self, identity: bytes, frames: Sequence[Any]) -> None:
        guest = self._guests.get(identity)
        if guest is not None and guest.wire.unsent < _UNSENT_BYTES:
            guest.wire.send(frames)
            self._dirty[identity] = guest

    def _received(self, guest: _Guest) -> list[tuple[bytes, Sequence[memoryview]]]:
        found: list[tuple[bytes, Sequence[memoryview]]] = []
        guest.heard = monotonic()
        try:
            while len(found) < _AT_ONCE and (frames := guest.wire.receive()) is not None:
                found.append((guest.identity, frames))
            if not guest.wire.hungry and guest.identity in self._guests:
                self._unread[guest.identity] = guest
            self._watch(guest)  # PONG may wait to be sent
        except Malformed:
            self._cut += guest.wire.ready
            self._leave(guest)
        except OSError:
            self._leave(guest)
        return found

    def _flush(self, guest: _Guest) -> None:
        try:
            guest.wire.flush()
            self._watch(guest)
        except OSError:
            self._leave(guest)

    # ------------------------------------------------------------------ connections

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                sock, peer = self._listener.accept()
            except OSError as exc:
                if exc.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    if not self._full:
                        self._full = True
                        log.warning("%s cannot accept all connections: %s", self.address, exc.strerror)
                    self._listen(False)
                return
            sock.setblocking(False)
            with contextlib.suppress(OSError):  # a Unix socket has no such option
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if peer[0] == sock.getsockname()[0]:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _NEAR_BYTES)
            self._count += 1
            guest = _Guest(self._count.to_bytes(8, "big"), sock, self._recycler, monotonic())
            self._guests[guest.identity] = guest
            self._flush(guest)
            if len(self._guests) >= _MOST_CONNECTIONS:
                self._listen(False)
                return

    def _listen(self, on: bool) -> None:
        """Have connections accepted, or wait until the next tick."""
        if on and not self._listens:
            self._selector.register(self._listener, _READ)
        elif self._listens and not on:
            self._selector.unregister(self._listener)
        self._listens = on

    def _watch(self, guest: _Guest) -> None:
        """Wait for what is to be done next, if the connection is still there."""
        wanted = guest.wanted
        if wanted == guest.events or guest.identity not in self._guests:
            return
        if guest.events:
            self._selector.modify(guest.wire.socket, wanted, guest)
        else:
            self._selector.register(guest.wire.socket, wanted, guest)
        guest.events = wanted

    def _leave(self, guest: _Guest) -> None:
        if self._guests.pop(guest.identity, None) is None:
            return
        self._failed_handshakes += not guest.wire.ready
        self._unread.pop(guest.identity, None)
        if guest.events:
            self._selector.unregister(guest.wire.socket)
        guest.wire.socket.close()

    def tick(self) -> None:
        now = monotonic()
        for guest in list(self._guests.values()):
            silent_ms = (now - guest.heard) * 1000
            if not guest.wire.ready:
                if (now - guest.began) * 1000 >= sockets.HANDSHAKE_MS:  # however many bytes came
                    self._leave(guest)
            elif silent_ms >= sockets.PING_LOST_MS:
                self._leave(guest)
            elif silent_ms >= sockets.PING_MS and (now - guest.pinged) * 1000 >= sockets.PING_MS:
                guest.pinged = now
                guest.wire.ping()
                self._dirty[guest.identity] = guest
        if len(self._guests) < _MOST_CONNECTIONS:
            self._listen(True)

    def stats(self) -> dict[str, float]:
        return {
            "server.refused_keys": 0,
            "server.failed_handshakes": self._failed_handshakes,
            "server.cut": self._cut,
        }

    def close(self) -> None:
        for guest in list(self._guests.values()):
            self._flush(guest)
            self._leave(guest)
        self._selector.close()
        self._listener.close()
        if self._path:
            with contextlib.suppress(OSError):
                os.unlink(self._path)


def _listening(address: str, path: str) -> socket.socket:
    try:
        family, target = target_of(address)
        if path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # a server that has ended has left it there
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            if not path:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(target)
            listener.listen(1024)
        except BaseException:
            listener.close()
            raise
    except OSError as exc:
        raise cannot_bind(address, exc.errno, exc.strerror or str(exc)) from None
    return listener


def _said(listener: socket.socket, address: str) -> str:
    """Where clients connect to."""
    if listener.family == socket.AF_UNIX:
        return address
    host, port = listener.getsockname()[:2]
    return f"tcp://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"tcp://{host}:{port}"
