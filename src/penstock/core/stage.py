"""One stage at work: which ticket is runnable, and what becomes of it. Pure: no thread, no clock.

The rule that keeps shared pools from ever locking up: a ticket is runnable only when its input is
there *and* room for its output is reserved. Workers wait for runnable tickets, never inside one.

A `Lane` lives as long as the loader, a `StageRun` as long as one epoch. All calls are made under
the scheduler's lock.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import count
from typing import Any

from penstock.core.budget import Budget, Estimate
from penstock.core.inlets import Inlet, Pulled, StreamInlet
from penstock.core.outlets import Alternating, AsDone, InOrder, Outlet
from penstock.core.progress import Progress
from penstock.core.redo import Intake, Redo, turns_key
from penstock.plan.plan import Indexed, Stage
from penstock.program.chunk import Chunk, Loss, Ticket
from penstock.program.failure import broken
from penstock.program.program import Program
from penstock.program.reading import Noted
from penstock.program.sizing import TARGET_REMOTE_S, TARGET_S, Sizer
from penstock.provenance import input_of, key_of
from penstock.resume.cursor import Held
from penstock.stats.counters import StageCounters
from penstock.trees import nbytes

__all__ = ["Job", "Lane", "Pull", "Resumed", "StageRun"]


_numbers = count(1)

#: bytes that a worker process should make in one ticket at the most, for the same reason as below
_CACHED_BYTES = 4 * 1024 * 1024
#: what may wait for a late ticket before it, in bytes and in chunks
_WAITING_BYTES, _WAITING = 256 * 1024 * 1024, 1 << 16
#: samples of a chunk that are weighed, where it waits for a late ticket
_WEIGHED = 8
#: blocks read in one ticket at the most, so that their memory is still in the cache when it is used again
_BLOCKS = 8


class Lane:
    """What a stage keeps from epoch to epoch: its program, its limits, its counters."""

    def __init__(
        self, stage: Stage, program: Program, crew: Any, budget: Budget, clock: Callable[[], float], loader: int = 0
    ) -> None:
        self.stage = stage
        self.program = program
        self.crew = crew
        self.budget = budget
        self.cap = stage.workers
        #: its tickets are run by other processes, and this is what they are sent
        self.remote = crew is not None and crew.executor.remote
        self.parcel: Any = None
        #: the loader's blocks, in which what they make comes back
        self.blocks: Any = None
        #: its source stays here, and what is read of it travels with the tickets
        self.reads_here = self.remote and isinstance(stage.feed, Indexed) and bool(stage.feed.source.stays)
        self.number = next(_numbers)
        #: the number of the loader it belongs to
        self.loader = loader
        self._room = stage.bound_samples or stage.bound_tickets
        #: it calls nothing of the user's and its samples are in memory, so a reader that would wait may help
        self.helpable = not self.remote and stage.at_hand and not any(step.op.calls_user for step in stage.steps)
        self.sizer = Sizer(TARGET_REMOTE_S if self.remote else TARGET_S)
        self.estimate = Estimate()
        #: the size of the last chunks that came in a block; with a bound on memory, of all that came
        self.block_estimate = Estimate()
        #: the largest of the last chunks that came while others waited for a late ticket
        self.late_estimate = Estimate()
        #: draws what it passes on from what is there to have samples at hand
        self.draws = stage.joint_op is not None and stage.joint_op.decouples
        #: bytes that came of one unit of the last ticket
        self.unit_bytes = 0
        #: what its samples are, found out by its workers, where a reservoir asks and a user's function decides
        self.identities: Noted | None = None
        #: the shortest time that one of its calls may take
        self.timeout_s = min((s.op.timeout_s for s in stage.steps if s.op.timeout_s is not None), default=None)
        self.clock = clock
        self.counters = StageCounters(clock())
        #: tickets in workers' hands, and how many of them are in the hands of a reader that helps
        self.in_flight = 0
        self.guests = 0
        #: tickets that wait in a worker process behind the one it runs
        self.queued = 0
        #: tickets begun and not ended, in hand or paused
        self.open = 0
        #: finished chunks and samples that wait to be taken
        self.held = 0
        self.held_samples = 0
        #: samples that open tickets will make, as far as can be foreseen
        self.expected = 0

    def renewed(self, budget: Budget) -> Lane:
        """The same stage with nothing in hand and nothing held; all that was found out about it stays."""
        lane = copy(self)
        lane.budget = budget
        lane.in_flight = lane.guests = lane.queued = lane.open = 0
        lane.held = lane.held_samples = lane.expected = 0
        return lane

    def idle_for(self, room: bool) -> None:
        """Idle slots wait for room from now on, or for input."""
        if self.counters.blocked is not room:
            self.advance()
            self.counters.blocked = room

    def advance(self) -> None:
        """Account for the time until now."""
        busy, cap = self.in_flight, self.cap
        held = self.held if self.stage.bound_samples is None else self.held_samples
        fill = held / self._room if held < self._room else 1.0
        self.counters.advance(self.clock(), cap - busy if busy < cap else 0, busy, fill)


class Job:
    """A ticket on its way: begun, perhaps paused, in the end done."""

    __slots__ = (
        "__weakref__",
        "ahead",
        "chunks",
        "expected",
        "guest",
        "made_bytes",
        "number",
        "owner",
        "progress",
        "reserved",
        "stage_run",
        "task",
        "ticket",
    )

    def __init__(self, stage_run: StageRun, number: int, ticket: Ticket, expected: int) -> None:
        self.stage_run = stage_run
        self.number = number
        self.ticket = ticket
        self.expected = expected
        #: bytes set aside for its next chunk
        self.reserved = 0
        #: the generator of its chunks, once begun
        self.chunks: Any = None
        self.task: Any = None
        #: in the hands of a reader that helps
        self.guest = False
        #: waits in a worker process behind the ticket that it runs
        self.ahead = False
        #: the only worker that can go on with it, if it is paused and in another process
        self.owner: Any = None
        #: bytes made since the last chunk was handed in
        self.made_bytes = 0
        #: what it has handed in so far
        stage = stage_run.lane.stage
        self.progress = Progress(stage.unit, stage.expands)

    def broken(self, exc: BaseException) -> Chunk:
        """What it hands in when something outside of any single call went wrong."""
        return broken(self.stage_run.lane.stage, self.ticket, self.stage_run.inlet.epoch, exc)

    def close(self) -> None:
        """End the generator of its chunks, and with it the user's generators inside."""
        close = getattr(self.chunks, "close", None)
        self.chunks = None
        if close is not None:
            close()

    def __lt__(self, other: Job) -> bool:
        return self.number < other.number


class Pull:
    """A turn at reading the stream."""

    __slots__ = ("most", "stage_run")

    def __init__(self, stage_run: StageRun, most: int) -> None:
        self.stage_run = stage_run
        self.most = most


#: what to do next, and what with
_Decision = tuple[Callable[[Any], "Job | Pull"], Any]


@dataclass(slots=True)
class Resumed:
    """What a stage makes again when the stream is resumed, and what of that it lets pass."""

    redo: Redo
    depth: int
    #: where outputs alternate: the inputs that were open, and which of them is in which slot
    opened: Sequence[Held] = ()
    slots: Sequence[int] = ()

    def intakes(self, alternates: bool) -> tuple[Intake, Intake]:
        """What passes of tickets that only make samples again, and what of all others.

        Where outputs alternate, what only a joint further on has asked for must not take a turn.
        """
        if not alternates:
            intake = Intake(self.redo, self.depth)
            return intake, intake
        wanted = Redo((), [want for wants in self.redo.wanted.values() for want in wants])
        owed = Redo(list(self.redo.held.values()), ())
        return Intake(wanted, self.depth), Intake(owed, self.depth)


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
        #: the stages before this one, as they are now
        self.children = children
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
            self.outlet = InOrder() if stage.ordered else AsDone(stage.expands)
        self.cancelled = False
        self.issued = 0
        self.open = 0
        #: this epoch's part of what the lane counts
        self._expected = 0
        self._held_samples = 0
        self._held_bytes = 0
        self._paused: list[Job] = []
        self._tailed = False

    # ------------------------------------------------------------------ deciding

    def runnable(self, guest: bool = False, worker: Any = None) -> bool:
        """Whether a worker (or a reader that helps) could do something here now."""
        return self._next(guest, worker, looks=True) is not None

    def take(self, guest: bool = False, worker: Any = None) -> Job | Pull | None:
        """Something for a worker to do, if there is anything."""
        found = self._next(guest, worker)
        if found is None:
            return None
        lane = self.lane
        lane.advance()
        lane.in_flight += 1
        begin, argument = found
        job = begin(argument)
        if guest and isinstance(job, Job):
            job.guest = True
            lane.guests += 1
        return job

    def take_ahead(self) -> Job | None:
        """A ticket to wait in a worker process behind the one it runs, if there are enough for all."""
        lane = self.lane
        if self.cancelled or self._paused or self.outlet.failed or self._tailed or lane.queued >= lane.in_flight:
            return None
        if lane.budget.bounded and not (lane.estimate.largest and lane.budget.admits(lane.estimate.largest)):
            return None  # one that waits cannot be held back any more, whatever the one before it takes
        units = self._room()
        size = min(units, lane.sizer.size)
        if not units or self.inlet.available(size * lane.cap) < size * lane.cap * lane.stage.unit:
            return None
        found = self._input(units)
        if found is None or found[0] != self._begun:
            return None
        job = self._begun(found[1])
        job.ahead = True
        lane.queued += 1
        return job

    def promoted(self, job: Job) -> None:
        """The ticket before it is done, so its worker process runs this one now."""
        self.lane.advance()
        self.lane.queued -= 1
        self.lane.in_flight += 1
        job.ahead = False

    def disowned(self, job: Job) -> None:
        """The process that a ticket was paused in has ended: another begins it anew."""
        job.owner = job.chunks = None
        job.ticket = job.progress.rest_of(job.ticket)

    def _next(self, guest: bool, worker: Any, looks: bool = False) -> _Decision | None:
        """What to do next: go on with a paused ticket, begin one, tell the end, or pull the stream."""
        lane = self.lane
        full = lane.guests > 0 if guest else lane.in_flight - lane.guests >= lane.cap
        if self.cancelled or full:
            return None
        if self._paused:
            job = self._resumable(worker)
            if job is not None:
                return self._resumed, job
        if self.outlet.failed or self._tailed:
            return None
        units = self._room()
        if not units:
            self.inlet.refresh()
            lane.idle_for(room=True)
            return None
        found = self._input(units, looks)
        if found is None:
            lane.idle_for(room=False)
        return found

    def _input(self, units: int, looks: bool = False) -> _Decision | None:
        """What can be made of the input that is there, in at most so many units."""
        lane, inlet = self.lane, self.inlet
        stage, usual = lane.stage, lane.sizer.size
        size = min(units, usual)
        if stage.interleave > 1:
            size = 1
        elif stage.block_read:
            size = min(size, _BLOCKS)
        if lane.unit_bytes:
            size = max(1, min(size, _CACHED_BYTES // lane.unit_bytes))
        if inlet.sample_bytes:
            size = max(1, min(size, lane.budget.portion // inlet.sample_bytes))
        count = inlet.glance(size) if looks else inlet.available(size)
        if count and lane.remote and lane.in_flight and inlet.fills and 2 * count < size:
            return None  # a journey for so few is not worth it: while another ticket is out, more will come
        if count:
            if count > 1:
                count = min(count, inlet.share(lane.cap, usual) * stage.unit)
            return self._begun, count
        if inlet.ended:
            if inlet.has_tail:
                return self._tail, None
            self._no_more()
            return None
        if inlet.burdened:
            return self._unburdened, None
        if isinstance(inlet, StreamInlet) and inlet.wants_pull:
            return self._pulling, size * lane.cap
        return None

    @property
    def _waited_for(self) -> int:
        """The ticket that must go on before anything more can leave; -1 if nobody waits."""
        return self.outlet.head if self.run.current and not self.outlet.ready else -1

    @property
    def _filled(self) -> tuple[int, int]:
        """Tickets and samples that take up room.

        The epoch being read counts its own; one begun early counts all, and so has what is left.
        """
        lane = self.lane
        if self.run.current:
            return self.outlet.held + self.open, self._held_samples + self._expected
        return lane.held + lane.open, lane.held_samples + lane.expected

    @property
    def _ahead(self) -> bool:
        """Whether tickets in hand count as made: in an epoch begun early, and in a stage that draws ahead."""
        return not self.run.current or self.lane.draws

    @property
    def _full(self) -> bool:
        """Whether enough is ready for delivery, or too much waits for a late ticket before it.

        Tickets in hand do not count: they are as many as there are workers.
        """
        outlet, stage = self.outlet, self.lane.stage
        if stage.bound_samples is None:
            enough = len(outlet.ready) >= stage.bound_tickets
        else:
            # One ticket per worker comes on top; without it workers would stop whenever all of them end at once.
            enough = outlet.ready_samples >= stage.bound_samples + self.lane.cap * self.lane.sizer.size
        if enough or len(self._paused) >= stage.bound_tickets:
            return True
        waiting = outlet.held - len(outlet.ready)
        return waiting >= stage.bound_tickets and (
            waiting >= _WAITING or waiting * self.lane.late_estimate.nbytes >= _WAITING_BYTES
        )

    def _room(self) -> int:
        """How many units a new ticket may have."""
        lane, stage = self.lane, self.lane.stage
        if self._ahead:
            tickets, samples = self._filled
            units = lane.sizer.size if tickets < stage.bound_tickets else 0
            if stage.bound_samples is not None:
                units = stage.bound_samples - samples
        else:
            units = 0 if self._full else lane.sizer.size
        if units > 0 and (not lane.budget.bounded or lane.budget.admits(lane.estimate.nbytes)):
            return units
        head = self.issued <= self._waited_for
        return max(units, 1) if head else 0

    def _resumable(self, worker: Any) -> Job | None:
        lane, stage = self.lane, self.lane.stage
        paused = self._paused
        if lane.remote:
            paused = [job for job in paused if job.owner is None or job.owner is worker]
            if not paused:
                return None
        for job in paused:
            if job.number == self._waited_for:
                return job
        tickets, samples = self._filled
        full = tickets - self.open >= stage.bound_tickets
        if stage.bound_samples is not None:
            full = samples - self._expected >= stage.bound_samples
        if full or not lane.budget.admits(lane.estimate.nbytes):
            return None
        return paused[0]

    # ------------------------------------------------------------------ taking and putting

    def _left(self, job: Job) -> None:
        """The job is in nobody's hands any more."""
        if job.ahead:
            self.lane.queued -= 1
        else:
            self.lane.in_flight -= 1
        self.lane.guests -= job.guest
        job.guest = job.ahead = False

    def _begun(self, count: int) -> Job:
        """A ticket with the next `count` samples."""
        return self._issued(self.inlet.cut(count), -(-count // self.lane.stage.unit))

    def untaken(self, job: Job | Pull) -> None:
        """There was nobody to give it to: it waits for another worker."""
        if isinstance(job, Job):
            self.again(job)
        else:
            self.pulled(Pulled())

    def _issued(self, ticket: Ticket, units: int) -> Job:
        lane = self.lane
        job = Job(self, self.issued, ticket, units)
        outlet = self.outlet
        held, ready = outlet.held, len(outlet.ready)
        outlet.issued(self.issued, ticket)
        lane.held += outlet.held - held
        if len(outlet.ready) > ready:
            self.run.revealed = True
        self.issued += 1
        self.open += 1
        lane.open += 1
        lane.expected += units
        self._expected += units
        return self._reserved(job)

    def _unburdened(self, _nothing: None) -> Job:
        """A ticket that tells of losses, though there is no sample behind them yet."""
        return self._issued(self.inlet.unburden(), 0)

    def _tail(self, _nothing: None) -> Job:
        """A last ticket, with what is left to be told."""
        self._tailed = True
        job = self._issued(self.inlet.tail(), 0)
        self._no_more()
        return job

    def _no_more(self) -> None:
        """All tickets have been issued."""
        outlet = self.outlet
        held, ready, head = outlet.held, len(outlet.ready), outlet.head
        outlet.no_more(self.issued)
        self.lane.held += outlet.held - held
        if len(outlet.ready) > ready or outlet.head != head:
            self.run.revealed = True

    def _resumed(self, job: Job) -> Job:
        self._paused.remove(job)
        return self._reserved(job)

    def _reserved(self, job: Job) -> Job:
        if self.lane.budget.bounded:
            job.reserved = self.lane.estimate.nbytes
            if self.lane.remote:
                job.reserved += job.ticket.nbytes  # its samples go to the process as a copy
            self.lane.budget.take(job.reserved)
        return job

    def needs(self, job: Job, nbytes: int) -> None:
        """The chunk of a job is about to be written, and takes so much: known earlier than when it is handed in."""
        budget = self.lane.budget
        if budget.bounded and not self.cancelled and nbytes > job.reserved:
            budget.take(nbytes - job.reserved)
            job.reserved = nbytes

    def _pulling(self, most: int) -> Pull:
        assert isinstance(self.inlet, StreamInlet)
        self.inlet.pulling = True
        return Pull(self, most)

    def pulled(self, pulled: Pulled) -> None:
        """A worker has had its turn at the stream."""
        inlet = self.inlet
        assert isinstance(inlet, StreamInlet)
        self.lane.in_flight -= 1
        inlet.pulling = False
        if not self.cancelled:
            inlet.pulled(pulled)

    def put(self, job: Job, chunk: Chunk | None, done: bool) -> None:
        """A worker hands in what it has made, and says whether the ticket is done."""
        lane = self.lane
        self._left(job)
        if job.reserved:
            lane.budget.give_back(job.reserved)
            job.reserved = 0
        if self.cancelled:
            lane.budget.give_back(job.ticket.nbytes)
            return
        if job.ticket.losses and done:
            chunk = Chunk([], ()) if chunk is None else chunk
            self._take_losses(chunk, job, done=True)
        if chunk is not None:
            chunk = self._placed(chunk, job)
        if chunk is not None and not chunk.blank:
            outlet = self.outlet
            before = outlet.held
            self._hold(len(chunk.samples), chunk.nbytes)
            outlet.put(job.number, chunk)
            lane.held += outlet.held - before
            if outlet.held - len(outlet.ready) >= lane.stage.bound_tickets:
                lane.late_estimate.add(chunk.nbytes or _weight(chunk.samples))
        if done:
            self._ended(job)
        else:
            insort(self._paused, job)

    def _placed(self, chunk: Chunk, job: Job) -> Chunk:
        """`chunk` with its origin and the losses among its inputs, without what was delivered before a resume."""
        ticket = job.ticket
        chunk.origin, chunk.redo = ticket.origin, ticket.redo
        if ticket.losses:
            self._take_losses(chunk, job)
        if self._intakes is not None:
            wanted, owed = self._intakes
            return (wanted if self.outlet.sets_aside(job.number) else owed).sift(chunk)
        return chunk

    def _take_losses(self, chunk: Chunk, job: Job, done: bool = False) -> None:
        """Put what was lost before the ticket's inputs among what was made of them, as far as that has come."""
        ticket, depth = job.ticket, self.lane.stage.expands
        waiting = ticket.losses
        if not chunk.places and not done:
            return
        numbers = {key_of(place): number for number, place in enumerate(ticket.inputs)}
        out: list[Loss] = []
        own = list(chunk.losses)
        for at, place in enumerate(chunk.places):
            number = numbers[key_of(input_of(place, depth))]
            while waiting and waiting[0].before <= number:
                while own and own[0].before <= at and self._earlier(own[0], waiting[0], numbers, depth):
                    out.append(own.pop(0))
                out.append(waiting.pop(0)._replace(before=at))
            while own and own[0].before <= at:
                out.append(own.pop(0))
        out += own
        if done:
            out += [loss._replace(before=len(chunk.samples)) for loss in waiting]
            waiting.clear()
        chunk.losses = out

    def _earlier(self, own: Loss, other: Loss, numbers: dict[Any, int], depth: int) -> bool:
        """Whether a sample that was lost here came before one that was lost upstream."""
        for one in range(depth + 1):
            number = numbers.get(key_of(input_of(own.place, one)))
            if number is not None:
                return number < other.before
        return True

    def _hold(self, samples: int, weight: int) -> None:
        """So much more waits to be taken (less, if negative)."""
        lane = self.lane
        self._held_samples += samples
        lane.held_samples += samples
        if weight:
            self._held_bytes += weight
            lane.budget.take(weight)
            if weight > 0:
                lane.estimate.add(weight)

    def _ended(self, job: Job) -> None:
        lane = self.lane
        self.open -= 1
        lane.open -= 1
        lane.expected -= job.expected
        self._expected -= job.expected
        if job.ticket.nbytes:
            lane.budget.give_back(job.ticket.nbytes)
        outlet = self.outlet
        before = outlet.held
        outlet.done(job.number)
        lane.held += outlet.held - before

    def again(self, job: Job) -> None:
        """The job's worker is given up: its ticket waits for another, and begins anew."""
        self._left(job)
        self.lane.budget.give_back(job.reserved)
        if self.cancelled:
            self.lane.budget.give_back(job.ticket.nbytes)
            return
        fresh = Job(self, job.number, job.progress.rest_of(job.ticket), job.expected)
        fresh.progress = job.progress
        fresh.task = job.task
        insort(self._paused, fresh)

    # ------------------------------------------------------------------ what comes out

    def pop(self) -> Chunk | None:
        """The next chunk in order, if it is there."""
        chunk = self.outlet.pop()
        if chunk is not None:
            self.lane.held -= 1
            self._hold(-len(chunk.samples), -chunk.nbytes)
        return chunk

    @property
    def over(self) -> bool:
        """Nothing more will come out. Asks the stages before this one, so the end is seen at once."""
        if self.outlet.ready:
            return False
        if self.cancelled or self.outlet.failed:
            return True
        if self.open:
            return False
        if self._tailed:
            return True
        if self.inlet.glance(1) or not self.inlet.ended or self.inlet.has_tail:
            return False
        self._no_more()
        return not self.outlet.ready

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

    @property
    def exhausted(self) -> bool:
        """There is nothing left to be begun here or before, or to be gone on with."""
        return all(one.inlet.ended and not one.inlet.has_tail and not one._paused for one in self.walk())

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
        garbage: list[Any] = [*self._paused, self.outlet, self.inlet]
        lane.open -= self.open
        lane.expected -= self._expected
        lane.held -= self.outlet.held
        self._hold(-self._held_samples, -self._held_bytes)
        self.inlet.release()
        for job in self._paused:
            lane.budget.give_back(job.ticket.nbytes)
        self._paused, self.outlet = [], InOrder()
        for child in self.children():
            garbage += child.cancel()
        return garbage


def _weight(samples: list[Any]) -> int:
    """About how many bytes some samples take: as many as a few of them do on average."""
    some = samples[:: max(1, len(samples) // _WEIGHED)]
    return sum(map(nbytes, some)) * len(samples) // max(1, len(some))
