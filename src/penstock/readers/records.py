"""The functions that make a pipeline of files of records: each of them a few lines over its source."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from penstock.errors import PlanError
from penstock.formats.compressed import MOST_BYTES
from penstock.pipeline import Pipeline
from penstock.readers.paths import absolute, files_of, is_stream, or_packed, refuse_stream

if TYPE_CHECKING:
    from penstock.errors import OnError
    from penstock.formats.index import Where
    from penstock.readers.paths import Options, Paths
    from penstock.sources.tar import Fields
    from penstock.sources.tfrecord import Features


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

    paths = files_of(shards, "from_tar", storage_options, (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst"))
    layout = Layout(fields, decode)
    if not is_stream(paths, "from_tar"):
        return Pipeline(TarSource(paths, layout, indices, index, on_error, storage_options))
    refuse_stream(indices, on_error)
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

    paths = files_of(files, what.verb, options, or_packed(*suffixes))
    if not is_stream(paths, what.verb):
        return Pipeline(LineSource(paths, what, indices, index, on_error, options))
    refuse_stream(indices, on_error)
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
    paths = files_of(files, "from_tfrecord", storage_options, ("",))
    examples = Examples(features, raw)
    if compression is None and not is_stream(paths, "from_tfrecord"):
        return Pipeline(RecordSource(paths, examples, check, indices, index, on_error, storage_options))
    refuse_stream(indices, on_error)
    return Pipeline(RecordStream(paths, examples, check, max_bytes, storage_options))


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

    paths = [absolute(os.fspath(one)) for one in ([path] if isinstance(path, (str, os.PathLike)) else path)]
    return Pipeline(LmdbSource(paths, keys, decode, indices, index, on_error))
