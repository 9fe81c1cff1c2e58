"""The async executor: all workers of a pool are tasks on one event loop, in one thread.

A worker is a long-lived task that takes tickets, so a sample costs no task of its own and
crosses no thread unless it changes its stage.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from penstock.executors.executor import Executor, Worker

__all__ = ["AsyncExecutor", "AsyncWorker"]


class AsyncWorker(Worker):
    """One task on the executor's loop."""

    def __init__(
        self,
        executor: AsyncExecutor,
        loop: asyncio.AbstractEventLoop,
        thread: threading.Thread,
        name: str,
    ) -> None:
        self.name = name
        self._executor = executor
        self._loop = loop
        self._thread = thread
        self._woken = asyncio.Event()
        self._ended = threading.Event()
        self._running: asyncio.Task[None] | None = None

    async def run(self, work: Callable[[Any], Awaitable[None]]) -> None:
        self._running = asyncio.current_task()
        try:
            await work(self)
        except asyncio.CancelledError:
            return  # interrupted: the loader is closing
        finally:
            self._executor.ended(self)
            self._ended.set()

    async def park(self) -> None:
        await self._woken.wait()
        self._woken.clear()

    def unpark(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._woken.set)
        except RuntimeError:
            return  # the loop has ended, and the worker with it

    def interrupt(self) -> None:
        """Interrupt the call in hand at its next ``await``."""
        try:
            self._loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:
            return

    def _cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()

    def join(self, timeout_s: float) -> bool:
        if self._thread is threading.current_thread():
            return True
        return self._ended.wait(timeout_s)

    def stack(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or -1)
        return "".join(traceback.format_stack(frame)) if frame is not None else ""


class AsyncExecutor(Executor):
    """Starts coroutine workers on an event loop of its own."""

    kind: ClassVar[str] = "async"
    asynchronous: ClassVar[bool] = True
    default_workers: ClassVar[int] = 16

    def __init__(self) -> None:
        #: guards what follows; workers start in one thread and end in another
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._working = 0

    def ended(self, worker: AsyncWorker) -> None:
        """A worker has ended; the loop ends with the last one, and a new worker gets a new loop."""
        with self._lock:
            self._working -= 1
            if self._working:
                return
            self._loop = None
        asyncio.get_running_loop().stop()

    def start(self, work: Callable[[Any], Any], name: str) -> AsyncWorker:
        with self._lock:
            if self._loop is None or self._thread is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=_run, args=(loop, self._thread), name=f"{name}-loop", daemon=True)
                thread.start()
                self._loop, self._thread = loop, thread
            worker = AsyncWorker(self, self._loop, self._thread, name)
            self._working += 1
            asyncio.run_coroutine_threadsafe(worker.run(work), self._loop)
        return worker

    def close(self) -> None:
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                loop.call_soon_threadsafe(loop.stop)
        if thread is not None and thread is not threading.current_thread():
            thread.join(2.0)


def _run(loop: asyncio.AbstractEventLoop, before: threading.Thread | None) -> None:
    """The thread of a loop. It outlives the one before, so that waiting for it is waiting for both."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(_settle(loop))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
    if before is not None:
        before.join()


async def _settle(loop: asyncio.AbstractEventLoop) -> None:
    rest = [task for task in asyncio.all_tasks(loop) if task is not asyncio.current_task()]
    await asyncio.gather(*rest, return_exceptions=True)
