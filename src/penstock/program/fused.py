"""Consecutive maps as one loop, at the speed of writing them out by hand.

Python runs a call that stands in Python code twice as fast as one that comes from C, so the loop
is written out for each number of functions::

    for sample in samples:
        out.append(
            f1(
                f0(sample)))

The length of `out` says which sample failed, and the line says which function, so nothing is
called twice to find out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from types import CodeType, FrameType, TracebackType
from typing import Any

from penstock.plan.plan import Step
from penstock.program.calls import Calls
from penstock.program.chunk import Chunk, with_losses
from penstock.program.failure import decide
from penstock.program.task import Task

__all__ = ["FusedMaps"]


@cache
def _loop(count: int) -> Callable[..., None]:
    """The loop for so many functions; function number i is called on line ``count + 2 - i``."""
    names = [f"f{number}" for number in range(count)]
    lines = [f"def loop(samples, out, {', '.join(names)}):", "    for sample in samples: out.append("]
    lines += [f"        {name}(" for name in reversed(names)]
    source = "\n".join(lines) + "sample" + ")" * (count + 1)
    scope: dict[str, Any] = {}
    exec(compile(source, "<penstock: fused maps>", "exec"), scope)  # our own text, and nothing of the user's in it
    made: Callable[..., None] = scope["loop"]
    return made


class FusedMaps:
    """A run of steps that call one function each, sample by sample."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = tuple(steps)
        self._loop = _loop(len(self.steps))

    @property
    def code(self) -> CodeType:
        return self._loop.__code__

    def step_at(self, line: int) -> Step:
        """The step whose function is called on this line of the loop."""
        return self.steps[min(max(len(self.steps) + 2 - line, 0), len(self.steps) - 1)]

    def step_in(self, frame: FrameType | None) -> Step:
        """The step that a thread is in, from where it stands."""
        while frame is not None:
            if frame.f_code is self.code:
                return self.step_at(frame.f_lineno)
            frame = frame.f_back
        return self.steps[0]

    def _failed_in(self, trace: TracebackType | None) -> Step:
        while trace is not None:
            if trace.tb_frame.f_code is self.code:
                return self.step_at(trace.tb_lineno)
            trace = trace.tb_next
        return self.steps[0]

    def run(self, chunk: Chunk, task: Task) -> Chunk:
        """`chunk` after all of the functions."""
        samples = chunk.samples
        out: list[Any] = []
        lost: list[int] = []
        task.begin(self, chunk.places, out, lost)
        functions = task.bench.fused.get(self) or self._bound(task)
        desk = task.post.desk
        left = iter(samples) if desk is None else task.watched(self.steps[0], samples, chunk.places)
        try:
            self._loop(left, out, *functions)
        except BaseException as exc:
            return self._went_on(chunk, task, left, out, lost, exc)
        chunk.samples = out
        return chunk

    def _bound(self, task: Task) -> list[Any]:
        functions = task.bench.fused[self] = [task.bench.bound[step.number] for step in self.steps]
        return functions

    def _went_on(
        self, chunk: Chunk, task: Task, left: Iterator[Any], out: list[Any], lost: list[int], exc: BaseException
    ) -> Chunk:
        """A call has failed: drop its sample and go on with the others, or end the chunk there."""
        calls = Calls(task, self.steps[0], chunk.samples, chunk.places)
        calls.lost = lost
        while True:
            if task.goes_through(exc):
                raise exc
            calls.step = self._failed_in(exc.__traceback__)
            if isinstance(exc, StopIteration):
                exc = RuntimeError("the function raised StopIteration")
            skip = decide(calls.step.op.on_error, exc, 0).action == "skip"
            if not calls.dispose(len(out) + len(lost), exc, skip):
                break
            try:
                self._loop(left, out, *self._bound(task))
                break
            except BaseException as another:
                exc = another
        places = calls.surviving(chunk.places)
        losses = with_losses(chunk.losses, lost, calls.losses, calls.stop)
        return Chunk(out, places, calls.failure or chunk.failure, losses, final=chunk.final)
