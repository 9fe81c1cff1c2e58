"""The contract of a writer, and what formats of one file per shard have in common.

A writer gets samples in order and makes them durable a shard at a time. `commit` either makes the shard and the
state after it durable, or leaves what was there before: a process may be killed at any moment. So a run that begins
again with the last state writes the missing shards, with the same bytes as a run that was never disturbed.
"""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any, BinaryIO, ClassVar

from penstock.errors import PenstockError, PlanError

#: the file with the state, beside the shards
STATE = ".penstock-write.json"

State = dict[str, Any]


class Writer(ABC):
    """Writes samples to one folder."""

    #: what it is called in ``write(format=)``
    format: ClassVar[str]

    def __init__(self, folder: str) -> None:
        self.folder = folder
        #: what has been found out on the way and must be the same after a restart: plain data
        self.memo: dict[str, Any] = {}

    @abstractmethod
    def state(self) -> State | None:
        """What was committed last; None if nothing was."""

    @abstractmethod
    def clear(self) -> None:
        """Remove what was written before."""

    @abstractmethod
    def found(self) -> str:
        """Something in the folder that a new run would be mixed with; "" if there is nothing."""

    @abstractmethod
    def add(self, number: int, sample: Any) -> int:
        """Add a sample to the shard that is being written; about how many bytes it takes there."""

    @abstractmethod
    def commit(self, shard: int, state: State) -> None:
        """Make the shard durable, if it has samples, and the state with it."""

    @abstractmethod
    def abort(self) -> None:
        """Let go of a shard that is not finished."""


def durable(path: str, data: bytes) -> None:
    """Replace a small file at once and for good."""
    temporary = f"{path}.tmp"
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    _rename(temporary, path)


def _rename(temporary: str, path: str) -> None:
    os.replace(temporary, path)
    if os.name == "posix":  # the new name must be on the disk, too
        folder = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def saved_state(folder: str) -> State | None:
    """What the file beside the shards says, the memo included; None if there is none."""
    path = os.path.join(folder, STATE)
    try:
        with open(path, "rb") as file:
            found: State = json.loads(file.read())
    except FileNotFoundError:
        return None
    except ValueError as exc:
        raise PenstockError(f"{path} cannot be read: {exc}; write(overwrite=True) begins anew") from None
    return found


class FileWriter(Writer):
    """A file per shard, ``000000.tar`` and so on, each under a temporary name until it is finished."""

    suffix: ClassVar[str]

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self._file: BinaryIO | None = None

    # ------------------------------------------------------------------ what a format does

    def opened(self, file: BinaryIO) -> None:
        """A shard begins."""

    @abstractmethod
    def written(self, file: BinaryIO, number: int, sample: Any) -> int:
        """Write a sample; about how many bytes it takes."""

    def closing(self, file: BinaryIO) -> None:
        """The shard ends."""

    # ------------------------------------------------------------------ shards

    @property
    def _temporary(self) -> str:
        return os.path.join(self.folder, f".shard.{self.suffix}.tmp")

    def add(self, number: int, sample: Any) -> int:
        if self._file is None:
            os.makedirs(self.folder, exist_ok=True)
            self._file = open(self._temporary, "wb", buffering=1 << 20)  # noqa: SIM115 - it is open for a whole shard
            self.opened(self._file)
        return self.written(self._file, number, sample)

    def commit(self, shard: int, state: State) -> None:
        file = self._file
        if file is not None:
            self.closing(file)
            file.flush()
            os.fsync(file.fileno())
            file.close()
            self._file = None
            _rename(self._temporary, os.path.join(self.folder, f"{shard:06d}.{self.suffix}"))
        os.makedirs(self.folder, exist_ok=True)
        durable(os.path.join(self.folder, STATE), json.dumps({**state, "memo": self.memo}).encode())

    def abort(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # a full disk has no room for what is buffered, either
                file.close()
            with suppress(OSError):
                os.unlink(self._temporary)

    # ------------------------------------------------------------------ what is there

    def state(self) -> State | None:
        found = saved_state(self.folder)
        if found is not None:
            self.memo = found.pop("memo", {})
        return found

    def found(self) -> str:
        return next(iter(self._shards()), "")

    def _shards(self) -> list[str]:
        if not os.path.isdir(self.folder):
            if os.path.exists(self.folder):
                raise PlanError(f"write: {self.folder!r} is a file; give a folder")
            return []
        shard = re.compile(rf"\d{{6,}}\.{re.escape(self.suffix)}")
        return sorted(filter(shard.fullmatch, os.listdir(self.folder)))

    def clear(self) -> None:
        # The state goes first: shards without one are never taken for a part of a new run.
        for name in (STATE, os.path.basename(self._temporary), *self._shards()):
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self.folder, name))
