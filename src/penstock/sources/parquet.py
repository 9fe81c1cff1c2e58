"""from_parquet: rows of Parquet files, by number or as a stream of row groups.

By number, a row group is decoded once while its rows are read, and kept within a bound on bytes. As a stream each
row group is a shard, so that a shuffle in windows reads them in random order. `filters` leave out row groups by
their statistics without reading them, and rows of the others by their values.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import PlanError, ReadError
from penstock.formats.columns import Columns, arrow, import_arrow
from penstock.formats.groups import Groups
from penstock.formats.kinds import META, Form, Restored
from penstock.formats.seekable import arrow_name, seekable
from penstock.ops.joint import Length
from penstock.sources.chosen import subset_of
from penstock.sources.shards import Options
from penstock.sources.source import Indices
from penstock.sources.streams import FileStream
from penstock.sources.tables import CACHE_BYTES, TableShard, TableSource, said

_PURPOSE = "reading Parquet files"
#: bytes of a number in memory: what the file says of it, and how the file holds it, where it says no more
_NARROW = {"INT_8": 1, "UINT_8": 1, "INT_16": 2, "UINT_16": 2}
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}
#: bytes of any other value in memory, at least
_NARROWEST = 4
#: rows of a stream that are made at once
_PIECE = 256


class _File:
    """An open Parquet file. Reads of one file are made one after the other."""

    def __init__(self, path: str, options: Options, columns: Sequence[str] | None) -> None:
        parquet = import_arrow("pyarrow.parquet", _PURPOSE)
        self.path = path
        self._lock = threading.Lock()
        here = arrow_name(path)
        with _damage(path):
            opened = here if here is not None else arrow().PythonFile(seekable(path, options), "r")
            self.file = parquet.ParquetFile(opened, pre_buffer=here is None)
        self.schema = self.file.schema_arrow
        twice = [name for name in self.schema.names if self.schema.names.count(name) > 1]
        if twice:
            raise ReadError(f"{path}: it has the column {twice[0]!r} twice, and a row could hold only one of them")
        self.columns = list(columns) if columns is not None else None
        try:
            self.form = Form.decoded((self.schema.metadata or {}).get(META))
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise ReadError(f"{path}: what it says of its own columns cannot be read: {exc}") from exc
        missing = [name for name in columns or () if name not in self.schema.names]
        if missing:
            raise PlanError(
                f"from_parquet: {path} has no column {missing[0]!r}; it has {', '.join(self.schema.names)}"
            )

    @property
    def groups(self) -> int:
        return int(self.file.metadata.num_row_groups)

    def rows_of(self, group: int) -> int:
        return int(self.file.metadata.row_group(group).num_rows)

    def bytes_of(self, group: int) -> int:
        """About what a row group takes when it is decoded."""
        found = self.file.metadata.row_group(group)
        wanted = None if self.columns is None else set(self.columns)
        total = 0
        for number in range(found.num_columns):
            part = found.column(number)
            if wanted is not None and part.path_in_schema.partition(".")[0] not in wanted:
                continue
            # Values that repeat take next to nothing in the file, and their full width in memory. The file holds
            # an 8-bit number in 32 bits.
            kind = self.file.metadata.schema.column(number).converted_type
            width = _NARROW.get(kind) or _WIDTHS.get(part.physical_type)
            total += (
                part.num_values * width
                if width
                else max(part.total_uncompressed_size, part.num_values * _NARROWEST)
            )
        return total

    def table(self, group: int, columns: Sequence[str] | None) -> Any:
        with self._lock, _damage(f"{self.path}: row group {group}"):
            return self.file.read_row_group(group, columns=columns)

    def made(self, table: Any) -> Columns:
        """Its columns; those of a file that penstock wrote give back the samples."""
        return Columns(table) if self.form is None else Restored(table, self.form)

    def chosen(self, group: int) -> Any:
        """A row group with the columns that are wanted, in the order in which they are."""
        table = self.table(group, self.columns)
        return table if self.columns is None else table.select(self.columns)


class _damage:
    """Turns what pyarrow raises over damaged files into `ReadError`."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, exc: Any, trace: Any) -> None:
        if exc is None or not isinstance(exc, Exception) or isinstance(exc, FileNotFoundError):
            return
        if isinstance(exc, (arrow().ArrowException, OSError, ValueError, OverflowError)):
            raise ReadError(f"{self.where}: {' '.join(str(exc).split())}") from exc


class _Filter:
    """`filters=` as an expression, and which rows of a row group it leaves."""

    def __init__(self, filters: Any) -> None:
        self.filters = filters
        dataset = import_arrow("pyarrow.dataset", _PURPOSE)
        if isinstance(filters, dataset.Expression):
            self.expression = filters
        else:
            try:
                self.expression = import_arrow("pyarrow.parquet", _PURPOSE).filters_to_expression(filters)
            except (ValueError, TypeError) as exc:
                raise PlanError(
                    f"from_parquet(filters=) takes tuples such as [('label', '==', 3)] or an expression: {exc}"
                ) from None

    def may_match(self, file: _File, path: str) -> list[int]:
        """The row groups that may have rows that are left, by their statistics."""
        here = arrow_name(path)
        if here is None:
            return list(range(file.groups))
        files = import_arrow("pyarrow.fs", _PURPOSE).LocalFileSystem()
        fragment = import_arrow("pyarrow.dataset", _PURPOSE).ParquetFileFormat().make_fragment(here, files)
        with _damage(path):
            parts = fragment.split_by_row_group(self.expression, schema=file.schema)
            return [int(part.row_groups[0].id) for part in parts]

    def rows(self, file: _File, group: int) -> NDArray[np.int64]:
        """The rows of a row group that are left."""
        dataset = import_arrow("pyarrow.dataset", _PURPOSE)
        table = file.table(group, self._names(file))
        with _damage(file.path):
            mask = dataset.dataset(table).to_table(columns={"left": self.expression})["left"]
        return np.flatnonzero(mask.fill_null(False).to_numpy())

    def _names(self, file: _File) -> list[str]:
        """The columns that the expression is about: as far as its text can tell, or all."""
        text = str(self.expression)
        return [name for name in file.schema.names if name in text] or file.schema.names

    def __str__(self) -> str:
        return f"filters {self.expression}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _Filter, (self.filters,)


class _Shard(TableShard):
    """One file, by row."""

    def __init__(self, path: str, options: Options, groups: Groups[Columns], columns: Sequence[str] | None) -> None:
        super().__init__(path, options, groups)
        self.opened = _File(path, options, columns)
        self.names = self.opened.schema.names if columns is None else list(columns)
        counts = [self.opened.rows_of(group) for group in range(self.opened.groups)]
        self.starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self.decoded_bytes = sum(map(self.opened.bytes_of, range(self.opened.groups)))

    def table(self, group: int) -> Any:
        return self.opened.chosen(group)

    def columns(self, table: Any) -> Columns:
        return self.opened.made(table)


class ParquetSource(TableSource):
    """Rows of Parquet files, in any order."""

    verb = "from_parquet"

    def __init__(
        self,
        paths: Sequence[str],
        columns: Sequence[str] | None = None,
        filters: Any = None,
        indices: Iterable[int] | None = None,
        cache_bytes: int = CACHE_BYTES,
        options: Options = None,
    ) -> None:
        self.columns = None if columns is None else list(columns)
        super().__init__(paths, None, "raise", options, cache_bytes)
        self.filter = None if filters is None else _Filter(filters)
        if self.filter is not None:
            left = self._left(self.filter)
            self.subset = left if indices is None else left[subset_of(len(left), indices, self.verb)]
        elif indices is not None:
            self.subset = subset_of(int(self.starts[-1]), indices, self.verb)

    def _opened(self, path: str) -> _Shard:
        return _Shard(path, self.options, self.groups, self.columns)

    @property
    def reading(self) -> str:
        return _told(self.columns, self.filter)

    def _left(self, filter: _Filter) -> NDArray[np.int64]:
        """The numbers of the rows that the filter leaves, of all files."""
        found = [np.empty(0, dtype=np.int64)]
        for number, path in enumerate(self.paths):
            shard = self._shard(number)
            assert isinstance(shard, _Shard)
            for group in filter.may_match(shard.opened, path):
                first = int(self.starts[number] + shard.starts[group])
                found.append(filter.rows(shard.opened, group) + first)
        return np.concatenate(found)


def _told(columns: Sequence[str] | None, filter: _Filter | None) -> str:
    said = [] if columns is None else [f"columns {', '.join(columns)}"]
    return " ".join([*said, *([] if filter is None else [str(filter)])])


class ParquetStream(FileStream):
    """Rows of Parquet files, a row group after the other; each is a shard."""

    verb = "from_parquet"

    def __init__(
        self,
        paths: Sequence[str],
        columns: Sequence[str] | None = None,
        filters: Any = None,
        options: Options = None,
    ) -> None:
        super().__init__(paths, options)
        self.columns = None if columns is None else list(columns)
        self.filter = None if filters is None else _Filter(filters)
        self._rows: int | None = None
        self._shards: list[tuple[str, int]] | None = None

    @property
    def reading(self) -> str:
        return _told(self.columns, self.filter)

    def length(self) -> Length:
        self.shards()
        return self._rows if self.filter is None else None

    def shards(self) -> Sequence[tuple[str, int]]:
        if self._shards is None:
            shards, rows = [], 0
            for path in self.paths:
                file = _File(path, self.options, self.columns)
                shards += [(path, group) for group in range(file.groups)]
                rows += sum(map(file.rows_of, range(file.groups)))
            self._rows, self._shards = rows, shards
        return self._shards

    def open(self, shard: tuple[str, int], skip: int) -> Iterator[Any]:
        path, group = shard
        file = _File(path, self.options, self.columns)
        if self.filter is None:
            columns = file.made(file.chosen(group))
            for first in range(skip, columns.count, _PIECE):
                yield from _sound(shard, columns, range(first, min(first + _PIECE, columns.count)))
        elif group in self.filter.may_match(file, path):
            left = self.filter.rows(file, group)[skip:]
            columns = file.made(file.chosen(group))
            for first in range(0, len(left), _PIECE):
                yield from _sound(shard, columns, left[first : first + _PIECE])


def _sound(shard: tuple[str, int], columns: Columns, rows: Indices) -> list[Any]:
    """Rows of a row group; values that Arrow cannot give are an error with the file."""
    try:
        return columns.rows(rows)
    except (arrow().ArrowException, UnicodeDecodeError) as exc:
        where = f"{shard[0]}: row group {shard[1]}: rows from {int(rows[0])} on"
        raise ReadError(f"{where} cannot be read: {said(exc)}") from exc
