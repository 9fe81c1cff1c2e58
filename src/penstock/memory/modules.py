"""Which modules another process would find under the same name. What is in the others has to be sent by value.

Also which modules a function imports while it runs, so that another process can have them at hand.
"""

from __future__ import annotations

import dis
import os
import sys
import weakref
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import CodeType, FunctionType, ModuleType
from typing import Any

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


def imported_by(obj: Any) -> Iterator[str]:
    """Modules that a function, or a method of a class, imports in its body, if they are imported here already.

    Only those: what the program has not needed so far, it may not need, or not be able to import.
    """
    if isinstance(obj, FunctionType):
        yield from _imports(obj.__code__)
    elif isinstance(obj, type):
        for value in vars(obj).values():
            if isinstance(value, FunctionType):
                yield from _imports(value.__code__)


def _imports(code: CodeType) -> Iterator[str]:
    if any(name in sys.modules for name in code.co_names):
        for instruction in dis.get_instructions(code):
            if instruction.opname == "IMPORT_NAME" and instruction.argval in sys.modules:
                yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _imports(constant)
