"""Who was handed which batch, in mode "split": in memory, or in a file that survives a killed server.

A batch is *handed* once its client has acknowledged it and the entry is written; only then does the client's loop
get it. Several servers may have one file. Whoever writes an entry holds the file and has read all others, so that:

* A batch that is handed is handed to nobody else, whichever server has sent it.
* A client is handed batches by one server at a time. It enters with its *turn*, and what it acknowledged in an
  earlier turn, at this server or another, is not entered any more.

A *generation* begins when clients go on from their states: entries after these states are taken back, in this epoch
and in all later ones, and all clients have to enter anew. Positions of earlier generations stay.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from penstock.errors import ServiceError
from penstock.service.journal import Journal

__all__ = ["Entries", "Ledger", "Part", "Refusal"]

_KIND, _VERSION = "penstock ledger", 1

#: the batches whose number is the first modulo the second
Part = tuple[int, int]


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
        #: where the pipeline of a part can go on, and before which of the part's batches: all before it were handed
        self.states: dict[Part, tuple[int, bytes]] = {}
        self._lows: dict[Part, int] = {}

    def __contains__(self, number: int) -> bool:
        return number < self.low or number in self.above

    def low_of(self, part: Part) -> int:
        """So many batches of a part were handed without a gap, from its first one on.

        >>> entries = Entries()
        >>> entries.add(0, "somebody", [0, 1, 3, 4])
        >>> entries.low_of((0, 2)), entries.low_of((1, 2))
        (1, 2)
        """
        residue, servers = part
        low = self._lows.get(part, 0)
        while low * servers + residue in self:
            low = max(low + 1, (self.low - residue) // servers)
        self._lows[part] = low
        return low

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
        self._lows.clear()
        self.states = {part: state for part, state in self.states.items() if state[0] <= self.low_of(part)}

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
        #: client -> the turn with which it has entered
        self.turns: dict[str, int] = {}
        #: others have written something that ends sessions of this server
        self._moved = False
        self._fingerprint = fingerprint
        self._journal: Journal | None = None
        #: inside, nobody else writes, and all that was written is known
        self._held: AbstractContextManager[None] = nullcontext()
        if path is not None:
            self._open(os.fspath(path))

    def entries(self, epoch: int) -> Entries:
        return self.epochs.setdefault(epoch, Entries())

    def enter(self, client: str, turn: int) -> bool:
        """From here on this client is handed batches of this turn only; False if it has entered with a later."""
        with self._held:
            if self.turns.get(client, 0) > turn:
                return False
            self._write("t", client, turn)
            self.turns[client] = turn
        return True

    def hand(self, epoch: int, client: str, numbers: Sequence[int], turn: int = 0) -> bool:
        """These batches are handed to a client, from here on.

        False, and nothing is entered, if one of them is handed already or the client has entered with another turn.
        """
        with self._held:
            entries = self.entries(epoch)
            if self.turns.get(client, 0) != turn or any(map(entries.__contains__, numbers)):
                return False
            self._write("h", epoch, client, list(numbers))
            entries.add(self.generation, client, numbers)
        return True

    def stand(self, epoch: int, at: int, state: bytes, part: Part = (0, 1)) -> None:
        """The pipeline of a part can go on before its batch `at`, and all before it were handed."""
        with self._held:
            entries = self.entries(epoch)
            if entries.states.get(part, (0, b""))[0] < at <= entries.low_of(part):
                self._write(*(("s",) if part == (0, 1) else ("p", *part)), epoch, at, state.decode())
                entries.states[part] = (at, state)

    def has(self, epoch: int, client: str, numbers: Iterable[int]) -> list[int]:
        """Those of the numbers that this client was handed, in the order in which it was."""
        found = self.entries(epoch).clients.get((self.generation, client), ())
        wanted = set(numbers)
        return [number for number in found if number in wanted]

    def roll_back(self, epoch: int, generation: int, kept: Mapping[str, int], origin: str) -> None:
        """Go on from where all clients stood; `Refusal` if it is not all of them, or they never stood there."""
        with self._held:
            entries = self.entries(epoch)
            known = {
                client: len(found) for (number, client), found in entries.clients.items() if number == generation
            }
            missing = [client for client, count in known.items() if count and client not in kept]
            if missing:
                raise Refusal(
                    f"the states of all clients are needed to go on: {len(missing)} of {len(known)} clients that "
                    "were handed batches are missing; give load_state_dict() the list of all states"
                )
            if any(count > known.get(client, 0) for client, count in kept.items()) or generation > self.generation:
                raise Refusal(
                    "a state has more batches than the ledger; it is of another ledger, or the file is an older "
                    "copy"
                )
            self._write("r", epoch, generation, dict(kept), origin)
            self._cut(epoch, generation, kept, origin)

    def _cut(self, epoch: int, generation: int, kept: Mapping[str, int], origin: str) -> None:
        self.entries(epoch).cut(generation, kept)
        for later in [one for one in self.epochs if one > epoch]:
            del self.epochs[later]
        self.generation += 1
        self.origin = origin
        self.turns.clear()

    # ------------------------------------------------------------------ the file

    def catch_up(self) -> bool:
        """Take in what others have written; whether, since the last call, clients entered there or went back."""
        if self._journal is not None and self._journal.grown:
            with self._held:
                pass
        moved, self._moved = self._moved, False
        return moved

    def _open(self, path: str) -> None:
        self._held = self._journal = Journal(path, _KIND, self._take_in)
        try:
            self._journal.await_free()
            with self._held:
                if self._journal.empty:
                    self._write(_KIND, _VERSION, self.id, self._fingerprint)
        except BaseException:
            self.close()
            raise

    def _take_in(self, number: int, line: Any) -> None:
        kind, *rest = line
        if number == 0:
            if kind != _KIND or rest[0] != _VERSION:
                raise ValueError(f"a ledger of version {_VERSION} is expected")
            if rest[2] != self._fingerprint:
                assert self._journal is not None
                raise ServiceError(
                    f"the ledger {self._journal.path} is of pipeline {rest[2]}, and this is pipeline "
                    f"{self._fingerprint}; serve the same pipeline with the same seed, or begin a new ledger"
                )
            self.id = str(rest[1])
        elif kind == "h":
            self.entries(rest[0]).add(self.generation, rest[1], rest[2])
        elif kind == "t":
            self.turns[rest[0]] = rest[1]
            self._moved = True
        elif kind == "s":
            self.entries(rest[0]).states[0, 1] = (rest[1], rest[2].encode())
        elif kind == "p":
            self.entries(rest[2]).states[rest[0], rest[1]] = (rest[3], rest[4].encode())
        elif kind == "r":
            self._cut(*rest)
            self._moved = True
        else:
            raise ValueError(f"no entry is called {kind!r}")

    def _write(self, *line: Any) -> None:
        if self._journal is not None:
            self._journal.append(line)

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()
