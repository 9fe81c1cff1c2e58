"""What sources of several indexed files have in common: which file has which sample, and reading them in any order.

A format gives `_opened`, which makes a `Shard` of a path. Shards are opened when they are first needed, once per
process, and no more than a bounded number stays open. Each shard says what its file was like when it was indexed
(`content`): a worker process that finds another content, and a read from a file that has changed since, raise
`ReadError`. What is pickled is the list of paths and counts; no open file crosses to another process.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock import storage
from penstock.checks import check_on_error
from penstock.errors import ReadError, Skip
from penstock.sources.chosen import ChosenSource, subset_of
from penstock.sources.source import Indices

#: threads that make indexes; they mostly wait for the disk or the network
_INDEXERS = 8
#: the user's ``storage_options=``
Options = Mapping[str, Any] | None


class Shard(ABC):
    """One file of a source: its records by number."""

    def __init__(self, path: str, options: Options = None) -> None:
        self.path = path
        self.file = storage.file(path, options)
        self.size = self.file.size
        #: what the file is like, and so was when its index was made
        self.content = self.file.content
        here = storage.local(path)
        self._here = None if here is None else os.path.abspath(here)
        self._status = self._now()

    def _now(self) -> tuple[int, int] | None:
        if self._here is None:
            return None
        found = os.stat(self._here)
        return found.st_size, found.st_mtime_ns

    def check(self) -> None:
        """Refuse to go on with a local file that has changed since it was opened."""
        now = self._now()
        if now != self._status:
            raise changed(self.path, self.content, storage.file(self.path).content)

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, numbers: Indices) -> Sequence[Any]:
        """The records with these numbers, in that order."""

    def name(self, number: int) -> str:
        """What the user calls a record within its file."""
        return str(number)


def files_label(verb: str, paths: Sequence[str]) -> str:
    """A source of files as `explain()` shows it.

    >>> files_label("from_tar", ["/data/a-0.tar", "/data/a-1.tar", "/data/a-2.tar"])
    'from_tar(a-0.tar and 2 more)'
    """
    first = os.path.basename(paths[0].rstrip("/")) or paths[0]
    shown = "".join(one if one.isprintable() else "?" for one in first)
    return f"{verb}({shown}{f' and {len(paths) - 1} more' if len(paths) > 1 else ''})"


def names_content(paths: Sequence[str]) -> str:
    """What tells one list of files from another: their names, and not the folders that they are in."""
    from hashlib import blake2b

    told = "\n".join(map(os.path.basename, paths))
    return f"files {blake2b(told.encode('utf-8', 'surrogateescape'), digest_size=8).hexdigest()}"


class ShardSource(ChosenSource):
    """Records of several files, one file after the other, each of which can be read at any position."""

    #: shards that are kept at the same time in one process; those of most formats hold an index and no descriptor
    most_open: ClassVar[int] = 8192

    def __init__(
        self,
        paths: Sequence[str],
        indices: Iterable[int] | None = None,
        on_error: Any = "raise",
        options: Options = None,
    ) -> None:
        self.paths = list(paths)
        self.options = options
        self.on_error = check_on_error(on_error, self.verb)
        self._lock = threading.RLock()
        self._shards: OrderedDict[int, Shard] = OrderedDict()
        #: the number of the first record of each shard, and of all; None until the shards have been indexed
        self._starts: NDArray[np.int64] | None = None
        self._contents: list[str] = []
        self._sizes: list[int] = []
        if indices is not None:
            self.subset = subset_of(int(self.starts[-1]), indices, self.verb)

    @abstractmethod
    def _opened(self, path: str) -> Shard:
        """The shard in a file; its index is made if there is none."""

    def _file_of(self, path: str) -> str:
        """The file whose change is looked for."""
        return path

    # ------------------------------------------------------------------ what it is

    @property
    def label(self) -> str:
        return files_label(self.verb, self.paths)

    @property
    def starts(self) -> NDArray[np.int64]:
        """The number of the first record of each shard, and of all. Indexes what has no index."""
        if self._starts is not None:
            return self._starts
        with self._lock:
            if self._starts is None:
                counts = self._index_all()
                self._starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
            return self._starts

    def _index_all(self) -> list[int]:
        """Open every shard once, several at a time."""
        known = [None] * len(self.paths)
        if len(self.paths) == 1:
            found = [self._summary(0)]
        else:
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(min(_INDEXERS, len(known))) as threads:
                found = list(threads.map(self._summary, range(len(known))))
        self._contents = [content for _, content, _ in found]
        self._sizes = [size for _, _, size in found]
        return [count for count, _, _ in found]

    def _summary(self, number: int) -> tuple[int, str, int]:
        shard = self._opened(self.paths[number])
        self._note(number, shard)
        if number < self.most_open:
            self._shards[number] = shard
        return len(shard), shard.content, shard.size

    def _note(self, number: int, shard: Shard) -> None:
        """A shard was opened for the first time. Several threads call it."""

    @property
    def whole_length(self) -> int:
        return int(self.starts[-1])

    @property
    def whole_content(self) -> str:
        """Names, sizes and counts of the files; not their times and folders, which a copy does not keep."""
        from hashlib import blake2b

        counts = np.diff(self.starts).tolist()
        told = "\n".join(
            f"{os.path.basename(path)} {size} {count}"
            for path, size, count in zip(self.paths, self._sizes, counts, strict=True)
        )
        files = f"files {blake2b(told.encode('utf-8', 'surrogateescape'), digest_size=8).hexdigest()}"
        return f"{files} {self.reading}".rstrip()

    @property
    def reading(self) -> str:
        """What else decides what a sample is: arguments of the source."""
        return ""

    def name(self, index: int) -> str:
        """File and record of a sample, as messages show it."""
        number = int(self.numbers(range(index, index + 1))[0])
        shard = int(np.searchsorted(self.starts, number, side="right")) - 1
        file = os.path.basename(self.paths[shard])
        try:
            return f"{file}/{self._shard(shard).name(number - int(self.starts[shard]))}"
        except (OSError, ValueError):
            return file  # it cannot be opened, which is what is to be reported

    # ------------------------------------------------------------------ reading

    def read(self, indices: Indices) -> Sequence[Any]:
        samples: Sequence[Any] = self._guarded(lambda: self._read(self.numbers(indices)))
        return samples

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """A record that cannot be read is left out if the user has said so; the program looks which one it is."""
        if self.on_error == "raise":
            return call()
        try:
            return call()
        except ReadError as exc:
            raise Skip(str(exc)) from exc

    def _read(self, indices: Indices) -> Sequence[Any]:
        runs = split_runs(self.starts, indices)
        if len(runs) == 1:
            number, within, _ = runs[0]
            return self._shard(number).read(within)
        out: list[Any] = [None] * len(indices)
        for number, within, places in runs:
            for place, sample in zip(places, self._shard(number).read(within), strict=True):
                out[place] = sample
        return out

    def _shard(self, number: int) -> Shard:
        found = self._shards.get(number)
        if found is not None:
            return found
        with self._lock:
            found = self._shards.get(number)
            if found is None:
                self.starts  # noqa: B018 - the content is known from here on
                path, before = self.paths[number], self._contents[number]
                now = storage.file(self._file_of(path), self.options).content
                if now != before:
                    raise changed(path, before, now)
                found = self._shards[number] = self._opened(path)
                if len(self._shards) > self.most_open:
                    self._shards.popitem(last=False)  # closed when the last reader has let go of it
            return found

    # ------------------------------------------------------------------ being sent to another process

    def __getstate__(self) -> dict[str, Any]:
        self.starts  # noqa: B018 - a worker gets the counts, and does not index
        return {**self.__dict__, "_lock": None, "_shards": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock(), _shards=OrderedDict())


def changed(path: str, before: str, after: str) -> ReadError:
    return ReadError(
        f"{path} has changed since it was indexed: it was {before}, and is {after}; leave files alone while they "
        "are read, and make the pipeline again"
    )


def split_runs(starts: NDArray[np.int64], indices: Indices) -> list[tuple[int, Indices, Any]]:
    """For each shard that has some of `indices`: its number, the numbers within it, and their places in `indices`.

    Numbers within a shard are in rising order where they were in none, so that files are read forward.

    >>> starts = np.array([0, 3, 5])
    >>> split_runs(starts, range(1, 3)), split_runs(starts, range(2, 4))
    ([(0, range(1, 3), range(0, 2))], [(0, range(2, 3), range(0, 1)), (1, range(0, 1), range(1, 2))])
    """
    if not len(indices):
        return []
    if len(starts) == 2:
        return [(0, indices, range(len(indices)))]
    if isinstance(indices, range):
        return _split_range(starts, indices)
    shards = np.searchsorted(starts, indices, side="right") - 1
    if len(indices) == 1 or (shards[0] == shards[-1] and np.all(shards == shards[0])):
        return [(int(shards[0]), indices - starts[shards[0]], range(len(indices)))]
    order = np.lexsort((indices, shards))
    bounds = np.flatnonzero(np.diff(shards[order])) + 1
    runs: list[tuple[int, Indices, Any]] = []
    for places in np.split(order, bounds):
        number = int(shards[places[0]])
        runs.append((number, indices[places] - starts[number], places.tolist()))
    return runs


def _split_range(starts: NDArray[np.int64], indices: range) -> list[tuple[int, Indices, Any]]:
    runs: list[tuple[int, Indices, Any]] = []
    at, stop = indices.start, indices.stop
    # The method and `item` take a third of the time of the function and of an index.
    number = int(starts.searchsorted(at, side="right")) - 1
    first, end = starts.item(number), starts.item(number + 1)
    if stop <= end:
        return [(number, range(at - first, stop - first), range(stop - at))]
    while at < stop:
        first, end = starts.item(number), min(starts.item(number + 1), stop)
        if end > at:
            runs.append((number, range(at - first, end - first), range(at - indices.start, end - indices.start)))
        at, number = max(at, end), number + 1
    return runs
