"""Where clients of a server come in: who may bind where, and what the two kinds of doors have in common."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Sequence
from typing import Any, Protocol

from penstock.errors import PlanError, ServiceError
from penstock.service.keyed_door import KeyedDoor
from penstock.service.keys import Key
from penstock.service.plain_door import PlainDoor
from penstock.service.sockets import check_address, is_local
from penstock.service.waker import Waker


class Door(Protocol):
    """A bound socket and its connections. One thread uses it; another may read `stats`."""

    #: where clients connect to
    address: str

    def wait(self, timeout_s: float, waker: Waker) -> list[tuple[bytes, Sequence[memoryview]]]:
        """Messages, and from whom; none if the time has passed or the waker was woken."""

    def send(self, identity: bytes, frames: Sequence[Any]) -> None:
        """Say a message. It may be lost: the client asks again."""

    def tick(self) -> None:
        """Look for connections that cost more than they may. Called about twice a second."""

    def stats(self) -> dict[str, float]: ...

    def close(self) -> None: ...


def open_door(address: str, key: Key | None, allow: Sequence[str], insecure: bool, credit: int) -> Door:
    """Listen at `address`, if that is safe."""
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
    return PlainDoor(address) if key is None else KeyedDoor(address, key, allow, credit)


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
