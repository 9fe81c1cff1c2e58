"""from_csv: records of CSV files as dicts with typed values, parsed by pyarrow.

A plain file is indexed by where its records begin, so any of them can be read alone. In order, records are parsed a
megabyte at a time; files of up to 256 MB are kept parsed when they are read in random order. A compressed file
(``.gz``, ``.zst``) can only be read forward, with a shard per file.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from penstock.errors import PlanError, ReadError
from penstock.formats.columns import Columns, arrow, import_arrow
from penstock.formats.compressed import decompressed
from penstock.formats.csv import Dialect as Dialect
from penstock.formats.csv import build_index, header_of
from penstock.formats.groups import Groups
from penstock.formats.index import Where, index_of
from penstock.formats.spans import read_pieces
from penstock.sources.shards import Options, split_runs
from penstock.sources.source import Indices
from penstock.sources.streams import FileStream
from penstock.sources.tables import TableShard, TableSource

KIND = "csv 1"
#: indexing a smaller file takes less than half a second
_KEPT_BYTES = 1 << 28
#: read at once of a compressed file; a record cannot be longer
_BLOCK = 1 << 20
#: rows that are made at once
_PIECE = 256
#: bytes of text that are parsed at once where records are read in order, and what is kept of parsed records
_GROUP, _CACHE_BYTES = 1 << 20, 1 << 28


class _Shard(TableShard):
    """One plain file. What row groups are elsewhere are stretches of records here."""

    def __init__(
        self, path: str, options: Options, groups: Groups[Columns], dialect: Dialect, where: Where
    ) -> None:
        super().__init__(path, options, groups)
        self.dialect = dialect
        try:
            arrays = index_of(self.file, KIND, build_index, where, least=_KEPT_BYTES)
            self.at: NDArray[np.int64] = arrays["at"]
            self.ends: NDArray[np.int64] = arrays["end"]
            if dialect.names is None:
                if not len(self.at):
                    raise ValueError("it has no header")
                head = self.file.read_at(int(self.at[0]), int(self.ends[0] - self.at[0]))
                self.header = header_of(head, dialect.delimiter)
                self.at, self.ends = self.at[1:], self.ends[1:]
            else:
                self.header = list(dialect.names)
        except ValueError as exc:
            raise ReadError(f"{path}: {exc}") from exc
        _check_names(path, self.header, dialect)
        self.names = self.header if dialect.columns is None else list(dialect.columns)
        per_group = max(1, _GROUP * len(self.at) // max(self.size, 1))
        self.starts = np.append(np.arange(0, len(self.at), per_group), len(self.at))
        self.decoded_bytes = self.size
        #: what is wrong with stretches that cannot be parsed as a whole: it is not tried again for every record
        self.bad_groups: dict[int, str] = {}

    def typed(self) -> Dialect:
        """The dialect with types from the beginning of this file."""
        sample = self.dialect.sample_of(self.file, self.at, self.ends)
        try:
            return self.dialect.typed(self.header, sample)
        except arrow().ArrowException as exc:
            raise ReadError(f"{self.path}: {exc}") from exc

    def name(self, number: int) -> str:
        return f"record {number + 1}"

    def table(self, group: int) -> Any:
        if group in self.bad_groups:
            raise ReadError(f"{self.path}: {self.bad_groups[group]}")
        first, last = int(self.starts[group]), int(self.starts[group + 1])
        text = self.file.read_at(int(self.at[first]), int(self.ends[last - 1] - self.at[first]))
        try:
            return self._parsed(text, np.arange(first, last))
        except ReadError as exc:
            self.bad_groups[group] = str(exc)
            raise

    def records(self, numbers: Indices, names: list[str]) -> Columns:
        """These records alone, with their columns in the order of `names`."""
        self.check()
        chosen = np.asarray(numbers, dtype=np.int64)
        at = self.at[chosen]
        pieces = read_pieces(self.file, at, self.ends[chosen] - at)
        table = self._parsed(b"".join(p if p[-1:] == b"\n" else p + b"\n" for p in pieces), chosen)
        return Columns(table if self.names == names else table.select(names))

    def _parsed(self, text: bytes, numbers: NDArray[np.int64]) -> Any:
        try:
            table = self.dialect.table(text, self.header, self.names)
        except arrow().ArrowException as exc:
            raise self._bad(numbers, str(exc)) from exc
        if table.num_rows != len(numbers):
            remedy = "put a value that has a quote in it into quotes, and double the quote"
            raise self._bad(numbers, f"{len(numbers)} records were read as {table.num_rows}; {remedy}")
        return table

    def _bad(self, numbers: NDArray[np.int64], what: str) -> ReadError:
        first = int(numbers[0])
        where = f"record {first + 1}, byte {int(self.at[first])}" if len(numbers) == 1 else "one of several records"
        remedy = "; types={'column': 'string'} takes anything" if "conversion" in what else ""
        return ReadError(f"{self.path}: {where}: {what}{remedy}")


def _check_names(path: str, names: Sequence[str], dialect: Dialect) -> None:
    for name in [*(dialect.columns or ()), *dialect.types]:
        if name not in names:
            raise PlanError(f"from_csv: {path} has no column {name!r}; it has {', '.join(names)}")


class CsvSource(TableSource):
    """Records of plain files, in any order."""

    verb = "from_csv"
    most_open = 8192

    def __init__(
        self,
        paths: Sequence[str],
        dialect: Dialect,
        indices: Iterable[int] | None = None,
        where: Where = None,
        on_error: str = "raise",
        options: Options = None,
    ) -> None:
        self.dialect = dialect
        self.where = where
        self._told = f"{dialect.columns} {dict(dialect.types)}" if dialect.columns or dialect.types else ""
        self._typed = threading.Lock()
        self._has_types = False
        super().__init__(paths, indices, on_error, options, _CACHE_BYTES)

    def _opened(self, path: str) -> _Shard:
        with self._typed:
            if not self._has_types:
                first = self._shard_of(self.paths[0])
                first.dialect = self.dialect = first.typed()
                self._has_types = True
                if path == self.paths[0]:
                    return first
        return self._shard_of(path)

    def _shard_of(self, path: str) -> _Shard:
        return _Shard(path, self.options, self.groups, self.dialect, self.where)

    @property
    def reading(self) -> str:
        return self._told

    @property
    def why_not_shuffled(self) -> str:
        return ""  # records can be parsed alone

    def _scattered(self, indices: Indices) -> list[tuple[Columns, Indices, NDArray[np.int64]]] | None:
        runs: list[tuple[Columns, Indices, NDArray[np.int64]]] = []
        for number, within, places in split_runs(self.starts, indices):
            shard = self._table(number)
            assert isinstance(shard, _Shard)
            runs.append((shard.records(within, self.names), range(len(within)), np.asarray(places)))
        return runs

    def _runs(self, indices: Indices) -> list[tuple[Columns, Indices, NDArray[np.int64]]]:
        try:
            return super()._runs(indices)
        except ReadError:
            # A record among others cannot be read: whether it is one of these, parsing these alone shows.
            found = self._scattered(indices)
            if found is None:
                raise
            return found

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_typed": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._typed = threading.Lock()


class CsvStream(FileStream):
    """Records of compressed files, read forward."""

    verb = "from_csv"

    def __init__(self, paths: Sequence[str], dialect: Dialect, options: Options = None) -> None:
        super().__init__(paths, options)
        self.dialect = dialect
        self._told = f"{dialect.columns} {dict(dialect.types)}" if dialect.columns or dialect.types else ""
        self._has_types = False

    @property
    def reading(self) -> str:
        return self._told

    def open(self, shard: str, skip: int) -> Iterator[Any]:
        if not self._has_types:
            self.dialect = self._typed()
            self._has_types = True
        with decompressed(shard, self.options) as raw:
            stream = io.BufferedReader(cast(io.RawIOBase, raw), _BLOCK)
            names = self._names(shard, stream)
            _check_names(shard, names, self.dialect)
            wanted = names if self.dialect.columns is None else self.dialect.columns
            read, parse, convert = self.dialect.options(names, wanted, _BLOCK)
            module = import_arrow("pyarrow.csv", "reading CSV files")
            done = 0
            text = _Named(stream)
            try:
                for batch in module.open_csv(text, read, parse, convert) if stream.peek(1) else ():
                    columns = Columns(arrow().Table.from_batches([batch]))
                    for first in range(max(0, skip - done), columns.count, _PIECE):
                        yield from columns.rows(range(first, min(first + _PIECE, columns.count)))
                    done += columns.count
            except arrow().ArrowException as exc:
                raise ReadError(f"{shard}: after record {done}: {exc}") from exc
            if text.quotes % 2:
                raise ReadError(f"{shard}: before record {done + 1}: a quote is opened and never closed")

    def _typed(self) -> Dialect:
        """The dialect with types from the beginning of the first file."""
        with decompressed(self.paths[0], self.options) as raw:
            stream = io.BufferedReader(cast(io.RawIOBase, raw), _BLOCK)
            names = self._names(self.paths[0], stream)
            sample = stream.read(_BLOCK)
            if len(sample) == _BLOCK:
                sample = sample[: sample.rfind(b"\n") + 1]
        _check_names(self.paths[0], names, self.dialect)
        try:
            return self.dialect.typed(names, sample)
        except arrow().ArrowException as exc:
            raise ReadError(f"{self.paths[0]}: {exc}") from exc

    def _names(self, path: str, stream: io.BufferedReader[Any]) -> list[str]:
        """The names of the columns. Reads the header, if there is one."""
        if self.dialect.names is not None:
            return list(self.dialect.names)
        record = stream.readline(_BLOCK)
        while record.count(b'"') % 2 and (more := stream.readline(_BLOCK)) and len(record) < _BLOCK:
            record += more
        try:
            return header_of(record, self.dialect.delimiter)
        except ValueError as exc:
            raise ReadError(f"{path}: {exc}") from exc


class _Named(io.RawIOBase):
    """A stream whose closing closes nothing: pyarrow closes what it has read. Counts the quotes in it."""

    def __init__(self, stream: io.BufferedReader[Any]) -> None:
        self._stream = stream
        self.quotes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._stream.readinto(buffer)
        self.quotes += bytes(memoryview(buffer)[:count]).count(b'"')
        return count
