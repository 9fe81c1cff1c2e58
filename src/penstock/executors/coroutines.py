"""The async executor: all workers of a pool are tasks on one event loop, in one thread.

A worker is a long-lived task that takes tickets, so a sample costs no task of its own and
crosses no thread unless it changes its stage.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from penstock.executors.executor import Executor, Worker
from penstock.frames import frame_of


class AsyncWorker(Worker):
    """One task on an event loop."""

    def __init__(self, home: _Home, name: str) -> None:
        self.name = name
        self._home = home
        self._woken = asyncio.Event()
        self._ended = threading.Event()
        self._running: asyncio.Task[None] | None = None
        self._interrupted = False

    async def run(self, work: Callable[[Any], Awaitable[None]]) -> None:
        if self._interrupted:
            return
        self._running = asyncio.current_task()
        # An interrupt means that the loader is closing.
        with contextlib.suppress(asyncio.CancelledError):
            await work(self)

    def ended(self, _future: object) -> None:
        """The task is over, in whichever way."""
        self._ended.set()

    async def park(self) -> None:
        await self._woken.wait()
        self._woken.clear()

    def unpark(self) -> None:
        self._home.call(self._woken.set)

    def interrupt(self) -> None:
        """Interrupt the call in hand at its next ``await``."""
        self._home.call(self._cancel)

    def _cancel(self) -> None:
        self._interrupted = True
        if self._running is not None:
            self._running.cancel()

    def join(self, timeout_s: float) -> bool:
        if self._home.thread is threading.current_thread():
            return True
        return self._ended.wait(timeout_s)

    def stack(self) -> str:
        frame = frame_of(self._home.thread)
        return "".join(traceback.format_stack(frame)) if frame is not None else ""


class _Home:
    """An event loop, its thread, and how many workers live there. It ends with the last of them."""

    def __init__(self, name: str, before: _Home | None) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, args=(before,), name=f"{name}-loop", daemon=True)
        self._lock = threading.Lock()
        self._workers = 0
        self._ending = False
        try:
            self.thread.start()
        except BaseException:
            self.loop.close()
            raise

    def start(self, work: Callable[[Any], Awaitable[None]], name: str) -> AsyncWorker | None:
        """A new worker; None if the last one has just left, and the loop with it."""
        with self._lock:
            if self._ending:
                return None
            self._workers += 1
            worker = AsyncWorker(self, name)
            future = asyncio.run_coroutine_threadsafe(worker.run(work), self.loop)
        future.add_done_callback(worker.ended)
        future.add_done_callback(self._left)
        return worker

    def call(self, function: Callable[[], object]) -> None:
        """Call a function on the loop, if there still is one. Takes no lock: finalizers come here too."""
        if threading.get_ident() == self.thread.ident and self.loop.is_running():
            function()  # who is on the loop already need not wake it by a system call
            return
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(function)

    def _left(self, _future: object) -> None:
        with self._lock:
            self._workers -= 1
        self.end(even_if_used=False)

    def end(self, even_if_used: bool = True) -> None:
        """Let the loop run out."""
        with self._lock:
            if self._ending or (self._workers and not even_if_used):
                return
            self._ending = True
        self.call(self.loop.stop)

    def _run(self, before: _Home | None) -> None:
        """The life of the thread. It outlives the one before, so that waiting for it is waiting for both."""
        try:
            # At the end of the block the runner cancels the tasks that are left, and closes the loop.
            with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
                runner.get_loop().run_forever()
        finally:
            if before is not None:
                before.thread.join()


class AsyncExecutor(Executor):
    """Starts coroutine workers on an event loop of its own."""

    kind: ClassVar[str] = "async"
    asynchronous: ClassVar[bool] = True
    default_workers: ClassVar[int] = 16

    def __init__(self) -> None:
        self._home: _Home | None = None
        self._lock = threading.Lock()

    def start(self, work: Callable[[Any], Any], name: str) -> AsyncWorker:
        with self._lock:
            worker = None if self._home is None else self._home.start(work, name)
            while worker is None:
                self._home = _Home(name, before=self._home)
                worker = self._home.start(work, name)
            return worker

    def close(self) -> None:
        home, self._home = self._home, None
        if home is not None:
            home.end()
            if home.thread is not threading.current_thread():
                home.thread.join(2.0)
