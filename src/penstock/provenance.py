"""Provenance: where in the epoch a sample comes from. It rides with every sample of every chunk.

A *place* is one of

* an ``int``: the sample's position in the global order of the epoch,
* a ``tuple``: a place followed by a sub-index for every op that made several samples of one,
* a ``range`` or ``list`` of places: those of the samples that were put together into one,
* a `Passed`: a place in one of the epochs of a stream that is run through again and again.

Places of a chunk are a ``range`` as long as no op has dropped or multiplied samples, so that
they cost nothing; the functions here keep them so where they can.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, compress
from typing import Any, NamedTuple

__all__ = [
    "Passed",
    "Place",
    "chosen",
    "counter",
    "extended",
    "joined",
    "last_root",
    "origin",
    "path",
    "root",
    "single",
    "starts",
    "way",
    "weight",
]

Place = Any

_WORD = 2**64 - 1


class Passed(NamedTuple):
    """A place of a stream that is run through again and again: `number` is the stream's own epoch."""

    place: Place
    number: int


def root(place: Place) -> int:
    """The position in the epoch that `place` began with.

    >>> root(7), root((7, 2)), root(range(5, 9))
    (7, 7, 5)
    """
    while not isinstance(place, int):
        place = place[0]
    return place


def last_root(place: Place) -> int | None:
    """The position that the last of the samples at `place` began with; None if passes are mixed.

    >>> last_root(range(5, 9)), last_root([(3, 0), (4, 1)]), last_root(Passed(7, 1))
    (8, 4, None)
    """
    while not isinstance(place, int):
        if isinstance(place, Passed) or not place:
            return None
        place = place[0] if isinstance(place, tuple) else place[-1]
    return place


def origin(place: Place, epoch: int) -> tuple[int, int]:
    """The epoch and the position that `place` began with.

    >>> origin((7, 2), epoch=0), origin(Passed(7, 3), epoch=0)
    ((0, 7), (3, 7))
    """
    while not isinstance(place, int):
        if isinstance(place, Passed):
            epoch = place.number
        place = place[0]
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
    return weight(place.place) if isinstance(place, Passed) else 1


def counter(place: Place) -> tuple[int, int]:
    """Two numbers that tell any two places of one op apart: the position, and the way from there.

    >>> counter(7), counter((7, 0)) == counter((7, 1)), counter(range(7, 9))
    ((7, 0), False, (7, 0))
    """
    way = 0
    while not isinstance(place, int):
        if isinstance(place, tuple):
            for step in place[1:]:
                way = (way * 0x9E3779B97F4A7C15 + step + 1) & _WORD
        place = place[0]
    return place, way


def single(place: Place) -> bool:
    """Whether one sample of the source stands at `place`, or one that was made of one.

    >>> single(7), single((7, 2)), single(Passed(7, 1)), single(range(5, 9))
    (True, True, True, False)
    """
    while isinstance(place, tuple):
        place = place[0]
    return isinstance(place, int)


def way(place: Place) -> tuple[int, ...]:
    """The sub-indices that lead from a sample of the source to the one at `place`.

    >>> way(7), way((7, 2, 0)), way((Passed((7, 2), 3), 1))
    ((), (2, 0), (2, 1))
    """
    if not isinstance(place, tuple):
        return ()
    return way(place.place) if isinstance(place, Passed) else (*way(place[0]), *place[1:])


def extended(place: Place, sub: int) -> tuple[Place, ...]:
    """The place of output number `sub` of an op that made several samples of the one at `place`."""
    return (*place, sub) if isinstance(place, tuple) and not isinstance(place, Passed) else (place, sub)


def path(place: Place, start: Place) -> tuple[int, ...] | None:
    """The sub-indices that lead from the sample at `start` to the one at `place`; None if none do.

    A member of a group that was taken apart keeps its own place: its number in the group leads to it.

    >>> path((7, 2, 0), (7, 2)), path(7, 7), path(8, range(5, 9)), path((range(5, 9), 1), range(5, 9))
    ((0,), (), (3,), (1,))
    >>> path((7, 2), 8) is None
    True
    """
    if type(place) is type(start) and place == start:
        return ()
    if isinstance(place, tuple) and not isinstance(place, Passed):
        begin = start if isinstance(start, tuple) and not isinstance(start, Passed) else (start,)
        if len(place) > len(begin) and place[: len(begin)] == begin:
            return place[len(begin) :]
    if isinstance(start, (range, list)):
        for number, one in enumerate(start):
            way = path(place, one)
            if way is not None:
                return (number, *way)
    return None


def starts(place: Place) -> Iterator[Place]:
    """The place itself, and those of the samples that it was made of, the nearest first.

    >>> list(starts((7, 2, 0)))
    [(7, 2, 0), (7, 2), 7]
    """
    yield place
    while isinstance(place, tuple) and not isinstance(place, Passed):
        place = place[:-1] if len(place) > 2 else place[0]
        yield place


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
