"""The sockets of the service: what they accept, for how long, and from whom.

A server binds to this machine alone, unless it has keys (CURVE) and a list of the clients that may connect, or the
user has said ``insecure=True``. libzmq refuses a frame that is longer than the limit by its length field, before
anything is allocated, and drops a peer that has not finished its handshake in time.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import re
import socket
import stat
import struct
import threading
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from penstock.errors import PlanError, ServiceError
from penstock.service.extra import zmq_module
from penstock.service.floods import Floods
from penstock.service.keys import Key

__all__ = ["HANDSHAKE_MS", "Bound", "bind_to", "check_address", "is_local"]

#: a peer has so long for its handshake
HANDSHAKE_MS = 5000
#: a connection over which nothing comes back is closed, and what waits for it is let go of
_PING_MS, _PING_LOST_MS = 5000, 15_000
#: the longest frame of a client: it sends no batches
_FRAME_BYTES = 300_000
#: messages of one client that wait to be looked at: while so many do, nothing more is read from its connection
_UNREAD = 100
#: messages that wait to be sent to one client, besides its credit: further ones are dropped, and it asks again
_UNSENT = 1000
_TCP = re.compile(r"tcp://(\[[0-9a-fA-F:.]+\]|[^\[\]:/]+):(\d{1,5}|\*)")
_ZAP = "inproc://zeromq.zap.01"


def check_address(address: Any, what: str, *, bound: bool = True) -> str:
    """An address of the form that is understood; only one to bind to may leave the port to the system."""
    found = _TCP.fullmatch(address) if isinstance(address, str) else None
    if found is not None and found[2] == "*":
        if bound:
            return str(address)
        raise PlanError(f"{what}: {address!r} has no port; give the one that the server prints when it starts")
    if found is not None and int(found[2]) > 65535:
        raise PlanError(f"{what}: a port is a number up to 65535, got {address!r}")
    if found is not None or (isinstance(address, str) and address.startswith("ipc://") and len(address) > 6):
        return str(address)
    raise PlanError(f"{what}: an address is tcp://host:port or ipc:///path, got {address!r}")


def is_local(address: str) -> bool:
    """Whether only this machine can reach a server that binds to `address`.

    >>> [is_local(one) for one in ("tcp://127.0.0.1:5557", "ipc:///tmp/x", "tcp://*:5557", "tcp://10.0.0.1:5557")]
    [True, True, False, False]
    """
    found = _TCP.fullmatch(address)
    if found is None:
        return address.startswith("ipc://")
    host = found[1].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


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


class Bound:
    """A bound socket, with the door-keeper that looks at the keys of clients."""

    def __init__(self, address: str, key: Key | None, allow: Sequence[str], credit: int) -> None:
        zmq = self._zmq = zmq_module()
        self._now = int(zmq.NOBLOCK)
        self._allowed = {_raw(one) for one in allow}
        self._context = zmq.Context()
        _count_server(1)
        self.refused_keys = 0
        self.failed_handshakes = 0
        self.zap: Any = None
        self.socket = self._context.socket(zmq.ROUTER)
        self.monitor = self.socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_ACCEPTED
        )
        try:
            self._configure(key, credit)
            self.socket.ipv6 = "[" in address
            self.socket.bind(re.sub(r":0$", ":*", address))
        except zmq.ZMQError as exc:
            self.close()
            raise ServiceError(f"cannot bind to {address}: {exc}; is another server running there?") from None
        self.address: str = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        tcp = _TCP.fullmatch(self.address)
        self._floods = Floods(int(tcp[2])) if tcp is not None else None

    def _configure(self, key: Key | None, credit: int) -> None:
        zmq, socket = self._zmq, self.socket
        socket.linger = 200
        # A client that sends without reading what it is answered costs so much, and no more.
        socket.rcvhwm, socket.sndhwm = _UNREAD, _UNSENT + 2 * credit
        socket.setsockopt(zmq.MAXMSGSIZE, _FRAME_BYTES)
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        socket.setsockopt(zmq.HEARTBEAT_IVL, _PING_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _PING_LOST_MS)
        if key is not None:
            self.zap = self._context.socket(zmq.ROUTER)
            self.zap.linger = 0
            self.zap.bind(_ZAP)
            socket.curve_server = True
            socket.curve_secretkey, socket.curve_publickey = key.secret.encode(), key.public.encode()
            socket.zap_domain = b"penstock"

    def judge(self) -> None:
        """Answer one question of libzmq: may this client connect?"""
        frames = self.zap.recv_multipart()
        identity, rest = frames[0], frames[2:]
        _, request, _, _, _, mechanism, *credentials = rest
        known = mechanism == b"CURVE" and credentials and credentials[0] in self._allowed
        self.refused_keys += not known
        verdict = [b"200", b"OK"] if known else [b"400", b"not in the allow-list"]
        self.zap.send_multipart([identity, b"", b"1.0", request, *verdict, b"", b""])

    def noted(self) -> None:
        """Something has happened to a connection: it was accepted, or its handshake has failed."""
        event, descriptor = struct.unpack("=Hi", self.monitor.recv_multipart()[0])
        if event != self._zmq.EVENT_ACCEPTED:
            self.failed_handshakes += 1
        elif self._floods is not None:
            self._floods.accepted(descriptor)

    def receive(self) -> tuple[bytes, list[memoryview]] | None:
        """The next message, and from whom; None if there is none."""
        try:
            identity, *frames = self.socket.recv_multipart(self._now, copy=False)
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
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close()
        if self.zap is not None:
            self.zap.close(0)
        self._context.term()
        _count_server(-1)


def bind_to(address: str, key: Key | None, allow: Sequence[str], insecure: bool, credit: int) -> Bound:
    """A socket that listens at `address`, if that is safe."""
    check_address(address, "serve(bind=)")
    if key is not None and not allow:
        raise PlanError("serve(key=) without allow= would let any key in; give the public keys of the clients")
    if allow and key is None:
        raise PlanError("serve(allow=) needs key=, the key file of this server; make one with: penstock keygen")
    if key is None and not insecure and not is_local(address):
        raise PlanError(
            f"serve(bind={address!r}) could be reached from other machines, and there are no keys; give key= and "
            "allow=, or say insecure=True if everyone who can reach the port may read the data"
        )
    if address.startswith("ipc://"):
        _check_path(address.removeprefix("ipc://"))
    return Bound(address, key, allow, credit)


def _check_path(path: str) -> None:
    """libzmq would remove whatever is at the path: it may only be the socket of a server that has ended."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return
    if not stat.S_ISSOCK(mode):
        raise ServiceError(f"cannot bind to ipc://{path}: a file is there; choose another path, or remove the file")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if probe.connect_ex(path) != errno.ECONNREFUSED:
            raise ServiceError(f"cannot bind to ipc://{path}: another server is running there")


def _raw(public: str) -> bytes:
    decoded: bytes = import_module("zmq.utils.z85").decode(public.encode("ascii"))
    return decoded
