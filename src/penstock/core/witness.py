"""Who else sees what workers hand in and how long the training loop waits: a trace, or histograms for an export.

Where nobody looks, the runtime only finds that `engine.witness` is None. All of it is called under the lock, but
`waited`.
"""

from __future__ import annotations

from typing import Any, Protocol

from penstock.core.lane import Job, Pull
from penstock.core.workers import LOCK
from penstock.stats.histogram import Histogram


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


def is_witness(engine: Any, kind: type) -> bool:
    """Whether one of this kind sees what happens in this loader."""
    return any(isinstance(one, kind) for one in _witnesses(engine))


def _witnesses(engine: Any) -> tuple[Witness, ...]:
    return () if engine.counters.witness is None else engine.counters.witness.witnesses


def _set(engine: Any, witnesses: tuple[Witness, ...]) -> None:
    # An isolated engine hands in nothing here: there only waits are seen.
    engine.witness = engine.counters.witness = _All(witnesses) if witnesses else None


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
