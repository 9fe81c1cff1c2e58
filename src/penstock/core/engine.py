"""What runs behind a loader: lanes, crews, the epoch being read and the one begun early.

The engine knows nothing of the loader, so that a loader nobody holds can be collected; its
finalizer then tells the engine to end. All waiting is done by the reader, in `read`, which is
therefore also the one that sees timeouts.

Ctrl-C may interrupt the reader between any two instructions, and a fault may stop anybody in the middle of a
change. So whoever changes the bookkeeping for the reader sets `_unsettled` first and clears it last. Where it
is still set when somebody comes next, nothing that the change may have touched is used again: `_resettle`
drops the epochs that were begun and gives the stages new counters. Workers and their processes stay.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock import system
from penstock.core.budget import Budget
from penstock.core.epoch import Run, begun_at, fits_plan
from penstock.core.gather import Feeder
from penstock.core.lane import Job, Lane, Pull
from penstock.core.reader import Nested, Reader
from penstock.core.redo import BEGINNING, Start
from penstock.core.stage import StageRun
from penstock.core.tally import joint_tally, lane_tally, memory_tally
from penstock.core.work import discard, execute
from penstock.core.workers import LOCK, Crew, crew_for
from penstock.errors import PenstockError, PlanError, StageTimeout
from penstock.executors.executor import Executor
from penstock.lazy import named
from penstock.plan.plan import Indexed, Joined, Plan, Step
from penstock.plan.rules import Options, make_plan
from penstock.program.bridge import Bridge
from penstock.program.chunk import Chunk
from penstock.program.program import Program
from penstock.program.task import Bench
from penstock.provenance import Place
from penstock.resume.cursor import saved_edge
from penstock.resume.schema import Edge, InputState
from penstock.sources.source import Flow
from penstock.stats.counters import ReaderCounters
from penstock.stats.lock import LOCK_PROBE
from penstock.stats.watch import Meter

if TYPE_CHECKING:
    from penstock.memory.block import Blocks

__all__ = ["Engine", "out_of_step"]

#: so many workers are started before looking again whether there is something to read
_BURST = 8
#: a reader that waits for what could be served again looks so often whether it may
_HUNGRY_S = 0.05

#: with a bound on memory a block counts as a whole, so little of it may be left unused
_FILLED_WHERE_BOUNDED = 0.8

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_numbers = count(1)


class _Setup(NamedTuple):
    """What a plan needs to run."""

    options: Options
    plan: Plan
    lanes: dict[int, Lane]
    crews: dict[int, Crew]


class Engine:
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
        self.memos: dict[Any, dict[str, Any]] = {}
        #: by segment: inputs that go on from epoch to epoch, and where they stood when the state was saved
        self.carried: dict[str, list[Feeder]] = {}
        self.carried_before: dict[str, InputState] = {}
        self.garbage: list[Any] = []
        self.benches: dict[Any, Bench] = {}
        #: tickets for which the reader is about to start workers
        self._openings: deque[Job | Pull] = deque()
        #: what each busy worker has in hand
        self.tasks: dict[Any, Job] = {}
        self.reader = Reader()
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
        self._unsettled = False
        #: what went wrong in the bookkeeping, where no sample and no worker is to blame: the epoch ends in it
        self._fault: BaseException | None = None
        #: the last epoch that may be begun before it is asked for
        self.last_epoch: float = float("inf")
        #: the loader ends with this epoch
        self.once = False
        self.closed = False
        #: the interpreter exits: whoever still reads is not told off
        self._exiting = False
        self.closing = threading.Event()
        self._pid = os.getpid()
        #: where another process sees what is in hand, and the calls that are not made because they end this one
        self.desk: Any = None
        self.condemned: dict[Any, str] = {}
        #: runs coroutines where there is no event loop
        self.bridge = Bridge()
        self.plan: Plan
        self._set_up(self._prepared(options))
        _engines.add(self)

    def _prepared(self, options: Options) -> _Setup:
        """A plan and its lanes. What the user wrote is pickled here, so never under the lock."""
        plan = make_plan(self.flow, options)
        crews, lanes = dict(self.crews), dict[int, Lane]()
        for stage in plan.stages:
            crew = crews.get(stage.site.number)
            if crew is None:
                crew = crews[stage.site.number] = crew_for(stage.site, _loop_of)
            store = None
            if stage.cache_step is not None:
                step = stage.steps[stage.cache_step]
                store = self.stores.setdefault(step.number, step.op.store())
            program = Program(stage, self.seed, one_by_one=self.budget.bounded, store=store)
            if isinstance(stage.feed, Joined) and stage.feed.composite is None:
                program.upstream = lanes[stage.feed.children[0].number].program
            lane = lanes[stage.number] = Lane(stage, program, crew, self.budget, self.number)
            if lane.remote:
                lane.parcel = named(crew.executor.packs)(program)
                lane.blocks = self._own_blocks()
                crew.executor.expect(lane.parcel)
        return _Setup(options, plan, lanes, crews)

    def _own_blocks(self) -> Blocks:
        if self.blocks is None:
            from penstock.executors.processes import default_blocks

            bounded = self.budget.bounded
            self.blocks = default_blocks(self.budget.spare, _FILLED_WHERE_BOUNDED) if bounded else default_blocks()
        return self.blocks

    def _set_up(self, setup: _Setup) -> None:
        """Run this plan from now on."""
        plan, lanes, crews = setup.plan, setup.lanes, self.crews | setup.crews
        if self.budget.allowed is not None:
            self.budget.portion = self.budget.allowed // (4 * sum(lane.cap for lane in lanes.values()))
        for lane in lanes.values():
            lane.budget = self.budget  # another than it was made with, if somebody was interrupted since
        inline = any(crew.executor.inline for crew in crews.values())
        helpable = any(lane.helpable for lane in lanes.values())
        timed = any(step.op.timeout_s is not None for stage in plan.stages for step in stage.steps)
        draws = any(op.decouples for op in plan.joint_ops)
        forks = not any(op.carries for op in plan.joint_ops) and all(
            isinstance(stage.feed, (Indexed, Joined)) for stage in plan.stages
        )
        all_lanes = [*self.all_lanes, *lanes.values()]
        self.crews.update(crews)
        # Nothing is called from here on, so Ctrl-C cannot come between.
        self.options, self.plan, self.lanes, self.all_lanes = setup.options, plan, lanes, all_lanes
        #: some of it is run by the reader itself
        self.inline = inline
        #: the reader has work of its own, even where it is nobody's worker
        self._reader_works = inline or helpable
        self._timed = timed
        self._draws = draws
        self._forks = forks

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
        return found

    # ------------------------------------------------------------------ epochs

    def enter(self, epoch: int, start: Start = BEGINNING, ahead: bool = False) -> Run:
        """Make `epoch` the one that is read: the one begun early, if it is that, or a new one from `start` on.

        Workers are started by the reader when it has nothing to read, so at once only if it will not
        read yet: `ahead`.
        """
        self._check_open()
        fits = start.edge is None or fits_plan(self.plan, start.edge)
        setup = None if fits else self._wary_setup()
        with LOCK:
            garbage = self._resettle()
            self._unsettled = True
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
            self._unsettled = False
        discard(garbage)
        return run

    def leave(self, run: Run, whole: bool = False) -> None:
        """The epoch is over for the reader: at its end if `whole`, else it was broken off."""
        with LOCK:
            garbage = self._resettle()
            self._unsettled = True
            if run is self.current:
                garbage += self._leave(whole)
            if self.reader.inside:
                self.reader.unpark()
            if self._draws and self.upcoming is None and not self.closed and run.epoch < self.last_epoch:
                # What is there to have samples at hand goes on to gather some.
                self.upcoming = Run(self, run.epoch + 1, BEGINNING)
                self._rouse()
            self._unsettled = False
        discard(garbage)
        for crew in self.crews.values():
            crew.tell_lack()

    def _leave(self, whole: bool = False) -> list[Any]:
        run, self.current = self.current, None
        garbage, self.garbage = self.garbage, []
        if run is not None:
            for step in self._joint_steps():
                step.op.left(self.memos.get(step.number, {}), whole)
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
        if not self._unsettled and self._fault is None:
            return []
        self._abandon_runs()
        self._openings.clear()
        self.tasks.pop(self.reader, None)
        budget = Budget(self.budget.allowed)
        budget.portion = self.budget.portion
        self.budget = budget
        if self.blocks is not None:
            self.blocks.bound(budget.spare if budget.bounded else None)
        renewed = {lane: lane.renewed(budget) for lane in self.lanes.values()}
        self.lanes = {number: renewed[lane] for number, lane in self.lanes.items()}
        self.all_lanes = [renewed.get(lane, lane) for lane in self.all_lanes]
        for step in self._joint_steps():
            memo = self.memos.get(step.number, {})
            step.op.left(memo, whole=False)
            step.op.forget(memo)
        for crew in self.crews.values():
            crew.resettle(self)
        self._unsettled = False
        self._fault = None
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
            if self._fault is None:
                self._fault = exc
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
            self._unsettled = True
            garbage += self._leave() + self._drop_upcoming()
            garbage += self._close_carried()
            for step in self._joint_steps():
                step.op.forget(self.memos.get(step.number, {}))
            self.carried_before = dict(carried)
            self._unsettled = False
        discard(garbage)

    def _joint_steps(self) -> list[Step]:
        """The ops that have joints in this plan."""
        feeds = [stage.feed for stage in self.plan.stages]
        return [feed.step for feed in feeds if isinstance(feed, Joined) and feed.step is not None]

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
            dealt = stage.feed.dealt if isinstance(stage.feed, Indexed) else None
            if dealt is not None and dealt.op.deals.keeps and dealt.op.deals.world > 1:
                raise out_of_step(stage.label, position)
        setup = self._wary_setup()
        with LOCK:
            garbage = self._resettle()
            self._unsettled = True
            garbage += self._leave()
            if setup is not None:
                garbage += self._drop_upcoming()
                self._set_up(setup)
            self._unsettled = False
        discard(garbage)
        return self.enter(run.epoch, Start(begun_at(self.plan.root, run.epoch, position)))

    def _wary_setup(self) -> _Setup | None:
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
        self._rouse()
        return True

    def _may_fork(self) -> bool:
        """Whether an epoch may be begun before the one before it is over."""
        if any(lane.open and lane.stage.cache_step is not None for lane in self.lanes.values()):
            return False  # what is still being made for a cache would be made again
        return all(step.op.settled(self.memos.get(step.number, {})) for step in self._joint_steps())

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

    # ------------------------------------------------------------------ what workers call, under the lock

    def handed_in(self, job: Job | Pull, worker: Any) -> list[Any]:
        """A worker hands in what it has made. Returns what is to be let go of outside the lock."""
        stage_run = job.stage_run
        lane = stage_run.lane
        counters = lane.counters
        if isinstance(job, Pull):
            lane.advance(job.ended)
            counters.reading_s += job.seconds
            stage_run.pulled(job.pulled)
            self._after_change(lane.crew, worker)
            return [stage_run.inlet] if stage_run.cancelled else []
        if self.tasks.get(worker) is job:
            del self.tasks[worker]
        elif job.task is not None and job.task.abandoned:
            worker.retired = True
            return []
        lane.advance(job.ended)
        counters.worked(job.seconds, job.cpu_s)
        if job.made is not None:
            counters.samples += len(job.made.samples)
        units = job.expected or 1
        lane.sizer.record(units if job.done else max(units // 4, 1), job.seconds)
        stage_run.put(job)
        if not (lane.stage.gathered and self._at_ease(stage_run)):
            self._after_change(lane.crew, worker)
        return [job] if stage_run.cancelled else []

    def _at_ease(self, stage_run: StageRun) -> bool:
        """Whether a batch is ready, and there is room: then what comes now for a reservoir is taken in later."""
        run, outlet = self.current, stage_run.outlet
        return (
            run is not None and bool(run.root.outlet.ready) and 2 * outlet.held < stage_run.lane.stage.bound_tickets
        )

    def dropped(self, job: Job, worker: Any) -> None:
        """A worker gives a ticket back without having run it to its end."""
        with LOCK:
            self.tasks.pop(worker, None)
            job.stage_run.lane.advance(perf_counter())
            job.stage_run.again(job)
            if worker is self.reader:
                self._unsettled = False

    def _after_change(self, own: Crew, worker: Any) -> None:
        """Something has been handed in: wake whoever can do something with it. A worker looks for itself."""
        if worker is self.reader:
            self._rouse()
        elif len(self.crews) > 1:
            self.spread(own)
        if self.reader.waiting:
            root = None if self.current is None else self.current.root
            if root is None or root.outlet.ready or not root.open or self._helps_itself:
                self.noticed()

    def spread(self, own: Crew) -> None:
        """Wake workers of other crews than `own`, if there is something for them."""
        for crew in self.crews.values():
            if crew is not own:
                crew.rouse()

    def noticed(self) -> None:
        """Wake the reader if there is something for it: a chunk, the end, or a ticket of its own to run."""
        if not self.reader.waiting:
            return
        run = self.current
        if run is not None and (run.root.outlet.ready or run.root.over or self.inline):
            self._wake_reader()
        else:
            self.wake_nested_reader()

    @property
    def winds_down(self) -> bool:
        """There will be no more tickets: then workers need not wait for any."""
        run = self.current
        return self.once and run is not None and run.epoch >= self.last_epoch and run.root.exhausted

    def _wake_reader(self) -> None:
        if self.reader.waiting:
            self.reader.waiting = False
            self.reader.unpark()

    @property
    def _helps_itself(self) -> bool:
        """Whether the reader may have to run a ticket itself, where another pipeline's worker reads or inline."""
        return self.inline or self.reader.nested is not None

    def wake_nested_reader(self) -> None:
        """A reader inside another pipeline's function looks again whether it has to help itself."""
        if self.reader.nested is not None:
            self._wake_reader()

    def crew_closed(self) -> None:
        """A pool was closed under the loader."""
        self._wake_reader()

    def _rouse(self) -> None:
        for crew in self.crews.values():
            if crew.idle or len(crew.workers) < crew.size:
                crew.rouse()

    def pause(self, seconds: float) -> bool:
        """Wait before a retry; False when the loader is closing."""
        return not self.closing.wait(seconds) if seconds else not self.closing.is_set()

    # ------------------------------------------------------------------ what the reader calls

    def read(self, run: Run, timeout_s: float | None) -> Chunk | None:
        """The next chunk of the epoch, or None at its end.

        Waits for it. Where nobody else can, the reader runs tickets of its own loader: without
        workers, or on a pool whose workers all wait in pipelines of their own.
        """
        began: float | None = None
        if self._pid != system.process.pid:
            self._check_open()
        if run.root.outlet.ready:
            if self.reader.staged:
                self.reader.turn()
            with LOCK:
                self._unsettled = True
                chunk = self._popped(run)
                if chunk is not None:
                    if self._draws:
                        run.root.lane.crew.nudge()  # there is always another batch to draw, by a worker
                    else:
                        self._rouse()
                self._unsettled = False
            if chunk is not None:
                return chunk
        with Nested(self.reader) as nested:
            while True:
                if self.reader.staged:
                    self.reader.turn()
                with LOCK:
                    self._unsettled = True
                    chunk = self._popped(run)
                    if chunk is not None:
                        self._rouse()
                        self._unsettled = False
                        break
                    if self._fault is not None:
                        raise self._fault
                    if not self._exiting:
                        self._check_open()
                    if run.ended or run.root.over:
                        self._unsettled = False
                        break
                    nested.waits()
                    found = self._own_job(run)
                    if found is None and (run.root.outlet.ready or run.root.over):
                        continue  # the last draw has ended the epoch
                    if found is None and self._draws and self.asks and not self.reader.hungry:
                        self.reader.hungry = True
                        self._rouse()
                        continue  # now that it would wait, it gets what was served before
                    if found is None and self.reader.nested is not None:
                        self._rouse()  # whoever is idle now does what this worker would have done
                    # Whoever finds something for the reader from here on wakes it.
                    self.reader.waiting = found is None
                    if found is None:
                        self._open()
                    # A ticket that is in the reader's hands would be lost with it.
                    if found is None and not self._openings:
                        self._unsettled = False
                if began is None:
                    began = perf_counter()
                    self.counters.wait_begins(began)
                if self._openings:
                    self._start()  # with nothing to read, there is time for that
                    continue
                if found is not None:
                    nested.works()
                    execute(found[0], self.reader, inline=found[1])
                    continue
                self._wait(run, began, timeout_s)
                if len(self.reader.inside) > 1:
                    self.reader.unpark()  # it may have been meant for the other one
        self.counters.wait_ends(perf_counter())
        return chunk

    def _popped(self, run: Run) -> Chunk | None:
        """The next chunk of the epoch, if it is there."""
        root = run.root
        chunk = root.pop()
        if chunk is not None and not root.plain:
            root.refill()
        return chunk

    def ask(self, asks: bool) -> None:
        """Whether a training loop waits for whoever reads."""
        with LOCK:
            self.asks = asks
            if asks and self._draws and self.reader.inside:
                self.reader.hungry = True
                self._rouse()
                self._wake_reader()

    def _own_job(self, run: Run) -> tuple[Job | Pull, bool] | None:
        """A ticket for the reader itself, and whether it is inline."""
        if not self._reader_works and self.reader.nested is None:
            return None
        for crew in self.crews.values():
            inline = crew.executor.inline
            if crew.executor.asynchronous:
                continue
            helps = inline or crew.needs_help(self.reader.nested)
            for stage_run in run.stage_runs(crew):
                job = stage_run.take() if helps else None
                if job is None and stage_run.lane.helpable and not inline:
                    job = stage_run.take(guest=True)
                if job is not None:
                    return job, inline
        return None

    def _open(self) -> None:
        """Look for a few tickets for which workers are to be started."""
        for crew in self.crews.values():
            while len(self._openings) < _BURST and (job := crew.opening()) is not None:
                self._openings.append(job)

    def _start(self) -> None:
        while True:
            try:
                job = self._openings.popleft()
            except IndexError:
                return  # all are started, or somebody else has begun anew
            job.stage_run.lane.crew.start(job)

    def _wait(self, run: Run, began: float, timeout_s: float | None) -> None:
        """Park until something changes, a call runs out of time, or the batch does."""
        reader = self.reader
        LOCK_PROBE.try_if_due(busy=False)
        # Set before the deadlines are read: a call that begins meanwhile sees it, or is seen here.
        reader.until = inf
        batch = inf if timeout_s is None else began + timeout_s
        reader.until = min(batch, self._first_deadline()) if self._timed else batch
        if reader.hungry:
            reader.until = min(reader.until, perf_counter() + _HUNGRY_S)
        try:
            if reader.spot.park(None if reader.until == inf else reader.until - perf_counter()):
                return
        finally:
            reader.until = -inf
        if reader.hungry:
            with LOCK:
                self._rouse()  # who has waited in vain may get what it would not have got at first
        now = perf_counter()
        for worker, job in list(self.tasks.items()):
            call = job.task.call
            if any(deadline <= now for deadline in call):
                self._give_up(worker, job, call)
        if batch <= now:
            raise StageTimeout(f"no batch within {timeout_s:g} s; held up by {self.holding(run)}")

    def _first_deadline(self) -> float:
        """When the first of the calls in hand runs out of time."""
        deadlines = [job.task.deadline for job in list(self.tasks.values())]
        return min((one for one in deadlines if one is not None), default=inf)

    def _give_up(self, worker: Any, job: Job, call: Sequence[float]) -> None:
        """A call is past its timeout. A thread cannot be killed: it is left, and its ticket begun again."""
        with LOCK:
            # The call may have ended since that was seen, and another begun.
            if self.tasks.get(worker) is not job or not job.task.condemn(call):
                return
            self._unsettled = True
            del self.tasks[worker]
            job.task.abandoned = True
            self.stuck += 1
            lane = job.stage_run.lane
            lane.advance(perf_counter())
            lane.crew.replace(worker)
            job.stage_run.again(job)
            self._rouse()
            self._unsettled = False

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
            if getattr(stage_run.inlet, "pulling", False):
                return f"{stage_run.inlet.source.label}, which has not given its next record"  # type: ignore[attr-defined]
            if stage_run.inlet.lacks:
                return stage_run.inlet.lacks
        return "nothing that can be named; see stats()"

    # ------------------------------------------------------------------ ending

    def _check_open(self) -> None:
        if self.closed:
            raise PenstockError("the loader is closed; make a new one with pipeline.loader()")
        for crew in self.crews.values():
            if not crew.closed:
                continue
            if crew.lack is not None:
                said = f"not one {crew.executor.kind} worker could be started: {crew.lack}"
                if "ulimit" not in said:
                    said += "; free some memory or raise the limits of this process (ulimit -u, ulimit -v)"
                raise PenstockError(said) from crew.lack
            raise PenstockError("the pool that the loader runs on is closed; make a new pool and a new loader")
        if self._pid != os.getpid():
            raise PenstockError("the loader belongs to another process; make a new one after the fork")

    def finalizer(self) -> Callable[[], None]:
        """What ends the workers of a loader that nobody holds any more.

        It may run anywhere, inside the garbage collector too: it takes no lock and waits for
        nothing. It does not hold the engine, which may lead back to the loader.
        """
        return partial(_abandoned, self.crews, self.closing, self.blocks, weakref.ref(self))

    def abandon(self) -> None:
        """End without waiting or locking."""
        self.closed = True
        self._meter.stop()
        _abandoned(self.crews, self.closing, self.blocks, weakref.ref(self))

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
        if self._pid != os.getpid():
            return
        self._exiting = quiet
        try:
            with LOCK:
                self.closed = True
                self._meter.stop()
                self.closing.set()
                garbage = self._resettle()
                garbage += self._leave() + self._drop_upcoming() + self._close_carried()
                for step in self._joint_steps():
                    step.op.close(self.memos.get(step.number, {}))
                self.reader.waiting = False
                self.reader.unpark()
            discard(garbage)
        finally:
            self._end_workers(grace_s, quiet)

    def _end_workers(self, grace_s: float, quiet: bool) -> None:
        crews = dict(self.crews)
        for number, crew in crews.items():
            with LOCK:
                crew.leave(self)
            if not crew.shared:
                crew.close(grace_s, quiet)
            # Whoever is interrupted while it waits for workers may close once more, and waits for them then.
            self.crews.pop(number, None)
        _close_blocks(self.blocks, crews)
        self.bridge.close()


def _abandoned(
    crews: dict[int, Crew], closing: threading.Event, blocks: Blocks | None, engine: weakref.ref[Engine]
) -> None:
    closing.set()
    for crew in list(crews.values()):
        if not crew.shared:
            crew.dismiss()
    _close_blocks(blocks, crews)
    if (found := engine()) is not None:
        found.let_go(blocking=False)


def _close_blocks(blocks: Blocks | None, crews: dict[int, Crew]) -> None:
    """Give shared memory back, and have the processes of pools do so, too."""
    if blocks is None:
        return
    blocks.close()
    for crew in list(crews.values()):
        if crew.shared and crew.executor.remote:
            for worker in list(crew.workers):
                worker.unpark()


def _loop_of(executor: Executor) -> Any:
    """What a worker of `executor` runs."""
    loop = named(
        executor.loop or ("penstock.core.work:work_async" if executor.asynchronous else "penstock.core.work:work")
    )
    if executor.remote:
        # What was registered last runs first: loaders close before what they were just given ends all processes.
        atexit.unregister(_close_all)
        atexit.register(_close_all)
    return loop


def out_of_step(label: str, number: int) -> PlanError:
    """A sample was skipped where ranks rely on all of them delivering as many."""
    return PlanError(
        f"{label} skipped sample {number}, but ranks that deliver in step rely on each; say that it may: "
        'on_error="skip", so that every rank has a stream of its own'
    )


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


def _close_all() -> None:
    for engine in list(_engines):
        engine.close(grace_s=0.5, quiet=True)


atexit.register(_close_all)
