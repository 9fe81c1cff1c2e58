"""Classes that pickle cannot find by name: those of a script, a notebook or a function.

cloudpickle sends such a class by value, and gives it a number by which both processes know it from then on.
Loading it by value once more would set every attribute of the class that is there already, and replace its
methods by copies. So samples and exceptions name the class by its number. They carry its definition too, for a
process that has never seen it.
"""

from __future__ import annotations

import importlib
import pickle
import sys
import weakref
from collections.abc import MutableMapping
from contextlib import suppress
from operator import attrgetter
from typing import Any, TypeAlias

import cloudpickle  # type: ignore[import-untyped]

#: module and name; cloudpickle's number and the pickled definition where the name is not enough
Reference: TypeAlias = tuple[str, str, str, bytes]

# Private, but there since cloudpickle 1.2. Without them, classes are sent by value every time.
_NUMBERS: MutableMapping[type, str] = getattr(cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_CLASS", {})
_CLASSES: MutableMapping[str, type] = getattr(cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_ID", {})

_definitions: MutableMapping[type, bytes] = weakref.WeakKeyDictionary()


def needs_reference(cls: type) -> bool:
    """Whether cloudpickle has sent or received this class by value before."""
    return cls in _NUMBERS and not _has_a_name(cls)


def _has_a_name(cls: type) -> bool:
    """Whether the other process finds the class by its name."""
    module = cls.__module__
    if module == "__main__" or module in cloudpickle.list_registry_pickle_by_value():
        return False
    try:
        return attrgetter(cls.__qualname__)(sys.modules[module]) is cls
    except (KeyError, AttributeError):
        return False


def reference(cls: type) -> Reference:
    """How another process finds a class. Raises what pickling its definition raises."""
    if _has_a_name(cls):
        return cls.__module__, cls.__qualname__, "", b""
    if cls not in _definitions:
        _definitions[cls] = cloudpickle.dumps(cls)
    return cls.__module__, cls.__qualname__, _NUMBERS.get(cls, ""), _definitions[cls]


def find_class(module: str, qualname: str, number: str, definition: bytes) -> Any:
    """The class that `reference` describes, the one that is here already if there is one."""
    if not definition:
        return attrgetter(qualname)(sys.modules.get(module) or importlib.import_module(module))
    if (found := _CLASSES.get(number)) is not None:
        return found
    if module == "__main__":  # a forked process has the class without ever being sent it
        with suppress(AttributeError):
            return attrgetter(qualname)(sys.modules[module])
    return pickle.loads(definition)
