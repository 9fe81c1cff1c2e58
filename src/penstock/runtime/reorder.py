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
from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.provenance import Place, key_of, steps_from
from penstock.resume.cursor import Cursor, Held, Unordered, saved_edge
from penstock.resume.places import plain_places
from penstock.resume.schema import Front, InputState
from penstock.runtime.chunk import Chunk, Loss, Ticket

__all__ = ["Alternating", "AsDone", "InOrder", "Outlet"]


class Outlet(ABC):
    """Where the chunks of a stage wait for what comes next."""

    def __init__(self) -> None:
        #: chunks that may leave now, and how many samples are in them
        self.ready: deque[Chunk] = deque()
        self.ready_samples = 0
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

    def sets_aside(self, number: int) -> bool:
        """Whether ticket `number` only makes samples again that a joint further on had kept."""
        return False

    def pop(self) -> Chunk | None:
        """The next chunk, if there is one."""
        if not self.ready:
            return None
        self.held -= 1
        chunk = self.ready.popleft()
        self.ready_samples -= len(chunk.samples)
        return chunk

    def _release(self, chunk: Chunk) -> None:
        if self.failed:
            self.held -= 1
            return
        self.failed = chunk.failure is not None
        self.ready.append(chunk)
        self.ready_samples += len(chunk.samples)


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


class AsDone(Outlet):
    """First come, first served; but what is made again after a resume comes in its order, before all else.

    What leaves first may have been issued last, so every chunk carries what of the others has left before it.
    """

    def __init__(self, depth: int = 0) -> None:
        super().__init__()
        self._depth = depth
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

    @property
    def head(self) -> int:
        return self._next

    def issued(self, number: int, ticket: Ticket) -> None:
        self._open[number] = _Leaving(ticket)
        if ticket.redo:
            self._redo.append(number)

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
        own = self._open[number]
        own.here -= 1
        if own.done and not own.here:
            self._left(number, own)
        if own.ticket.count:
            if number > self._high:
                self._high, self._high_ticket = number, own.ticket
            others = tuple(
                (one.ticket.inputs, one.last)
                for other, one in self._open.items()
                if other != number and other <= self._high and one.ticket.count
            )
            chunk.origin = Unordered(own.ticket.inputs, others, self._high_ticket, self._depth)
            if chunk.samples:
                own.last = chunk.places[-1]
        return chunk


class _Leaving:
    """A ticket of which not all has left."""

    __slots__ = ("done", "here", "last", "ticket")

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket
        self.last: Place = None
        #: chunks of it that may leave
        self.here = 0
        self.done = False


#: in the place of a ticket's number: a new input, counted from here on; an open input that is lost
_NEW, _GONE = 1 << 50, -(1 << 50)


class _Turn:
    """One ticket among those that alternate: its samples not yet passed on."""

    def __init__(self) -> None:
        self.chunks: deque[Chunk] = deque()
        self.next = 0
        self.done = False


class _Taken(NamedTuple):
    """Right after a sample was passed on: its ticket, who has which turn, whose turn it is, the last ticket begun."""

    ticket: int
    turns: tuple[int, ...]
    turn: int
    number: int
    high: Ticket


class _Facts(NamedTuple):
    """What is the same for all samples of a chunk whose samples alternate."""

    key: str
    epoch: int
    depth: int
    #: by ticket: its input, and how far that had been taken before the chunk, if it was begun
    inputs: dict[int, Place]
    begun: dict[int, tuple[int, ...] | None]
    #: by ticket: how far an input that is made again was taken when the state was saved
    before: dict[int, tuple[int, ...] | None]


class _TurnsMark(NamedTuple):
    """Where inputs alternate: what a state says of their turns."""

    facts: _Facts
    taken: _Taken
    begun: dict[int, tuple[int, ...] | None]

    def saved(self) -> Front:
        facts, taken = self.facts, self.taken
        # Those up to the last that has been begun are made again; those after it are new.
        order = sorted(taken.turns)
        opened = [number for number in order if number <= taken.number or number in self.begun]
        own = {
            "open": plain_places([facts.inputs[number] for number in opened]),
            "after": [self.begun.get(number, facts.before.get(number)) for number in opened],
            "turns": [order.index(number) for number in taken.turns],
            "turn": taken.turn,
        }
        origin = taken.high.origin
        cursor = None if origin is None else origin.behind(taken.high.inputs[-1])
        return Front(joint=facts.key, own=own, inputs=[InputState(facts.epoch, saved_edge(cursor))])


class _Turns:
    """The origin of a chunk whose samples alternate between tickets of one input each."""

    __slots__ = ("_facts", "_places", "_taken")

    def __init__(self, places: Sequence[Place], taken: Sequence[_Taken], facts: _Facts) -> None:
        self._places = places
        self._taken = taken
        self._facts = facts

    def behind(self, of: Place) -> Cursor:
        raise AssertionError("asked of the tickets of a stage, never of what it made")

    def cursor(self, place: Place) -> Cursor:
        number = self._places.index(place)
        begun = dict(self._facts.begun)
        for taken, one in zip(self._taken[: number + 1], self._places, strict=False):
            begun[taken.ticket] = steps_from(one, self._facts.depth)
        return Cursor(_TurnsMark(self._facts, self._taken[number], begun))


class Alternating(Outlet):
    """One sample from each of `width` tickets in turn; a ticket that has ended makes room for the next.

    When the stream is resumed, the first tickets only make samples again that a joint further on had kept. Then come
    those of the inputs that were open, each with the turn it had; one that is lost makes room as if it had ended.
    """

    def __init__(self, width: int, key: str = "", epoch: int = 0, depth: int = 1) -> None:
        super().__init__()
        self._key = key
        self._epoch = epoch
        self._depth = depth
        self._tickets: dict[int, _Turn] = {}
        #: whose turns these are: tickets by number, or minus the number of an open input that has not come yet
        self._turns = list(range(width))
        self._turn = 0
        #: the number that the next input to get a turn has, or will have
        self._next_ticket = width
        self._stop: int | None = None
        #: `_turns` as it is now, once it has been asked for
        self._snapshot: tuple[int, ...] | None = None
        #: of the tickets that have, or wait for, a turn
        self._inputs: dict[int, Ticket] = {}
        #: how far the input of each ticket has been taken, if it was begun
        self._begun: dict[int, tuple[int, ...] | None] = {}
        #: what was lost before the input of a ticket, as long as no later one has had a turn
        self._lost: dict[int, list[Loss]] = {}
        #: the last ticket that has been begun
        self._high = -1
        self._high_ticket: Ticket | None = None
        #: what is to be made again, in its order: its place, and the open input that it is, if it is one
        self._expected: deque[tuple[Any, int | None]] = deque()
        self._opened: Sequence[Held] = ()
        #: tickets that only make samples again: these have no turn
        self._aside: set[int] = set()
        self._redo: deque[int] = deque()
        #: how far inputs that are made again were taken, by place, and by the ticket that has come for them
        self._after: dict[Any, tuple[int, ...]] = {}
        self._before: dict[int, tuple[int, ...] | None] = {}

    def resume(
        self,
        first: Sequence[Place],
        opened: Sequence[Held],
        turns: Sequence[int],
        turn: int,
        owed: Sequence[Held] = (),
    ) -> None:
        """Go on where others have stopped: what is made again `first`, the open inputs, and who has which turn.

        Those `owed` come then, each for a turn of its own.
        """
        self._after = {key_of(one.place): one.after for one in owed if one.after is not None}
        self._expected.extend((key_of(place), None) for place in first)
        self._expected.extend((key_of(one.place), number) for number, one in enumerate(opened))
        self._opened = opened
        if turns:
            self._turns = [-1 - number if number < len(opened) else _NEW + number - len(opened) for number in turns]
            self._turn = turn % len(turns)
        else:
            self._turns = [_NEW + number for number in self._turns]
        self._next_ticket = len(self._turns) - len(opened)
        self._offset = None
        if not self._expected:
            self._settle_numbers(0)

    #: the number of the first ticket of a new input; None as long as it is not known
    _offset: int | None = 0

    def sets_aside(self, number: int) -> bool:
        return number in self._aside

    def issued(self, number: int, ticket: Ticket) -> None:
        if self._offset is None:
            self._recognise(number, ticket)
        if ticket.count and number not in self._aside:
            self._inputs[number] = ticket
            if ticket.redo and self._after:
                self._before[number] = self._after.get(key_of(ticket.inputs[0]))
        if ticket.losses:
            # Who gets which turn depends on how many came before, so this leaves before the first it matters to.
            self._lost.setdefault(number, []).extend(ticket.losses)
            ticket.losses = []

    def _recognise(self, number: int, ticket: Ticket) -> None:
        """Find out which of the expected inputs a ticket is of; those before it have been lost."""
        key = key_of(ticket.inputs[0]) if ticket.count else None
        known = ticket.redo and any(one[0] == key for one in self._expected)
        while self._expected:
            expected, opened = self._expected.popleft()
            if known and expected == key:
                if opened is None:
                    self._aside.add(number)
                    self._redo.append(number)
                else:
                    self._turns[self._turns.index(-1 - opened)] = number
                    self._begun[number] = self._opened[opened].after
                    self._snapshot = None
                break
            if opened is not None:
                self._turns[self._turns.index(-1 - opened)] = _GONE
        else:
            known = False
        if not self._expected:
            self._settle_numbers(number + 1 if known else number)

    def _settle_numbers(self, offset: int) -> None:
        """All that was to come again has come, or is lost: the next ticket is the first of a new input."""
        self._offset = offset
        turns = [number - _NEW + offset if number >= _NEW else number for number in self._turns]
        self._next_ticket += offset
        for at, number in enumerate(turns):
            if number < 0:
                # An open input that is lost makes room as if it had ended.
                turns[at] = self._next_ticket
                self._next_ticket += 1
        self._turns, self._snapshot = turns, None

    def lost_before(self, number: int, losses: list[Loss]) -> None:
        """These were lost before the input of the next ticket, which is going to be number `number`."""
        self._lost.setdefault(number, []).extend(losses)
        self._advance()

    @property
    def head(self) -> int:
        if self._redo:
            return self._redo[0]
        return self._turns[self._turn] if self._offset is not None else 1 << 60

    def put(self, number: int, chunk: Chunk) -> None:
        self.held += 1
        self._tickets.setdefault(number, _Turn()).chunks.append(chunk)
        self._advance()

    def done(self, number: int) -> None:
        self._tickets.setdefault(number, _Turn()).done = True
        self._advance()

    def _let_out_redo(self) -> bool:
        """Pass on what was only made again, in its order. False while some of it has yet to come."""
        while self._redo:
            ticket = self._tickets.get(self._redo[0])
            while ticket is not None and ticket.chunks:
                self._release(ticket.chunks.popleft())
            if ticket is None or not ticket.done:
                return False
            del self._tickets[self._redo.popleft()]
        return self._offset is not None

    def _advance(self) -> None:
        if not self._let_out_redo():
            return
        samples: list[Any] = []
        places: list[Place] = []
        taken: list[_Taken] = []
        losses: list[Loss] = []
        inputs = {number: ticket.inputs[0] for number, ticket in self._inputs.items()}
        facts = _Facts(self._key, self._epoch, self._depth, inputs, dict(self._begun), self._before)
        emptied = nbytes = 0
        failure = None
        while failure is None:
            losses += [loss._replace(before=len(samples)) for loss in self._lost_before()]
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
            while chunk.losses and chunk.losses[0].before <= ticket.next:
                losses.append(chunk.losses.pop(0)._replace(before=len(samples)))
            took = ticket.next < len(chunk.samples)
            if took:
                samples.append(chunk.samples[ticket.next])
                places.append(chunk.places[ticket.next])
                number = self.head
                self._begun[number] = steps_from(places[-1], self._depth)
                ticket.next += 1
            if ticket.next >= len(chunk.samples) and not chunk.losses:
                if took and chunk.failure is not None:
                    # The failure has a turn of its own, after the last sample.
                    chunk.samples, chunk.places, ticket.next = [], (), 0
                else:
                    failure = chunk.failure
                    nbytes += chunk.nbytes
                    emptied += 1
                    ticket.next = 0
                    ticket.chunks.popleft()
            if not took:
                continue
            self._begun_with(number)
            self._turn = (self._turn + 1) % len(self._turns)
            if self._snapshot is None:
                self._snapshot = tuple(self._turns)
            assert self._high_ticket is not None
            taken.append(_Taken(number, self._snapshot, self._turn, self._high, self._high_ticket))
        self.held -= emptied
        if samples or losses or failure is not None:
            self.held += 1
            origin = _Turns(places, taken, facts)
            self._release(Chunk(samples, places, failure, losses, nbytes, origin=origin))

    def _lost_before(self) -> list[Loss]:
        """What was lost before the input of the ticket whose turn it is, and has not left."""
        if not self._lost:
            return []
        numbers = [number for number in self._lost if number <= self.head]
        return [one for number in sorted(numbers) for one in self._lost.pop(number)]

    def _begun_with(self, number: int) -> None:
        """Something of ticket `number` has left, or nothing will."""
        if number > self._high and number in self._inputs:
            self._high, self._high_ticket = number, self._inputs[number]

    def no_more(self, tickets: int) -> None:
        if self._stop is None:
            if self._offset is None:
                self._settle_numbers(tickets)
            self._stop = tickets
            self._advance()

    def _drop_turn(self) -> None:
        """There is no ticket left for this turn; the others go on without it."""
        self._snapshot = None
        del self._turns[self._turn]
        self._turn %= len(self._turns)

    def _replace(self) -> None:
        """The ticket whose turn it is has ended; the next one takes its turn."""
        number = self.head
        self._begun_with(number)
        del self._tickets[number]
        self._inputs.pop(number, None)
        self._begun.pop(number, None)
        self._snapshot = None
        self._turns[self._turn] = self._next_ticket
        self._next_ticket += 1
