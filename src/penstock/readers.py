"""The functions that make a pipeline of data files: one per format, each of them a few lines over its source."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from penstock import storage
from penstock.errors import PlanError
from penstock.formats.compressed import MOST_BYTES, compression
from penstock.pipeline import Pipeline

if TYPE_CHECKING:
    from penstock.formats.index import Where
    from penstock.sources.tar import Fields
    from penstock.sources.tfrecord import Features

    #: a path, a pattern or a folder, on disk or by URL, or a list of these
    Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    Options = Mapping[str, Any] | None
    OnError = Literal["raise", "skip"]

__all__ = [
    "from_arrow",
    "from_csv",
    "from_hdf5",
    "from_jsonl",
    "from_lmdb",
    "from_npy",
    "from_parquet",
    "from_tar",
    "from_text",
    "from_tfrecord",
]


def _files(paths: Any, what: str, options: Any, suffixes: tuple[str, ...]) -> list[str]:
    """The files that `paths` stand for. Of a folder, those with one of the suffixes of the format."""
    found = storage.expanded(paths, what, options)
    chosen = [path for path in found if path.lower().partition("?")[0].endswith(suffixes)]
    if isinstance(paths, (str, os.PathLike)) and found != [os.fspath(paths)] and not storage.has_magic(str(paths)):
        if not chosen:
            raise PlanError(f"{what}: no file in {os.fspath(paths)!r} ends in {' or '.join(suffixes)}")
        return chosen
    return found


def _is_stream(paths: list[str], what: str) -> bool:
    """Whether the files are compressed, so that they can only be read forward."""
    kinds = {compression(path) != "": path for path in paths}
    if len(kinds) > 1:
        raise PlanError(
            f"{what}: {kinds[True]!r} is compressed and {kinds[False]!r} is not; read them as two pipelines and "
            "put them together with concat() or mix()"
        )
    return True in kinds


def from_tar(
    shards: Paths,
    *,
    fields: Fields = None,
    decode: bool | None = None,
    indices: Iterable[int] | None = None,
    index: Where = None,
    on_error: OnError = "raise",
    max_bytes: int = MOST_BYTES,
    storage_options: Options = None,
) -> Pipeline[Any]:
    """Samples of tar archives in the WebDataset layout: ``{"__key__": "0001", "jpg": b"...", "cls": b"3"}``.

    Members that follow each other and share a name up to the first dot of its last part are one sample; what
    follows that dot names the field. ``fields`` are the ones to read, and each sample must have them:
    ``["jpg", "cls"]``, or ``{"image": "jpg;png", "label": "cls"}`` to rename them. With ``decode=True`` text, JSON,
    class numbers and ``.npy`` arrays are decoded by their extension. Archives that `Pipeline.write` made give back
    the samples that were written; ``decode=False`` gives their members as bytes. Nothing is ever unpickled.

    A plain archive is indexed when it is first used. The index is kept beside it under a hidden name, or in the
    cache directory; ``index`` names another folder, or is False to keep it in memory. Compressed archives
    (``.tar.gz``, ``.tar.zst``) are streams of one shard per file: shuffle them with ``shuffle(window=)``. Their
    samples may have ``max_bytes`` each.

    >>> import io, tarfile, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with tarfile.open(f"{folder}/train-000.tar", "w") as archive:
    ...         for name, data in [("1.cls", b"3"), ("1.txt", b"a cat"), ("2.cls", b"5"), ("2.txt", b"a dog")]:
    ...             member = tarfile.TarInfo(name)
    ...             member.size = len(data)
    ...             archive.addfile(member, io.BytesIO(data))
    ...     list(from_tar(f"{folder}/train-{{000..000}}.tar", decode=True))
    [{'__key__': '1', 'cls': 3, 'txt': 'a cat'}, {'__key__': '2', 'cls': 5, 'txt': 'a dog'}]
    """
    from penstock.sources.tar import Layout, TarSource, TarStream

    paths = _files(shards, "from_tar", storage_options, (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst"))
    layout = Layout(fields, decode)
    if not _is_stream(paths, "from_tar"):
        return Pipeline(TarSource(paths, layout, indices, index, on_error, storage_options))
    _no_stream(indices=indices, on_error=None if on_error == "raise" else on_error)
    return Pipeline(TarStream(paths, layout, max_bytes, storage_options))


def from_text(
    files: Paths,
    *,
    encoding: str = "utf-8",
    indices: Iterable[int] | None = None,
    index: Where = None,
    on_error: OnError = "raise",
    max_bytes: int = MOST_BYTES,
    storage_options: Options = None,
) -> Pipeline[str]:
    """Lines of text files, as strings without their ends.

    A plain file is indexed by where its lines begin, so that any line can be read alone. The index of a large file
    is kept, as `from_tar` keeps its own. Compressed files (``.gz``, ``.zst``) are streams of one shard per file,
    with lines of at most ``max_bytes``. A line that is not text in this ``encoding`` is an error, or is left out
    and counted with ``on_error="skip"``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with open(f"{folder}/words.txt", "w") as file:
    ...         file.write("ant\\nbee\\ncow\\n") and None
    ...     list(from_text(f"{folder}/*.txt", indices=[2, 0]))
    ['cow', 'ant']
    """
    from penstock.sources.lines import Text

    return _lines(files, Text(encoding), (".txt", ".text"), indices, index, on_error, max_bytes, storage_options)


def from_jsonl(
    files: Paths,
    *,
    tree: bool = False,
    indices: Iterable[int] | None = None,
    index: Where = None,
    on_error: OnError = "raise",
    max_bytes: int = MOST_BYTES,
    storage_options: Options = None,
) -> Pipeline[Any]:
    """The JSON values of files with one per line. Blank lines are left out.

    Files are read as those of `from_text` are. ``tree=True`` gives back what `Pipeline.write` wrote: arrays, bytes
    and other things that JSON has no notation for.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with open(f"{folder}/train.jsonl", "w") as file:
    ...         file.write('{"text": "a", "label": 1}\\n{"text": "b", "label": 0}\\n') and None
    ...     list(from_jsonl(f"{folder}/train.jsonl"))
    [{'text': 'a', 'label': 1}, {'text': 'b', 'label': 0}]
    """
    from penstock.sources.lines import Json

    return _lines(
        files, Json(tree), (".jsonl", ".ndjson", ".json"), indices, index, on_error, max_bytes, storage_options
    )


def _lines(
    files: Any,
    what: Any,
    suffixes: tuple[str, ...],
    indices: Any,
    index: Any,
    on_error: Any,
    max_bytes: int,
    options: Any,
) -> Pipeline[Any]:
    from penstock.sources.lines import LineSource, LineStream

    packed = tuple(f"{suffix}{more}" for suffix in suffixes for more in (".gz", ".zst"))
    paths = _files(files, what.verb, options, (*suffixes, *packed))
    if not _is_stream(paths, what.verb):
        return Pipeline(LineSource(paths, what, indices, index, on_error, options))
    _no_stream(indices=indices, on_error=None if on_error == "raise" else on_error)
    return Pipeline(LineStream(paths, what, max_bytes, options))


def from_tfrecord(
    files: Paths,
    *,
    features: Features = None,
    raw: bool = False,
    check: bool = True,
    compression: Literal["gzip"] | None = None,
    indices: Iterable[int] | None = None,
    index: Where = None,
    on_error: OnError = "raise",
    max_bytes: int = MOST_BYTES,
    storage_options: Options = None,
) -> Pipeline[Any]:
    """Records of TFRecord files: each ``tf.train.Example`` as a dict, or with ``raw=True`` its bytes.

    Without ``features`` a sample has all of them as lists: int64 and float32 arrays, and lists of bytes.
    ``features`` names some of them, and says what each is: ``{"image": bytes, "label": int, "box": ((4,),
    "float32")}``.

    Checksums are compared; ``check=False`` leaves those of the data out. They take next to no time with ``pip
    install "penstock[tfrecord]"``. Plain files are indexed as those of `from_tar` are. Files that are compressed
    with gzip, which is told by ``.gz`` or by ``compression="gzip"``, are streams of one shard per file.

    >>> import tempfile
    >>> from penstock.formats.tfrecord import framed
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with open(f"{folder}/train-00000-of-00001", "wb") as file:
    ...         file.write(framed(b"any bytes") + framed(b"")) and None
    ...     list(from_tfrecord(folder, raw=True))
    [b'any bytes', b'']
    """
    from penstock.sources.tfrecord import Examples, RecordSource, RecordStream

    if compression not in (None, "gzip"):
        raise PlanError(f"from_tfrecord(compression=) takes 'gzip' or None, got {compression!r}")
    paths = _files(files, "from_tfrecord", storage_options, ("",))
    examples = Examples(features, raw)
    if compression is None and not _is_stream(paths, "from_tfrecord"):
        return Pipeline(RecordSource(paths, examples, check, indices, index, on_error, storage_options))
    _no_stream(indices=indices, on_error=None if on_error == "raise" else on_error)
    return Pipeline(RecordStream(paths, examples, check, max_bytes, storage_options))


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

    paths = _files(files, "from_parquet", storage_options, (".parquet", ".pq"))
    names = _names(columns, "from_parquet")
    if not stream:
        return Pipeline(ParquetSource(paths, names, filters, indices, cache_bytes, storage_options))
    _no_stream(indices=indices)
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

    names = _names(columns, "from_arrow")
    if hasattr(data, "schema") and hasattr(data, "num_rows"):
        return Pipeline(ArrowTable(data, names, indices))
    if hasattr(data, "files") and hasattr(data, "format"):  # a dataset
        if "parquet" in type(data.format).__name__.lower():
            return from_parquet(data.files, columns=columns, indices=indices, cache_bytes=cache_bytes)
        data = data.files
    if not isinstance(data, (str, os.PathLike, list, tuple)):
        raise PlanError(f"from_arrow takes a pyarrow table, a data set or Arrow files, got {type(data).__name__}")
    paths = _files(data, "from_arrow", storage_options, (".arrow", ".feather", ".ipc"))
    return Pipeline(ArrowSource(paths, names, indices, cache_bytes, storage_options))


def from_csv(
    files: Paths,
    *,
    columns: Sequence[str] | None = None,
    types: Mapping[str, Any] | None = None,
    names: Sequence[str] | None = None,
    delimiter: str = ",",
    indices: Iterable[int] | None = None,
    index: Where = None,
    on_error: OnError = "raise",
    storage_options: Options = None,
) -> Pipeline[Any]:
    """Records of CSV files as dicts with typed values. Needs pyarrow: ``pip install "penstock[parquet]"``.

    Types are worked out from the first megabyte of the first file, and hold for all files; ``types`` says them, as
    ``{"label": "int32", "id": "string"}``. Values are as those of `from_parquet`. ``columns`` are the ones to read,
    ``names`` the columns of files without a header. Plain files are indexed, so any record can be read alone.
    Compressed files (``.gz``, ``.zst``) are streams of one shard per file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with open(f"{folder}/train.csv", "w") as file:
    ...         file.write("x,label\\n0.5,cat\\n1.5,dog\\n") and None
    ...     next(iter(from_csv(folder, types={"x": "float32"}).batch(2)))
    {'x': array([0.5, 1.5], dtype=float32), 'label': ['cat', 'dog']}
    """
    from penstock.sources.csv import CsvSource, CsvStream, Dialect

    suffixes = (".csv", ".tsv")
    packed = tuple(f"{suffix}{more}" for suffix in suffixes for more in (".gz", ".zst"))
    paths = _files(files, "from_csv", storage_options, (*suffixes, *packed))
    dialect = Dialect(delimiter, _names(names, "from_csv"), _names(columns, "from_csv"), types or {})
    if not _is_stream(paths, "from_csv"):
        return Pipeline(CsvSource(paths, dialect, indices, index, on_error, storage_options))
    _no_stream(indices=indices, on_error=None if on_error == "raise" else on_error)
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

    found = _files(paths, "from_npy", storage_options, (".npy", ".npz"))
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
    shuffle, write data sets without chunks and compression, or with chunks of one row.

    >>> import tempfile, h5py
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with h5py.File(f"{folder}/train.h5", "w") as file:
    ...         file["x"], file["label"] = [[1, 2], [3, 4], [5, 6]], ["a", "b", "c"]
    ...     next(iter(from_hdf5(folder).batch(2)))
    {'label': ['a', 'b'], 'x': array([[1, 2],
           [3, 4]])}
    """
    from penstock.sources.hdf5 import Hdf5Source

    paths = _files(files, "from_hdf5", storage_options, (".h5", ".hdf5", ".he5", ".hdf"))
    return Pipeline(Hdf5Source(paths, fields, indices, storage_options))


def from_lmdb(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    keys: Iterable[bytes | str] | None = None,
    decode: bool | None = None,
    indices: Iterable[int] | None = None,
    index: Where = None,
    on_error: OnError = "raise",
) -> Pipeline[Any]:
    """Entries of an LMDB database: ``{"key": b"...", "value": b"..."}``. Needs ``pip install "penstock[lmdb]"``.

    Without ``keys`` all entries come in the order of the database; they are listed once, and the list is kept as
    `from_tar` keeps an index. A database that `Pipeline.write` made gives back the samples that were written;
    ``decode=False`` gives its entries. Values are never unpickled: do that in ``map()`` if you trust them.

    >>> import tempfile, lmdb
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with lmdb.open(folder) as database, database.begin(write=True) as transaction:
    ...         transaction.put(b"cat", b"1") and transaction.put(b"dog", b"2")
    ...     list(from_lmdb(folder))
    True
    [{'key': b'cat', 'value': b'1'}, {'key': b'dog', 'value': b'2'}]
    """
    from penstock.sources.lmdb import LmdbSource

    paths = [os.fspath(one) for one in ([path] if isinstance(path, (str, os.PathLike)) else path)]
    return Pipeline(LmdbSource(paths, keys, decode, indices, index, on_error))


def _names(columns: Any, what: str) -> list[str] | None:
    if columns is None:
        return None
    if isinstance(columns, str) or not all(isinstance(one, str) for one in columns):
        raise PlanError(f"{what}(columns=) takes a list of names, got {columns!r}")
    return list(columns)


def _no_stream(**given: Any) -> None:
    """Refuse arguments that need random access."""
    for name, value in given.items():
        if value is not None:
            raise PlanError(
                f"{name}= needs files that can be read at any position, and these are read as a stream, forward; "
                "decompress them, or use take(), skip() and filter()"
            )
