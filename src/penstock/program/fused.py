"""Consecutive maps as one loop, at the speed of writing them out by hand.

Python runs a call that stands in Python code twice as fast as one that comes from C, so the loop
is written out for each number of functions::

    for sample in samples:
        out.append(
            f1(
                f0(sample)))

The length of `out` says which sample failed, and the line says which function, so nothing is
called twice to find out. Functions that are ``async def`` have the same loop with every call awaited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from types import CodeType, FrameType, TracebackType
from typing import Any

from penstock.plan.plan import Step
from penstock.program.calls import Calls, interrupted
from penstock.program.chunk import Chunk, with_losses
from penstock.program.failure import decide
from penstock.program.task import Task


@cache
def _loop(count: int, asynchronous: bool) -> Callable[..., Any]:
    """The loop for so many functions; function number i is called on line ``count + 2 - i``."""
    names = [f"f{number}" for number in range(count)]
    define, call = ("async def", "await ") if asynchronous else ("def", "")
    lines = [f"{define} loop(samples, out, {', '.join(names)}):", "    for sample in samples: out.append("]
    lines += [f"        {call}{name}(" for name in reversed(names)]
    source = "\n".join(lines) + "sample" + ")" * (count + 1)
    scope: dict[str, Any] = {}
    exec(compile(source, "<penstock: fused maps>", "exec"), scope)  # our own text, and nothing of the user's in it
    made: Callable[..., Any] = scope["loop"]
    return made


class FusedMaps:
    """A run of steps that call one function each, sample by sample: all of them plain functions, or all async."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = tuple(steps)
        self.asynchronous = self.steps[0].op.asynchronous
        self._loop = _loop(len(self.steps), self.asynchronous)

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

    def run(self, chunk: Chunk, task: Task) -> Chunk:
        """`chunk` after all of the functions."""
        if self.asynchronous:
            awaited: Chunk = task.post.run_coroutine(self.run_async(chunk, task))
            return awaited
        out: list[Any] = []
        lost: list[int] = []
        task.begin(self, chunk.places, out, lost)
        functions = task.bench.fused.get(self) or self._bound(task)
        left = iter(chunk.samples) if task.post.desk is None else self._watched(chunk, task)
        try:
            self._loop(left, out, *functions)
        except BaseException as exc:
            going = _GoingOn(self, chunk, task, out, lost)
            while going.on(exc):
                try:
                    self._loop(left, out, *functions)
                    break
                except BaseException as another:
                    exc = another
            return going.chunk()
        chunk.samples = out
        return chunk

    async def run_async(self, chunk: Chunk, task: Task) -> Chunk:
        """The same on an event loop, with every call awaited."""
        out: list[Any] = []
        lost: list[int] = []
        task.begin(self, chunk.places, out, lost)
        functions = task.bench.fused.get(self) or self._bound(task)
        left = iter(chunk.samples) if task.post.desk is None else self._watched(chunk, task)
        try:
            await self._loop(left, out, *functions)
        except BaseException as exc:
            going = _GoingOn(self, chunk, task, out, lost)
            while going.on(exc):
                try:
                    await self._loop(left, out, *functions)
                    break
                except BaseException as another:
                    exc = another
            return going.chunk()
        chunk.samples = out
        return chunk

    def _bound(self, task: Task) -> list[Any]:
        """The worker's own functions."""
        functions = task.bench.fused[self] = [task.bench.bound[step.number] for step in self.steps]
        return functions

    def _watched(self, chunk: Chunk, task: Task) -> Iterator[Any]:
        return task.watched(self.steps[0], chunk.samples, chunk.places)

    def failed_in(self, trace: TracebackType | None) -> Step:
        """The step that an exception came from."""
        while trace is not None:
            if trace.tb_frame.f_code is self.code:
                return self.step_at(trace.tb_lineno)
            trace = trace.tb_next
        return self.steps[0]


class _GoingOn:
    """A call has failed: its sample is dropped and the loop goes on with the others, or the chunk ends there."""

    def __init__(self, maps: FusedMaps, chunk: Chunk, task: Task, out: list[Any], lost: list[int]) -> None:
        self._maps, self._chunk, self._task, self._out = maps, chunk, task, out
        self._calls = Calls(task, maps.steps[0], chunk.samples, chunk.places)
        self._calls.lost = lost

    def on(self, exc: BaseException) -> bool:
        """Whether the loop goes on with the sample after the one that failed in `exc`."""
        calls = self._calls
        if interrupted(exc) if self._maps.asynchronous else self._task.goes_through(exc):
            raise exc
        calls.step = self._maps.failed_in(exc.__traceback__)
        if isinstance(exc, StopIteration):
            exc = RuntimeError("the function raised StopIteration")
        skip = decide(calls.step.op.on_error, exc, 0).action == "skip"
        return calls.dispose(len(self._out) + len(calls.lost), exc, skip)

    def chunk(self) -> Chunk:
        """What was made of the samples that did not fail."""
        calls, chunk = self._calls, self._chunk
        losses = with_losses(chunk.losses, calls.lost, calls.losses, calls.stop)
        places = calls.surviving(chunk.places)
        return Chunk(self._out, places, calls.failure or chunk.failure, losses, final=chunk.final)
