"""The walk of a ticket on an event loop: the same as `Program.chunks`, with every call awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

from penstock.ops.op import Effect
from penstock.program.calls import Calls
from penstock.program.chunk import Chunk, Ticket
from penstock.program.expand import expanded_async
from penstock.program.fused import FusedMaps
from penstock.program.parts import Part, timed_parts
from penstock.program.program import Program, finished
from penstock.program.task import Task

#: a ticket of so few samples is not run in slices: to begin each of them costs more than a call
_WHOLE = 8


def chunks_async(program: Program, ticket: Ticket, task: Task) -> AsyncIterator[Chunk] | Iterator[Chunk]:
    """The chunks of one ticket, in order. Those of a `simple` program still have to go through its parts."""
    return _begun(program, ticket, task) if program.simple else _finished(program, ticket, task)


def _begun(program: Program, ticket: Ticket, task: Task) -> Iterator[Chunk]:
    if ticket.failure is not None:
        yield Chunk([], (), ticket.failure)
    if ticket.count <= _WHOLE and not program.one_by_one:
        chunk = program.begun(ticket, task)
        chunk.final = True
        yield chunk
    else:
        yield from program.slices(ticket, task)


async def _finished(program: Program, ticket: Ticket, task: Task) -> AsyncIterator[Chunk]:
    if ticket.failure is not None:
        yield Chunk([], (), ticket.failure)
    for chunk in program.slices(ticket, task):
        async for made in _through(program, timed_parts(program.parts, task), chunk, task):
            yield made
        if chunk.failure is not None:
            return


async def _through(program: Program, parts: Sequence[Part], chunk: Chunk, task: Task) -> AsyncIterator[Chunk]:
    for number, part in enumerate(parts):
        if not isinstance(part, FusedMaps) and part.op.effect is Effect.EXPANDS:
            if not chunk.samples:
                break
            calls = Calls(task, part, chunk.samples, chunk.places)
            results = await part.op.run_async(list(chunk.samples), calls)
            async for piece in expanded_async(calls, results, chunk, program.one_by_one):
                async for made in _through(program, parts[number + 1 :], piece, task):
                    yield made
            return
        chunk = await after(part, chunk, task)
    if not chunk.blank:
        if type(chunk.samples) is not list:
            chunk.samples = list(chunk.samples)
        yield chunk


async def after(part: Part, chunk: Chunk, task: Task) -> Chunk:
    """`chunk` after a part that makes no more samples than it gets."""
    if not chunk.samples:
        return chunk
    if isinstance(part, FusedMaps):
        return await part.run_async(chunk, task)
    calls = Calls(task, part, chunk.samples, chunk.places)
    results = await part.op.run_async(list(chunk.samples), calls)
    calls.over()
    return finished(part, chunk, calls, results)
