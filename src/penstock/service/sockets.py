"""Addresses of the service, and what its sockets accept, for how long.

A server binds to this machine alone, unless it has keys (CURVE) and a list of the clients that may connect, or the
user has said ``insecure=True``: see `penstock.service.door`.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import sys
from typing import Any

from penstock.errors import PlanError, ServiceError

#: a peer has so long for its handshake
HANDSHAKE_MS = 5000
#: a connection over which nothing comes back is closed, and what waits for it is let go of
PING_MS, PING_LOST_MS = 5000, 15_000
#: the longest frame of a client: it sends no batches
CLIENT_BYTES = 300_000
TCP = re.compile(r"tcp://(\[[0-9a-fA-F:.]+\]|[^\[\]:/]+):(\d{1,5}|\*)")
_IPC = "ipc://"
#: the longest path that the systems' addresses of Unix sockets have room for
_PATH_BYTES = 103 if sys.platform == "darwin" else 107


def check_address(address: Any, what: str, *, bound: bool = True) -> str:
    """An address of the form that is understood; only one to bind to may leave the port to the system."""
    found = TCP.fullmatch(address) if isinstance(address, str) else None
    if found is not None and _names_a_host(found[1]):
        if found[2] == "*" or not int(found[2]):
            if not bound:
                raise PlanError(
                    f"{what}: {address!r} has no port; give the one that the server prints when it starts"
                )
        elif int(found[2]) > 65535:
            raise PlanError(f"{what}: a port is a number up to 65535, got {address!r}")
        return str(address)
    path = address[len(_IPC) :] if isinstance(address, str) and address.startswith(_IPC) else ""
    if len(os.fsencode(path)) > _PATH_BYTES:
        raise PlanError(f"{what}: the path of a Unix socket has at most {_PATH_BYTES} bytes, got {address!r}")
    if path and "\0" not in path:
        return str(address)
    raise PlanError(f"{what}: an address is tcp://host:port or ipc:///path, got {address!r}")


def _names_a_host(host: str) -> bool:
    """Whether the system can be asked for it, which encodes it first."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return host.isprintable()


def cannot_bind(address: str, code: int | None, why: str) -> ServiceError:
    """What the system has against a server at `address`."""
    next_step = "; is another server running there?" if code == errno.EADDRINUSE else ""
    return ServiceError(f"cannot bind to {address}: {why}{next_step}")


def is_local(address: str) -> bool:
    """Whether only this machine can reach a server that binds to `address`.

    >>> [is_local(one) for one in ("tcp://127.0.0.1:5557", "ipc:///tmp/x", "tcp://*:5557", "tcp://10.0.0.1:5557")]
    [True, True, False, False]
    """
    found = TCP.fullmatch(address)
    if found is None:
        return address.startswith("ipc://")
    host = found[1].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
