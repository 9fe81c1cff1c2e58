"""Executors by name: our own, and those that third parties register as ``penstock.executors``."""

from __future__ import annotations

from penstock import system
from penstock.errors import PlanError
from penstock.executors.executor import OWN, Executor, no_executor, registered
from penstock.lazy import named

__all__ = ["find_executor"]


def find_executor(kind: str) -> type[Executor]:
    """The executor called `kind`. Ours are imported now: processes and event loops need more than threads do."""
    if kind == "process" and (why := system.why_no_processes()):
        raise PlanError(why)
    if kind in OWN:
        home = OWN[kind]
        own: type[Executor] = named(home) if isinstance(home, str) else home
        return own
    others = registered()
    if kind not in others:
        raise no_executor(kind, others)
    found = others[kind].load()
    if not (isinstance(found, type) and issubclass(found, Executor)):
        raise PlanError(f"the executor {kind!r} of {others[kind].value} is not a penstock Executor")
    return found
