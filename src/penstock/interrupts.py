"""Hold Ctrl-C back while a process or shared memory is made or given back.

Python runs signal handlers in the main thread, between any two instructions. The handler of Ctrl-C raises
KeyboardInterrupt there. Raised in the middle of a start or an end, it leaves a process that nobody knows of,
or one that nobody has waited for.

Guarantees:

* Inside `uninterrupted`, no signal handler of the user's runs. It runs once the outermost block has ended,
  even if the block itself has failed.
* A handler that raises at any other moment, also while a block begins or ends, leaves all handlers working.
* Handlers run in the main thread only, so in any other thread a block changes nothing.

A block must be short: the user waits for the answer to Ctrl-C.
"""

from __future__ import annotations

import _thread
import os
import signal
import threading
from contextlib import ContextDecorator
from types import FrameType
from typing import Any

_SIGNALS = tuple(map(int, signal.valid_signals()))

#: blocks of the main thread that have begun and not ended
_depth = 0
#: signals that came meanwhile
_held_back: set[int] = set()


class uninterrupted(ContextDecorator):
    """Hold signal handlers back, in a ``with`` statement or as a decorator.

    >>> try:
    ...     with uninterrupted():
    ...         signal.raise_signal(signal.SIGINT)
    ...         print("still running")
    ... except KeyboardInterrupt:
    ...     print("interrupted")
    still running
    interrupted
    """

    def _recreate_cm(self) -> uninterrupted:
        return uninterrupted()

    def __enter__(self) -> None:
        global _depth
        self._counts = threading.current_thread() is threading.main_thread()
        if not self._counts:
            return
        if _depth == 0:
            _stand_in_for_all()
        _depth += 1

    def __exit__(self, *exc: object) -> None:
        global _depth, _held_back
        if not self._counts:
            return
        if _depth > 1:
            _depth -= 1
            return
        came, _held_back = _held_back, set()
        # From here on handlers run again, and one that raises may end this function early. That is why a
        # stand-in that is left behind passes signals on.
        _depth = 0
        _step_back()
        for number in came:
            _thread.interrupt_main(signal.Signals(number))


class _StandIn:
    """The handler of a signal while blocks may run."""

    def __init__(self, handler: Any) -> None:
        self.handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if _depth:
            _held_back.add(number)
        else:
            self.handler(number, frame)


def _stand_in_for_all() -> None:
    for number in _SIGNALS:
        handler = signal.getsignal(number)
        if callable(handler) and not isinstance(handler, (signal.Handlers, _StandIn)):
            signal.signal(number, _StandIn(handler))


def _step_back() -> None:
    for number in _SIGNALS:
        handler = signal.getsignal(number)
        if isinstance(handler, _StandIn):
            signal.signal(number, handler.handler)


def _after_fork_in_child() -> None:
    """The block goes on in the parent, and only there."""
    global _depth
    _depth = 0
    _held_back.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
