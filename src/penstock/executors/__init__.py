"""Executors by name: our own, and those that third parties register as ``penstock.executors``."""

from __future__ import annotations

from importlib.metadata import entry_points

from penstock.errors import PlanError
from penstock.executors.coroutines import AsyncExecutor
from penstock.executors.executor import Executor
from penstock.executors.inline import InlineExecutor
from penstock.executors.processes import ProcessExecutor
from penstock.executors.threads import ThreadExecutor

__all__ = ["find_executor"]

_OWN: dict[str, type[Executor]] = {
    kind.kind: kind for kind in (InlineExecutor, ThreadExecutor, AsyncExecutor, ProcessExecutor)
}


def find_executor(kind: str) -> type[Executor]:
    """The executor called `kind`."""
    if kind in _OWN:
        return _OWN[kind]
    others = {entry.name: entry for entry in entry_points(group="penstock.executors")}
    if kind not in others:
        known = ", ".join(sorted({*_OWN, *others}))
        raise PlanError(f"there is no executor called {kind!r}; there are: {known}")
    found = others[kind].load()
    if not (isinstance(found, type) and issubclass(found, Executor)):
        raise PlanError(f"the executor {kind!r} of {others[kind].value} is not a penstock Executor")
    return found
