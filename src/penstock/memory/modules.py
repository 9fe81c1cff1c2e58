"""Which modules another process would find under the same name. What is in the others has to be sent by value."""

from __future__ import annotations

import os
import sys
import weakref
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["importable"]

_verdicts: weakref.WeakKeyDictionary[ModuleType, bool] = weakref.WeakKeyDictionary()


def importable(module: ModuleType) -> bool:
    """Whether a worker that imports a module of this name gets this one."""
    if (known := _verdicts.get(module)) is None:
        known = _verdicts[module] = _found(module)
    return known


def _found(module: ModuleType) -> bool:
    name = module.__name__
    if name.partition(".")[0] in sys.stdlib_module_names:
        return True
    above = sys.modules.get(parent := name.rpartition(".")[0])
    if parent and (above is None or (type(above) is ModuleType and not importable(above))):
        return False
    found = _spec(name, getattr(above, "__path__", None))
    spec = getattr(module, "__spec__", None)
    origin = getattr(module, "__file__", None) or (spec.origin if spec is not None else None)
    if spec is None and origin is None:
        # Libraries in C make such modules inside a package, as it is imported.
        return bool(parent) and found is None
    return found is not None and _same_file(origin, found.origin)


def _same_file(one: str | None, other: str | None) -> bool:
    if one == other:  # also a package without a file of its own, of which there is one per name
        return True
    try:
        return one is not None and other is not None and os.path.samefile(one, other)
    except OSError:
        return False


def _spec(name: str, path: Any) -> ModuleSpec | None:
    """What an import would find. `importlib.util.find_spec` would ask the module that is loaded already."""
    for finder in sys.meta_path:
        try:
            found = finder.find_spec(name, path)
        except Exception:  # of somebody else's finder, about a module that may be ours
            continue
        if found is not None:
            return found
    return None
