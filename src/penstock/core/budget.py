"""A bound in bytes over all stages of a loader. Pure.

Memory is reserved when a ticket is issued, as much as the largest recent chunk of its stage
took; when the chunk is there, the reservation becomes its true size, and it is given back when
the chunk moves on. The ticket that a stage's stream waits for is always admitted, so the bound
never stops the stream, and what is held is at most the bound plus one chunk per worker.

Each byte is counted once. A chunk in shared memory counts as the whole of its block. Idle blocks
are not in `used`: they may take what it leaves (`spare`), and give way to whatever needs memory.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import Any

from penstock.errors import PlanError
from penstock.trees import nbytes

#: samples of a chunk that are weighed
_WEIGHED = 8

_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}


def parse_bytes(amount: int | str | None, what: str = "memory=") -> int | None:
    """A number of bytes from ``"2GB"``, ``"512MiB"`` or a plain number; `what` asks for it.

    >>> parse_bytes("2GB"), parse_bytes("1.5 MiB"), parse_bytes(1000), parse_bytes(None)
    (2000000000, 1572864, 1000, None)
    """
    if amount is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", str(amount).lower())
    if match is None or isinstance(amount, bool) or float(match[1]) <= 0:
        raise PlanError(f"{what} takes a size such as '2GB' or '512MiB', or a number of bytes, got {amount!r}")
    return int(float(match[1]) * _UNITS[match[2] or ""])


def estimated_bytes(samples: Sequence[Any]) -> int:
    """About how many bytes some samples take: as many as a few of them do on average."""
    some = samples[:: max(1, len(samples) // _WEIGHED)]
    return sum(map(nbytes, some)) * len(samples) // max(1, len(some))


class Estimate:
    """How large the next chunk of a stage may be: as the largest of the last few."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=16)
        #: the largest there has been
        self.largest = 0

    def add(self, nbytes: int) -> None:
        self._recent.append(nbytes)
        self.largest = max(self.largest, nbytes)

    @property
    def alike(self) -> bool:
        """The last few were about as large, so the next may be, too."""
        return 2 * min(self._recent, default=0) > self.nbytes

    @property
    def nbytes(self) -> int:
        return max(self._recent, default=0)


class Budget:
    """Bytes in use and bytes allowed; without a bound, nothing is counted."""

    def __init__(self, allowed: int | None) -> None:
        self.allowed = allowed
        self.bounded = allowed is not None
        #: bytes after which a worker hands in what it has, so that no chunk is much larger than a sample
        self.portion = 0
        self.used = 0
        self.peak = 0

    def divide(self, workers: int) -> None:
        """So many workers may hold a chunk at once: together they take a quarter of the bound."""
        if self.allowed is not None:
            self.portion = self.allowed // (4 * workers)

    def renewed(self) -> Budget:
        """The same bound, with nothing in use."""
        new = Budget(self.allowed)
        new.portion = self.portion
        return new

    def admits(self, nbytes: int) -> bool:
        """Whether a ticket may be issued whose chunk will take about `nbytes`."""
        return self.allowed is None or self.used + nbytes <= self.allowed

    def spare(self, out_bytes: int) -> int:
        """How many bytes of idle blocks may be kept while so many are out: what is free of the bound.

        Not all that are out are in `used`: the training loop may hold some, and samples go to workers in others.
        """
        assert self.allowed is not None
        return max(self.allowed - max(self.used, out_bytes), 0)

    def take(self, nbytes: int) -> None:
        self.used += nbytes
        self.peak = max(self.peak, self.used)

    def give_back(self, nbytes: int) -> None:
        self.used -= nbytes
