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
from typing import Any, ClassVar, NamedTuple

from penstock.ops.op import LOST, In, Input, Joint, Op
from penstock.provenance import Place

__all__ = ["Group", "Keeping", "Measured", "Measuring", "Resident"]


class Measured(NamedTuple):
    """A sample, and what it measures."""

    measure: Any
    sample: Any


@dataclass(frozen=True)
class Measuring(Op[In, Measured]):
    """Measures every sample by what `bind` returns: a function from the sample to a `Measured`."""

    #: it comes with the op behind it, and was not written by the user
    implied: ClassVar[bool] = True
    blocking = True
    elementwise = True

    def run(self, samples: list[Any], info: Any) -> Sequence[Any]:
        return list(info.each(info.bound, samples))


class Resident(NamedTuple):
    """A sample that a joint keeps: its number as `Input.taken` counts, its place, what it measures."""

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

    def __init__(self, hoards: str) -> None:
        self.hoards = hoards
        # In the order of arrival, which is the order of the numbers.
        self._held: dict[int, None] = {}
        #: what another joint saved, until the samples that it kept have come again
        self._saved: Any = None

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

    def readmit(self, kept: Sequence[Resident | None], stand: Any) -> None:
        """Put the samples of another joint where they were; None in the place of one that is lost."""
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

    @property
    def held(self) -> Sequence[int]:
        return list(self._held)

    def save(self) -> Any:
        return [self.kept, self.stand()] if self._saved is None else self._saved

    def restore(self, saved: Any) -> None:
        self._saved = saved

    def step(self, inputs: Sequence[Input], most: int) -> tuple[list[Any], Sequence[Place]]:
        (source,) = inputs
        groups: list[Any] = []
        places: list[Place] = []
        if self._saved is not None and not self._returned(source):
            return groups, places
        while len(groups) < most:
            group = self.due()
            if group is None:
                if source.count:
                    one = self._taken(source)
                    if one is not None:
                        self.accept(one)
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

    def _taken(self, source: Input) -> Resident | None:
        number = source.taken
        (sample,), (place,) = source.take(1)
        if sample is LOST:
            return None
        self._held[number] = None
        return Resident(number, place, *sample)

    def _returned(self, source: Input) -> bool:
        """Take back what was kept before a resume, all of it at once; False while some has yet to come."""
        count, stand = self._saved
        if source.count < count and not source.ended:
            return False
        self.readmit([self._taken(source) for _ in range(min(count, source.count))], stand)
        self._saved = None
        return True
