"""An LMDB database: a sample per entry, as MessagePack, under its ``__key__`` or its number.

Samples of a shard and the state after them are one transaction, so the database itself is always whole. What LMDB
writes depends on its history, so two databases with the same entries need not have the same bytes.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import suppress
from typing import Any

from penstock.errors import NotCarried, PenstockError, PlanError, missing_extra
from penstock.formats.tree import TREE_KEY, TREE_MARK, to_msgpack
from penstock.writers.writer import STATE, State, Writer, durable, saved_state

#: what the database may grow to: addresses, and on Linux no more than that
_LARGEST = 1 << 44 if sys.platform == "linux" else 1 << 36
#: LMDB's own limit on keys
_LONGEST_KEY = 511
_STATE = b"state "


class LmdbWriter(Writer):
    """See `from_lmdb`, which reads it back."""

    format = "lmdb"

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        try:
            import lmdb
        except ImportError:
            raise missing_extra("lmdb", "lmdb", "writing LMDB databases") from None
        self._lmdb = lmdb
        self._environment: Any = None
        self._transaction: Any = None

    def _opened(self) -> Any:
        if self._environment is None:
            os.makedirs(self.folder, exist_ok=True)
            self._environment = self._lmdb.open(self.folder, map_size=_LARGEST)
        return self._environment

    def state(self) -> State | None:
        if not os.path.exists(os.path.join(self.folder, "data.mdb")):
            return None
        with self._opened().begin() as transaction:
            found = transaction.get(TREE_KEY)
        if found is None:
            return None
        if found == TREE_MARK:
            return saved_state(self.folder) or self._of_others()
        if not found.startswith(_STATE):
            raise PenstockError(f"{self.folder}: it was written by another version of penstock; use another folder")
        state: State = json.loads(found[len(_STATE) :])
        self.memo = state.pop("memo", {})
        return state

    def _of_others(self) -> State:
        """The state of a finished database that came without its state, such as a copy of `data.mdb` alone."""
        with self._opened().begin() as transaction:
            return {"done": True, "samples": transaction.stat()["entries"] - 1}

    def found(self) -> str:
        if os.path.exists(self.folder) and not os.path.isdir(self.folder):
            raise PlanError(f"write: {self.folder!r} is a file; give a folder")
        return "data.mdb" if os.path.exists(os.path.join(self.folder, "data.mdb")) else ""

    def clear(self) -> None:
        self.abort()
        for name in (STATE, "data.mdb", "lock.mdb", ".data.mdb.index"):
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self.folder, name))

    def add(self, number: int, sample: Any) -> int:
        if self._transaction is None:
            self._transaction = self._opened().begin(write=True)
        key = _key(number, sample)
        value = to_msgpack(sample)
        try:
            if not self._transaction.put(key, value, overwrite=False):
                raise NotCarried(f"sample {number} has the '__key__' {key.decode()!r} of a sample before it")
        except self._lmdb.MapFullError:
            free = shutil.disk_usage(self.folder).free
            raise PenstockError(f"{self.folder}: LMDB is full at {_LARGEST} bytes; {free} bytes are free") from None
        return len(key) + len(value)

    def commit(self, shard: int, state: State) -> None:
        if self._transaction is None:
            self._transaction = self._opened().begin(write=True)
        told = json.dumps({**state, "memo": self.memo}).encode()
        if state["done"]:
            # A database that is complete says no more than that. What it is complete of, a later run has to know.
            durable(os.path.join(self.folder, STATE), told)
        mark = TREE_MARK if state["done"] else _STATE + told
        self._transaction.put(TREE_KEY, mark)
        transaction, self._transaction = self._transaction, None
        transaction.commit()  # which is on the disk when it returns
        if state["done"]:
            self._close()

    def abort(self) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            transaction.abort()
        self._close()

    def _close(self) -> None:
        environment, self._environment = self._environment, None
        if environment is not None:
            environment.close()


def _key(number: int, sample: Any) -> bytes:
    given = sample.get("__key__") if type(sample) is dict else None
    if type(given) is not str:
        return b"%012d" % number
    key = given.encode("utf-8", "surrogateescape")
    if not 0 < len(key) <= _LONGEST_KEY or key == TREE_KEY:
        raise NotCarried(
            f"sample {number} has the '__key__' {given!r}; LMDB takes keys of 1 to {_LONGEST_KEY} bytes"
        )
    return key
