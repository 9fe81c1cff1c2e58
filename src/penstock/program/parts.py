"""The parts of a program: maps in a row are one loop. For one ticket in many, with every call timed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from penstock.plan.plan import Step
from penstock.program.fused import FusedMaps
from penstock.program.task import Task
from penstock.stats.calls import Timing

__all__ = ["Part", "parted", "parts_for", "timed_parts"]

Part = FusedMaps | Step


def parted(steps: Sequence[Step]) -> tuple[Part, ...]:
    """Maps in a row as one part, every other step as its own."""
    parts: list[Part] = []
    for (elementwise, _), some in groupby(steps, lambda step: (step.op.elementwise, step.op.asynchronous)):
        run = list(some)
        parts += [FusedMaps(run)] if elementwise else run
    return tuple(parts)


def parts_for(parts: Sequence[Part], task: Task) -> Sequence[Part]:
    """The parts; one step each, where some calls are known to fail, or with their functions timed."""
    if task.wary:
        return [step for part in parts for step in (part.steps if isinstance(part, FusedMaps) else (part,))]
    return timed_parts(parts, task)


class _TimedMaps(FusedMaps):
    """The same loop over functions that are timed. Made for one ticket."""

    def __init__(self, maps: FusedMaps, timing: Timing) -> None:
        super().__init__(maps.steps)
        self._timing = timing

    def _bound(self, task: Task) -> list[Any]:
        bound = task.bench.bound
        return [self._timing.function(step.number, bound[step.number], self.asynchronous) for step in self.steps]


def timed_parts(parts: Sequence[Part], task: Task) -> Sequence[Part]:
    """The parts; those of maps in a row with their functions timed, if this ticket is to be."""
    timing = task.timing
    if timing is None:
        return parts
    return [_TimedMaps(part, timing) if type(part) is FusedMaps else part for part in parts]
