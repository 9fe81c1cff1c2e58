"""CSV files: where each record begins, the names in the header, and records as Arrow tables with fixed types.

A record ends with a line feed outside of double quotes, so values may hold line feeds; a quote within quotes is
doubled. Blank lines are no records. Types are worked out once, from the beginning of the first file, so every part
of every file is read alike; a value that does not fit is an error.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import storage
from penstock.errors import PlanError
from penstock.formats.columns import arrow, import_arrow

_CHUNK = 1 << 22
#: from so much of the first file types are worked out
_SAMPLE = 1 << 20
_LINE_FEED, _QUOTE = 10, 34
_BOM = b"\xef\xbb\xbf"
_PURPOSE = "reading CSV files"


def build_index(file: storage.File) -> dict[str, NDArray[Any]]:
    """``at`` and ``end`` of each record, the header among them. Blank lines are left out."""
    size = file.size
    first = len(_BOM) if size >= len(_BOM) and file.read_at(0, len(_BOM)) == _BOM else 0
    parts: list[NDArray[np.int64]] = []
    quotes = 0
    for base in range(first, size, _CHUNK):
        chunk = np.frombuffer(file.read_at(base, min(_CHUNK, size - base)), dtype=np.uint8)
        feeds = np.flatnonzero(chunk == _LINE_FEED)
        marks = np.flatnonzero(chunk == _QUOTE)
        if quotes or len(marks):
            feeds = feeds[(quotes + np.searchsorted(marks, feeds)) % 2 == 0]
            quotes = (quotes + len(marks)) % 2
        parts.append(feeds + base + 1)
    if quotes:
        raise ValueError("a quote is opened and never closed")
    ends = np.concatenate([np.empty(0, dtype=np.int64), *parts])
    if first < size and (not len(ends) or ends[-1] != size):
        ends = np.append(ends, size)
    at = np.concatenate([[first], ends[:-1]]) if len(ends) else ends
    short = np.flatnonzero(ends - at <= 2)
    blank = [n for n in short.tolist() if not file.read_at(int(at[n]), int(ends[n] - at[n])).strip(b"\r\n")]
    return {"at": np.delete(at, blank).astype(np.int64), "end": np.delete(ends, blank).astype(np.int64)}


def header_of(record: bytes, delimiter: str) -> list[str]:
    """The names in the first record of a file."""
    try:
        text = record.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as exc:
        raise ValueError(f"its header is not UTF-8 ({exc.reason}); write the file in UTF-8") from exc
    try:
        names = next(csv.reader([text], delimiter=delimiter), [])
    except csv.Error as exc:
        ends = "\r" in text
        raise ValueError("its lines end with a carriage return alone" if ends else f"its header: {exc}") from exc
    if not names:
        raise ValueError("it has no header")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"its header has the column {twice!r} twice")
    return names


@dataclass
class Dialect:
    """How files of one pipeline are read."""

    delimiter: str = ","
    #: names of the columns of files without a header
    names: Sequence[str] | None = None
    #: the columns that are wanted, in their order
    columns: Sequence[str] | None = None
    #: types that are not to be worked out
    types: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.delimiter, str) or len(self.delimiter.encode()) != 1 or self.delimiter in '"\r\n':
            raise PlanError(f"from_csv(delimiter=) takes one character of one byte, got {self.delimiter!r}")
        self.types = {name: self._type(name, kind) for name, kind in dict(self.types).items()}

    def _type(self, name: str, kind: Any) -> Any:
        pa = arrow()
        if isinstance(kind, pa.DataType):
            return kind
        try:
            return pa.type_for_alias(kind) if isinstance(kind, str) else pa.from_numpy_dtype(np.dtype(kind))
        except (ValueError, TypeError, NotImplementedError, pa.ArrowException):
            raise PlanError(
                f"from_csv(types=): {name!r} takes a type such as 'int32', 'float64' or 'string', got {kind!r}"
            ) from None

    def typed(self, names: Sequence[str], sample: bytes) -> Dialect:
        """The same with a type for every column, from the beginning of a file that has these names."""
        known: dict[str, Any] = {}
        if sample:
            read, parse, convert = Dialect(self.delimiter).options(names, None, len(sample) + 1)
            parse.invalid_row_handler = lambda row: "skip"  # it is an error when it is read
            module = import_arrow("pyarrow.csv", _PURPOSE)
            known = {one.name: one.type for one in module.read_csv(io.BytesIO(sample), read, parse, convert).schema}
        null = arrow().types.is_null
        # A column of nothing but nulls may hold anything further on: text holds it all.
        found = {name: arrow().string() if null(known.get(name, arrow().null())) else known[name] for name in names}
        return Dialect(self.delimiter, self.names, self.columns, {**found, **self.types})

    def sample_of(self, file: storage.File, at: NDArray[np.int64], ends: NDArray[np.int64]) -> bytes:
        """The records of the beginning of a file."""
        if not len(at):
            return b""
        last = max(1, int(np.searchsorted(ends, at[0] + _SAMPLE)))
        return file.read_at(int(at[0]), int(ends[last - 1] - at[0]))

    def table(self, records: bytes, names: Sequence[str], columns: Sequence[str] | None) -> Any:
        """Records as an Arrow table. Raises ArrowInvalid if one does not fit."""
        read, parse, convert = self.options(names, columns, len(records) + 1)
        module = import_arrow("pyarrow.csv", _PURPOSE)
        if not records:
            wanted = list(names) if columns is None else list(columns)
            return arrow().table({name: arrow().array([], self.types.get(name)) for name in wanted})
        return module.read_csv(io.BytesIO(records), read_options=read, parse_options=parse, convert_options=convert)

    def options(self, names: Sequence[str], columns: Sequence[str] | None, block: int) -> tuple[Any, Any, Any]:
        """pyarrow's three kinds of options."""
        module = import_arrow("pyarrow.csv", _PURPOSE)
        read = module.ReadOptions(column_names=list(names), use_threads=False, block_size=block)
        parse = module.ParseOptions(delimiter=self.delimiter, newlines_in_values=True)
        types = {name: kind for name, kind in self.types.items() if columns is None or name in columns}
        convert = module.ConvertOptions(
            column_types=types, include_columns=None if columns is None else list(columns)
        )
        return read, parse, convert
