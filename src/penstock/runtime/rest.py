"""What is left of a ticket that has handed in part of what it makes, and whose worker is gone. Pure.

Such a ticket is begun again with the input that was in hand. By places and not by counts: a call that
failed the first time may succeed the second, and the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from penstock.provenance import Passed, Place, last_root, path, root
from penstock.runtime.chunk import Chunk, Ticket

__all__ = ["Progress", "input_of"]


class Progress:
    """How far a ticket has got: the last sample that was handed in, and the last that was lost."""

    __slots__ = ("_after", "_lost", "_made")

    def __init__(self) -> None:
        self._made: Place = None
        self._lost: Place = None
        #: what had been made of the input that is begun again
        self._after: Place = None

    @property
    def begun(self) -> bool:
        """Something has been handed in."""
        return self._made is not None or self._lost is not None

    def handed_in(self, chunk: Chunk) -> None:
        """A chunk has been handed in that is not the last."""
        if chunk.samples:
            self._made = chunk.places[-1]
        if chunk.losses:
            self._lost = chunk.losses[-1].place

    def rest_of(self, ticket: Ticket, unit: int) -> Ticket:
        """The ticket without what is done. `unit` positions belong together."""
        if not self.begun:
            return ticket
        made = (-1, True) if self._made is None else _reached(ticket, unit, self._made)
        lost = (-1, True) if self._lost is None else _reached(ticket, unit, self._lost)
        self._after = None
        if lost[0] >= made[0]:
            start = lost[0] + unit
        elif made[1]:
            start = made[0] + unit
        else:
            start, self._after = made[0], self._made
        self._made = self._lost = None
        if ticket.samples is None:
            return replace(ticket, first=min(ticket.first + start * ticket.step, ticket.last), losses=[])
        return replace(ticket, samples=ticket.samples[start:], places=ticket.places[start:], losses=[])

    def news(self, chunk: Chunk, ticket: Ticket) -> Chunk:
        """A chunk of the rest, without what had been made of its first input before."""
        after = self._after
        if after is None or not chunk.samples:
            return chunk
        of = None if ticket.samples is None else ticket.places[0]
        old = 0
        for place in chunk.places:
            # Samples that came along stand in any order: only those of the first input are compared.
            if (of is not None and not _made_of(place, of)) or _order(place, of) > _order(after, of):
                break
            old += 1
        if old < len(chunk.samples):
            self._after = None
        return Chunk(chunk.samples[old:], chunk.places[old:], chunk.failure, chunk.losses, final=chunk.final)


def _reached(ticket: Ticket, unit: int, place: Place) -> tuple[int, bool]:
    """Which input of a ticket `place` was made of, and whether that was all that can come of it."""
    if ticket.samples is not None:
        number = input_of(ticket.places, place)
        return number, not _made_of(place, ticket.places[number])
    end = last_root(place)
    number = ((root(place) if end is None else end) - ticket.first) // ticket.step
    whole = isinstance(place, (range, list)) or (unit == 1 and isinstance(place, int))
    return number // unit * unit, whole


def input_of(inputs: Sequence[Place], place: Place) -> int:
    """The number of the input that `place` is, or was made of."""
    for number, one in enumerate(inputs):
        if one == place or _made_of(place, one):
            return number
    return len(inputs) - 1


def _made_of(place: Place, of: Place) -> bool:
    """Whether an op has made `place` of the sample at `of`: one of several outputs, or a member of a group."""
    return bool(path(place, of))


def _order(place: Place, group: Place) -> tuple[Any, ...]:
    """What puts the outputs of one input in their order."""
    if isinstance(group, (range, list)):
        return path(place, group) or ()
    return place if isinstance(place, tuple) and not isinstance(place, Passed) else (place,)
