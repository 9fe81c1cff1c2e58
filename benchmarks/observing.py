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
Neighbours disturb all of these by more than they measure. Hardly so the CPU time inside the methods that count: of
those that take long by the CPU clock of their thread, of those that are called often by the median call, times
their number. As a share of the CPU time of the run:
  time in methods that count                                                    target: below 2 %
  the same with the page open, and what tells it its news                       target: below 5 %
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
from statistics import median
from typing import Any

import numpy as np
from _measure import Bench

import penstock as ps
from penstock.core.lane import Lane
from penstock.core.observer import Observer
from penstock.core.witness import Timing, part
from penstock.dashboard import server
from penstock.dashboard.feed import Feed
from penstock.stats.calls import Timing as CallTiming
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
        data = ps.from_sequence(range(10**12)).map(function, workers=2).batch(16)
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
        return median(self._more_of_four(watched, bare) for _ in range(self._rounds))

    def _more_of_four(self, watched: Way, bare: Way) -> float:
        spent, made = {watched: 0.0, bare: 0.0}, {watched: 0, bare: 0}
        for way in (watched, bare, bare, watched):
            block_s, block_made = self.block(way)
            spent[way] += block_s
            made[way] += block_made
        return (spent[watched] / made[watched] / (spent[bare] / made[bare]) - 1) * 100


def inside(function: Callable[[int], int], page: bool, seconds: float, parts: int) -> list[float]:
    """The percentage of CPU time that methods which count take, in each part of one run, after its beginning."""
    meters = [(owner, name, getattr(owner, name), meter()) for owner, name, meter in METERED]
    if page:
        meters += [(owner, name, getattr(owner, name), meter()) for owner, name, meter in METERED_OF_PAGE]
    for owner, name, method, meter in meters:
        setattr(owner, name, meter.around(method))
    shares = []
    try:
        data = ps.from_sequence(range(10**12)).map(function, workers=2).batch(16)
        with redirect_stderr(StringIO()):
            loader = data.loader(dashboard=page)
        with loader, opened(loader) if page else counted(loader):
            taken = iter(loader)
            for _ in range(parts + 1):
                for *_, meter in meters:
                    meter.spent.clear()
                until, began = time.perf_counter() + seconds, time.process_time()
                while time.perf_counter() < until:
                    next(taken)
                cpu_s = time.process_time() - began
                shares.append(sum(meter.total_s for *_, meter in meters) / cpu_s * 100)
    finally:
        for owner, name, method, _ in meters:
            setattr(owner, name, method)
    return shares[1:]


class Meter:
    """The CPU time of the calls of one method, by the CPU clock of its thread."""

    clock = staticmethod(time.thread_time)

    def __init__(self) -> None:
        self.spent: list[float] = []

    @property
    def total_s(self) -> float:
        return sum(self.spent)

    def around(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **named: Any) -> Any:
            if self.nested(named):
                return method(*args, **named)
            began = self.clock()
            try:
                return method(*args, **named)
            finally:
                self.spent.append(self.clock() - began)

        return timed

    def nested(self, named: dict[str, Any]) -> bool:
        """Whether a call is part of one that is counted already."""
        return False


class QuickMeter(Meter):
    """The same for a method that takes less than that clock does, and always about as much.

    A call in many waits for a CPU or for the interpreter lock, so the median stands for all.
    """

    clock = staticmethod(time.perf_counter)

    @property
    def total_s(self) -> float:
        return median(self.spent) * len(self.spent) if self.spent else 0.0


class ProbeMeter(Meter):
    """`Observer.look` tries the lock too, as one who is busy."""

    def nested(self, named: dict[str, Any]) -> bool:
        return bool(named["busy"])


#: `Lane.idle_for` calls `Lane.advance`, which counts twice here
METERED: tuple[tuple[type, str, type[Meter]], ...] = (
    (Lane, "advance", QuickMeter),
    (Lane, "idle_for", QuickMeter),
    (ReaderCounters, "wait_begins", QuickMeter),
    (ReaderCounters, "wait_ends", QuickMeter),
    (StageCounters, "measured", QuickMeter),
    (StageCounters, "timed", Meter),
    (CallTiming, "__init__", Meter),
    (CallTiming, "end", Meter),
    (Observer, "look", Meter),
    (LockProbe, "try_if_due", ProbeMeter),
)

METERED_OF_PAGE: tuple[tuple[Any, str, type[Meter]], ...] = (
    (Timing, "ticket", QuickMeter),
    (Timing, "waited", QuickMeter),
    (Feed, "snapshot", Meter),
    (Feed, "tick", Meter),
    (server, "_json", Meter),
)


def main() -> None:
    bench = Bench("observing", __doc__)
    pairs = bench.size(PAIRS, 3)
    for what, function, page in (
        ("0.4 ms a sample", sort, False),
        ("nothing to do", same, False),
        ("the page is open", sort, True),
    ):
        name = f"time in methods that count: {what}"
        if bench.wanted(name):
            bench.limit(name, inside(function, page, 1.0, pairs), below=5 if page else 2, unit="%")
    ways: list[tuple[str, Callable[[int], int], Way, Way, float]] = [
        ("counters on both sides", sort, counted, counted_too, 2),
        ("counters, 0.4 ms a sample", sort, counted, uncounted, 2),
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
