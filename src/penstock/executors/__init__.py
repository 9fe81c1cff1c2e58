"""Executors by name: our own, and those that third parties register as ``penstock.executors``."""

from __future__ import annotations

from penstock import system
from penstock.errors import PlanError
from penstock.executors.executor import OWN, Executor, no_executor, registered

__all__ = ["find_executor"]


def find_executor(kind: str) -> type[Executor]:
    """The executor called `kind`."""
    if kind in OWN:
        return OWN[kind] or _own(kind)
    others = registered()
    if kind not in others:
        raise no_executor(kind, others)
    found = others[kind].load()
    if not (isinstance(found, type) and issubclass(found, Executor)):
        raise PlanError(f"the executor {kind!r} of {others[kind].value} is not a penstock Executor")
    return found


def _own(kind: str) -> type[Executor]:
    """One of ours, imported now: event loops and processes need much that threads do not."""
    if kind == "async":
        from penstock.executors.coroutines import AsyncExecutor

        return AsyncExecutor
    if kind == "process":
        if why := system.why_no_processes():
            raise PlanError(why)
        from penstock.executors.processes import ProcessExecutor

        return ProcessExecutor
    if kind == "inline":
        from penstock.executors.inline import InlineExecutor

        return InlineExecutor
    from penstock.executors.threads import ThreadExecutor

    return ThreadExecutor
