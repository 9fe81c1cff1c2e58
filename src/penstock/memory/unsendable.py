"""Says what in a program cannot be sent to another process, or makes it large, and where it is.

It looks a few levels deep into what pickle would: variables, globals and defaults of a function, attributes that an
object pickles, items of containers. It runs only when there is an error or a warning to write.
"""

from __future__ import annotations

import dis
import io
import socket
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import partial
from itertools import islice
from types import CodeType, FunctionType, GeneratorType, MethodType
from typing import Any, NamedTuple, TypeAlias

from penstock.errors import PlanError

#: a name such as "map(decode) at train.py:41", and the thing itself
Labelled: TypeAlias = tuple[str, Any]
#: gives the size of a thing's pickle, and raises what pickling raises
Measure: TypeAlias = Callable[[Any], int]

#: levels to look into, ours included
_DEEPEST = 8
#: things to look at in each of them
_MOST = 1000


class Unsendable(TypeError):
    """Raised while pickling: what the thing is, and what to do instead if that does not depend on where it is."""

    def __init__(self, what: str, advice: str = "") -> None:
        super().__init__(what)
        self.advice = advice


class _Step(NamedTuple):
    """From one thing to another inside it."""

    noun: str
    name: str
    #: the thing inside
    found: Any
    #: the thing that it is in
    inside: Any


def explained(exc: Exception, what: str, value: Any, parts: Sequence[Labelled], measure: Measure) -> PlanError:
    """Why `value` could not be pickled. `exc` is what that raised."""
    label, culprit, failure = what, value, exc
    for name, part in parts:
        if (raised := _failure(part, measure)) is not None:
            label, culprit, failure = name, part, raised
            break
    cannot = f"{label} cannot be sent to a worker process: "
    if isinstance(failure, RecursionError) or isinstance(failure.__cause__, RecursionError):
        return PlanError(f"{cannot}it is nested too deeply to be pickled; make it flat, as lists or arrays")
    path: list[_Step] = []
    seen = {id(culprit)}
    while len(path) < _DEEPEST:
        for step in _inside(culprit):
            if id(step.found) not in seen and (raised := _failure(step.found, measure)) is not None:
                path.append(step)
                culprit, failure = step.found, raised
                seen.add(id(culprit))
                break
        else:
            break
    return PlanError(f"{cannot}{_place(path) or 'it'} is {_fault(culprit, failure, path)}")


def heaviest(nbytes: int, what: str, value: Any, parts: Sequence[Labelled], measure: Measure) -> str:
    """What makes a program of `nbytes` large."""
    sizes = [(_size(part, measure), label, part) for label, part in parts]
    size, label, heavy = max(sizes, key=lambda one: one[0], default=(0, what, value))
    if size * 2 < nbytes:
        size, label, heavy = nbytes, what, value
    path: list[_Step] = []
    weight = size
    while len(path) < _DEEPEST:
        inside = [(_size(step.found, measure), step) for step in _inside(heavy)]
        largest, step = max(inside, key=lambda one: one[0], default=(0, None))
        if step is None or largest * 2 < weight:
            break
        path.append(step)
        heavy, weight = step.found, largest
    place = _place(path)
    most = f", most of it {place} ({_a(_kind(heavy))}, {weight / 1e6:.1f} MB)" if place else ""
    return (
        f"{label} is {size / 1e6:.1f} MB pickled{most}, and each worker gets a copy of what it uses of that; "
        "make it an array, which all workers share, or read it in the worker with ps.per_worker"
    )


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


# What is inside.


def _inside(value: Any) -> list[_Step]:
    try:
        return [_Step(*found, value) for found in islice(_children(value), _MOST)]
    except Exception:  # the object is the user's, and may do anything; so it is at fault itself
        return []


def _children(value: Any) -> Iterator[tuple[str, str, Any]]:
    """Noun, name and thing for each thing that pickle would go into."""
    kind = type(value)
    if kind in (dict, OrderedDict):
        yield from (("item", _short(key), item) for key, item in value.items())
    elif kind in (list, tuple, deque):
        yield from (("item", str(number), item) for number, item in enumerate(value))
    elif kind is FunctionType:
        yield from _of_function(value)
    elif kind is MethodType:
        yield "", "self", value.__self__
    elif kind is partial:
        yield from (("argument", str(number), argument) for number, argument in enumerate(value.args))
        yield from (("argument", name, argument) for name, argument in value.keywords.items())
        yield "function", getattr(value.func, "__name__", "func"), value.func
    elif isinstance(getattr(value, "__wrapped__", None), FunctionType):
        yield "function", value.__wrapped__.__name__, value.__wrapped__
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from (("attribute", name, item) for name, item in zip(value._fields, value, strict=True))
    elif kind.__module__.partition(".")[0] not in sys.stdlib_module_names and not isinstance(value, type):
        # Not `vars`: an attribute that `__getstate__` leaves out is not at fault.
        _, arguments, state = (*value.__reduce_ex__(4), None)[:3]
        yield from (("argument", str(n), one) for n, one in enumerate(arguments) if not isinstance(one, type))
        if isinstance(state, list) and is_dataclass(value):  # with slots, and frozen
            state = {field.name: item for field, item in zip(fields(value), state, strict=True)}
        for attributes in state if isinstance(state, tuple) else (state,):
            yield from (("attribute", name, item) for name, item in (attributes or {}).items())


def _of_function(fn: FunctionType) -> Iterator[tuple[str, str, Any]]:
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        with suppress(ValueError):  # it is empty
            yield "variable", name, cell.cell_contents
    for name in dict.fromkeys(_globals(fn.__code__)):
        if name in fn.__globals__:
            yield "global", name, fn.__globals__[name]
    yield from (("default", str(number), default) for number, default in enumerate(fn.__defaults__ or ()))
    yield from (("default", name, default) for name, default in (fn.__kwdefaults__ or {}).items())


def _globals(code: CodeType) -> Iterator[str]:
    # Not co_names: these are names of attributes, too.
    yield from (one.argval for one in dis.get_instructions(code) if one.opname.endswith("_GLOBAL"))
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _globals(const)


# What to say.


def _place(path: list[_Step]) -> str:
    """The way to a thing: "its global CONFIG['db'].conn", or "the global 'LOCK' of its global 'helper'"."""
    # The user knows the function, and not the attribute of ours that holds it.
    users = [n for n, step in enumerate(path) if type(step.inside).__module__.partition(".")[0] != "penstock"]
    names: list[tuple[str, str]] = []
    for step in path[users[0] :] if users else []:
        if names and step.noun in ("attribute", "item"):
            noun, name = names[-1]
            names[-1] = noun, name + (f".{step.name}" if step.noun == "attribute" else f"[{step.name}]")
        else:
            names.append((step.noun, step.name))
    quoted = [f"{noun} {name if _bare(noun, name) else repr(name)}".lstrip() for noun, name in reversed(names)]
    return " of ".join([*(f"the {one}" for one in quoted[:-1]), *(f"its {one}" for one in quoted[-1:])])


def _bare(noun: str, name: str) -> bool:
    return noun in ("", "item") or "'" in name or name.isdigit()


def _fault(culprit: Any, failure: Exception, path: list[_Step]) -> str:
    if isinstance(failure, Unsendable):
        return f"{failure}; {failure.advice or _advice(culprit, path)}"
    # What pickle says for a thing that it does not know, and nothing else.
    known = isinstance(failure, TypeError) and str(failure).startswith("cannot pickle")
    why = "" if known else f", and pickling it raised {type(failure).__name__}: {failure}"
    return f"{_a(_kind(culprit))}{why}; {_advice(culprit, path)}"


def _advice(culprit: Any, path: list[_Step]) -> str:
    if isinstance(culprit, GeneratorType):
        return "give a function that makes it, or a list"
    opened = isinstance(culprit, (io.IOBase, socket.socket))
    opened = opened or type(culprit).__module__.partition(".")[0] in ("sqlite3", "lmdb", "h5py")
    verb = "open" if opened else "make"
    if path and path[-1].noun == "attribute":
        return f"{verb} it where it is first used, leave it out in __getstate__, or use ps.per_worker"
    return f"{verb} it inside the function, or use ps.per_worker"


def _kind(value: Any) -> str:
    if isinstance(value, io.IOBase) and isinstance(name := getattr(value, "name", None), (str, int)):
        return f"open file ({name})"
    kind = type(value)
    module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    return f"{module}{kind.__qualname__}"


def _a(kind: str) -> str:
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, (str, int, float, bytes, tuple)) else f"<{type(value).__name__}>"
    return text if len(text) <= 40 else f"{text[:37]}..."
