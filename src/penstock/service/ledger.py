"""Who was handed which batch, in mode "split": in memory, or in a file that survives a killed server.

A batch is *handed* once its client has acknowledged it and the entry is written; only then does the client's loop
get it. Several servers may have one file. Whoever writes an entry holds the file and has read all others, so that:

* A batch that is handed is handed to nobody else, whichever server has sent it.
* A client is handed batches by one server at a time. It enters with its *turn*, and what it acknowledged in an
  earlier turn, at this server or another, is not entered any more.

A *generation* begins when clients go on from their states: entries after these states are taken back, in this epoch
and in all later ones, and all clients have to enter anew. Positions of earlier generations stay.

A file does not grow for ever. When most of its lines say what fewer could, it is written anew: lines of one client
become one line, and of epochs before the last sixteen it stays known which batches were handed, but not to whom.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from penstock.errors import ServiceError
from penstock.service.entries import Entries, Part
from penstock.service.journal import Journal

log = logging.getLogger("penstock.service")

_KIND, _VERSION = "penstock ledger", 1

#: of so many epochs it is known to whom their batches were handed; of earlier ones, only which
_REMEMBERED = 16
#: clients whose turn is known; one that is not says hello again
_MOST_TURNS = 20_000
#: lines of a file that is never written anew
_FEW_LINES = 10_000


class Refusal(ServiceError):
    """A rollback that would lose or repeat batches."""


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
        #: epochs of which a batch was handed, in the order in which they began
        self._begun: list[int] = []
        #: all epochs of the file, if all their batches were handed before it was opened and none has been since
        self.old: frozenset[int] = frozenset()
        #: others have written something that ends sessions of this server
        self._moved = False
        self._fingerprint = fingerprint
        #: lines of the file when it was looked at last whether it can be written anew, had it been
        self._needed = 0
        self._journal: Journal | None = None
        #: inside, nobody else writes, and all that was written is known
        self._held: AbstractContextManager[None] = nullcontext()
        if path is not None:
            self._open(os.fspath(path))

    @property
    def name(self) -> str:
        """Of its file, for clients: where it is, is none of their business."""
        return "" if self._journal is None else os.path.basename(self._journal.path)

    def entries(self, epoch: int) -> Entries:
        return self.epochs.setdefault(epoch, Entries())

    def enter(self, client: str, turn: int) -> bool:
        """From here on this client is handed batches of this turn only; False if it has entered with a later."""
        with self._held:
            if self.turns.get(client, 0) > turn:
                return False
            self._write("t", client, turn)
            self._enter(client, turn)
        return True

    def _enter(self, client: str, turn: int) -> None:
        self.turns.pop(client, None)
        self.turns[client] = turn
        if len(self.turns) > _MOST_TURNS:
            del self.turns[next(iter(self.turns))]

    def hand(self, epoch: int, client: str, numbers: Sequence[int], turn: int = 0) -> bool:
        """These batches are handed to a client, from here on.

        False, and nothing is entered, if one of them is handed already or the client has entered with another turn.
        """
        with self._held:
            entries = self.entries(epoch)
            if self.turns.get(client, 0) != turn or any(map(entries.__contains__, numbers)):
                return False
            self._write("h", epoch, client, list(numbers))
            self._handed(epoch, self.generation, client, numbers)
            self._compact()
        return True

    def _handed(self, epoch: int, generation: int, client: str, numbers: Iterable[int]) -> None:
        self.entries(epoch).add(generation, client, numbers)
        self._began(epoch)
        self.old = frozenset()

    def _began(self, epoch: int) -> None:
        """Some of its batches are handed. To whom those of the earliest epochs were handed is forgotten."""
        if epoch not in self._begun:
            self._begun.append(epoch)
            for early in self._begun[:-_REMEMBERED]:
                self.entries(early).forget()

    def end(self, epoch: int, total: int, part: Part = (0, 1)) -> None:
        """A part has so many batches, and all of them were handed."""
        with self._held:
            entries = self.entries(epoch)
            if part not in entries.ended:
                self._write("e", *part, epoch, total)
                entries.ended[part] = total

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
            if entries.forgotten:
                raise Refusal(
                    f"the ledger knows to whom batches were handed for the last {_REMEMBERED} epochs, and epoch "
                    f"{epoch} is not one of them; go on from a later state, or begin a new ledger"
                )
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
        self._begun = [one for one in self._begun if one <= epoch and self.entries(one).count]
        self.old = frozenset()
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
        self._held = self._journal = Journal(path, _KIND, self._take_in, self._clear)
        try:
            self._journal.await_free()
            with self._held:
                if self._journal.empty:
                    self._write(_KIND, _VERSION, self.id, self._fingerprint)
                self._compact()
            self._moved = False
            if all(self.entries(epoch).complete for epoch in self._begun):
                self.old = frozenset(self._begun)
            self._say_where_it_stands(path)
        except BaseException:
            self.close()
            raise

    def _say_where_it_stands(self, path: str) -> None:
        if not self._begun:
            return
        first, last = min(self._begun), max(self._begun)
        if self.old:
            log.warning(
                "the ledger %s says that all batches of epochs %d to %d are handed out: clients that ask for these "
                "epochs without a state are refused. For a new training use another file, or remove this one. "
                "Clients of the old training go on with the next epoch, or with the states of all of them",
                path, first, last,
            )  # fmt: skip
        else:
            count = self.entries(last).count
            log.info("going on with the ledger %s: epoch %d, of which %d batches are handed out", path, last, count)

    def _clear(self) -> None:
        """The file was written anew by another server, and is read from its beginning."""
        self.epochs.clear()
        self.turns.clear()
        self._begun.clear()
        self.generation, self.origin = 0, ""
        self._moved = True

    def _compact(self) -> None:
        """Write the file anew, if it has many lines and most of them are not needed. The file is held."""
        journal = self._journal
        if journal is None or journal.lines < max(_FEW_LINES, 2 * self._needed):
            return
        lines: list[list[Any]] = [
            [_KIND, _VERSION, self.id, self._fingerprint],
            ["g", self.generation, self.origin],
            *(["t", client, turn] for client, turn in self.turns.items()),
            *(line for epoch in self._begun for line in self.entries(epoch).lines(epoch)),
        ]
        self._needed = len(lines)
        if journal.lines >= 2 * len(lines) and not journal.write_anew(lines):
            self._needed = journal.lines

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
            self._handed(rest[0], self.generation, rest[1], rest[2])
        elif kind == "c":
            self._handed(rest[0], _number(rest[1]), rest[2], rest[3])
        elif kind == "d":
            self.entries(rest[0]).add_unknown(_number(rest[1]), map(_number, rest[2]))
            self._began(rest[0])
        elif kind == "t":
            self._enter(*rest)
            self._moved = True
        elif kind == "e":
            self.entries(rest[2]).ended[_number(rest[0]), _number(rest[1])] = rest[3]
        elif kind == "g":
            self.generation, self.origin = _number(rest[0]), str(rest[1])
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


def _number(found: Any) -> int:
    if type(found) is not int or found < 0:
        raise ValueError(f"{found!r} is no number")
    return found
