"""How long the calls of each op take, by timing one ticket in many. Pure, but for the clock of `Timing`.

A `Timing` goes along with one ticket. Only its first calls of each function are timed, and stand for all of that
ticket; so a ticket of thousands of quick calls costs hardly more than any other. `CallTimes` adds up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import log2
from operator import mul
from time import perf_counter, thread_time
from typing import Any, NamedTuple

from penstock.machine import run_delay_s

#: how often a ticket of a stage is timed
EVERY_S = 0.1
#: so many calls of one function are timed in a ticket
TIMED_CALLS = 16
#: buckets of the histogram: four for each doubling, from a quarter of a microsecond on
_PER_DOUBLING, _LEAST_S, _BUCKETS = 4, 0.25e-6, 132
#: the time that stands for each bucket
_MIDDLES_S = [_LEAST_S * float(2.0 ** ((bucket - 0.5) / _PER_DOUBLING)) for bucket in range(_BUCKETS)]
#: a call of so many times the median is in the tail
_TAIL = 10.0


class Op(NamedTuple):
    """What was found of one op in one ticket. `step` is its number, or that of reading."""

    step: int
    #: all calls of the ticket, and the times of some
    calls: int
    times: Sequence[float]


class Timing:
    """The times of the calls in one ticket. Made by its worker when it begins; `end` is called when it is done."""

    __slots__ = ("_began", "_cpu_clock", "busy_s", "delay_s", "found", "library_s", "nbytes", "seconds")

    def __init__(self, cpu_clock: Callable[[], float] | None = None) -> None:
        self.found: list[Timed | TimedOutputs | Op] = []
        #: what the chunk that came of it weighs
        self.nbytes = 0
        #: how long the ticket took; of that, the worker was on a CPU, or could have been, but others had all CPUs
        self.seconds = self.busy_s = self.delay_s = 0.0
        #: what threads that libraries have started computed meanwhile, where the CPU clock is that of a process
        self.library_s = 0.0
        self._cpu_clock = cpu_clock
        self._began = self._now()

    def _now(self) -> tuple[float, float, float, float]:
        """The clock, CPU time, the delay so far, and CPU time of other threads; a coroutine has only the first."""
        if self._cpu_clock is None:
            return perf_counter(), 0.0, 0.0, 0.0
        cpu_s = self._cpu_clock()
        return perf_counter(), cpu_s, run_delay_s(), cpu_s - thread_time()

    def end(self) -> None:
        """The ticket is done, in the thread that began it."""
        self.seconds, cpu_s, self.delay_s, self.library_s = (
            max(now - began, 0.0) for now, began in zip(self._now(), self._began, strict=True)
        )
        self.busy_s = min(cpu_s + self.delay_s, self.seconds)

    @property
    def plain(self) -> tuple[Any, ...]:
        """What was found, as plain data."""
        return self.ops, self.seconds, self.busy_s, self.delay_s, self.library_s

    @classmethod
    def of(cls, plain: tuple[Any, ...], nbytes: int) -> Timing:
        """What was found in another process."""
        timing = cls()
        ops, timing.seconds, timing.busy_s, timing.delay_s, timing.library_s = plain
        timing.found = [Op(*one) for one in ops]
        timing.nbytes = nbytes
        return timing

    def function(self, step: int, fn: Callable[[Any], Any], asynchronous: bool) -> Timed:
        """`fn`, timed."""
        timed = (TimedAsync if asynchronous else Timed)(step, fn)
        self.found.append(timed)
        return timed

    def outputs(self, step: int, calls: int) -> TimedOutputs:
        """What times `calls` calls whose outputs are fetched one by one."""
        timed = TimedOutputs(step, calls)
        self.found.append(timed)
        return timed

    def whole(self, step: int, calls: int, run: Callable[..., Any], *args: Any) -> Any:
        """What ``run(*args)`` returns, which is `calls` calls in one."""
        began = perf_counter()
        out = run(*args)
        self.since(began, step, calls)
        return out

    def since(self, began: float, step: int, calls: int) -> None:
        """`calls` calls in one, which began then, have ended."""
        self.found.append(Op(step, calls, [(perf_counter() - began) / max(calls, 1)]))

    @property
    def ops(self) -> list[tuple[int, int, list[float]]]:
        """What was found of each op: its number, all calls, and the times of some."""
        return [(one.step, one.calls, list(one.times)) for one in self.found if one.times]


class Timed:
    """A function whose calls are timed. `calls` may count others of the same ticket that were not."""

    __slots__ = ("calls", "fn", "step", "times")

    def __init__(self, step: int, fn: Callable[[Any], Any]) -> None:
        self.step = step
        self.fn = fn
        self.calls = 0
        self.times: list[float] = []

    def __call__(self, sample: Any) -> Any:
        self.calls += 1
        began = perf_counter()
        try:
            return self.fn(sample)
        finally:
            self.times.append(perf_counter() - began)


class TimedAsync(Timed):
    """The same for ``async def``: a call lasts until it has been awaited."""

    __slots__ = ()

    async def __call__(self, sample: Any) -> Any:
        self.calls += 1
        began = perf_counter()
        try:
            return await self.fn(sample)
        finally:
            self.times.append(perf_counter() - began)


class TimedOutputs:
    """The time of calls whose outputs are fetched one by one, each call with all of its outputs."""

    __slots__ = ("_seconds", "calls", "step")

    def __init__(self, step: int, calls: int) -> None:
        self.step = step
        self.calls = calls
        self._seconds = 0.0

    def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        """What ``fn(*args)`` returns, which is a part of these calls."""
        began = perf_counter()
        try:
            return fn(*args)
        finally:
            self._seconds += perf_counter() - began

    @property
    def times(self) -> Sequence[float]:
        return [self._seconds / self.calls] if self.calls else []


class CallTimes:
    """The times of all timed calls of one op.

    >>> times = CallTimes()
    >>> for _ in range(97):
    ...     times.add(1, [0.001])
    >>> times.add(3, [0.1])
    >>> [round(times.percentile(share), 3) for share in (0.5, 0.95, 0.99)], times.calls
    ([0.001, 0.001, 0.1], 100)
    >>> round(times.tail_share, 2)
    0.77
    """

    __slots__ = ("_buckets", "calls", "longest_s", "seconds")

    def __init__(self) -> None:
        self._buckets = [0.0] * _BUCKETS
        self.calls = 0
        #: what all of them took, by those that were timed
        self.seconds = 0.0
        self.longest_s = 0.0

    def add(self, calls: int, times: Sequence[float]) -> None:
        """`calls` calls, of which some took so long."""
        each = calls / len(times)
        self.calls += calls
        self.seconds += sum(times) * each
        self.longest_s = max(self.longest_s, *times)
        for seconds in times:
            self._buckets[_bucket(seconds)] += each

    def percentile(self, share: float) -> float:
        """A time that this share of all calls did not take longer than; within 10 %."""
        return self._percentile(share, list(accumulate(self._buckets)))

    def _percentile(self, share: float, seen: Sequence[float]) -> float:
        """The same, where `seen` says how many calls are in each bucket or one before."""
        number = bisect_left(seen, share * self.calls - 1e-9)
        return min(_MIDDLES_S[number], self.longest_s) if number < _BUCKETS else 0.0

    @property
    def tail_share(self) -> float:
        """The share of all time that went into calls of more than ten times the median."""
        first = _bucket(_TAIL * self.percentile(0.5)) + 1
        spent = list(map(mul, self._buckets, _MIDDLES_S))
        total = sum(spent)
        return sum(spent[first:]) / total if total else 0.0

    def figures(self) -> dict[str, float]:
        """The numbers under the names that ``loader.stats()`` gives them."""
        seen = list(accumulate(self._buckets))
        return {
            "calls": self.calls,
            "timed_s": self.seconds,
            "p50_s": self._percentile(0.5, seen),
            "p95_s": self._percentile(0.95, seen),
            "p99_s": self._percentile(0.99, seen),
            "longest_s": self.longest_s,
            "tail_share": self.tail_share,
        }


def _bucket(seconds: float) -> int:
    if seconds <= _LEAST_S:
        return 0
    return min(int(_PER_DOUBLING * log2(seconds / _LEAST_S)) + 1, _BUCKETS - 1)
