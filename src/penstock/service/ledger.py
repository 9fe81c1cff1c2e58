"""Who was handed which batch, in mode "split": in memory, and in a file that survives a killed server.

A batch is *handed* once its client has acknowledged it and the entry is written; only then does the client's loop
get it. The file has one line per entry and is only ever appended to. A last line that is not whole was never
answered, and is cut off. It survives a killed process; `fsync` is not called, so a machine that loses
power may forget the last entries.

A *generation* begins when clients go on from their states: entries after these states are taken back, in this epoch
and in all later ones. Positions of earlier generations stay.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock.errors import ServiceError

__all__ = ["Entries", "Ledger", "Refusal"]

_VERSION = 1


class Refusal(ServiceError):
    """A rollback that would lose or repeat batches."""


class Entries:
    """One epoch: which batches were handed, to whom, in which order."""

    def __init__(self) -> None:
        #: all batches before this one were handed, and those of `above`
        self.low = 0
        self.above: set[int] = set()
        #: (generation, client) -> the batches that it was handed, in order
        self.clients: dict[tuple[int, str], array[int]] = {}
        #: where the pipeline can go on, and before which batch that is: at `low` or earlier
        self.state: tuple[int, bytes] = (0, b"")

    def __contains__(self, number: int) -> bool:
        return number < self.low or number in self.above

    def add(self, generation: int, client: str, numbers: Iterable[int]) -> None:
        found = self.clients.setdefault((generation, client), array("q"))
        for number in numbers:
            found.append(number)
            self.above.add(number)
        while self.low in self.above:
            self.above.remove(self.low)
            self.low += 1

    def cut(self, generation: int, kept: Mapping[str, int]) -> None:
        """Take back what came after `kept` of this generation, and all of later ones."""
        for key in list(self.clients):
            if key[0] > generation:
                del self.clients[key]
            elif key[0] == generation:
                del self.clients[key][kept.get(key[1], 0) :]
        numbers = {number for entries in self.clients.values() for number in entries}
        self.low, self.above = 0, numbers
        while self.low in self.above:
            self.above.remove(self.low)
            self.low += 1
        if self.state[0] > self.low:
            self.state = (0, b"")

    @property
    def count(self) -> int:
        return self.low + len(self.above)


class Ledger:
    """The entries of all epochs. One thread uses it."""

    def __init__(self, path: str | os.PathLike[str] | None, fingerprint: str) -> None:
        self.id = os.urandom(8).hex()
        self.generation = 0
        #: what the current generation went on from
        self.origin = ""
        self.epochs: dict[int, Entries] = {}
        self._file = -1
        if path is not None:
            self._open(os.fspath(path), fingerprint)

    def entries(self, epoch: int) -> Entries:
        return self.epochs.setdefault(epoch, Entries())

    def hand(self, epoch: int, client: str, numbers: Sequence[int]) -> None:
        """These batches are handed to a client, from here on."""
        self._write("h", epoch, client, list(numbers))
        self.entries(epoch).add(self.generation, client, numbers)

    def stand(self, epoch: int, at: int, state: bytes) -> None:
        """The pipeline can go on before batch `at`, and all before it were handed."""
        entries = self.entries(epoch)
        if entries.state[0] < at <= entries.low:
            self._write("s", epoch, at, state.decode())
            entries.state = (at, state)

    def has(self, epoch: int, client: str, numbers: Iterable[int]) -> list[int]:
        """Those of the numbers that this client was handed, in the order in which it was."""
        found = self.entries(epoch).clients.get((self.generation, client), ())
        wanted = set(numbers)
        return [number for number in found if number in wanted]

    def roll_back(self, epoch: int, generation: int, kept: Mapping[str, int], origin: str) -> None:
        """Go on from where all clients stood; `Refusal` if it is not all of them, or they never stood there."""
        entries = self.entries(epoch)
        known = {client: len(found) for (number, client), found in entries.clients.items() if number == generation}
        missing = [client for client, count in known.items() if count and client not in kept]
        if missing:
            raise Refusal(
                f"the states of all clients are needed to go on: {len(missing)} of {len(known)} clients that were "
                "handed batches are missing; give load_state_dict() the list of all states"
            )
        if any(count > known.get(client, 0) for client, count in kept.items()) or generation > self.generation:
            raise Refusal(
                "a state has more batches than the ledger; it is of another ledger, or the file is an older copy"
            )
        self._write("r", epoch, generation, dict(kept), origin)
        self._cut(epoch, generation, kept, origin)

    def _cut(self, epoch: int, generation: int, kept: Mapping[str, int], origin: str) -> None:
        self.entries(epoch).cut(generation, kept)
        for later in [one for one in self.epochs if one > epoch]:
            del self.epochs[later]
        self.generation += 1
        self.origin = origin

    # ------------------------------------------------------------------ the file

    def _open(self, path: str, fingerprint: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ServiceError(f"the ledger {path} is in use by another server") from None
            whole = self._read(path, fingerprint)
            os.ftruncate(self._file, whole)
            if not whole:
                self._write("penstock ledger", _VERSION, self.id, fingerprint)
        except BaseException:
            self.close()
            raise

    def _read(self, path: str, fingerprint: str) -> int:
        """Take in what was written; how many bytes of it are whole lines."""
        whole = 0
        with open(path, "rb") as file:
            for number, line in enumerate(file):
                if not line.endswith(b"\n"):
                    break
                try:
                    self._take_in(number, json.loads(line), path, fingerprint)
                except (ValueError, TypeError, KeyError, IndexError, AttributeError) as exc:
                    raise ServiceError(f"{path} is no ledger, or damaged in line {number + 1}: {exc}") from None
                whole += len(line)
        return whole

    def _take_in(self, number: int, line: Any, path: str, fingerprint: str) -> None:
        kind, *rest = line
        if number == 0:
            if kind != "penstock ledger" or rest[0] != _VERSION:
                raise ValueError("it does not begin as one")
            if rest[2] != fingerprint:
                raise ServiceError(
                    f"the ledger {path} is of pipeline {rest[2]}, and this is pipeline {fingerprint}; serve the "
                    "same pipeline with the same seed, or begin a new ledger"
                )
            self.id = str(rest[1])
        elif kind == "h":
            self.entries(rest[0]).add(self.generation, rest[1], rest[2])
        elif kind == "s":
            self.entries(rest[0]).state = (rest[1], rest[2].encode())
        elif kind == "r":
            self._cut(*rest)
        else:
            raise ValueError(f"no entry is called {kind!r}")

    def _write(self, *line: Any) -> None:
        if self._file >= 0:
            data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
            while data:
                data = data[os.write(self._file, data) :]

    def close(self) -> None:
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = -1
