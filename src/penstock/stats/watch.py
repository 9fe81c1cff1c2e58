"""How long a piece of work took, on the clock and on a CPU."""

from __future__ import annotations

from time import perf_counter, process_time, thread_time
from typing import NamedTuple

__all__ = ["NOTHING", "Meter", "Spent", "Watch"]


class Spent(NamedTuple):
    """What a piece of work took."""

    seconds: float
    #: what of that its thread was on a CPU; 0 where that cannot be told, as for a coroutine
    cpu_s: float


NOTHING = Spent(0.0, 0.0)


class Watch:
    """Runs from its making on, in the thread that made it."""

    __slots__ = ("_cpu_began", "began")

    def __init__(self, cpu: bool = True) -> None:
        self.began = perf_counter()
        self._cpu_began = thread_time() if cpu else None

    @property
    def elapsed_s(self) -> float:
        """Seconds until now."""
        return perf_counter() - self.began

    @property
    def spent(self) -> Spent:
        """What has been spent until now."""
        cpu_s = 0.0 if self._cpu_began is None else thread_time() - self._cpu_began
        return Spent(self.elapsed_s, cpu_s)


class Meter:
    """How long a loader has been open, and what this whole process was on a CPU meanwhile."""

    __slots__ = ("_began", "_ended")

    def __init__(self) -> None:
        self._began = _times()
        self._ended: Spent | None = None

    def stop(self) -> None:
        """Count no further."""
        self._ended = self._ended or _times()

    @property
    def spent(self) -> Spent:
        """Both until now, or until it was stopped."""
        now = self._ended or _times()
        return Spent(now.seconds - self._began.seconds, now.cpu_s - self._began.cpu_s)


def _times() -> Spent:
    return Spent(perf_counter(), process_time())
