"""Parquet files with natural column types; see `penstock.formats.kinds` for what becomes of each value.

The types of the columns are decided by the samples of the first row group and hold for all files. A later sample
that does not fit is refused by name. The same samples give the same bytes.
"""

from __future__ import annotations

from typing import Any, BinaryIO

from penstock.errors import NotCarried
from penstock.formats.columns import arrow, import_arrow
from penstock.formats.kinds import META, WHOLE, Form, fits, kind_of, kinds_of, to_array, type_of
from penstock.trees import nbytes
from penstock.writers.writer import FileWriter

#: a row group has about so many bytes, and at most so many rows
_GROUP_BYTES, _GROUP_ROWS = 1 << 25, 100_000


class ParquetWriter(FileWriter):
    """See `from_parquet`, which reads it back."""

    format = "parquet"
    suffix = "parquet"

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self._parquet = import_arrow("pyarrow.parquet", "writing Parquet files")
        self._writer: Any = None
        self._rows: list[dict[str, Any]] = []
        self._first = 0
        self._bytes = 0

    def opened(self, file: BinaryIO) -> None:
        self._writer, self._rows, self._bytes = None, [], 0

    def written(self, file: BinaryIO, number: int, sample: Any) -> int:
        shape, row = _row(sample)
        known = self.memo.setdefault("sample", shape)
        if known != shape:
            raise NotCarried(f"sample {number} is a {shape}, and samples before it are a {known}; make them alike")
        if not self._rows:
            self._first = number
        self._rows.append(row)
        size = nbytes(row) + 8 * len(row)
        self._bytes += size
        if self._bytes >= _GROUP_BYTES or len(self._rows) >= _GROUP_ROWS:
            self._flush(file)
        return size

    def _flush(self, file: BinaryIO) -> None:
        if not self._rows:
            return
        if "kinds" not in self.memo:
            names = list(self._rows[0])
            self.memo["kinds"] = {name: kinds_of([row.get(name) for row in self._rows]) for name in names}
        kinds: dict[str, str] = self.memo["kinds"]
        self._check(kinds)
        pa = arrow()
        metadata = {META: Form(self.memo["sample"], kinds).encoded()}
        schema = pa.schema([(name, type_of(kind)) for name, kind in kinds.items()], metadata=metadata)
        arrays = [to_array(kind, [row[name] for row in self._rows], name) for name, kind in kinds.items()]
        if self._writer is None:
            self._writer = self._parquet.ParquetWriter(file, schema, compression="zstd")
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=schema), row_group_size=len(self._rows))
        self._rows, self._bytes = [], 0

    def _check(self, kinds: dict[str, str]) -> None:
        for place, row in enumerate(self._rows):
            if row.keys() != kinds.keys():
                raise NotCarried(
                    f"sample {self._first + place} has the fields {', '.join(map(repr, row))}, and samples before "
                    f"it have {', '.join(map(repr, kinds))}; a Parquet file has the same columns for all: make the "
                    "samples alike with map(), or use format='tar'"
                )
            for name, value in row.items():
                if not fits(kinds[name], value):
                    raise NotCarried(
                        f"field {name!r} of sample {self._first + place} is {kind_of(value)!r}, and was "
                        f"{kinds[name]!r} in the first samples; a Parquet column has one type: make the samples "
                        "alike with map(), or use format='tar'"
                    )

    def closing(self, file: BinaryIO) -> None:
        self._flush(file)
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def abort(self) -> None:
        self._writer, self._rows = None, []
        super().abort()


def _row(sample: Any) -> tuple[str, dict[str, Any]]:
    """What a sample is, and its columns."""
    if type(sample) is dict and sample and all(type(name) is str for name in sample):
        return "dict", sample
    if type(sample) is tuple and sample:
        return "tuple", {f"_{number}": value for number, value in enumerate(sample)}
    return "whole", {WHOLE: sample}
