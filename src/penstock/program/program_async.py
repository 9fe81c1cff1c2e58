"""The walk of a ticket on an event loop: the same as `Program.chunks`, with every call awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator

from penstock.ops.op import Effect
from penstock.program.calls import Calls
from penstock.program.chunk import Chunk, Ticket
from penstock.program.expand import expanded_async
from penstock.program.program import Program, finished
from penstock.program.task import Task

__all__ = ["chunks_async", "whole_async"]


async def whole_async(program: Program, ticket: Ticket, task: Task) -> Chunk:
    """The one chunk of a ticket of one unit, for a program that is `simple`."""
    chunk = program.begun(ticket, task)
    for step in program.steps:
        if not chunk.samples:
            break
        calls = Calls(task, step, chunk.samples, chunk.places)
        results = await step.op.run_async(chunk.samples, calls)
        calls.over()
        chunk = finished(step, chunk, calls, results)
    if type(chunk.samples) is not list:
        chunk.samples = list(chunk.samples)
    chunk.final = True
    return chunk


async def chunks_async(program: Program, ticket: Ticket, task: Task) -> AsyncIterator[Chunk]:
    """The chunks of one ticket, in order."""
    if ticket.failure is not None:
        yield Chunk([], (), ticket.failure)
    for chunk in program.slices(ticket, task):
        async for part in _through(program, 0, chunk, task):
            yield part
        if chunk.failure is not None:
            return


async def _through(program: Program, at: int, chunk: Chunk, task: Task) -> AsyncIterator[Chunk]:
    for number in range(at, len(program.steps)):
        step = program.steps[number]
        if not chunk.samples:
            break
        calls = Calls(task, step, chunk.samples, chunk.places)
        results = await step.op.run_async(list(chunk.samples), calls)
        if step.op.effect is Effect.EXPANDS:
            async for part in expanded_async(calls, results, chunk, program.one_by_one):
                async for done in _through(program, number + 1, part, task):
                    yield done
            return
        calls.over()
        chunk = finished(step, chunk, calls, results)
    if not chunk.blank:
        if type(chunk.samples) is not list:
            chunk.samples = list(chunk.samples)
        yield chunk
