"""The walk of a ticket on an event loop: the same as `Program.chunks`, with every call awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator
from time import perf_counter
from typing import Any

from penstock.ops.op import Effect
from penstock.plan.plan import Step
from penstock.provenance import Place
from penstock.runtime.calls import Calls
from penstock.runtime.chunk import Chunk, Ticket
from penstock.runtime.failure import decide
from penstock.runtime.program import Program, expansion_place, finished
from penstock.runtime.sizing import TARGET_S
from penstock.runtime.task import Task

__all__ = ["chunks_async"]


async def chunks_async(program: Program, ticket: Ticket, task: Task) -> AsyncIterator[Chunk]:
    """The chunks of one ticket, in order."""
    if ticket.losses or ticket.failure is not None:
        yield Chunk([], (), ticket.failure, ticket.losses)
    for chunk in program.slices(ticket, task):
        async for part in _through(program, 0, chunk, task):
            yield part
        if chunk.failure is not None:
            return


async def _through(program: Program, at: int, chunk: Chunk, task: Task) -> AsyncIterator[Chunk]:
    for number in range(at, len(program.steps)):
        step = program.steps[number]
        if step.op.effect is Effect.EXPANDS:
            async for part in _expanded(step, chunk, task):
                async for done in _through(program, number + 1, part, task):
                    yield done
            return
        if chunk.samples:
            calls = Calls(task, step, chunk.samples, chunk.places)
            chunk = finished(step, chunk, calls, await step.op.run_async(chunk.samples, calls))
    if not chunk.blank:
        yield chunk


async def _expanded(step: Step, chunk: Chunk, task: Task) -> AsyncIterator[Chunk]:
    calls = Calls(task, step, chunk.samples, chunk.places)
    results = await step.op.run_async(chunk.samples, calls)
    lost = set(calls.lost)
    numbers = [number for number in range(len(chunk.samples)) if number not in lost]
    samples: list[Any] = []
    places: list[Place] = []
    began = perf_counter()
    for number, outputs in zip(numbers, results, strict=False):
        sub = 0
        try:
            async for value in _each_output(outputs):
                samples.append(value)
                places.append(expansion_place(step, chunk.places[number], sub))
                sub += 1
                if perf_counter() - began > TARGET_S:
                    yield Chunk(samples, places)
                    samples, places = [], []
                    began = perf_counter()
        except Exception as exc:
            # Half of the outputs have gone on, so a retry could not be told from a repetition.
            if not calls.dispose(number, exc, skip=decide(step.op.on_error, exc, 10**9).action == "skip"):
                break
    failure = calls.failure or chunk.failure
    yield Chunk(samples, places, failure, chunk.losses + calls.losses, final=chunk.final)


async def _each_output(outputs: Any) -> AsyncIterator[Any]:
    if isinstance(outputs, AsyncIterator):
        async for value in outputs:
            yield value
        return
    for value in outputs:
        yield value
