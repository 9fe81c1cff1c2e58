"""Tickets that a worker process has in hand, as its parent sees them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.core.lane import Job, Lane
from penstock.executors.executor import Worker
from penstock.ops.op import Op
from penstock.program.chunk import Chunk, ErrorRecord, Failure
from penstock.program.desk import READING, Desk, Sample
from penstock.program.task import CallKey
from penstock.remote.trial import Trial


class Sent(NamedTuple):
    """A ticket that was sent and is not answered yet."""

    ticket: int
    job: Job


class Paused:
    """Stands in `Job.chunks` for a ticket that was paused in a worker process."""

    def __init__(self, ticket: int, unwanted: deque[int], worker: Worker) -> None:
        self.ticket = ticket
        self._unwanted = unwanted
        self._worker = worker

    def close(self) -> None:
        """Nobody waits for the rest of it."""
        self._unwanted.append(self.ticket)
        self._worker.unpark()


class RemoteTask:
    """What a worker process has in hand, as `Engine` sees it, and what is known of the ticket's calls."""

    abandoned = False
    deadline: float | None = None
    call: Sequence[float] = ()

    def __init__(self, lane: Lane, worker_name: str) -> None:
        self.lane = lane
        self.worker_name = worker_name
        self.timeouts: dict[CallKey, int] = {}
        self.trial = Trial()
        #: the ticket was cut short at a sample that cannot be sent
        self.ends_in: Failure | None = None
        self.desk: Desk | None = None

    def rest(self) -> None:
        self.desk = None

    def describe(self, frame: object = None) -> str:
        """The op and the sample in hand."""
        sample = None if self.desk is None else self.desk.sample
        return "nothing yet" if sample is None else described(self.lane, sample)


def described(lane: Lane, sample: Sample) -> str:
    """An op and a sample, in words."""
    label, where = _op_of(lane, sample)
    index = lane.program.index_of(sample.epoch, sample.position)
    return f"{label}{f' at {where}' if where else ''}, sample {index}"


def _op_of(lane: Lane, sample: Sample) -> tuple[str, str]:
    if sample.step == READING:
        reading = lane.program.reading
        return (lane.stage.label if reading is None else reading.source.label), ""
    op: Op[Any, Any] = next(step.op for step in lane.stage.steps if step.number == sample.step)
    return op.label, op.where


def lost(job: Job, sample: Sample | None, exc: Exception) -> Chunk:
    """The chunk of a ticket that is given up."""
    lane = job.stage_run.lane
    label, position = lane.stage.label, job.ticket.first
    epoch = job.stage_run.inlet.epoch
    if sample is not None:
        label, position, epoch = _op_of(lane, sample)[0], sample.position, sample.epoch
    index = lane.program.index_of(epoch, position)
    return Chunk([], (), Failure(exc, ErrorRecord(label, index, epoch, exc, position)))
