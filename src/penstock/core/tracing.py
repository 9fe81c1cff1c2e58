"""Traces of a loader: tickets that workers hand in and waits of the reader become a `Recording`, then a file."""

from __future__ import annotations

import gzip
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import IO, Any, cast

from penstock.checks import whole_number
from penstock.core.lane import Job, Lane, Pull
from penstock.core.witness import is_witness, join, part
from penstock.core.workers import LOCK
from penstock.errors import PenstockError, PlanError
from penstock.stats.trace import LOOP_TRACK, Recording

_UNSEEN = (
    "loader(isolate=True): the workers are in another process, so only the waits of the training loop are in this "
    "trace; to see tickets, trace a loader without isolate"
)


@contextmanager
def traced(engine: Any, isolated: bool, path: str | os.PathLike[str], events: int) -> Iterator[None]:
    """Record what happens in a loader inside this block, and write it to `path` at its end."""
    limit = whole_number(events, "trace(events=)", least=1)
    target = Path(path)
    if not target.parent.is_dir():
        raise PlanError(f"trace({str(path)!r}): there is no folder {str(target.parent)!r}; make it first")
    if target.is_dir():
        raise PlanError(
            f"trace({str(path)!r}): this is a folder; name a file in it, as {str(target / 'trace.json')!r}"
        )
    if is_witness(engine, _Tracing):
        raise PenstockError("this loader is being traced already; end that block first")
    engine.check_open()
    recording = Recording(perf_counter(), limit)
    witness = _Tracing(recording, lambda: () if isolated else engine.lanes.values())
    join(engine, witness)
    try:
        yield
    finally:
        part(engine, witness)
        _write(recording, target, perf_counter(), _UNSEEN if isolated else "")


class _Tracing:
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


def _write(recording: Recording, target: Path, ended: float, note: str) -> None:
    """Write a trace; the file is there as a whole or not at all."""
    pid = os.getpid()
    notes: dict[str, Any] = {"events": len(recording), "dropped": recording.dropped}
    if note:
        notes["note"] = note
    partial = target.with_name(f".{target.name}.{pid}")
    try:
        compressed = target.suffix == ".gz"
        with cast("IO[str]", gzip.open(partial, "wt") if compressed else partial.open("w")) as file:
            recording.write(file, pid, notes)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    if recording.dropped:
        warnings.warn(
            f"the trace {str(target)!r} is full: it has {len(recording)} events, of the first "
            f"{recording.last - recording.began:.3g} s of {ended - recording.began:.3g} s, and lacks "
            f"{recording.dropped} later ones. Trace fewer steps, or give trace(events=) a larger number",
            RuntimeWarning,
            stacklevel=5,
        )
