"""from_lmdb: the entries of an LMDB database, opened by each process for itself, read-only and without locks.

Keys are listed once, in the order of the database, and kept in an index as those of tar archives are. A value is
read by its key. Databases that `Pipeline.write` made give back the sample trees that were written; nothing is
unpickled.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import storage
from penstock.errors import PlanError, ReadError, missing_extra
from penstock.formats.index import Where, index_of, packed
from penstock.formats.tree import TREE_KEY, TREE_MARK, from_msgpack
from penstock.sources.shards import Shard, ShardSource
from penstock.sources.source import Indices

KIND = "lmdb 1"
#: A database that stays in memory is read fastest with the kernel's readahead; of a larger one, read at random, it
#: would read ten times as much as is wanted.
_MEMORY = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 1 << 33

#: a database with more entries than this is not looked through for names of other databases
_MOST_NAMED = 64

_lock = threading.Lock()
#: open environments of this process: LMDB allows no file to be open twice in one
_open: dict[tuple[int, str], weakref.ref[_Environment]] = {}


class _Environment:
    """An open database. It is closed when nobody refers to it."""

    def __init__(self, path: str) -> None:
        try:
            import lmdb
        except ImportError:
            raise missing_extra("lmdb", "lmdb", "reading LMDB databases") from None
        try:
            self.env = lmdb.open(
                os.fsencode(path),
                readonly=True,
                lock=False,
                subdir=os.path.isdir(path),
                create=False,
                readahead=os.path.getsize(_data(path)) < _MEMORY // 2,
                max_readers=1024,
                max_dbs=_MOST_NAMED,
            )
        except lmdb.Error as exc:
            raise ReadError(f"{path}: {exc}") from exc
        self.error: type[Exception] = lmdb.Error
        pages = (self.env.info()["last_pgno"] + 1) * self.env.stat()["psize"]
        size = os.path.getsize(_data(path))
        if size < pages:
            self.env.close()  # reading behind the end of a mapped file would end the process
            raise ReadError(f"{path}: the database has {pages} bytes, and the file {size}: it was cut short")

    def __del__(self) -> None:
        env = getattr(self, "env", None)
        if env is not None:
            env.close()


def _environment(path: str) -> _Environment:
    key = os.getpid(), os.path.realpath(_data(path))
    with _lock:
        reference = _open.get(key)
        found = None if reference is None else reference()
        if found is None:
            found = _Environment(path)
            _open[key] = weakref.ref(found)
        return found


def _data(path: str) -> str:
    """The file that holds the data."""
    return os.path.join(path, "data.mdb") if os.path.isdir(path) else path


class _Shard(Shard):
    """One database."""

    def __init__(self, path: str, where: Where, keys: Sequence[bytes] | None, decode: bool | None) -> None:
        super().__init__(_data(path))
        self.folder = path
        self._used: tuple[int, _Environment] = os.getpid(), _environment(path)
        with self.environment.begin() as transaction:
            mark = transaction.get(TREE_KEY)
        if mark is not None and mark != TREE_MARK and decode is None:
            raise ReadError(f"{path}: writing it was not finished; run the pipeline's write() again, which goes on")
        self.tree = mark == TREE_MARK and decode is None
        #: whether the keys are those of the database, in its order
        self.in_order = keys is None
        if keys is not None:
            text, at = packed(list(keys))
        else:
            arrays = index_of(self.file, KIND, lambda _: self._listed(), where)
            text, at = arrays["keys"], arrays["key_at"]
        self.keys = text.data
        self.key_at: NDArray[np.int64] = at

    @property
    def environment(self) -> Any:
        """The database, opened in this process."""
        if self._used[0] != os.getpid():
            self._used = os.getpid(), _environment(self.folder)
        return self._used[1].env

    def _listed(self) -> dict[str, NDArray[Any]]:
        try:
            with self.environment.begin() as transaction, transaction.cursor() as cursor:
                keys = [key for key in cursor.iternext(values=False) if key != TREE_KEY]
        except self._used[1].error as exc:
            raise ReadError(f"{self.folder}: its keys cannot be listed: {exc}") from exc
        if len(keys) <= _MOST_NAMED and (named := [key for key in keys if self._is_named(key)]):
            shown = ", ".join(repr(key.decode("utf-8", "backslashreplace")) for key in named[:5])
            raise ReadError(
                f"{self.folder}: it holds named databases ({shown}), and from_lmdb reads only the main one; copy "
                "them into a database of their own"
            )
        text, at = packed(keys)
        return {"keys": text, "key_at": at}

    def _is_named(self, key: bytes) -> bool:
        """Whether a key of the main database is the name of another one, and its value no sample."""
        try:
            self.environment.open_db(key, create=False)
        except self._used[1].error:
            return False
        return True

    def __len__(self) -> int:
        return len(self.key_at) - 1

    def _key(self, number: int) -> bytes:
        return bytes(self.keys[int(self.key_at[number]) : int(self.key_at[number + 1])])

    def name(self, number: int) -> str:
        return self._key(number).decode("utf-8", "backslashreplace")

    def read(self, numbers: Indices) -> list[Any]:
        self.check()
        try:
            with self.environment.begin() as transaction, transaction.cursor() as cursor:
                found = self._in_order(cursor, numbers) or self._held(self._by_key(cursor, numbers))
        except self._used[1].error as exc:
            first = self._key(int(numbers[0]))
            raise ReadError(f"{self.folder}: the entries from {first!r} on cannot be read: {exc}") from exc
        return [self._restored(key, value) for key, value in found] if self.tree else found

    def _held(self, entries: Iterable[tuple[bytes, bytes]]) -> list[Any]:
        """The samples of these entries. A tree is restored later, once its entry is known to be the right one."""
        return list(entries) if self.tree else [{"key": key, "value": value} for key, value in entries]

    def _in_order(self, cursor: Any, numbers: Indices) -> list[Any]:
        """Entries that follow each other in the database: one search, no list of keys; nothing if they do not."""
        if not self.in_order or not isinstance(numbers, range) or len(numbers) < 2:
            return []
        if not cursor.set_key(self._key(numbers[0])):
            return []
        found = self._held(islice(cursor.iternext(), len(numbers)))
        return found if len(found) == len(numbers) and cursor.key() == self._key(numbers[-1]) else []

    def _by_key(self, cursor: Any, numbers: Indices) -> list[tuple[bytes, bytes]]:
        chosen = np.asarray(numbers, dtype=np.int64)
        starts, stops = self.key_at[chosen].tolist(), self.key_at[chosen + 1].tolist()
        keys = [bytes(self.keys[start:stop]) for start, stop in zip(starts, stops, strict=True)]
        found: list[tuple[bytes, bytes]] = cursor.getmulti(keys)  # which leaves out what it does not find
        if len(found) < len(keys):
            there = {key for key, _ in found}
            missing = next(key for key in keys if key not in there)
            raise ReadError(f"{self.folder}: there is no entry with the key {missing!r}")
        return found

    def _restored(self, key: bytes, value: bytes) -> Any:
        try:
            return from_msgpack(value)
        except ValueError as exc:
            raise ReadError(f"{self.folder}: the sample with the key {key!r} cannot be read: {exc}") from exc


class LmdbSource(ShardSource):
    """The entries of LMDB databases, in any order."""

    verb = "from_lmdb"
    most_open = 256  # each has a descriptor

    def __init__(
        self,
        paths: Sequence[str],
        keys: Iterable[bytes | str] | None = None,
        decode: bool | None = None,
        indices: Iterable[int] | None = None,
        where: Where = None,
        on_error: str = "raise",
    ) -> None:
        for path in paths:
            if storage.local(path) is None:
                raise PlanError(f"from_lmdb: {path} is remote, and LMDB reads local files only; copy it first")
            if not os.path.exists(_data(path)):
                raise PlanError(f"from_lmdb: {_data(path)!r}: no such file")
        if keys is not None and len(paths) > 1:
            raise PlanError(f"from_lmdb(keys=) takes one database, got {len(paths)}")
        self.keys = None if keys is None else [key.encode() if isinstance(key, str) else bytes(key) for key in keys]
        self.where = where
        self.decode = decode
        super().__init__(paths, indices, on_error)

    def _opened(self, path: str) -> _Shard:
        return _Shard(path, self.where, self.keys, self.decode)

    def _file_of(self, path: str) -> str:
        return _data(path)

    @property
    def reading(self) -> str:
        if self.keys is None:
            return ""
        from hashlib import blake2b

        return f"keys {blake2b(b'|'.join(self.keys), digest_size=8).hexdigest()}"
