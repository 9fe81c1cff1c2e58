"""How long the training loop waits for the interpreter lock, by trying it now and then.

A thread that waits for the lock and one that waits for a disk look the same from outside: neither is on
a CPU. And a training loop whose step lets go of the lock waits for it inside the step, where no loader can
see it. So now and then the reader takes a nap, which lets go of the lock, and sees how long it takes to
get it back. Where workers hold it all the time that is milliseconds, else less than 0.1 ms. Even then two tries in
five, and with two workers up to three in four, find it free, since a worker has just let go of it: a few tries tell
nothing, and a run of a second needs about twenty. A reader that has something to read tries only where this process
uses some CPU time: otherwise nobody holds the lock for long. It tries often after a loader has begun, so that a
diagnosis of a short run knows of the lock, and then less often.
"""

from __future__ import annotations

from time import perf_counter, process_time, sleep

from penstock.machine import run_delay_s

_NAP_S = 0.0001
#: the most that a try counts: whoever holds the lock is asked to let go of it after this time. A virtual machine
#: that stands still for tens of milliseconds would outweigh all other tries
_MOST_S = 0.005
#: how often a reader that has nothing else to do tries
_EVERY_S = 0.2
#: the same where there is something to read: after a loader has begun, then so many times as long, up to the last
_FIRST_BUSY_S, _LONGER, _EVERY_BUSY_S = 0.015, 1.05, 1.0
#: a try that is due leaves out fewer batches than this, another number each time. The first batch after any moment
#: is mostly the one after a long step, and a step is long where workers fill all room in it: after that they rest,
#: and the lock is free
_LEAVES_OUT = 8
#: a try that takes longer found the lock held. A free one takes less than 0.1 ms; one in a hundred takes longer for
#: other reasons, where other programs keep all CPUs busy
_HELD_S = 0.0003
#: a share of a CPU that this process has used since the last look, from which on that may be the lock; beside busy
#: programs, threads that hold it all the time get no more
_WORTH_A_TRY = 0.1


class LockProbe:
    """What the tries of all readers of this process have shown."""

    __slots__ = ("_busy_s", "_cpu_s", "_left_out", "_looked", "held", "idle_due", "tries", "wait_s")

    def __init__(self) -> None:
        #: tries, and those that found the lock held
        self.tries = self.held = 0
        #: seconds that the tries took, beyond the nap itself
        self.wait_s = 0.0
        #: from when on a reader that has nothing to read tries
        self.idle_due = 0.0
        #: when a reader last looked whether this process is busy, and its CPU time then
        self._looked = self._cpu_s = 0.0
        self._busy_s = _FIRST_BUSY_S
        #: batches since a try was due
        self._left_out = 0

    def begin(self) -> None:
        """A loader begins: try soon."""
        self._busy_s = _FIRST_BUSY_S

    def try_if_due(self, *, busy: bool) -> None:
        """Called by readers: `busy` if there is something to read."""
        now = perf_counter()
        late_s = now - (self._looked + self._busy_s if busy else self.idle_due)
        if late_s < 0:
            return
        if busy and self._left_out < 5 * self.tries % _LEAVES_OUT and late_s < self._busy_s:
            self._left_out += 1
            return
        self._left_out = 0
        cpu_s = process_time()
        crowded = cpu_s - self._cpu_s > _WORTH_A_TRY * (now - self._looked)
        self._looked, self._cpu_s = now, cpu_s
        if busy and not crowded:
            return
        if busy:
            self._busy_s = min(_LONGER * self._busy_s, _EVERY_BUSY_S)
        self.idle_due = now + _EVERY_S
        delay_s = run_delay_s()
        began = perf_counter()
        sleep(_NAP_S)
        waited_s = perf_counter() - began - _NAP_S
        # Whoever waits for the lock could not run; whoever waits for a CPU could.
        waited_s = min(max(waited_s - (run_delay_s() - delay_s), 0.0), _MOST_S)
        self.wait_s += waited_s
        self.held += waited_s > _HELD_S
        self.tries += 1


LOCK_PROBE = LockProbe()
