"""Ops that make several samples of one: their outputs, in parts of about a millisecond.

A function may return a list or yield for hours, so outputs are passed on while it yields. What
goes wrong in the middle of it gets the same verdict as a call that fails: on a retry the function
is called again, and what it had yielded before is left out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import islice
from time import perf_counter
from typing import Any

from penstock.ops.functions import settled
from penstock.plan.plan import Step
from penstock.provenance import Place, extended
from penstock.runtime.calls import Calls, interrupted
from penstock.runtime.chunk import Chunk, ErrorRecord
from penstock.runtime.failure import decide
from penstock.runtime.sizing import TARGET_S

__all__ = ["expanded", "expanded_async"]


class _Part:
    """Outputs gathered since the last part was passed on."""

    def __init__(self, calls: Calls, chunk: Chunk, one_by_one: bool) -> None:
        self.calls = calls
        self.one_by_one = one_by_one
        self.samples: list[Any] = []
        self.places: list[Place] = []
        #: what was lost before, and is to be told when the outputs have come to its place
        self.losses = chunk.losses
        self.seen = 0
        self.began = perf_counter()

    def add(self, number: int, sub: int, value: Any) -> bool:
        """One more output of sample `number`; True when it is time to pass the part on."""
        self.samples.append(value)
        self.places.append(_place(self.calls.step, self.calls.places[number], sub))
        return self.one_by_one or perf_counter() - self.began > TARGET_S

    def passed(self) -> Chunk:
        chunk = Chunk(self.samples, self.places, None, self._told())
        self.samples, self.places = [], []
        self.began = perf_counter()
        return chunk

    def _told(self) -> list[ErrorRecord]:
        """What was lost up to the last of the outputs."""
        self._gather()
        if not self.losses:
            return []
        rank = self.calls.task.rank
        here = rank(self.places[-1])
        told = [record for record in self.losses if rank(record.place) <= here]
        self.losses = [record for record in self.losses if rank(record.place) > here]
        return told

    def _gather(self) -> None:
        self.losses = self.losses + self.calls.losses[self.seen :]
        self.seen = len(self.calls.losses)

    def last(self, chunk: Chunk) -> Chunk:
        """What is left, with all that is to be told of `chunk`."""
        calls = self.calls
        self._gather()
        losses = self.losses
        if calls.failure is not None and calls.failure.record is not None:
            rank = calls.task.rank
            stop = rank(calls.failure.record.place)
            losses = [record for record in losses if rank(record.place) <= stop]
        failure = calls.failure or chunk.failure
        return Chunk(self.samples, self.places, failure, losses, final=chunk.final)


def _place(step: Step, place: Place, sub: int) -> Place:
    """The place of output `sub` of the sample at `place`."""
    if step.op.ungroups and isinstance(place, (range, list)) and sub < len(place):
        return place[sub]
    return extended(place, sub)


def _numbered(calls: Calls, results: Any) -> Iterator[tuple[int, Any]]:
    """What each call returned, with the number of its sample."""
    lost = set(calls.lost)
    numbers = (number for number in range(len(calls.samples)) if number not in lost)
    return zip(numbers, results, strict=False)


def expanded(calls: Calls, results: Any, chunk: Chunk, one_by_one: bool) -> Iterator[Chunk]:
    """The outputs of every sample in turn; `results` are what the calls returned."""
    part = _Part(calls, chunk, one_by_one)
    failure = calls.failure
    for number, outputs in _numbered(calls, results):
        for sub, value in enumerate(_each_output(calls, number, outputs)):
            if part.add(number, sub, value):
                yield part.passed()
        if calls.failure is not failure:
            break
    calls.over()
    yield part.last(chunk)


def _each_output(calls: Calls, number: int, outputs: Any) -> Iterator[Any]:
    done = attempt = 0
    while True:
        try:
            if attempt:
                outputs = calls.recall(number)
            if isinstance(outputs, AsyncIterator):
                outputs = calls.task.post.run_coroutine(_drained(outputs))
            calls.in_hand(number)
            for value in islice(outputs, done, None):
                yield value
                calls.in_hand(number)
                done += 1
            return
        except GeneratorExit:
            # A generator of the user's that is not read to its end is closed, not left to the collector.
            close = getattr(outputs, "close", None)
            if close is not None:
                close()
            raise
        except BaseException as exc:
            if calls.task.goes_through(exc):
                raise
            verdict = decide(calls.step.op.on_error, exc, attempt)
            if verdict.action != "retry" or not calls.task.post.pause(verdict.after_s):
                calls.dispose(number, exc, skip=verdict.action == "skip")
                return
            attempt += 1


async def _drained(outputs: AsyncIterator[Any]) -> list[Any]:
    return [value async for value in outputs]


async def expanded_async(calls: Calls, results: Any, chunk: Chunk, one_by_one: bool) -> AsyncIterator[Chunk]:
    """The same on an event loop."""
    part = _Part(calls, chunk, one_by_one)
    failure = calls.failure
    for number, outputs in _numbered(calls, results):
        sub = 0
        async for value in _each_output_async(calls, number, outputs):
            if part.add(number, sub, value):
                yield part.passed()
            sub += 1
        if calls.failure is not failure:
            break
    calls.over()
    yield part.last(chunk)


async def _each_output_async(calls: Calls, number: int, outputs: Any) -> AsyncIterator[Any]:
    done = attempt = 0
    while True:
        try:
            if attempt:
                outputs = await settled(calls.recall(number))
            seen = 0
            async for value in _as_async(outputs):
                seen += 1
                if seen > done:
                    yield value
                    done += 1
            return
        except GeneratorExit:
            raise
        except BaseException as exc:
            if interrupted(exc):
                raise
            verdict = decide(calls.step.op.on_error, exc, attempt)
            if verdict.action != "retry":
                calls.dispose(number, exc, skip=verdict.action == "skip")
                return
            attempt += 1
            import asyncio

            await asyncio.sleep(verdict.after_s)


async def _as_async(outputs: Any) -> AsyncIterator[Any]:
    if isinstance(outputs, AsyncIterator):
        async for value in outputs:
            yield value
        return
    for value in outputs:
        yield value
