"""Coroutines where no event loop of ours runs: inline, and in `peek`."""

from __future__ import annotations

import threading
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio


class Bridge:
    """Runs coroutines to their end, one at a time, on a loop of its own."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end in the calling thread, or beside it if a loop runs there already."""
        import asyncio  # takes long, and most pipelines have no coroutines

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        loop = self._loop
        if not _loop_runs():
            return _to_the_end(loop, coroutine)
        results: list[Any] = []
        beside = threading.Thread(target=lambda: results.append(_to_the_end(loop, coroutine)), daemon=True)
        beside.start()
        beside.join()
        return results[0]

    def close(self) -> None:
        """Close the loop, if there is one."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()


def _to_the_end(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine; when Ctrl-C comes, cancel it properly before going on with that."""
    task = loop.create_task(coroutine)
    try:
        return loop.run_until_complete(task)
    except KeyboardInterrupt:
        import asyncio

        task.cancel()
        loop.run_until_complete(asyncio.wait([task]))
        raise


def _loop_runs() -> bool:
    """Whether an event loop runs in this thread."""
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
