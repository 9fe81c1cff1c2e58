"""Records of a stream, as tickets. One worker at a time pulls the stream, outside of any lock; the rest is pure."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from penstock.core.inlets import FromSource, Inlet, SourceFeed, runs_of
from penstock.core.redo import BEGINNING, Start, given
from penstock.program.chunk import ErrorRecord, Failure, Origin, Ticket
from penstock.program.failure import add_note
from penstock.program.sizing import TARGET_S, shared
from penstock.resume.cursor import FromRedo
from penstock.sources.source import Opening, StreamSource

#: a record that takes longer was waited for
_SWIFT_S = 25e-6
#: a source that has given so many records swiftly is asked for several at once
_TRUSTED = 32


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
        seed: int = 0,
        inline: bool = False,
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
        self._opening = Opening(epoch, seed, inline, None if front is None else front.own)
        self._source = SourceFeed(epoch, shards=[(self._first_shard, base)], opening=self._opening)
        self._redone: Origin = FromRedo(given(front), redo.owed, depth)
        self._read_on: Origin = FromSource(self._source, depth)
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
        return sys.maxsize if workers == 1 else shared(self._count, workers, usual)

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
        if self._opening.ready is None and self._swift < _TRUSTED:
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
                if not self._goes_on(now - last) or len(records) >= most or now - began > TARGET_S:
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

    def _goes_on(self, seconds: float) -> bool:
        """Whether to pull one more record, after one that took so long.

        Several records are pulled at once only from a source that says that it has another, or has given its
        records swiftly again and again: what it has given must not wait in a worker's hands for what it has not.
        """
        if self._opening.ready is not None:
            return self._opening.ready()
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
            yield from self.source.opened(shard, skip, self._opening)
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
            for run in runs_of([place for place in self._places if place in self._kept]):
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
        elif self._opening.stop is not None:
            self._opening.stop()
