"""The order of a stage whose outputs alternate: one sample in turn from each of n inputs. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple

from penstock.core.outlets import Outlet
from penstock.places import plain_places
from penstock.program.chunk import Chunk, Loss, LossOrigin, Ticket
from penstock.provenance import Place, covers, key_of, steps_from
from penstock.resume.cursor import BehindLoss, Cursor, Held, saved_edge
from penstock.resume.schema import Front, InputState

Steps = tuple[int, ...]


class _Ticket:
    """One ticket among those that alternate: its input, and its chunks that have not been passed on."""

    __slots__ = ("after", "chunks", "done", "next", "ticket")

    def __init__(self, ticket: Ticket, after: Steps | None) -> None:
        self.ticket = ticket
        self.chunks: deque[Chunk] = deque()
        #: the number of the next sample in the first of the chunks
        self.next = 0
        self.done = False
        #: how far its input has been taken; None if nothing of it was
        self.after = after


class _Last(NamedTuple):
    """The last ticket that has had a slot, or what was lost behind it and has left."""

    number: int
    #: where the stream stands behind that
    origin: LossOrigin | None
    of: Place


class _Slots(NamedTuple):
    """All slots right after a sample has left, the next one first; None for one that no ticket has come for yet."""

    key: str
    epoch: int
    slots: tuple[Held | None, ...]
    last: _Last

    def saved(self) -> Front:
        opened = [slot for slot in self.slots if slot is not None]
        numbers = iter(range(len(opened)))
        own = {
            "open": plain_places([slot.place for slot in opened]),
            "after": [slot.after for slot in opened],
            "slots": [-1 if slot is None else next(numbers) for slot in self.slots],
        }
        origin = self.last.origin
        cursor = None if origin is None else origin.behind(self.last.of)
        return Front(joint=self.key, own=own, inputs=[InputState(self.epoch, saved_edge(cursor))])


class _Turns:
    """The origin of a chunk whose samples alternate between tickets."""

    __slots__ = ("_marks", "_places")

    def __init__(self, places: Sequence[Place], marks: Sequence[_Slots]) -> None:
        self._places = places
        self._marks = marks

    def behind(self, of: Place) -> Cursor:
        raise AssertionError("asked of the tickets of a stage, never of what it made")

    def lost_input(self, place: Place, steps: int) -> Place:
        return None  # a loss may leave before samples of other tickets

    def cursor(self, place: Place) -> Cursor:
        return Cursor(self._marks[self._places.index(place)])


class Alternating(Outlet):
    """One sample in turn from each of `width` slots. A slot has a ticket, which has one input.

    A ticket that has ended leaves its slot to the next ticket that no slot waits for, which goes on with the same
    turn. Which ticket that is does not depend on when tickets come: a slot waits for a place in the queue.

    When the stream is resumed, the tickets of the inputs that were open go back into their slots, however late they
    come. Those that only make samples again for a joint further on pass before all others and have no slot.
    """

    def __init__(self, width: int, key: str = "", epoch: int = 0, depth: int = 1) -> None:
        super().__init__()
        self._key = key
        self._epoch = epoch
        self._depth = depth
        self._tickets: dict[int, _Ticket] = {}
        #: the ticket in each slot; or below 0, the place in the queue of the one that it waits for: see `_reserved`
        self._slots: list[int | None] = [_reserved(number) for number in range(width)]
        self._turn = 0
        #: tickets that have come and have no slot, by their place in the queue
        self._queue: dict[int, int] = {}
        self._queued = 0
        #: the first place in the queue that no slot waits for
        self._free = width
        #: losses, by the place in the queue of the next ticket after them, each with the number of the ticket that
        #: brought it: they take no place themselves, so that they do not change which slot gets which ticket; and
        #: the last place that a slot has had or waited for
        self._lost: dict[int, list[tuple[int, Loss]]] = {}
        self._reached = -1
        self._last: _Last | None = None
        #: no more tickets will come
        self._ended = False
        #: the inputs that were open when the state was saved and have not come yet, with their slots
        self._opened: dict[Hashable, tuple[int, Held]] = {}
        #: how far other inputs that are made again had been taken
        self._after: dict[Hashable, Steps | None] = {}
        #: inputs that are made again for a joint further on and have not come yet; tickets of those that have
        self._aside: Counter[Hashable] = Counter()
        #: all of these inputs, and those that were open: what is lost of them leaves at once
        self._begun: Sequence[Place] = ()
        self._aside_tickets: deque[int] = deque()
        self._set_aside: set[int] = set()

    def resume(
        self, aside: Sequence[Place], opened: Sequence[Held], slots: Sequence[int], owed: Sequence[Held]
    ) -> None:
        """Go on where others have stopped: with the inputs that were open in their slots, -1 for a new one."""
        self._aside = Counter(map(key_of, aside))
        self._begun = [*aside, *(one.place for one in opened)]
        if slots:
            self._slots, self._free = [], 0
            for slot, number in enumerate(slots):
                if number >= 0:
                    self._slots.append(None)
                    self._opened[key_of(opened[number].place)] = slot, opened[number]
                else:
                    self._slots.append(self._next_place())
        self._after = {key_of(one.place): one.after for one in owed}

    # ------------------------------------------------------------------ tickets

    def sets_aside(self, number: int) -> bool:
        return number in self._set_aside

    def issued(self, number: int, ticket: Ticket) -> None:
        key = key_of(ticket.inputs[0]) if ticket.count else None
        for loss in ticket.losses:
            begun = ticket.redo and any(covers(loss.place, place) for place in self._begun)
            self._lost.setdefault(-1 if begun else self._queued, []).append((number, loss))
        ticket.losses = []
        if not ticket.count and ticket.failure is None:
            self._advance()
            return
        if ticket.redo and self._aside[key]:
            self._aside[key] -= 1
            self._aside_tickets.append(number)
            self._set_aside.add(number)
            self._tickets[number] = _Ticket(ticket, None)
            return
        if ticket.redo and key in self._opened:
            slot, held = self._opened.pop(key)
            self._slots[slot] = number
            self._tickets[number] = _Ticket(ticket, held.after)
            self._had_slot(number)
        else:
            self._tickets[number] = _Ticket(ticket, self._after.pop(key, None))
            self._queue[self._queued] = number
            self._queued += 1
            if not ticket.redo:
                self._redone()
        self._advance()

    def _redone(self) -> None:
        """All that is made again has come. What has not is lost, and its slot is free."""
        for slot in sorted((slot for slot, _ in self._opened.values()), key=lambda slot: slot < self._turn):
            self._slots[slot] = self._next_place()
        self._opened.clear()
        self._aside.clear()

    def _next_place(self) -> int:
        """A slot waits for the next ticket that none waits for."""
        self._free += 1
        return _reserved(self._free - 1)

    def no_more(self) -> None:
        if not self._ended:
            self._ended = True
            self._redone()
            self._advance()

    @property
    def head(self) -> int:
        if self._aside_tickets:
            return self._aside_tickets[0]
        number = self._slots[self._turn]
        if number is not None and number < 0:
            number = self._queue.get(_reserved(number))
        return 1 << 60 if number is None else number

    def put(self, number: int, chunk: Chunk) -> None:
        self.held += 1
        self._tickets[number].chunks.append(chunk)
        self._advance()

    def done(self, number: int) -> None:
        if number in self._tickets:  # and not one that had nothing but losses
            self._tickets[number].done = True
            self._advance()

    # ------------------------------------------------------------------ turns

    def _advance(self) -> None:
        """Pass on all that can be, as one chunk."""
        if not self._let_out_aside():
            return
        out = _Out()
        while out.failure is None and (ticket := self._next(out)) is not None:
            if self._take(ticket, out):
                self._turn = (self._turn + 1) % len(self._slots)
                out.marks.append(self._mark())
        self.held -= out.emptied
        if out.samples or out.losses or out.failure is not None:
            self.held += 1
            origin = _Turns(out.places, out.marks)
            self._release(Chunk(out.samples, out.places, out.failure, out.losses, out.nbytes, origin=origin))

    def _let_out_aside(self) -> bool:
        """Pass on what is only made again, in its order. False while some of it has yet to come."""
        while self._aside_tickets:
            number = self._aside_tickets[0]
            ticket = self._tickets[number]
            while ticket.chunks:
                self._release(ticket.chunks.popleft())
            if not ticket.done:
                return False
            self._aside_tickets.popleft()
            del self._tickets[number]
        return not self._aside.total()

    def _next(self, out: _Out) -> _Ticket | None:
        """The ticket whose turn it is, if it can give something; lets go of those that have ended."""
        while True:
            number = self._slots[self._turn]
            if number is not None and number < 0:
                self._reached = max(self._reached, _reserved(number))
            if self._lost:
                self._let_out_lost(out)
            if number is None:
                return None  # its ticket is made again, and on its way
            if number < 0:
                place = _reserved(number)
                if place in self._queue:
                    number = self._slots[self._turn] = self._queue.pop(place)
                    self._had_slot(number)
                elif self._ended and place >= self._queued and len(self._slots) > 1:
                    del self._slots[self._turn]
                    self._turn %= len(self._slots)
                    continue
                else:
                    return None
            ticket = self._tickets[number]
            if ticket.chunks or not ticket.done:
                return ticket if ticket.chunks else None
            del self._tickets[number]
            self._slots[self._turn] = self._next_place()

    def _let_out_lost(self, out: _Out) -> None:
        """Let out what was lost before the place that has been reached: all inputs before that have had a slot."""
        for place in sorted(place for place in self._lost if place <= self._reached):
            for number, loss in self._lost.pop(place):
                of = None if loss.origin is None else loss.origin.lost_input(loss.place, loss.steps)
                if of is not None and place >= 0 and (self._last is None or number > self._last.number):
                    self._last = _Last(number - 1, loss.origin, of)
                # Samples of earlier inputs may leave later: what came before does not know where this stands.
                where = None if self._last is None else BehindLoss(partial(Cursor, self._mark()))
                out.losses.append(loss._replace(before=len(out.samples), origin=where))

    def _had_slot(self, number: int) -> None:
        ticket = self._tickets[number].ticket
        if ticket.count and (self._last is None or number > self._last.number):
            self._last = _Last(number, ticket.origin, ticket.inputs[-1])

    def _take(self, ticket: _Ticket, out: _Out) -> bool:
        """The next sample of `ticket`, or else what was lost, or its failure. True if it was a sample."""
        chunk = ticket.chunks[0]
        while chunk.losses and chunk.losses[0].before <= ticket.next:
            out.losses.append(chunk.losses.pop(0)._replace(before=len(out.samples)))
        took = ticket.next < len(chunk.samples)
        if took:
            place = chunk.places[ticket.next]
            out.samples.append(chunk.samples[ticket.next])
            out.places.append(place)
            ticket.after = steps_from(place, self._depth)
            ticket.next += 1
        if ticket.next >= len(chunk.samples) and not chunk.losses:
            if took and chunk.failure is not None:
                # The failure has a turn of its own, after the last sample.
                chunk.samples, chunk.places, ticket.next = [], (), 0
            else:
                out.failure = chunk.failure
                out.nbytes += chunk.nbytes
                out.emptied += 1
                ticket.next = 0
                ticket.chunks.popleft()
        return took

    def _mark(self) -> _Slots:
        assert self._last is not None
        last = self._last
        expected = dict(self._opened.values())
        slots: list[Held | None] = []
        for slot in (*range(self._turn, len(self._slots)), *range(self._turn)):
            number = self._slots[slot]
            if number is not None and number < 0:
                # A ticket that waits for its slot is new, unless a later one has had another slot before.
                number = self._queue.get(_reserved(number))
                number = None if number is None or number > last.number else number
            if number is None:
                slots.append(expected.get(slot))
            else:
                one = self._tickets[number]
                slots.append(Held(one.ticket.inputs[0], one.after) if one.ticket.count else None)
        return _Slots(self._key, self._epoch, tuple(slots), last)


def _reserved(place: int) -> int:
    """How a slot says that it waits for the ticket at a place of the queue; and the place, of what it says.

    >>> _reserved(3), _reserved(_reserved(3))
    (-4, 3)
    """
    return -1 - place


class _Out:
    """What one look at the slots has brought."""

    def __init__(self) -> None:
        self.samples: list[Any] = []
        self.places: list[Place] = []
        self.losses: list[Loss] = []
        self.marks: list[_Slots] = []
        self.failure: Any = None
        self.nbytes = 0
        #: chunks that have nothing left
        self.emptied = 0
