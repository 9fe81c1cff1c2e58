"""Every other scheme, by fsspec: ``hf://``, ``sftp://``, ``zip://a.csv::s3://...``, and what else it knows.

Reads are retried as those of object stores are. The file system decides how long a single try may take:
`attempt_s` has no effect here, and `total_s` is compared between tries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, TypeVar

from penstock.errors import PlanError, ReadError, missing_extra
from penstock.storage.paths import scheme_of
from penstock.storage.retry import Retries, first_line, split_options
from penstock.storage.stream import forward

__all__ = ["SystemFile", "folders_in", "names_below"]

T = TypeVar("T")

#: failures that stay
_FINAL = (
    *(FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError),
    *(AttributeError, ImportError, NotImplementedError, TypeError, ValueError),
)
#: what file systems call the version of a file
_VERSIONS = ("ETag", "etag", "e_tag", "LastModified", "last_modified", "mtime", "created", "checksum")


class SystemFile:
    """See `files.File`."""

    __slots__ = ("_info", "_options", "_retries", "path")

    def __init__(self, path: str, options: Mapping[str, Any] | None) -> None:
        self.path = path
        self._options = options
        self._retries: Retries = split_options(options)[0]
        self._info: Mapping[str, Any] | None = None

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return type(self), (self.path, self._options)

    def __repr__(self) -> str:
        return f"<file {self.path}>"

    @property
    def size(self) -> int:
        size = self._told().get("size")
        if size is None:
            raise ReadError(f"{self.path}: its file system does not say how large it is")
        return int(size)

    @property
    def content(self) -> str:
        told = self._told()
        return f"{told.get('size')} bytes of {next((told[key] for key in _VERSIONS if told.get(key)), '')}"

    def _told(self) -> Mapping[str, Any]:
        if self._info is None:
            system, name = _place(self.path, self._options)
            found: Mapping[str, Any] = self._tried(lambda: dict(system.info(name)), "its size")
            self._info = found
        return self._info

    def read(self) -> bytes:
        system, name = _place(self.path, self._options)
        return self._tried(lambda: bytes(system.cat_file(name)), "all of it")

    def read_at(self, offset: int, length: int) -> bytes:
        if length == 0:
            return b""
        system, name = _place(self.path, self._options)
        data: bytes = self._tried(
            lambda: bytes(system.cat_file(name, start=offset, end=offset + length)),
            f"{length} bytes at position {offset}",
        )
        if len(data) != length:
            raise ReadError(
                f"{self.path}: {length} bytes at position {offset} were asked for, and it ends at "
                f"{offset + len(data)}"
            )
        return data

    def read_many(self, offsets: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        return [self.read_at(offset, length) for offset, length in zip(offsets, lengths, strict=True)]

    def open(self) -> BinaryIO:
        return forward(self)

    def _tried(self, call: Callable[[], T], what: str) -> T:
        try:
            return self._retries.run(lambda tried: call(), _may_pass, f"{self.path}, {what}")
        except FileNotFoundError as exc:
            raise FileNotFoundError(f"{self.path}: no such file") from exc


def names_below(folder: str, options: Mapping[str, Any] | None) -> Iterator[str]:
    """The names of all files below a folder, relative to it."""
    system, root = _place(folder, options)
    found: list[str] = split_options(options)[0].run(
        lambda tried: system.find(root), _may_pass, f"{folder}, its listing"
    )
    start = root.rstrip("/") + "/"
    return (name.removeprefix(start) for name in found if name.startswith(start))


def folders_in(folder: str, options: Mapping[str, Any] | None) -> list[str]:
    """The names of the folders right below a folder, but hidden ones."""
    system, root = _place(folder, options)
    retries = split_options(options)[0]
    found: list[Any] = retries.run(lambda tried: system.ls(root, detail=True), _may_pass, f"{folder}, its listing")
    names = [one["name"].rstrip("/").rpartition("/")[2] for one in found if one["type"] == "directory"]
    return [name for name in names if not name.startswith(".")]


def _may_pass(exc: Exception) -> bool:
    return not isinstance(exc, _FINAL)


def _place(path: str, options: Mapping[str, Any] | None) -> tuple[Any, str]:
    """The file system of a URL, and the name there. fsspec keeps one for each process."""
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise missing_extra("fsspec", "fsspec", f"reading {scheme_of(path)}:// URLs") from None
    try:
        system, name = url_to_fs(path, **split_options(options)[1])
    except (ValueError, ImportError) as exc:
        raise PlanError(f"{path!r}: {first_line(exc)}") from exc
    return system, name
