"""Where the tickets of a stage come from: positions of a source, or a stream. Pure, but for pulling it.

An inlet cuts tickets: `available` says how many samples it could give now, `cut` gives them,
`ended` says that no more will come. A stream is pulled by a worker, outside of any lock;
everything else is bookkeeping.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, ClassVar, NamedTuple

from penstock.core.redo import BEGINNING, Start, given
from penstock.errors import StateMismatch
from penstock.ops.op import Length
from penstock.program.chunk import ErrorRecord, Failure, Origin, Ticket
from penstock.program.failure import add_note
from penstock.program.sizing import TARGET_S
from penstock.provenance import Place, input_of
from penstock.resume.cursor import Cursor, FromRedo
from penstock.resume.schema import Edge, Front, InputState
from penstock.sources.source import StreamSource

__all__ = ["Inlet", "Part", "PositionInlet", "Pulled", "StreamInlet"]


#: a record that takes longer was waited for
_SWIFT_S = 25e-6
#: a source that has given so many records swiftly is asked for several at once
_TRUSTED = 32
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
class _Source:
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

    def after(self, position: int) -> _After:
        """The source when all before `position` has been taken."""
        return _After(
            self, self._round_end(position), [one for one in self.shards if one[1] <= position][-_SHARDS:]
        )

    def _round_end(self, position: int) -> int:
        """Where all ranks stand when this one stands at `position`, if they deliver in step."""
        done = position - self.first
        if self.round_size == 1 or done % self.block:
            return position
        rounds = (done // self.block - 1) // (self.round_size // self.block)
        return self.first + (rounds + 1) * self.round_size


class _After(NamedTuple):
    """A source that stands at a position."""

    source: _Source
    position: int
    shards: list[tuple[int, int]]

    def saved(self) -> Front:
        front = Front(at=self.position, shards=self.shards)
        if not self.source.batched:
            return front
        return Front(joint=self.source.batched, inputs=[InputState(self.source.epoch, Edge(front))])


class _FromSource(NamedTuple):
    """The origin of what is read of a source; `depth` ops of the stage make several samples of one."""

    source: _Source
    depth: int

    def cursor(self, place: Place) -> Cursor:
        return self.behind(input_of(place, self.depth)).partly(place, self.depth)

    def behind(self, of: Place) -> Cursor:
        last = of if isinstance(of, int) else of[-1]
        return Cursor(self.source.after(last + 1))


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
        self._source = _Source(epoch, batched, at)
        if part is not None and part.deals.keeps:
            self._source.round_size, self._source.block = part.round_size, part.deals.block
        redo = start.redo()
        self._redone: Origin = FromRedo(given(start.front), redo.owed, depth)
        self._read: Origin = _FromSource(self._source, depth)
        stop = _ENDLESS if length == math.inf else int(length or 0)
        _check_positions(redo.places, stop)
        if start.only_wanted:
            stop = 0
        #: ranges that are made again, and then those that are read
        self._redo_ranges = _runs_of(redo.places)
        self._ranges = iter((range(at, stop),)) if part is None else part.ranges(at, stop)
        #: the range that tickets are cut from, where that comes from, and how much is left of it
        self._now = range(0)
        self._origin: Origin = self._redone
        self._left = 0
        self._go_on()

    def _go_on(self) -> None:
        """Go on to the next range that is not empty."""
        while not self._left:
            found = next(self._redo_ranges, None)
            if found is None:
                found, self._origin = next(self._ranges, None), self._read
            if found is None:
                return
            self._now, self._left = found, len(found)

    def available(self, most: int) -> int:
        wanted, left = most * self.unit, self._left
        return wanted if wanted < left else left

    def share(self, workers: int, usual: int) -> int:
        left = self._left
        if workers == 1 or left > _MANY:
            return sys.maxsize
        return _shared(-(-left // self.unit), workers, usual)

    def cut(self, count: int) -> Ticket:
        origin = self._origin
        positions = self._now[:count]
        self._now = self._now[count:]
        self._left -= count
        redo = origin is self._redone
        ticket = Ticket(self.epoch, positions.start, positions.stop, positions.step, origin=origin, redo=redo)
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


def _runs_of(places: Sequence[Place]) -> Iterator[range]:
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


def _shared(left: int, workers: int, usual: int) -> int:
    """Half of an equal part, so that whoever is done early finds more; an equal part where that is little.

    A ticket of less than a quarter of the usual time is hardly worth another worker's waking up.
    """
    half = -(-left // (2 * workers))
    return half if 4 * half >= usual else max(min(usual // 4, -(-left // workers)), 1)


@dataclass(slots=True)
class Pulled:
    """What one turn at a stream has given."""

    records: list[Any] = field(default_factory=list)
    last: bool = False
    failure: Failure | None = None


class StreamInlet(Inlet):
    """Records of a stream, pulled by one worker at a time."""

    def __init__(
        self,
        source: StreamSource,
        epoch: int,
        start: Start = BEGINNING,
        order: Callable[[int], Sequence[int] | None] = lambda count: None,
        depth: int = 0,
    ) -> None:
        self.source = source
        self.epoch = epoch
        self.failure = None
        #: in which order so many parts are opened; None for their own
        self._order = order
        front = start.front
        #: all records from here on are owed; before it, those that are made again
        self._front = 0 if front is None or front.at is None else front.at
        redo = start.redo()
        #: what is made again, and what of it has been read: it is given out in the order in which it is owed
        self._places = redo.places
        self._redo = set(redo.places)
        self._kept: dict[int, Any] = {}
        self._stop = 0
        if start.only_wanted:
            self._stop = self._front = max(self._redo, default=-1) + 1
        #: where reading begins: at a part of which the first record is known
        lowest = min(self._redo, default=self._front)
        known = [] if front is None else [one for one in front.shards if one[1] <= lowest]
        self._first_shard, base = known[-1] if known else (0, 0)
        #: of a part whose beginning is not known it cannot be told how many records to leave out
        self._skip = lowest - base if known else 0
        self._source = _Source(epoch, shards=[(self._first_shard, base)])
        self._redone: Origin = FromRedo(given(front), redo.owed, depth)
        self._read_on: Origin = _FromSource(self._source, depth)
        #: a worker is pulling
        self.pulling = False
        self.position = base + self._skip
        #: records that wait, and the position of the first
        self._ready: deque[tuple[int, list[Any]]] = deque()
        self._count = 0
        self._records: Generator[Any, None, None] | None = None
        #: what the worker that pulls has read
        self._in_hand: list[Any] = []
        self._finished = bool(start.only_wanted and not self._redo)
        #: how far the source is trusted to give its next record at once
        self._swift = 0

    def available(self, most: int) -> int:
        return min(len(self._ready[0][1]), most) if self._ready else 0

    def share(self, workers: int, usual: int) -> int:
        return sys.maxsize if workers == 1 else _shared(self._count, workers, usual)

    def cut(self, count: int) -> Ticket:
        first, records = self._ready.popleft()
        if len(records) > count:
            self._ready.appendleft((first + count, records[count:]))
            records = records[:count]
        self._count -= len(records)
        places = range(first, first + len(records))
        origin = self._redone if first < self._front else self._read_on
        redo = origin is self._redone
        return Ticket(self.epoch, samples=records, places=places, origin=origin, redo=redo)

    @property
    def ended(self) -> bool:
        return self._finished and not self._count

    @property
    def wants_pull(self) -> bool:  # type: ignore[override]
        return not self.pulling and not self._finished and not self._count

    def pull(self, most: int, worker_name: str) -> Pulled:
        """Read up to `most` records, for about a millisecond. Called outside the lock, by one at a time."""
        if self._swift < _TRUSTED:
            most = 1
        pulled = Pulled()
        records = self._in_hand = pulled.records
        began = last = perf_counter()
        try:
            if self._records is None:
                self._records = self._read()
            for record in self._records:
                records.append(record)
                now = perf_counter()
                if not self._judge(now - last) or len(records) >= most or now - began > TARGET_S:
                    break
                last = now
            else:
                pulled.last = True
        except BaseException as exc:
            position = self.position + len(records)
            add_note(exc, self.source.label, "", position, worker_name)
            pulled.failure = Failure(exc, ErrorRecord(self.source.label, position, self.epoch, exc, position))
            pulled.last = True
        return pulled

    def _judge(self, seconds: float) -> bool:
        """Whether the source gave a record without making us wait.

        Several records are pulled at once only from a source that does so again and again: what
        one has given must not wait in a worker's hands for what it has not.
        """
        if seconds < _SWIFT_S:
            self._swift = min(self._swift + 1, 8 * _TRUSTED)
            return True
        self._swift //= 2
        return False

    def _read(self) -> Generator[Any, None, None]:
        shards = self.source.shards()
        order = self._order(len(shards))
        skip = self._skip
        for number in range(self._first_shard, len(shards)):
            shard = shards[number if order is None else order[number]]
            if number > self._first_shard:
                self._source.shards.append((number, self.position + len(self._in_hand)))
            yield from self.source.open(shard, skip)
            skip = 0

    def pulled(self, pulled: Pulled) -> None:
        """What `pull` has read becomes available."""
        first, records = self.position, pulled.records
        self.position = stop = first + len(records)
        self.failure = pulled.failure
        self._finished = pulled.last or bool(self._stop and stop >= self._stop)
        if self._places:
            self._keep(first, records)
        rest = range(max(first, self._front), stop)
        if rest and not self._stop:
            self._make_ready(rest, records[rest.start - first :])

    def _keep(self, first: int, records: list[Any]) -> None:
        """Keep what is made again until all of it has been read."""
        for position in range(first, min(first + len(records), self._front)):
            if position in self._redo:
                self._kept[position] = records[position - first]
        if self.position >= self._front or self._finished:
            for run in _runs_of([place for place in self._places if place in self._kept]):
                self._make_ready(run, [self._kept[position] for position in run])
            self._places, self._kept = [], {}

    def _make_ready(self, positions: range, records: list[Any]) -> None:
        self._ready.append((positions.start, records))
        self._count += len(positions)

    def close(self) -> None:
        """Close the stream's iterator, unless a worker has it in hand: it then closes it itself."""
        records = self._records
        if records is not None and not self.pulling:
            self._records = None
            records.close()
