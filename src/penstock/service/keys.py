"""Keys of servers and clients: made by ``penstock keygen``, kept in files that only their owner can read.

A key file has lines ``public: …`` and ``secret: …``; that of a client also has ``server: …``, the public key of its
server. The public key is also written to a file of its own, ending in ``.pub``, which may be given to anyone. Keys
are never read from a command line, where other users of the machine would see them.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import PlanError, ServiceError
from penstock.service.extra import zmq_module

_Z85 = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_MOST_BYTES = 4096


@dataclass(frozen=True, slots=True, repr=False)
class Key:
    """A pair of keys, and the public key of the server where that is known."""

    public: str
    secret: str
    server: str = ""

    def __repr__(self) -> str:
        return f"<Key {self.public[:8]}…>"


def make_key(path: str | os.PathLike[str], server: str | os.PathLike[str] | None = None) -> Key:
    """Make a new pair; the secret goes to `path`, readable by its owner alone, the public key to `path`.pub."""
    public, secret = (part.decode("ascii") for part in zmq_module().curve_keypair())
    key = Key(public, secret, "" if server is None else public_keys([server])[0])
    lines = [f"public: {key.public}", f"secret: {key.secret}", *([f"server: {key.server}"] if key.server else [])]
    target = Path(path)
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ServiceError(
            f"{target} exists; a key is never overwritten: remove it, or choose another name"
        ) from None
    except OSError as exc:
        raise ServiceError(f"the key file {target} cannot be written: {exc.strerror}") from None
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write("\n".join(["# secret key of penstock; keep it to yourself", *lines, ""]))
    target.with_name(target.name + ".pub").write_text(f"public: {key.public}\n", encoding="ascii")
    return key


def read_key(path: str | os.PathLike[str]) -> Key:
    """The pair in a key file, which nobody else may be able to read."""
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        file = os.fspath(path)
        raise ServiceError(f"there is no key file {file}; make one with: penstock keygen {file}") from None
    if os.name == "posix" and mode & 0o077:
        raise ServiceError(f"{os.fspath(path)} has mode {mode:04o}, so others can use the key; run chmod 600 on it")
    found = _entries(path)
    if "public" not in found or "secret" not in found:
        raise ServiceError(f"{os.fspath(path)} is no key file; make one with: penstock keygen {os.fspath(path)}")
    return Key(found["public"], found["secret"], found.get("server", ""))


def public_keys(given: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Public keys, given as text or as ``.pub`` files."""
    if isinstance(given, str):
        raise PlanError(f"allow= takes a list of public keys, got the string {given!r}; put it into a list")
    keys: list[str] = []
    for one in given:
        if isinstance(one, str) and _Z85.fullmatch(one):
            keys.append(one)
            continue
        found = _entries(one).get("public")
        if found is None:
            raise ServiceError(f"{os.fspath(one)} has no public key; penstock keygen writes one that ends in .pub")
        keys.append(found)
    return keys


def _entries(path: str | os.PathLike[str]) -> dict[str, str]:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            lines = file.read(_MOST_BYTES).splitlines()
    except OSError as exc:
        raise ServiceError(f"the key file {os.fspath(path)} cannot be read: {exc.strerror}") from None
    pairs = [line.partition(":")[::2] for line in lines if not line.startswith("#")]
    return {name.strip(): value.strip() for name, value in pairs if _Z85.fullmatch(value.strip())}
