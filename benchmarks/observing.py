"""What does it cost to be watched?

One loader runs all the time, in short blocks, each without counters or watched in one way. A pair is a second or
two of blocks in the order ABBA, so both sides have the same workers, caches and neighbours. On a machine whose
speed changes within a second, longer blocks would hide the effect. So a block is 0.03 s long, or 0.2 s where it
costs something to begin and end watching. What counts is the CPU time of this process for each batch that its
workers made, all threads included; on a shared machine the clock says little. Whoever looks is another process,
and its time is its own. Without counters means that the methods which count time are replaced by empty ones, and
no clock of a ticket or of the loop is read; batches are still counted.
  more CPU time with counters, which are always on                              target: below 2 %
  more CPU time with counters and the page open: news twice a second            target: below 5 %
  more CPU time with counters while a trace is recorded (and not yet written)   target: below 5 %
Functions compute for 0.4 ms. Counters are also shown with functions that do nothing, where tickets hold many
samples, and with counters on both sides, which shows what the measure itself is worth.
Neighbours disturb all of these by more than they measure. Less so the time inside the methods that count, call by
call: the slowest twentieth, which waited for a CPU or the interpreter lock or was dear, is taken to be like the
others. As a share of the CPU time of the run:
  time in methods that count                                                    target: below 2 %
"""

from __future__ import annotations

import gc
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from _measure import Bench

import penstock as ps
from penstock.core.lane import Lane
from penstock.core.observer import Observer
from penstock.core.witness import Timing, part
from penstock.stats.counters import ReaderCounters, StageCounters
from penstock.stats.lock import LockProbe

PAIRS = 31
COUNTING: tuple[tuple[type, str], ...] = (
    (Lane, "advance"),
    (Lane, "idle_for"),
    (StageCounters, "measured"),
    (StageCounters, "timed"),
    (ReaderCounters, "wait_begins"),
    (ReaderCounters, "wait_ends"),
    (Observer, "look"),
    (LockProbe, "try_if_due"),
)

#: a client as a browser is one: it opens the stream of events and reads
_CLIENT = """
import sys, urllib.request
with urllib.request.urlopen(sys.argv[1]) as events:
    print(events.readline()[:4], flush=True)
    for line in events:
        pass
"""

Way = Callable[[Any], AbstractContextManager[None]]


def sort(number: int) -> int:
    np.sort(np.random.default_rng(number).random(15_000))
    return number


def same(number: int) -> int:
    return number


def _nothing(*args: Any, **named: Any) -> None:
    pass


@contextmanager
def uncounted(loader: ps.Loader[Any]) -> Iterator[None]:
    kept = [(owner, name, getattr(owner, name)) for owner, name in COUNTING]
    due = [(lane.counters, lane.counters.cpu_due, lane.counters.time_due) for lane in loader._engine.lanes.values()]
    observer = loader._observer
    looks = observer.due, observer._history.due
    began = time.perf_counter()
    for owner, name, _ in kept:
        setattr(owner, name, _nothing)
    for counters, _, _ in due:
        counters.cpu_due = counters.time_due = math.inf
    try:
        yield
    finally:
        for owner, name, method in kept:
            setattr(owner, name, method)
        away = time.perf_counter() - began  # they are due as much later
        for counters, cpu_due, time_due in due:
            counters.cpu_due, counters.time_due = cpu_due + away, time_due + away
        observer.due, observer._history.due = (moment + away for moment in looks)


@contextmanager
def counted(loader: ps.Loader[Any]) -> Iterator[None]:
    yield


@contextmanager
def counted_too(loader: ps.Loader[Any]) -> Iterator[None]:
    yield


@contextmanager
def opened(loader: ps.Loader[Any]) -> Iterator[None]:
    """A client reads the news of the page; tickets and waits are timed for it, as on any loader with a page."""
    assert loader.dashboard_url is not None
    url = loader.dashboard_url.replace("/?", "/events?")
    timing = loader._timed()
    with subprocess.Popen([sys.executable, "-c", _CLIENT, url], stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        client.stdout.readline()
        try:
            yield
        finally:
            client.kill()
            _untimed(loader, timing)


def _untimed(loader: ps.Loader[Any], timing: Timing) -> None:
    part(loader._engine, timing)
    loader._timing = None


class Traced:
    """The trace is written when the block has ended, after its time was taken."""

    def __init__(self, loader: ps.Loader[Any]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._block = loader.trace(Path(self._folder.name) / "run.json")

    def __enter__(self) -> None:
        self._block.__enter__()

    def __exit__(self, *exc: object) -> None:
        self._block.__exit__(None, None, None)
        self._folder.cleanup()


class Runs:
    """One loader, from which blocks of batches are taken."""

    def __init__(self, function: Callable[[int], int], seconds: float, rounds: int) -> None:
        #: blocks in the order ABBA, so many times, are a pair
        self._rounds = rounds
        data = ps.from_sequence(range(10**9)).map(function, workers=2).batch(16)
        with redirect_stderr(StringIO()):
            self.loader = data.loader(dashboard=True)
        _untimed(self.loader, self.loader._timed())
        self._batches = iter(self.loader)
        self._take(20)
        began = time.perf_counter()
        self._take(200)
        self._count = max(int(200 * seconds / (time.perf_counter() - began)), 10)

    def _take(self, count: int) -> None:
        for _ in range(count):
            next(self._batches)

    def _made(self) -> int:
        return sum(lane.counters.samples for lane in self.loader._engine.lanes.values())

    def block(self, way: Way) -> tuple[float, int]:
        """CPU seconds of a block, and the batches that were made in it; some were taken from what was ready."""
        with way(self.loader):
            began, made = time.process_time(), self._made()
            self._take(self._count)
            return time.process_time() - began, self._made() - made

    def more(self, watched: Way, bare: Way) -> float:
        """By how many percent the CPU time of a batch is above that of the other way, in blocks that alternate."""
        gc.collect()
        spent, made = {watched: 0.0, bare: 0.0}, {watched: 0, bare: 0}
        for way in (watched, bare, bare, watched) * self._rounds:
            block_s, block_made = self.block(way)
            spent[way] += block_s
            made[way] += block_made
        return (spent[watched] / made[watched] / (spent[bare] / made[bare]) - 1) * 100


def inside(function: Callable[[int], int], batches: int) -> float:
    """The percentage of the CPU time of a run that the methods which count take."""
    times: dict[str, list[float]] = {}
    kept = [(owner, name, getattr(owner, name)) for owner, name in COUNTING]
    for owner, name, method in kept:
        if owner is LockProbe:
            continue  # called by Observer.look, or while the loop waits
        found = times.setdefault(f"{owner.__name__}.{name}", [])
        setattr(owner, name, _timed(method, found))
    try:
        with ps.from_sequence(range(10**9)).map(function, workers=2).batch(16).loader() as loader:
            taken = iter(loader)
            for _ in range(20):
                next(taken)
            for found in times.values():
                found.clear()
            began = time.process_time()
            for _ in range(batches):
                next(taken)
            cpu_s = time.process_time() - began
            spent_s = sum(map(_undisturbed, times.values()))
    finally:
        for owner, name, method in kept:
            setattr(owner, name, method)
    return spent_s / cpu_s * 100


def _timed(method: Callable[..., Any], times: list[float]) -> Callable[..., Any]:
    def timed(*args: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return method(*args, **named)
        finally:
            times.append(time.perf_counter() - began)

    return timed


def _undisturbed(times: list[float]) -> float:
    """What all calls would take if the slowest twentieth were like the others."""
    quick = sorted(times)[: len(times) - len(times) // 20]
    return sum(quick) / max(len(quick), 1) * len(times)


def main() -> None:
    bench = Bench("observing", __doc__)
    pairs = bench.size(PAIRS, 3)
    for what, function, batches in (("0.4 ms a sample", sort, 50), ("nothing to do", same, 4000)):
        name = f"time in methods that count: {what}"
        if bench.wanted(name):
            bench.limit(name, [inside(function, batches) for _ in range(pairs)], below=2, unit="%")
    ways: list[tuple[str, Callable[[int], int], Way, Way, float]] = [
        ("counters on both sides", sort, counted, counted_too, 2),
        ("counters", sort, counted, uncounted, 2),
        ("counters, functions that do nothing", same, counted, uncounted, 2),
        ("counters, the page is open", sort, opened, uncounted, 5),
        ("counters, traced", sort, Traced, uncounted, 5),
    ]
    for name, function, watched, bare, below in ways:
        if not bench.wanted(name):
            continue
        runs = Runs(function, 0.2, 2) if watched in (opened, Traced) else Runs(function, 0.03, 12)
        runs.more(watched, bare)  # warm up
        bench.limit(name, [runs.more(watched, bare) for _ in range(pairs)], below=below, unit="%")
        runs.loader.close()
    bench.finish()


if __name__ == "__main__":
    main()
