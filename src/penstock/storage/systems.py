"""Every other scheme, by fsspec: ``hf://``, ``sftp://``, ``zip://a.csv::s3://...``, and what else it knows.

Reads are retried as those of object stores are. The file system decides how long a single try may take:
`attempt_s` has no effect here, and `total_s` is compared between tries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from penstock.errors import PlanError, ReadError, missing_extra
from penstock.storage.paths import scheme_of
from penstock.storage.remote import RemoteFile
from penstock.storage.retry import first_line, split_options

T = TypeVar("T")

#: failures that stay
_FINAL = (
    *(FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError),
    *(AttributeError, ImportError, NotImplementedError, TypeError, ValueError),
)
#: what file systems call the version of a file
_VERSIONS = ("ETag", "etag", "e_tag", "LastModified", "last_modified", "mtime", "created", "checksum")


class SystemFile(RemoteFile):
    """See `files.File`."""

    __slots__ = ()

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

    def _ask(self) -> Mapping[str, Any]:
        system, name = _place(self.path, self._options)
        return self._tried(lambda: dict(system.info(name)), "its size")

    def read(self) -> bytes:
        system, name = _place(self.path, self._options)
        return self._tried(lambda: bytes(system.cat_file(name)), "all of it")

    def _range(self, offset: int, length: int, where: str) -> bytes:
        system, name = _place(self.path, self._options)
        return self._tried(lambda: bytes(system.cat_file(name, start=offset, end=offset + length)), where)

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
