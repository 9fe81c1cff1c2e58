"""Whoever reads a loader: where it waits, what it waits for, and when it is itself a worker of another.

All waiting for batches is done here, in `Reader.read`. So it is also the reader that sees timeouts, starts workers
while it has nothing to read, and runs tickets itself where nobody else can.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from threading import get_ident
from time import perf_counter
from typing import Any

from penstock import system
from penstock.core.epoch import Run
from penstock.core.lane import Job, Pull
from penstock.core.work import execute
from penstock.core.workers import HERE, LOCK, Crew
from penstock.errors import StageTimeout
from penstock.executors.parking import is_staged, new_spot
from penstock.program.chunk import Chunk
from penstock.stats.lock import LOCK_PROBE

#: so many workers are started before looking again whether there is something to read
_BURST = 8
#: a reader that waits for what could be served again looks so often whether it may
_HUNGRY_S = 0.05


class Reader:
    """Whoever reads a loader: where it waits, and its name when it runs tickets itself."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.name = "reader"
        self.retired = False
        self.spot = new_spot("reader")
        self.turn, self.unpark = self.spot.turn, self.spot.unpark
        self.staged = is_staged(self.spot)
        self.waiting = False
        #: it has nothing to read, and there is nothing to do that would bring it something
        self.hungry = False
        #: threads inside `read`: more than one while a new iteration takes over from an old one. Idents, and no
        #: count: a thread that was interrupted on its way out is right again when it comes next
        self.inside: set[int] = set()
        #: the crew whose worker reads, if it is one
        self.nested: Crew | None = None
        #: until when it waits at the latest; a nearer deadline must wake it
        self.until = -inf

    def heed(self, deadline: float) -> None:
        """A call has begun that must end by `deadline`."""
        if deadline < self.until:
            self.unpark()

    def frame(self) -> None:
        return None

    def forgo(self) -> None:
        return None

    # ------------------------------------------------------------------ reading

    def read(self, run: Run, timeout_s: float | None) -> Chunk | None:
        """The next chunk of the epoch, or None at its end.

        Waits for it. Where nobody else can, the reader runs tickets of its own loader: without
        workers, or on a pool whose workers all wait in pipelines of their own.
        """
        engine = self.engine
        if engine.pid != system.process.pid:
            engine.check_open()
        chunk = self._at_hand(run) if run.root.outlet.ready else None
        if chunk is not None:
            return chunk
        self.nested = crew = HERE.crew
        nested = None if crew is None else _Nested(crew)
        ident = get_ident()
        self.inside.add(ident)
        began: float | None = None
        try:
            while True:
                if self.staged:
                    self.turn()
                with LOCK:
                    over, chunk, found = self._looked(run, nested)
                if over:
                    break
                if began is None:
                    began = perf_counter()
                    engine.counters.wait_begins(began)
                if found is not None:
                    if nested is not None:
                        nested.works()
                    execute(found[0], self, inline=found[1])
                elif engine.openings:
                    self._start()  # with nothing to read, there is time for that
                else:
                    self._wait(run, began, timeout_s)
                    if self.inside != {ident}:
                        self.unpark()  # it may have been meant for the other one
        finally:
            if nested is not None:
                nested.works()
            self.hungry = False
            self.inside.discard(ident)
            if self.inside:
                self.unpark()
        engine.counters.wait_ends(perf_counter())
        return chunk

    def _at_hand(self, run: Run) -> Chunk | None:
        """The next chunk, where there surely is one. Whoever has room now is woken."""
        engine = self.engine
        if self.staged:
            self.turn()
        with LOCK:
            engine.unsettled = True
            chunk = self._popped(run)
            if chunk is not None and engine.draws:
                run.root.lane.crew.nudge()  # there is always another batch to draw, by a worker
            elif chunk is not None:
                engine.rouse()
            engine.unsettled = False
        return chunk

    def _looked(
        self, run: Run, nested: _Nested | None
    ) -> tuple[bool, Chunk | None, tuple[Job | Pull, bool] | None]:
        """Whether there is nothing to wait for, and the next chunk, if it is not the end; or a ticket to run here.

        Under the lock. The bookkeeping stays unsettled while the reader has tickets in hand, its own or those
        for which it is about to start workers: they would be lost with it.
        """
        engine = self.engine
        while True:
            engine.unsettled = True
            chunk = self._popped(run) if run.root.outlet.ready else None
            if chunk is not None:
                engine.rouse()
                engine.unsettled = False
                return True, chunk, None
            if engine.fault is not None:
                raise engine.fault
            if engine.shut and not engine.exiting:
                engine.check_open()
            if run.ended or run.root.over:
                engine.unsettled = False
                return True, None, None
            if nested is not None:
                nested.waits()
            if engine.reader_works or nested is not None:
                found = self._own_job(run)
                if found is not None:
                    self.waiting = False
                    return False, None, found
                if run.root.outlet.ready or run.root.over:
                    continue  # the last draw has ended the epoch
            if engine.draws and engine.asks and not self.hungry:
                self.hungry = True
                engine.rouse()
                continue  # now that it would wait, it gets what was served before
            break
        if self.nested is not None:
            engine.rouse()  # whoever is idle now does what this worker would have done
        # Whoever finds something for the reader from here on wakes it.
        self.waiting = True
        self._open()
        if not engine.openings:
            engine.unsettled = False
        return False, None, None

    def _popped(self, run: Run) -> Chunk | None:
        """The next chunk of the epoch, if it is there."""
        root = run.root
        chunk = root.pop()
        if chunk is not None and not root.plain:
            root.refill()
        return chunk

    def _own_job(self, run: Run) -> tuple[Job | Pull, bool] | None:
        """A ticket for the reader itself, and whether it is inline."""
        engine = self.engine
        for crew in engine.crews.values():
            inline = crew.executor.inline
            if crew.executor.asynchronous:
                continue
            helps = inline or crew.needs_help(self.nested)
            for stage_run in run.stage_runs(crew):
                job = stage_run.take() if helps else None
                if job is None and stage_run.lane.helpable and not inline:
                    job = stage_run.take(guest=True)
                if job is not None:
                    return job, inline
        return None

    def _open(self) -> None:
        """Look for a few tickets for which workers are to be started."""
        engine = self.engine
        for crew in engine.crews.values():
            if len(crew.workers) >= crew.size:
                continue
            while len(engine.openings) < _BURST and (job := crew.opening()) is not None:
                engine.openings.append(job)

    def _start(self) -> None:
        engine = self.engine
        while True:
            try:
                job = engine.openings.popleft()
            except IndexError:
                return  # all are started, or somebody else has begun anew
            job.stage_run.lane.crew.start(job)

    def _wait(self, run: Run, began: float, timeout_s: float | None) -> None:
        """Park until something changes, a call runs out of time, or the batch does."""
        engine = self.engine
        if began >= LOCK_PROBE.idle_due:
            LOCK_PROBE.try_if_due(busy=False)
        # Set before the deadlines are read: a call that begins meanwhile sees it, or is seen here.
        self.until = inf
        batch = inf if timeout_s is None else began + timeout_s
        self.until = min(batch, self._first_deadline()) if engine.timed else batch
        if self.hungry:
            self.until = min(self.until, perf_counter() + _HUNGRY_S)
        try:
            if self.spot.park(None if self.until == inf else self.until - perf_counter()):
                return
        finally:
            self.until = -inf
        if self.hungry:
            with LOCK:
                engine.rouse()  # who has waited in vain may get what it would not have got at first
        now = perf_counter()
        for worker, job in list(engine.tasks.items()):
            call = job.task.call
            if any(deadline <= now for deadline in call):
                self._give_up(worker, job, call)
        if batch <= now:
            raise StageTimeout(f"no batch within {timeout_s:g} s; held up by {engine.holding(run)}")

    def _first_deadline(self) -> float:
        """When the first of the calls in hand runs out of time."""
        engine = self.engine
        deadlines = [job.task.deadline for job in list(engine.tasks.values())]
        return min((one for one in deadlines if one is not None), default=inf)

    def _give_up(self, worker: Any, job: Job, call: Sequence[float]) -> None:
        """A call is past its timeout. A thread cannot be killed: it is left, and its ticket begun again."""
        engine = self.engine
        with LOCK:
            # The call may have ended since that was seen, and another begun.
            if engine.tasks.get(worker) is not job or not job.task.condemn(call):
                return
            engine.unsettled = True
            del engine.tasks[worker]
            job.task.abandoned = True
            engine.stuck += 1
            lane = job.stage_run.lane
            lane.advance(perf_counter())
            lane.crew.replace(worker)
            job.stage_run.again(job)
            engine.rouse()
            engine.unsettled = False


class _Nested:
    """A worker that reads another pipeline inside its function: it is counted while it waits there.

    Such a worker may be the only one that could make the batch it waits for, so its reader runs
    tickets of its own loader: on its own crew when nobody is idle there, and on another crew when
    workers of that one wait in the same way. A crew whose workers all work will come to the ticket.
    """

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        self.counted = False

    def waits(self) -> None:
        """The worker has nothing to do but wait. Called under the lock."""
        if self.counted:
            return
        self.counted = True
        self.crew.reading += 1
        for client in self.crew.clients:
            client.wake_nested_reader()

    def works(self) -> None:
        if self.counted:
            with LOCK:
                self.counted = False
                self.crew.reading -= 1
