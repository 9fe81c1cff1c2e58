"""Provenance: where a sample comes from. Its *place* rides with every sample of every chunk.

A place is a recipe: with it the sample can be made again, and without running any joint again. It is one of

* an ``int``: the position in the global order of the epoch,
* a ``tuple``: a place followed by a sub-index for every op that made several samples of one,
* a ``range`` or ``list``: the places of the samples that were put together into one,
* a `Passed`, a `Part`, a `Piece` or a `Member`: a place with what else it takes to find the sample.

Places of a chunk are a ``range`` as long as no op has dropped or multiplied samples, so that
they cost nothing; the functions here keep them so where they can.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import chain, compress
from typing import Any, NamedTuple
from zlib import crc32

Place = Any

_WORD = 2**64 - 1
_MIX = 0x9E3779B97F4A7C15


class Passed(NamedTuple):
    """A place in one of the passes of a pipeline that is run through again and again."""

    place: Place
    #: the epoch that the pipeline counts this pass as
    number: int


class Part(NamedTuple):
    """A place in one of several pipelines that were mixed or put one after the other."""

    place: Place
    name: str


class Piece(NamedTuple):
    """A stretch of one sample: `pack` cuts long ones."""

    place: Place
    start: int
    stop: int


class Row(NamedTuple):
    """The places of samples of several pipelines that were put side by side."""

    places: tuple[Place, ...]


class Member(NamedTuple):
    """One of the samples that a group was taken apart into: `unbatch`."""

    group: Place
    number: int

    @property
    def had_place(self) -> bool:
        """Whether it was put into the group here. What a source or a function gave as a batch has only a number."""
        return isinstance(self.group, (range, list)) and self.number < len(self.group)

    @property
    def place(self) -> Place:
        """The place that the sample had before it was grouped; that of the group if it had none."""
        return self.group[self.number] if self.had_place else self.group


def _inner(place: Place) -> Place:
    """The place that `place` begins with, one step nearer to the source."""
    if type(place) is Member:
        return place.place
    return place.places[0] if type(place) is Row else place[0]


def root(place: Place) -> int:
    """The position in the epoch that `place` began with.

    >>> root(7), root((7, 2)), root(range(5, 9)), root(Member(range(5, 9), 2))
    (7, 7, 5, 7)
    """
    while not isinstance(place, int):
        place = _inner(place)
    return place


def origin(place: Place, epoch: int) -> tuple[int, int]:
    """The epoch and the position that `place` began with.

    >>> origin((7, 2), epoch=0), origin(Passed(7, 3), epoch=0)
    ((0, 7), (3, 7))
    """
    while not isinstance(place, int):
        if type(place) is Passed:
            epoch = place.number
        place = _inner(place)
    return epoch, place


def weight(place: Place) -> int:
    """How many samples stand at `place`.

    >>> weight(7), weight((7, 2)), weight(range(5, 9)), weight([1, (2, 0)])
    (1, 1, 4, 2)
    """
    if isinstance(place, range):
        return len(place)
    if isinstance(place, list):
        return sum(map(weight, place))
    return weight(place[0]) if type(place) in (Passed, Part, Piece) else 1


def weights(places: Sequence[Place]) -> int:
    """How many samples stand at all of `places`.

    >>> weights([range(5, 9), range(9, 12)]), weights([7, (7, 2)]), weights(range(3))
    (7, 2, 3)
    """
    if type(places) is range:
        return len(places)
    # Batches of consecutive samples, as a rule: then nothing here is called from Python.
    return sum(map(len if set(map(type, places)) == {range} else weight, places))


def counter(place: Place) -> tuple[int, int]:
    """Two numbers that tell any two places of one op apart: the position, and the way from there.

    >>> counter(7), counter((7, 0)) == counter((7, 1)), counter(range(7, 9))
    ((7, 0), False, (7, 0))
    >>> counter(Member(range(7, 9), 1)), counter(Member(7, 0)) == counter(Member(7, 1))
    ((8, 0), False)
    """
    way = 0
    while not isinstance(place, int):
        kind = type(place)
        if kind is tuple:
            for step in place[1:]:
                way = (way * _MIX + step + 1) & _WORD
        elif kind is Passed:
            way = (way * _MIX + 3 * place.number + 1) & _WORD
        elif kind is Part:
            way = (way * _MIX + 3 * crc32(place.name.encode()) + 2) & _WORD
        elif kind is Piece:
            way = (way * _MIX + 3 * place.start + 3) & _WORD
        elif kind is Member and not place.had_place:
            way = (way * _MIX + place.number + 1) & _WORD
        place = _inner(place)
    return place, way


def single(place: Place) -> bool:
    """Whether one sample of the source stands at `place`, or one that was made of one.

    >>> single(7), single((7, 2)), single(Passed(7, 1)), single(range(5, 9))
    (True, True, True, False)
    """
    while isinstance(place, tuple) and type(place) is not Row:
        place = place.place if type(place) is Member else place[0]
    return isinstance(place, int)


def way(place: Place) -> tuple[int, ...]:
    """The sub-indices that lead from a sample of the source to the one at `place`.

    >>> way(7), way((7, 2, 0)), way((Passed((7, 2), 3), 1)), way(Member(7, 2)), way(Member(range(7, 9), 1))
    ((), (2, 0), (2, 1), (2,), ())
    """
    if type(place) is tuple:
        return (*way(place[0]), *place[1:])
    if type(place) is Member:
        return way(place.place) if place.had_place else (*way(place.group), place.number)
    return way(_inner(place)) if isinstance(place, tuple) else ()


def extended(place: Place, sub: int) -> tuple[Place, ...]:
    """The place of output number `sub` of an op that made several samples of the one at `place`."""
    return (*place, sub) if type(place) is tuple else (place, sub)


def input_of(place: Place, depth: int) -> Place:
    """The place of the sample from which `depth` ops, each making several of one, have made the one at `place`.

    >>> input_of((7, 2, 0), 1), input_of((7, 2), 1), input_of(Member(range(5, 9), 2), 1), input_of(7, 0)
    ((7, 2), 7, range(5, 9), 7)
    """
    for _ in range(depth):
        if type(place) is Member:
            place = place.group
        elif type(place) is tuple:
            place = place[:-1] if len(place) > 2 else place[0]
    return place


def steps_from(place: Place, depth: int) -> tuple[int, ...]:
    """The sub-indices that lead from `input_of(place, depth)` to `place`.

    >>> steps_from((7, 2, 0), 1), steps_from((7, 2, 0), 2), steps_from((Member(range(5, 9), 2), 4), 2)
    ((0,), (2, 0), (2, 4))
    """
    found: list[int] = []
    for _ in range(depth):
        if type(place) is Member or type(place) is tuple:
            found.append(place[-1])
            place = input_of(place, 1)
    return tuple(reversed(found))


def key_of(place: Place) -> Hashable:
    """The same for places that are the same, however they are written, and different for all others.

    >>> key_of([6, 7]) == key_of(range(6, 8)), key_of(Part(3, "a")) == key_of((3, 4)), key_of(5)
    (True, False, 5)
    """
    if isinstance(place, int):
        return place
    kind = type(place)
    if kind is tuple:
        return (key_of(place[0]), *place[1:]) if not isinstance(place[0], int) else place
    if kind is range:
        return ("group", place)
    if kind is list:
        run = as_range(place)
        return ("group", *map(key_of, place)) if run is None else ("group", run)
    if kind is Row:
        return ("Row", *map(key_of, place.places))
    return (kind.__name__, key_of(place[0]), *place[1:])


def as_range(places: list[Place]) -> range | None:
    """Positions at equal distances as a range; None if they are anything else.

    >>> as_range([6, 7]), as_range([9, 5]), as_range([4]), as_range([1, 2, 4]), as_range([(1, 0)])
    (range(6, 8), range(9, 1, -4), range(4, 5), None, None)
    """
    if not all(type(place) is int for place in places):
        return None
    if len(places) < 2:
        return range(places[0], places[0] + 1) if places else range(0)
    step = places[1] - places[0]
    run = range(places[0], places[0] + step * len(places), step) if step else None
    return run if run is not None and places == [*run] else None


def covers(place: Place, other: Place) -> bool:
    """Whether the sample at `other` is the one at `place`, or was made of it by ops that make several of one.

    >>> covers(7, (7, 2, 0)), covers((7, 2), (7, 2, 0)), covers(Part(7, "a"), Part((7, 1), "a")), covers(8, (7, 2))
    (True, True, True, False)
    """
    if key_of(place) == key_of(other):
        return True
    kind = type(other)
    if kind is tuple or kind is Member:
        return covers(place, input_of(other, 1))
    if kind is Piece:
        return covers(place, other.place)
    alike = kind is type(place) and kind in (Part, Passed) and place[1:] == other[1:]
    return alike and covers(place[0], other[0])


def chosen(places: Sequence[Place], keep: Sequence[Any]) -> list[Place]:
    """The places whose entry in `keep` is true."""
    return list(compress(places, keep))


def joined(parts: Sequence[Sequence[Place]]) -> Sequence[Place]:
    """The places of consecutive parts as one sequence.

    >>> joined([range(0, 3), range(3, 5)])
    range(0, 5)
    >>> joined([range(0, 2), [7]])
    [0, 1, 7]
    """
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    if isinstance(first, range):
        start, step, count = first.start, first.step, len(first)
        for part in parts[1:]:
            if not isinstance(part, range) or part.step != step or part.start != start + count * step:
                return list(chain.from_iterable(parts))
            count += len(part)
        return range(start, start + count * step, step)
    return list(chain.from_iterable(parts))
