"""The thread executor: each worker is a daemon thread that waits on its own spot."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any, ClassVar

from penstock.executors.executor import Executor, Pool, Worker
from penstock.executors.parking import is_staged, new_spot
from penstock.frames import frame_of


class ThreadWorker(Worker):
    """One thread. It is a daemon, so that a call that never returns cannot hold up the interpreter."""

    def __init__(self, work: Callable[[Any], Any], name: str) -> None:
        self.name = name
        self.spot = new_spot(name)
        self.staged = is_staged(self.spot)
        self._thread = threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[Any], Any]) -> None:
        try:
            work(self)
        finally:
            self.spot.leave()

    def turn(self) -> None:
        self.spot.turn()

    def park(self) -> None:
        self.spot.park()

    def unpark(self) -> None:
        self.spot.unpark()

    def join(self, timeout_s: float) -> bool:
        if self._thread is threading.current_thread():
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def frame(self) -> FrameType | None:
        return frame_of(self._thread)

    def stack(self) -> str:
        frame = self.frame()
        return "".join(traceback.format_stack(frame)) if frame is not None else ""


class ThreadExecutor(Executor):
    """Starts threads."""

    kind: ClassVar[str] = "thread"

    def start(self, work: Callable[[Any], Any], name: str) -> ThreadWorker:
        return ThreadWorker(work, name)


class Threads(Pool):
    """A pool of threads that several pipelines share: ``map(fn, on=pool)``.

    ``workers=`` of an op on the pool is then a cap within it.

    >>> import penstock as ps
    >>> with ps.Threads(2) as pool:
    ...     a = ps.from_sequence([1, 2]).map(str, on=pool)
    ...     b = ps.from_sequence([3, 4]).map(float, on=pool)
    ...     list(a), list(b)
    (['1', '2'], [3.0, 4.0])
    """

    kind: ClassVar[str] = "thread"
