"""The user's functions: what they are called, where they stand, how they are bound to a worker."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np

from penstock.errors import PlanError

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class PerWorker:
    """A function that every worker makes for itself; see `per_worker`."""

    factory: Callable[[], Callable[..., Any]]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"per_worker({function_name(self.factory)}) is a function only inside a pipeline, where each "
            "worker makes its own; outside, call the factory"
        )


def per_worker(factory: Callable[[], F]) -> F:
    """A function that needs something of its own in every worker: a connection, a decoder, a tokeniser.

    `factory()` is called once per worker, before its first sample, and what it returns is the function.

    >>> import penstock as ps
    >>> def make():
    ...     table = {1: "one", 2: "two"}      # expensive to make, not to be shared
    ...     return table.get
    >>> list(ps.from_sequence([1, 2]).map(ps.per_worker(make)))
    ['one', 'two']
    """
    if not callable(factory):
        raise PlanError(f"per_worker needs a function that makes a function, got {factory!r}")
    return cast(F, PerWorker(factory))


def as_function(fn: Any, what: str) -> Callable[..., Any]:
    """`fn` itself, or the lookup in it if it is a table."""
    if isinstance(fn, PerWorker):
        made = fn.factory()
        if not callable(made):
            raise PlanError(f"{what}: per_worker({function_name(fn.factory)}) must return a function, got {made!r}")
        return made
    if callable(fn):
        return cast(Callable[..., Any], fn)
    if isinstance(fn, (Mapping, Sequence, np.ndarray)) and not isinstance(fn, (str, bytes)):
        return fn.__getitem__
    raise PlanError(f"{what} needs a function (or a dict or list to look samples up in), got {fn!r}")


def check_function(fn: Any, what: str) -> None:
    """Refuse what `as_function` could not use, without calling a factory."""
    if not isinstance(fn, PerWorker):
        as_function(fn, what)


def _innermost(fn: Any, wrapped: bool = True) -> Any:
    while True:
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif isinstance(fn, PerWorker):
            fn = fn.factory
        elif inspect.ismethod(fn):
            fn = fn.__func__
        elif wrapped and hasattr(fn, "__wrapped__"):
            fn = fn.__wrapped__
        else:
            return fn


def function_name(fn: Any) -> str:
    """What to call `fn` in messages and stats.

    >>> function_name(len), function_name(functools.partial(max, 3)), function_name(lambda x: x)
    ('len', 'max', 'lambda')
    """
    fn = _innermost(fn)
    name = getattr(fn, "__name__", None) or type(fn).__name__
    return str(name).replace("<lambda>", "lambda")


def where(fn: Any) -> str:
    """file:line of `fn`, or nothing for what is not written in Python."""
    fn = _innermost(fn)
    method = vars(type(fn)).get("__call__")
    code = getattr(fn, "__code__", None) or getattr(method, "__code__", None)
    return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}" if code is not None else ""


async def result_of(result: Any) -> Any:
    """What a coroutine returns; an asynchronous iterator stays as it is."""
    if isinstance(result, AsyncIterator):
        return result
    if not inspect.isawaitable(result):
        raise TypeError(f"on='async' needs an async def, but the function returned {type(result).__name__}")
    return await result


def is_async(fn: Any) -> bool:
    """Whether calling `fn` gives something to await or to iterate asynchronously."""
    return gives_coroutine(fn) or inspect.isasyncgenfunction(_called(fn))


def gives_coroutine(fn: Any) -> bool:
    """Whether calling `fn` gives a coroutine, whatever it is called with."""
    return inspect.iscoroutinefunction(_called(fn))


def _called(fn: Any) -> Any:
    """The function that runs when `fn` is called."""
    fn = _innermost(fn, wrapped=False)
    return fn if inspect.isroutine(fn) else vars(type(fn)).get("__call__", fn)
