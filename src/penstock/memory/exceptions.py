"""Exceptions that cross to another process and arrive as themselves.

* **The same exception**: class, args, attributes, notes, cause and context. `__init__` is not called, so a
  constructor with its own signature is no obstacle.
* **The same traceback**: when printed, it shows the frames of the worker. They hold no variables. Frames of
  penstock at the outer end are left out.
* **It always arrives.** A value that cannot be sent becomes its repr, and a note on the exception says so. If the
  exception itself cannot be sent, as where the other process cannot import its class, a `CodecError` with its repr
  and its traceback stands in for it.

`AttributeError.obj` does not travel.
"""

from __future__ import annotations

import contextlib
import copyreg
import dis
import io
import os
import pickle
import reprlib
import types
from collections.abc import Iterator
from typing import Any, TypeAlias

import cloudpickle  # type: ignore[import-untyped]

from penstock.errors import CodecError
from penstock.memory.classes import Reference, find_class, needs_reference, reference

_PLAIN = (int, float, complex, bool, type(None), str, bytes)
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def packed(exc: BaseException) -> bytes:
    """An exception as bytes, for `unpacked` in a process that runs the same Python. Never raises."""
    stream, frames = b"", []
    try:
        frames = _frames_of(exc.__traceback__)
        file = io.BytesIO()
        _Pickler(file, {}).dump(exc)
        stream = file.getvalue()
    except BaseException:  # of the user's own code, which pickle calls; the worker has nobody to report it to
        pass
    return pickle.dumps((stream, _shown(exc), frames), 5)


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
    shown, frames, why = "an exception", [], "it could not be pickled"
    try:
        stream, shown, frames = pickle.loads(data)
        if stream:
            return pickle.loads(stream)  # type: ignore[no-any-return]
    except (Exception, SystemExit) as exc:  # a Ctrl-C must not be lost here
        why = _shown(exc)
    stand_in = CodecError(f"a worker raised {shown}, which could not be sent to this process: {why}")
    return stand_in.with_traceback(_traceback_of(frames))


def dumps(value: Any) -> bytes:
    """Pickle a value of our own, each exception in it as `packed` does; `pickle.loads` makes it again."""
    file = io.BytesIO()
    _Outer(file, 5).dump(value)
    return file.getvalue()


# ---------------------------------------------------------------------- in the worker


class _Outer(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        return (unpacked, (packed(obj),)) if isinstance(obj, BaseException) else NotImplemented


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles exceptions in our way, wherever they are in a value. Pickle itself takes care of loops."""

    def __init__(self, file: io.BytesIO, tried: dict[int, tuple[Any, bool]]) -> None:
        super().__init__(file, 5)
        #: by id, values and whether they can be sent; kept, so that no other value gets the id
        self.tried = tried

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if issubclass(kind, BaseException):
            return self.exception(obj)
        if issubclass(kind, type) and needs_reference(obj):
            return find_class, reference(obj)
        return super().reducer_override(obj)

    def exception(self, exc: BaseException) -> Any:
        cls, maker = type(exc), _maker(type(exc))
        notes = [note for note in getattr(exc, "__notes__", ()) if isinstance(note, str)]
        # The reduction of the builtin class, which knows what of its state is not in `args`.
        reduced: Any = maker.__reduce__(exc)
        _, args, *state = reduced
        attributes: dict[str, Any] = {}
        try:
            maker.__new__(cls, *args)
        except Exception:  # a library in C has made it, and must make it again
            made: Any = pickle.loads, (cloudpickle.dumps(exc),)
        else:
            # The members of a group are exceptions, which are sent as such.
            values = [
                list(arg)
                if number and issubclass(maker, BaseExceptionGroup)
                else self.value(f"argument {number}", arg, notes)
                for number, arg in enumerate(args)
            ]
            made = _new, (reference(cls), values)
            attributes = self.attributes(exc, dict(state[0] or {}) if state else {}, notes)
        links = exc.__cause__, exc.__context__, exc.__suppress_context__
        return *made, (attributes, notes, *links, _frames_of(exc.__traceback__)), None, None, _fill

    def attributes(self, exc: BaseException, found: dict[str, Any], notes: list[str]) -> dict[str, Any]:
        slots = copyreg._slotnames(type(exc))  # type: ignore[attr-defined]
        found |= {name: getattr(exc, name) for name in slots if hasattr(exc, name)}
        found.pop("__notes__", None)
        if isinstance(exc, (AttributeError, NameError)):
            found["name"] = exc.name
            found.pop("obj", None)
        return {name: self.value(f"attribute {name!r}", value, notes) for name, value in found.items()}

    def value(self, what: str, value: Any, notes: list[str]) -> Any:
        """The value if it can be sent, and else its repr."""
        if type(value) in _PLAIN or issubclass(type(value), BaseException):
            return value
        if id(value) not in self.tried:
            self.tried[id(value)] = value, True  # it may hold itself
            self.tried[id(value)] = value, self.sendable(value)
        if self.tried[id(value)][1]:
            return value
        notes.append(f"{what} could not be sent from the worker: {_shown(value)}")
        return _shown(value)

    def sendable(self, value: Any) -> bool:
        file = io.BytesIO()
        try:
            _Pickler(file, self.tried).dump(value)
            pickle.loads(file.getvalue())
        except BaseException:
            return False
        return True


def _maker(cls: type) -> Any:
    """The nearest builtin base. It can make an exception of any class that is written in Python."""
    return next(base for base in cls.__mro__ if base.__module__ == "builtins")


def _shown(value: object) -> str:
    """A repr that is short, and there even if the object's own repr fails."""
    try:
        return _SHORT.repr(value)
    except BaseException:
        return f"<{type(value).__qualname__} object, whose repr fails>"


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200


# ---------------------------------------------------------------------- in the parent


def _new(found: Reference, args: list[Any]) -> BaseException:
    cls = find_class(*found)
    maker = _maker(cls)
    exc: BaseException = maker.__new__(cls, *args)
    maker.__init__(exc, *args)
    return exc


def _fill(exc: BaseException, state: tuple[Any, ...]) -> None:
    attributes, notes, cause, context, suppressed, frames = state
    for note in notes:
        exc.add_note(note)
    links = {"__cause__": cause, "__context__": context, "__suppress_context__": suppressed}
    for name, value in {**attributes, **links, "__traceback__": _traceback_of(frames)}.items():
        with contextlib.suppress(AttributeError, TypeError):
            object.__setattr__(exc, name, value)  # past a frozen dataclass


# ---------------------------------------------------------------------- tracebacks

#: file, name, qualified name and first line of a function; its table of lines; module; instruction and line
_Frame: TypeAlias = tuple[str, str, str, int, bytes, str, int, int]


def _frames_of(traceback: types.TracebackType | None) -> list[_Frame]:
    """What a traceback shows, the outermost frame first."""
    frames: list[_Frame] = []
    while traceback is not None:
        frame, code = traceback.tb_frame, traceback.tb_frame.f_code
        names = code.co_filename, code.co_name, code.co_qualname, code.co_firstlineno, code.co_linetable
        module = str(frame.f_globals.get("__name__", ""))
        frames.append((*names, module, traceback.tb_lasti, traceback.tb_lineno or code.co_firstlineno))
        traceback = traceback.tb_next
    # Calls of penstock lead to every function of the user. If there is nothing but penstock, they are shown.
    users = (number for number, frame in enumerate(frames) if not frame[0].startswith(_HERE))
    return frames[next(users, 0) :]


def _pattern() -> Iterator[None]:
    yield


def _traceback_of(frames: list[_Frame]) -> types.TracebackType | None:
    """A traceback that shows the same.

    Its frames are those of generators that have not begun: nothing runs to make one, and it keeps no caller alive.
    """
    traceback = None
    for file, name, qualname, first, lines, module, instruction, line in reversed(frames):
        # Long enough for the table of lines, by which the columns of the error are found and underlined.
        code = _pattern.__code__.co_code + bytes([dis.opmap["NOP"], 0]) * (instruction // 2 + 1)
        function = types.FunctionType(
            _pattern.__code__.replace(
                co_filename=file, co_name=name, co_qualname=qualname, co_firstlineno=first,
                co_linetable=lines, co_code=code,
            ),
            {"__name__": module},
        )  # fmt: skip
        traceback = types.TracebackType(traceback, function().gi_frame, instruction, line)
    return traceback
