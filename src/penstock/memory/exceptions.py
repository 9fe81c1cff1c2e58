"""Exceptions that cross to another process and arrive as themselves.

* **The same exception.** Its class, args, attributes, notes, cause and context, and the members of a group. It is
  made without calling the class: a constructor with its own signature or side effects is no obstacle.
* **The same traceback.** When printed, it shows the frames of the worker. They hold no variables. Frames of
  penstock at the outer end are left out, and so is the middle of a very long traceback.
* **It always arrives.** What cannot be sent becomes its repr, a class that cannot be had becomes its nearest
  base that can, and a note on the exception says so. No size, depth or loop makes `packed` raise or hang.
* **Nothing is kept.** `packed` only reads; frames and their variables live no longer because of it.

State is read past the class's own code: args, `__dict__`, and every slot, be it of C or of `__slots__`. A class's
own `__reduce__` is asked only if something of that cannot be sent, or if C code beyond the builtins made the
class, and is believed if it gives the same class and attributes back. `__getstate__` and `__setstate__` are not
called: pickle leaves the first one out for exceptions as well.

A class is found by its name; a class of `__main__` or of a function by cloudpickle's number for it, so that one
which the parent had sent is the very same there, and is left as it is. `AttributeError.obj` does not travel.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import io
import pickle
import reprlib
import sys
import types
import weakref
from collections.abc import Iterator, MutableMapping
from typing import Any, NamedTuple, TypeAlias

import cloudpickle  # type: ignore[import-untyped]

from penstock.errors import CodecError
from penstock.memory.tracebacks import Frame, frames_of, traceback_of

__all__ = ["packed", "unpacked"]

#: a value that pickles into more is not sent, nor are further ones once all of them together have this size
LARGEST_BYTES, ALL_BYTES = 1 << 20, 8 << 20
#: what goes of a string, or of bytes, that are too large
CUT = 1 << 16
#: exceptions in one chain or group
MOST_EXCEPTIONS = 1000

#: module and name of a class; its number at cloudpickle and its pickle, if it goes by value
_Class: TypeAlias = tuple[str, str, str | None, bytes | None]
#: a plain value as it is; in a tuple, the pickle of another value, or the number of an exception
_Value: TypeAlias = str | bytes | int | float | complex | tuple[bytes] | tuple[int] | None


class _Node(NamedTuple):
    """One exception in plain values. Others are named by their number."""

    classes: tuple[_Class, ...]  # its class, and its bases up to the first builtin one
    args: list[_Value]
    slots: dict[str, _Value]
    attributes: dict[str, _Value]
    own: bytes | None  # what its own __reduce__ made of it
    group: tuple[str, list[int]] | None
    cause: int | None
    context: int | None
    suppress: bool
    frames: list[Frame]
    notes: list[str]
    losses: list[str]  # notes on state that could not be sent; void if its own __reduce__ brings it


# What a class says on these names may be anything; the descriptors of the base class are always right.
_ARGS, _DICT, _CAUSE, _CONTEXT, _SUPPRESS, _TRACEBACK = (
    vars(BaseException)[name]
    for name in ("args", "__dict__", "__cause__", "__context__", "__suppress_context__", "__traceback__")
)
_MESSAGE, _MEMBERS = vars(BaseExceptionGroup)["message"], vars(BaseExceptionGroup)["exceptions"]
_BUILTIN = {id(cls) for cls in vars(builtins).values() if isinstance(cls, type)}  # a metaclass may forbid hashing
_PLAIN = frozenset({str, bytes, int, float, complex, bool, type(None)})

# What ends here is code of the user that fails. The worker has nobody to tell; the parent must not lose a Ctrl-C.
_IN_WORKER, _IN_PARENT = BaseException, (Exception, SystemExit)


def packed(exc: BaseException) -> bytes:
    """An exception as bytes, for `unpacked` in a process that runs the same Python. Never raises."""
    try:
        return pickle.dumps(_Packing().nodes(exc), 5)
    except _IN_WORKER:
        return _LAST


def unpacked(data: bytes) -> BaseException:
    """The exception that `packed` was given. Raises nothing of its own.

    >>> import traceback
    >>> try:
    ...     int("seven")
    ... except ValueError as exc:
    ...     data = packed(exc)
    >>> unpacked(data)
    ValueError("invalid literal for int() with base 10: 'seven'")
    >>> traceback.extract_tb(unpacked(data).__traceback__)[-1].name
    '<module>'
    """
    try:
        return _Unpacking([_Node(*node) for node in pickle.loads(data)]).exception()
    except _IN_PARENT as exc:
        return CodecError(f"an exception of a worker could not be rebuilt: {_said(exc)}")


# ---------------------------------------------------------------------- in the worker


class _TooLarge(Exception):
    """A value that needs more bytes, or holds more exceptions, than are sent."""


class _Limited(io.BytesIO):
    """Ends a pickle once it is too large, rather than when it is done."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def write(self, data: Any) -> int:
        self.limit -= memoryview(data).nbytes
        if self.limit < 0:
            raise _TooLarge
        return super().write(data)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Names exceptions by number, wherever in a value they are, so that loops and their classes are no matter."""

    def __init__(self, packing: _Packing, file: io.BytesIO) -> None:
        super().__init__(file, 5)
        self.packing = packing

    def persistent_id(self, obj: Any) -> int | None:
        return self.packing.number(obj) if issubclass(type(obj), BaseException) else None


class _Packing:
    """Walks through the exceptions that hang together with one."""

    def __init__(self) -> None:
        self.left = ALL_BYTES
        self.found: list[BaseException] = []
        self.numbers: dict[int, int] = {}  # by identity: an exception may be unhashable, or equal to another

    def nodes(self, exc: BaseException) -> list[tuple[Any, ...]]:
        self.number(exc)
        nodes = []
        # Further ones are found on the way. A loop rather than a recursion, as chains may be long.
        for found in self.found:
            try:
                node = self.node(found)
            except _IN_WORKER:
                node = _bare(found)
            nodes.append(tuple(node))
        return nodes

    def number(self, exc: BaseException) -> int:
        number = self.numbers.get(id(exc))
        if number is None:
            number = len(self.found)
            if number >= MOST_EXCEPTIONS:
                raise _TooLarge
            self.numbers[id(exc)] = number
            self.found.append(exc)
        return number

    def node(self, exc: BaseException) -> _Node:
        cls = type(exc)
        losses: list[str] = []
        # In this order, so that a limit cuts off what says the least.
        args = [self.value(f"argument {n}", arg, losses) for n, arg in enumerate(_ARGS.__get__(exc))]
        attributes = dict(_DICT.__get__(exc))
        notes = _notes(attributes.pop("__notes__", ()))
        slots = {
            key: self.value(f"attribute {name!r}", value, losses) for key, name, value in _slot_values(cls, exc)
        }
        sent = {
            name: self.value(f"attribute {name!r}", value, losses)
            for name, value in attributes.items()
            if type(name) is str
        }
        own = self.own(exc, attributes) if losses or id(_maker(cls)[0]) not in _BUILTIN else None
        return _Node(
            _classes(cls),
            args,
            slots,
            sent,
            own,
            self.group(exc, notes) if issubclass(cls, BaseExceptionGroup) else None,
            self.link("cause", _CAUSE.__get__(exc), notes),
            self.link("context", _CONTEXT.__get__(exc), notes),
            bool(_SUPPRESS.__get__(exc)),
            frames_of(_TRACEBACK.__get__(exc), notes),
            notes,
            losses,
        )

    def value(self, what: str, value: Any, losses: list[str]) -> _Value:
        kind = type(value)
        limit = min(LARGEST_BYTES, self.left)
        lost = "could not be"
        try:
            if kind in _PLAIN:
                size = len(value) if kind is str or kind is bytes else 0
                if size > max(limit, 1000):  # what is short always goes
                    raise _TooLarge
                self.left -= size
                return value  # type: ignore[no-any-return]
            if issubclass(kind, BaseException):
                return (self.number(value),)
            file = _Limited(limit)
            _Pickler(self, file).dump(value)
            self.left -= file.tell()
            return (file.getvalue(),)
        except _TooLarge:
            lost = "is too large to be"
        except _IN_WORKER:
            pass
        shown = _shown(value)
        losses.append(f"{what} {lost} sent from the worker: {shown}")
        # The C code of some exceptions counts on bytes or a string here, and takes less of it.
        for plain in (str, bytes):
            if issubclass(kind, plain):
                return plain.__getitem__(value, slice(CUT))
        return shown

    def link(self, what: str, exc: BaseException | None, notes: list[str]) -> int | None:
        try:
            return None if exc is None else self.number(exc)
        except _TooLarge:
            notes.append(f"its {what} was left out, after {MOST_EXCEPTIONS} exceptions: {_shown(exc)}")
            return None

    def group(self, exc: BaseException, notes: list[str]) -> tuple[str, list[int]]:
        members = _MEMBERS.__get__(exc)
        numbers: list[int] = []
        try:
            numbers.extend(self.number(member) for member in members)
        except _TooLarge:
            notes.append(f"{len(members) - len(numbers)} of its {len(members)} exceptions were left out")
        return str.__str__(_MESSAGE.__get__(exc))[:CUT], numbers

    def own(self, exc: BaseException, attributes: dict[str, Any]) -> bytes | None:
        """What the exception's own `__reduce__` makes of it, if it has one that works."""
        cls = type(exc)
        owners = (owner for owner in cls.__mro__ if {"__reduce__", "__reduce_ex__"} & vars(owner).keys())
        if id(next(owners)) in _BUILTIN:
            return None
        try:
            file = _Limited(min(LARGEST_BYTES, self.left))
            cloudpickle.Pickler(file, 5).dump(exc)
            back = pickle.loads(file.getvalue())
            same = type(back) is cls and len(_ARGS.__get__(back)) == len(_ARGS.__get__(exc))
            if not same or not attributes.keys() <= _DICT.__get__(back).keys():
                return None
        except _IN_WORKER:
            return None
        self.left -= file.tell()
        return file.getvalue()


def _notes(notes: Any) -> list[str]:
    if not isinstance(notes, (list, tuple)):
        return []
    return [note if len(note) <= CUT else note[:CUT] for note in notes[:1000] if type(note) is str]


def _bare(exc: BaseException) -> _Node:
    """What can be said of an exception whose class does not even let itself be looked at."""
    bases = [cls for cls in type(exc).__mro__ if id(cls) in _BUILTIN and not issubclass(cls, BaseExceptionGroup)]
    note = f"it was a {_name(type(exc))} in the worker, and could not be sent"
    ref = ("builtins", bases[0].__name__, None, None)
    return _Node((ref,), [_shown(exc)], {}, {}, None, None, None, None, False, [], [note], [])


class _Short(reprlib.Repr):
    """Does not write down gigabytes to cut them off then."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = 500

    def repr1(self, x: Any, level: int) -> str:
        if isinstance(x, (bytes, bytearray)):
            x = x[: self.maxother]
        elif isinstance(x, (list, tuple, dict, set)) and type(x).__module__ != "builtins" and len(x) > 100:
            return f"<{_name(type(x))} of {len(x)} items>"
        return super().repr1(x, level)


_SHORT = _Short()


def _shown(value: object) -> str:
    """A repr that is short, and there even if the object has none."""
    try:
        return str.__str__(_SHORT.repr(value))[:1000]
    except _IN_WORKER:
        return f"<{_name(type(value))} object, whose repr fails>"


def _name(cls: type) -> str:
    module = cls.__module__
    return cls.__qualname__ if module == "builtins" else f"{module}.{cls.__qualname__}"


# ---------------------------------------------------------------------- classes and their slots

# Private, but there since cloudpickle 1.2. Without them a class would still arrive, at a price: loading a class by
# value sets every attribute of the one that is there already, and its methods are then copies.
_NUMBER_OF: MutableMapping[type, str] = getattr(cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_CLASS", {})
_NUMBERED: MutableMapping[str, type] = getattr(cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_ID", {})

_KNOWN: MutableMapping[type, tuple[_Class, ...]] = weakref.WeakKeyDictionary()


def _classes(cls: type) -> tuple[_Class, ...]:
    """How to find a class, and its bases up to the first builtin one. Of a group, only bases that are groups."""
    found = _KNOWN.get(cls)
    if found is None:
        kind = BaseExceptionGroup if issubclass(cls, BaseExceptionGroup) else BaseException
        bases = [base for base in cls.__mro__ if issubclass(base, kind)]
        last = next(n for n, base in enumerate(bases) if id(base) in _BUILTIN)
        found = _KNOWN[cls] = tuple(_class(base) for base in bases[: last + 1])
    return found


def _class(cls: type) -> _Class:
    module, qualname = str(cls.__module__), cls.__qualname__
    by_value = module == "__main__" or module in cloudpickle.list_registry_pickle_by_value()
    try:
        if not by_value and _attribute(sys.modules[module], qualname) is cls:
            return module, qualname, None, None
    except (KeyError, AttributeError):
        pass  # it is a class of a function, or its module was made by hand
    file = _Limited(LARGEST_BYTES)
    data = None
    try:
        cloudpickle.Pickler(file, 5).dump(cls)
        data = file.getvalue()
    except _IN_WORKER:
        pass  # the parent may still have it
    return module, qualname, _NUMBER_OF.get(cls, ""), data


def _found(ref: _Class) -> type[BaseException]:
    module, qualname, number, data = ref
    found: Any
    if number is None:
        found = _attribute(sys.modules.get(module) or importlib.import_module(module), qualname)
    else:
        found = _NUMBERED.get(number)
        if found is None and module == "__main__":
            # A forked worker has it without the parent having sent it.
            with contextlib.suppress(AttributeError):
                found = _attribute(sys.modules[module], qualname)
        if found is None and data is not None:
            found = pickle.loads(data)
    if not (isinstance(found, type) and issubclass(found, BaseException)):
        raise TypeError("it could not be pickled" if found is None else "its name means something else here")
    return found


def _attribute(module: object, qualname: str) -> Any:
    for part in qualname.split("."):
        module = getattr(module, part)
    return module


def _maker(cls: type) -> tuple[type, Any]:
    """The nearest `__new__` that is written in C, and the class that has it."""
    for owner in cls.__mro__:
        new = vars(owner).get("__new__")
        if isinstance(new, types.BuiltinFunctionType):
            return owner, new
    raise TypeError(f"{cls!r} has no __new__")


# By the place in the order of bases: descriptors would hold on to their class, which the cache must not keep.
_SLOTS: MutableMapping[type, dict[str, tuple[str, int]]] = weakref.WeakKeyDictionary()


def _slots(cls: type) -> dict[str, tuple[str, int]]:
    """Where a class has state that is neither in args nor in `__dict__`, by keys that hold for its bases too."""
    found = _SLOTS.get(cls)
    if found is None:
        found = {}
        for place, owner in reversed(list(enumerate(cls.__mro__))):
            if owner in (object, BaseException, BaseExceptionGroup):
                continue
            for name, slot in vars(owner).items():
                if name in ("__dict__", "__weakref__") or (owner is AttributeError and name == "obj"):
                    continue
                if isinstance(slot, (types.MemberDescriptorType, types.GetSetDescriptorType)):
                    key = name
                    while key in found:
                        key += "'"
                    found[key] = name, place
        _SLOTS[cls] = found
    return found


def _slot_values(cls: type, exc: BaseException) -> Iterator[tuple[str, str, Any]]:
    for key, (name, place) in _slots(cls).items():
        owner = cls.__mro__[place]
        try:
            value = vars(owner)[name].__get__(exc, cls)
        except Exception:
            continue  # it is not set
        if value is not None or id(owner) not in _BUILTIN:
            yield key, name, value


def _set_slot(exc: BaseException, slot: tuple[str, int], value: Any) -> None:
    name, place = slot
    with contextlib.suppress(*_IN_PARENT):  # some are computed from others
        vars(type(exc).__mro__[place])[name].__set__(exc, value)


# ---------------------------------------------------------------------- in the parent


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, made: dict[int, BaseException]) -> None:
        super().__init__(io.BytesIO(data))
        self.made = made

    def persistent_load(self, number: Any) -> BaseException:
        return self.made[number]


class _Unpacking:
    """Makes all exceptions first, and then fills them, so that each may refer to any other."""

    def __init__(self, nodes: list[_Node]) -> None:
        self.nodes = nodes
        self.made: dict[int, BaseException] = {}
        self.filled: set[int] = set()

    def exception(self) -> BaseException:
        self.make()
        for number, node in enumerate(self.nodes):
            exc = self.made[number]
            if number not in self.filled:
                self.fill(exc, node)
            _CAUSE.__set__(exc, None if node.cause is None else self.made[node.cause])
            _CONTEXT.__set__(exc, None if node.context is None else self.made[node.context])
            _SUPPRESS.__set__(exc, node.suppress)
            _TRACEBACK.__set__(exc, traceback_of(node.frames))
            if node.notes:
                _DICT.__get__(exc)["__notes__"] = node.notes
        return self.made[0]

    def make(self) -> None:
        # The members of a group have to be there before it. They mostly have higher numbers.
        waiting = list(reversed(range(len(self.nodes))))
        while waiting:
            later = []
            for number in waiting:
                node = self.nodes[number]
                if node.group is None or all(member in self.made for member in node.group[1]):
                    self.made[number] = self.by_itself(number, node) or self.empty(node)
                else:
                    later.append(number)
            if len(later) == len(waiting):
                raise ValueError("a group inside of itself")
            waiting = later

    def by_itself(self, number: int, node: _Node) -> BaseException | None:
        if node.own is None:
            return None
        try:
            exc = pickle.loads(node.own)
        except _IN_PARENT:
            return None
        self.filled.add(number)
        return exc  # type: ignore[no-any-return]

    def empty(self, node: _Node) -> BaseException:
        why = ""
        for ref in node.classes:
            try:
                cls = _found(ref)
                new = _maker(cls)[1]
                if node.group is None:
                    exc = new(cls)
                else:
                    members = [self.made[number] for number in node.group[1]]
                    exc = new(
                        cls, node.group[0], members or [CodecError("the exceptions of this group were left out")]
                    )
            except _IN_PARENT as failure:
                why = why or _said(failure)
                continue
            if why:
                name = ".".join(node.classes[0][:2])
                node.notes.append(f"its class in the worker was {name}, which cannot be had here: {why}")
            return exc  # type: ignore[no-any-return]
        raise TypeError(why)

    def fill(self, exc: BaseException, node: _Node) -> None:
        node.notes.extend(node.losses)
        _ARGS.__set__(exc, tuple(self.value(f"argument {n}", arg, node) for n, arg in enumerate(node.args)))
        attributes, slots = _DICT.__get__(exc), _slots(type(exc))
        for name, sent in node.attributes.items():
            value = self.value(f"attribute {name!r}", sent, node)
            # A class that cloudpickle has made keeps in its __dict__ what is in slots here.
            if name in slots and name not in node.slots and id(type(exc).__mro__[slots[name][1]]) not in _BUILTIN:
                _set_slot(exc, slots[name], value)
            else:
                attributes[name] = value
        for key, sent in node.slots.items():
            name = key.rstrip("'")
            value = self.value(f"attribute {name!r}", sent, node)
            if key in slots:
                _set_slot(exc, slots[key], value)
            else:
                attributes.setdefault(name, value)  # of a class that cannot be had here

    def value(self, what: str, value: _Value, node: _Node) -> Any:
        if type(value) is not tuple:
            return value
        [sent] = value
        if not isinstance(sent, bytes):
            return self.made[sent]
        try:
            return _Unpickler(sent, self.made).load()
        except _IN_PARENT as exc:
            node.notes.append(f"{what} came from the worker, but could not be rebuilt here: {_said(exc)}")
            return f"<not rebuilt: {_said(exc)}>"


def _said(exc: BaseException) -> str:
    try:
        return f"{type(exc).__name__}: {exc}"[:500]
    except _IN_PARENT:
        return type(exc).__name__


#: made beforehand, for when memory or stack have come to their end
_LAST = packed(RuntimeError("an exception of the worker could not be sent"))
