"""What a saved standing means to the inlets: which inputs are still to come, and what of them. Pure.

The other side is `penstock.runtime.marks`, which says what the numbers are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from penstock.provenance import Passed, Place, path
from penstock.runtime.chunk import Chunk, ErrorRecord
from penstock.runtime.marks import Standing, place_from

__all__ = ["Again", "Lost", "Sieve", "sifted"]


class Sieve:
    """What of the samples made of one input is still to come."""

    def __init__(self, place: Place, behind: tuple[int, ...] | None, only: list[tuple[int, ...]]) -> None:
        self.place = place
        self.behind = behind
        self.only = only

    def passes(self, place: Place) -> bool:
        """Whether the sample at `place` is to be delivered, or leads to one that is."""
        way = path(place, self.place)
        if way is None:
            return True
        if self.behind is not None and (way > self.behind or way == self.behind[: len(way)] != self.behind):
            return True
        return any(way[: len(one)] == one or way == one[: len(way)] for one in self.only)


def sifted(chunk: Chunk, sieves: Sequence[Sieve]) -> Chunk:
    """`chunk` without what has been delivered before."""
    keep = [all(sieve.passes(place) for sieve in sieves) for place in chunk.places]
    if not all(keep):
        chunk.samples = [sample for sample, kept in zip(chunk.samples, keep, strict=True) if kept]
        chunk.places = [place for place, kept in zip(chunk.places, keep, strict=True) if kept]
    return chunk


class Again:
    """Which inputs of a segment are still to come, as numbers from where its feed begins again."""

    def __init__(self, saved: dict[str, Any] | None) -> None:
        saved = saved or {}
        self.feed: dict[str, Any] = saved.get("feed") or {}
        self.next: int = saved.get("next", 0)
        self.wanted: list[range] = []
        end = 0
        for gap, count in saved.get("wanted", ()):
            self.wanted.append(range(end + gap, end + gap + count))
            end += gap + count
        self._behind = {number: tuple(way) for number, *way in saved.get("behind", ())}
        self._only: dict[int, list[tuple[int, ...]]] = {}
        for number, *way in saved.get("only", ()):
            self._only.setdefault(number, []).append(tuple(way))
        self.turns: list[int] | None = saved.get("turns")
        self.turn: int = saved.get("turn", 0)

    @property
    def position(self) -> int:
        """Where a source begins again."""
        position: int = self.feed.get("position", 0)
        return position

    def runs(self, numbers: range) -> Iterator[range]:
        """Which of consecutive inputs are still to come."""
        for run in self.wanted:
            run = range(max(run.start, numbers.start), min(run.stop, numbers.stop, self.next))
            if run:
                yield run
        rest = range(max(self.next, numbers.start), numbers.stop)
        if rest:
            yield rest

    def narrow(self, standing: Standing, first: int, unit: int) -> None:
        """Take out of `standing` what had been delivered before the resume. Number 0 is input `first` there."""
        limit = first + self.next * unit
        if standing.next < limit:
            for run in self.wanted:
                for number in run:
                    if first + number * unit >= standing.next:
                        standing.wanted[first + number * unit] = standing.ref
            standing.next = limit
        for number in sorted(self._behind.keys() | self._only.keys()):
            at = first + number * unit
            if at in standing.wanted:
                self._narrow_input(standing, at, self._behind.get(number), self._only.get(number, []))

    @staticmethod
    def _narrow_input(
        standing: Standing, at: int, behind: tuple[int, ...] | None, only: list[tuple[int, ...]]
    ) -> None:
        if at in standing.only:
            return  # these are single samples that came through since
        way = standing.behind.pop(at, None)
        left = only if way is None else [one for one in only if one > way]
        if left:
            standing.only[at] = list(left)
        if behind is not None:
            standing.behind[at] = behind if way is None else max(way, behind)
        elif not left:
            del standing.wanted[at]

    def sieves(self, first: int, places: Sequence[Place]) -> tuple[Sieve, ...]:
        """Sieves for consecutive inputs at `places`, the first of which has number `first`."""
        if not self._behind and not self._only:
            return ()
        out = []
        for number in sorted(self._behind.keys() | self._only.keys()):
            if first <= number < first + len(places):
                out.append(Sieve(places[number - first], self._behind.get(number), self._only.get(number, [])))
        return tuple(out)


class Lost:
    """Samples that were lost before a resume, and are not tried again, by the segment they were lost in."""

    def __init__(self) -> None:
        self._places: dict[str, set[Any]] = {}

    def add(self, saved: list[Any]) -> None:
        for segment, place in saved:
            self._places.setdefault(segment, set()).add(_hashable(place_from(place)))

    def __bool__(self) -> bool:
        return bool(self._places)

    def __contains__(self, record: ErrorRecord) -> bool:
        return _hashable(record.place) in self._places.get(record.segment, ())

    def without(self, chunk: Chunk, segment: str) -> Chunk:
        """`chunk`, as if what was lost in `segment` before had been lost now."""
        lost = self._places.get(segment)
        if lost is None:
            return chunk
        keep = [not _made_of_any(place, lost) for place in chunk.places]
        chunk.samples = [sample for sample, kept in zip(chunk.samples, keep, strict=True) if kept]
        chunk.places = [place for place, kept in zip(chunk.places, keep, strict=True) if kept]
        chunk.losses = [one for one in chunk.losses if one not in self]
        return chunk


def _made_of_any(place: Place, lost: set[Any]) -> bool:
    if _hashable(place) in lost:
        return True
    if isinstance(place, tuple) and not isinstance(place, Passed):
        start = place[0] if len(place) == 2 else place[:-1]
        return _made_of_any(start, lost)
    return False


def _hashable(place: Place) -> Any:
    if isinstance(place, list):
        return ("list", *map(_hashable, place))
    return tuple(map(_hashable, place)) if type(place) is tuple else place
