"""Says what in a program cannot be sent to another process, or makes it large, and how it is reached.

The walk follows pickle: into what a function uses, and into what `__reduce__` gives for an object. So an
attribute that `__getstate__` leaves out is not blamed. It runs only when there is something to tell.
"""

from __future__ import annotations

import copyreg
import dis
import io
import socket
import sys
from abc import ABC
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import islice
from types import (
    BuiltinMethodType,
    CellType,
    CodeType,
    FunctionType,
    GeneratorType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from penstock.errors import PlanError

__all__ = ["Part", "Unsendable", "explained", "heaviest"]

#: a name such as "map(decode) at train.py:41", and the thing itself
Part: TypeAlias = tuple[str, Any]
#: gives the size of a thing's pickle, and raises what pickling raises
Measure: TypeAlias = Callable[[Any], int]

#: attributes that a class makes by itself
_NOT_SENT = (GetSetDescriptorType, MemberDescriptorType, type(vars(ABC)["_abc_impl"]))
#: what has more inside is not weighed one by one
_MOST_WEIGHED = 1000


class Unsendable(TypeError):
    """Raised while pickling: what the thing is, and what to do instead."""

    def __init__(self, what: str, advice: str) -> None:
        super().__init__(what)
        self.advice = advice


class _Step(NamedTuple):
    """From a thing to one inside it. With a `tail` it goes on with the name before: CONFIG['db'].conn"""

    noun: str
    name: str
    tail: str = ""


_Path: TypeAlias = list[tuple[Any, _Step]]  # each step with the thing it starts from
_Child: TypeAlias = tuple[_Step, Any]


def explained(exc: Exception, what: str, value: Any, parts: Sequence[Part], measure: Measure) -> PlanError:
    """Why `value` could not be pickled. `exc` is what that raised."""
    label, part, failure = what, value, exc
    for name, candidate in parts:
        if (raised := _failure(candidate, measure)) is not None:
            label, part, failure = name, candidate, raised
            break
    cannot = f"{label} cannot be sent to a worker process: "
    if _is_too_deep(failure):
        return PlanError(f"{cannot}it is nested too deeply to be pickled; make it flat, as lists or arrays")
    try:
        found = _culprit(part, measure, {})
    except Exception:  # the objects on the way are the user's, and may do anything
        found = None
    path, culprit = found or ([], part)
    return PlanError(cannot + _fault(_place(path), culprit, _failure(culprit, measure) or failure, path))


def heaviest(nbytes: int, what: str, value: Any, parts: Sequence[Part], measure: Measure) -> str:
    """What makes a program of `nbytes` large."""
    weighed = [(size, name, part) for name, part in parts if (size := _size(part, measure)) * 2 > nbytes]
    size, label, part = max(weighed, key=lambda one: one[0], default=(nbytes, what, value))
    path, heavy, weight = _heaviest_in(part, size, measure)
    place = _place(path)
    most = f", most of it {place} ({_a(_kind(heavy))}, {weight / 1e6:.1f} MB)" if place else ""
    return (
        f"{label} is {size / 1e6:.1f} MB pickled{most}, and each worker gets a copy of what it uses of that; "
        "make it an array, which all workers share, or read it in the worker with ps.per_worker"
    )


# Searching.


def _failure(value: Any, measure: Measure) -> Exception | None:
    try:
        measure(value)
    except MemoryError:
        raise
    except Exception as exc:
        return exc
    return None


def _size(value: Any, measure: Measure) -> int:
    try:
        return measure(value)
    except Exception:
        return 0


def _is_too_deep(exc: BaseException | None) -> bool:
    while exc is not None and not isinstance(exc, RecursionError):
        exc = exc.__cause__
    return exc is not None


def _culprit(value: Any, measure: Measure, seen: dict[int, Any]) -> tuple[_Path, Any] | None:
    """The innermost thing that fails, and the way to it. None where the way is only back to what was seen."""
    seen[id(value)] = value  # kept: another thing must not get its id
    at_fault = True
    for step, child in _failing(list(_children(value)), measure):
        at_fault = False
        if id(child) in seen:
            continue
        if (found := _culprit(child, measure, seen)) is not None:
            path, culprit = found
            return [(value, step), *path], culprit
    return ([], value) if at_fault else None


def _failing(children: list[_Child], measure: Measure) -> Iterator[_Child]:
    """Those that fail. By halves: there may be a million, and one of them fails."""
    if not children or _failure([child for _, child in children], measure) is None:
        return
    if len(children) == 1:
        yield children[0]
        return
    middle = len(children) // 2
    yield from _failing(children[:middle], measure)
    yield from _failing(children[middle:], measure)


def _heaviest_in(value: Any, size: int, measure: Measure) -> tuple[_Path, Any, int]:
    """Go on as long as there is one thing inside that is most of it."""
    path: _Path = []
    while 0 < len(children := list(islice(_children(value), _MOST_WEIGHED + 1))) <= _MOST_WEIGHED:
        weight, number = max((_size(child, measure), number) for number, (_, child) in enumerate(children))
        step, child = children[number]
        if weight * 2 < size or weight > size or len(path) > 100:
            break
        path.append((value, step))
        value, size = child, weight
    return path, value, size


# What is inside.


def _children(value: Any) -> Iterator[_Child]:
    """What pickle would go into, and how it is reached."""
    kind = type(value)
    if kind in _INSIDE:
        return _INSIDE[kind](value)
    if isinstance(value, type):
        return _of_class(value)
    if isinstance(value, np.ndarray):
        return _items(enumerate(value.flat)) if value.dtype == object else iter(())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _attributes(zip(value._fields, value, strict=False))
    if kind.__module__.partition(".")[0] in sys.stdlib_module_names:
        return iter(())  # the user knows a queue, and not the lock inside it
    return _reduced(value)


def _items(items: Any) -> Iterator[_Child]:
    for key, value in items:
        yield _Step("item", text := _short(key), f"[{text}]"), value


def _attributes(items: Any) -> Iterator[_Child]:
    for name, value in items:
        yield _Step("attribute", str(name), f".{name}"), value


def _of_class(cls: type) -> Iterator[_Child]:
    yield from _attributes((name, value) for name, value in vars(cls).items() if not isinstance(value, _NOT_SENT))
    for base in cls.__bases__:
        yield _Step("base", base.__name__), base


def _of_dict(value: dict[Any, Any]) -> Iterator[_Child]:
    yield from _items(value.items())
    for key in value:
        if not isinstance(key, (str, int)):
            yield _Step("key", _short(key)), key


def _of_defaultdict(value: defaultdict[Any, Any]) -> Iterator[_Child]:
    yield _Step("attribute", "default_factory", ".default_factory"), value.default_factory
    yield from _of_dict(value)


def _of_set(value: Any) -> Iterator[_Child]:
    for item in value:
        yield _Step("item", _short(item)), item


def _of_function(fn: FunctionType) -> Iterator[_Child]:
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        yield from ((_Step("variable", name), inner) for _, inner in _of_cell(cell))
    for name in dict.fromkeys(_globals(fn.__code__)):
        if name in fn.__globals__:
            yield _Step("global", name), fn.__globals__[name]
    for number, default in enumerate(fn.__defaults__ or ()):
        yield _Step("default", str(number)), default
    for name, default in (fn.__kwdefaults__ or {}).items():
        yield _Step("default", name), default
    yield from _attributes(vars(fn).items())


def _globals(code: CodeType) -> Iterator[str]:
    # Not co_names: these are names of attributes, too.
    yield from (one.argval for one in dis.get_instructions(code) if one.opname.endswith("_GLOBAL"))
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _globals(const)


def _of_cell(cell: CellType) -> Iterator[_Child]:
    try:
        yield _Step("variable", "?"), cell.cell_contents
    except ValueError:  # it is empty
        return


def _of_method(method: Any) -> Iterator[_Child]:
    yield _Step("", "self"), method.__self__
    if isinstance(method, MethodType):
        yield _Step("function", method.__func__.__name__), method.__func__


def _of_partial(value: partial[Any]) -> Iterator[_Child]:
    for number, argument in enumerate(value.args):
        yield _Step("argument", str(number)), argument
    for name, argument in value.keywords.items():
        yield _Step("argument", name), argument
    yield _Step("function", getattr(value.func, "__name__", "func")), value.func


def _of_property(value: property) -> Iterator[_Child]:
    yield from ((_Step("function", "getter"), fn) for fn in (value.fget, value.fset, value.fdel) if fn)


def _of_wrapped(value: Any) -> Iterator[_Child]:
    yield _Step("function", getattr(value.__wrapped__, "__name__", "func")), value.__wrapped__


_INSIDE: dict[type, Callable[[Any], Iterator[_Child]]] = {
    dict: _of_dict,
    OrderedDict: _of_dict,
    defaultdict: _of_defaultdict,
    list: lambda value: _items(enumerate(value)),
    tuple: lambda value: _items(enumerate(value)),
    deque: lambda value: _items(enumerate(value)),
    set: _of_set,
    frozenset: _of_set,
    SimpleNamespace: lambda value: _attributes(vars(value).items()),
    ModuleType: lambda value: _attributes(vars(value).items()),
    FunctionType: _of_function,
    CellType: _of_cell,
    MethodType: _of_method,
    BuiltinMethodType: _of_method,
    partial: _of_partial,
    property: _of_property,
    staticmethod: _of_wrapped,
    classmethod: _of_wrapped,
    type(lru_cache(len)): _of_wrapped,
}


def _reduced(value: Any) -> Iterator[_Child]:
    """What is inside an object, by its own word for it."""
    try:
        reduce = copyreg.dispatch_table.get(type(value))
        reduced: Any = reduce(value) if reduce else value.__reduce_ex__(4)
        if isinstance(reduced, str):
            return
        _, args, state, listed, keyed = (*reduced, None, None, None)[:5]
        members = list(listed or ()), list(keyed or ())
    except Exception:  # this one is at fault itself
        return
    for number, argument in enumerate(args):
        yield (
            _Step("class", argument.__name__) if isinstance(argument, type) else _Step("argument", str(number)),
            argument,
        )
    for part in state if isinstance(state, tuple) and len(state) == 2 else (state,):
        if isinstance(part, dict):
            yield from _attributes(part.items())
        elif part is not None:
            yield _Step("state", "__getstate__()", ".__getstate__()"), part
    yield from _items(enumerate(members[0]))
    yield from _items(members[1])


# Telling.


def _place(path: _Path) -> str:
    """The way to a thing: "its global CONFIG['db'].conn", or "the global 'LOCK' of its global 'helper'"."""
    steps = [step for _, step in path]
    # The user knows the function, and not the attribute of ours that holds it.
    while path and type(path[0][0]).__module__.partition(".")[0] == "penstock":
        path, steps = path[1:], steps[1:]
    names: list[tuple[str, str]] = []
    for step in steps:
        if step.tail and names:
            noun, name = names[-1]
            names[-1] = noun, name + step.tail
        else:
            names.append((step.noun, step.name))
    told = [_quoted(*name) for name in reversed(names)]
    return " of ".join([*(f"the {one}" for one in told[:-1]), *(f"its {one}" for one in told[-1:])])


def _quoted(noun: str, name: str) -> str:
    plain = noun in ("", "item", "key") or "'" in name or name.isdigit()
    return f"{noun} {name if plain else repr(name)}".lstrip()


def _fault(place: str, culprit: Any, failure: Exception, path: _Path) -> str:
    is_a = f"{place or 'it'} is "
    if isinstance(failure, Unsendable):
        return f"{is_a}{failure}; {failure.advice}"
    kind = _kind(culprit)
    # What pickle says for a thing that it does not know, and nothing else.
    known = isinstance(failure, TypeError) and str(failure).startswith("cannot pickle")
    why = "" if known else f", and pickling it raised {type(failure).__name__}: {failure}"
    return f"{is_a}{_a(kind)}{why}; {_advice(culprit, path)}"


def _advice(culprit: Any, path: _Path) -> str:
    module = type(culprit).__module__.partition(".")[0]
    if module == "h5py":
        return "open the file in the worker, with ps.per_worker or when the function is first called"
    if isinstance(culprit, io.IOBase):
        return "open it inside the function, or use ps.per_worker"
    if isinstance(culprit, GeneratorType):
        return "give a function that makes it, or a list"
    if isinstance(culprit, socket.socket) or module in ("sqlite3", "lmdb"):
        return "open it inside the function, or use ps.per_worker"
    if path and path[-1][1].noun == "attribute":
        return "make it where it is first used, leave it out in __getstate__, or use ps.per_worker"
    return "make it inside the function, or use ps.per_worker"


def _kind(value: Any) -> str:
    if isinstance(value, io.IOBase) and isinstance(name := getattr(value, "name", None), (str, int)):
        return f"open file ({name})"
    kind = type(value)
    return (
        kind.__qualname__
        if kind.__module__ in ("builtins", "__main__")
        else f"{kind.__module__}.{kind.__qualname__}"
    )


def _a(kind: str) -> str:
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, (str, int, float, bytes, tuple)) else f"<{type(value).__name__}>"
    return text if len(text) <= 40 else f"{text[:37]}..."
