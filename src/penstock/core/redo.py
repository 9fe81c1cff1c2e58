"""Going on where a state was saved: which inputs of an edge are made again first, and what of them is wanted. Pure.

An edge that is resumed begins with its *redo*: inputs before its front that are owed, and inputs of which a joint
further on kept samples. They are made in the order in which they stand here, and everything after the front
follows. `Intake` lets pass what is wanted of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from penstock.places import places_from
from penstock.program.chunk import Chunk, Loss
from penstock.provenance import Place, input_of, key_of, steps_from
from penstock.resume.cursor import Given, Held, Mark
from penstock.resume.schema import Edge, Front

Steps = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Want:
    """Of what is made of the input at `place`: all from `first` to `last`."""

    place: Place
    first: Steps | None = None
    last: Steps | None = None

    @staticmethod
    def sample(place: Place, depth: int) -> Want:
        """The one sample at `place`."""
        steps = steps_from(place, depth)
        return Want(input_of(place, depth), steps or None, steps or None)

    def met(self, steps: Steps, made: Sequence[Steps]) -> bool:
        """Whether what was lost at `steps` came behind all that is meant: the last of that is in `made`."""
        return self.last is not None and steps == self.last[: len(steps)] and self.last in made

    def holds(self, steps: Steps) -> bool:
        """Whether a sample with these sub-indices is meant, or one that covers such a sample."""
        low = self.first is None or steps >= self.first[: len(steps)]
        return low and (self.last is None or steps[: len(self.last)] <= self.last)


@dataclass(slots=True)
class Start:
    """Where an edge begins: at its beginning, where a state says, or only with what is wanted of it."""

    edge: Edge | None = None
    wanted: Sequence[Want] = ()
    #: nothing after the front is owed
    only_wanted: bool = False
    #: where outputs alternate: the inputs that were open when the state was saved
    opened: Sequence[Held] | None = None
    held: Sequence[Held] = field(init=False)

    def __post_init__(self) -> None:
        self.held = [] if self.edge is None else [Held(*one) for one in self.edge.held()]

    @property
    def front(self) -> Front | None:
        """The feed as it was saved."""
        return None if self.edge is None else self.edge.front

    def redo(self) -> Redo:
        """What is made again before anything else."""
        return Redo(self.held, self.wanted, self.opened)

    def __bool__(self) -> bool:
        return self.edge is not None or self.only_wanted


BEGINNING = Start()


class Redo:
    """The inputs that an edge makes again, in their order."""

    def __init__(self, held: Sequence[Held], wanted: Iterable[Want], opened: Sequence[Held] | None = None) -> None:
        # Where outputs alternate, what a joint further on wants is made apart from what takes turns.
        owed = {key_of(one.place) for one in held} if opened is None else set()
        opened = opened or ()
        self.wanted: dict[Hashable, list[Want]] = {}
        places: dict[Hashable, Place] = {}
        for want in wanted:
            key = key_of(want.place)
            self.wanted.setdefault(key, []).append(want)
            if key not in owed:
                places[key] = want.place
        self.held = {key_of(one.place): one for one in (*opened, *held)}
        #: how many are only wanted, by a joint that waits for them: they come first
        self.first = len(places)
        self.places: list[Place] = [*places.values(), *(one.place for one in (*opened, *held))]
        self.owed: list[Held] = list(held)

    def __len__(self) -> int:
        return len(self.places)

    def __contains__(self, place: Place) -> bool:
        return key_of(place) in self.wanted or key_of(place) in self.held


class Intake:
    """Lets pass what is wanted of the inputs that are made again; what comes after them passes untouched."""

    def __init__(self, redo: Redo, depth: int) -> None:
        self._redo = redo
        self._depth = depth

    def sift(self, chunk: Chunk) -> Chunk:
        """`chunk` without what was delivered before the state was saved."""
        chunk.losses = [loss for loss in chunk.losses if self._passes_loss(loss, chunk.places)]
        chunk.keep([self._passes(input_of(place, self._depth), place) for place in chunk.places])
        return chunk

    def _passes(self, of: Place, place: Place) -> bool:
        key = key_of(of)
        held, wanted = self._redo.held.get(key), self._redo.wanted.get(key)
        if held is None and wanted is None:
            return True
        steps = steps_from(place, self._depth)
        if held is not None and (held.after is None or _covers_later(steps, held.after)):
            return True
        return wanted is not None and any(want.holds(steps) for want in wanted)

    def _passes_loss(self, loss: Loss, places: Sequence[Place]) -> bool:
        """A loss covers all that would have been made of its sample, so it passes if any of that is wanted.

        Not so if all that was wanted has been made before it, and is at `places`.
        """
        for depth in range(self._depth + 1):
            of = input_of(loss.place, depth)
            if of not in self._redo:
                continue
            steps = steps_from(loss.place, depth)
            held, wanted = self._redo.held.get(key_of(of)), self._redo.wanted.get(key_of(of), ())
            if held is not None and (held.after is None or _covers_later(steps, held.after)):
                return True
            made = [
                steps_from(place, self._depth)
                for place in places
                if key_of(input_of(place, self._depth)) == key_of(of)
            ]
            return any(want.holds(steps) and not want.met(steps, made) for want in wanted)
        return True


@dataclass(slots=True)
class Resumed:
    """What a stage makes again when the stream is resumed, and what of that it lets pass."""

    redo: Redo
    depth: int
    #: where outputs alternate: the inputs that were open, and which of them is in which slot
    opened: Sequence[Held] = ()
    slots: Sequence[int] = ()

    def intakes(self, alternates: bool) -> tuple[Intake, Intake]:
        """What passes of tickets that only make samples again, and what of all others.

        Where outputs alternate, what only a joint further on has asked for must not take a turn.
        """
        if not alternates:
            intake = Intake(self.redo, self.depth)
            return intake, intake
        wanted = Redo((), [want for wants in self.redo.wanted.values() for want in wants])
        owed = Redo(list(self.redo.held.values()), ())
        return Intake(wanted, self.depth), Intake(owed, self.depth)


def _covers_later(steps: Steps, after: Steps) -> bool:
    """Whether something that is made of the sample at `steps` comes after all that is made of the one at `after`.

    >>> _covers_later((0,), (0, 1)), _covers_later((0, 2), (0, 1)), _covers_later((0, 1), (0,))
    (True, True, False)
    """
    return steps[: len(after)] > after or (len(steps) < len(after) and steps == after[: len(steps)])


def turns_key(segment: str) -> str:
    """What a state calls the turns of a stage whose outputs alternate."""
    return f"{segment}-turns"


def opened_in(front: Front | None) -> Sequence[Place]:
    """The inputs that were open, where outputs alternate."""
    if front is None or front.joint is None or not front.joint.endswith(turns_key("")):
        return ()
    return places_from(front.own["open"])


def given(front: Front | None) -> Mark:
    """A feed where it was saved, or at its beginning."""
    return Given(front or Front())
