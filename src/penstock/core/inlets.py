"""Where the tickets of a stage come from: the contract, and the positions of an indexed source. Pure.

An inlet cuts tickets: `available` says how many samples it could give now, `cut` gives them,
`ended` says that no more will come. A stream is pulled by a worker, outside of any lock;
everything else is bookkeeping.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from penstock.core.redo import BEGINNING, Start, given
from penstock.errors import StateMismatch
from penstock.ops.joint import Length
from penstock.program.chunk import Failure, Origin, Ticket
from penstock.program.sizing import shared
from penstock.provenance import Place, input_of
from penstock.resume.cursor import Cursor, FromRedo
from penstock.resume.schema import Edge, Front, InputState
from penstock.sources.source import Opening

#: with so many samples left, nobody has to share yet
_MANY = 1 << 40
#: positions of an epoch that never ends
_ENDLESS = 1 << 62
#: parts of a stream that a state names: what is owed of earlier ones is read from the beginning
_SHARDS = 32


class Inlet(ABC):
    """Cuts the tickets of one stage in one epoch. Only `pump`, `draw` and `cut` move samples."""

    epoch: int
    #: the upstream has ended in this, which still has to be passed on
    failure: Failure | None
    #: takes its samples from other stages, by `pump`
    pumps: ClassVar[bool] = False
    #: of a stream: it is time for a worker to read on, and one is reading
    wants_pull: bool = False
    pulling: bool = False

    @property
    def upstreams(self) -> list[Any]:
        """What it takes its samples from, if that is other stages."""
        return []

    @abstractmethod
    def available(self, most: int) -> int:
        """How many samples a ticket of at most `most` units could have now."""

    def share(self, workers: int, usual: int) -> int:
        """The most units that one of so many workers should take, so that the others get some too.

        `usual` is what a ticket has that takes its time.
        """
        return sys.maxsize

    def pump(self, most: int) -> None:
        """Take in what the stages before have made, until a ticket of `most` units could be cut."""

    def draw(self, most: int) -> None:
        """Choose what goes into the next ticket, of at most `most` units, where that is done at the last moment."""

    def drawable(self) -> bool:
        """Whether `draw` would find something."""
        return False

    @property
    def lacks(self) -> str:
        """What it waits for, in words, if it knows."""
        return ""

    def needs(self, upstream: Any) -> int:
        """How many samples of a stage before this one are lacking for the next ticket; none if others are."""
        return 0

    @abstractmethod
    def cut(self, count: int) -> Ticket:
        """A ticket with the next `count` samples."""

    @property
    def fills(self) -> bool:
        """More samples may come than are here now."""
        return False

    @property
    @abstractmethod
    def ended(self) -> bool:
        """No ticket will be cut any more."""

    @property
    def has_tail(self) -> bool:
        """There is something left to be passed on after the last sample."""
        return self.failure is not None

    def tail(self) -> Ticket:
        """A last ticket with what is left to be passed on."""
        ticket = Ticket(self.epoch, samples=[], failure=self.failure)
        self.failure = None
        return ticket

    @property
    def burdened(self) -> bool:
        """Samples were lost and none waits behind them: that is reported without waiting for one."""
        return False

    def unburden(self) -> Ticket:
        """A ticket with what was lost, and no samples."""
        return self.tail()

    @property
    def sample_bytes(self) -> int:
        """About what a sample weighs that waits here, if that is counted."""
        return 0

    def release(self) -> None:
        """Give back what the samples that wait here take of the budget."""

    def close(self) -> None:
        """Let go of whatever is open."""


@dataclass(slots=True)
class SourceFeed:
    """A source, as the feed of an edge."""

    epoch: int
    #: the batch op, where workers make the batches: saved as the joint that it is elsewhere
    batched: str = ""
    #: where positions are dealt to ranks in step: from where, how many go to all of them in one round, and to one
    first: int = 0
    round_size: int = 1
    block: int = 1
    #: the parts of a stream that have been opened: number, and position of the first record
    shards: list[tuple[int, int]] = field(default_factory=list)
    #: of a stream: what else it wants to have saved
    opening: Opening | None = None

    def after(self, position: int) -> _After:
        """The source when all before `position` has been taken."""
        shards = [one for one in self.shards if one[1] <= position][-_SHARDS:]
        return _After(self, self._round_end(position), shards)

    def _round_end(self, position: int) -> int:
        """Where all ranks stand when this one stands at `position`, if they deliver in step."""
        done = position - self.first
        if self.round_size == 1 or done % self.block:
            return position
        rounds = (done // self.block - 1) // (self.round_size // self.block)
        return self.first + (rounds + 1) * self.round_size


class _After(NamedTuple):
    """A source that stands at a position."""

    source: SourceFeed
    position: int
    shards: list[tuple[int, int]]

    def saved(self) -> Front:
        opening = self.source.opening
        own = None if opening is None else opening.saved(self.position)
        front = Front(at=self.position, shards=self.shards, own=own)
        if not self.source.batched:
            return front
        return Front(joint=self.source.batched, inputs=[InputState(self.source.epoch, Edge(front))])


class FromSource(NamedTuple):
    """The origin of what is read of a source; `depth` ops of the stage make several samples of one."""

    source: SourceFeed
    depth: int

    def cursor(self, place: Place) -> Cursor:
        return self.behind(input_of(place, self.depth)).partly(place, self.depth)

    def behind(self, of: Place) -> Cursor:
        last = of if isinstance(of, int) else of[-1]
        return Cursor(self.source.after(last + 1))

    def lost_input(self, place: Place, steps: int) -> Place:
        return input_of(place, steps)


class PositionInlet(Inlet):
    """Positions of an indexed source, in whole units: all of them, or the part of one rank."""

    def __init__(
        self,
        epoch: int,
        length: Length,
        unit: int,
        *,
        batched: str = "",
        start: Start = BEGINNING,
        part: Part | None = None,
        depth: int = 0,
    ) -> None:
        self.epoch = epoch
        self.unit = unit
        self.failure = None
        front = start.front
        if batched and front is not None and front.inputs and front.inputs[0] is not None:
            inner = front.inputs[0].edge
            front = None if inner is None else inner.front
        at = 0 if front is None or front.at is None else front.at
        self._source = SourceFeed(epoch, batched, at)
        if part is not None and part.deals.keeps:
            self._source.round_size, self._source.block = part.round_size, part.deals.block
        redo = start.redo()
        self._redone: Origin = FromRedo(given(start.front), redo.owed, depth)
        self._read: Origin = FromSource(self._source, depth)
        stop = _ENDLESS if length == math.inf else int(length or 0)
        _check_positions(redo.places, stop)
        if start.only_wanted:
            stop = 0
        #: ranges that are made again, and then those that are read
        self._redo_ranges = runs_of(redo.places)
        self._ranges = iter((range(at, stop),)) if part is None else part.ranges(at, stop)
        #: what tickets are cut from: the next position, the distance to the one after it, how many are left
        self._next, self._step, self._left = 0, 1, 0
        self._origin: Origin = self._redone
        self._go_on()

    def _go_on(self) -> None:
        """Go on to the next range that is not empty."""
        while not self._left:
            found = next(self._redo_ranges, None)
            if found is None:
                found, self._origin = next(self._ranges, None), self._read
            if found is None:
                return
            self._next, self._step, self._left = found.start, found.step, len(found)

    def available(self, most: int) -> int:
        wanted, left = most * self.unit, self._left
        return wanted if wanted < left else left

    def share(self, workers: int, usual: int) -> int:
        left = self._left
        if workers == 1 or left > _MANY:
            return sys.maxsize
        return shared(-(-left // self.unit), workers, usual)

    def cut(self, count: int) -> Ticket:
        origin, first, step = self._origin, self._next, self._step
        self._next = last = first + count * step
        self._left -= count
        ticket = Ticket(self.epoch, first, last, step, origin=origin, redo=origin is self._redone)
        if not self._left:
            self._go_on()
        return ticket

    @property
    def ended(self) -> bool:
        return not self._left


def _check_positions(places: Sequence[Place], stop: int) -> None:
    """Refuse what is no position of a source, or no group of positions: it was read from a damaged state."""
    for place in places:
        ends = (
            (place,) if type(place) is int else (place[0], place[-1]) if isinstance(place, range) and place else ()
        )
        if not ends or not all(0 <= one < stop for one in ends):
            raise StateMismatch(f"the state is damaged: {place!r} is no sample of a source with {stop}")


def runs_of(places: Sequence[Place]) -> Iterator[range]:
    """Positions as runs of consecutive ones; groups of them, which are ranges, as they are."""
    run = range(0)
    for place in places:
        if not isinstance(place, int):
            if run:
                yield run
            run = range(0)
            yield place
        elif run and place == run.stop:
            run = range(run.start, place + 1)
        else:
            if run:
                yield run
            run = range(place, place + 1)
    if run:
        yield run


class Part:
    """The part of the positions that one rank gets, dealt in blocks from `base` on, as far as `until`.

    >>> from penstock.ops.shard import Portion
    >>> part = Part(Portion(1, 2, block=3, equal="drop"), 0)
    >>> list(part.ranges(0, 14)), list(part.ranges(4, 14))
    ([range(3, 6), range(9, 12)], [range(4, 6), range(9, 12)])
    """

    def __init__(self, deals: Any, base: int, until: int | None = None) -> None:
        self.deals = deals
        self.base = base
        self.until = until

    @property
    def round_size(self) -> int:
        """How many positions all ranks get in one round."""
        size: int = self.deals.block * self.deals.world
        return size

    def ranges(self, first: int, n: int) -> Iterator[range]:
        """The rank's positions from `first` on, of `n` in all."""
        deals, base = self.deals, self.base
        stop = int(deals.stop(n, base))
        if self.until is not None:
            stop = min(stop, self.until)
        offset = base + deals.rank * deals.block
        number = max(0, (first - offset) // self.round_size)
        if deals.block == 1:
            start = offset + number * self.round_size
            yield range(start if start >= first else start + self.round_size, stop, self.round_size)
            return
        for start in range(offset + number * self.round_size, stop, self.round_size):
            block = range(max(start, first), min(start + deals.block, stop))
            if block:
                yield block
