"""`Pipeline.write`: run an epoch of a pipeline into files, and go on after a kill where the last shard ended.

Guarantees: a shard has its name only when it is complete and on the disk. A state beside the shards holds the
loader's state after the last of them. The same call made again goes on from there, and ends with the same files as
a run that nothing disturbed. Two processes never write to one folder at the same time.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol

from penstock import storage
from penstock.bar import Bar
from penstock.core.budget import parse_bytes
from penstock.errors import LengthUnknown, PenstockError, PlanError, StateMismatch
from penstock.lazy import named
from penstock.plan.lengths import check_ends
from penstock.program.failure import take_note
from penstock.sources.source import Flow
from penstock.writers.writer import State, Writer

#: where each writer is
FORMATS = {
    "jsonl": "penstock.writers.jsonl:JsonlWriter",
    "lmdb": "penstock.writers.lmdb:LmdbWriter",
    "parquet": "penstock.writers.parquet:ParquetWriter",
    "tar": "penstock.writers.tar:TarWriter",
}


@dataclass(frozen=True, slots=True)
class Written:
    """What a call of `write` has left: the folder, and how many samples and shards are in it."""

    path: str
    samples: int
    shards: int
    #: samples that this call and those before it left out, since a function raised or skipped
    skipped: int = 0


class Runnable(Flow, Protocol):
    """A pipeline, as far as a writer knows one."""

    @property
    def loader(self) -> Callable[..., Any]: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class _Size:
    """When a shard is full."""

    samples: int | None
    bytes: int | None

    @classmethod
    def of(cls, size: Any) -> _Size:
        if isinstance(size, int) and not isinstance(size, bool) and size >= 1:
            return cls(size, None)
        if isinstance(size, str) and re.search(r"[bB]\s*$", size):
            return cls(None, parse_bytes(size, "write(shard_size=)"))
        raise PlanError(f"write(shard_size=) takes a number of samples, or a size such as '256MB', got {size!r}")

    def is_full(self, samples: int, size: int) -> bool:
        return samples >= self.samples if self.samples is not None else size >= (self.bytes or 0)


#: a disk, a quota or a limit on the size of files is exhausted
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write(
    pipeline: Runnable,
    path: str | os.PathLike[str],
    format: str,
    shard_size: int | str,
    seed: int,
    overwrite: bool,
    progress: bool,
    loader: dict[str, Any],
) -> Written:
    """Write epoch 0 of `pipeline` to the folder `path`; see `Pipeline.write`."""
    if format not in FORMATS:
        raise PlanError(f"write(format=) takes {', '.join(map(repr, FORMATS))}, got {format!r}")
    size = _Size.of(shard_size)
    check_ends(pipeline, "write")
    if storage.local(os.fspath(path)) is None:
        raise PlanError(
            f"write: {path!r} is a URL, and write() makes local files; write to a folder and upload that"
        )
    folder = os.path.abspath(os.fspath(path))
    writer: Writer = named(FORMATS[format])(folder)
    try:
        with _alone(folder):
            if overwrite:
                writer.clear()
            return _Run(pipeline, writer, size, seed, str(shard_size), loader).run(progress)
    except OSError as exc:
        if exc.errno in _NO_ROOM:
            take_note(exc, f"while writing to {folder!r}; make room and call write() again: it goes on from there")
        raise
    finally:
        writer.abort()


class _Run:
    """One call of `write`."""

    def __init__(
        self, pipeline: Runnable, writer: Writer, size: _Size, seed: int, said: str, options: dict[str, Any]
    ) -> None:
        self.pipeline = pipeline
        self.writer = writer
        self.size = size
        self.seed = seed
        self.said = said
        self.options = options
        self.shards = self.samples = self.skipped = 0
        self.lost_before = 0

    def run(self, progress: bool) -> Written:
        state = self._earlier()
        if state is not None and state["done"]:
            with self.pipeline.loader(seed=self.seed, epochs=1, **self.options) as loader:
                self._check_pipeline(state, loader.state_dict())
            return self._result()
        saved = None if state is None else state["loader"]
        with self.pipeline.loader(seed=self.seed, epochs=1, state=saved, **self.options) as loader:
            if state is None:
                # From here on the folder is known to be ours, whatever a kill leaves in it.
                self._save(loader, loader.state_dict(), False, -1)
            bar = _Progress(self, self._total(), progress)
            try:
                self._epoch(loader, bar)
            finally:
                bar.finish()
        return self._result()

    def _epoch(self, loader: Any, bar: _Progress) -> None:
        """Write what is left of the epoch."""
        count = size = 0
        for sample in loader:
            if count and self.size.is_full(count, size):
                # The sample in hand is the first of the next shard, so this is no state of an epoch that has ended.
                self._commit(loader, loader.state_dict(behind=1), done=False)
                count = size = 0
            size += self.writer.add(self.samples, sample)
            count += 1
            self.samples += 1
            bar.step()
        self.shards += count > 0
        self._save(loader, loader.state_dict(), True, self.shards - 1)

    def _commit(self, loader: Any, state: State, done: bool) -> None:
        self.shards += 1
        self._save(loader, state, done, self.shards - 1)

    def _save(self, loader: Any, state: State, done: bool, shard: int) -> None:
        self.skipped = self.lost_before + len(loader.errors())
        self.writer.commit(
            shard,
            {
                "version": 1,
                "format": self.writer.format,
                "shard_size": self.said,
                "seed": self.seed,
                "samples": self.samples,
                "shards": self.shards,
                "skipped": self.skipped,
                "done": done,
                "loader": state,
            },
        )

    # ------------------------------------------------------------------ what is there already

    def _earlier(self) -> State | None:
        """The state of an earlier run that this one goes on from."""
        state = self.writer.state()
        folder = self.writer.folder
        if state is None:
            found = self.writer.found()
            if found:
                raise PlanError(
                    f"write: {folder!r} has {found!r} in it, which this did not write; give an empty folder, or "
                    "overwrite=True to remove it"
                )
            return None
        now = {"format": self.writer.format, "shard_size": self.said, "seed": self.seed}
        for name, value in now.items():
            if state.get(name, value) != value:
                raise PlanError(
                    f"write: {folder!r} was begun with {name}={state[name]!r}, and this says {value!r}; use the "
                    "same, or overwrite=True to begin anew"
                )
        self.samples, self.shards = state.get("samples", 0), state.get("shards", 0)
        self.skipped = self.lost_before = state.get("skipped", 0)
        return state

    def _check_pipeline(self, state: State, now: State) -> None:
        """Refuse to call another pipeline's files done."""
        before = state.get("loader", {}).get("pipeline")
        if before is not None and before != now.get("pipeline"):
            raise StateMismatch(
                f"{self.writer.folder!r} has the samples of another pipeline, {before[0]}; use overwrite=True to "
                "write this one there"
            )

    def _total(self) -> int | None:
        try:
            return len(self.pipeline)
        except (LengthUnknown, TypeError):
            return None

    def _result(self) -> Written:
        return Written(self.writer.folder, self.samples, self.shards, self.skipped)


class _Progress:
    """How far a run has come, on a terminal."""

    def __init__(self, run: _Run, total: int | None, shown: bool) -> None:
        self._run = run
        self._total = total
        self._first, self._began = run.samples, monotonic()
        self._bar = Bar(f"writing {run.writer.format}", shown)

    @property
    def _share(self) -> float | None:
        return self._run.samples / self._total if self._total else None

    def step(self) -> None:
        """A sample was written."""
        self._bar.show(self._share, self._told)

    def finish(self) -> None:
        """Leave the last line where it is."""
        self._bar.finish(self._share, self._told)

    def _told(self) -> str:
        run = self._run
        rate = (run.samples - self._first) / max(monotonic() - self._began, 1e-9)
        left = f", {(self._total - run.samples) / rate:,.0f} s left" if self._total and rate else ""
        return f"{run.samples:,} samples, {run.shards:,} shards, {rate:,.0f}/s{left}"


@contextmanager
def _alone(folder: str) -> Iterator[None]:
    """Hold the folder against other writers; the system lets go of it when this process ends in whatever way."""
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise PlanError(f"write: {folder!r} is a file; give a folder")
    os.makedirs(folder, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    held = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PenstockError(f"another process is writing to {folder!r}; wait for it, or end it") from None
        yield
    finally:
        os.close(held)
