"""What is left of a ticket that has handed in part of what it makes, and whose worker is gone. Pure.

Such a ticket is begun again with the input that was in hand. By places and not by counts: a call that
failed the first time may succeed the second, and the other way round.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.program.chunk import Chunk, Ticket
from penstock.provenance import Place, input_of, key_of, steps_from


class Progress:
    """How far a ticket has got: the last of its inputs of which something was handed in, and how much of it."""

    __slots__ = ("_after", "_depth", "_last", "_unit")

    def __init__(self, unit: int = 1, depth: int = 0) -> None:
        #: inputs that are made into one, and ops that make several samples of one
        self._unit = unit
        self._depth = depth
        #: the last sample that was handed in or lost, as its input and the sub-indices from there
        self._last: tuple[Place, tuple[int, ...]] | None = None
        #: what had been made of the input that is begun again
        self._after: tuple[int, ...] | None = None

    @property
    def begun(self) -> bool:
        """Something has been handed in."""
        return self._last is not None

    def handed_in(self, chunk: Chunk, ticket: Ticket) -> None:
        """A chunk has been handed in that is not the last."""
        last_loss = chunk.losses[-1] if chunk.losses else None
        if last_loss is not None and last_loss.before >= len(chunk.samples):
            self._last = self._within(last_loss.place, ticket)
        elif chunk.samples:
            self._last = self._within(chunk.places[-1], ticket)

    def _within(self, place: Place, ticket: Ticket) -> tuple[Place, tuple[int, ...]]:
        """The input of the ticket that `place` was made of, and the sub-indices from there."""
        inputs = ticket.inputs if isinstance(ticket.inputs, range) else {key_of(one) for one in ticket.inputs}
        for depth in range(self._depth, -1, -1):
            of = input_of(place, depth)
            first = of[0] if self._unit > 1 and isinstance(of, (range, list)) else of
            if key_of(first) in inputs:
                return first, steps_from(place, depth)
        return ticket.inputs[0], ()

    def rest_of(self, ticket: Ticket) -> Ticket:
        """The ticket without what is done."""
        if self._last is None:
            return ticket
        (of, steps), self._last = self._last, None
        known = key_of(of)
        start = next(number for number, one in enumerate(ticket.inputs) if key_of(one) == known)
        # With as many sub-indices as there can be, or with some, more may come of the same input.
        self._after = steps or None
        if not steps:
            start += self._unit
        losses = [loss._replace(before=max(loss.before - start, 0)) for loss in ticket.losses]
        if ticket.samples is None:
            return replace(ticket, first=min(ticket.first + start * ticket.step, ticket.last), losses=losses)
        return replace(ticket, samples=ticket.samples[start:], places=ticket.places[start:], losses=losses)

    def news(self, chunk: Chunk, ticket: Ticket) -> Chunk:
        """A chunk of the rest, without what had been made of its first input before."""
        after = self._after
        if after is None or not ticket.count or chunk.blank:
            return chunk
        first = key_of(ticket.inputs[0])

        def old(place: Place) -> bool:
            of, steps = self._within(place, ticket)
            return key_of(of) == first and steps[: len(after)] <= after and bool(steps)

        chunk.losses = [loss for loss in chunk.losses if not old(loss.place)]
        chunk.keep([not old(place) for place in chunk.places])
        return chunk
