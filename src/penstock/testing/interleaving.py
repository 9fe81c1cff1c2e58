"""Seeded interleavings: real threads, run one at a time in an order that a seed decides.

penstock's threads wait in one place (`penstock.executors.parking`) and call `Spot.turn` wherever
another thread might just as well run. Inside `interleave` those spots pass a baton: only the
thread that holds it runs. At a turn it chooses, by the seed, who runs next; when it parks it gives
the baton up until somebody unparks it.

Guarantees:

* The same seed gives the same order (`Interleaving.trace`), so a failure can be run again. For
  this the clock that penstock reads inside the block is the seed's, too: tickets vary in size and
  long calls are paused, in a new way for every seed, and time jumps where all wait for a timeout.
* When nobody can run although somebody waits, `Deadlock` is raised in the thread that opened the
  block, and says who waits where.
* Threads that are not penstock's, and event loops, are neither scheduled nor blocked. Since one of
  them may still wake somebody, a deadlock is only called one after `patience_s`.
* When the block ends, all threads run freely again.

Functions of a pipeline must not wait for one another inside the block: one runs at a time.

>>> import penstock as ps
>>> pipeline = ps.from_sequence(range(20)).map(str, workers=2).filter(len, workers=2)
>>> for seed in range(3):
...     with interleave(seed) as order:
...         assert list(pipeline) == [str(number) for number in range(20)]
>>> sorted(set(order.trace))
['reader', 'worker 1', 'worker 2', 'worker 3', 'worker 4']
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

from penstock.core.workers import LOCK
from penstock.executors import parking
from penstock.executors.parking import LockSpot
from penstock.frames import frame_of
from penstock.testing.clock import SeededClock, clocks

#: who waits is told by where it was called from, not by how it waits
_WAITING = (os.path.dirname(__file__), os.path.dirname(parking.__file__), os.path.dirname(threading.__file__))
_open = threading.Lock()


class Deadlock(AssertionError):
    """Everybody waits and nobody is left to wake them. The text says who waits where."""


@contextmanager
def interleave(seed: int, *, patience_s: float = 5.0) -> Iterator[Interleaving]:
    """Run penstock's threads one at a time inside the block, in the order that `seed` decides.

    Make the loader inside the block. The thread that opens the block is called ``"reader"``, the
    workers ``"worker 1"``, ``"worker 2"`` and so on, in the order in which they are started.

    >>> import penstock as ps
    >>> def trace(seed):
    ...     with interleave(seed) as order:
    ...         list(ps.from_sequence(range(9)).map(abs, workers=3))
    ...     return order.trace
    >>> trace(1) == trace(1), trace(1) == trace(2)
    (True, False)
    """
    if not _open.acquire(blocking=False):
        raise RuntimeError("interleave() is open already: one at a time in a process")
    order = Interleaving(seed, patience_s)
    try:
        with ExitStack() as replaced:
            for module, name in clocks():
                replaced.enter_context(mock.patch.object(module, name, order.clock))
            replaced.enter_context(mock.patch.object(threading.Thread, "join", order.join))
            replaced.enter_context(parking.use(order.new_spot))
            try:
                yield order
            finally:
                order.end()
    finally:
        _open.release()


class Interleaving:
    """One run under a seed: who may run, who does, and who has."""

    def __init__(self, seed: int, patience_s: float) -> None:
        self.seed = seed
        #: the name of whoever was chosen to run, at every choice
        self.trace: list[str] = []
        self.clock = SeededClock(seed)
        self._patience_s = patience_s
        self._random = random.Random(seed)
        self._opener = _Actor("reader")
        self._opener.arrived(threading.current_thread())
        # Only the holder of the baton changes an actor. Others may append here, or unpark.
        self._actors = [self._opener]
        self._own = threading.local()
        self._own.actor = self._opener
        #: somebody was unparked
        self.stirred = LockSpot()
        #: from now on all threads run as they like
        self.over = False
        self._join = threading.Thread.join

    # ------------------------------------------------------------------ what is replaced

    def new_spot(self, name: str) -> LockSpot:
        """A spot for a worker that is about to be started; or for a reader, whichever thread that is."""
        if self.over:
            return LockSpot()
        if name == "reader":
            return _Spot(self, None)
        actor = _Actor(f"worker {len(self._actors)}", name)
        self._actors.append(actor)
        self.stirred.unpark()
        return _Spot(self, actor)

    @property
    def join(self) -> Callable[..., None]:
        """`Thread.join`, which gives up the baton if the thread needs it to come to its end."""

        def join(thread: threading.Thread, timeout: float | None = None) -> None:
            me = getattr(self._own, "actor", None)
            target = None if me is None or self.over else self._actor_of(thread)
            if me is not None and target is not None and not target.left:
                self.pass_on(me, lambda: target.left, f"the end of {target.label}", timeout)
            self._join(thread, timeout)

        return join

    def _actor_of(self, thread: threading.Thread) -> _Actor | None:
        for actor in list(self._actors):
            # A thread that has just been started is on its way to its first turn, and needs nobody for that.
            if actor.here.wait(1.0) and actor.thread is thread:
                return actor
        return None

    # ------------------------------------------------------------------ passing the baton

    def actor(self, own: _Actor | None) -> _Actor | None:
        """The actor that the calling thread is; None if it is not scheduled."""
        if self.over:
            return None
        if own is None:
            return getattr(self._own, "actor", None)
        if own.thread is None:
            self._own.actor = own
            own.arrived(threading.current_thread())
            self._await(own)
        return None if self.over else own

    def pass_on(
        self, me: _Actor, until: Callable[[], bool] | None, waits_for: str, timeout_s: float | None = None
    ) -> bool:
        """Let the seed choose who runs, and wait to be chosen; False if `timeout_s` passed first."""
        if LOCK._is_owned():  # type: ignore[attr-defined]
            raise AssertionError(f"{me.label} gives up its turn while it holds penstock's lock")
        me.until, me.waits_for, me.elapsed = until, waits_for, False
        me.deadline = None if timeout_s is None else self.clock.now_s + max(timeout_s, 0)
        chosen = self._choose()
        if chosen is not me:
            chosen.baton.unpark()
            self._await(me)
        me.until = me.deadline = None
        stuck, me.stuck = me.stuck, ""
        if stuck:
            raise Deadlock(stuck)
        return not me.elapsed

    def leave(self, me: _Actor) -> None:
        """The thread ends."""
        me.left = True
        self._choose().baton.unpark()

    def _await(self, me: _Actor) -> None:
        try:
            me.baton.park()
        except BaseException:  # interrupted: this thread runs on without the baton, so all others may
            self.end()
            raise

    def _choose(self) -> _Actor:
        while not (ready := [actor for actor in self._actors if actor.ready]):
            if self.over:
                return self._opener
            self._idle()
        chosen = ready[0] if len(ready) == 1 else self._random.choice(ready)
        self.trace.append(chosen.label)
        return chosen

    def _idle(self) -> None:
        """Nobody can run. Somebody who is not scheduled may change that; otherwise time must pass."""
        timed = [actor for actor in self._actors if actor.deadline is not None and not actor.left]
        first = min(timed, key=lambda actor: actor.deadline or 0.0, default=None)
        wait_s = self._patience_s
        if first is not None and first.deadline is not None:
            wait_s = min(wait_s, first.deadline - self.clock.now_s)
        if self.stirred.park(wait_s) or any(actor.ready for actor in self._actors):
            return
        if first is not None and first.deadline is not None:
            self.clock.now_s = max(self.clock.now_s, first.deadline)
            first.elapsed = True
        else:
            self._opener.stuck = self._report()

    def _report(self) -> str:
        lines = [f"everybody waits and nobody is left to wake them (seed {self.seed}):"]
        for actor in self._actors:
            if not actor.left:
                frame = frame_of(actor.thread)
                while frame is not None and os.path.dirname(frame.f_code.co_filename) in _WAITING:
                    frame = frame.f_back
                place = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "its start"
                lines.append(f"  {actor.label}{actor.also} waits for {actor.waits_for} at {place}")
        return "\n".join(lines)

    def end(self) -> None:
        """From now on all threads run as they like."""
        self.over = True
        self.stirred.unpark()
        for actor in list(self._actors):
            actor.baton.unpark()


class _Actor:
    """One thread that is scheduled."""

    def __init__(self, label: str, thread_name: str = "") -> None:
        self.label = label
        self.also = f" ({thread_name})" if thread_name else ""
        self.thread: threading.Thread | None = None
        self.here = threading.Event()
        self.baton = LockSpot()
        self.left = False
        #: what must be true before it can run, None for nothing
        self.until: Callable[[], bool] | None = None
        self.waits_for = "its first turn"
        self.deadline: float | None = None
        self.elapsed = False
        #: the deadlock that it has to raise
        self.stuck = ""

    def arrived(self, thread: threading.Thread) -> None:
        self.thread = thread
        self.here.set()

    @property
    def ready(self) -> bool:
        return not self.left and (self.until is None or self.elapsed or bool(self.stuck) or self.until())


class _Spot(LockSpot):
    """The lock of a `LockSpot` is the memory of an unpark; who waits is decided by the baton."""

    __slots__ = ("_actor", "_order")

    def __init__(self, order: Interleaving, actor: _Actor | None) -> None:
        super().__init__()
        self._order = order
        self._actor = actor

    def park(self, timeout_s: float | None = None) -> bool:
        me = self._order.actor(self._actor)
        if me is None:
            return super().park(timeout_s)
        if super().park(0):
            return True
        in_time = self._order.pass_on(me, lambda: not self._lock.locked(), "an unpark", timeout_s)
        if self._order.over:
            return super().park(timeout_s)
        return super().park(0) or in_time

    def unpark(self) -> None:
        super().unpark()
        self._order.stirred.unpark()

    def turn(self) -> None:
        me = self._order.actor(self._actor)
        if me is not None:
            self._order.pass_on(me, None, "its turn")

    def leave(self) -> None:
        me = self._order.actor(self._actor)
        if me is not None:
            self._order.leave(me)
