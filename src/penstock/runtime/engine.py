"""What runs behind a loader: lanes, crews, the epoch being read and the one begun early.

The engine knows nothing of the loader, so that a loader nobody holds can be collected; its
finalizer then tells the engine to end. All waiting is done by the reader, in `read`, which is
therefore also the one that sees timeouts.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from math import inf
from time import perf_counter
from typing import Any

from penstock.errors import PenstockError, StageTimeout
from penstock.executors.parking import new_spot
from penstock.plan.plan import Indexed, Joined, Plan
from penstock.plan.rules import Options, make_plan
from penstock.runtime.budget import Budget
from penstock.runtime.chunk import Chunk
from penstock.runtime.crew import HERE, LOCK, Crew, crew_for
from penstock.runtime.inlets import Pulled
from penstock.runtime.program import Program
from penstock.runtime.run import Run
from penstock.runtime.stage_run import Job, Lane, Pull, StageRun
from penstock.runtime.task import Bench
from penstock.runtime.worker import execute, work, work_async
from penstock.sources.source import Flow
from penstock.stats.counters import ReaderCounters

__all__ = ["Engine", "Reader"]

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


class Reader:
    """Whoever reads a loader: where it waits, and its name when it runs tickets itself."""

    def __init__(self) -> None:
        self.name = "reader"
        self.retired = False
        self.spot = new_spot("reader")
        self.waiting = False
        #: the crew whose worker reads, if it is one
        self.nested: Crew | None = None
        #: until when it waits at the latest; a nearer deadline must wake it
        self.until = -inf

    def heed(self, deadline: float) -> None:
        """A call has begun that must end by `deadline`."""
        if deadline < self.until:
            self.spot.unpark()

    def turn(self) -> None:
        self.spot.turn()

    def unpark(self) -> None:
        self.spot.unpark()

    def frame(self) -> None:
        return None


class _Nested:
    """Keeps count of the workers that wait for a pipeline inside a function of another.

    Such a worker may be the only one that could make the batch it waits for, so its reader runs
    tickets of its own loader: on its own crew when nobody is idle there, and on another crew when
    workers of that one wait in the same way. A crew whose workers all work will come to the ticket.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.crew: Crew | None = getattr(HERE, "crew", None)
        self.counted = False

    def __enter__(self) -> _Nested:
        self.reader.nested = self.crew
        return self

    def waits(self) -> None:
        """The worker has nothing to do but wait. Called under the lock."""
        crew = self.crew
        if crew is None or self.counted:
            return
        self.counted = True
        crew.reading += 1
        for client in crew.clients:
            client.wake_nested_reader()

    def works(self) -> None:
        if self.crew is not None and self.counted:
            with LOCK:
                self.counted = False
                self.crew.reading -= 1

    def __exit__(self, *exc: object) -> None:
        self.works()


class Engine:
    """Runs one plan, epoch after epoch."""

    def __init__(self, flow: Flow, options: Options, seed: int, memory: int | None) -> None:
        self.flow = flow
        self.options = options
        self.seed = seed
        self.budget = Budget(memory)
        self.crews: dict[int, Crew] = {}
        self.lanes: dict[int, Lane] = {}
        self.all_lanes: list[Lane] = []
        self.stores: dict[int, Any] = {}
        self.memos: dict[Any, dict[str, Any]] = {}
        self.carried: dict[int, Any] = {}
        self.garbage: list[Any] = []
        self.benches: dict[Any, Bench] = {}
        #: a stage has taken chunks of another, so there is room again further up
        self.freed = False
        #: what each busy worker has in hand
        self.tasks: dict[Any, Job] = {}
        self.reader = Reader()
        self.counters = ReaderCounters()
        self.stuck = 0
        self.current: Run | None = None
        self.upcoming: Run | None = None
        #: the last epoch that may be begun before it is asked for
        self.last_epoch: float = float("inf")
        self.closed = False
        self.closing = threading.Event()
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.plan: Plan
        self._set_up(make_plan(flow, options))
        _engines.add(self)

    def _set_up(self, plan: Plan) -> None:
        self.plan = plan
        self.lanes = {}
        for stage in plan.stages:
            crew = self.crews.get(stage.site.number)
            if crew is None:
                crew = self.crews[stage.site.number] = crew_for(stage.site, work, work_async)
            store = None
            if stage.cache_step is not None:
                step = stage.steps[stage.cache_step]
                store = self.stores.setdefault(step.number, step.op.store())
            program = Program(stage, self.seed, one_by_one=self.budget.bounded, store=store)
            if isinstance(stage.feed, Joined) and stage.feed.composite is None:
                before = self.lanes[stage.feed.children[0].number].program
                program.upstream_reading = before.reading or before.upstream_reading
            self.lanes[stage.number] = Lane(stage, program, crew, self.budget, perf_counter)
        if self.budget.allowed is not None:
            self.budget.portion = self.budget.allowed // (4 * sum(lane.cap for lane in self.lanes.values()))
        self.all_lanes += self.lanes.values()
        self._has_inline = any(crew.executor.inline for crew in self.crews.values())
        self._forks = all(
            isinstance(stage.feed, (Indexed, Joined)) and not _carries(stage.feed) for stage in plan.stages
        )

    # ------------------------------------------------------------------ epochs

    def enter(self, epoch: int, start: int = 0) -> Run:
        """Make `epoch` the one that is read: the one begun early, if it is that, or a new one."""
        self._check_open()
        with LOCK:
            garbage = self._leave()
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
            self._rouse()
        discard(garbage)
        return run

    def leave(self, run: Run) -> None:
        """The epoch is over for the reader."""
        with LOCK:
            garbage = self._leave() if run is self.current else []
        discard(garbage)

    def _leave(self) -> list[Any]:
        run, self.current = self.current, None
        garbage, self.garbage = self.garbage, []
        if run is not None:
            garbage += self.cancelled(run.root)
            run.ended = True
            run.current = False
        return garbage

    def cancelled(self, stage_run: StageRun) -> list[Any]:
        """Cancel a stage and those before it, except what goes on in a later epoch."""
        kept = {id(queue.upstream.stage_run) for queues in self.carried.values() for queue in queues}
        return _cancel_but(stage_run, kept)

    def replan(self, run: Run, position: int) -> Run:
        """A sample was skipped where the plan had relied on the count: go on without relying on it."""
        with LOCK:
            self.options = replace(self.options, wary=True)
            garbage = self._leave()
            if self.upcoming is not None:
                garbage += self.upcoming.cancel()
                self.upcoming = None
            self._set_up(make_plan(self.flow, self.options))
        discard(garbage)
        return self.enter(run.epoch, position)

    def stage_runs(self, crew: Crew) -> list[StageRun]:
        """The stages that may have tickets for `crew`; begins the next epoch when this one's are all out."""
        run = self.current
        if run is None:
            return self.upcoming.stage_runs(crew) if self.upcoming is not None else []
        found = run.stage_runs(crew)
        if self.upcoming is None:
            if run.epoch >= self.last_epoch or not run.root.sourced_out or not self._may_fork():
                return found
            self.upcoming = Run(self, run.epoch + 1)
        return found + self.upcoming.stage_runs(crew)

    def _may_fork(self) -> bool:
        """Whether an epoch may be begun before the one before it is over."""
        return self._forks and all(
            feed.step is None or feed.step.op.settled(self.memos.get(feed.step.number, {}))
            for stage in self.plan.stages
            if isinstance(feed := stage.feed, Joined)
        )

    # ------------------------------------------------------------------ what workers call

    def handed_in(self, job: Job, worker: Any, chunk: Chunk | None, done: bool, seconds: float) -> None:
        """A worker hands in what it has made."""
        stage_run = job.stage_run
        lane = stage_run.lane
        worker.turn()
        with LOCK:
            if self.tasks.get(worker) is job:
                del self.tasks[worker]
            elif job.task is not None and job.task.abandoned:
                return
            lane.advance()
            made = len(chunk.samples) if chunk is not None else 0
            lane.counters.samples += made
            units = max(job.expected, 1)
            lane.sizer.record(units if done else max(units // 4, 1), seconds)
            stage_run.put(job, chunk, done)
            self._after_change(lane.crew)
        if stage_run.cancelled:
            discard([job])

    def dropped(self, job: Job, worker: Any) -> None:
        """A worker gives a ticket back without having run it to its end."""
        with LOCK:
            self.tasks.pop(worker, None)
            job.stage_run.lane.advance()
            job.stage_run.again(job)

    def pulled(self, pull: Pull, pulled: Pulled) -> None:
        """A worker has had its turn at a stream."""
        with LOCK:
            lane = pull.stage_run.lane
            lane.advance()
            pull.stage_run.pulled(pulled)
            self._after_change(lane.crew)
        if pull.stage_run.cancelled:
            discard([pull.stage_run.inlet])

    def _after_change(self, own: Crew) -> None:
        for crew in self.crews.values():
            if crew is not own:
                crew.rouse()
        self.looked_through()

    def looked_through(self) -> bool:
        """Wake the reader if there is something for it: a chunk, the end, or a ticket of its own to run."""
        run = self.current
        revealed = run is not None and run.revealed
        if run is not None and revealed:
            run.revealed = False
            self._rouse()
        self.spread()
        if run is not None and (run.root.outlet.ready or run.root.over or self._has_inline):
            self._wake_reader()
        else:
            self.wake_nested_reader()
        return revealed

    def _wake_reader(self) -> None:
        if self.reader.waiting:
            self.reader.waiting = False
            self.reader.unpark()

    def wake_nested_reader(self) -> None:
        """A reader inside another pipeline's function looks again whether it has to help itself."""
        if self.reader.nested is not None:
            self._wake_reader()

    def crew_closed(self) -> None:
        """A pool was closed under the loader."""
        self._wake_reader()

    def _rouse(self) -> None:
        for crew in self.crews.values():
            crew.rouse()

    def spread(self) -> None:
        """Wake workers further up, where taking a ticket has made room."""
        while self.freed:
            self.freed = False
            self._rouse()

    def pause(self, seconds: float) -> bool:
        """Wait before a retry; False when the loader is closing."""
        return not self.closing.wait(seconds) if seconds else not self.closing.is_set()

    def run_coroutine(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end in the calling thread, or beside it if a loop runs there already."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        loop = self._loop
        if not _loop_runs():
            return _to_the_end(loop, coroutine)
        results: list[Any] = []
        beside = threading.Thread(target=lambda: results.append(_to_the_end(loop, coroutine)), daemon=True)
        beside.start()
        beside.join()
        return results[0]

    # ------------------------------------------------------------------ what the reader calls

    def read(self, run: Run, timeout_s: float | None) -> Chunk | None:
        """The next chunk of the epoch, or None at its end.

        Waits for it. Where nobody else can, the reader runs tickets of its own loader: without
        workers, or on a pool whose workers all wait in pipelines of their own.
        """
        began: float | None = None
        with _Nested(self.reader) as nested:
            while True:
                self.reader.turn()
                with LOCK:
                    chunk = run.root.pop()
                    if chunk is not None:
                        self._rouse()
                        break
                    if run.ended or run.root.over:
                        break
                    self._check_open()
                    nested.waits()
                    found = self._own_job(run)
                    if found is None and (run.revealed or run.root.outlet.ready or run.root.over):
                        if run.revealed:
                            run.revealed = False
                            self._rouse()
                        continue  # looking for a ticket has brought something to light
                    self.spread()
                    if found is None and self.reader.nested is not None:
                        self._rouse()  # whoever is idle now does what this worker would have done
                    self.reader.waiting = found is None
                began = perf_counter() if began is None else began
                if found is not None:
                    nested.works()
                    execute(found[0], self.reader, inline=found[1])
                    continue
                self._wait(run, began, timeout_s)
        if began is not None:
            self.counters.wait_s += perf_counter() - began
        return chunk

    def _own_job(self, run: Run) -> tuple[Job | Pull, bool] | None:
        """A ticket for the reader itself, and whether it is inline."""
        for crew in self.crews.values():
            inline = crew.executor.inline
            helps = inline or crew.needs_help(self.reader.nested)
            for stage_run in run.stage_runs(crew):
                if helps and stage_run.runnable():
                    return stage_run.take(), inline
                if stage_run.lane.helpable and not inline and stage_run.runnable(guest=True):
                    return stage_run.take(guest=True), inline
        return None

    def _wait(self, run: Run, began: float, timeout_s: float | None) -> None:
        """Park until something changes, a call runs out of time, or the batch does."""
        reader = self.reader
        # Set before the deadlines are read: a call that begins meanwhile sees it, or is seen here.
        reader.until = inf
        deadlines = [job.task.deadline for job in list(self.tasks.values()) if job.task.deadline is not None]
        batch = None if timeout_s is None else began + timeout_s
        reader.until = min([*deadlines, *([batch] if batch is not None else [])], default=inf)
        try:
            if reader.spot.park(None if reader.until == inf else reader.until - perf_counter()):
                return
        finally:
            reader.until = -inf
        now = perf_counter()
        for worker, job in list(self.tasks.items()):
            if job.task.deadline is not None and job.task.deadline <= now:
                self._give_up(worker, job)
        if batch is not None and batch <= now:
            raise StageTimeout(f"no batch within {timeout_s:g} s; held up by {self._holding(run)}")

    def _give_up(self, worker: Any, job: Job) -> None:
        """A call is past its timeout. A thread cannot be killed: it is left, and its ticket begun again."""
        with LOCK:
            if self.tasks.get(worker) is not job:
                return
            del self.tasks[worker]
            job.task.abandoned = True
            job.task.condemn()
            self.stuck += 1
            lane = job.stage_run.lane
            lane.advance()
            lane.crew.replace(worker)
            job.stage_run.again(job)
            self._rouse()

    def _holding(self, run: Run) -> str:
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
        return "nothing that can be named; see stats()"

    # ------------------------------------------------------------------ ending

    def _check_open(self) -> None:
        if self.closed:
            raise PenstockError("the loader is closed; make a new one with pipeline.loader()")
        for crew in self.crews.values():
            if not crew.closed:
                continue
            raise PenstockError("the pool that the loader runs on is closed; make a new pool and a new loader")
        if self._pid != os.getpid():
            raise PenstockError("the loader belongs to another process; make a new one after the fork")

    def finalizer(self) -> Callable[[], None]:
        """What ends the workers of a loader that nobody holds any more.

        It may run anywhere, inside the garbage collector too: it takes no lock and waits for
        nothing. It does not hold the engine, which may lead back to the loader.
        """
        return partial(_abandoned, self.crews, self.closing)

    def abandon(self) -> None:
        """End without waiting or locking."""
        self.closed = True
        _abandoned(self.crews, self.closing)

    def close(self, grace_s: float = 2.0, quiet: bool = False) -> None:
        """End all work of this loader; workers of its own end too."""
        if self._pid != os.getpid():
            return
        with LOCK:
            first = not self.closed or bool(self.current)
            self.closed = True
            self.closing.set()
            garbage = self._leave()
            if self.upcoming is not None:
                garbage += self.upcoming.cancel()
                self.upcoming = None
            for crew in self.crews.values():
                crew.leave(self)
            self.reader.waiting = False
            self.reader.unpark()
        discard(garbage)
        if not first and not self.crews:
            return
        crews = dict(self.crews)
        self.crews.clear()
        for crew in crews.values():
            if not crew.shared:
                crew.close(grace_s, quiet)
        if self._loop is not None:
            self._loop.close()
            self._loop = None


def _abandoned(crews: dict[int, Crew], closing: threading.Event) -> None:
    closing.set()
    for crew in list(crews.values()):
        if not crew.shared:
            crew.dismiss()


def discard(garbage: list[Any]) -> None:
    """Close what is open in it and let go of it. Runs functions of the user's, so never under the lock."""
    for item in garbage:
        close = getattr(item, "close", None)
        if close is None:
            continue
        try:
            close()
        except Exception as exc:
            warnings.warn(f"closing an iterator raised {exc!r}", RuntimeWarning, stacklevel=2)
    garbage.clear()


def _to_the_end(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine; when Ctrl-C comes, cancel it properly before going on with that."""
    task = loop.create_task(coroutine)
    try:
        return loop.run_until_complete(task)
    except KeyboardInterrupt:
        task.cancel()
        loop.run_until_complete(asyncio.wait([task]))
        raise


def _loop_runs() -> bool:
    """Whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _carries(feed: Any) -> bool:
    return isinstance(feed, Joined) and feed.step is not None and feed.step.op.carries


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
