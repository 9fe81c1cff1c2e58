"""The door of a server with keys: libzmq, which authenticates every client (CURVE) before it passes on a message.

libzmq refuses a frame that is longer than the limit by its length field, before anything is allocated, and drops a
peer that has not finished its handshake in time. It asks here whether it may let a key in (ZAP).
"""

from __future__ import annotations

import contextlib
import re
import struct
import threading
from collections.abc import Sequence
from importlib import import_module
from itertools import islice
from typing import Any

from penstock.service.extra import zmq_module
from penstock.service.floods import Floods
from penstock.service.keys import Key
from penstock.service.sockets import CLIENT_BYTES, HANDSHAKE_MS, PING_LOST_MS, PING_MS, TCP, cannot_bind
from penstock.service.waker import Waker

#: messages of one client that wait to be looked at: while so many do, nothing more is read from its connection
_UNREAD = 100
#: messages that wait to be sent to one client, besides its credit: further ones are dropped, and it asks again
_UNSENT = 1000
#: messages that are taken in before batches are sent on
_AT_ONCE = 64
#: a frame of so many bytes is sent without a copy
_LARGE_BYTES = 32 << 10
_ZAP = "inproc://zeromq.zap.01"


_lock = threading.Lock()
_servers = 0
#: pyzmq's thread for memory that is sent without a copy was started for us
_started_for_us = False


def _count_server(change: int) -> None:
    """End pyzmq's thread with the last server, if nobody else in this process uses it."""
    global _servers, _started_for_us
    with _lock:
        thread = import_module("zmq.utils.garbage").gc
        if not _servers:
            _started_for_us = not thread.is_alive()
        _servers += change
        if not _servers and _started_for_us and not thread.refs:
            thread.stop()


class KeyedDoor:
    """A ROUTER socket of libzmq, and who looks at the keys of clients."""

    def __init__(self, address: str, key: Key, allow: Sequence[str], credit: int) -> None:
        zmq = self._zmq = zmq_module()
        # As plain numbers: to join two flags of an enum takes microseconds.
        self._now, self._more = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
        self._allowed = {_raw(one) for one in allow}
        self._context = zmq.Context()
        self._poller = zmq.Poller()
        self._watched: Waker | None = None
        _count_server(1)
        self.refused_keys = 0
        self.failed_handshakes = 0
        self._socket = self._context.socket(zmq.ROUTER)
        self._monitor = self._socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_ACCEPTED
        )
        self._zap = self._context.socket(zmq.ROUTER)
        try:
            self._configure(key, credit)
            self._socket.ipv6 = "[" in address
            self._socket.bind(re.sub(r":0$", ":*", address))
        except zmq.ZMQError as exc:
            self.close()
            raise cannot_bind(address, exc.errno, exc.strerror) from None
        self.address: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        tcp = TCP.fullmatch(self.address)
        self._floods = Floods(int(tcp[2])) if tcp is not None else None

    def _configure(self, key: Key, credit: int) -> None:
        zmq, socket = self._zmq, self._socket
        socket.linger = 200
        # A client that sends without reading what it is answered costs so much, and no more.
        socket.rcvhwm, socket.sndhwm = _UNREAD, _UNSENT + 2 * credit
        socket.setsockopt(zmq.MAXMSGSIZE, CLIENT_BYTES)
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        socket.setsockopt(zmq.HEARTBEAT_IVL, PING_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, PING_LOST_MS)
        self._zap.linger = 0
        self._zap.bind(_ZAP)
        socket.curve_server = True
        socket.curve_secretkey, socket.curve_publickey = key.secret.encode(), key.public.encode()
        socket.zap_domain = b"penstock"

    def wait(self, timeout_s: float, waker: Waker) -> list[tuple[bytes, Sequence[memoryview]]]:
        zmq = self._zmq
        if self._watched is not waker:
            self._watched = waker
            for one in (self._socket, waker, self._monitor, self._zap):
                self._poller.register(one, zmq.POLLIN)
        ready = dict(self._poller.poll(timeout_s * 1000))
        if waker.fileno() in ready:
            waker.clear()
        if self._zap in ready:
            self._judge()
        if self._monitor in ready:
            self._noted()
        return list(islice(iter(self._receive, None), _AT_ONCE)) if self._socket in ready else []

    def send(self, identity: bytes, frames: Sequence[Any]) -> None:
        send = self._socket.send
        try:
            send(identity, self._more)
            for frame in frames[:-1]:
                send(frame, self._more, copy=len(frame) < _LARGE_BYTES)
            send(frames[-1], self._now, copy=len(frames[-1]) < _LARGE_BYTES)
        except self._zmq.Again:
            pass  # the client will say hello again

    def _judge(self) -> None:
        """Answer one question of libzmq: may this client connect?"""
        frames = self._zap.recv_multipart()
        identity, rest = frames[0], frames[2:]
        _, request, _, _, _, mechanism, *credentials = rest
        known = mechanism == b"CURVE" and credentials and credentials[0] in self._allowed
        self.refused_keys += not known
        verdict = [b"200", b"OK"] if known else [b"400", b"not in the allow-list"]
        self._zap.send_multipart([identity, b"", b"1.0", request, *verdict, b"", b""])

    def _noted(self) -> None:
        """Something has happened to a connection: it was accepted, or its handshake has failed."""
        event, descriptor = struct.unpack("=Hi", self._monitor.recv_multipart()[0])
        if event != self._zmq.EVENT_ACCEPTED:
            self.failed_handshakes += 1
        elif self._floods is not None:
            self._floods.accepted(descriptor)

    def _receive(self) -> tuple[bytes, Sequence[memoryview]] | None:
        """The next message, and from whom; None if there is none."""
        try:
            identity, *frames = self._socket.recv_multipart(self._now, copy=False)
        except self._zmq.Again:
            return None
        if self._floods is not None:
            with contextlib.suppress(self._zmq.ZMQError):  # a peer of ZMTP 1, which is none of our clients
                self._floods.heard(identity.get(self._zmq.SRCFD))
        return identity.bytes, [frame.buffer for frame in frames]

    def tick(self) -> None:
        """Look for connections that send without end."""
        if self._floods is not None:
            self._floods.look()

    def stats(self) -> dict[str, float]:
        return {
            "server.refused_keys": self.refused_keys,
            "server.failed_handshakes": self.failed_handshakes,
            "server.cut": 0 if self._floods is None else self._floods.cut,
        }

    def close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close()
        self._zap.close(0)
        self._context.term()
        _count_server(-1)


def _raw(public: str) -> bytes:
    decoded: bytes = import_module("zmq.utils.z85").decode(public.encode("ascii"))
    return decoded
