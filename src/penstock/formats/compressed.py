"""Compressed files as forward streams: gzip by the standard library, Zstandard by it from Python 3.14 on.

What is decompressed is handed out piece by piece, so a small file that would grow to terabytes takes no more memory
than whoever reads it asks for. A file that is damaged or was cut short raises `ReadError` with its name.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from penstock import storage
from penstock.errors import ReadError, missing_extra

#: what a record of a compressed file may take, unless the user says otherwise
MOST_BYTES = 1 << 28

_SUFFIXES = {".gz": "gzip", ".tgz": "gzip", ".gzip": "gzip", ".zst": "zstd", ".tzst": "zstd", ".zstd": "zstd"}
#: the most memory that a frame may ask for is two to the power of this, as the `zstd` command has it
_ZSTD_WINDOW_LOG = 27


def compression(path: str) -> str:
    """How a file of this name is compressed: "gzip", "zstd", or "" for not at all.

    >>> compression("train-000.tar.gz"), compression("train-000.tar")
    ('gzip', '')
    """
    name = storage.without_query(path).lower()
    return next((kind for suffix, kind in _SUFFIXES.items() if name.endswith(suffix)), "")


@contextmanager
def decompressed(
    path: str, options: Mapping[str, Any] | None = None, kind: str | None = None
) -> Iterator[BinaryIO]:
    """The content of a file, read forward; `kind` is how it is compressed, by its name if that is not given."""
    kind = compression(path) if kind is None else kind
    damage: tuple[type[Exception], ...] = (EOFError, zlib.error, gzip.BadGzipFile)
    zstd = _zstd() if kind == "zstd" else None
    if zstd is not None:
        damage = (*damage, zstd.ZstdError)
    with storage.file(path, options).open() as opened:
        raw = opened if isinstance(opened, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, opened))
        try:
            if kind and not raw.peek(1):
                raise EOFError("it is empty")  # which gzip would take for nothing, compressed
            if kind == "gzip":
                with gzip.GzipFile(fileobj=raw, mode="rb") as stream:
                    yield cast(BinaryIO, stream)
            elif zstd is not None:
                options = {zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}
                with zstd.ZstdFile(raw, options=options) as stream:
                    yield stream
            else:
                yield raw
        except damage as exc:
            raise ReadError(f"{path}: its content cannot be decompressed: {exc}; the file is damaged") from exc


def _zstd() -> Any:
    """The module `compression.zstd`, or the package that brings it to older Pythons."""
    from importlib import import_module

    for name in ("compression.zstd", "backports.zstd"):
        try:
            return import_module(name)
        except ImportError:
            continue
    raise missing_extra("backports.zstd", "zstd", "reading .zst files")
