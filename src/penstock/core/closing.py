"""How the work of a loader ends: by `close`, because nobody holds the loader any more, or with the interpreter."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

from penstock.core.workers import LOCK, Crew
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.memory.block import Blocks


_engines: weakref.WeakSet[Any] = weakref.WeakSet()


def check_open(crews: dict[int, Crew], pid: int, closed: bool) -> None:
    """Raise if a loader of process `pid` with these crews can give nothing any more."""
    if closed:
        raise PenstockError("the loader is closed; make a new one with pipeline.loader()")
    for crew in crews.values():
        if not crew.closed:
            continue
        if crew.lack is not None:
            said = f"not one {crew.executor.kind} worker could be started: {crew.lack}"
            if "ulimit" not in said:
                said += "; free some memory or raise the limits of this process (ulimit -u, ulimit -v)"
            raise PenstockError(said) from crew.lack
        raise PenstockError("the pool that the loader runs on is closed; make a new pool and a new loader")
    if pid != os.getpid():
        raise PenstockError("the loader belongs to another process; make a new one after the fork")


def end_workers(engine: Any, grace_s: float, quiet: bool) -> None:
    """End the workers of a loader that is closed, and wait for them."""
    crews = dict(engine.crews)
    for number, crew in crews.items():
        with LOCK:
            crew.leave(engine)
        if not crew.shared:
            crew.close(grace_s, quiet)
        # Whoever is interrupted while it waits for workers may close once more, and waits for them then.
        engine.crews.pop(number, None)
    _close_blocks(engine.blocks, crews)
    engine.bridge.close()


def abandoned(
    crews: dict[int, Crew], closing: threading.Event, blocks: Blocks | None, engine: weakref.ref[Any]
) -> None:
    """Nobody holds a loader any more: its workers are told to end. Takes no lock, and waits for nothing."""
    closing.set()
    for crew in list(crews.values()):
        if not crew.shared:
            crew.dismiss()
    _close_blocks(blocks, crews)
    if (found := engine()) is not None:
        found.let_go(blocking=False)


def _close_blocks(blocks: Blocks | None, crews: dict[int, Crew]) -> None:
    """Give shared memory back, and have the processes of pools do so, too."""
    if blocks is None:
        return
    blocks.close()
    for crew in list(crews.values()):
        if crew.shared and crew.executor.remote:
            for worker in list(crew.workers):
                worker.unpark()


def close_at_exit(engine: Any) -> None:
    """Close this engine with the interpreter, if it is still there."""
    _engines.add(engine)


def close_at_exit_again() -> None:
    """Close all engines before whatever was registered since: what is registered last runs first.

    Loaders must close before what has been imported for worker processes ends all processes.
    """
    atexit.unregister(_close_all)
    atexit.register(_close_all)


def _close_all() -> None:
    for engine in list(_engines):
        engine.close(grace_s=0.5, quiet=True)


atexit.register(_close_all)
