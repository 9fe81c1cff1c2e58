"""The functions that make a pipeline of tables and arrays: each of them a few lines over its source."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.errors import PlanError
from penstock.pipeline import Pipeline
from penstock.readers.paths import files_of, is_stream, names_of, or_packed, refuse_stream
from penstock.storage.paths import without_query

if TYPE_CHECKING:
    from penstock.errors import OnError
    from penstock.formats.index import Where
    from penstock.readers.paths import Options, Paths


def from_parquet(
    files: Paths,
    *,
    columns: Sequence[str] | None = None,
    filters: Any = None,
    indices: Iterable[int] | None = None,
    stream: bool = False,
    cache_bytes: int = 1 << 29,
    storage_options: Options = None,
) -> Pipeline[Any]:
    """Rows of Parquet files as dicts. Needs pyarrow: ``pip install "penstock[parquet]"``.

    Numbers are numpy scalars of the column's type, lists of numbers are arrays, nulls are None. A batch is one read
    per column. ``columns`` are the ones to read. ``filters`` are tuples such as ``[("label", "==", 3)]``, or an
    expression of pyarrow: they are worked out when the pipeline is made, and leave out whole row groups by their
    statistics.

    A row group is decoded once while its rows are read, and up to ``cache_bytes`` of decoded ones are kept in each
    process. ``shuffle()`` over more than that raises PlanError, since nearly every sample would decode a row group.
    With ``stream=True`` each row group is a shard of a stream, and ``shuffle(window=10_000)`` reads them in random
    order.

    >>> import tempfile, pyarrow, pyarrow.parquet
    >>> table = pyarrow.table({"x": [1.5, 2.5, 3.5], "label": ["a", "b", "a"]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pyarrow.parquet.write_table(table, f"{folder}/train.parquet")
    ...     next(iter(from_parquet(folder, filters=[("label", "==", "a")]).batch(2)))
    {'x': array([1.5, 3.5]), 'label': ['a', 'a']}
    """
    from penstock.sources.parquet import ParquetSource, ParquetStream

    paths = files_of(files, "from_parquet", storage_options, (".parquet", ".pq"))
    names = names_of(columns, "from_parquet")
    if not stream:
        return Pipeline(ParquetSource(paths, names, filters, indices, cache_bytes, storage_options))
    refuse_stream(indices, instead="leave stream=True out")
    return Pipeline(ParquetStream(paths, names, filters, storage_options))


def from_arrow(
    data: Any,
    *,
    columns: Sequence[str] | None = None,
    indices: Iterable[int] | None = None,
    cache_bytes: int = 1 << 29,
    storage_options: Options = None,
) -> Pipeline[Any]:
    """Rows of a pyarrow table, or of Arrow files (``.arrow``, ``.feather``, in the file or the stream format).

    Rows are as those of `from_parquet`. Local files are mapped into memory, so uncompressed ones are read at any
    position without decoding: a global shuffle costs little. Also takes a ``pyarrow.dataset`` of such files.

    >>> import pyarrow
    >>> list(from_arrow(pyarrow.table({"n": [1, 2, 3]}), indices=[2, 0]))
    [{'n': np.int64(3)}, {'n': np.int64(1)}]
    """
    from penstock.sources.arrow import ArrowSource, ArrowTable

    names = names_of(columns, "from_arrow")
    if hasattr(data, "schema") and hasattr(data, "num_rows"):
        return Pipeline(ArrowTable(data, names, indices))
    if hasattr(data, "files") and hasattr(data, "format"):  # a dataset
        if "parquet" in type(data.format).__name__.lower():
            return from_parquet(data.files, columns=columns, indices=indices, cache_bytes=cache_bytes)
        data = data.files
    if not isinstance(data, (str, os.PathLike, list, tuple)):
        raise PlanError(f"from_arrow takes a pyarrow table, a data set or Arrow files, got {type(data).__name__}")
    paths = files_of(data, "from_arrow", storage_options, (".arrow", ".feather", ".ipc"))
    return Pipeline(ArrowSource(paths, names, indices, cache_bytes, storage_options))


def from_csv(
    files: Paths,
    *,
    columns: Sequence[str] | None = None,
    types: Mapping[str, Any] | None = None,
    names: Sequence[str] | None = None,
    delimiter: str | None = None,
    indices: Iterable[int] | None = None,
    index: Where = None,
    on_error: OnError = "raise",
    storage_options: Options = None,
) -> Pipeline[Any]:
    """Records of CSV files as dicts with typed values. Needs pyarrow: ``pip install "penstock[parquet]"``.

    Types are worked out from the first megabyte of the first file, and hold for all files; ``types`` says them, as
    ``{"label": "int32", "id": "string"}``. Values are as those of `from_parquet`. ``columns`` are the ones to read,
    ``names`` the columns of files without a header. ``delimiter`` is a tab for ``.tsv`` files, or else a comma.
    Plain files are indexed, so any record can be read alone. Compressed files (``.gz``, ``.zst``) are streams of
    one shard per file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with open(f"{folder}/train.csv", "w") as file:
    ...         file.write("x,label\\n0.5,cat\\n1.5,dog\\n") and None
    ...     next(iter(from_csv(folder, types={"x": "float32"}).batch(2)))
    {'x': array([0.5, 1.5], dtype=float32), 'label': ['cat', 'dog']}
    """
    from penstock.sources.csv import CsvSource, CsvStream, Dialect

    paths = files_of(files, "from_csv", storage_options, or_packed(".csv", ".tsv"))
    if delimiter is None:
        delimiter = "\t" if without_query(paths[0]).lower().endswith(or_packed(".tsv")) else ","
    dialect = Dialect(delimiter, names_of(names, "from_csv"), names_of(columns, "from_csv"), types or {})
    if not is_stream(paths, "from_csv"):
        return Pipeline(CsvSource(paths, dialect, indices, index, on_error, storage_options))
    refuse_stream(indices, on_error)
    return Pipeline(CsvStream(paths, dialect, storage_options))


def from_npy(
    paths: Paths,
    *,
    rows: bool = True,
    indices: Iterable[int] | None = None,
    cache_bytes: int = 1 << 29,
    storage_options: Options = None,
) -> Pipeline[Any]:
    """Rows of the arrays in ``.npy`` files, one file after the other; with ``rows=False`` each file is a sample.

    Files are mapped into memory and read when their rows are, so they may be larger than memory. A row of a
    ``.npz`` file is a dict with a row of each array. Compressed ``.npz`` files are decompressed whole, and up to
    ``cache_bytes`` of them are kept in each process. Rows are read-only, a batch is yours. Pickled objects are
    refused.

    >>> import tempfile
    >>> import numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/train.npz", x=np.eye(3), y=np.array([0, 1, 2]))
    ...     next(iter(from_npy(folder).batch(2)))
    {'x': array([[1., 0., 0.],
           [0., 1., 0.]]), 'y': array([0, 1])}
    """
    from penstock.sources.npy import NpyFiles, NpySource

    found = files_of(paths, "from_npy", storage_options, (".npy", ".npz"))
    if not rows:
        return Pipeline(NpyFiles(found, indices, storage_options))
    return Pipeline(NpySource(found, indices, cache_bytes, storage_options))


def from_hdf5(
    files: Paths,
    *,
    fields: str | Sequence[str] | None = None,
    indices: Iterable[int] | None = None,
    storage_options: Options = None,
) -> Pipeline[Any]:
    """Rows of the data sets in HDF5 files, as dicts. Needs h5py: ``pip install "penstock[hdf5]"``.

    ``fields`` are the data sets to read, as ``"group/name"``; without it all are read, and must have the same
    number of rows. A single name gives rows without a dict. Each process opens the files for itself. For a fast
    shuffle, write data sets without compression, in chunks of whole rows or without chunks.

    >>> import tempfile, h5py
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with h5py.File(f"{folder}/train.h5", "w") as file:
    ...         file["x"], file["label"] = [[1, 2], [3, 4], [5, 6]], ["a", "b", "c"]
    ...     next(iter(from_hdf5(folder).batch(2)))
    {'label': ['a', 'b'], 'x': array([[1, 2],
           [3, 4]])}
    """
    from penstock.sources.hdf5 import Hdf5Source

    paths = files_of(files, "from_hdf5", storage_options, (".h5", ".hdf5", ".he5", ".hdf"))
    return Pipeline(Hdf5Source(paths, fields, indices, storage_options))
