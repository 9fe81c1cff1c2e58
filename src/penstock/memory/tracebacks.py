"""Tracebacks of other processes: what one shows as plain values, and a traceback that shows the same again."""

from __future__ import annotations

import functools
import itertools
import os
import sys
import types
from collections.abc import Iterator
from typing import TypeAlias

__all__ = ["Frame", "frames_of", "traceback_of"]

#: frames in one traceback
MOST_FRAMES = 100
#: file, function, its qualified name, first line and module; line, last line, first and last column
Frame: TypeAlias = tuple[str, str, str, int, str, int, int | None, int | None, int | None]

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def frames_of(traceback: types.TracebackType | None, notes: list[str]) -> list[Frame]:
    """What a traceback shows, the outermost frame first."""
    entries = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    # Calls of penstock lead to every function of the user. If there is nothing but penstock, they are the story.
    users = (n for n, entry in enumerate(entries) if not entry.tb_frame.f_code.co_filename.startswith(_HERE))
    entries = entries[next(users, 0) :]
    over = len(entries) - MOST_FRAMES
    if over > 0:
        half = MOST_FRAMES // 2
        del entries[half:-half]
        notes.append(f"{over} frames were left out, after the first {half} of the traceback")
    return [_frame_of(entry) for entry in entries]


def _frame_of(entry: types.TracebackType) -> Frame:
    code, line = entry.tb_frame.f_code, entry.tb_lineno
    module = entry.tb_frame.f_globals.get("__name__")
    columns: tuple[int | None, int | None, int | None] = (None, None, None)
    if entry.tb_lasti >= 0:
        for first, *rest in itertools.islice(code.co_positions(), entry.tb_lasti // 2, entry.tb_lasti // 2 + 1):
            if first == line:
                columns = (rest[0], rest[1], rest[2])
    return (
        code.co_filename,
        code.co_name,
        code.co_qualname,
        code.co_firstlineno,
        module if type(module) is str else "",
        code.co_firstlineno if line is None else line,
        *columns,
    )


def traceback_of(frames: list[Frame]) -> types.TracebackType | None:
    traceback = None
    for frame in reversed(frames):
        traceback = types.TracebackType(traceback, _frame(frame), 0, frame[5])
    return traceback


def _pattern() -> Iterator[None]:
    yield


@functools.lru_cache(1000)
def _frame(shown: Frame) -> types.FrameType:
    """A frame that looks like another one.

    It is that of a generator which has not begun: no code has to run for it, so that no tracer sees it, and
    it has no caller whose variables it would keep alive.
    """
    file, name, qualname, first, module, line, *rest = shown
    code = _pattern.__code__
    code = code.replace(
        co_filename=file,
        co_name=name,
        co_qualname=qualname,
        co_firstlineno=first,
        co_linetable=_line_table(line - first, _span(line, *rest), len(code.co_code) // 2),
    )
    # linecache asks these for the source of modules that are in archives.
    loaded = getattr(sys.modules.get(module), "__dict__", {})
    context = {key: loaded[key] for key in ("__file__", "__loader__", "__spec__") if key in loaded}
    return types.FunctionType(code, {"__name__": module, **context})().gi_frame  # type: ignore[no-any-return]


def _span(line: int, end: int | None, column: int | None, end_column: int | None) -> list[int]:
    if end is None or column is None or end_column is None or end < line:
        return []
    return [end - line, column + 1, end_column + 1]


def _line_table(shift: int, span: list[int], units: int) -> bytes:
    """One position for all of a code object, in CPython's format since 3.11 (Objects/locations.md)."""
    table = bytearray()
    while units > 0:
        covered = min(units, 8)
        table.append(0x80 | (14 if span else 13) << 3 | covered - 1)
        _append(table, -shift << 1 | 1 if shift < 0 else shift << 1)
        for number in span:
            _append(table, number)
        shift = 0  # the lines are told by their differences
        units -= covered
    return bytes(table)


def _append(table: bytearray, number: int) -> None:
    """Six bits at a time, the lowest first."""
    while number >= 64:
        table.append(number & 63 | 64)
        number >>= 6
    table.append(number)
