"""In which order finished chunks leave a stage. Pure: numbers and chunks in, chunks out.

Tickets are numbered as they are issued. A worker hands in chunks under its ticket's number, any
number of them, and then says that the ticket is done.

* `InOrder` passes chunks on in the order of the tickets,
* `AsDone` in the order in which they come,
* `Alternating`, in a file of its own, takes one sample in turn from each of n tickets; a ticket that is done makes
  room for the next one.

`head` is the ticket that must go on before anything more can leave.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from functools import partial
from typing import ClassVar

from penstock.program.chunk import Chunk, Loss, Ticket
from penstock.provenance import Place
from penstock.resume.cursor import BehindLoss, Left, Unordered

#: the ticket of a chunk that has none
_NONE = -1
#: chunks leave together up to so many samples: with more of them, coming for each chunk costs little per sample
_FEW = 64


class Outlet(ABC):
    """Where the chunks of a stage wait for what comes next."""

    #: goes by which tickets are issued, so it is told of each, and when there are no more
    follows: ClassVar[bool] = True
    #: several chunks may leave as one
    joins: ClassVar[bool] = False

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

    def last(self, number: int, chunk: Chunk) -> None:
        """The last chunk of ticket `number`."""
        self.put(number, chunk)
        self.done(number)

    def no_more(self) -> None:
        """No more tickets will be issued."""

    def sets_aside(self, number: int) -> bool:
        """Whether ticket `number` only makes samples again that a joint further on had kept."""
        return False

    def pop(self) -> Chunk | None:
        """The next chunk, if there is one."""
        if not self.ready:
            return None
        self.held -= 1
        return self.ready.popleft()

    def pop_together(self, most: int) -> Chunk | None:
        """The next chunk; with small ones that follow it, as long as `most` chunks are not exceeded."""
        return self.pop()

    @property
    def ready_samples(self) -> int:
        """How many samples are in the chunks that may leave now."""
        return sum(len(chunk.samples) for chunk in self.ready)

    def _release(self, chunk: Chunk) -> None:
        if self.failed:
            self.held -= 1
            return
        self.failed = chunk.failure is not None
        self.ready.append(chunk)


class InOrder(Outlet):
    """The order of the tickets."""

    follows = False
    joins = True

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

    def last(self, number: int, chunk: Chunk) -> None:
        self.held += 1
        if number != self._head:
            if number in self._waiting:
                self._waiting[number].append(chunk)
            else:
                self._waiting[number] = [chunk]
            self._done.add(number)
            return
        self._release(chunk)
        self._head = number + 1
        if self._waiting or self._done:
            self._follow()

    def done(self, number: int) -> None:
        if number != self._head:
            self._done.add(number)
            return
        self._head = number + 1
        self._follow()

    def pop_together(self, most: int) -> Chunk | None:
        ready = self.ready
        if not ready:
            return None
        self.held -= 1
        chunk = ready.popleft()
        if not ready or chunk.failure is not None or len(chunk.samples) >= _FEW:
            return chunk
        origin, redo, places = chunk.origin, chunk.redo, chunk.places
        if type(places) is not range or chunk.losses:
            return chunk
        samples, stop, step = list(chunk.samples), places.stop, places.step
        left = min(most - 1, len(ready), _FEW - len(samples))
        while left > 0:
            following = ready[0]
            its = following.places
            if following.origin is not origin or following.redo is not redo or following.losses:
                break
            if type(its) is not range or its.start != stop or its.step != step or following.failure is not None:
                break
            samples += following.samples
            stop = its.stop
            del ready[0]
            self.held -= 1
            left -= 1
        chunk.samples, chunk.places = samples, range(places.start, stop, step)
        return chunk

    def _follow(self) -> None:
        """Release what waited for the ticket before the head."""
        while self._waiting or self._done:
            for chunk in self._waiting.pop(self._head, ()):
                self._release(chunk)
            if self._head not in self._done:
                return
            self._done.remove(self._head)
            self._head += 1


class AsDone(Outlet):
    """First come, first served; but what is made again after a resume comes in its order, before all else.

    What leaves first may have been issued last, so every chunk carries what of the others has left before it.

    What was lost before the inputs of a ticket is none of them, so it is not owed while they are. It leaves with
    the first chunk that makes all after it count as begun: one of its own ticket, or of a later one.
    """

    def __init__(self, depth: int = 0, unit: int = 0) -> None:
        super().__init__()
        self._depth = depth
        #: positions of a batch, where workers make them; 0 elsewhere
        self._unit = unit
        self._done: set[int] = set()
        self._next = 0
        #: tickets of which not all has left
        self._open: dict[int, _Leaving] = {}
        #: the ticket of each chunk in `ready`
        self._tickets: deque[int] = deque()
        #: the last ticket of which something has left
        self._high = -1
        self._high_ticket: Ticket | None = None
        #: tickets that make something again and are not done, in their order, and what waits for them
        self._redo: deque[int] = deque()
        self._waiting: dict[int, list[Chunk]] = {}
        #: what was lost before the inputs of tickets, and has not left
        self._lost: dict[int, list[Loss]] = {}

    @property
    def head(self) -> int:
        return self._next

    def issued(self, number: int, ticket: Ticket) -> None:
        self._open[number] = _Leaving(ticket)
        if ticket.redo:
            self._redo.append(number)
        if ticket.losses:
            self._lost[number], ticket.losses = ticket.losses, []
            self._let_out_lost()

    def _let_out_lost(self) -> None:
        """Let out what was lost, if no ticket before it has anything left: no chunk would take it along."""
        losses = self._lost_before(self._first_open) if self._lost and not self.failed else []
        if not losses:
            return
        # It leaves next: a chunk of a later ticket would make it count as begun, and may wait already.
        if self._tickets and self._tickets[0] == _NONE:
            self.ready[0].losses += losses
        else:
            self.held += 1
            self.ready.appendleft(Chunk([], (), None, losses))
            self._tickets.appendleft(_NONE)

    def _lost_before(self, stop: int, before: int = 0) -> list[Loss]:
        """Remove and return what was lost before the inputs of all tickets before `stop`."""
        numbers = [number for number in self._lost if number < stop]
        return [loss._replace(before=before) for number in numbers for loss in self._lost.pop(number)]

    @property
    def _first_open(self) -> int:
        """The first ticket with inputs of which not all has left."""
        return next((number for number, one in self._open.items() if one.ticket.count), 1 << 60)

    def put(self, number: int, chunk: Chunk) -> None:
        self.held += 1
        if self._redo and number != self._redo[0]:
            self._waiting.setdefault(number, []).append(chunk)
        else:
            self._let_out(number, chunk)

    def _let_out(self, number: int, chunk: Chunk) -> None:
        before = len(self.ready)
        self._release(chunk)
        if len(self.ready) > before:
            self._tickets.append(number)
            self._open[number].here += 1

    def done(self, number: int) -> None:
        self._done.add(number)
        while self._next in self._done:
            self._done.remove(self._next)
            self._next += 1
        leaving = self._open.get(number)
        if leaving is not None:
            leaving.done = True
        self._let_out_waiting()
        if leaving is not None and not leaving.here and number not in self._waiting:
            self._left(number, leaving)
            self._let_out_lost()

    def _let_out_waiting(self) -> None:
        """Whatever waited for something that was made again, and no longer has to."""
        while self._redo:
            first = self._redo[0]
            for chunk in self._waiting.pop(first, ()):
                self._let_out(first, chunk)
            one = self._open.get(first)
            if one is not None and not one.done:
                return
            self._redo.popleft()
        for number in sorted(self._waiting):
            for chunk in self._waiting.pop(number):
                self._let_out(number, chunk)

    def _left(self, number: int, leaving: _Leaving) -> None:
        self._open.pop(number, None)
        if number > self._high and leaving.ticket.count:  # the last one may only carry what was lost
            self._high, self._high_ticket = number, leaving.ticket

    def pop(self) -> Chunk | None:
        chunk = super().pop()
        if chunk is None:
            return None
        number = self._tickets.popleft()
        if number == _NONE:
            return chunk
        own = self._open[number]
        own.here -= 1
        if own.done and not own.here:
            self._left(number, own)
        if own.ticket.count and number > self._high:
            self._high, self._high_ticket = number, own.ticket
        first = self._lost_before(self._high + 1 if chunk.failure is None else 1 << 60) if self._lost else []
        if own.ticket.count:
            if not own.ticket.redo:  # those leave in their order: what is owed after them is known as it was saved
                chunk.origin = origin = self._origin(number, own)
                # Samples of earlier tickets may leave after these, so they stand elsewhere than they did.
                where = BehindLoss(partial(origin.after, Left(own.ticket.inputs, own.last, own.lost)))
                first = [loss._replace(origin=where) for loss in first]
            own.leave(chunk)
        if first or self._lost:
            behind = self._lost_before(self._first_open, len(chunk.samples))
            chunk.losses = [*first, *chunk.losses, *behind]
        return chunk

    def _origin(self, number: int, own: _Leaving) -> Unordered:
        others = tuple(
            Left(one.ticket.inputs, one.last, one.lost)
            for other, one in self._open.items()
            if other != number and other <= self._high and one.ticket.count
        )
        return Unordered(own.ticket.inputs, others, self._high_ticket, self._depth, self._unit)


class _Leaving:
    """A ticket of which not all has left."""

    __slots__ = ("done", "here", "last", "lost", "ticket")

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket
        #: the last sample that has left, and the last that was lost after it
        self.last: Place = None
        self.lost: Place = None
        #: chunks of it that may leave
        self.here = 0
        self.done = False

    def leave(self, chunk: Chunk) -> None:
        """A chunk of it leaves."""
        if chunk.samples:
            self.last, self.lost = chunk.places[-1], None
        if chunk.losses and chunk.losses[-1].before >= len(chunk.samples):
            self.lost = chunk.losses[-1].place
