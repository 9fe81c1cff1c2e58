"""Where an edge stands: how far its consumer has got, and what before that is still owed. Pure.

An *edge* leads from a feed (a source, or a joint) through the ops behind it to whoever takes the samples:
the next joint, or the reader. Its **cursor** is all it takes to go on with it:

* `front`: the feed right after the last input of which something was taken. All inputs after it are owed.
* `held`: inputs before the front that are owed all the same, wholly, or the part of what comes of them after
  the sub-indices `after`: they were overtaken, or only begun.

Inputs are named by their places, which are recipes. So a cursor does not depend on tickets, workers or
where ops run, and going on means: make the held inputs, then go on from the front. No joint is run again.

While the stream runs nothing of this is computed. Chunks carry an *origin*, which can tell the cursor after any
of their samples when somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from penstock.provenance import Place, input_of, key_of, steps_from
from penstock.resume.schema import Edge, Front, Owed


class Held(NamedTuple):
    """An input that is still owed; with `after`, only what comes of it after those sub-indices."""

    place: Place
    after: tuple[int, ...] | None = None


class Mark(Protocol):
    """A feed between two of its outputs."""

    def saved(self) -> Front:
        """As plain data."""


class Given(NamedTuple):
    """A feed where a saved state says it was."""

    front: Front

    def saved(self) -> Front:
        return self.front


class Cursor(NamedTuple):
    """What is still owed on an edge."""

    front: Mark
    held: tuple[Held, ...] = ()

    def partly(self, place: Place, depth: int) -> Cursor:
        """The same, where only what comes up to the sample at `place` was taken of its input, and not the rest.

        `depth` ops have made several samples of one since the input.
        """
        if not depth:
            return self
        of = input_of(place, depth)
        known = key_of(of)
        others = tuple(one for one in self.held if key_of(one.place) != known)
        return Cursor(self.front, (Held(of, steps_from(place, depth)), *others))


def saved_edge(cursor: Cursor | None) -> Edge | None:
    """An edge as plain data; None if it has not begun."""
    return None if cursor is None else Edge(cursor.front.saved(), Owed.of(cursor.held))


class Lot(Protocol):
    """Consecutive inputs of tickets that came together: outputs of one step of a joint, or one chunk."""

    def cursor_at(self, number: int) -> Cursor:
        """The cursor of the edge that leads here, after input `number` of the lot was taken."""


#: how many inputs of a ticket came before, the lot that the next came from, and the number of the first there
Came = tuple[int, Lot, int]


class FromParts:
    """The origin of a ticket whose inputs came from other stages."""

    __slots__ = ("_came", "_depth", "_edge_depth", "_grouped", "_places")

    def __init__(
        self, places: Sequence[Place], came: Sequence[Came], depth: int, edge_depth: int, grouped: bool = False
    ) -> None:
        self._places = places
        #: workers put the inputs together into batches
        self._grouped = grouped
        self._came = came
        #: ops of this stage that make several samples of one, and ops since the feed that do
        self._depth = depth
        self._edge_depth = edge_depth

    def cursor(self, place: Place) -> Cursor:
        return self.behind(input_of(place, self._depth)).partly(place, self._edge_depth)

    def behind(self, of: Place) -> Cursor:
        key = key_of(of[-1] if self._grouped else of)
        number = next(number for number, one in enumerate(self._places) if key_of(one) == key)
        offset, lot, first = next(one for one in reversed(self._came) if one[0] <= number)
        return lot.cursor_at(first + number - offset)

    def lost_input(self, place: Place, steps: int) -> Place:
        steps -= self._edge_depth - self._depth
        if steps < 0:
            return None  # it was lost before it came to this stage
        of = input_of(place, steps)
        key = key_of(of[-1] if self._grouped else of)
        return of if any(key_of(one) == key for one in self._places) else None


class FromRedo:
    """The origin of inputs that were owed before the front when a state was saved, and are made again first."""

    __slots__ = ("_depth", "_front", "_held", "_numbers")

    def __init__(
        self, front: Mark, held: Sequence[Held], depth: int, names: Mapping[Hashable, Place] = MappingProxyType({})
    ) -> None:
        """`names`: what inputs are called now, by the keys of their places, where that is not as in `held`."""
        self._front = front
        self._held = tuple(held)
        self._depth = depth
        keys = (key_of(one.place) for one in self._held)
        self._numbers = {key_of(names[key]) if key in names else key: number for number, key in enumerate(keys)}

    def cursor(self, place: Place) -> Cursor:
        return self.behind(input_of(place, self._depth)).partly(place, self._depth)

    def behind(self, of: Place) -> Cursor:
        return Cursor(self._front, self._held[self._numbers.get(key_of(of), -1) + 1 :])

    def lost_input(self, place: Place, steps: int) -> Place:
        of = input_of(place, steps)
        return of if key_of(of) in self._numbers else None


class BehindLoss(NamedTuple):
    """The origin of a loss that stands elsewhere than its chunk: behind a joint, or overtaken by later samples."""

    where: Callable[[], Cursor]

    def behind(self, of: Place) -> Cursor:
        return self.where()

    def lost_input(self, place: Place, steps: int) -> Place:
        return place


class Left(NamedTuple):
    """What has left of a ticket: its inputs, the last sample, and the input that was lost after that, if any.

    A loss that has left is reported, so its input is not owed. One that was made of an input is not counted here:
    samples that were made before it might come twice.
    """

    inputs: Sequence[Place]
    last: Place = None
    lost: Place = None


class Unordered:
    """The origin of a chunk of a stage that does not keep the order: what of other tickets left before it."""

    __slots__ = ("_depth", "_high", "_inputs", "_others", "_unit")

    def __init__(
        self, inputs: Sequence[Place], others: Sequence[Left], high: Any, depth: int, unit: int = 0
    ) -> None:
        self._inputs = inputs
        #: the tickets of which not all has left
        self._others = others
        #: the last ticket of which something has left
        self._high = high
        self._depth = depth
        #: positions per input where workers make the batches; 0 elsewhere
        self._unit = unit

    def cursor(self, place: Place) -> Cursor:
        return self.after(Left(self._inputs, place))

    def after(self, own: Left) -> Cursor:
        """What is still owed after so much of the chunk's own ticket."""
        base: Cursor = self._high.origin.behind(self._grouped(self._high.inputs)[-1])
        owed = [*self._rest(own)]
        for other in self._others:
            owed += self._rest(other)
        return Cursor(base.front, (*owed, *base.held))

    def behind(self, of: Place) -> Cursor:
        return self.after(Left(self._inputs, lost=of))

    def lost_input(self, place: Place, steps: int) -> Place:
        key = key_of(place)
        return place if any(key_of(one) == key for one in self._grouped(self._inputs)) else None

    def _rest(self, left: Left) -> list[Held]:
        """What is owed of a ticket."""
        inputs = self._grouped(left.inputs)
        numbers = {key_of(place): number for number, place in enumerate(inputs)}
        if left.lost is not None and (number := numbers.get(key_of(left.lost))) is not None:
            return [Held(place) for place in inputs[number + 1 :]]
        if left.last is None:
            return [Held(place) for place in inputs]
        number = numbers[key_of(input_of(left.last, self._depth))]
        rest = [Held(place) for place in inputs[number + 1 :]]
        if self._depth:
            rest.insert(0, Held(inputs[number], steps_from(left.last, self._depth)))
        return rest

    def _grouped(self, inputs: Sequence[Place]) -> Sequence[Place]:
        """The inputs of a ticket, as its batches where the worker makes them."""
        unit = self._unit
        return [inputs[first : first + unit] for first in range(0, len(inputs), unit)] if unit else inputs
