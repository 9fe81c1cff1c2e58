"""How long a piece of work took, on the clock and on a CPU."""

from __future__ import annotations

from time import perf_counter, process_time, thread_time
from typing import NamedTuple

from penstock.machine import busy_s, cpu_periods, cpus, quota_groups
from penstock.stats.counters import ReaderCounters
from penstock.stats.lock import LOCK_PROBE


class Spent(NamedTuple):
    """What a piece of work took."""

    seconds: float
    #: what of that its thread was on a CPU; 0 where that cannot be told, as for a coroutine
    cpu_s: float


NOTHING = Spent(0.0, 0.0)


class Watch:
    """Runs from its making on, in the thread that made it."""

    __slots__ = ("_cpu_began", "began")

    #: what tells the CPU time
    cpu_clock = staticmethod(thread_time)

    def __init__(self, cpu: bool = True) -> None:
        self.began = perf_counter()
        self._cpu_began = self.cpu_clock() if cpu else None

    @property
    def elapsed_s(self) -> float:
        """Seconds until now."""
        return perf_counter() - self.began

    @property
    def spent(self) -> Spent:
        """What has been spent until now."""
        cpu_s = 0.0 if self._cpu_began is None else self.cpu_clock() - self._cpu_began
        return Spent(self.elapsed_s, cpu_s)


class ProcessWatch(Watch):
    """The same in a worker process, which does one thing at a time: threads that libraries start count too."""

    __slots__ = ()

    cpu_clock = staticmethod(process_time)


class Clock:
    """Counts the time of one iteration, and what this process is on a CPU in it."""

    def __init__(self, counters: ReaderCounters, running: bool = True) -> None:
        self._counters = counters
        self._running = running
        self.now, self._cpu = perf_counter(), process_time()

    def tick(self) -> None:
        """Add the time since the last tick, unless it is stopped."""
        if not self._running:
            return
        now, cpu = perf_counter(), process_time()
        self._counters.running_s += now - self.now
        self._counters.cpu_s += cpu - self._cpu
        self.now, self._cpu = now, cpu

    def stop(self) -> None:
        """The iteration is over, and with it what it waited for."""
        self.tick()
        if self._running:
            self._running = False
            self._counters.wait_ends(self.now)

    @property
    def spent(self) -> tuple[float, float]:
        """Seconds in epochs, and on a CPU in them, those since the last tick included."""
        running_s, cpu_s = self._counters.running_s, self._counters.cpu_s
        if not self._running:
            return running_s, cpu_s
        return running_s + perf_counter() - self.now, cpu_s + process_time() - self._cpu


class Meter:
    """What goes by while a loader is open: time, and waits for the interpreter lock."""

    __slots__ = ("_began", "_ended")

    def __init__(self) -> None:
        LOCK_PROBE.begin()
        _MACHINE.begin()
        self._began = _now()
        self._ended: tuple[float, ...] | None = None

    def stop(self) -> None:
        """Count no further."""
        self._ended = self._ended or _now()

    @property
    def counts(self) -> dict[str, float]:
        """All of it until now, or until it was stopped."""
        now = self._ended or _now()
        return {name: one - before for name, one, before in zip(_NAMES, now, self._began, strict=True)}


_NAMES = (
    "open_s",
    "lock_tries",
    "lock_held",
    "lock_wait_s",
    "machine_s",
    "machine_busy_s",
    "quota_periods",
    "quota_throttled",
)
#: how often the CPU time of all programs is looked at: after a loader has begun, then so many times as long, up to
#: the last. A look takes 0.4 ms, and more with many cores
_FIRST_S, _LONGER, _SELDOM_S = 0.5, 1.2, 5.0


class _Machine:
    """When the CPU time of all programs was last looked at, and what it was."""

    def __init__(self) -> None:
        self.looked = 0.0
        self.busy_s = 0.0
        self.periods = (0, 0)
        self._groups: list[str] = []
        self._every_s = _FIRST_S

    def begin(self) -> None:
        """A loader begins: look often, and look for quotas."""
        self._groups = quota_groups()
        self._every_s = _FIRST_S

    def look(self, now: float) -> tuple[float, ...]:
        if now >= self.looked + self._every_s:
            self._every_s = min(_LONGER * self._every_s, _SELDOM_S)
            found = busy_s(cpus())
            if found is not None:
                self.looked, self.busy_s, self.periods = now, found, cpu_periods(self._groups)
        return self.looked, self.busy_s, *self.periods


_MACHINE = _Machine()


def _now() -> tuple[float, ...]:
    now = perf_counter()
    return now, LOCK_PROBE.tries, LOCK_PROBE.held, LOCK_PROBE.wait_s, *_MACHINE.look(now)
