"""Values and functions as a hash: the same in every process and every run, another one for other code or data.

A function is its bytecode, its constants, the functions inside of it, its defaults, what its closure holds, and of
the globals that it reads: plain data, and functions and classes of its own module. Not part of it are file names,
line numbers, the names of the function and of its local variables, and variables that it assigns itself (counters).

* Functions and classes of installed packages are their name and the version of the package.
* An object is its class and its attributes, as far as these are data or functions. One with a non-empty string
  `content` is that string. Attributes that are None, or of a kind that says nothing (an open file), are left out:
  a file that the first read opens changes nothing.
* Of an array of more than 16 MB, 256 stretches of 64 KB are read.

Not seen are functions of other modules, files, the environment, and what C code does.
"""

from __future__ import annotations

import dataclasses
import dis
import enum
import functools
import marshal
import os
import re
import sys
import sysconfig
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from penstock.tensors import array_of, dtype_name, is_tensor

_BYTES = 12
_WHOLE_ARRAY = 16 << 20
_STRETCHES, _STRETCH = 256, 1 << 16
_DEEPEST = 50

_ATOMS = frozenset({str, bytes, int, float, complex, bool, type(None)})
_SHOWN = (range, slice, type(Ellipsis), type(NotImplemented), bytearray)
_Cached = type(functools.lru_cache(len))
_INSTALLED = tuple(
    {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), os.path.dirname(os.path.dirname(__file__))}
)
#: of a class, such attributes are its functions or nothing that it does (pickle leaves some behind)
_DUNDER = re.compile("__.*__")


def digest(*values: Any) -> str:
    """The hash of some values.

    >>> def scaled(by):
    ...     return lambda x: x * by
    >>> digest(scaled(2)) == digest(scaled(2)), digest(scaled(2)) == digest(scaled(3))
    (True, False)
    """
    digests = _Digests()
    return digests.of("values", *map(digests.value, values)).hex()


class _Digests:
    """Makes the hash of one value out of those of its parts."""

    def __init__(self) -> None:
        #: of functions and classes, None while it is being made; they are kept alive by what is hashed
        self._done: dict[int, bytes | None] = {}
        self._depth = 0

    def of(self, kind: str, *parts: Any) -> bytes:
        """The hash of some parts: bytes and str as they are, others as `value`."""
        found = blake2b(digest_size=_BYTES)
        for part in (kind, *parts):
            data = (
                part if type(part) is bytes else part.encode("utf-8", "surrogatepass") if type(part) is str else b""
            )
            if type(part) not in (bytes, str):
                data = self.value(part)
            found.update(len(data).to_bytes(8, "little"))
            found.update(data)
        return found.digest()

    def value(self, value: Any) -> bytes:
        kind = type(value)
        if kind in _ATOMS:
            return self.of(kind.__name__, marshal.dumps(value, 2) if kind is not bytes else value)
        self._depth += 1
        try:
            if self._depth > _DEEPEST:
                return self.of("deep", kind.__qualname__)
            return self._data(value) or self._code(value) or self._object(value)
        finally:
            self._depth -= 1

    # ------------------------------------------------------------------ data

    def _data(self, value: Any) -> bytes | None:
        """Of data; None if it is something else."""
        kind = type(value)
        if isinstance(value, enum.Enum):
            return self.of("enum", kind.__module__, kind.__qualname__, value.name)
        if isinstance(value, PurePath):
            return self.of("path", str(value))
        if kind in _SHOWN:
            return self.of(kind.__name__, repr(value))
        if isinstance(value, re.Pattern):
            return self.of("pattern", value.pattern, value.flags)
        if isinstance(value, np.dtype):
            return self.of("dtype", str(value.descr) if value.names else value.str)
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, np.generic):
            return self.of("scalar", value.dtype.str, value.tobytes())
        if is_tensor(value):
            name = dtype_name(value)
            return self.of("tensor", name or str(value.dtype), array_of(value) if name else str(value.shape))
        if isinstance(value, (list, tuple)):
            return self._sequence(value)
        if isinstance(value, Mapping) and not hasattr(value, "content"):
            return self.of(kind.__qualname__, *sorted(self.of("item", key, one) for key, one in value.items()))
        if isinstance(value, (set, frozenset)):
            return self.of("set", *sorted(map(self.value, value)))
        return None

    def _sequence(self, value: Any) -> bytes:
        kind = "tuple" if isinstance(value, tuple) else "list"
        items = value[:] if kind == "list" else value
        if _ATOMS.issuperset(map(type, items)):
            return self.of(kind, marshal.dumps(list(items), 2))
        if all(type(item) is tuple and _ATOMS.issuperset(map(type, item)) for item in items):
            return self.of(kind, "tuples", marshal.dumps(list(items), 2))
        return self.of(kind, *map(self.value, items))

    def _array(self, array: Any) -> bytes:
        if array.dtype.hasobject:
            return self.of("objects", str(array.shape), *map(self.value, array.ravel().tolist()))
        like = self.of("array", array.dtype, str(array.shape))
        if array.nbytes <= _WHOLE_ARRAY:
            return self.of("whole", like, np.ascontiguousarray(array).tobytes())
        rows = array.reshape(-1) if array.flags.c_contiguous else array
        count = max(1, _STRETCH // max(1, rows.nbytes // max(1, len(rows))))
        starts = np.linspace(0, max(0, len(rows) - count), _STRETCHES, dtype=np.int64)
        return self.of("sampled", like, *(np.ascontiguousarray(rows[at : at + count]).tobytes() for at in starts))

    # ------------------------------------------------------------------ code

    def _code(self, value: Any) -> bytes | None:
        """Of code; None if it is something else."""
        kind = type(value)
        if kind is CodeType:
            return self._bytecode(value)
        if kind is FunctionType or isinstance(value, type):
            return self._once(value)
        if kind is MethodType:
            return self.of("method", value.__func__, value.__self__)
        if isinstance(value, functools.partial):
            return self.of("partial", value.func, list(value.args), value.keywords)
        if isinstance(value, _Cached):
            return self.of("cached", value.__wrapped__)
        if isinstance(value, (staticmethod, classmethod)):
            return self.of(kind.__name__, value.__func__)
        if isinstance(value, property):
            return self.of("property", value.fget, value.fset)
        if isinstance(value, functools.cached_property):
            return self.of("property", value.func)
        if isinstance(value, ModuleType):
            return self.of("module", value.__name__)
        if isinstance(value, BuiltinFunctionType):
            owner = value.__self__
            own = owner if owner is not None and not isinstance(owner, ModuleType) else value.__module__
            return self.of("builtin", value.__qualname__, own)
        return None

    def _once(self, value: Any) -> bytes:
        """Of a function or class, which may lead back to itself."""
        if id(value) not in self._done:
            self._done[id(value)] = None
            made = self._class(value) if isinstance(value, type) else self._function(value)
            self._done[id(value)] = made
        return self._done[id(value)] or self.of("again", value.__qualname__)

    def _function(self, fn: FunctionType) -> bytes:
        code = fn.__code__
        counters = _rebound(code)
        cells = [
            None if name in counters else _held(cell)
            for name, cell in zip(code.co_freevars, fn.__closure__ or (), strict=True)
        ]
        bound = self.of("bound", fn.__defaults__, fn.__kwdefaults__, cells)
        if _is_installed(code.co_filename):
            return self.of("installed", str(fn.__module__), fn.__qualname__, _version(fn.__module__), bound)
        named = {name: fn.__globals__[name] for name in sorted(_names(code)) if name in fn.__globals__}
        known = [self.of("global", name, one) for name, one in named.items() if _is_seen(one, fn.__module__)]
        return self.of("function", code, bound, *known)

    def _bytecode(self, code: CodeType) -> bytes:
        shape = [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags]
        return self.of(
            "code",
            code.co_code,
            code.co_exceptiontable,
            shape,
            list(code.co_names),
            *map(self.value, code.co_consts),
        )

    def _class(self, cls: type) -> bytes:
        named = self.of("class", cls.__module__, cls.__qualname__)
        if _is_installed(_file_of(cls)):
            return self.of("installed", named, _version(cls.__module__))
        own = [
            self.of("own", name, one)
            for name, one in sorted(vars(cls).items())
            if _is_seen(one, cls.__module__) and (isinstance(one, FunctionType) or not _DUNDER.fullmatch(name))
        ]
        return self.of("class", named, list(cls.__bases__), *own)

    # ------------------------------------------------------------------ objects

    def _object(self, value: Any) -> bytes:
        cls = type(value)
        content = _content(value)
        if content:
            return self.of("content", cls.__module__, cls.__qualname__, content)
        if id(value) in self._done:
            return self.of("again", cls.__qualname__)
        self._done[id(value)] = None
        try:
            private = not _is_installed(_file_of(cls))
            attributes = _attributes(value)
            if not attributes and (reduced := _reduced(value)) is not None:
                return self.of("reduced", cls, reduced)
            known = [
                self.of("attribute", name, one)
                for name, one in sorted(attributes.items())
                if one is not None and (private or name[0] != "_") and _is_known(one)
            ]
            return self.of("object", cls, str(getattr(value, "__name__", "")), *known)
        finally:
            del self._done[id(value)]


def _content(value: Any) -> str:
    try:
        content = getattr(value, "content", "")
    except Exception:
        return ""
    return content if isinstance(content, str) else ""


def _reduced(value: Any) -> Any:
    """What pickle makes of an object without attributes: a ufunc, a date, an itemgetter."""
    try:
        reduced = value.__reduce_ex__(4)
    except Exception:
        return None
    return reduced if isinstance(reduced, str) else [reduced[0], list(reduced[1])]


def _held(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "nothing yet"


def _attributes(value: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    found = {name: one for name, one in getattr(value, "__dict__", {}).items() if isinstance(name, str) and name}
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name and not name.startswith("__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return found


def _is_plain(value: Any) -> bool:
    return type(value) in _ATOMS or isinstance(
        value,
        (
            list,
            tuple,
            set,
            frozenset,
            dict,
            PurePath,
            enum.Enum,
            re.Pattern,
            np.ndarray,
            np.generic,
            np.dtype,
            *_SHOWN,
        ),
    )


def _is_known(value: Any) -> bool:
    """Whether something can be said of an attribute."""
    if _is_plain(value) or callable(value) or is_tensor(value):
        return True
    if _content(value):
        return True
    if _is_installed(_file_of(type(value))):
        # What can be closed is a file, or something like one.
        return not hasattr(value, "close") and any(name[0] != "_" for name in _attributes(value))
    return True


def _is_seen(value: Any, module: str | None) -> bool:
    """Whether a global, or an attribute of a class, is part of what names it."""
    if isinstance(value, (FunctionType, type)):
        return value.__module__ == module
    if isinstance(
        value, (staticmethod, classmethod, property, functools.cached_property, functools.partial, _Cached)
    ):
        return True
    if _is_plain(value) or is_tensor(value):
        return True
    return type(value).__module__ == module


def _names(code: CodeType) -> set[str]:
    """The globals that a function and those inside of it read, without those that they assign."""
    read, assigned = _used(code)
    return read - assigned


def _used(code: CodeType) -> tuple[set[str], set[str]]:
    read, assigned = set(), set()
    for one in dis.get_instructions(code):
        if one.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            read.add(str(one.argval))
        elif one.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            assigned.add(str(one.argval))
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            others = _used(inner)
            read |= others[0]
            assigned |= others[1]
    return read, assigned


def _rebound(code: CodeType) -> set[str]:
    """What of its closure a function assigns."""
    stored = {str(one.argval) for one in dis.get_instructions(code) if one.opname == "STORE_DEREF"}
    return stored & set(code.co_freevars)


def _file_of(cls: type) -> str:
    """Where a class stands: the file of its module, or of its functions if its module is not here."""
    if cls.__module__ in sys.builtin_module_names:
        return "<frozen>"
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    functions = (one for one in vars(cls).values() if isinstance(one, FunctionType))
    return file or next((one.__code__.co_filename for one in functions), "")


def _is_installed(filename: str) -> bool:
    if filename.startswith("<frozen"):
        return True
    if "site-packages" in filename or "dist-packages" in filename:
        return True
    return filename.startswith(_INSTALLED)


def _version(module: str | None) -> str:
    package = sys.modules.get((module or "").partition(".")[0])
    version = getattr(package, "__version__", "")
    return version if isinstance(version, str) else ""
