"""from_arrow: rows of Arrow tables in memory, and of Arrow files in the file and in the stream format.

Local files are mapped into memory, so rows of uncompressed ones are read at any position without decoding anything.
Record batches are what row groups are in Parquet files. A large table in memory is not copied to worker processes:
its rows are read in the main process and travel with the tickets.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from penstock.errors import PlanError, ReadError
from penstock.formats.columns import Columns, arrow, import_arrow
from penstock.formats.groups import Groups
from penstock.formats.seekable import arrow_name, seekable
from penstock.formats.sound import check_batch
from penstock.sources.chosen import ChosenSource, subset_of
from penstock.sources.shards import Options
from penstock.sources.source import Indices
from penstock.sources.tables import CACHE_BYTES, TableShard, TableSource, batch_of

_PURPOSE = "reading Arrow files"
_FILE_MAGIC = b"ARROW1"
#: a table above this is not copied to other processes
_LARGE_BYTES = 1 << 24


class ArrowTable(ChosenSource):
    """Rows of a table in memory."""

    verb = "from_arrow"

    def __init__(
        self, table: Any, columns: Sequence[str] | None = None, indices: Iterable[int] | None = None
    ) -> None:
        self.table = table if columns is None else table.select(_known(columns, table.schema, "the table"))
        self.subset = subset_of(table.num_rows, indices, self.verb)
        self._columns: Columns | None = None

    @property
    def label(self) -> str:
        return f"from_arrow(table of {self.table.num_rows} rows: {', '.join(self.table.schema.names)})"

    @property
    def whole_length(self) -> int:
        return int(self.table.num_rows)

    @property
    def stays(self) -> str:
        size = self.table.nbytes
        return f"an Arrow table of {size / 1e6:,.0f} MB" if size > _LARGE_BYTES else ""

    @property
    def columns(self) -> Columns:
        if self._columns is None:
            self._columns = Columns(self.table)
        return self._columns

    def read(self, indices: Indices) -> Sequence[Any]:
        return self.columns.rows(self.numbers(indices))

    @property
    def reads_batches(self) -> bool:
        return True

    def read_batch(self, indices: Indices) -> Any:
        chosen = self.numbers(indices)
        return batch_of([(self.columns, chosen, np.arange(len(chosen)))], chosen)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_columns": None}


def _known(columns: Sequence[str], schema: Any, what: str) -> list[str]:
    for name in columns:
        if name not in schema.names:
            raise PlanError(f"from_arrow: {what} has no column {name!r}; it has {', '.join(schema.names)}")
    return list(columns)


class _Shard(TableShard):
    """One Arrow file."""

    def __init__(self, path: str, options: Options, groups: Groups[Columns], columns: Sequence[str] | None) -> None:
        super().__init__(path, options, groups)
        pa = arrow()
        self._lock = threading.Lock()
        #: record batches that were found sound
        self._checked: set[int] = set()
        here = arrow_name(path)
        start = self.file.read_at(0, min(len(_FILE_MAGIC), self.size))
        try:
            source = pa.memory_map(here) if here is not None else pa.PythonFile(seekable(path, options), "r")
            self._batches = _File(source) if start == _FILE_MAGIC else _Stream(source)
            names = self._batches.schema.names
            twice = [name for name in names if names.count(name) > 1]
            if twice:
                raise ValueError(f"it has the column {twice[0]!r} twice, and a row could hold only one of them")
            self._columns = None if columns is None else _known(columns, self._batches.schema, path)
            self.names = names if self._columns is None else self._columns
            counts = self._batches.counts()
        except (pa.ArrowException, OSError, ValueError) as exc:
            raise ReadError(f"{path}: this is not an Arrow file, or it is damaged: {exc}") from exc
        self.starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self.decoded_bytes = 0 if here is not None and not self._batches.compressed else self.size

    def table(self, group: int) -> Any:
        pa = arrow()
        try:
            with self._lock:
                batch = self._batches.get(group)
            if group not in self._checked:
                check_batch(batch)
                self._checked.add(group)
        except (pa.ArrowException, OSError, ValueError) as exc:
            raise ReadError(f"{self.path}: record batch {group}: {exc}") from exc
        table = pa.Table.from_batches([batch])
        return table if self._columns is None else table.select(self._columns)


class _File:
    """Record batches of a file with a table of contents."""

    def __init__(self, source: Any) -> None:
        self._reader = import_arrow("pyarrow.ipc", _PURPOSE).open_file(source)
        self.schema = self._reader.schema
        self.compressed = False

    def counts(self) -> list[int]:
        found = [self.get(number) for number in range(self._reader.num_record_batches)]
        self.compressed = any(_is_apart(batch) for batch in found[:1])
        return [batch.num_rows for batch in found]

    def get(self, number: int) -> Any:
        return self._reader.get_batch(number)


class _Stream:
    """Record batches of a file without one: where each begins is found out in one pass."""

    def __init__(self, source: Any) -> None:
        self._ipc = import_arrow("pyarrow.ipc", _PURPOSE)
        self._source = source
        self.schema = self._ipc.read_schema(source)
        self.compressed = False
        self._at: list[int] = []

    def counts(self) -> list[int]:
        counts: list[int] = []
        while True:
            at = self._source.tell()
            try:
                message = self._ipc.read_message(self._source)
            except EOFError:
                if at == self._source.size():
                    raise ValueError("it ends without the mark of its end, so it was cut short") from None
                break
            if message.type == "dictionary":
                raise ValueError(
                    "columns with dictionaries in the stream format cannot be read at any position; write the file "
                    "format, with pyarrow.ipc.new_file"
                )
            batch = self._ipc.read_record_batch(message, self.schema)
            self.compressed = self.compressed or (not counts and _is_apart(batch))
            counts.append(batch.num_rows)
            self._at.append(at)
        return counts

    def get(self, number: int) -> Any:
        self._source.seek(self._at[number])
        return self._ipc.read_record_batch(self._ipc.read_message(self._source), self.schema)


def _is_apart(batch: Any) -> bool:
    """Whether the memory of a batch is not that of its file: it was decompressed."""
    return any(
        buffer is not None and buffer.parent is None for column in batch.columns for buffer in column.buffers()
    )


class ArrowSource(TableSource):
    """Rows of Arrow files, in any order."""

    verb = "from_arrow"

    def __init__(
        self,
        paths: Sequence[str],
        columns: Sequence[str] | None = None,
        indices: Iterable[int] | None = None,
        cache_bytes: int = CACHE_BYTES,
        options: Options = None,
    ) -> None:
        self.columns = None if columns is None else list(columns)
        super().__init__(paths, indices, "raise", options, cache_bytes)

    def _opened(self, path: str) -> _Shard:
        return _Shard(path, self.options, self.groups, self.columns)

    @property
    def reading(self) -> str:
        return "" if self.columns is None else f"columns {', '.join(self.columns)}"
