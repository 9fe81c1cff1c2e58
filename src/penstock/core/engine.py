"""What runs behind a loader: lanes, crews, the epoch being read and the one begun early.

The engine knows nothing of the loader, so that a loader nobody holds can be collected; its
finalizer then tells the engine to end. All waiting is done by the reader, in `read`, which is
therefore also the one that sees timeouts.

Ctrl-C may interrupt the reader between any two instructions, and a fault may stop anybody in the middle of a
change. So whoever changes the bookkeeping for the reader sets `unsettled` first and clears it last. Where it
is still set when somebody comes next, nothing that the change may have touched is used again: `_resettle`
drops the epochs that were begun and gives the stages new counters. Workers and their processes stay.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Any

from penstock.core.budget import Budget
from penstock.core.closing import abandoned, check_open, close_at_exit, end_workers
from penstock.core.dispatch import Dispatch
from penstock.core.epoch import Run, begun_at, first_owed, fits_plan
from penstock.core.error_log import out_of_step
from penstock.core.feeder import Feeder
from penstock.core.lane import Job, Lane, Pull
from penstock.core.memos import Memos
from penstock.core.reader import Reader
from penstock.core.redo import BEGINNING, Start
from penstock.core.setup import Setup
from penstock.core.stage import StageRun
from penstock.core.tally import joint_tally, lane_tally, memory_tally
from penstock.core.tuning import Tuning
from penstock.core.work import discard
from penstock.core.workers import LOCK, Crew
from penstock.machine import usable_cpus
from penstock.plan.plan import Indexed, Plan
from penstock.plan.rules import Options
from penstock.program.bridge import Bridge
from penstock.program.task import Bench
from penstock.provenance import Place
from penstock.resume.cursor import saved_edge
from penstock.resume.schema import Edge, InputState
from penstock.sources.source import Flow
from penstock.stats.counters import ReaderCounters
from penstock.stats.watch import Meter

if TYPE_CHECKING:
    from penstock.memory.block import Blocks


_numbers = count(1)


class Engine(Dispatch):
    """Runs one plan, epoch after epoch."""

    def __init__(self, flow: Flow, options: Options, seed: int, memory: int | None) -> None:
        self.number = next(_numbers)
        self.flow = flow
        self.options = options
        self.seed = seed
        self.budget = Budget(memory)
        #: shared memory for what worker processes make, if there are any
        self.blocks: Blocks | None = None
        self.crews: dict[int, Crew] = {}
        self.lanes: dict[int, Lane] = {}
        self.all_lanes: list[Lane] = []
        self.stores: dict[int, Any] = {}
        self.memos = Memos()
        #: by segment: inputs that go on from epoch to epoch, and where they stood when the state was saved
        self.carried: dict[str, list[Feeder]] = {}
        self.carried_before: dict[str, InputState] = {}
        self.garbage: list[Any] = []
        self.benches: dict[Any, Bench] = {}
        #: tickets for which the reader is about to start workers
        self.openings: deque[Job | Pull] = deque()
        #: what each busy worker has in hand
        self.tasks: dict[Any, Job] = {}
        self.reader = Reader(self)
        #: the next chunk of an epoch, or None at its end; waits for it
        self.read = self.reader.read
        #: whoever reads does so for a training loop that waits
        self.asks = True
        self.counters = ReaderCounters()
        self._meter = Meter()
        self.stuck = 0
        #: worker processes that ended without an answer
        self.deaths = 0
        self.current: Run | None = None
        self.upcoming: Run | None = None
        #: a change of the bookkeeping has begun and not ended, or the reader has a ticket in hand
        self.unsettled = False
        #: what went wrong in the bookkeeping, where no sample and no worker is to blame: the epoch ends in it
        self.fault: BaseException | None = None
        #: the last epoch that may be begun before it is asked for
        self.last_epoch: float = float("inf")
        #: the loader ends with this epoch
        self.once = False
        self.closed = False
        #: the interpreter exits: whoever still reads is not told off
        self.exiting = False
        self.closing = threading.Event()
        self.pid = os.getpid()
        #: where another process sees what is in hand, and the calls that are not made because they end this one
        self.desk: Any = None
        self.condemned: dict[Any, str] = {}
        #: runs coroutines where there is no event loop
        self.bridge = Bridge()
        self.plan: Plan
        #: some of it is run by the reader itself; the reader has work of its own, even where it is nobody's worker
        self.inline = self.reader_works = False
        #: calls have a time limit; samples are drawn from a reservoir; epochs may be begun early
        self.timed = self.draws = self._forks = False
        self.tuning = None
        self._set_up(self._prepared(options))
        close_at_exit(self)

    def _prepared(self, options: Options) -> Setup:
        """What another plan of the same pipeline needs to run."""
        return Setup.of(self, options)

    def _set_up(self, setup: Setup) -> None:
        """Run this plan from now on."""
        self.budget.divide(sum(lane.cap for lane in setup.lanes.values()))
        for lane in setup.lanes.values():
            lane.budget = self.budget  # another than it was made with, if somebody was interrupted since
        all_lanes = [*self.all_lanes, *setup.lanes.values()]
        self.crews.update(setup.crews)
        # Nothing is called from here on, so Ctrl-C cannot come between.
        self.options, self.plan, self.lanes, self.all_lanes = setup.options, setup.plan, setup.lanes, all_lanes
        self.inline, self.reader_works, self.timed = setup.inline, setup.reader_works, setup.timed
        self.draws, self._forks = setup.draws, setup.forks
        if self.tuning is not None or any(crew.auto for crew in self.crews.values()):
            tuning = self.tuning or Tuning(self, setup.options.cpus or usable_cpus())
            self.tuning = tuning if tuning.begin() else None

    def notes(self) -> list[str]:
        """What has become of the plan so far that the plan could not know, one sentence each."""
        found = []
        for lane in self.lanes.values():
            why = lane.crew.executor.unshared(lane.parcel) if lane.remote else ""
            if why:
                found.append(
                    f"stage {lane.stage.number}: each worker process imports and unpickles what it runs by itself, "
                    f"which could not be done once for all of them: {why}"
                )
        return found if self.tuning is None else [*found, *self.tuning.notes]

    # ------------------------------------------------------------------ epochs

    def enter(self, epoch: int, start: Start = BEGINNING, ahead: bool = False) -> Run:
        """Make `epoch` the one that is read: the one begun early, if it is that, or a new one from `start` on.

        Workers are started by the reader when it has nothing to read, so at once only if it will not
        read yet: `ahead`.
        """
        self.check_open()
        fits = start.edge is None or fits_plan(self.plan, start.edge)
        return self._entered(epoch, start, ahead, None if fits else self._wary_setup())

    def _entered(self, epoch: int, start: Start, ahead: bool, setup: Setup | None) -> Run:
        """Leave the epoch that is read, take over another plan if there is one, and read `epoch`."""
        with LOCK:
            garbage = self._resettle()
            self.unsettled = True
            garbage += self._leave()
            if setup is not None:
                garbage += self._drop_upcoming()
                self._set_up(setup)
            run, self.upcoming = self.upcoming, None
            if run is not None and (run.epoch != epoch or start):
                garbage += run.cancel()
                run = None
            if run is None:
                run = Run(self, epoch, start)
            run.current = True
            self.current = run
            for crew in self.crews.values():
                crew.join(self)
                if ahead or crew.idle:
                    crew.rouse()
            self.unsettled = False
        discard(garbage)
        return run

    def leave(self, run: Run, whole: bool = False) -> None:
        """The epoch is over for the reader: at its end if `whole`, else it was broken off."""
        with LOCK:
            garbage = self._resettle()
            self.unsettled = True
            if run is self.current:
                garbage += self._leave(whole)
            if self.reader.inside:
                self.reader.unpark()
            if self.draws and self.upcoming is None and not self.closed and run.epoch < self.last_epoch:
                # What is there to have samples at hand goes on to gather some.
                self.upcoming = Run(self, run.epoch + 1, BEGINNING)
                self.rouse()
            self.unsettled = False
        discard(garbage)
        for crew in self.crews.values():
            crew.tell_lack()

    def _leave(self, whole: bool = False) -> list[Any]:
        run, self.current = self.current, None
        garbage, self.garbage = self.garbage, []
        if run is not None:
            for memo in self.memos.of_ops(self.plan):
                memo.left(whole)
            garbage += self.cancelled(run.root)
            run.ended = True
            run.current = False
        return garbage

    def _resettle(self) -> list[Any]:
        """Begin anew if somebody was stopped in the middle of a change. Returns what to let go of outside the lock.

        Samples that go on from epoch to epoch go on behind the last one that was taken; a reservoir is emptied.
        Workers may still have old tickets in hand. They hand those in to the old stages, where nobody counts any
        more; so for a moment a stage on a shared pool may have more calls at once than its cap.
        """
        if not self.unsettled and self.fault is None:
            return []
        self._abandon_runs()
        self.openings.clear()
        self.tasks.pop(self.reader, None)
        self.budget = budget = self.budget.renewed()
        if self.blocks is not None:
            self.blocks.bound(budget.spare if budget.bounded else None)
        renewed = {lane: lane.renewed(budget) for lane in self.lanes.values()}
        self.lanes = {number: renewed[lane] for number, lane in self.lanes.items()}
        self.all_lanes = [renewed.get(lane, lane) for lane in self.all_lanes]
        for memo in self.memos.of_ops(self.plan):
            memo.left(whole=False)
            memo.forget()
        for crew in self.crews.values():
            crew.resettle(self)
        self.unsettled = False
        self.fault = None
        garbage, self.garbage = self.garbage, []
        return garbage

    def _abandon_runs(self) -> None:
        """Go on with nothing that was begun. What is left half done may not be fit even to be ended."""
        with suppress(Exception):
            self.carried_before = self._carrying() | self.carried_before
        upstreams: list[Any] = [queue.upstream for queues in self.carried.values() for queue in queues]
        runs = [run for run in (self.current, self.upcoming) if run is not None]
        self.current = self.upcoming = None
        self.carried = {}
        for run in runs:
            run.ended = True
            run.current = False
        for stage_run in [run.root for run in runs] + [one.stage_run for one in upstreams]:
            with suppress(Exception):
                self.garbage += [] if stage_run is None else stage_run.cancel()
        for worker in list(self.tasks):
            worker.forgo()

    def failed(self, exc: BaseException) -> None:
        """Something went wrong that is not the failure of a sample: whoever reads is told, and the epoch ends."""
        with LOCK:
            if self.fault is None:
                self.fault = exc
            self._abandon_runs()
            self.reader.waiting = False
            self.reader.unpark()

    def cancelled(self, stage_run: StageRun) -> list[Any]:
        """Cancel a stage and those before it, except what goes on in a later epoch."""
        kept = {
            id(getattr(queue.upstream, "stage_run", None)) for queues in self.carried.values() for queue in queues
        }
        garbage = _cancel_but(stage_run, kept)
        for worker, job in list(self.tasks.items()):
            if job.stage_run.cancelled:
                worker.forgo()
        return garbage

    def standing(self, origin: Any, places: Sequence[Place], number: int) -> Edge | None:
        """Where the epoch stands after sample `number` of a chunk that was handed over."""
        with LOCK:
            return None if origin is None else saved_edge(origin.cursor(places[number]))

    def carrying(self) -> dict[str, InputState]:
        """Where inputs stand that go on from epoch to epoch, between two epochs."""
        with LOCK:
            return self._carrying()

    def _carrying(self) -> dict[str, InputState]:
        return {
            segment: InputState(queue.epoch, saved_edge(queue.cursor()), queue.taken, note=queue.note)
            for segment, (queue,) in self.carried.items()
            if queue.epoch >= 0
        }

    def forget(self, carried: dict[str, InputState]) -> None:
        """Another state is to be gone on with: nothing that has been begun is."""
        with LOCK:
            garbage = self._resettle()
            self.unsettled = True
            garbage += self._leave() + self._drop_upcoming()
            garbage += self._close_carried()
            for memo in self.memos.of_ops(self.plan):
                memo.forget()
            self.carried_before = dict(carried)
            self.unsettled = False
        discard(garbage)

    def _close_carried(self) -> list[Any]:
        """End what goes on from epoch to epoch. Returns what is to be let go of outside the lock."""
        garbage: list[Any] = []
        for queues in self.carried.values():
            for queue in queues:
                garbage += queue.upstream.close()  # type: ignore[attr-defined]
        self.carried.clear()
        return garbage

    def replan(self, run: Run, position: int) -> Run:
        """A sample was skipped where the plan had relied on the count: go on without relying on it."""
        for stage in self.plan.stages:
            portion = stage.feed.portion if isinstance(stage.feed, Indexed) else None
            if portion is not None and portion.keeps and portion.world > 1:
                raise out_of_step(stage.label, position)
        setup = self._wary_setup()
        plan = self.plan if setup is None else setup.plan
        start = run.start
        if first_owed(start.edge) != position:  # else nothing has come yet, and of that batch a part may be owed
            start = Start(begun_at(plan.root, run.epoch, position))
        return self._entered(run.epoch, start, False, setup)

    def _wary_setup(self) -> Setup | None:
        """A plan that does not rely on the count; None if this one does not."""
        return None if self.options.wary else self._prepared(replace(self.options, wary=True))

    def _drop_upcoming(self) -> list[Any]:
        """Do without the epoch that was begun early. Returns what is to be let go of outside the lock."""
        run, self.upcoming = self.upcoming, None
        return [] if run is None else run.cancel()

    def stage_runs(self, crew: Crew) -> Sequence[StageRun]:
        """The stages that may have tickets for `crew`, downstream first, and those of the current epoch first."""
        run, upcoming = self.current, self.upcoming
        found: Sequence[StageRun] = ()
        if run is not None:
            found = run.by_crew.get(crew) or run.stage_runs(crew)
        return found if upcoming is None else [*found, *upcoming.stage_runs(crew)]

    def goes_on(self) -> bool:
        """Begin the next epoch once this one's tickets are all out, if that is possible."""
        run = self.current
        if not self._forks or self.upcoming is not None or run is None or run.epoch >= self.last_epoch:
            return False
        if not run.sourced_out or not self._may_fork():
            return False
        self.upcoming = Run(self, run.epoch + 1, BEGINNING)
        self.rouse()
        return True

    def _may_fork(self) -> bool:
        """Whether an epoch may be begun before the one before it is over."""
        if any(lane.open and lane.stage.cache_step is not None for lane in self.lanes.values()):
            return False  # what is still being made for a cache would be made again
        return all(memo.settled for memo in self.memos.of_ops(self.plan))

    def stage_stats(self) -> dict[str, float]:
        """The counters of all stages, under the names that ``loader.stats()`` gives them.

        `cpu_s` is what worker processes were on a CPU; that of this process is the reader's to count.
        """
        with LOCK:
            if not self.closed:
                now = perf_counter()
                for lane in self.all_lanes:
                    lane.advance(now)
            out = {"stuck": self.stuck, "deaths": self.deaths, **self._meter.counts}
            out["cpu_s"] = sum(lane.counters.cpu_s for lane in self.all_lanes if lane.remote)
            out |= memory_tally(self.budget, self.blocks)
            return out | lane_tally(self.all_lanes) | joint_tally(self.plan, self.memos)

    # ------------------------------------------------------------------ what the loader calls

    def ask(self, asks: bool) -> None:
        """Whether a training loop waits for whoever reads."""
        with LOCK:
            self.asks = asks
            if asks and self.draws and self.reader.inside:
                self.reader.hungry = True
                self.rouse()
                self._wake_reader()

    def holding(self, run: Run) -> str:
        """What the stream waits for: the op and the sample in hand, of the stage nearest to the source."""
        held = []
        for worker, job in list(self.tasks.items()):
            if job.stage_run.run is run and job.number == job.stage_run.outlet.head:
                held.append(
                    (
                        job.stage_run.lane.stage.number,
                        f"{job.task.describe(worker.frame())}, in worker {worker.name}",
                    )
                )
        if held:
            return min(held)[1]
        for stage_run in run.root.walk():
            if stage_run.inlet.pulling:
                return f"{stage_run.inlet.source.label}, which has not given its next record"  # type: ignore[attr-defined]
            if stage_run.inlet.lacks:
                return stage_run.inlet.lacks
        starting = [worker for crew in self.crews.values() for worker in list(crew.workers) if worker.starting]
        if starting:
            many = f"{len(starting)} worker processes that are" if len(starting) > 1 else "1 worker process that is"
            return f"{many} still being started"
        return "nothing that can be named; see stats()"

    # ------------------------------------------------------------------ ending

    def check_open(self) -> None:
        """Raise if nothing can be read any more."""
        check_open(self.crews, self.pid, self.closed)

    def finalizer(self) -> Callable[[], None]:
        """What ends the workers of a loader that nobody holds any more.

        It may run anywhere, inside the garbage collector too: it takes no lock and waits for
        nothing. It does not hold the engine, which may lead back to the loader.
        """
        return partial(abandoned, self.crews, self.closing, self.blocks, weakref.ref(self))

    def abandon(self) -> None:
        """End without waiting or locking."""
        self.closed = self.shut = True
        self._meter.stop()
        abandoned(self.crews, self.closing, self.blocks, weakref.ref(self))

    def let_go(self, blocking: bool = True) -> None:
        """Of a loader that nobody holds any more: drop what is ready, and so free its memory.

        The engine itself is part of cycles, and stays until the garbage collector finds it. Not `blocking`, it does
        nothing if this thread has the lock, or another one.
        """
        if not self.closing.is_set() or (not blocking and LOCK._is_owned()):  # type: ignore[attr-defined]
            return
        if not LOCK.acquire(blocking):
            return  # a worker has it, and comes here as it ends
        try:
            garbage = self._leave() + self._drop_upcoming() + self._close_carried()
        finally:
            LOCK.release()
        discard(garbage)

    def close(self, grace_s: float = 2.0, quiet: bool = False) -> None:
        """End all work of this loader; workers of its own end too."""
        if self.pid != os.getpid():
            return
        self.exiting = quiet
        try:
            with LOCK:
                self.closed = self.shut = True
                self._meter.stop()
                self.closing.set()
                garbage = self._resettle()
                garbage += self._leave() + self._drop_upcoming() + self._close_carried()
                for memo in self.memos.of_ops(self.plan):
                    memo.close()
                self.reader.waiting = False
                self.reader.unpark()
            discard(garbage)
        finally:
            end_workers(self, grace_s, quiet)


def _cancel_but(stage_run: StageRun, kept: set[int]) -> list[Any]:
    """Cancel a stage and those before it, except what goes on in the next epoch."""
    if id(stage_run) in kept:
        return []
    children = stage_run.children()
    stage_run.children = list
    garbage = stage_run.cancel()
    for child in children:
        garbage += _cancel_but(child, kept)
    return garbage
