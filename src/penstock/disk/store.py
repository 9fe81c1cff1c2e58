"""A store of samples in a folder, shared by threads, processes and runs.

What may be relied on:

* `get` gives what `put` was given under that number, in this process or any other, or nothing: a record that is
  damaged or unfinished is nothing, and is made again.
* `put` never fails for want of a disk: if a record cannot be written, the sample is passed on, and one warning says
  why.
* No more than `max_bytes` are on disk, and beyond it at most one segment for each other writer.
* A process keeps 12 bytes in memory for each sample of the source.

It is pickled as its arguments. Files are opened when it is first used, and never shared with a forked process.
"""

from __future__ import annotations

import os
import sys
import warnings
from array import array
from collections import OrderedDict
from threading import Lock
from time import monotonic, time_ns
from typing import Any

import numpy as np

from penstock import system
from penstock.disk.folder import content, in_use, make_room, prepare, segments
from penstock.disk.record import packed, samples_in
from penstock.disk.segment import LOCKS, OpenFile, Writer, scan
from penstock.errors import NotCarried, PlanError
from penstock.provenance import Place

#: a segment is full from here on
SEGMENT_BYTES = 64 << 20
#: with `max_bytes`, so many segments at least
_SEGMENTS = 16
_SMALLEST = 1 << 16
#: files that are kept open
_OPEN_FILES = 64
#: how long nothing is written after a disk was full
_PAUSE_S = 60.0
#: folders that were changed in the last second are listed again
_TICK_NS = 1_000_000_000
#: where a record is: the number of its segment, and its offset in units of 64 bytes
_SHIFT, _UNIT = 40, 64
_MASK = (1 << _SHIFT) - 1


class _Segment:
    """What is known of a segment."""

    __slots__ = ("full", "own", "path", "scanned", "size")

    def __init__(self, path: str, own: bool = False) -> None:
        self.path = path
        #: up to here its records are known
        self.scanned = self.size = 0
        #: no more records will come
        self.full = False
        #: this process writes it
        self.own = own


class _State:
    """What a store has open in one process."""

    def __init__(self, folder: str, size: int) -> None:
        self.pid = system.process.pid
        self.segments: list[_Segment] = []
        self.by_path: dict[str, int] = {}
        self.where = array("q", [-1]) * size
        self.length = array("I", [0]) * size
        #: other places of a record, by its number
        self.others: dict[int, list[tuple[int, int]]] = {}
        self.files: OrderedDict[int, OpenFile] = OrderedDict()
        self.writer: tuple[int, Writer] | None = None
        #: bytes of all keys when that was last looked at, and what was written here since
        self.total = 0
        #: when the folder had last changed when it was listed
        self.listed = -1
        self.paused_until = 0.0
        self._in_use = in_use(folder)

    def __del__(self) -> None:
        if getattr(self, "_in_use", -1) >= 0:
            os.close(self._in_use)


class DiskStore:
    """Samples by their number in the source, in a sub-folder of `path` that is named by a key."""

    def __init__(self, path: str, max_bytes: int | None, label: str) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.label = label
        self.key = ""
        self.size = 0
        self.hits = self.misses = self.evicted = self.bytes = 0
        self._lock = Lock()
        self._state: _State | None = None
        self._warned = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _located, (self.path, self.max_bytes, self.label, self.key, self.size)

    @property
    def folder(self) -> str:
        """Where the samples are."""
        return os.path.join(self.path, self.key)

    def locate(self, key: str, size: int, about: dict[str, Any]) -> None:
        """Say what the samples depend on, and how many the source has. Makes the folder."""
        self.key, self.size = key, size
        if not hasattr(os, "pread") or not LOCKS:
            raise PlanError(
                f"{self.label}: this system ({sys.platform}) has no locks (flock) that end with their process; "
                "leave path= out to keep samples in memory"
            )
        try:
            prepare(self.folder, about)
        except OSError as exc:
            if not os.path.isdir(self.path):
                raise PlanError(
                    f"{self.label}: the folder cannot be made: {system.reason(exc.errno or 0)}; give one that can "
                    "be written to, or leave path= out to keep samples in memory"
                ) from exc

    def stats(self) -> dict[str, float]:
        """What was counted, for ``loader.stats()``."""
        return {"hits": self.hits, "misses": self.misses, "bytes": self.bytes, "evicted": self.evicted}

    def count(self, hits: int, misses: int, evicted: int, nbytes: int) -> None:
        """Add what a worker process has counted."""
        with self._lock:
            self.hits, self.misses, self.evicted = self.hits + hits, self.misses + misses, self.evicted + evicted
            self.bytes = max(self.bytes, nbytes)

    # ------------------------------------------------------------------ reading

    def get(self, number: int) -> tuple[list[Any], list[Place]] | None:
        """What was made of sample `number`, with read-only arrays; None if it is not here."""
        state = self._opened()
        while (at := state.where[number]) >= 0:
            record = self._record(state, at, state.length[number] * _UNIT)
            found = None if record is None else samples_in(record, number)
            if found is not None:
                with self._lock:
                    self.hits += 1
                return found[0], _places(found[1], len(found[0]))
            self._drop(state, number, at)
        return None

    def _record(self, state: _State, at: int, length: int) -> memoryview | None:
        try:
            return self._file(state, at >> _SHIFT).read((at & _MASK) * _UNIT, length)
        except (OSError, ValueError):
            return None

    def _file(self, state: _State, segment: int) -> OpenFile:
        with self._lock:
            file = state.files.get(segment)
            if file is None:
                file = state.files[segment] = OpenFile(state.segments[segment].path)
                if len(state.files) > _OPEN_FILES:
                    state.files.popitem(last=False)
            else:
                state.files.move_to_end(segment)
            return file

    def _drop(self, state: _State, number: int, at: int) -> None:
        """A record is damaged: another one takes its place, if there is one."""
        with self._lock:
            if state.where[number] != at:
                return
            others = state.others.pop(number, [])
            state.where[number], state.length[number] = others.pop() if others else (-1, 0)
            if others:
                state.others[number] = others

    # ------------------------------------------------------------------ finding what others have written

    def refresh(self) -> bool:
        """Look for new records of other processes; whether there were any."""
        state = self._opened()
        with self._lock:
            return self._refresh(state)

    def _refresh(self, state: _State) -> bool:
        found = False
        for number in self._growing(state):
            segment = state.segments[number]
            try:
                segment.size = os.stat(segment.path).st_size
                if segment.own or segment.size <= segment.scanned:
                    continue
                # Not kept open: a file that is read from stays open by that.
                table, segment.scanned, segment.full = scan(OpenFile(segment.path), segment.scanned)
            except OSError:
                continue
            found = self._note(state, number, table) or found
        self.bytes = sum(segment.size for segment in state.segments)
        return found

    def _growing(self, state: _State) -> list[int]:
        """The segments that may have new records. The folder is listed only if that may show new ones."""
        try:
            changed = os.stat(self.folder).st_mtime_ns
        except OSError:
            return []
        # A change within a tick of the file system's clock may leave the time as it is.
        if changed != state.listed or time_ns() - changed < _TICK_NS:
            state.listed = changed
            for path, _ in segments(self.folder):
                if path not in state.by_path:
                    self._known(state, _Segment(path))
        return [number for number, segment in enumerate(state.segments) if not segment.full]

    def _known(self, state: _State, segment: _Segment) -> int:
        number = state.by_path[segment.path] = len(state.segments)
        state.segments.append(segment)
        return number

    def _note(self, state: _State, segment: int, table: Any) -> bool:
        table = table[(table[:, 0] >= 0) & (table[:, 0] < self.size)]
        if not len(table):
            return False
        numbers, lengths = table[:, 0], table[:, 2] // _UNIT
        packs = (segment << _SHIFT) | (table[:, 1] // _UNIT)
        where = np.frombuffer(state.where, np.int64)
        known = where[numbers] >= 0
        for number, at, length in zip(numbers[known], packs[known], lengths[known], strict=True):
            state.others.setdefault(int(number), []).append((int(at), int(length)))
        fresh = ~known
        where[numbers[fresh]] = packs[fresh]
        np.frombuffer(state.length, np.uint32)[numbers[fresh]] = lengths[fresh]
        return bool(fresh.any())

    def _opened(self) -> _State:
        state = self._state
        if state is None or state.pid != system.process.pid:
            if state is not None:
                self._lock = Lock()  # of the process that this one was forked from
            with self._lock:
                state = self._state
                if state is None or state.pid != system.process.pid:
                    state = _State(self.folder, self.size)
                    self._refresh(state)
                    self._state = state
        return state

    # ------------------------------------------------------------------ writing

    def put(self, number: int, samples: list[Any], places: list[Place]) -> list[Any]:
        """Keep what was made of sample `number`; what to pass on in its place: the same as `get` will give.

        Raises NotCarried for what cannot be kept in a file.
        """
        try:
            record = packed(number, samples, _ways(places))
            found = samples_in(memoryview(record).toreadonly(), number)
            if found is None:
                raise NotCarried(": it does not come back as it was")
        except NotCarried as exc:
            kind = type(samples[0]) if len(samples) == 1 else list
            why = str(exc).removeprefix("samples[1]").replace("sent over the network", "kept in a file")
            raise NotCarried(
                f"{self.label} cannot keep a sample of type {kind.__module__}.{kind.__qualname__}{why}; "
                "make it plain data before the cache, or keep it in memory: cache() without path= takes anything"
            ) from None
        state = self._opened()
        with self._lock:
            self.misses += 1
            if monotonic() >= state.paused_until:
                try:
                    self._write(state, number, record)
                except OSError as exc:
                    state.writer = None
                    state.paused_until = monotonic() + _PAUSE_S
                    self._warn(exc)
        return found[0]

    def _write(self, state: _State, number: int, record: bytearray) -> None:
        size = len(record)
        writer = self._writer(state, size)
        if writer is None:
            return
        segment, file = writer
        offset = file.append(record, number)
        state.where[number] = (segment << _SHIFT) | (offset // _UNIT)
        state.length[number] = size // _UNIT
        state.total += size
        self.bytes += size
        if file.end >= self._segment_bytes():
            file.seal()
            state.writer = None

    def _segment_bytes(self) -> int:
        if self.max_bytes is None:
            return SEGMENT_BYTES
        return min(SEGMENT_BYTES, max(self.max_bytes // _SEGMENTS, _SMALLEST))

    def _writer(self, state: _State, size: int) -> tuple[int, Writer] | None:
        """The segment to append a record to; None if there is no room for it."""
        fresh = state.writer is None
        if fresh:
            self._refresh(state)
            state.total = content(self.path) if self.max_bytes is not None else 0
        if self.max_bytes is not None and state.total + size > self.max_bytes:
            if size > self.max_bytes:
                return None
            if not fresh:
                state.total = content(self.path)
            lacking = state.total + size - self.max_bytes
            if lacking > 0:
                freed = make_room(self.path, self.folder, lacking)
                self.evicted += freed
                state.total -= freed
                if freed < lacking:
                    state.paused_until = monotonic() + _PAUSE_S
                    return None
        if state.writer is None:
            state.writer = self._adopted(state) or self._created(state)
        return state.writer

    def _adopted(self, state: _State) -> tuple[int, Writer] | None:
        most = self._segment_bytes()
        for number, segment in enumerate(state.segments):
            if not segment.full and not segment.own and (writer := Writer.adopt(segment.path, most)) is not None:
                segment.own = True
                self._refresh_one(state, number, writer)
                return number, writer
        return None

    def _refresh_one(self, state: _State, number: int, writer: Writer) -> None:
        """Note what was appended to a segment between the last look and its adoption."""
        segment = state.segments[number]
        if writer.end > segment.scanned:
            table, segment.scanned, _ = scan(OpenFile(segment.path), segment.scanned)
            self._note(state, number, table)

    def _created(self, state: _State) -> tuple[int, Writer]:
        os.makedirs(self.folder, exist_ok=True)
        writer = Writer.create(self.folder)
        return self._known(state, _Segment(writer.path, own=True)), writer

    def _warn(self, exc: OSError) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{self.label}: samples cannot be kept in {self.folder}: {exc.strerror or exc}; what is not kept "
                "is made again every time",
                RuntimeWarning,
                stacklevel=2,
            )


def _located(path: str, max_bytes: int | None, label: str, key: str, size: int) -> DiskStore:
    store = DiskStore(path, max_bytes, label)
    store.key, store.size = key, size
    return store


def _ways(places: list[Place]) -> list[list[int]] | None:
    """By which outputs of ops that make several each sample came from the one of the source; None if it is that."""
    if len(places) == 1 and not isinstance(places[0], tuple):
        return None
    return [[int(step) for step in place[1:]] if isinstance(place, tuple) else [] for place in places]


def _places(ways: list[list[int]] | None, count: int) -> list[Place]:
    if ways is None:
        return [0] * count
    return [(0, *way) if way else 0 for way in ways]
