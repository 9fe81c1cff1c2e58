"""Mode "split", the server's side: every batch goes to exactly one client, to whoever has credit.

A batch that was sent is *leased* to its client. Once acknowledged it is *handed*: it is entered in the ledger, and
then the client is told so. What a client had not acknowledged when it left or fell silent goes to others. A client
that comes back claims what it still has, and is told which of that it was handed.

With S servers a client reads part i of the batches, those whose number is i modulo S, from server i, and from
another server if that one is gone. So two servers may send batches of one part. Their common ledger decides: the
client that acknowledges second is told that its session is gone, drops the batch and says hello again.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import logging
from collections.abc import Callable, Mapping
from itertools import islice
from time import monotonic
from typing import Any

from penstock.checks import whole_number
from penstock.errors import PlanError
from penstock.service.broker import MOST_RUNS, Broker, Send
from penstock.service.entries import Part
from penstock.service.flows import Flows
from penstock.service.ledger import Ledger, Refusal
from penstock.service.protocol import Ask, Hello, Ready, Refused, Welcome
from penstock.service.run import Item, Run
from penstock.service.session import Session

log = logging.getLogger("penstock.service")

#: clients that live say so within this time
_SIGN_OF_LIFE_S = 1.2
#: a client that wanted to go on and has not come back in this time begins anew
_FORGET_S = 300.0
#: a client that asks for an epoch which is over waits so long for others of its training to show
_LATE_S = 3.0


class _Board:
    """The batches of one part of an epoch that are under way. Numbers are those of the run."""

    def __init__(self, run: Run, generation: int) -> None:
        self.run = run
        #: of the ledger: a board of an earlier one has dealt what was taken back
        self.generation = generation
        #: batches that came back, the lowest first
        self.returned: list[int] = []
        #: the next batch of the run to look at
        self.fresh = run.first
        #: states of the pipeline that wait until all before them is handed
        self.states: list[tuple[int, bytes]] = []

    def overall(self, number: int) -> int:
        """The number among the batches of all servers."""
        residue, servers = self.run.part
        return number * servers + residue

    @property
    def at_end(self) -> bool:
        """The run makes no more, and all that it made was looked at."""
        return self.run.total is not None and self.fresh >= self.run.total


class SplitBroker(Broker):
    """Batches by demand, and the ledger of who was handed them."""

    def __init__(self, flows: Flows, ledger: Ledger, credit: int, send: Send, wake: Callable[[], None]) -> None:
        super().__init__(flows, "split", credit, send, wake)
        self.counts["taken"] = 0
        self.ledger = ledger
        self._boards: dict[tuple[int, Part], _Board] = {}
        #: clients that want to go on from states, and when they first said so
        self._asked: dict[bytes, float] = {}

    def welcome(self, ask: Ask) -> Welcome:
        return Welcome(ask.session, ask.turn, self.mode, self.flows.fingerprint, self.credit, self.ledger.id)

    # ------------------------------------------------------------------ sessions

    def open(self, session: Session, before: Session | None, hello: Hello) -> None:
        if before is not None:
            self._give_back(before)
        if hello.first >= hello.servers or hello.step != hello.servers:
            self._turn_away(session, hello, "numbers", "in mode split the server chooses the batches")
            return
        self._catch_up()
        if (session.epoch, session.part) not in self._boards and self.crowded():
            self._turn_away(
                session, hello, "busy", f"this server makes {MOST_RUNS} passes over its pipeline already"
            )
            return
        if hello.state and before is None and not self._resumed(session, hello):
            return
        if not hello.state and session.epoch in self.ledger.old and not self._may_be_late(session, hello):
            return
        if hello.claims and self.ledger.entries(session.epoch).forgotten:
            said = f"the ledger has forgotten who was handed which batches of epoch {session.epoch}"
            self._turn_away(session, hello, "ledger", said)
            return
        if not self.ledger.enter(session.token.hex(), session.turn):
            self._turn_away(session, hello, "unknown", "this session has gone on at another server")
            return
        kept = self.ledger.has(hello.epoch, session.token.hex(), hello.claims)
        session.run = self._board(session).run
        self.say(session.identity, Ready(session.token, session.turn, tuple(kept), self.ledger.generation))

    def _turn_away(self, session: Session, hello: Hello, code: str, text: str) -> None:
        self.sessions.pop(session.token, None)
        self.refuse(session.identity, hello, code, text)
        self.sweep()

    def _resumed(self, session: Session, hello: Hello) -> bool:
        """Go on from the states of all clients, unless another of them has done so already."""
        try:
            wanted: Mapping[str, Any] = json.loads(hello.state)
            kept = {str(client): whole_number(count, "clients") for client, count in wanted["clients"].items()}
            generation, ledger = whole_number(wanted["generation"], "generation"), str(wanted["ledger"])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, PlanError):
            self._turn_away(session, hello, "state", "the state makes no sense")
            return False
        if ledger != self.ledger.id:
            said = "the state is of another ledger; serve with the ledger= file that was in use when it was saved"
            self._turn_away(session, hello, "state", said)
            return False
        origin = hashlib.blake2b(hello.state + str(hello.epoch).encode(), digest_size=8).hexdigest()
        others = [one for one in self.sessions.values() if one.token != session.token]
        if others:
            # They may be those that died with this one, and not be missed yet.
            asked = self._asked.setdefault(session.token, monotonic())
            if monotonic() - asked < _SIGN_OF_LIFE_S:
                self._turn_away(session, hello, "busy", "waiting for a sign of life of the other clients")
                return False
            living = [one for one in others if one.heard > asked]
            if living and origin == self.ledger.origin:
                return True
            if living:
                self._turn_away(session, hello, "busy", "other clients are reading, and have not gone back")
                return False
            for one in others:
                self.leave(one)
        try:
            self.ledger.roll_back(hello.epoch, generation, kept, origin)
        except Refusal as exc:
            self._turn_away(session, hello, "state", str(exc))
            return False
        self._asked.clear()
        return True

    def _may_be_late(self, session: Session, hello: Hello) -> bool:
        """Whether this client belongs to a training that goes on, and is not a new one with the ledger of another.

        The first batch that anybody gets of this server shows that the training goes on.
        """
        if session.token.hex() in self.ledger.turns:
            return True
        asked = self._asked.setdefault(session.token, monotonic())
        late = monotonic() - asked < _LATE_S
        epochs = sorted(self.ledger.old)
        said = (
            f"all batches of epoch {session.epoch} were handed out before this server was started, as its ledger "
            f"{self.ledger.name!r} says for epochs {epochs[0]} to {epochs[-1]}; for a new training serve with "
            "another ledger= or remove the file, and to go on with the old one load the states of all clients"
        )
        self._turn_away(session, hello, "busy" if late else "ledger", said)
        return False

    def leave(self, session: Session) -> None:
        self._give_back(session)
        super().leave(session)
        self.pump(session)

    def _give_back(self, session: Session) -> None:
        """What was leased to a session goes to others."""
        board = self._boards.get((session.epoch, session.part))
        if board is not None and board.run is session.run:
            for number in session.leased:
                heapq.heappush(board.returned, number)
        session.leased.clear()

    def sweep(self) -> None:
        super().sweep()
        for key, board in list(self._boards.items()):
            if board.run not in self.runs:
                del self._boards[key]

    def _board(self, session: Session) -> _Board:
        key = epoch, part = session.epoch, session.part
        board = self._boards.get(key)
        if board is None or board.generation != self.ledger.generation:
            entries = self.ledger.entries(epoch)
            run = self.start(epoch, part, entries.low_of(part), entries.states.get(part, (0, b"")))
            board = self._boards[key] = _Board(run, self.ledger.generation)
        return board

    # ------------------------------------------------------------------ other servers

    def _catch_up(self) -> None:
        """Take in what other servers have entered. Sessions that have gone on there, or that it took back, end."""
        if self.ledger.catch_up():
            for session in list(self.sessions.values()):
                if session.run is not None and self.ledger.turns.get(session.token.hex()) != session.turn:
                    self.leave(session)

    # ------------------------------------------------------------------ batches

    def acknowledged(self, session: Session) -> None:
        recorded = session.sent - len(session.leased)
        count = session.acknowledged - recorded
        if count <= 0:
            return
        board = self._boards.get((session.epoch, session.part))
        numbers = list(islice(session.leased, count))
        if board is None or board.run is not session.run or not self._hand(session, board, numbers):
            self.counts["taken"] += 1
            said = "another server has handed out these batches, or has this session; say hello again"
            self.say(session.identity, Refused(session.token, session.turn, "unknown", said))
            self.interrupt(session)
            return
        for number in numbers:
            session.leased.popleft()
            board.run.drop(number)
        low = self.ledger.entries(session.epoch).low_of(session.part)
        passed = [one for one in board.states if one[0] <= low]
        if passed:
            self.ledger.stand(session.epoch, *passed[-1], session.part)
            board.states = [one for one in board.states if one[0] > low]

    def _hand(self, session: Session, board: _Board, numbers: list[int]) -> bool:
        overall = [board.overall(number) for number in numbers]
        return self.ledger.hand(session.epoch, session.token.hex(), overall, session.turn)

    def pump(self, session: Session) -> None:
        board = self._boards.get((session.epoch, session.part))
        if board is not None:
            self._deal(board)

    def made(self) -> None:
        for board in list(self._boards.values()):
            self._deal(board)

    def _deal(self, board: _Board) -> None:
        """Give what is there to those who have credit, the one with the least first."""
        readers = [one for one in self.sessions.values() if one.run is board.run and not one.over]
        hungry = [one for one in readers if one.has_credit]
        while hungry:
            item = self._next(board)
            if item is None:
                break
            session = min(hungry, key=lambda one: (len(one.leased), not one.needy))
            session.leased.append(item.number)
            self.post(session, item)
            hungry = [one for one in hungry if one.has_credit and not (board.at_end and one.leased)]
        if board.at_end and not board.returned:
            self._even_out(readers)
        if board.run.failure is not None and hungry:
            for session in hungry:
                self.fail(session, board.run)
        elif hungry:
            board.run.allow(board.fresh + sum(one.batches - one.sent for one in hungry))
        total = board.run.total
        if total is not None and self.ledger.entries(board.run.epoch).low_of(board.run.part) >= total:
            self.ledger.end(board.run.epoch, total, board.run.part)
            for session in readers:
                self._say_if_empty(session, total)
                self.finish(session, total)

    def _say_if_empty(self, session: Session, total: int) -> None:
        """A client that gets nothing may be one of a new training, which asks for the epochs of another."""
        had = (self.ledger.generation, session.token.hex()) in self.ledger.entries(session.epoch).clients
        if total and not had and self.may_log():
            log.warning(
                "a client came to epoch %d when all %d batches were handed out, and gets none. For a new training "
                "start a new server, with another ledger file or none", session.epoch, total,
            )  # fmt: skip

    def _even_out(self, readers: list[Session]) -> None:
        """All batches are made, and a loop waits: those that are leased to a loop that does not wait go back.

        Otherwise loops that step together would wait for one another: one for a batch, the other for the first.
        The client that loses its leases drops what it has not confirmed when it says hello again.
        """
        if any(one.needy and one.has_credit and not one.leased for one in readers):
            rich = [one for one in readers if one.leased and not one.needy]
            if rich:
                self.interrupt(max(rich, key=lambda one: len(one.leased)))

    def _next(self, board: _Board) -> Item | None:
        entries = self.ledger.entries(board.run.epoch)
        while board.returned:
            item = board.run.item(heapq.heappop(board.returned))
            if item is not None and board.overall(item.number) not in entries:
                return item
            if item is not None:
                board.run.drop(item.number)
        while True:
            made = board.run.made
            item = board.run.item(board.fresh)
            if item is None and board.fresh >= made:
                return None
            board.fresh += 1
            if item is None:
                continue
            if item.state:
                board.states.append((item.number + 1, item.state))
            if board.overall(item.number) in entries:
                board.run.drop(item.number)
                continue
            return item

    def tick(self) -> None:
        super().tick()
        self._catch_up()
        self.made()
        limit = monotonic() - _FORGET_S
        self._asked = {token: asked for token, asked in self._asked.items() if asked > limit}

    def close(self) -> None:
        super().close()
        self.ledger.close()

    def stats(self) -> dict[str, float]:
        found = super().stats()
        found["server.handed"] = sum(entries.count for entries in list(self.ledger.epochs.values()))
        found["server.leased"] = sum(len(one.leased) for one in list(self.sessions.values()))
        found["server.generation"] = self.ledger.generation
        return found
