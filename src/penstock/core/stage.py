"""One stage at work in one epoch: which ticket is runnable, and what becomes of it. Pure: no thread.

The rule that keeps shared pools from ever locking up: a ticket is runnable only when its input is
there *and* room for its output is reserved. Workers wait for runnable tickets, never inside one.

Samples move when something happens, never when somebody looks. A worker hands in a chunk (`put`), a reader or the
next stage takes one (`pop`), a ticket is cut (`take`): after each of these the stage takes in what the stages
before it have made (`refill`), for one more ticket. `runnable` and `over` only look. One lock guards all of it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

from penstock.core.alternate import Alternating
from penstock.core.budget import estimated_bytes
from penstock.core.inlets import Inlet
from penstock.core.lane import Job, Lane, Pull
from penstock.core.losses import count_steps, take_losses
from penstock.core.outlets import AsDone, InOrder, Outlet
from penstock.core.redo import Intake, Resumed, turns_key
from penstock.core.room import Room
from penstock.core.stream import Pulled, StreamInlet
from penstock.program.chunk import Chunk, Ticket
from penstock.program.sizing import BLOCKS, BLOCKS_BYTES, CACHED_BYTES


class StageRun:
    """One stage in one epoch."""

    def __init__(
        self,
        run: Any,
        lane: Lane,
        inlet: Inlet,
        children: Callable[[], list[StageRun]],
        resumed: Resumed | None = None,
    ) -> None:
        #: the epoch it belongs to
        self.run = run
        self.lane = lane
        self.inlet = inlet
        #: the stages before this one, as they are now; and the one that takes what it makes, if that is a stage
        self.children = children
        self.parent: StageRun | None = None
        stage = lane.stage
        self.outlet: Outlet
        #: what passes of tickets that only make samples again, and of all others
        self._intakes: tuple[Intake, Intake] | None = None
        if resumed is not None and len(resumed.redo):
            self._intakes = resumed.intakes(stage.interleave > 1)
        if stage.interleave > 1:
            self.outlet = Alternating(stage.interleave, turns_key(stage.segment), inlet.epoch, stage.depth)
            if resumed is not None:
                first = resumed.redo.places[: resumed.redo.first]
                self.outlet.resume(first, resumed.opened, resumed.slots, resumed.redo.owed)
        else:
            self.outlet = InOrder() if stage.ordered else AsDone(stage.expands, stage.unit if stage.groups else 0)
        #: ops since the last joint or the source that make several samples of one
        self._depth = stage.depth
        self.cancelled = False
        self.issued = 0
        self.open = 0
        #: this epoch's part of what the lane counts
        self.expected = 0
        self.held_samples = 0
        self._held_bytes = 0
        #: tickets that were begun and are in nobody's hands, in their order
        self.paused: list[Job] = []
        self._room = Room(self)
        #: all tickets have been issued, the last one with what is left to be passed on
        self._tailed = False
        self._pulls = isinstance(inlet, StreamInlet)
        #: samples are being taken in from the stages before
        self._refilling = False
        #: nothing has to be done here when tickets come and go
        self.plain = not inlet.pumps and not self.outlet.follows
        #: whether tickets in hand count as made: in a stage that draws ahead, and in an epoch begun early
        self._draws = lane.draws
        #: one unit a ticket: batches of a longer one would all leave at once, and others be made beside them
        single = stage.interleave > 1 or stage.strict
        #: the most units of a ticket, where something other than its time limits it
        self._most = 1 if single else 1 << 30
        self._sized = single or stage.block_read or lane.remote or lane.draws or lane.budget.bounded
        #: small chunks that may leave together: a quarter of what is kept ready, where samples are not counted
        self._together = 1
        if self.outlet.joins and not (stage.groups or lane.budget.bounded) and lane.bound_samples is None:
            self._together = max(lane.bound_tickets // 4, 1)

    # ------------------------------------------------------------------ looking

    def runnable(self, worker: Any = None) -> bool:
        """Whether a worker could do something here now. Changes nothing."""
        lane = self.lane
        if self.cancelled or lane.in_flight - lane.guests >= lane.cap:
            return False
        if self.paused and self._room.resumable(worker) is not None:
            return True
        if self.outlet.failed or self._tailed:
            return False
        units = self._room.units()
        if not units:
            lane.idle_for(room=True)
            return False
        inlet = self.inlet
        found = bool(self._count(units)) or inlet.burdened or (inlet.ended and inlet.has_tail)
        found = found or (self._pulls and inlet.wants_pull) or (self._draws and inlet.drawable())
        if not found:
            lane.idle_for(room=False)
        return found

    @property
    def over(self) -> bool:
        """Nothing more will come out."""
        if self.outlet.ready:
            return False
        if self.cancelled or self.outlet.failed:
            return True
        return not self.open and (self._tailed or (self.inlet.ended and not self.inlet.has_tail))

    @property
    def exhausted(self) -> bool:
        """There is nothing left to be begun here or before, or to be gone on with."""
        return all(one.inlet.ended and not one.inlet.has_tail and not one.paused for one in self.walk())

    def _size(self, units: int) -> int:
        """How many units the next ticket may have, where there is room for `units`."""
        lane = self.lane
        size = lane.sizer.size
        if size > units:
            size = units
        if size > self._most:
            size = self._most
        if lane.stage.block_read:
            size = min(size, max(BLOCKS, int(BLOCKS_BYTES / max(lane.sizer.unit_bytes, 1))))
        if lane.unit_bytes:
            size = max(1, min(size, CACHED_BYTES // lane.unit_bytes))
        if lane.budget.bounded and (each := self.inlet.sample_bytes):
            size = max(1, min(size, lane.budget.portion // (each * lane.unit)))
        return size

    def _count(self, units: int) -> int:
        """How many samples a ticket would have now; 0 if none can be cut, or waiting for more is better."""
        lane, inlet = self.lane, self.inlet
        size = self._size(units) if self._sized else units
        count = inlet.available(size)
        if count > 1:
            count = min(count, inlet.share(lane.cap, lane.sizer.size) * lane.unit)
        if count and lane.remote and lane.in_flight and inlet.fills and 2 * count < size:
            return 0  # a journey for so few is not worth it: while another ticket is out, more will come
        return count

    # ------------------------------------------------------------------ taking

    def take(self, worker: Any = None, now: float = 0.0, guest: bool = False) -> Job | Pull | None:
        """Something for a worker (or a reader that helps) to do: a ticket, or a turn at the stream.

        `now` is when the worker became free, if that was a moment ago.
        """
        lane = self.lane
        if self.cancelled or (lane.guests > 0 if guest else lane.in_flight - lane.guests >= lane.cap):
            return None
        found = self._found(worker)
        if found is None:
            return None
        if now > lane.counters.last or not now:
            lane.advance(now or perf_counter())
        lane.in_flight += 1
        if guest and isinstance(found, Job):
            found.guest = True
            lane.guests += 1
        return found

    def _found(self, worker: Any) -> Job | Pull | None:
        lane, inlet = self.lane, self.inlet
        if self.paused and (job := self._room.resumable(worker)) is not None:
            self.paused.remove(job)
            return self._reserved(job)
        if self.outlet.failed or self._tailed:
            return None
        units = self._room.units()
        if not units:
            lane.idle_for(room=True)
            return None
        if self._draws:
            inlet.draw(self._size(units))
        count = self._count(units)
        if count:
            return self._begun(count)
        if inlet.burdened:
            job = self._issued(inlet.unburden(), 0)
            self.refill()
            return job
        if inlet.ended and inlet.has_tail:
            return self._tail()
        if self._pulls and inlet.wants_pull:
            inlet.pulling = True
            return Pull(self, self._size(units) * lane.cap)
        if self._draws and inlet.ended:
            self.fed()  # the last draw has ended the epoch
            self.run.engine.noticed()
        lane.idle_for(room=False)
        return None

    def take_ahead(self) -> Job | None:
        """A ticket to wait in a worker process behind the one it runs, if there are enough for all."""
        lane = self.lane
        if self.cancelled or self.paused or self.outlet.failed or self._tailed or lane.queued >= lane.in_flight:
            return None
        if lane.budget.bounded and not (lane.estimate.largest and lane.budget.admits(lane.estimate.largest)):
            return None  # one that waits cannot be held back any more, whatever the one before it takes
        units = self._room.units()
        size = min(units, lane.sizer.size)
        if not units or self.inlet.available(size * lane.cap) < size * lane.cap * lane.unit:
            return None
        count = self._count(units)
        if not count:
            return None
        job = self._begun(count)
        job.ahead = True
        lane.queued += 1
        return job

    def promoted(self, job: Job) -> None:
        """The ticket before it is done, so its worker process runs this one now."""
        self.lane.advance(perf_counter())
        self.lane.queued -= 1
        self.lane.in_flight += 1
        job.ahead = False

    def _begun(self, count: int) -> Job:
        """A ticket with the next `count` samples."""
        unit = self.lane.unit
        job = self._issued(self.inlet.cut(count), count if unit == 1 else -(-count // unit))
        if not self.plain:
            self.refill()
        return job

    def _issued(self, ticket: Ticket, units: int) -> Job:
        lane, outlet = self.lane, self.outlet
        number = self.issued
        job = Job(self, number, ticket, units)
        self.issued = number + 1
        self.open += 1
        lane.open += 1
        lane.expected += units
        self.expected += units
        if outlet.follows:
            held = outlet.held
            outlet.issued(number, ticket)
            lane.held += outlet.held - held
            if outlet.ready:
                self._released()
        return self._reserved(job) if lane.budget.bounded else job

    def _tail(self) -> Job:
        """A last ticket, with what is left to be passed on."""
        self._tailed = True
        job = self._issued(self.inlet.tail(), 0)
        self._no_more()
        return job

    def _no_more(self) -> None:
        """All tickets have been issued."""
        outlet = self.outlet
        if outlet.follows:
            held, ready = outlet.held, len(outlet.ready)
            outlet.no_more()
            self.lane.held += outlet.held - held
            if len(outlet.ready) > ready:
                self._released()

    def _released(self) -> None:
        """Something may leave although nothing was handed in: whoever takes it is told."""
        if self.parent is not None:
            self.parent.fed()
        self.run.engine.noticed()

    def _reserved(self, job: Job) -> Job:
        if self.lane.budget.bounded:
            job.reserved = self.lane.estimate.nbytes
            if self.lane.remote:
                job.reserved += job.ticket.nbytes  # its samples go to the process as a copy
            self.lane.budget.take(job.reserved)
        return job

    # ------------------------------------------------------------------ handing in

    def put(self, job: Job) -> None:
        """A worker hands in what it has made, and says whether the ticket is done."""
        lane, outlet = self.lane, self.outlet
        chunk, done = job.made, job.done
        job.made = None
        if job.ahead or job.guest:
            self._left(job)
        else:
            lane.in_flight -= 1
        if job.reserved:
            lane.budget.give_back(job.reserved)
            job.reserved = 0
        if self.cancelled:
            lane.budget.give_back(job.ticket.nbytes)
            return
        if self._depth and chunk is not None and chunk.losses:
            stage = lane.stage
            count_steps(chunk, job.ticket, stage.expands, self._depth - stage.expands)
        if chunk is not None and not job.ticket.losses and self._intakes is None:
            chunk.origin, chunk.redo = job.ticket.origin, job.ticket.redo
        elif chunk is not None or job.ticket.losses:
            chunk = self._placed(chunk, job, done)
        before = outlet.held
        if chunk is not None and (chunk.samples or chunk.losses or chunk.failure is not None):
            count = len(chunk.samples)
            self.held_samples += count
            lane.held_samples += count
            if chunk.nbytes:
                self._weigh(chunk.nbytes)
            if done:
                outlet.last(job.number, chunk)
            else:
                outlet.put(job.number, chunk)
            if outlet.held > lane.bound_tickets and outlet.held - len(outlet.ready) >= lane.bound_tickets:
                lane.late_estimate.add(chunk.nbytes or estimated_bytes(chunk.samples))
        elif done:
            outlet.done(job.number)
        if done:
            self.open -= 1
            lane.open -= 1
            lane.expected -= job.expected
            self.expected -= job.expected
            if job.ticket.nbytes:
                lane.budget.give_back(job.ticket.nbytes)
        else:
            insort(self.paused, job)
        lane.held += outlet.held - before
        if self.parent is not None or not self.plain:
            self.fed()

    def _placed(self, chunk: Chunk | None, job: Job, done: bool) -> Chunk | None:
        """`chunk` with its origin and the losses among its inputs, without what was delivered before a resume."""
        ticket = job.ticket
        if chunk is None:
            if not done:
                return None
            chunk = Chunk([], ())
        chunk.origin, chunk.redo = ticket.origin, ticket.redo
        if ticket.losses:
            take_losses(chunk, ticket, self.lane.depth, done)
        if self._intakes is not None:
            wanted, owed = self._intakes
            return (wanted if self.outlet.sets_aside(job.number) else owed).sift(chunk)
        return chunk

    def _left(self, job: Job) -> None:
        """The job is in nobody's hands any more."""
        if job.ahead:
            self.lane.queued -= 1
        else:
            self.lane.in_flight -= 1
        if job.guest:
            self.lane.guests -= 1
        job.guest = job.ahead = False

    def _weigh(self, weight: int) -> None:
        """So many bytes more wait to be taken (less, if negative)."""
        lane = self.lane
        self._held_bytes += weight
        lane.budget.take(weight)
        if weight > 0:
            lane.estimate.add(weight)

    def needs(self, job: Job, nbytes: int) -> None:
        """The chunk of a job is about to be written, and takes so much: known earlier than when it is handed in."""
        budget = self.lane.budget
        if budget.bounded and not self.cancelled and nbytes > job.reserved:
            budget.take(nbytes - job.reserved)
            job.reserved = nbytes

    def pulled(self, pulled: Pulled) -> None:
        """A worker has had its turn at the stream."""
        inlet = self.inlet
        assert isinstance(inlet, StreamInlet)
        self.lane.in_flight -= 1
        inlet.pulling = False
        if not self.cancelled:
            inlet.pulled(pulled)
            self.fed()

    def again(self, job: Job) -> None:
        """The job's worker is given up: its ticket waits for another, and begins anew."""
        self._left(job)
        self.lane.budget.give_back(job.reserved)
        if self.cancelled:
            self.lane.budget.give_back(job.ticket.nbytes)
            return
        fresh = Job(self, job.number, job.rest(), job.expected)
        fresh.progress = job.progress
        fresh.task = job.task
        insort(self.paused, fresh)

    def disowned(self, job: Job) -> None:
        """The process that a ticket was paused in has ended: another begins it anew."""
        job.owner = job.chunks = None
        job.ticket = job.rest()

    def untaken(self, job: Job | Pull) -> None:
        """There was nobody to give it to: it waits for another worker."""
        if isinstance(job, Job):
            self.again(job)
        else:
            self.pulled(Pulled())

    # ------------------------------------------------------------------ moving on

    def refill(self) -> None:
        """Take in what the stages before have made, for one more ticket; see whether that was all."""
        if self.cancelled or self._tailed or self.outlet.failed:
            return
        inlet = self.inlet
        if inlet.pumps and not self._refilling and not self._room.content:
            lane = self.lane
            size = self._size(lane.sizer.size)
            self._refilling = True  # what is taken in may bring a stage before to say that more has come
            inlet.pump(size * lane.cap if lane.remote else size)
            self._refilling = False
        if self.outlet.follows and inlet.ended and not inlet.has_tail:
            self._no_more()

    def fed(self) -> None:
        """Something has changed here: take in more, and let whoever comes next know of what has come out."""
        self.refill()
        parent = self.parent
        if parent is not None and (self.outlet.ready or self.over):
            parent.fed()

    def pop(self) -> Chunk | None:
        """The next chunk in order, if it is there; with small ones that follow it, where they are not counted."""
        outlet = self.outlet
        held = outlet.held
        chunk = outlet.pop() if self._together == 1 else outlet.pop_together(self._together)
        if chunk is not None:
            lane = self.lane
            count = len(chunk.samples)
            lane.held += outlet.held - held
            self.held_samples -= count
            lane.held_samples -= count
            if chunk.nbytes:
                self._weigh(-chunk.nbytes)
        return chunk

    def lack_of(self, stage_run: StageRun, ready: int = 0) -> int:
        """How many samples of a stage before this one are lacking for a chunk; none if one is on its way.

        So many chunks may be `ready` here, and another is lacking all the same.
        """
        if self.open or len(self.outlet.ready) > ready:
            return 0
        if self is stage_run:
            return 1
        for child in self.children():
            lack = child.lack_of(stage_run)
            if lack:
                need = self.inlet.needs(child)
                return need and max(lack, need)
        return 0

    def walk(self) -> Iterator[StageRun]:
        """This stage and those before it: downstream first."""
        yield self
        for child in self.children():
            yield from child.walk()

    def cancel(self) -> list[Any]:
        """Stop: nothing is issued any more. Returns what is to be closed and let go of outside the lock."""
        if self.cancelled:
            return []
        self.cancelled = True
        lane = self.lane
        garbage: list[Any] = [*self.paused, self.outlet, self.inlet]
        lane.open -= self.open
        lane.expected -= self.expected
        lane.held -= self.outlet.held
        lane.held_samples -= self.held_samples
        if self._held_bytes:
            self._weigh(-self._held_bytes)
        self.inlet.release()
        for job in self.paused:
            lane.budget.give_back(job.ticket.nbytes)
        self.paused, self.outlet = [], InOrder()
        for child in self.children():
            garbage += child.cancel()
        return garbage
