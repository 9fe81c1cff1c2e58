"""Calling the user's functions: in a tight loop, and with a verdict for every call that fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from types import CoroutineType
from typing import Any

import numpy as np

from penstock.errors import PenstockError, Skip, StageTimeout
from penstock.ops.functions import result_of
from penstock.ops.op import Effect, Key, Op
from penstock.plan.plan import Step
from penstock.program.chunk import ErrorRecord, Failure, sample_label
from penstock.program.failure import add_note, decide
from penstock.program.task import Task
from penstock.provenance import Place, counter
from penstock.randomness import Draws, derive


class SampleInfo:
    """What a function with ``info=True`` gets beside its sample."""

    __slots__ = ("_calls", "_number", "_rng", "epoch", "index", "place")

    def __init__(self, calls: Calls, number: int) -> None:
        self._calls = calls
        self._number = number
        self._rng: np.random.Generator | None = None
        #: the epoch; a pass of a repeat() or epoch() further on counts as one
        self.epoch = calls.epoch_of(number)
        #: the sample's number in its source
        self.index = calls.index(number)
        #: where the sample stands in the order of the epoch
        self.place = self.index if calls.task.for_cache else calls.places[number]

    @property
    def rng(self) -> np.random.Generator:
        """A generator for this sample alone, valid during the call."""
        if self._rng is None:
            self._rng = self._calls.rng(self._number)
        return self._rng

    def __repr__(self) -> str:
        return f"SampleInfo(epoch={self.epoch}, index={self.index}, place={self.place})"


class Calls:
    """One op on the samples of one chunk: the `info` that `Op.run` gets.

    `lost` are the numbers of the samples that were dropped, `failure` what ended the chunk.
    """

    def __init__(self, task: Task, step: Step, samples: Sequence[Any], places: Sequence[Place]) -> None:
        self.task = task
        self.step = step
        self.epoch = task.epoch
        self.places = places
        self.bound = task.bench.bound[step.number]
        self.samples = samples
        self.lost: list[int] = []
        self.losses: list[ErrorRecord] = []
        self.failure: Failure | None = None
        #: where the failure stands
        self.stop = len(samples)
        self._rng_key: int | None = None
        self._call: tuple[Callable[..., Any], Callable[[int], Any] | None] | None = None

    # ------------------------------------------------------------------ what a call may ask for

    @property
    def key(self) -> Key:
        """What the op's random choices hang on."""
        return self.task.key(self.step)

    def step_in(self, frame: object) -> Step:
        """The step whose function is being called."""
        return self.step

    def index(self, number: int) -> int:
        """The number in its source of sample `number` of the chunk."""
        return self.task.program.index_of(self.epoch, self.places[number])

    @property
    def own_thread(self) -> bool:
        """Whether a worker runs the op, and not the reader in its own thread."""
        return not self.task.post.inline

    def in_hand(self, number: int) -> None:
        """A generator that was made of sample `number` of the chunk goes on."""
        self.task.begin(self, self.places[number : number + 1])

    def epoch_of(self, number: int) -> int:
        """The epoch of sample `number` of the chunk; what a cache will keep belongs to none, and says 0."""
        if self.task.for_cache:
            return 0
        return self.task.program.epoch_of(self.step, self.epoch, self.places[number])

    def _drawing(self, number: int) -> tuple[int, int, int]:
        """What the draws of a sample depend on: its epoch, its position, and the way from there.

        What a cache will keep is drawn for the sample of the source, whichever pass comes by it first.
        """
        position, way = counter(self.places[number])
        if self.task.for_cache:
            return 0, self.index(number), way
        return self.epoch, position, way

    def rng(self, number: int) -> np.random.Generator:
        epoch, position, way = self._drawing(number)
        if self._rng_key is None:
            self._rng_key = derive("rng", self.key.seed, epoch, self.key.op)
        # A generator function draws while others do, so it needs a Generator of its own.
        draws = Draws() if self.step.op.effect is Effect.EXPANDS else self.task.bench.draws
        return draws.at(self._rng_key, position, way)

    def sample_info(self, number: int) -> SampleInfo:
        return SampleInfo(self, number)

    def seed_globals(self, number: int) -> None:
        seed = derive("global", self.key.seed, self.key.op, *self._drawing(number))
        from penstock.generators import seed_all

        seed_all(seed)

    def surviving(self, items: Sequence[Any]) -> Sequence[Any]:
        """`items` without those of dropped samples, and without what comes after a failure."""
        if self.failure is not None:
            items = items[: self.stop]
        if not self.lost:
            return items
        lost = set(self.lost)
        return [item for number, item in enumerate(items) if number not in lost]

    # ------------------------------------------------------------------ calling

    def each(
        self, fn: Callable[..., Any], samples: Sequence[Any], extra: Callable[[int], Any] | None = None
    ) -> list[Any]:
        self._call = (fn, extra)
        if (self.step.op.timeout_s is not None and not self.task.post.inline) or self.task.wary:
            return self._each_timed(samples)
        out: list[Any] = []
        self.task.begin(self, self.places, out, self.lost)
        watched = self.task.watched(self.step, samples, self.places)
        results = map(fn, watched) if extra is None else map(fn, watched, map(extra, range(len(samples))))
        while True:
            try:
                # extend() keeps what came before an exception, so its length says which sample failed.
                out.extend(results)
                if len(out) + len(self.lost) == len(samples):
                    return out
                raise RuntimeError("the function raised StopIteration")
            except BaseException as exc:
                number = len(out) + len(self.lost)
                if not self._settle(number, exc, out):
                    return out

    def _each_timed(self, samples: Sequence[Any]) -> list[Any]:
        """Sample by sample, with the time at which each call began on view."""
        out: list[Any] = []
        self.task.begin(self, self.places, out, self.lost)
        for number, _ in enumerate(self.task.watched(self.step, samples, self.places)):
            known = self.task.verdict(self.step, self.places[number]) if self.task.wary else None
            try:
                if known is not None:
                    raise known[0]
                out.append(self.recall(number))
            except BaseException as exc:
                if not self._settle(number, exc, out, attempt=0 if known is None else known[1]):
                    return out
        return out

    def _settle(self, number: int, exc: BaseException, out: list[Any], attempt: int = 0) -> bool:
        """Retry, drop or fail sample `number`; False when the chunk ends here."""
        attempts = Attempts(self, number, attempt)
        while True:
            if self.task.goes_through(exc):
                raise exc
            wait_s = attempts.failed(exc)
            if wait_s is None or not self.task.post.pause(wait_s):
                return attempts.give_up(exc)
            try:
                out.append(self.recall(number))
                return True
            except BaseException as again:
                exc = again

    def recall(self, number: int) -> Any:
        """Call the function of the last `each` for sample `number`, with the time at which it began on view."""
        assert self._call is not None
        fn, extra = self._call
        if extra is None:
            return self.timed(fn, self.samples[number])
        return self.timed(fn, self.samples[number], extra(number))

    def timed(self, fn: Callable[..., Any], *args: Any) -> Any:
        """``fn(*args)``, with the time at which it began on view where the op has a timeout."""
        timeout_s = self.step.op.timeout_s
        if timeout_s is None or self.task.post.inline:
            return fn(*args)
        self.task.call_began(timeout_s)
        try:
            return fn(*args)
        finally:
            self.task.call_ended()

    def over(self) -> None:
        """No call will be made again. The function may lead back here, which would keep samples alive."""
        self._call = None

    def dispose(self, number: int, exc: BaseException, skip: bool) -> bool:
        """Drop sample `number`, or let it end the chunk."""
        index = self.index(number)
        name = self.task.program.name_of(self.epoch, self.places[number])
        op = self.step.op
        if not isinstance(exc, Skip):
            add_note(exc, op.label, op.where, sample_label(index, name), self.task.worker_name)
        record = ErrorRecord(op.label, index, self.epoch_of(number), exc, self.places[number], name)
        if skip:
            self.lost.append(number)
            self.losses.append(record)
            return True
        self.failure = Failure(exc, record)
        self.stop = number
        return False

    # ------------------------------------------------------------------ on an event loop

    async def each_async(
        self, fn: Callable[..., Any], samples: Sequence[Any], extra: Callable[[int], Any] | None = None
    ) -> list[Any]:
        out: list[Any] = []
        self._call = (fn, extra)
        self.task.begin(self, self.places, out, self.lost)
        timed = self.step.op.timeout_s is not None
        number, count = 0, len(samples)
        while number < count:
            try:
                while number < count:
                    result = fn(samples[number]) if extra is None else fn(samples[number], extra(number))
                    if timed or type(result) is not CoroutineType:
                        result = self.in_time(result_of(result))
                    out.append(await result)
                    number += 1
            except BaseException as exc:
                if interrupted(exc):
                    raise
                if not await self._settle_async(number, exc, out):
                    return out
                number += 1
        return out

    async def _settle_async(self, number: int, exc: BaseException, out: list[Any]) -> bool:
        """Retry, drop or fail sample `number`; False when the chunk ends here."""
        import asyncio

        attempts = Attempts(self, number)
        while True:
            wait_s = attempts.failed(exc)
            if wait_s is None:
                return attempts.give_up(exc)
            await asyncio.sleep(wait_s)
            try:
                out.append(await self.in_time(result_of(self.recall(number))))
                return True
            except BaseException as again:
                if interrupted(again):
                    raise
                exc = again

    async def in_time(self, result: Awaitable[Any]) -> Any:
        """What `result` gives; `StageTimeout` if that takes longer than the op allows."""
        timeout_s = self.step.op.timeout_s
        if timeout_s is None:
            return await result
        import asyncio

        began = perf_counter()
        try:
            async with asyncio.timeout(timeout_s):
                return await result
        except TimeoutError as exc:
            if perf_counter() - began < timeout_s:
                raise
            raise StageTimeout(f"{self.step.op.label} did not return within {timeout_s:g} s") from exc


class Attempts:
    """One sample whose call has failed: how often, and what becomes of it. The same for every op and executor."""

    def __init__(self, calls: Calls, number: int, attempt: int = 0) -> None:
        self._calls = calls
        self._number = number
        self._attempt = attempt
        self._skip = False

    def failed(self, exc: BaseException) -> float | None:
        """How long to wait before the function is called again; None if it is not."""
        verdict = decide(self._calls.step.op.on_error, exc, self._attempt)
        self._attempt += 1
        self._skip = verdict.action == "skip"
        return verdict.after_s if verdict.action == "retry" else None

    def give_up(self, exc: BaseException) -> bool:
        """Drop the sample, or let it end the chunk: then False."""
        return self._calls.dispose(self._number, exc, skip=self._skip)


def wrong_count(op: Op[Any, Any], found: int, due: int) -> PenstockError:
    """The error for an op whose `run` has not returned one result for each sample that did not fail."""
    return PenstockError(f"{op.label} gave {found} results for {due} samples")


def interrupted(exc: BaseException) -> bool:
    """Whether the worker itself ends, by being cancelled or collected, and not the user's coroutine."""
    import asyncio

    try:
        current = asyncio.current_task()
    except RuntimeError:
        return True  # no loop runs here: the coroutine is being collected
    return isinstance(exc, asyncio.CancelledError) and current is not None and current.cancelling() > 0
