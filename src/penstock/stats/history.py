"""Counters as they were: close together of late, further apart long ago. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from math import inf
from typing import NamedTuple

#: how long until the next one: this, or this part of the run so far, or at the most this. To read all counters
#: takes a third of a millisecond, for which the training loop waits
_EVERY_S, _PART, _SELDOM_S = 0.1, 1 / 20, 0.5
_MOST = 512
#: how far two may be apart, as a share of how long ago they were
_APART = 1 / 24


class Snapshot(NamedTuple):
    """The counters at one moment."""

    now: float
    stats: Mapping[str, float]


class _Kept(NamedTuple):
    """A snapshot as it is kept: numbers in a row, and their names, which many snapshots share."""

    now: float
    names: tuple[str, ...]
    values: array[float]

    @property
    def snapshot(self) -> Snapshot:
        return Snapshot(self.now, dict(zip(self.names, self.values, strict=True)))


class History:
    """Snapshots of a whole run, never more than a few hundred.

    >>> history = History()
    >>> for second in range(10_000):
    ...     history.add(Snapshot(second, {}))
    >>> history.since(9_990).now, history.since(0).now, len(history) < 600
    (9990, 0, True)
    """

    def __init__(self) -> None:
        self._kept: list[_Kept] = []
        #: when the next one is to be taken
        self.due = -inf

    def add(self, snapshot: Snapshot) -> None:
        """Keep one more. When there are too many, those go that are closer together than they need be."""
        names = tuple(snapshot.stats)
        if self._kept and self._kept[-1].names == names:
            names = self._kept[-1].names
        self._kept.append(_Kept(snapshot.now, names, array("d", snapshot.stats.values())))
        run_s = snapshot.now - self._kept[0].now
        self.due = snapshot.now + min(max(_EVERY_S, run_s * _PART), _SELDOM_S)
        if len(self._kept) <= _MOST:
            return
        first, *rest = self._kept
        thinned = [rest.pop()]
        for older, one in zip(reversed([first, *rest[:-1]]), reversed(rest), strict=True):
            if thinned[-1].now - older.now > (snapshot.now - older.now) * _APART:
                thinned.append(one)
        self._kept = [first, *reversed(thinned)]

    def since(self, then: float) -> Snapshot | None:
        """The last snapshot taken until `then`, or the first of all."""
        older = [one for one in self._kept if one.now <= then]
        found = older[-1] if older else self._kept[0] if self._kept else None
        return None if found is None else found.snapshot

    def __len__(self) -> int:
        return len(self._kept)
