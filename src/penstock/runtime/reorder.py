"""In which order finished chunks leave a stage. Pure: numbers and chunks in, chunks out.

Tickets are numbered as they are issued. A worker hands in chunks under its ticket's number, any
number of them, and then says that the ticket is done.

* `InOrder` passes chunks on in the order of the tickets,
* `AsDone` in the order in which they come,
* `Alternating` takes one sample in turn from each of n tickets; a ticket that is done makes room
  for the next one.

`head` is the ticket that must go on before anything more can leave.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import Any

from penstock.provenance import Place
from penstock.runtime.chunk import Chunk, ErrorRecord

__all__ = ["Alternating", "AsDone", "InOrder", "Outlet"]


class Outlet(ABC):
    """Where the chunks of a stage wait for what comes next."""

    def __init__(self) -> None:
        #: chunks that may leave now
        self.ready: deque[Chunk] = deque()
        #: chunks here, those that wait for their turn included
        self.held = 0
        #: a chunk with a failure is the last that leaves
        self.failed = False

    @property
    @abstractmethod
    def head(self) -> int:
        """The number of the ticket that the stream waits for."""

    @abstractmethod
    def put(self, number: int, chunk: Chunk) -> None:
        """A chunk of ticket `number`."""

    @abstractmethod
    def done(self, number: int) -> None:
        """Ticket `number` has no more chunks."""

    def no_more(self, tickets: int) -> None:
        """No ticket from number `tickets` on will be issued."""

    def pop(self) -> Chunk | None:
        """The next chunk, if there is one."""
        if not self.ready:
            return None
        self.held -= 1
        return self.ready.popleft()

    def _release(self, chunk: Chunk) -> None:
        if self.failed:
            self.held -= 1
            return
        self.failed = chunk.failure is not None
        self.ready.append(chunk)


class AsDone(Outlet):
    """First come, first served."""

    def __init__(self) -> None:
        super().__init__()
        self._open: set[int] = set()
        self._next = 0

    @property
    def head(self) -> int:
        return self._next

    def put(self, number: int, chunk: Chunk) -> None:
        self.held += 1
        self._release(chunk)

    def done(self, number: int) -> None:
        self._open.add(number)
        while self._next in self._open:
            self._open.remove(self._next)
            self._next += 1


class InOrder(Outlet):
    """The order of the tickets."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: dict[int, list[Chunk]] = {}
        self._done: set[int] = set()
        self._head = 0

    @property
    def head(self) -> int:
        return self._head

    def put(self, number: int, chunk: Chunk) -> None:
        self.held += 1
        if number == self._head:
            self._release(chunk)
        else:
            self._waiting.setdefault(number, []).append(chunk)

    def done(self, number: int) -> None:
        self._done.add(number)
        while self._head in self._done:
            self._done.remove(self._head)
            self._head += 1
            for chunk in self._waiting.pop(self._head, ()):
                self._release(chunk)


class _Turn:
    """One ticket among those that alternate: its samples not yet passed on."""

    def __init__(self) -> None:
        self.chunks: deque[Chunk] = deque()
        self.next = 0
        self.done = False


class Alternating(Outlet):
    """One sample from each of `width` tickets in turn."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self._tickets: dict[int, _Turn] = {}
        #: the numbers of the tickets that alternate now, and whose turn it is
        self._turns = list(range(width))
        self._turn = 0
        self._next_ticket = width
        self._stop: int | None = None

    @property
    def head(self) -> int:
        return self._turns[self._turn]

    def put(self, number: int, chunk: Chunk) -> None:
        self.held += 1
        self._tickets.setdefault(number, _Turn()).chunks.append(chunk)
        self._advance()

    def done(self, number: int) -> None:
        self._tickets.setdefault(number, _Turn()).done = True
        self._advance()

    def _advance(self) -> None:
        samples: list[Any] = []
        places: list[Place] = []
        losses: list[ErrorRecord] = []
        emptied = nbytes = 0
        failure = None
        while failure is None:
            ticket = self._tickets.get(self.head)
            if ticket is None:
                if self._stop is not None and self.head >= self._stop and len(self._turns) > 1:
                    self._drop_turn()
                    continue
                break
            if not ticket.chunks:
                if not ticket.done:
                    break
                self._replace()
                continue
            chunk = ticket.chunks[0]
            if ticket.next < len(chunk.samples):
                samples.append(chunk.samples[ticket.next])
                places.append(chunk.places[ticket.next])
                ticket.next += 1
            if ticket.next >= len(chunk.samples):
                if chunk.samples and chunk.failure is not None:
                    # The failure has a turn of its own, behind the last sample.
                    chunk.samples, chunk.places, ticket.next = [], (), 0
                else:
                    failure = chunk.failure
                    losses += chunk.losses
                    nbytes += chunk.nbytes
                    emptied += 1
                    ticket.next = 0
                    ticket.chunks.popleft()
                    if not chunk.samples:
                        continue
            self._turn = (self._turn + 1) % len(self._turns)
        self.held -= emptied
        if samples or losses or failure is not None:
            self.held += 1
            self._release(Chunk(samples, places, failure, losses, nbytes))

    def no_more(self, tickets: int) -> None:
        if self._stop is None:
            self._stop = tickets
            self._advance()

    def _drop_turn(self) -> None:
        """There is no ticket left for this turn; the others go on without it."""
        del self._turns[self._turn]
        self._turn %= len(self._turns)

    def _replace(self) -> None:
        """The ticket whose turn it is has ended; the next one takes its turn."""
        del self._tickets[self.head]
        self._turns[self._turn] = self._next_ticket
        self._next_ticket += 1
