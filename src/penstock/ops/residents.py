"""What bucket and pack have in common: samples are measured by the workers, and kept until their group leaves.

* `Measuring`: the op that stands right before the one that groups. It runs where the samples are
  made, and hands on pairs, `Measured`, so that the joint need not look into a sample.
* `Keeping`: the joint. It takes samples one by one, and never one beyond that which completes the
  group it returns, so where it stands between two steps does not depend on how many arrived.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

from penstock.ops.joint import LOST, Ingredient, Input, Joint, Redone
from penstock.ops.op import In, Op
from penstock.places import places_from, plain_places
from penstock.provenance import Piece, Place


class Measured(NamedTuple):
    """A sample, and what it measures."""

    measure: Any
    sample: Any


@dataclass(frozen=True)
class Measuring(Op[In, Measured]):
    """Measures every sample by what `bind` returns: a function from the sample to a `Measured`."""

    elementwise = True

    def run(self, samples: list[Any], info: Any) -> Sequence[Any]:
        return list(info.each(info.bound, samples))


class Resident(NamedTuple):
    """A sample that a joint keeps: a number of its own, its place, what it measures."""

    number: int
    place: Place
    measure: Any
    sample: Any


#: what leaves: a sample for the op's `run`, and the places of its members
Group = tuple[Any, list[Place]]


class Keeping(Joint):
    """Keeps samples between two steps, and can be resumed with them.

    A subclass puts a sample somewhere (`accept`), says which group has to leave now (`due`) or at
    the end (`rest`), and calls `let_go` for every sample that has left for good.
    """

    groups = True
    per_output = 0

    def __init__(self, hoards: str) -> None:
        self.hoards = hoards
        #: the places of what is kept, by number, in the order of arrival
        self._held: dict[int, Place] = {}
        self._numbers = count()

    @abstractmethod
    def accept(self, one: Resident) -> None:
        """Put a new sample where it belongs."""

    @abstractmethod
    def due(self) -> Group | None:
        """The next group that has to leave before another sample is taken."""

    @abstractmethod
    def rest(self) -> Group | None:
        """The next group that leaves because no more samples will come."""

    def stand(self) -> Any:
        """What cannot be worked out from the samples that are kept; plain data."""
        return None

    def readmit(self, kept: Sequence[Resident | None], starts: Sequence[int], stand: Any) -> None:
        """Put the samples of another joint where they were, each from where on it was kept.

        None stands in the place of one that is lost, and of `stand` where samples come from several joints.
        """
        for one in kept:
            if one is not None:
                self.accept(one)

    def let_go(self, number: int) -> None:
        """The sample is no longer kept."""
        del self._held[number]

    # ------------------------------------------------------------------ what the runtime sees

    @property
    def kept(self) -> int:
        """How many samples are kept."""
        return len(self._held)

    def save(self) -> Any:
        return self.places(), self.stand()

    def places(self) -> Sequence[Place]:
        """The places of what is kept, as a `Piece` where only a part of a sample is."""
        return tuple(self._held.values())

    @staticmethod
    def plain(saved: Any, owed: int) -> Any:
        places, stand = saved
        return {"held": plain_places(places), "stand": stand}

    def held(self, saved: Any, inputs: Sequence[Input]) -> Sequence[Ingredient]:
        return (
            []
            if saved is None
            else [Ingredient(one.place if type(one) is Piece else one) for one in self._saved(saved)]
        )

    def _saved(self, saved: Any) -> list[Place]:
        return places_from(saved["held"])

    def restore(self, saved: Any, held: Sequence[Redone]) -> None:
        if saved is not None:
            starts = [one.start if type(one) is Piece else 0 for one in self._saved(saved)]
            self.readmit([self._kept_again(one) for one in held], starts, saved["stand"])

    def merged(self, saved: Sequence[Any], rank: int, world: int) -> Any:
        places = [place for one in saved if one is not None for place in places_from(one["held"])]
        return {"held": plain_places(places[rank::world]), "stand": None}

    def _kept_again(self, redone: Redone) -> Resident | None:
        return self._taken(*redone.found[0]) if redone.found else None

    def ingredients(self, place: Place) -> Sequence[Ingredient]:
        return [Ingredient(one) for one in place]

    def remake(self, place: Place, samples: Sequence[Any]) -> Any:
        return [sample.sample for sample in samples if sample is not LOST] or LOST

    def step(self, inputs: Sequence[Input], most: int) -> tuple[list[Any], Sequence[Place]]:
        (source,) = inputs
        groups: list[Any] = []
        places: list[Place] = []
        while len(groups) < most:
            group = self.due()
            if group is None:
                if source.count:
                    (sample,), (place,) = source.take(1)
                    self.accept(self._taken(sample, place))
                    continue
                if not source.ended:
                    break
                group = self.rest()
                if group is None:
                    self.ended = True
                    break
            groups.append(group[0])
            places.append(group[1])
        return groups, places

    def _taken(self, sample: Measured, place: Place) -> Resident:
        number = next(self._numbers)
        self._held[number] = place
        return Resident(number, place, *sample)
