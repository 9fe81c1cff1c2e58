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
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from penstock.ops.op import Length
from penstock.runtime.again import Again, Sieve
from penstock.runtime.chunk import ErrorRecord, Failure, Ticket
from penstock.runtime.failure import add_note
from penstock.runtime.marks import Leaf, Shard, Trace
from penstock.runtime.sizing import TARGET_S
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


class Inlet(ABC):
    """Cuts the tickets of one stage in one epoch."""

    epoch: int
    #: the upstream has ended in this, which still has to be passed on
    failure: Failure | None
    #: what was lost upstream since the last ticket
    losses: list[ErrorRecord]

    @abstractmethod
    def available(self, most: int) -> int:
        """How many samples a ticket could have now, counting no further than `most`."""

    def share(self, workers: int, usual: int) -> int:
        """The most units that one of so many workers should take, so that the others get some too.

        `usual` is what a ticket has that takes its time.
        """
        return sys.maxsize

    def glance(self, most: int) -> int:
        """Whether a ticket could be cut, for one who only looks. The samples may have to be drawn first."""
        return self.available(most)

    def refresh(self) -> None:
        """Take in what has come, even if no ticket is cut."""

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
        """There is something left to be told after the last sample."""
        return self.failure is not None or bool(self.losses)

    def tail(self) -> Ticket:
        """A last ticket with what is left to be told."""
        ticket = Ticket(self.epoch, samples=[], failure=self.failure, losses=self.losses)
        self.failure, self.losses = None, []
        return ticket

    @property
    def burdened(self) -> bool:
        """So much was lost, and no sample came, that it is to be told without waiting for one."""
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


class PositionInlet(Inlet):
    """Positions of an indexed source, in whole units: all of them, or the part of one rank."""

    def __init__(
        self,
        epoch: int,
        length: Length,
        unit: int,
        *,
        batched: str = "",
        start: int = 0,
        again: Again | None = None,
        part: Part | None = None,
    ) -> None:
        self.epoch = epoch
        self.unit = unit
        self.failure = None
        self.losses = []
        self._again = again
        #: where the inputs begin that `again` numbers
        self._base = start
        in_step = part is not None and part.deals.keeps
        self._leaf = Leaf(
            epoch,
            (),
            unit,
            batched,
            again,
            start,
            part.round_size if part is not None and in_step else 1,
            part.deals.block if part is not None and in_step else 1,
        )
        stop = _ENDLESS if length == math.inf else int(length or 0)
        #: what is still to be read, and the part of it that tickets are cut from
        self._ranges = self._to_come(start, stop, part)
        self._now = range(0)

    def _to_come(self, start: int, stop: int, part: Part | None) -> Iterator[range]:
        again, unit = self._again, self.unit
        first = start
        if again is not None:
            for run in again.wanted:
                # What is wanted of a part are single positions of it, so nothing has to be dealt again.
                yield range(start + run.start * unit, min(start + run.stop * unit, stop))
            first += again.next * unit
        if part is None:
            yield range(first, stop)
        else:
            yield from part.ranges(first, stop)

    def _left(self) -> int:
        """How much there is left of this range; goes on to the next one at its end."""
        while not self._now:
            found = next(self._ranges, None)
            if found is None:
                return 0
            self._now = found
        return len(self._now)

    def available(self, most: int) -> int:
        return min(most * self.unit, self._left())

    def share(self, workers: int, usual: int) -> int:
        left = self._left()
        if workers == 1 or left > _MANY:
            return sys.maxsize
        return _shared(-(-left // self.unit), workers, usual)

    def cut(self, count: int) -> Ticket:
        positions, self._now = self._now[:count], self._now[count:]
        grouped = bool(self._leaf.batched)
        trace = Trace(positions, ((0, self._leaf, 0),), self._sieves(positions), self.unit, grouped)
        return Ticket(self.epoch, positions.start, positions.stop, positions.step, trace=trace)

    def _sieves(self, positions: range) -> tuple[Sieve, ...]:
        if self._again is None:
            return ()
        unit = self.unit
        places: Sequence[Any] = positions
        if self._leaf.batched:
            places = [positions[at : at + unit] for at in range(0, len(positions), unit)]
        if positions.step == 1:
            return self._again.sieves((positions.start - self._base) // unit, places)
        out: tuple[Sieve, ...] = ()
        for position, place in zip(positions, places, strict=True):  # dealt one by one
            out += self._again.sieves(position - self._base, [place])
        return out

    @property
    def ended(self) -> bool:
        return not self._left()


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
        again: Again | None = None,
        order: Callable[[int], Sequence[int] | None] = lambda count: None,
    ) -> None:
        self.source = source
        self.epoch = epoch
        #: in which order so many parts are opened; None for their own
        self._order = order
        self._again = again
        #: where the inputs begin that `again` numbers
        self._base = again.position if again is not None else 0
        number, within = again.feed.get("shard", (0, 0)) if again is not None else (0, 0)
        #: the parts that have been opened
        self._shards = [Shard(number, self._base - within)]
        self.failure = None
        self.losses = []
        #: a worker is pulling
        self.pulling = False
        self.position = self._base
        #: records that wait, and the position of the first
        self._ready: deque[tuple[int, list[Any]]] = deque()
        self._count = 0
        self._records: Generator[Any, None, None] | None = None
        #: what the worker that pulls has read
        self._in_hand: list[Any] = []
        self._finished = False
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
        sieves = () if self._again is None else self._again.sieves(first - self._base, places)
        leaf = Leaf(self.epoch, self._shards_of(places), again=self._again, first=self._base)
        trace = Trace(places, ((0, leaf, 0),), sieves)
        return Ticket(self.epoch, samples=records, places=places, trace=trace)

    def _shards_of(self, places: range) -> tuple[Shard, ...]:
        """The parts that some records are in; those before them are not needed any more."""
        shards = self._shards
        while len(shards) > 1 and shards[1].start <= places.start:
            del shards[0]
        return tuple(shard for shard in shards if shard.start < places.stop)

    @property
    def ended(self) -> bool:
        return self._finished and not self._count

    @property
    def wants_pull(self) -> bool:
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
        (first,) = self._shards
        skip = self._base - first.start
        shards = self.source.shards()
        order = self._order(len(shards))
        for number in range(first.number, len(shards)):
            shard = shards[number if order is None else order[number]]
            if number > first.number:
                self._shards.append(Shard(number, self.position + len(self._in_hand)))
            yield from self.source.open(shard, skip)
            skip = 0

    def pulled(self, pulled: Pulled) -> None:
        """What `pull` has read becomes available."""
        first, records = self.position, pulled.records
        self.position = stop = first + len(records)
        if records:
            for run in self._wanted(range(first, stop)):
                self._ready.append((run.start, records[run.start - first : run.stop - first]))
                self._count += len(run)
        self.failure = pulled.failure
        self._finished = pulled.last

    def _wanted(self, positions: range) -> Iterable[range]:
        """Which of these records have not been delivered before a resume."""
        if self._again is None:
            return (positions,)
        base = self._base
        runs = self._again.runs(range(positions.start - base, positions.stop - base))
        return (range(run.start + base, run.stop + base) for run in runs)

    def close(self) -> None:
        """Close the stream's iterator, unless a worker has it in hand: it then closes it itself."""
        records = self._records
        if records is not None and not self.pulling:
            self._records = None
            records.close()
