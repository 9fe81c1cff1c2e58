"""Who else sees what workers hand in and how long the training loop waits: a trace, or histograms for an export.

Where nobody looks, the runtime only finds that `engine.witness` is None. All of it is called under the lock, but
`waited`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any, Protocol

from penstock.core.lane import Job, Lane, Pull
from penstock.core.workers import LOCK
from penstock.stats.histogram import Histogram
from penstock.stats.trace import LOOP_TRACK, Recording

__all__ = ["Timing", "Tracing", "Witness", "join", "part"]


class Witness(Protocol):
    """Sees what happens in one loader."""

    def ticket(self, job: Job | Pull, worker: Any, samples: int) -> None:
        """`worker` has handed in what it made of a ticket, so many samples, or has had its turn at a stream."""

    def waited(self, began: float, ended: float) -> None:
        """The training loop has waited."""


class _All:
    """Several witnesses of one loader."""

    def __init__(self, witnesses: tuple[Witness, ...]) -> None:
        self.witnesses = witnesses

    def ticket(self, job: Job | Pull, worker: Any, samples: int) -> None:
        for one in self.witnesses:
            one.ticket(job, worker, samples)

    def waited(self, began: float, ended: float) -> None:
        for one in self.witnesses:
            one.waited(began, ended)


def join(engine: Any, witness: Witness) -> None:
    """`witness` sees what happens in this loader from now on."""
    with LOCK:
        _set(engine, (*_witnesses(engine), witness))


def part(engine: Any, witness: Witness) -> None:
    """`witness` sees nothing more."""
    with LOCK:
        _set(engine, tuple(one for one in _witnesses(engine) if one is not witness))


def _witnesses(engine: Any) -> tuple[Witness, ...]:
    return () if engine.counters.witness is None else engine.counters.witness.witnesses


def _set(engine: Any, witnesses: tuple[Witness, ...]) -> None:
    # An isolated engine hands in nothing here: there only waits are seen.
    engine.witness = engine.counters.witness = _All(witnesses) if witnesses else None


class Tracing:
    """Records tickets, waits and how much is ready."""

    def __init__(self, recording: Recording, lanes: Callable[[], Iterable[Lane]]) -> None:
        self._recording = recording
        self._lanes = lanes
        #: by lane: what was ready when that was last recorded
        self._held: dict[int, int] = {}

    def ticket(self, job: Job | Pull, worker: Any, samples: int) -> None:
        lane, recording = job.stage_run.lane, self._recording
        label, began = lane.stage.label, job.ended - job.seconds
        if isinstance(job, Pull):
            # A thread in front of a worker process reads while the process runs a ticket.
            track = self._track(worker, " (reads)" if lane.remote else "")
            recording.span("read", track, f"read {label}", began, job.ended)
        else:
            track = self._track(worker)
            recording.span("ticket", track, label, began, job.ended, job.expected, samples, job.cpu_s)
        self._levels()

    def waited(self, began: float, ended: float) -> None:
        with LOCK:
            self._levels()
            self._recording.span("wait", LOOP_TRACK, "wait for a batch", began, ended)

    def _track(self, worker: Any, reads: str = "") -> int:
        if worker.name == "reader":
            return LOOP_TRACK
        return self._recording.track(worker.name.removeprefix("penstock-") + reads)

    def _levels(self) -> None:
        """Record what is ready in each stage, where that has changed."""
        now = perf_counter()
        for lane in self._lanes():
            held = lane.held if lane.bound_samples is None else lane.held_samples
            if self._held.get(lane.number) != held:
                self._held[lane.number] = held
                self._recording.level(lane.stage.label, now, held)


class Timing:
    """Counts how long tickets and waits take, from the moment when somebody has asked for it first."""

    def __init__(self) -> None:
        self.tickets: dict[str, Histogram] = {}
        self.waits = Histogram()

    def ticket(self, job: Job | Pull, worker: Any, samples: int) -> None:
        if isinstance(job, Job):
            label = job.stage_run.lane.stage.label
            histogram = self.tickets.get(label)
            if histogram is None:
                histogram = self.tickets[label] = Histogram()
            histogram.add(job.seconds)

    def waited(self, began: float, ended: float) -> None:
        self.waits.add(ended - began)
