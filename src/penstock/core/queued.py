"""Tickets of samples that other stages have made: what waits for a worker, and how it is cut. Pure.

`QueuedInlet` is that queue. `StraightInlet` fills it with the samples of one stage as they come; `gather` does so
through a joint. Where workers make the batches of samples that come straight, tickets are whole batches.
"""

from __future__ import annotations

from typing import Any

from penstock.core.budget import Budget
from penstock.core.feeder import Upstream
from penstock.core.inlets import Inlet
from penstock.core.queue import Queue
from penstock.program.chunk import Chunk, CountVaried, Failure, Ticket
from penstock.provenance import root
from penstock.resume.cursor import FromParts


class QueuedInlet(Inlet):
    """Samples of other stages that wait for a worker."""

    pumps = True

    def __init__(self, epoch: int, budget: Budget, *, unit: int = 1, depth: int = 0, edge_depth: int) -> None:
        self.epoch = epoch
        self.failure = None
        self.budget = budget
        #: bytes of the samples that wait here
        self.held_bytes = 0
        self._passed = Queue()
        self._finished = False
        #: samples per unit of a ticket: those of a batch, where the workers make the batches
        self._unit = unit
        #: ops of the stage that make several samples of one, and ops since the source or joint that do
        self._depth = depth
        self._edge_depth = edge_depth

    @property
    def _here(self) -> int:
        """How many samples wait here."""
        return self._passed.count

    def _count_in(self, chunk: Chunk) -> None:
        self.held_bytes += chunk.nbytes
        self.budget.take(chunk.nbytes)

    def available(self, most: int) -> int:
        here, together = self._passed.alike, self._passed.in_row
        if here > together and 4 * together >= most:
            here = together  # they need not be copied into another list
        return min(here, most)

    def _weight(self, count: int) -> int:
        """What `count` samples take of the budget that leave in a ticket."""
        return self.held_bytes * count // self._here

    def cut(self, count: int) -> Ticket:
        nbytes = self._weight(count)
        self.held_bytes -= nbytes
        passed = self._passed
        passed.begin_step()
        samples, places = passed.take(count)
        return Ticket(
            self.epoch,
            samples=samples,
            places=places,
            losses=passed.passed,
            nbytes=nbytes,
            origin=FromParts(places, passed.came, self._depth, self._edge_depth, grouped=self._unit > 1),
            redo=passed.redone,
        )

    @property
    def burdened(self) -> bool:
        return self._passed.lost > 0 and not self._passed.count

    def unburden(self) -> Ticket:
        return Ticket(self.epoch, samples=[], losses=self._passed.leading())

    @property
    def has_tail(self) -> bool:
        return self.failure is not None or self._passed.lost > 0

    def tail(self) -> Ticket:
        ticket = Ticket(self.epoch, samples=[], failure=self.failure, losses=self._passed.leading())
        self.failure = None
        return ticket

    @property
    def sample_bytes(self) -> int:
        here = self._here
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


class StraightInlet(QueuedInlet):
    """Samples of one stage, as they come."""

    def __init__(self, epoch: int, upstream: Upstream, budget: Budget, **known: int) -> None:
        super().__init__(epoch, budget, **known)
        self.upstream = upstream
        #: the stream has broken off: what has come of a batch that is not full is not delivered
        self._broken_off = False

    @property
    def upstreams(self) -> list[Any]:
        return [self.upstream]

    def available(self, most: int) -> int:
        unit = self._unit
        if unit == 1:
            return super().available(most)
        here, most = self._passed.count, most * unit
        if here >= most:
            return most
        # Only the last batch of an epoch may be short.
        return here if self._finished and not self._broken_off else here - here % unit

    @property
    def ended(self) -> bool:
        return self._finished and not self.available(1)

    def pump(self, most: int) -> None:
        most *= self._unit
        while self._passed.count < most and not self._finished:
            chunk = self.upstream.pop()
            if chunk is None:
                self._finished = self.upstream.over
                return
            self._take_in(chunk)

    def _take_in(self, chunk: Chunk) -> None:
        self._count_in(chunk)
        if self._unit > 1 and chunk.losses:
            chunk = self._up_to_loss(chunk)
        self._passed.add_chunk(chunk)
        if chunk.failure is not None:
            self.failure = chunk.failure
            self._finished = self._broken_off = True

    def _up_to_loss(self, chunk: Chunk) -> Chunk:
        """`chunk` up to its first loss, which leaves a hole in a batch. The plan had relied on there being none."""
        loss = chunk.losses[0]
        before = Chunk(chunk.samples[: loss.before], chunk.places[: loss.before], origin=chunk.origin)
        first, behind = loss.place, (self._passed.count + loss.before) % self._unit
        if behind:  # the batch begins with one of those that have come
            number = loss.before - behind
            first = before.places[number] if number >= 0 else self._passed.place_at(self._passed.count + number)
        before.failure = Failure(CountVaried(root(first)))
        return before

    def needs(self, upstream: Any) -> int:
        return 0 if self._finished else max(self._unit - self._passed.count, 0)
