"""What a saved standing means to the inlets: which inputs are still to come, and what of them. Pure.

The other side is `penstock.runtime.marks`, which says what the numbers are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from penstock.provenance import Passed, Place, path, starts
from penstock.runtime.chunk import Chunk, ErrorRecord
from penstock.runtime.marks import Standing, down, place_from
from penstock.runtime.stretches import Stretch, common

__all__ = ["BEGINNING", "Again", "Lost", "Sieve", "Start", "losses_in", "losses_left", "sifted"]


class Start(NamedTuple):
    """Where an epoch begins: at its beginning, unless something else is told."""

    #: how its last segment stands
    at: dict[str, Any] | None = None
    #: samples further on that were lost, and are not tried again
    lost: list[Any] | None = None
    #: what rank of what world goes on, where that is not what the loader is
    part: dict[str, Any] | None = None


BEGINNING: Final = Start()


class Sieve:
    """What of the samples made of one input is still to come."""

    def __init__(self, place: Place, parts: list[Stretch]) -> None:
        self.place = place
        self.parts = parts

    def passes(self, place: Place) -> bool:
        """Whether the sample at `place` is to be delivered, or leads to one that is."""
        way = path(place, self.place)
        return way is None or any(one.holds(way) for one in self.parts)


def sifted(chunk: Chunk, sieves: Sequence[Sieve]) -> Chunk:
    """`chunk` without what has been delivered before, or was lost among that."""
    chunk.keep([_passes(place, sieves) for place in chunk.places])
    chunk.losses = [one for one in chunk.losses if _passes(one.place, sieves)]
    return chunk


def _passes(place: Place, sieves: Sequence[Sieve]) -> bool:
    return all(sieve.passes(place) for sieve in sieves)


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
        self._parts: dict[int, list[Stretch]] = {}
        for number, *way in saved.get("parts", ()):
            self._parts.setdefault(number, []).append(Stretch.read(way))
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
        for number, parts in self._parts.items():
            at = first + number * unit
            if at in standing.wanted:
                left = common(standing.parts.get(at, [Stretch()]), parts)
                if left:
                    standing.parts[at] = left
                else:
                    del standing.wanted[at]
                    standing.parts.pop(at, None)

    def sieves(self, first: int, places: Sequence[Place]) -> tuple[Sieve, ...]:
        """Sieves for consecutive inputs at `places`, the first of which has number `first`."""
        if not self._parts:
            return ()
        return tuple(
            Sieve(places[number - first], parts)
            for number, parts in self._parts.items()
            if first <= number < first + len(places)
        )


class Lost:
    """Samples that were lost before a resume, and are not tried again, by the segment and the epoch of that."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, int], set[Any]] = {}

    def add(self, saved: list[Any]) -> None:
        for segment, turn, saved_place in saved:
            place = place_from(saved_place)
            known = self._places.setdefault((segment, turn), set())
            known.add(_hashable(place))
            if isinstance(place, (list, range)):
                # What comes of a lost group may have been taken apart by then.
                known.update(map(_hashable, place))

    def take_over(self, other: Lost) -> None:
        """What was lost in inputs that go on from another run."""
        for key, places in other._places.items():
            self._places.setdefault(key, set()).update(places)

    def __bool__(self) -> bool:
        return bool(self._places)

    def sort_out(self, chunk: Chunk, segment: str, epoch: int) -> None:
        """What was lost in this epoch of `segment` before is lost again, whatever came of it now, and not told."""
        lost = self._places.get((segment, epoch))
        if lost is None:
            return
        found: dict[Any, ErrorRecord] = {}
        keep: list[bool] = []
        for place in chunk.places:
            of = _lost_of(place, lost)
            keep.append(of is None)
            if of is not None:
                found[_hashable(of)] = ErrorRecord("", -1, epoch, LostBefore(), of, known=True)
        chunk.keep(keep)
        again = [_known(one, lost) for one in chunk.losses]
        chunk.losses = [*again, *found.values()]


def losses_in(at: dict[str, Any] | None) -> list[Any]:
    """All that a saved standing says was lost, among what it makes again."""
    if at is None:
        return []
    found = list(at["feed"].get("lost", ()))
    for one in at["feed"].get("inputs", ()):
        found += losses_in(None if one is None else one["at"])
    return found


def losses_left(lost: list[Any], at: dict[str, Any] | None) -> list[Any]:
    """What of `lost` may still be met from a standing on: all but what is over at the source, if there is one."""
    low = max((one["feed"].get("position", 0) for one in down(at)), default=0)
    # Only there are places positions; further on they may be numbers of outputs.
    return [one for one in lost if one[0] != "source" or not isinstance(one[2], int) or one[2] >= low]


class LostBefore(Exception):
    """Stands for what a sample failed with before a resume."""


def _known(record: ErrorRecord, lost: set[Any]) -> ErrorRecord:
    own = not record.segment and _hashable(record.place) in lost
    return replace(record, known=True) if own else record


def _lost_of(place: Place, lost: set[Any]) -> Place | None:
    """What `place` is, or was made of, that was lost."""
    return next((start for start in starts(place) if _is_lost(start, lost)), None)


def _is_lost(place: Place, lost: set[Any]) -> bool:
    """Whether a sample, or a whole group, was lost."""
    if _hashable(place) in lost:
        return True
    return isinstance(place, (list, range)) and len(place) > 0 and all(_hashable(one) in lost for one in place)


def _hashable(place: Place) -> Any:
    """What places have in common that are the same, however they are written.

    >>> _hashable([6, 7]) == _hashable(range(6, 8))
    True
    """
    if isinstance(place, (list, range)):
        return ("group", *map(_hashable, place))
    if isinstance(place, Passed):
        return ("passed", *map(_hashable, place))
    return tuple(map(_hashable, place)) if isinstance(place, tuple) else place
