"""Atoms, and the functions of random pipelines: see `law_pipelines`. Worker processes import this file.

Every sample is a tuple of *atoms*. An atom is a number that names a sample of a source in one of its passes, and
the way from there: the sub-index of every op that made several of one. Whatever an op makes of samples, their atoms
are still in it, so a test knows exactly what was delivered. Exceptions name the atoms of the sample that failed.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np

import penstock as ps
from penstock.provenance import key_of
from penstock.sources.source import StreamSource

# ---------------------------------------------------------------------- atoms

#: sub-indices of an atom, three bits each; one more than the sub-index, so that a way has no zero
_DIGITS = 5


def atom(source: int, epoch: int, value: int) -> int:
    return ((epoch << 16) | (source << 8) | value) << (3 * _DIGITS)


def further(one: int, sub: int) -> int:
    """The atom of output `sub` that was made of `one`."""
    way = one & ((1 << 3 * _DIGITS) - 1)
    return (one - way) | (way << 3) | (sub + 1)


def ancestors(one: int) -> list[int]:
    """The atom itself, and all that it was made of."""
    way = one & ((1 << 3 * _DIGITS) - 1)
    base, out = one - way, [one]
    while way:
        way >>= 3
        out.append(base | way)
    return out


def atoms(sample: Any) -> tuple[int, ...]:
    """The atoms of whatever was delivered."""
    if isinstance(sample, dict):
        return atoms(sample["x"])
    if isinstance(sample, (list, tuple)):
        return tuple(one for item in sample for one in atoms(item))
    return tuple(int(one) for one in np.ravel(sample) if one)


def chance(*what: Any) -> float:
    return crc32(repr(what).encode()) / 2**32


# ---------------------------------------------------------------------- functions of the user's

#: what filters have left out in this process
DROPPED: list[int] = []


@dataclass(frozen=True)
class Tagged:
    """Makes an atom of a record."""

    source: int

    def __call__(self, record: Any, info: Any) -> tuple[int, ...]:
        return (atom(self.source, info.epoch, int(record)),)


#: as a salt: other samples fail in every process
PER_PROCESS = "per process"


def fails(op: int, sample: Any, salt: Any, rate: float) -> bool:
    """Whether an op fails for a sample: always for the same ones, or with another `salt` for others."""
    if not rate:
        return False
    salt = (salt, os.getpid()) if salt == PER_PROCESS else salt
    return chance("fails", op, atoms(sample), salt) < rate


@dataclass(frozen=True)
class Failing:
    """Passes samples on and fails for some."""

    op: int
    rate: float
    how: str
    salt: Any = 0

    def __call__(self, sample: Any) -> Any:
        if fails(self.op, sample, self.salt, self.rate):
            raise ps.Skip(repr(atoms(sample))) if self.how == "Skip" else ValueError(atoms(sample))
        return sample


@dataclass(frozen=True)
class FailingCoroutine(Failing):
    """The same on an event loop."""

    async def __call__(self, sample: Any) -> Any:
        await asyncio.sleep(0)
        return super().__call__(sample)


@dataclass(frozen=True)
class FailingByDraw(Failing):
    """Fails for the samples that its random draws choose."""

    def __call__(self, sample: Any, rng: np.random.Generator) -> Any:
        if (rng.random() + chance(self.salt)) % 1 < self.rate:
            raise ValueError(atoms(sample))
        return sample


#: how often functions were called that fail at first
CALLS: Counter[Any] = Counter()


@dataclass(frozen=True)
class FailingAtFirst(Failing):
    """Fails for some samples in every second call, so that one more call is enough."""

    def __call__(self, sample: Any) -> Any:
        if fails(self.op, sample, self.salt, self.rate):
            CALLS[self.op, atoms(sample)] += 1
            if CALLS[self.op, atoms(sample)] % 2:
                raise ValueError(atoms(sample))
        return sample


#: the samples of calls that did not return, by place and epoch, and what lets these calls end
LATE: dict[Any, tuple[int, ...]] = {}
RELEASED = threading.Event()


@dataclass(frozen=True)
class Late(Failing):
    """Does not return for some samples until `RELEASED` is set."""

    def __call__(self, sample: Any, info: Any) -> Any:
        if self.late(sample, info):
            RELEASED.wait()
        return sample

    def late(self, sample: Any, info: Any) -> bool:
        if not self.rate:
            return False
        # Any call may be late on a busy machine.
        LATE[key_of(info.place), info.epoch] = atoms(sample)
        return fails(self.op, sample, self.salt, self.rate)


@dataclass(frozen=True)
class LateCoroutine(Late):
    """The same on an event loop, which cancels the call."""

    async def __call__(self, sample: Any, info: Any) -> Any:
        if self.late(sample, info):
            await asyncio.Event().wait()
        return sample


@dataclass(frozen=True)
class Kept:
    """A filter, which may fail; every process keeps a list of what it has left out."""

    op: int
    rate: float = 0.0
    salt: Any = 0

    def __call__(self, sample: Any) -> bool:
        if fails(self.op, sample, self.salt, self.rate):
            raise ValueError(atoms(sample))
        keep = chance("kept", self.op, atoms(sample)) < 0.75
        if not keep:
            DROPPED.extend(atoms(sample))
        return keep


@dataclass(frozen=True)
class Several:
    """None to three samples of one. How many depends on each atom, so that groups make no difference."""

    op: int
    rate: float = 0.0
    how: str = ""
    lazy: bool = False
    salt: Any = 0

    def _outputs(self, sample: Any) -> list[Any]:
        counts = {one: int(4 * chance("several", self.op, one)) for one in atoms(sample)}
        subs = range(max(counts.values(), default=0))
        return [tuple(further(one, sub) for one, count in counts.items() if count > sub) for sub in subs]

    def __call__(self, sample: Any) -> Any:
        found = self._outputs(sample)
        failing = fails(self.op, sample, self.salt, self.rate)
        if not self.lazy:
            if failing:
                raise ValueError(atoms(sample))
            return found
        return self._one_by_one(sample, found, failing)

    def _one_by_one(self, sample: Any, found: list[Any], failing: bool) -> Any:
        stop = int(chance("stops", self.op, atoms(sample)) * (len(found) + 1))
        for number, one in enumerate(found):
            if failing and number == stop:
                raise ValueError(atoms(sample))
            yield one
        if failing and stop >= len(found):
            raise ValueError(atoms(sample))


@dataclass(frozen=True)
class Tokens:
    """The atoms as an array, each in one to three pieces: for pack."""

    op: int

    def __call__(self, sample: Any) -> dict[str, Any]:
        pieces = [further(one, sub) for one in atoms(sample) for sub in range(1 + int(3 * chance(self.op, one)))]
        return {"x": _numbers(pieces)}


def as_array(sample: Any) -> dict[str, Any]:
    return {"x": _numbers(atoms(sample))}


def _numbers(atoms: Sequence[int]) -> Any:
    """An atom holds its epoch: a changed state may have one so large that no array could hold the atom."""
    return np.array([one % 2**62 for one in atoms], np.int64)


def rarely_long(sample: dict[str, Any]) -> int:
    return 9 if chance("rare", atoms(sample)) < 0.03 else len(sample["x"]) % 2


def same(sample: Any) -> Any:
    return sample


def as_list(batch: list[Any]) -> list[Any]:
    return list(batch)


class Shards(StreamSource):
    """A stream in parts of these sizes."""

    verb = "shards"

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes

    def shards(self) -> Any:
        return range(len(self.sizes))

    def open(self, shard: int, skip: int) -> Any:
        first = sum(self.sizes[:shard])
        return iter(range(first + skip, first + self.sizes[shard]))
