"""Object stores and HTTP, by obstore: ``s3 gs az http https``.

Each process has one client per bucket or host, made when it is first needed. obstore sends its requests from
threads of its own, which a forked child does not have. So the child of a process that has used obstore gets an
error; without it, the child would hang.

Endpoint and credentials come from the usual variables of the environment (``AWS_ENDPOINT_URL``, ``AWS_ALLOW_HTTP``,
``GOOGLE_APPLICATION_CREDENTIALS``, ``AZURE_STORAGE_ACCOUNT_NAME``, ...) and from ``storage_options``.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, BinaryIO, TypeVar

from penstock import system
from penstock.errors import PenstockError, PlanError, ReadError, missing_extra
from penstock.storage.paths import scheme_of
from penstock.storage.retry import Retries, first_line, split_options
from penstock.storage.stream import forward

__all__ = ["SCHEMES", "ObjectFile", "folders_in", "forget_clients", "names_below"]

T = TypeVar("T")

SCHEMES = frozenset({"s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "http", "https"})

_STATUS = re.compile(r"non-2xx status code: (\d+)")
#: statuses of a refusal that may pass
_BUSY = {408, 425, 429}
#: objects of a listing that are handled at a time
_CHUNK = 1000


class ObjectFile:
    """See `files.File`."""

    __slots__ = ("_meta", "_options", "_retries", "path")

    def __init__(self, path: str, options: Mapping[str, Any] | None) -> None:
        self.path = path
        self._options = options
        self._retries: Retries = split_options(options)[0]
        self._meta: Mapping[str, Any] | None = None

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return type(self), (self.path, self._options)

    def __repr__(self) -> str:
        return f"<file {self.path}>"

    @property
    def size(self) -> int:
        return int(self._told()["size"])

    @property
    def content(self) -> str:
        told = self._told()
        return f"{told['size']} bytes of {told['e_tag'] or told['last_modified']}"

    def _told(self) -> Mapping[str, Any]:
        if self._meta is None:
            store, key = _place(self.path, self._options)
            self._meta = meta = self._tried(lambda: _head(store, key), "its size")
            return meta
        return self._meta

    def read(self) -> bytes:
        store, key = _place(self.path, self._options)
        return self._tried(lambda: bytes(store.get(key).bytes()), "all of it")

    def read_at(self, offset: int, length: int) -> bytes:
        if length == 0:
            return b""
        store, key = _place(self.path, self._options)
        data = self._tried(
            lambda: bytes(store.get_range(key, start=offset, length=length)), f"{length} bytes at position {offset}"
        )
        if len(data) != length:
            raise ReadError(
                f"{self.path}: {length} bytes at position {offset} were asked for, and it ends at "
                f"{offset + len(data)}"
            )
        return data

    def open(self) -> BinaryIO:
        return forward(self)

    def _tried(self, call: Callable[[], T], what: str) -> T:
        try:
            return self._retries.run(call, _may_pass, f"{self.path}, {what}")
        except ReadError:
            raise
        except Exception as exc:
            raise _translated(exc, self.path, what) from exc


def names_below(folder: str, options: Mapping[str, Any] | None) -> Iterator[str]:
    """The names of all objects below a folder, relative to it, as the store lists them."""

    def listing(store: Any, prefix: str) -> list[str]:
        return [one["path"] for chunk in store.list(prefix or None, chunk_size=_CHUNK) for one in chunk]

    return _listed(folder, options, listing)


def folders_in(folder: str, options: Mapping[str, Any] | None) -> list[str]:
    """The names of the folders right below a folder, but hidden ones."""

    def listing(store: Any, prefix: str) -> list[str]:
        return list(store.list_with_delimiter(prefix or None)["common_prefixes"])

    return [name for name in _listed(folder, options, listing) if not name.startswith(".")]


def _listed(
    folder: str, options: Mapping[str, Any] | None, listing: Callable[[Any, str], list[str]]
) -> Iterator[str]:
    """What `listing` finds below a folder, relative to it."""
    if scheme_of(folder) in ("http", "https"):
        raise PlanError(
            f"{folder!r}: HTTP cannot list a folder; give the names as a list, or with braces: {{000..099}}"
        )
    store, prefix = _place(folder.rstrip("/"), options)
    try:
        found = split_options(options)[0].run(lambda: listing(store, prefix), _may_pass, f"{folder}, its listing")
    except ReadError:
        raise
    except Exception as exc:
        raise _translated(exc, folder, "its listing") from exc
    skip = len(prefix) + 1 if prefix else 0
    return (name[skip:] for name in found)


def _head(store: Any, key: str) -> Mapping[str, Any]:
    return store.head(key)  # type: ignore[no-any-return]


# ---------------------------------------------------------------------- failures


def _may_pass(exc: Exception) -> bool:
    from obstore import exceptions

    if not isinstance(exc, exceptions.GenericError):
        return False
    found = _STATUS.search(str(exc))
    status = int(found[1]) if found else 0
    return not 400 <= status < 500 or status in _BUSY


def _translated(exc: Exception, path: str, what: str) -> Exception:
    """The same in Python's own classes, with the URL."""
    from obstore import exceptions

    if isinstance(exc, FileNotFoundError):
        return FileNotFoundError(f"{path}: no such object")
    if isinstance(exc, (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)):
        return PermissionError(f"{path}: the store refuses to give {what}: {first_line(exc)}")
    if isinstance(exc, exceptions.NotSupportedError):
        return ReadError(f"{path}: the server does not give {what}, but only whole files: {first_line(exc)}")
    found = _STATUS.search(str(exc))
    if found and found[1] == "416":
        return ReadError(f"{path}: {what} were asked for, and it ends before")
    if isinstance(exc, PenstockError):
        return exc
    return ReadError(f"{path}, {what}: {first_line(exc)}")


# ---------------------------------------------------------------------- clients

_lock = threading.Lock()
_clients: dict[Any, Any] = {}
#: clients of the process that this one was forked from: dropped, they could hang
_inherited: list[Any] = []


def _place(path: str, options: Mapping[str, Any] | None) -> tuple[Any, str]:
    """The client for a URL, and the key of the object there."""
    scheme = scheme_of(path)
    head, _, key = path[len(scheme) + 3 :].partition("/")
    root = f"{scheme}://{head}"
    if scheme in ("http", "https"):
        from urllib.parse import unquote

        if "?" in path or "#" in path or "//" in key or key.endswith("/"):
            root, key = path, ""  # what a key cannot say
        key = unquote(key)
    frozen = (root, repr(sorted((options or {}).items(), key=repr)))
    client = _clients.get(frozen)
    if client is None:
        with _lock:
            client = _clients.get(frozen)
            if client is None:
                client = _clients[frozen] = _client(root, options)
    return client, key


def _client(root: str, options: Mapping[str, Any] | None) -> Any:
    try:
        from obstore.store import HTTPStore, from_url
    except ImportError:
        raise missing_extra("obstore", "cloud", f"reading {root}") from None
    if _inherited:
        raise PenstockError(
            f"{root} cannot be read here: this process was forked from one that had read from an object store, and "
            "obstore does not work in such a child; start processes by 'spawn' or 'forkserver', as penstock does"
        )
    from datetime import timedelta

    retries, rest = split_options(options)
    client_options = {
        "timeout": timedelta(seconds=retries.total_s),
        "read_timeout": timedelta(seconds=retries.attempt_s),
        "connect_timeout": timedelta(seconds=retries.attempt_s),
        **rest.pop("client_options", {}),
    }
    # Tries are counted and named by us, so obstore makes one.
    once = {"max_retries": 0}
    try:
        if scheme_of(root) in ("http", "https"):
            # `from_url` would take some hosts for buckets, and ask for credentials.
            client_options.setdefault("allow_http", scheme_of(root) == "http")
            return HTTPStore(root, client_options=client_options, retry_config=once, **rest)
        return from_url(root, client_options=client_options, retry_config=once, **rest)
    except Exception as exc:
        raise PlanError(f"{root}: storage_options do not fit: {first_line(exc)}") from exc


def forget_clients() -> None:
    """Close all connections of this process; the next read makes new ones."""
    with _lock:
        _clients.clear()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    with suppress(RuntimeError):
        _inherited.extend(_clients.values())
    _clients.clear()


system.at_fork(after_in_child=_after_fork_in_child)
