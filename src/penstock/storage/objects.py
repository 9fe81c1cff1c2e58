"""Object stores and HTTP, by obstore: ``s3 gs az http https``.

Endpoint and credentials come from the usual variables of the environment (``AWS_ENDPOINT_URL``,
``AWS_ALLOW_HTTP``, ``GOOGLE_APPLICATION_CREDENTIALS``, ``AZURE_STORAGE_ACCOUNT_NAME``, ...) and from
``storage_options``. Clients, and how long they wait, are in `clients`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from penstock.errors import PenstockError, PlanError, ReadError
from penstock.storage.clients import Client, client_of
from penstock.storage.paths import scheme_of
from penstock.storage.remote import RemoteFile
from penstock.storage.retry import Retries, first_line, split_options

T = TypeVar("T")

SCHEMES = frozenset({"s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "http", "https"})

_STATUS = re.compile(r"non-2xx status code: (\d+)")
#: statuses of a refusal that may pass
_BUSY = {408, 425, 429}
#: objects of a listing that are handled at a time
_CHUNK = 1000


class ObjectFile(RemoteFile):
    """See `files.File`."""

    __slots__ = ()

    @property
    def size(self) -> int:
        return int(self._told()["size"])

    @property
    def content(self) -> str:
        return _version(self._told())

    def _ask(self) -> Mapping[str, Any]:
        found: Mapping[str, Any]
        try:
            found = self._tried(lambda store, key: store.head(key), "its size")
        except (FileNotFoundError, PermissionError):
            if scheme_of(self.path) not in ("http", "https"):
                raise
            # Servers without HEAD, and addresses that are signed for GET, say so in these ways too.
            found = self._tried(lambda store, key: store.get(key, options={"range": (0, 1)}).meta, "its size")
        return found

    def read(self) -> bytes:
        return self._tried(lambda store, key: bytes(store.get(key).bytes()), "all of it")

    def _range(self, offset: int, length: int, where: str) -> bytes:
        meta, data = self._tried(lambda store, key: _ranged(store, key, offset, length), where)
        if self._found is not None and _differ(self._found, meta):
            raise ReadError(
                f"{self.path} has changed since it was opened: it was {_version(self._found)}, and is "
                f"{_version(meta)}; leave files alone while they are read, and make the pipeline again"
            )
        return data

    def _tried(self, call: Callable[[Any, str], T], what: str) -> T:
        client, key = _place(self.path, self._options)
        return _read(self._retries, client, lambda store: call(store, key), self.path, what)


def _version(meta: Mapping[str, Any]) -> str:
    return f"{meta['size']} bytes of {meta['e_tag'] or meta['last_modified']}"


def _differ(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two answers are about two versions. What a server leaves out of one of them is not compared."""
    if one["size"] != other["size"]:
        return True
    tags = [str(told["e_tag"] or "").removeprefix("W/") for told in (one, other)]
    times = [told["last_modified"].timestamp() for told in (one, other)]  # 0 if the server does not say it
    return tags[0] != tags[1] if all(tags) else all(times) and times[0] != times[1]


def _ranged(store: Any, key: str, offset: int, length: int) -> tuple[Mapping[str, Any], bytes]:
    """A part of an object, and what the store says of the object with it."""
    found = store.get(key, options={"range": (offset, offset + length)})
    return found.meta, bytes(found.bytes())


def _read(retries: Retries, client: Client, call: Callable[[Any], T], path: str, what: str) -> T:
    """``call(store)`` with retries; its failures as Python's own, with the URL."""
    try:
        return retries.run(_timed(client, call), _may_pass, f"{path}, {what}")
    except PenstockError:
        raise
    except Exception as exc:
        raise _translated(exc, path, what) from exc


def names_below(folder: str, options: Mapping[str, Any] | None) -> Iterator[str]:
    """The names of all objects below a folder, relative to it, as the store lists them."""

    def listing(store: Any, prefix: str) -> list[str]:
        sizes = {
            one["path"]: one["size"] for chunk in store.list(prefix or None, chunk_size=_CHUNK) for one in chunk
        }
        return _without_markers(sizes)

    return (name for name in _listed(folder, options, listing) if name)


def _without_markers(sizes: Mapping[str, int]) -> list[str]:
    """Names of objects, without the empty ones that some programs make to stand for a folder.

    >>> _without_markers({"a": 0, "a/b": 3, "c": 0})
    ['a/b', 'c']
    """
    if all(sizes.values()):
        return list(sizes)
    folders: set[str] = set()
    for name in sizes:
        while (name := name.rpartition("/")[0]) and name not in folders:
            folders.add(name)
    return [name for name, size in sizes.items() if size or name not in folders]


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
    client, prefix = _place(folder.rstrip("/"), options)
    retries = split_options(options)[0]
    found = _read(retries, client, lambda store: listing(store, prefix), folder, "its listing")
    skip = len(prefix) + 1 if prefix else 0
    return (name[skip:] for name in found)


# ---------------------------------------------------------------------- failures


def _may_pass(exc: Exception) -> bool:
    if isinstance(exc, PenstockError):
        return False
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
    return ReadError(f"{path}, {what}: {first_line(exc)}")


def _place(path: str, options: Mapping[str, Any] | None) -> tuple[Client, str]:
    """The client for a URL, and the key of the object there."""
    scheme = scheme_of(path)
    head, _, key = path[len(scheme) + 3 :].partition("/")
    root = f"{scheme}://{head}"
    if scheme in ("http", "https"):
        from urllib.parse import unquote

        if "?" in path or "#" in path or "//" in key or key.endswith("/"):
            root, key = path, ""  # what a key cannot say
        key = unquote(key)
    return client_of(root, options), key


def _timed(client: Client, call: Callable[[Any], T]) -> Callable[[int], T]:
    """`call` with the client's store, as `Retries.run` takes it."""
    silent = 0

    def attempt(tried: int) -> T:
        nonlocal silent
        wait_s = client.patience_s(silent)
        store = client.store(wait_s)
        began = time.monotonic()
        try:
            found = call(store)
        except Exception:
            silent += time.monotonic() - began >= wait_s
            raise
        client.took(time.monotonic() - began)
        return found

    return attempt
