"""What sources of tables have in common: files in row groups, of which a whole one is decoded to read any row.

A format gives `_opened`, which makes a `TableShard`. Decoded row groups are kept up to a number of bytes in each
process, so reading in order decodes each of them once. Reading in random order does so only if all of them fit;
otherwise `why_not_shuffled` says what to do instead. A batch is one read per column, without a dict per row.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ReadError
from penstock.formats.columns import Columns, arrow
from penstock.formats.groups import Groups
from penstock.sources.shards import Options, Shard, ShardSource, split_runs
from penstock.sources.source import Indices
from penstock.trees import stacked

#: decoded row groups that a process keeps
CACHE_BYTES = 1 << 29
#: rows of more row groups than this are read from one table of all rows, if that fits
_FEW = 2
#: Arrow counts the bytes of a text column in 31 bits, so larger tables stay in parts
_ONE_TABLE = 1 << 30
#: letters of a message of Arrow that are shown
_SAID = 200
#: where a single run stands among the rows that are wanted is never asked
_NOWHERE = np.empty(0, dtype=np.int64)


class TableShard(Shard):
    """One file in row groups."""

    #: the first row of each row group, and the number of all rows
    starts: NDArray[np.int64]
    #: the columns that its rows have, in the order of the file
    names: list[str]
    #: about what all row groups take when they are decoded
    decoded_bytes: int = 0

    def __init__(self, path: str, options: Options, groups: Groups[Columns]) -> None:
        super().__init__(path, options)
        self.groups = groups

    @abstractmethod
    def table(self, group: int) -> Any:
        """Decode one row group: an Arrow table."""

    def group(self, number: int, names: list[str]) -> Columns:
        """A decoded row group with its columns in the order of `names`, which may be kept from before."""
        return self.groups.get((self.path, number), lambda: self.columns(self.ordered(number, names)))

    def ordered(self, group: int, names: list[str]) -> Any:
        """One row group, decoded, with its columns in the order of `names`."""
        table = self.table(group)
        return table if self.names == names else table.select(names)

    def columns(self, table: Any) -> Columns:
        """How the rows of a table of this file are read."""
        return Columns(table)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def name(self, number: int) -> str:
        return f"row {number}"

    def read(self, numbers: Indices) -> list[Any]:
        raise AssertionError("a table is read by its source, several row groups at once")


class _Recent(NamedTuple):
    """The row group of the last rows that were read in order: the next rows are mostly of the same one."""

    first: int
    stop: int
    shard: TableShard
    #: kept alive by `Groups` alone, which bounds what is kept
    columns: ref[Columns]


class TableSource(ShardSource):
    """Rows of tables in files."""

    most_open = 256  # each has a descriptor

    def __init__(
        self,
        paths: Sequence[str],
        indices: Iterable[int] | None = None,
        on_error: str = "raise",
        options: Options = None,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self.groups: Groups[Columns] = Groups(cache_bytes)
        #: bytes and number of row groups, by file
        self._decoded: dict[int, tuple[int, int]] = {}
        #: the columns of files that have rows, by file, while files are indexed
        self._found: dict[int, list[str]] = {}
        #: the columns of every row, in the order of the first file that has rows
        self.names: list[str] = []
        self._recent: _Recent | None = None
        super().__init__(paths, indices, on_error, options)

    def _note(self, number: int, shard: Shard) -> None:
        assert isinstance(shard, TableShard)
        self._decoded[number] = shard.decoded_bytes, len(shard.starts) - 1
        if len(shard):
            self._found[number] = shard.names

    def _index_all(self) -> list[int]:
        counts = super()._index_all()
        found = sorted(self._found.items())
        self._found = {}
        for number, names in found:
            first, self.names = found[0][0], found[0][1]
            if set(names) != set(self.names):
                raise ReadError(
                    f"{self.paths[number]} has the columns {', '.join(names)}, and {self.paths[first]} has "
                    f"{', '.join(self.names)}; rows of one pipeline must be alike: choose what both have with "
                    "columns=[...], or read them as two"
                )
        return counts

    @property
    def decoded_bytes(self) -> int:
        """About what all row groups take when they are decoded."""
        return sum(size for size, _ in self._decoded.values())

    @property
    def group_count(self) -> int:
        return sum(count for _, count in self._decoded.values())

    @property
    def why_not_shuffled(self) -> str:
        rows = int(self.starts[-1])
        if self.decoded_bytes <= self.groups.most_bytes or self.group_count >= rows:
            return ""
        return (
            f"{self.label}: its {self.group_count} row groups of about {rows // self.group_count:,} rows take "
            f"{self.decoded_bytes / 1e6:,.0f} MB, more than the cache_bytes={self.groups.most_bytes:,} that are "
            "kept, so nearly every sample would decode a whole row group. Use stream=True and "
            "shuffle(window=10_000), which reads row groups in random order; or a larger cache_bytes=; or write "
            "the rows once in a format with random access, as by pipeline.write(folder, format='tar')"
        )

    @property
    def reads_batches(self) -> bool:
        return True

    def read_batch(self, indices: Indices) -> Any:
        chosen = self.numbers(indices)
        return self._guarded(lambda: self._sound(chosen, lambda: batch_of(self._runs(chosen), chosen)))

    def _read(self, indices: Indices) -> Sequence[Any]:
        rows: Sequence[Any] = self._sound(indices, lambda: self._rows(indices))
        return rows

    def _sound(self, indices: Indices, call: Callable[[], Any]) -> Any:
        """What `call` makes of these rows; values that Arrow cannot give are an error with their file."""
        try:
            return call()
        except (arrow().ArrowException, UnicodeDecodeError) as exc:
            number = int(indices[0])
            shard = int(np.searchsorted(self.starts, number, side="right")) - 1
            row = number - int(self.starts[shard])
            raise ReadError(f"{self.paths[shard]}: rows from {row} on cannot be read: {said(exc)}") from exc

    def _rows(self, indices: Indices) -> Sequence[Any]:
        runs = self._runs(indices)
        if len(runs) == 1:
            columns, rows, _ = runs[0]
            return columns.rows(rows)
        out: list[Any] = [None] * len(indices)
        for columns, rows, places in runs:
            for place, row in zip(places.tolist(), columns.rows(rows), strict=True):
                out[place] = row
        return out

    def _runs(self, indices: Indices) -> list[tuple[Columns, Indices, NDArray[np.int64]]]:
        """The row groups that have these rows, which rows of them, and their places among `indices`."""
        recent = self._recent
        if (
            recent is not None
            and type(indices) is range
            and recent.first <= indices.start < indices.stop <= recent.stop
        ):
            columns = recent.columns()
            if columns is not None:
                recent.shard.check()
                return [(columns, range(indices.start - recent.first, indices.stop - recent.first), _NOWHERE)]
        if self._from_all_over(indices):
            if self.decoded_bytes <= min(self.groups.most_bytes, _ONE_TABLE):
                # With one table of all rows, a column is one read instead of one per row group.
                every = self.groups.get("all", self._all)
                if every.count:
                    return [(every, indices, _NOWHERE)]
            scattered = self._scattered(indices)
            if scattered is not None:
                return scattered
        shards = split_runs(self.starts, indices)
        if len(shards) == 1:
            number, rows, _ = shards[0]
            table = self._unchanged(number)
            runs = split_runs(table.starts, rows)
            if len(runs) == 1:
                group, within, _ = runs[0]
                columns = table.group(group, self.names)
                if isinstance(within, range) and isinstance(indices, range):
                    first = indices.start - within.start
                    self._recent = _Recent(first, first + columns.count, table, ref(columns))
                return [(columns, within, _NOWHERE)]
            return [(table.group(group, self.names), within, np.asarray(places)) for group, within, places in runs]
        return [
            (table.group(group, self.names), within, np.asarray(places)[np.asarray(inner)])
            for table, rows, places in [(self._unchanged(number), rows, places) for number, rows, places in shards]
            for group, within, inner in split_runs(table.starts, rows)
        ]

    def _scattered(self, indices: Indices) -> list[tuple[Columns, Indices, NDArray[np.int64]]] | None:
        """Rows of more row groups than are kept, where a format can read rows alone; None where it cannot."""
        return None

    def _from_all_over(self, indices: Indices) -> bool:
        """Whether rows are wanted in no order, of many row groups that have to be decoded."""
        if isinstance(indices, range) or self.group_count <= _FEW or not self.decoded_bytes:
            return False
        if len(indices) < 2:
            return self.decoded_bytes > self.groups.most_bytes
        span = int(indices.max()) - int(indices.min())
        return span * self.group_count > _FEW * int(self.starts[-1])

    def _unchanged(self, number: int) -> TableShard:
        table = self._table(number)
        table.check()
        return table

    def _table(self, number: int) -> TableShard:
        shard = self._shard(number)
        assert isinstance(shard, TableShard)
        return shard

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_recent": None}

    def _all(self) -> Columns:
        """All rows of all files; none if a column has not the same type in all of them."""
        shards = [shard for number in range(len(self.paths)) if len(shard := self._table(number))]
        tables = [shard.ordered(group, self.names) for shard in shards for group in range(len(shard.starts) - 1)]
        alike = all(table.schema.equals(tables[0].schema) for table in tables)
        return shards[0].columns(arrow().concat_tables(tables) if alike else tables[0].slice(0, 0))


def said(exc: Exception) -> str:
    """What Arrow says, in one line: it repeats values that it cannot give, however long they are.

    >>> said(ValueError("Wrapping \\n" + 1000 * "a" + " failed"))[-10:]
    'aaaaaaa...'
    """
    text = " ".join(str(exc).split())
    return text if len(text) <= _SAID else f"{text[:_SAID]}..."


def batch_of(runs: Sequence[tuple[Columns, Indices, NDArray[np.int64]]], indices: Indices) -> Any:
    """The rows of several row groups as one batch, the same as if rows had been stacked one by one."""
    first = runs[0][0]
    joined = first.parts(runs[0][1])
    if len(runs) > 1:
        parts = [joined, *(columns.parts(rows) for columns, rows, _ in runs[1:])]
        order = [places for _, _, places in runs]
        joined = [_joined(list(column), order, len(indices)) for column in zip(*parts, strict=True)]

    def describe(place: int) -> str:
        return f"sample {int(indices[place])}"

    return first.shaped(
        {
            name: rows if is_text or isinstance(rows, np.ndarray) else stacked(rows, describe, path=name)
            for name, is_text, rows in zip(first.names, first.texts, joined, strict=True)
        }
    )


def _joined(parts: list[Any], order: list[NDArray[np.int64]], count: int) -> Any:
    """The rows of one column from several row groups, as one array or as one list."""
    first = parts[0]
    if all(
        isinstance(part, np.ndarray) and part.shape[1:] == first.shape[1:] and part.dtype == first.dtype
        for part in parts
    ):
        block = np.empty((count, *first.shape[1:]), dtype=first.dtype)
        for part, places in zip(parts, order, strict=True):
            block[places] = part
        return block
    rows: list[Any] = [None] * count
    for part, places in zip(parts, order, strict=True):
        for place, row in zip(places.tolist(), part, strict=True):
            rows[place] = row
    return rows
