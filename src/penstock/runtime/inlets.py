"""Where the tickets of a stage come from. Pure, but for pulling a stream.

An inlet cuts tickets: `available` says how many samples it could give now, `cut` gives them,
`ended` says that no more will come. A stream is pulled by a worker, outside of any lock;
everything else is bookkeeping.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from time import perf_counter
from typing import Any, Protocol

from penstock.errors import PlanError
from penstock.ops.op import Joint, Length
from penstock.provenance import Place, joined, last_root, root
from penstock.runtime.budget import Budget
from penstock.runtime.chunk import Chunk, ErrorRecord, Failure, Ticket
from penstock.runtime.failure import add_note
from penstock.runtime.sizing import TARGET_S
from penstock.sources.source import StreamSource

__all__ = ["Inlet", "JoinedInlet", "PositionInlet", "Pulled", "Queue", "StreamInlet", "Upstream"]


#: a record that takes longer was waited for
_SWIFT_S = 25e-6
#: a source that has given so many records swiftly is asked for several at once
_TRUSTED = 32
#: with so many samples left, nobody has to share yet
_MANY = 1 << 40


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
    def sample_bytes(self) -> int:
        """About what a sample weighs that waits here, if that is counted."""
        return 0

    def release(self) -> None:
        """Give back what the samples that wait here take of the budget."""

    def close(self) -> None:
        """Let go of whatever is open."""


class PositionInlet(Inlet):
    """Positions of an indexed source, in whole units."""

    def __init__(self, epoch: int, length: Length, start: int, unit: int) -> None:
        self.epoch = epoch
        self.next = start
        self.stop = length if length is not None else 0
        self.unit = unit
        self.failure = None
        self.losses = []

    def available(self, most: int) -> int:
        left = self.stop - self.next
        return int(min(most * self.unit, left))

    def share(self, workers: int, usual: int) -> int:
        left = self.stop - self.next
        if workers == 1 or left > _MANY:
            return sys.maxsize
        return _shared(-(-int(left) // self.unit), workers, usual)

    def cut(self, count: int) -> Ticket:
        first = self.next
        self.next = first + count
        return Ticket(self.epoch, first, self.next)

    @property
    def ended(self) -> bool:
        return self.next >= self.stop


def _shared(left: int, workers: int, usual: int) -> int:
    """Half of an equal part, so that whoever is done early finds more; an equal part where that is little.

    A ticket of less than a quarter of the usual time is hardly worth another worker's waking up.
    """
    half = -(-left // (2 * workers))
    return half if 4 * half >= usual else max(min(usual // 4, -(-left // workers)), 1)


class Upstream(Protocol):
    """What a joint's input is filled from."""

    def pop(self) -> Chunk | None:
        """The next chunk in the order of delivery, if it is there."""

    @property
    def over(self) -> bool:
        """No chunk will come any more."""

    def start(self, epoch: int) -> None:
        """Begin, or begin again, as epoch `epoch`."""


class Queue:
    """Samples in the order of delivery, with their places: an `Input` of a joint."""

    def __init__(self, upstream: Upstream | None = None) -> None:
        self.upstream = upstream
        self.count = 0
        self.ended = False
        self.epoch = -1
        self.taken = 0
        self.failure: Failure | None = None
        self._parts: deque[tuple[list[Any], Sequence[Place]]] = deque()
        #: where the first part begins, as far as it has not been taken
        self._first = 0

    def add(self, samples: list[Any], places: Sequence[Place]) -> None:
        if samples:
            self._parts.append((samples, places))
            self.count += len(samples)

    def take(self, most: int) -> tuple[list[Any], Sequence[Place]]:
        if most <= 0 or not self.count:
            return [], ()
        taken: list[tuple[list[Any], Sequence[Place]]] = []
        left = most
        while left and self._parts:
            samples, places = self._parts[0]
            first, stop = self._first, min(self._first + left, len(samples))
            left -= stop - first
            if stop == len(samples):
                self._parts.popleft()
                self._first = 0
            else:
                self._first = stop
            whole = first == 0 and stop == len(samples)
            taken.append((samples, places) if whole else (samples[first:stop], places[first:stop]))
        self.count -= most - left
        self.taken += most - left
        if len(taken) == 1:
            return taken[0]
        return list(chain.from_iterable(part[0] for part in taken)), joined([part[1] for part in taken])

    def renew(self, epoch: int) -> None:
        assert self.upstream is not None
        if epoch <= self.epoch:
            self.taken = 0
        self._parts.clear()
        self._first = 0
        self.count = 0
        self.ended = False
        self.failure = None
        self.epoch = epoch
        self.upstream.start(epoch)


class JoinedInlet(Inlet):
    """Chunks of other stages, through a joint. Without one, samples pass as they come."""

    def __init__(self, epoch: int, joint: Joint | None, queues: list[Queue], budget: Budget | None = None) -> None:
        self.budget = budget or Budget(None)
        #: bytes of the samples that wait here
        self.held_bytes = 0
        self.epoch = epoch
        self.joint = joint
        self.queues = queues
        self.failure = None
        self.losses = []
        self._passed = Queue()
        self._finished = False

    def available(self, most: int) -> int:
        while self._passed.count < most and not self._finished and self._step(most - self._passed.count):
            pass
        return min(self._passed.count, most)

    def _step(self, most: int) -> bool:
        """Move samples towards the stage; False when nothing moved."""
        if self.joint is None:
            return self._pass_on()
        samples, places = self.joint.step(self.queues, most)
        self._passed.add(samples, places)
        self._finished = self.joint.ended
        if samples or self._finished:
            return True
        allowed = self.budget.allowed
        if self.joint.hoards and allowed is not None and self.held_bytes > allowed and self.queues[0].count > 1:
            self._overflow(self.joint.hoards, allowed)
            return True
        moved = False
        for number in self.joint.lacking(self.queues):
            queue = self.queues[number]
            if queue.failure is not None:
                self.failure = queue.failure
                self._finished = True
                return True
            moved = self._fill(queue, queue) or moved
        return moved

    def _overflow(self, hoards: str, allowed: int) -> None:
        held = sum(queue.count for queue in self.queues)
        exc = PlanError(
            f"{hoards} holds {self.held_bytes:,} bytes after {held} samples, more than memory={allowed:,}; "
            "make it smaller, or allow more"
        )
        self.failure = Failure(exc)
        self._finished = True

    def _pass_on(self) -> bool:
        (queue,) = self.queues
        moved = self._fill(queue, self._passed)
        if queue.ended or queue.failure is not None:
            self.failure = queue.failure
            self._finished = True
        return moved

    def _fill(self, queue: Queue, into: Queue) -> bool:
        upstream = queue.upstream
        assert upstream is not None
        chunk = upstream.pop()
        if chunk is None:
            was, queue.ended = queue.ended, upstream.over
            return queue.ended and not was
        into.add(chunk.samples, chunk.places)
        self.held_bytes += chunk.nbytes
        self.budget.take(chunk.nbytes)
        self.losses += chunk.losses
        queue.failure = chunk.failure
        return True

    def cut(self, count: int) -> Ticket:
        here = self._passed.count + sum(queue.count for queue in self.queues)
        nbytes = self.held_bytes * count // here
        self.held_bytes -= nbytes
        samples, places = self._passed.take(count)
        losses = self._losses_before(places[-1]) if self.losses else []
        return Ticket(self.epoch, samples=samples, places=places, losses=losses, nbytes=nbytes)

    def _losses_before(self, place: Place) -> list[ErrorRecord]:
        """What was lost before the sample at `place`; what was lost behind it waits for its own turn."""
        stop = last_root(place) if len(self.queues) == 1 else None
        if stop is None:
            told, self.losses = self.losses, []
            return told
        told = [record for record in self.losses if root(record.place) < stop]
        self.losses = [record for record in self.losses if root(record.place) >= stop]
        return told

    @property
    def sample_bytes(self) -> int:
        here = self._passed.count + sum(queue.count for queue in self.queues)
        return self.held_bytes // here if here else 0

    @property
    def fills(self) -> bool:
        return not self._finished

    @property
    def ended(self) -> bool:
        return self._finished and not self._passed.count

    def release(self) -> None:
        self.budget.give_back(self.held_bytes)
        self.held_bytes = 0


@dataclass(slots=True)
class Pulled:
    """What one turn at a stream has given."""

    records: list[Any] = field(default_factory=list)
    last: bool = False
    failure: Failure | None = None


class StreamInlet(Inlet):
    """Records of a stream, pulled by one worker at a time."""

    def __init__(self, source: StreamSource, epoch: int) -> None:
        self.source = source
        self.epoch = epoch
        self.failure = None
        self.losses = []
        #: a worker is pulling
        self.pulling = False
        self.position = 0
        self._ready = Queue()
        self._records: Generator[Any, None, None] | None = None
        self._finished = False
        #: how far the source is trusted to give its next record at once
        self._swift = 0

    def available(self, most: int) -> int:
        return min(self._ready.count, most)

    def share(self, workers: int, usual: int) -> int:
        return sys.maxsize if workers == 1 else _shared(self._ready.count, workers, usual)

    def cut(self, count: int) -> Ticket:
        samples, places = self._ready.take(count)
        return Ticket(self.epoch, samples=samples, places=places)

    @property
    def ended(self) -> bool:
        return self._finished and not self._ready.count

    @property
    def wants_pull(self) -> bool:
        return not self.pulling and not self._finished and not self._ready.count

    def pull(self, most: int, worker_name: str) -> Pulled:
        """Read up to `most` records, for about a millisecond. Called outside the lock, by one at a time."""
        if self._swift < _TRUSTED:
            most = 1
        pulled = Pulled()
        records = pulled.records
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
        for shard in self.source.shards():
            yield from self.source.open(shard, 0)

    def pulled(self, pulled: Pulled) -> None:
        """What `pull` has read becomes available."""
        stop = self.position + len(pulled.records)
        self._ready.add(pulled.records, range(self.position, stop))
        self.position = stop
        self.failure = pulled.failure
        self._finished = pulled.last

    def close(self) -> None:
        """Close the stream's iterator, unless a worker has it in hand: it then closes it itself."""
        records = self._records
        if records is not None and not self.pulling:
            self._records = None
            records.close()
