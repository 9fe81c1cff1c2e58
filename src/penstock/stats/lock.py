"""How long the training loop waits for the interpreter lock, by trying it now and then.

A thread that waits for the lock and one that waits for a disk look the same from outside: neither is on
a CPU. And a training loop whose step lets go of the lock waits for it inside the step, where no loader can
see it. So now and then the reader takes a nap, which lets go of the lock, and sees how long it takes to
get it back. Where workers hold it all the time that is milliseconds, else microseconds. A reader that has
something to read does so only where this process keeps a CPU busy: otherwise nobody holds the lock for long.
"""

from __future__ import annotations

from time import perf_counter, process_time, sleep

from penstock.machine import run_delay_s

__all__ = ["LOCK_PROBE", "LockProbe"]

_NAP_S = 0.0001
#: how often a reader that has nothing else to do tries, and one that has
_EVERY_S = 0.2
_EVERY_BUSY_S = 1.0
#: a share of a CPU that this process has used since the last look, from which on that may be the lock
_WORTH_A_TRY = 0.5


class LockProbe:
    """What the tries of all readers of this process have shown."""

    __slots__ = ("_cpu_s", "_last", "tries", "wait_s")

    def __init__(self) -> None:
        self.tries = 0
        #: seconds that the tries took, beyond the nap itself
        self.wait_s = 0.0
        self._last = self._cpu_s = 0.0

    def try_if_due(self, *, busy: bool) -> None:
        """Called by readers: `busy` if there is something to read."""
        now = perf_counter()
        if now < self._last + (_EVERY_BUSY_S if busy else _EVERY_S):
            return
        cpu_s = process_time()
        crowded = cpu_s - self._cpu_s > _WORTH_A_TRY * (now - self._last)
        self._last, self._cpu_s = now, cpu_s
        if busy and not crowded:
            return
        delay_s = run_delay_s()
        began = perf_counter()
        sleep(_NAP_S)
        waited_s = perf_counter() - began - _NAP_S
        # Whoever waits for the lock could not run; whoever waits for a CPU could.
        self.wait_s += max(waited_s - (run_delay_s() - delay_s), 0.0)
        self.tries += 1


LOCK_PROBE = LockProbe()
