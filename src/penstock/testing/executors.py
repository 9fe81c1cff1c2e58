"""A check for an executor of your own: workers start, wait, wake and end; pipelines run as they do inline."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from penstock.construct import concat, from_iterable, from_sequence, zip
from penstock.errors import Skip
from penstock.executors import find_executor
from penstock.executors.executor import OWN, Executor, Worker
from penstock.executors.startup import keep_warm
from penstock.pipeline import Pipeline
from penstock.testing.layouts import INLINE, Layout, assert_same_stream
from penstock.testing.leaks import leaks_since, snapshot

#: far longer than anything here takes
_PATIENCE_S = 10.0


def check_executor(executor: str | type[Executor]) -> None:
    """Raise AssertionError unless the executor (its class, or the name it is registered by) works.

    Its workers must start, wait without losing a wake-up, say where they stand, and end when
    their loop returns. Then standard pipelines are run on several of them: the stream must be
    that of an inline run, an exception must arrive as itself, an epoch may be broken off, and in
    the end nothing may be left behind.

    >>> check_executor("thread")
    >>> check_executor("inline")
    """
    found = find_executor(executor) if isinstance(executor, str) else executor
    if not str(getattr(found, "kind", "")).isidentifier():
        raise AssertionError(f"{found.__name__}.kind must be a name, as in on='thread'")
    with _registered(found), keep_warm() if found.remote else nullcontext():
        before = snapshot()
        if not found.inline:
            _check_workers(found)
        for make in _PIPELINES:
            _check_pipeline(found, make)
        _check_failure(found)
        _check_broken_off(found)
        left = leaks_since(before)
        if left:
            raise AssertionError("\n  ".join([f"{found.kind}: left behind:", *left]))


@contextmanager
def _registered(found: type[Executor]) -> Iterator[None]:
    """`on=` finds the executor by its name inside the block."""
    before = dict(OWN)
    OWN[found.kind] = found
    try:
        yield
    finally:
        OWN.clear()
        OWN.update(before)


# ---------------------------------------------------------------------- workers


class _Loop:
    """A loop as workers run it: it parks until it is told to end, and counts how often it was woken."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.may_park = threading.Event()
        self.woken = threading.Event()
        self.over = False

    def __call__(self, worker: Any) -> None:
        self.began.set()
        self.may_park.wait(_PATIENCE_S)
        while not self.over:
            worker.park()
            self.woken.set()

    async def run_async(self, worker: Any) -> None:
        self.began.set()
        while not self.over:
            await worker.park()
            self.woken.set()


def _check_workers(found: type[Executor]) -> None:
    executor = found()
    loops = [_Loop() for _ in range(3)]
    workers = [
        executor.start(loop.run_async if found.asynchronous else loop, f"check-{number}")
        for number, loop in enumerate(loops)
    ]
    try:
        for worker, loop in itertools.zip_longest(workers, loops):
            _check_worker(found.kind, worker, loop)
    finally:
        for worker, loop in itertools.zip_longest(workers, loops):
            loop.over = True
            loop.may_park.set()
            worker.unpark()
        ended = [worker.join(_PATIENCE_S) for worker in workers]
        executor.close()
    if not all(ended):
        raise AssertionError(f"{found.kind}: join() must be True once the loop has returned")


def _check_worker(kind: str, worker: Worker, loop: _Loop) -> None:
    if not isinstance(worker, Worker) or not worker.name:
        raise AssertionError(f"{kind}: start() must return a Worker with a name, got {worker!r}")
    if not loop.began.wait(_PATIENCE_S):
        raise AssertionError(f"{kind}: the loop of {worker.name} did not begin within {_PATIENCE_S:g} s")
    if worker.join(0.01):
        raise AssertionError(f"{kind}: join() of {worker.name} must be False while its loop runs")
    if not isinstance(worker.stack(), str):
        raise AssertionError(f"{kind}: stack() of {worker.name} must be text")
    worker.unpark()  # comes before the park, which must return at once
    loop.may_park.set()
    if not loop.woken.wait(_PATIENCE_S):
        raise AssertionError(f"{kind}: {worker.name} lost an unpark that came before its park")


# ---------------------------------------------------------------------- pipelines


def _check_pipeline(found: type[Executor], make: Callable[[bool, Any], Pipeline[Any]]) -> None:
    expected = INLINE.run(make(found.asynchronous, {}))
    # A process takes a while to start.
    for workers, memory in ((1, None), (3, 1)) if found.remote else ((1, None), (2, 1), (7, None)):
        placed = make(found.asynchronous, {} if found.inline else {"on": found.kind, "workers": workers})
        layout = INLINE if found.inline else Layout(found.kind, workers, memory)
        stream = layout.run(placed)
        assert_same_stream(expected, stream, f"{make.__name__.strip('_')} {layout}")


def _check_failure(found: type[Executor]) -> None:
    stream = Layout(found.kind, 2).run(_numbers(found.asynchronous, {}).map(_ending), epochs=1)
    end = stream.ends[0]
    if type(end) is not KeyError or end.args != (7,):
        raise AssertionError(f"{found.kind}: a KeyError(7) of a function arrived as {end!r}") from end
    if len(stream.epochs[0]) != 7:
        raise AssertionError(f"{found.kind}: {len(stream.epochs[0])} samples came before the error at sample 7")


def _check_broken_off(found: type[Executor]) -> None:
    layout = Layout(found.kind, 2)
    pipeline = _numbers(found.asynchronous, {"on": found.kind, "workers": 2} if not found.inline else {})
    whole = layout.run(pipeline)
    begun = layout.run(pipeline, most=5)
    for epoch, samples in enumerate(begun.epochs):
        if samples != whole.epochs[epoch][:5]:
            raise AssertionError(f"{found.kind}: epoch {epoch} after one that was broken off began with {samples}")


def _made(fn: Callable[[Any], Any], awaited: bool) -> Callable[[Any], Any]:
    """`fn`, or an ``async def`` that does the same."""

    async def call(x: Any) -> Any:
        return fn(x)

    return call if awaited else fn


def _plus_one(x: Any) -> Any:
    return x + 1


def _third(x: Any) -> Any:
    if x % 5 == 2:
        raise Skip("on purpose")
    return x % 3 == 0


def _copies(x: Any) -> list[Any]:
    return [x] * (x % 4)


def _ending(x: Any) -> Any:
    if x == 8:
        raise KeyError(7)
    return x


def _numbers(awaited: bool, place: Any) -> Pipeline[Any]:
    return from_sequence(range(50)).map(_made(_plus_one, awaited), **place)


def _batches(awaited: bool, place: Any) -> Pipeline[Any]:
    return _numbers(awaited, place).shuffle(window=8).batch(4)


def _varying(awaited: bool, place: Any) -> Pipeline[Any]:
    kept = from_sequence(range(50)).filter(_made(_third, awaited), **place)
    return kept.flat_map(_made(_copies, awaited), interleave=3, **place).batch(3, drop_last=True)


def _streamed(awaited: bool, place: Any) -> Pipeline[Any]:
    stream = from_iterable(range(40)).map(_made(_plus_one, awaited), **place)
    return stream.take(20).repeat(2).map(_made(_plus_one, awaited), **place)


def _joined(awaited: bool, place: Any) -> Pipeline[Any]:
    return concat(zip(_numbers(awaited, place), _streamed(awaited, place)), _batches(awaited, place))


_PIPELINES = (_numbers, _batches, _varying, _streamed, _joined)
