"""Names of a package that are imported when they are first used, so that importing the package takes no time.

A package says where its names are and takes over the two functions that Python calls for a name that a module
does not have yet (PEP 562)::

    if TYPE_CHECKING:
        from package.home import Name        # for type checkers and editors, which read and do not run
    else:
        __getattr__, __dir__ = lazy(__name__, {"package.home": ["Name"]})

What may be relied on: each name is looked up once and is then an ordinary one of the module. ``dir``, ``help`` and
``from package import *`` see all of them. A home may be imported by several threads at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def named(path: str) -> Any:
    """What stands at ``"package.module:name"``, imported now.

    Lower layers name the parts of higher ones in this way: those that few users need, and that take long to import.
    """
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def lazy(package: str, homes: Mapping[str, Sequence[str]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` for `package`, whose names are in the modules `homes`.

    A module that is a name itself, as ``package.ops`` is, stands there with no names.
    """
    home_of = {name: home for home, names in homes.items() for name in names}
    modules = {home.rpartition(".")[2]: home for home, names in homes.items() if not names}
    namespace = vars(sys.modules[package])

    def __getattr__(name: str) -> Any:
        if name in modules:
            return import_module(modules[name])
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = namespace[name] = getattr(import_module(home_of[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*namespace, *home_of, *modules})

    return __getattr__, __dir__
