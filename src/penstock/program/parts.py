"""The parts of a program: maps in a row are one loop. For one ticket in many, with every call timed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from types import CodeType
from typing import Any

from penstock.plan.plan import Step
from penstock.program.fused import FusedMaps
from penstock.program.task import Task
from penstock.stats.calls import TIMED_CALLS, Timed, Timing

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
    """The same loop, made for one ticket: over its first samples with functions that are timed, then as ever.

    Called again after a failure, it goes on with the samples that are left, the first of them timed again.
    """

    def __init__(self, maps: FusedMaps, timing: Timing) -> None:
        super().__init__(maps.steps)
        self._timing = timing
        self._plain = self._loop
        self._loop = self._both_async if self.asynchronous else self._both

    @property
    def code(self) -> CodeType:
        return self._plain.__code__

    def _bound(self, task: Task) -> list[Any]:
        return [task.bench.bound[step.number] for step in self.steps]

    def _timed(self, functions: Sequence[Any]) -> list[Timed]:
        timing = self._timing
        pairs = zip(self.steps, functions, strict=True)
        return [timing.function(step.number, function, self.asynchronous) for step, function in pairs]

    def _both(self, left: Iterator[Any], out: list[Any], *functions: Any) -> None:
        timed = self._timed(functions)
        self._plain(islice(left, TIMED_CALLS), out, *timed)
        before = len(out)
        self._plain(left, out, *functions)
        _count(timed, len(out) - before)

    async def _both_async(self, left: Iterator[Any], out: list[Any], *functions: Any) -> None:
        timed = self._timed(functions)
        await self._plain(islice(left, TIMED_CALLS), out, *timed)
        before = len(out)
        await self._plain(left, out, *functions)
        _count(timed, len(out) - before)


def _count(timed: Sequence[Timed], calls: int) -> None:
    """So many calls more were not timed."""
    for one in timed:
        one.calls += calls


def timed_parts(parts: Sequence[Part], task: Task) -> Sequence[Part]:
    """The parts; those of maps in a row with their functions timed, if this ticket is to be."""
    timing = task.timing
    if timing is None:
        return parts
    return [_TimedMaps(part, timing) if type(part) is FusedMaps else part for part in parts]
