"""What a cache keeps of a chunk, position by position, and how a chunk is put together from what it kept. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from penstock.program.chunk import Chunk, Failure, Loss
from penstock.provenance import Place, root

#: the samples that were made at a position, and their places
Made: TypeAlias = tuple[list[object], list[Place]]


def made_by_position(positions: Iterable[int], made: Chunk) -> dict[int, Made]:
    """What a chunk has for each of the positions that it was made of."""
    found: dict[int, Made] = {position: ([], []) for position in positions}
    for sample, place in zip(made.samples, made.places, strict=True):
        samples, places = found[root(place)]
        samples.append(sample)
        places.append(place)
    return found


def lost_by_position(made: Chunk) -> dict[int, list[Loss]]:
    """The losses of a chunk by the position that they began with, each before so many samples of that position."""
    firsts: dict[int, int] = {}
    for number, place in enumerate(made.places if made.losses else ()):
        firsts.setdefault(root(place), number)
    found: dict[int, list[Loss]] = {}
    for loss in made.losses:
        position = root(loss.place)
        before = max(loss.before - firsts.get(position, loss.before), 0)
        found.setdefault(position, []).append(loss._replace(before=before))
    return found


def put_together(
    positions: range, made: Mapping[int, Made], lost: Mapping[int, list[Loss]], failure: Failure | None
) -> Chunk:
    """A chunk of what was kept or made, and lost, at these positions, up to the one that failed."""
    samples: list[object] = []
    losses: list[Loss] = []
    places: list[Place] = []
    stop = failed_at(failure)
    for position in positions:
        some, own = made.get(position, ([], []))
        losses += [Loss.of(len(samples) + loss.before, loss.record) for loss in lost.get(position, ())]
        samples += some
        places += [_rooted(place, position) for place in own]
        if position == stop:
            break
    plain = len(places) == len(positions) and places == list(positions)
    return Chunk(samples, positions if plain else places, failure, losses)


def failed_at(failure: Failure | None) -> int | None:
    """The position of the sample that failed, if one did."""
    return None if failure is None or failure.record is None else root(failure.record.place)


def _rooted(place: Place, position: int) -> Place:
    """`place` as it would be if its sample stood at `position`."""
    return (position, *place[1:]) if isinstance(place, tuple) else position
