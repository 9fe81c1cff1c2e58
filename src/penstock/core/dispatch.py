"""What workers tell a loader, and whom it wakes for that. All of it under the lock, but `dropped` and `pause`.

A worker hands in what it has made. That may be something for the reader, or input or room for other stages: then
one worker of each of their crews is woken, if one is idle. A worker that has handed something in looks for itself.
"""

from __future__ import annotations

import threading
from time import perf_counter
from typing import TYPE_CHECKING, Any

from penstock.core.epoch import Run
from penstock.core.lane import Job, Pull
from penstock.core.reader import Reader
from penstock.core.stage import StageRun
from penstock.core.tuning import Tuning
from penstock.core.workers import LOCK, Crew

if TYPE_CHECKING:
    from penstock.core.witness import Witness


class Dispatch:
    """A loader, as its workers see it."""

    reader: Reader
    crews: dict[int, Crew]
    #: what each busy worker has in hand
    tasks: dict[Any, Job]
    current: Run | None
    upcoming: Run | None
    #: a change of the bookkeeping has begun and not ended, or the reader has a ticket in hand
    unsettled: bool
    #: some of it is run by the reader itself
    inline: bool
    #: the loader ends with this epoch, the last one
    once: bool
    #: it is closed, or workers that it runs on are
    shut: bool = False
    last_epoch: float
    closing: threading.Event
    #: finds the number of workers where the user has left that open
    tuning: Tuning | None
    #: who else sees what is handed in; nobody, as a rule
    witness: Witness | None = None

    def handed_in(self, job: Job | Pull, worker: Any) -> list[Any]:
        """A worker hands in what it has made. Returns what is to be let go of outside the lock."""
        stage_run = job.stage_run
        lane = stage_run.lane
        counters = lane.counters
        if type(job) is Pull:
            lane.advance(job.ended)
            counters.reading_s += job.seconds
            stage_run.pulled(job.pulled)
            if self.witness is not None:
                self.witness.ticket(job, worker, 0)
            self._after_change(lane.crew, worker)
            return [stage_run.inlet] if stage_run.cancelled else []
        if self.tasks.get(worker) is job:
            del self.tasks[worker]
        elif job.task is not None and job.task.abandoned:
            worker.retired = True
            return []
        lane.advance(job.ended)
        if job.cpu_s is None:
            counters.unmeasured_s += job.seconds
        else:
            counters.measured(job.seconds, job.cpu_s)
        samples = 0 if job.made is None else len(job.made.samples)
        counters.samples += samples
        units = job.expected or 1
        if job.timing is not None:
            counters.timed(job.timing)
            lane.sizer.unit_bytes = job.timing.nbytes / units
            job.timing = None
        lane.sizer.record(units if job.done else max(units // 4, 1), job.seconds)
        stage_run.put(job)
        if self.witness is not None:
            self.witness.ticket(job, worker, samples)
        if self.tuning is not None and job.ended >= self.tuning.due:
            self.tuning.look(job.ended)
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
                self.unsettled = False

    def _after_change(self, own: Crew, worker: Any) -> None:
        """Something has been handed in: wake whoever can do something with it. A worker looks for itself."""
        if worker is self.reader:
            self.rouse()
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
        self.shut = True
        self._wake_reader()

    def rouse(self) -> None:
        for crew in self.crews.values():
            if crew.idle or len(crew.workers) < crew.size:
                crew.rouse()

    def pause(self, seconds: float) -> bool:
        """Wait before a retry; False when the loader is closing."""
        return not self.closing.wait(seconds) if seconds else not self.closing.is_set()
