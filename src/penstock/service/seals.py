"""States of the served pipeline that clients bring back: which of them has a server itself given out?

A client sends the last state that it got, so that a restarted server goes on from there. A run that began from a
client's state makes the batches of other clients too, so a made-up state would spoil them. A server therefore seals
every state with a secret (a keyed hash over the state and the place that it is for). Only a state whose seal holds
begins a run that several clients read; with any other, a client gets a run of its own.

The secret of a server with keys follows from its key: servers with one key accept each other's seals. Without keys
it is in a file of this user on this machine.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from hashlib import blake2b
from hmac import compare_digest
from typing import Any

from penstock.errors import StateMismatch
from penstock.formats.index import cache_folder
from penstock.service.keys import Key

#: epoch, part of the batches, and the number of the batch in that part before which a state stands
Place = tuple[int, tuple[int, int], int]
_BYTES = 32


def secret_of(key: Key | None) -> bytes:
    """What servers with this key, or without keys for this user on this machine, have in common."""
    if key is not None:
        return blake2b(key.secret.encode(), digest_size=_BYTES, person=b"penstock seals").digest()
    path = os.path.join(cache_folder(), "service.secret")
    with suppress(OSError):
        os.makedirs(cache_folder(), mode=0o700, exist_ok=True)
        # Made whole under another name, and never replaced: all servers that begin at once read the same one.
        partial = f"{path}.{os.getpid()}.{os.urandom(4).hex()}"
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(os.urandom(_BYTES))
        with suppress(FileExistsError):
            os.link(partial, path)
        os.unlink(partial)
    with suppress(OSError), open(path, "rb") as file:
        found = os.fstat(file.fileno())
        secret = file.read(_BYTES)
        if len(secret) == _BYTES and found.st_uid == os.getuid() and not found.st_mode & 0o077:
            return secret
    return os.urandom(_BYTES)


class Seals:
    """The states of one pipeline.

    >>> seals = Seals(b"secret", "pipeline")
    >>> said = seals.sealed({"at": 3}, (0, (0, 1), 5))
    >>> seals.holds(said, (0, (0, 1), 5)), seals.holds(said, (0, (0, 1), 6))
    (True, False)
    >>> seals.state_in(said)
    {'at': 3}
    """

    def __init__(self, secret: bytes, fingerprint: str) -> None:
        self._secret = secret
        self._fingerprint = fingerprint

    def sealed(self, state: Any, place: Place | None) -> bytes:
        """What a client gets; without a place, without a seal."""
        text = _text(state)
        return b'{"seal":"%s","state":%s}' % (b"" if place is None else self._seal(text, place), text)

    def holds(self, said: bytes, place: Place) -> bool:
        """Whether a server with this secret has given out this state for this place."""
        try:
            found = json.loads(said)
            return compare_digest(found["seal"].encode(), self._seal(_text(found["state"]), place))
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            return False

    @staticmethod
    def state_in(said: bytes) -> Any:
        """The state itself, with or without a seal that holds."""
        try:
            return json.loads(said)["state"]
        except (ValueError, TypeError, LookupError, RecursionError) as exc:
            raise StateMismatch(f"the state that a client has sent is damaged: {exc}") from None

    def _seal(self, text: bytes, place: Place) -> bytes:
        said = json.dumps([self._fingerprint, *place]).encode() + b"\n" + text
        return blake2b(said, key=self._secret, digest_size=16).hexdigest().encode()


def _text(state: Any) -> bytes:
    return json.dumps(state, sort_keys=True, separators=(",", ":")).encode()
