"""Ops that make several samples of one: their outputs, in parts of about a millisecond.

A function may return a list or yield for hours, so outputs are passed on while it yields. What
goes wrong in the middle of it gets the same verdict as a call that fails: on a retry the function
is called again, and what it had yielded before is left out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any

from penstock.ops.functions import result_of
from penstock.program.calls import Attempts, Calls, interrupted, wrong_count
from penstock.program.chunk import Chunk, ErrorRecord, Loss
from penstock.program.sizing import TARGET_S
from penstock.provenance import Place

_END = object()


class _Part:
    """Outputs gathered since the last part was passed on, with what was lost among them."""

    def __init__(self, calls: Calls, chunk: Chunk, one_by_one: bool) -> None:
        self.calls = calls
        self.chunk = chunk
        self.one_by_one = one_by_one
        self._place_of = calls.step.op.place_of
        #: what was lost before this op, not passed yet
        self._lost_before = list(reversed(chunk.losses))
        self._lost_calls = dict(zip(calls.lost, calls.losses, strict=True))
        self._clear()

    def _clear(self) -> None:
        self.samples: list[Any] = []
        self.places: list[Place] = []
        self.losses: list[Loss] = []
        self.began = perf_counter()

    def reached(self, number: int) -> bool:
        """All before sample `number` is done. False if that sample was lost when the function was called."""
        while self._lost_before and self._lost_before[-1].before <= number:
            self.losses.append(self._lost_before.pop()._replace(before=len(self.samples)))
        record = self._lost_calls.get(number)
        if record is not None:
            self.lose(record)
        return record is None

    def lose(self, record: ErrorRecord) -> None:
        self.losses.append(Loss.of(len(self.samples), record))

    def add(self, number: int, sub: int, value: Any) -> bool:
        """One more output of sample `number`; True when it is time to pass the part on."""
        self.samples.append(value)
        self.places.append(self._place_of(self.calls.places[number], sub))
        return self.one_by_one or perf_counter() - self.began > TARGET_S

    def passed(self) -> Chunk:
        """What has been gathered."""
        chunk = Chunk(self.samples, self.places, None, self.losses)
        self._clear()
        return chunk

    def last(self) -> Chunk:
        """What is left, with the failure that ends it, if any."""
        calls, chunk = self.calls, self.chunk
        if calls.failure is None:
            self.reached(len(calls.samples))
        return Chunk(self.samples, self.places, calls.failure or chunk.failure, self.losses, final=chunk.final)


def _numbered(part: _Part, results: Any) -> Iterator[tuple[int, Any]]:
    """What each call returned, with the number of its sample; what was lost between them is gathered."""
    calls = part.calls
    stop = calls.stop if calls.failure is not None else len(calls.samples)
    due = len(calls.surviving(calls.places))
    if len(results) != due:
        raise wrong_count(calls.step.op, len(results), due)
    outputs = iter(results)
    for number in range(stop):
        if part.reached(number):
            yield number, next(outputs)
    if calls.failure is not None:
        part.reached(stop)


def expanded(
    calls: Calls, results: Any, chunk: Chunk, one_by_one: bool, run: Callable[..., Any] | None = None
) -> Iterator[Chunk]:
    """The outputs of every sample in turn; `results` are what the calls returned. `run` fetches and times them."""
    part = _Part(calls, chunk, one_by_one)
    failure = calls.failure
    for number, outputs in _numbered(part, results):
        lost = len(calls.losses)
        for sub, value in enumerate(_each_output(calls, number, outputs, run)):
            if part.add(number, sub, value):
                yield part.passed()
        for record in calls.losses[lost:]:
            part.lose(record)
        if calls.failure is not failure:
            break
    calls.over()
    yield part.last()


def _each_output(calls: Calls, number: int, outputs: Any, run: Callable[..., Any] | None = None) -> Iterator[Any]:
    """The outputs of one sample. A retry calls the function again, and leaves out what it had yielded before."""
    done = 0
    attempts = Attempts(calls, number)
    again = False
    fetched = calls.timed if run is None else partial(run, calls.timed)
    while True:
        try:
            if again:
                outputs = calls.recall(number)
            if isinstance(outputs, AsyncIterator):
                outputs = calls.task.post.run_coroutine(_drained(outputs))
            values = islice(outputs, done, None)
            while True:
                calls.in_hand(number)
                value = fetched(next, values, _END)
                if value is _END:
                    return
                yield value
                done += 1
        except GeneratorExit:
            # A generator of the user's that is not read to its end is closed, not left to the collector.
            close = getattr(outputs, "close", None)
            if close is not None:
                close()
            raise
        except BaseException as exc:
            if calls.task.goes_through(exc):
                raise
            wait_s = attempts.failed(exc)
            if wait_s is None or not calls.task.post.pause(wait_s):
                attempts.give_up(exc)
                return
            again = True


async def _drained(outputs: AsyncIterator[Any]) -> list[Any]:
    return [value async for value in outputs]


async def expanded_async(calls: Calls, results: Any, chunk: Chunk, one_by_one: bool) -> AsyncIterator[Chunk]:
    """The same on an event loop."""
    part = _Part(calls, chunk, one_by_one)
    failure = calls.failure
    for number, outputs in _numbered(part, results):
        lost, sub = len(calls.losses), 0
        async for value in _each_output_async(calls, number, outputs):
            if part.add(number, sub, value):
                yield part.passed()
            sub += 1
        for record in calls.losses[lost:]:
            part.lose(record)
        if calls.failure is not failure:
            break
    calls.over()
    yield part.last()


async def _each_output_async(calls: Calls, number: int, outputs: Any) -> AsyncIterator[Any]:
    done = 0
    attempts = Attempts(calls, number)
    again = False
    while True:
        try:
            if again:
                outputs = await calls.in_time(result_of(calls.recall(number)))
            seen = 0
            values = _as_async(outputs)
            while True:
                value = await calls.in_time(_next(values))
                if value is _END:
                    return
                seen += 1
                if seen > done:
                    yield value
                    done += 1
        except GeneratorExit:
            raise
        except BaseException as exc:
            if interrupted(exc):
                raise
            wait_s = attempts.failed(exc)
            if wait_s is None:
                attempts.give_up(exc)
                return
            import asyncio

            await asyncio.sleep(wait_s)
            again = True


async def _next(values: AsyncIterator[Any]) -> Any:
    """The next value, or `_END`."""
    return await anext(values, _END)


async def _as_async(outputs: Any) -> AsyncIterator[Any]:
    if isinstance(outputs, AsyncIterator):
        async for value in outputs:
            yield value
        return
    for value in outputs:
        yield value
