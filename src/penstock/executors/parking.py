"""The one place where anything in penstock waits.

Workers without a ticket and readers without a batch park on a `Spot`, and whoever changes
the situation unparks them. Nothing polls for work, and because there is one place to wait, a test can
replace it (`use`) and decide from a seed which thread runs next.

What may be relied on:

* An `unpark` is never lost: one that comes before the `park` makes that park return at once.
* `unpark` never blocks and takes no lock, so it may be called by a garbage-collection finalizer.
* `park` may return without cause. Callers look again at what they were waiting for.
* A signal handler of the main thread runs within `_SIGNALS_S`, even if its signal came just before the wait began.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from time import monotonic
from typing import Protocol

from penstock import system

#: The main thread waits for at most this long at a time. A signal interrupts a wait that has begun; one that
#: came a moment before it, or by `_thread.interrupt_main`, is noticed only when the wait ends.
_SIGNALS_S = 0.5


def at_a_time(timeout_s: float) -> float:
    """How much of `timeout_s` the calling thread may wait before it must run, so that signals are noticed."""
    if timeout_s <= _SIGNALS_S or threading.get_ident() != system.process.main_thread:
        return timeout_s
    return _SIGNALS_S


class Spot(Protocol):
    """Where one thread waits."""

    def park(self, timeout_s: float | None = None) -> bool:
        """Wait for an unpark; False when `timeout_s` passed first."""

    def unpark(self) -> None:
        """Let the parked thread go on."""

    def turn(self) -> None:
        """A point where another thread might just as well run; only tests use it."""

    def leave(self) -> None:
        """The thread ends and will not park again."""


class LockSpot:
    """A spot on a plain lock: interruptible by Ctrl-C, about a microsecond when not contended."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def park(self, timeout_s: float | None = None) -> bool:
        until = left_s = inf
        if timeout_s is not None:
            left_s = min(max(timeout_s, 0), threading.TIMEOUT_MAX)
            until = monotonic() + left_s
        while True:
            wait_s = at_a_time(left_s)
            if self._lock.acquire(timeout=-1 if wait_s == inf else wait_s):
                return True
            if wait_s == left_s:
                return False  # all of it was waited for: no need to ask the clock, which stands still in some tests
            left_s = until - monotonic()
            if left_s <= 0:
                return False

    def unpark(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            return  # an unpark is already pending; one is enough

    def turn(self) -> None:
        return

    def leave(self) -> None:
        return


_factory: Callable[[str], Spot] = lambda name: LockSpot()  # noqa: E731


def new_spot(name: str) -> Spot:
    """A spot for the thread called `name`."""
    return _factory(name)


def is_staged(spot: Spot) -> bool:
    """Whether a test chooses who runs next, so that `turn` has to be called."""
    return type(spot) is not LockSpot


@contextmanager
def use(factory: Callable[[str], Spot]) -> Iterator[None]:
    """Make all spots inside the block with `factory`: for tests that choose who runs next."""
    global _factory
    before, _factory = _factory, factory
    try:
        yield
    finally:
        _factory = before
