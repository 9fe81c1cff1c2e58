"""from_iterable: anything that can be iterated, once per epoch."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from penstock.errors import PlanError
from penstock.ops.functions import function_name, where
from penstock.ops.joint import Length
from penstock.sources.source import StreamSource


class IterableSource(StreamSource):
    """A callable that makes an iterable per epoch, or an iterable that can be iterated again."""

    verb = "from_iterable"

    def __init__(self, factory: Any) -> None:
        self.factory = factory
        self._last: Any = None
        if isinstance(factory, type):
            return  # a class makes an iterable when it is called, whatever its instances can do
        if hasattr(factory, "__next__"):
            raise PlanError(
                f"from_iterable got a {type(factory).__name__}, which can be iterated only once and would be "
                "spent after one epoch; pass the function that makes it (without calling it)"
            )
        if hasattr(factory, "__aiter__"):
            raise PlanError(
                "from_iterable needs an iterable, got an asynchronous one; iterate its keys with "
                "from_iterable and fetch them with map(async_function, workers=16)"
            )
        if not callable(factory) and not hasattr(factory, "__iter__") and not hasattr(factory, "__getitem__"):
            raise PlanError(
                f"from_iterable needs an iterable or a function that makes one, got {type(factory).__name__}"
            )

    @property
    def iterates_itself(self) -> bool:
        """An object with `__iter__` is iterated, even if it can be called too."""
        if isinstance(self.factory, type):
            return False
        return hasattr(self.factory, "__iter__") or not callable(self.factory)

    @property
    def label(self) -> str:
        name = type(self.factory).__name__ if self.iterates_itself else function_name(self.factory)
        place = "" if self.iterates_itself else where(self.factory)
        return f"from_iterable({name}{f' at {place}' if place else ''})"

    def shards(self) -> Sequence[Any]:
        return (None,)

    def open(self, shard: Any, skip: int) -> Iterator[Any]:
        made = self.factory if self.iterates_itself else self.factory()
        if not hasattr(made, "__iter__") and not hasattr(made, "__getitem__"):
            found = "None" if made is None else type(made).__name__
            raise PlanError(f"{self.label} must return an iterable, or yield the samples; it gave {found}")
        iterator = iter(made)
        if iterator is made:
            if made is _strong(self._last):
                raise PlanError(
                    f"{self.label} gave the same {type(made).__name__} again, which is spent after one epoch; "
                    "make a new one in every call"
                )
            self._last = _weak(made)
        return islice(iterator, skip, None) if skip else iterator

    def length(self) -> Length:
        if not self.iterates_itself or not hasattr(self.factory, "__len__"):
            return None
        try:
            return len(self.factory)
        except OverflowError:  # a range has more than can be counted
            return None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}


def _weak(iterator: Any) -> Any:
    """A reference that does not keep a generator, and what it has open, alive."""
    try:
        return weakref.ref(iterator)
    except TypeError:
        return iterator


def _strong(reference: Any) -> Any:
    return reference() if isinstance(reference, weakref.ref) else reference
