"""What a stage keeps for the life of its loader (`Lane`), and the work that goes through it (`Job`, `Pull`).

A lane has the stage's program, its limits and its counters. A job is a ticket on its way: begun, perhaps paused, in
the end done. A pull is one worker's turn at reading a stream. None of them decides anything: `core.stage` does.
"""

from __future__ import annotations

from copy import copy
from itertools import count
from time import perf_counter
from typing import Any, final

from penstock.core.budget import Budget, Estimate
from penstock.core.progress import Progress
from penstock.plan.plan import Indexed, Stage
from penstock.program.chunk import Chunk, Ticket
from penstock.program.failure import broken
from penstock.program.program import Program
from penstock.program.reading import Noted
from penstock.program.sizing import TARGET_REMOTE_S, TARGET_S, Sizer
from penstock.program.task import Post
from penstock.stats.calls import Timing
from penstock.stats.counters import StageCounters

_numbers = count(1)


class Lane:
    """A stage for the life of its loader: its program, its limits, its counters."""

    def __init__(self, stage: Stage, program: Program, crew: Any, budget: Budget, loader: int = 0) -> None:
        self.stage = stage
        self.program = program
        self.crew = crew
        self.budget = budget
        self.cap = stage.workers
        self.unit = stage.unit
        #: ops of the stage that make several samples of one
        self.depth = stage.expands
        #: finished tickets that are kept ready; finished samples, if `prefetch` says so
        self.bound_tickets = stage.bound_tickets
        self.bound_samples = stage.bound_samples
        #: its tickets are run by other processes, and this is what they are sent
        self.remote = crew is not None and crew.executor.remote
        self.parcel: Any = None
        #: what each worker in this process keeps for the stage
        self.posts: dict[Any, Post] = {}
        #: the loader's blocks, in which what they make comes back
        self.blocks: Any = None
        #: its source stays here, and what is read of it travels with the tickets
        self.reads_here = self.remote and isinstance(stage.feed, Indexed) and bool(stage.feed.source.stays)
        self.number = next(_numbers)
        #: the number of the loader it belongs to
        self.loader = loader
        self._room = stage.bound_samples or stage.bound_tickets
        self.sizer = Sizer(TARGET_REMOTE_S if self.remote else TARGET_S)
        self.resize(1 if stage.site.auto else stage.workers)
        #: it calls nothing of the user's and its samples are in memory, so a reader that would wait may help
        self.helpable = not self.remote and stage.at_hand and not any(step.op.calls_user for step in stage.steps)
        self.estimate = Estimate()
        #: the size of the last chunks that came in a block; with a bound on memory, of all that came
        self.block_estimate = Estimate()
        #: the largest of the last chunks that came while others waited for a late ticket
        self.late_estimate = Estimate()
        #: draws what it passes on from what is there to have samples at hand
        self.draws = stage.draws
        #: bytes that came of one unit of the last ticket
        self.unit_bytes = 0
        #: what its samples are, found out by its workers, where a reservoir asks and a user's function decides
        self.identities: Noted | None = None
        #: the shortest time that one of its calls may take
        self.timeout_s = min((s.op.timeout_s for s in stage.steps if s.op.timeout_s is not None), default=None)
        self.counters = StageCounters(perf_counter())
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

    def resize(self, workers: int) -> None:
        """Run so many tickets at once from now on, and keep as many ready as that number asks for."""
        stage = self.stage
        self.cap = min(workers, stage.workers)
        self.bound_tickets = max(stage.bound_tickets * self.cap // stage.workers, stage.interleave + 1, 2)
        self._room = stage.bound_samples or self.bound_tickets
        # Longer tickets are for single samples: what becomes of one sample or makes a batch may be large.
        if not self.remote and stage.unit == 1 and self.program.simple:
            self.sizer.share_among(self.cap)

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
            self.advance(perf_counter())
            self.counters.blocked = room

    def advance(self, now: float) -> None:
        """Account for the time until `now`."""
        counters = self.counters
        if now > counters.last:
            busy, cap = self.in_flight, self.cap
            held = self.held if self.bound_samples is None else self.held_samples
            fill = held / self._room if held < self._room else 1.0
            counters.advance(now, cap - busy if busy < cap else 0, busy, fill)

    @property
    def fill(self) -> float:
        """The share of its room that finished work takes now."""
        return min((self.held if self.bound_samples is None else self.held_samples) / self._room, 1.0)


class Job:
    """A ticket on its way: begun, perhaps paused, in the end done."""

    __slots__ = (
        "__weakref__",
        "ahead",
        "chunks",
        "cpu_s",
        "done",
        "ended",
        "expected",
        "guest",
        "made",
        "made_bytes",
        "number",
        "owner",
        "progress",
        "reserved",
        "seconds",
        "stage_run",
        "task",
        "ticket",
        "timing",
    )

    def __init__(self, stage_run: Any, number: int, ticket: Ticket, expected: int) -> None:
        self.stage_run = stage_run
        self.number = number
        self.ticket = ticket
        self.expected = expected
        #: bytes set aside for its next chunk
        self.reserved = 0
        #: the generator of its chunks, once begun
        self.chunks: Any = None
        self.task: Any = None
        #: the times of its calls, and what it weighs, where that was measured
        self.timing: Timing | None = None
        #: in the hands of a reader that helps
        self.guest = False
        #: waits in a worker process behind the ticket that it runs
        self.ahead = False
        #: the only worker that can go on with it, if it is paused and in another process
        self.owner: Any = None
        #: bytes made since the last chunk was handed in
        self.made_bytes = 0
        #: what it handed in before it was paused, if it ever was
        self.progress: Progress | None = None
        #: what its worker is about to hand in, and whether that is all
        self.made: Chunk | None = None
        self.done = False
        #: when its worker was done, how long that took, and on a CPU; None where that was not measured
        self.ended = self.seconds = 0.0
        self.cpu_s: float | None = None

    def finished(self, parts: list[Chunk], done: bool) -> None:
        """The worker has made these, and is about to hand them in: without what was handed in before a restart."""
        self.done = done
        stage_run, ticket = self.stage_run, self.ticket
        lane = stage_run.lane
        if not parts:
            self.made = None
            return
        chunk = Chunk.join(parts)
        if self.progress is not None:
            chunk = self.progress.news(chunk, ticket)
        if not done:
            if self.progress is None:
                self.progress = Progress(lane.unit, lane.depth)
            self.progress.handed_in(chunk, ticket)
        if lane.identities is not None:
            lane.identities.note(stage_run.inlet.epoch, chunk.places)
        self.made = chunk

    def rest(self) -> Ticket:
        """The ticket without what was handed in."""
        return self.ticket if self.progress is None else self.progress.rest_of(self.ticket)

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


@final
class Pull:
    """A turn at reading the stream."""

    __slots__ = ("cpu_s", "ended", "most", "pulled", "seconds", "stage_run")

    def __init__(self, stage_run: Any, most: int) -> None:
        self.stage_run = stage_run
        self.most = most
        #: what the turn has given
        self.pulled: Any = None
        self.ended = self.seconds = 0.0
        self.cpu_s: float | None = None
