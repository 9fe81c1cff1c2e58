"""from_csv: records of CSV files as dicts with typed values, parsed by pyarrow.

A plain file is indexed by where its records begin, so any of them can be read alone; records that are read together
are parsed together. A compressed file (``.gz``, ``.zst``) can only be read forward, with a shard per file.
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
from penstock.formats.csv import Dialect, build_index, header_of
from penstock.formats.index import Where, index_of
from penstock.formats.spans import read_pieces
from penstock.sources.shards import Options, Shard, ShardSource, files_label, split_runs
from penstock.sources.source import Indices, StreamSource, picked
from penstock.sources.tables import batch_of

__all__ = ["CsvSource", "CsvStream", "Dialect"]

KIND = "csv 1"
#: indexing a smaller file takes less than half a second
_KEPT_BYTES = 1 << 28
#: read at once of a compressed file; a record cannot be longer
_BLOCK = 1 << 20
#: rows that are made at once
_PIECE = 256


class _Shard(Shard):
    """One plain file."""

    def __init__(self, path: str, options: Options, dialect: Dialect, where: Where) -> None:
        super().__init__(path, options)
        self.dialect = dialect
        try:
            arrays = index_of(self.file, KIND, build_index, where, least=_KEPT_BYTES)
            self.at: NDArray[np.int64] = arrays["at"]
            self.ends: NDArray[np.int64] = arrays["end"]
            if dialect.names is None:
                if not len(self.at):
                    raise ValueError("it has no header")
                head = self.file.read_at(int(self.at[0]), int(self.ends[0] - self.at[0]))
                self.names = header_of(head, dialect.delimiter)
                self.at, self.ends = self.at[1:], self.ends[1:]
            else:
                self.names = list(dialect.names)
        except ValueError as exc:
            raise ReadError(f"{path}: {exc}") from exc
        _check_names(path, self.names, dialect)

    def typed(self) -> Dialect:
        """The dialect with types from the beginning of this file."""
        sample = self.dialect.sample_of(self.file, self.at, self.ends)
        try:
            return self.dialect.typed(self.names, sample)
        except arrow().ArrowException as exc:
            raise ReadError(f"{self.path}: {exc}") from exc

    def __len__(self) -> int:
        return len(self.at)

    def name(self, number: int) -> str:
        return f"record {number + 1}"

    def columns(self, numbers: Indices) -> Columns:
        """These records as columns."""
        self.check()
        chosen = np.asarray(numbers, dtype=np.int64)
        at = self.at[chosen]
        pieces = read_pieces(self.file, at.tolist(), (self.ends[chosen] - at).tolist())
        text = b"".join(piece if piece.endswith(b"\n") else piece + b"\n" for piece in pieces)
        wanted = self.names if self.dialect.columns is None else self.dialect.columns
        try:
            table = self.dialect.table(text, self.names, wanted)
        except arrow().ArrowException as exc:
            raise self._bad(chosen, str(exc)) from exc
        if table.num_rows != len(chosen):
            raise self._bad(chosen, f"{len(chosen)} records were read as {table.num_rows}")
        return Columns(table)

    def _bad(self, numbers: NDArray[np.int64], what: str) -> ReadError:
        first = int(numbers[0])
        where = f"record {first + 1}, byte {int(self.at[first])}" if len(numbers) == 1 else "one of several records"
        return ReadError(f"{self.path}: {where}: {what}; types={{'column': 'string'}} takes anything")

    def read(self, numbers: Indices) -> list[Any]:
        return self.columns(numbers).rows(range(len(numbers))) if len(numbers) else []


def _check_names(path: str, names: Sequence[str], dialect: Dialect) -> None:
    for name in [*(dialect.columns or ()), *dialect.types]:
        if name not in names:
            raise PlanError(f"from_csv: {path} has no column {name!r}; it has {', '.join(names)}")


class CsvSource(ShardSource):
    """Records of plain files, in any order."""

    verb = "from_csv"

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
        super().__init__(paths, indices, on_error, options)

    def _opened(self, path: str) -> _Shard:
        with self._typed:
            if not self._has_types:
                self.dialect = _Shard(self.paths[0], self.options, self.dialect, self.where).typed()
                self._has_types = True
        return _Shard(path, self.options, self.dialect, self.where)

    @property
    def _reading(self) -> str:
        return self._told

    @property
    def reads_batches(self) -> bool:
        return True

    def read_batch(self, indices: Indices) -> Any:
        chosen = picked(indices, self.subset)
        return self._guarded(lambda: batch_of(self._runs(chosen), chosen))

    def _runs(self, indices: Indices) -> list[tuple[Columns, Indices, NDArray[np.int64]]]:
        runs: list[tuple[Columns, Indices, NDArray[np.int64]]] = []
        for number, within, places in split_runs(self.starts, indices):
            shard = self._shard(number)
            assert isinstance(shard, _Shard)
            runs.append((shard.columns(within), range(len(within)), np.asarray(places)))
        return runs

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_typed": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._typed = threading.Lock()


class CsvStream(StreamSource):
    """Records of compressed files, read forward."""

    verb = "from_csv"

    def __init__(self, paths: Sequence[str], dialect: Dialect, options: Options = None) -> None:
        self.paths = list(paths)
        self.dialect = dialect
        self.options = options
        self._told = f"{dialect.columns} {dict(dialect.types)}" if dialect.columns or dialect.types else ""
        self._has_types = False

    @property
    def label(self) -> str:
        return files_label(self.verb, self.paths)

    @property
    def content(self) -> str:
        return self._told

    def shards(self) -> Sequence[str]:
        return self.paths

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
            try:
                for batch in module.open_csv(_Named(stream), read, parse, convert) if stream.peek(1) else ():
                    columns = Columns(arrow().Table.from_batches([batch]))
                    for first in range(max(0, skip - done), columns.count, _PIECE):
                        yield from columns.rows(range(first, min(first + _PIECE, columns.count)))
                    done += columns.count
            except arrow().ArrowException as exc:
                raise ReadError(f"{shard}: after record {done}: {exc}") from exc

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
    """A stream whose closing closes nothing: pyarrow closes what it has read."""

    def __init__(self, stream: io.BufferedReader[Any]) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._stream.readinto(buffer)
