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
from penstock.runtime.chunk import Chunk, ErrorRecord, Ticket
from penstock.runtime.marks import Loose, Trace, Turn, Turns

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

    def issued(self, number: int, ticket: Ticket) -> None:
        """Ticket `number` has been issued."""

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
    """First come, first served.

    What leaves first may have been issued last, so every chunk carries what of the others has left before it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._done: set[int] = set()
        self._next = 0
        #: of each ticket of which not all has left: its trace, the last sample that has, and chunks here
        self._open: dict[int, _Leaving] = {}
        #: the ticket of each chunk in `ready`
        self._tickets: deque[int] = deque()
        #: the last ticket of which something has left
        self._high = -1
        self._high_trace: Trace | None = None

    @property
    def head(self) -> int:
        return self._next

    def issued(self, number: int, ticket: Ticket) -> None:
        self._open[number] = _Leaving(ticket.trace)

    def put(self, number: int, chunk: Chunk) -> None:
        self.held += 1
        before = len(self.ready)
        self._release(chunk)
        if len(self.ready) > before:
            self._tickets.append(number)
            self._open.setdefault(number, _Leaving(chunk.trace)).here += 1  # type: ignore[arg-type]

    def done(self, number: int) -> None:
        self._done.add(number)
        while self._next in self._done:
            self._done.remove(self._next)
            self._next += 1
        leaving = self._open.get(number)
        if leaving is not None:
            leaving.done = True
            if not leaving.here:
                self._left(number, leaving)

    def _left(self, number: int, leaving: _Leaving) -> None:
        del self._open[number]
        if number > self._high and leaving.trace is not None:  # the last one may only tell what was lost
            self._high, self._high_trace = number, leaving.trace

    def pop(self) -> Chunk | None:
        chunk = super().pop()
        if chunk is None:
            return None
        number = self._tickets.popleft()
        own = self._open[number]
        own.here -= 1
        if own.done and not own.here:
            self._left(number, own)
        if own.trace is not None:
            if number > self._high:
                self._high, self._high_trace = number, own.trace
            others = tuple(
                (one.trace, one.last)
                for other, one in self._open.items()
                if other != number and other <= self._high and one.trace is not None
            )
            chunk.trace = Loose(own.trace, others, self._high_trace or own.trace)
            if chunk.samples:
                own.last = chunk.places[-1]
        return chunk


class _Leaving:
    """A ticket of which not all has left."""

    __slots__ = ("done", "here", "last", "trace")

    def __init__(self, trace: Trace | None) -> None:
        self.trace = trace
        self.last: Place = None
        self.here = 0
        self.done = False


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
        #: `_turns` as it is now, once it has been asked for
        self._snapshot: tuple[int, ...] | None = None
        #: of the tickets that have, or wait for, a turn: where they came from, and the last sample that has left
        self._traces: dict[int, Trace] = {}
        self._last: dict[int, Place] = {}
        #: what was lost before the input of a ticket, as long as no later one has had a turn
        self._lost: dict[int, list[ErrorRecord]] = {}
        #: the last ticket that has been begun
        self._high = -1
        self._high_trace: Trace | None = None

    def resume(self, turns: list[int], turn: int) -> None:
        """Go on where others have stopped: which of the tickets to come has which turn, and whose turn it is."""
        self._turns, self._turn, self._next_ticket = list(turns), turn, len(turns)
        self._snapshot = None

    def issued(self, number: int, ticket: Ticket) -> None:
        if ticket.trace is not None:
            self._traces[number] = ticket.trace
        if ticket.losses:
            # Who gets which turn hangs on how many came before, so this is told with the first to whom it matters.
            self._lost[number], ticket.losses = ticket.losses, []

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
        turns: list[Turn] = []
        lost: list[tuple[ErrorRecord, int]] = []
        traces, last = dict(self._traces), dict(self._last)
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
                lost += [(one, len(samples)) for one in self._lost_before()]
                self._replace()
                continue
            chunk = ticket.chunks[0]
            lost += [(one, len(samples)) for one in self._lost_before()]
            if ticket.next < len(chunk.samples):
                samples.append(chunk.samples[ticket.next])
                places.append(chunk.places[ticket.next])
                number = self.head
                self._last[number] = places[-1]
                ticket.next += 1
            if ticket.next >= len(chunk.samples):
                if chunk.samples and chunk.failure is not None:
                    # The failure has a turn of its own, behind the last sample.
                    chunk.samples, chunk.places, ticket.next = [], (), 0
                else:
                    failure = chunk.failure
                    lost += [(one, len(samples)) for one in chunk.losses]
                    nbytes += chunk.nbytes
                    emptied += 1
                    ticket.next = 0
                    ticket.chunks.popleft()
                    if not chunk.samples:
                        continue
            self._turn = (self._turn + 1) % len(self._turns)
            if number > self._high:
                self._begun(number, traces)
            if self._high_trace is not None:
                turns.append((number, self._snapshot or self._snapped(), self._turn, self._high_trace))
        self.held -= emptied
        if samples or lost or failure is not None:
            self.held += 1
            made = Turns(places, turns, traces, last, lost) if len(turns) == len(places) else None
            self._release(Chunk(samples, places, failure, [one for one, _ in lost], nbytes, trace=made))

    def tell(self, losses: list[ErrorRecord]) -> None:
        """What was lost, and no sample has come since."""
        self.held += 1
        self._release(Chunk([], (), None, losses))

    def _lost_before(self) -> list[ErrorRecord]:
        """What was lost before the input of the ticket whose turn it is, and has not been told."""
        if not self._lost:
            return []
        numbers = [number for number in self._lost if number <= self.head]
        return [one for number in sorted(numbers) for one in self._lost.pop(number)]

    def _begun(self, number: int, traces: dict[int, Trace]) -> None:
        """Something of ticket `number` has left, or nothing will."""
        if number > self._high and number in traces:
            self._high, self._high_trace = number, traces[number]

    def no_more(self, tickets: int) -> None:
        if self._stop is None:
            self._stop = tickets
            self._advance()

    def _snapped(self) -> tuple[int, ...]:
        self._snapshot = tuple(self._turns)
        return self._snapshot

    def _drop_turn(self) -> None:
        """There is no ticket left for this turn; the others go on without it."""
        self._snapshot = None
        del self._turns[self._turn]
        self._turn %= len(self._turns)

    def _replace(self) -> None:
        """The ticket whose turn it is has ended; the next one takes its turn."""
        self._begun(self.head, self._traces)
        del self._tickets[self.head]
        self._traces.pop(self.head, None)
        self._last.pop(self.head, None)
        self._snapshot = None
        self._turns[self._turn] = self._next_ticket
        self._next_ticket += 1
