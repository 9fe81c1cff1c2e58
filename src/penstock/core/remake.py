"""Going on with a joint where a state was saved: what its inputs make again, and what is made of that. Pure.

A joint is never run again to get where it was. Its inputs make the samples that it had kept, and those of which
outputs are still owed. `Remake` starts the inputs with that, makes the owed outputs, and restores the joint.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple

from penstock.core.feeder import Feeder, Sought
from penstock.core.queue import Queue
from penstock.core.redo import BEGINNING, Redo, Start, Want, given
from penstock.errors import PenstockError, StateMismatch
from penstock.ops.joint import LOST, Ingredient, Joint
from penstock.program.chunk import ErrorRecord, Loss
from penstock.provenance import Place, key_of
from penstock.resume.cursor import BehindLoss, Cursor, FromRedo, Held, Mark
from penstock.resume.schema import Front, InputState


class Remake:
    """What a joint makes again when it is resumed, before it goes on."""

    def __init__(self, inlet: Any, joint: Joint, redo: Redo, front: Front | None) -> None:
        self.front: Mark = given(front)
        self.only_wanted = False
        self._joint = joint
        self._queues = inlet.queues
        self._on = inlet._on
        self._names = inlet._names
        self._epoch = inlet.epoch
        self._saved = front
        self._redo = redo
        #: the owed outputs, each with what its members are made again as
        self._outputs: list[tuple[Place, list[Sought]]] = []
        self._held: list[Sought] = []

    def begin(self, only_wanted: bool) -> None:
        """Start the inputs, each with what is wanted of it."""
        self.only_wanted = only_wanted
        saved = [] if self._saved is None else self._saved.inputs
        if saved and not self._names and len(saved) != len(self._queues):
            raise StateMismatch(
                f"the state is damaged: it has {len(saved)} inputs where there are {len(self._queues)}"
            )
        by_name = {one.name: one for one in saved if one is not None and one.name is not None}
        states: list[InputState | None] = [
            by_name.get(self._names[number]) if self._names else (saved[number] if number < len(saved) else None)
            for number in range(len(self._queues))
        ]
        for queue, state in zip(self._queues, states, strict=True):
            queue.epoch = self._epoch if state is None else state.epoch
            queue.note = None if state is None else state.note
        sought: list[dict[int, list[Sought]]] = [{} for _ in self._queues]

        def seek(part: Ingredient) -> Sought:
            queue = self._queues[part.input]
            want = (
                Want(part.place, part.first, part.last)
                if part.whole_input
                else Want.sample(part.place, queue.depth)
            )
            epoch = queue.epoch if part.epoch is None else part.epoch
            sought[part.input].setdefault(epoch, []).append(found := Sought(want, part.input, epoch))
            return found

        for place in self._redo.places:
            self._outputs.append((place, [seek(part) for part in self._joint.ingredients(place)]))
        if self._saved is not None and not only_wanted:
            self._held = [seek(part) for part in self._joint.held(self._saved.own, self._queues)]
        for number, queue in enumerate(self._queues):
            self._start(queue, states[number], sought[number], only_wanted)

    def _start(
        self, queue: Feeder, state: InputState | None, sought: dict[int, list[Sought]], only_wanted: bool
    ) -> None:
        """Start one input: passes of which only something is wanted, and then the one that goes on."""
        now = None if state is None or only_wanted else state.epoch
        passes = []
        for epoch in sorted(sought):
            if epoch != now:
                wants = [one.want for one in sought[epoch]]
                passes.append((epoch, Start(None, wants, only_wanted=True)))
        if now is not None and state is not None:
            wants = [one.want for one in sought.get(now, ())]
            passes.append((now, Start(state.edge, wants)))
        elif not self._joint.opens_inputs and not only_wanted:
            passes.append((self._epoch, BEGINNING))
        if passes:
            queue.begin(passes, sought)
        else:
            queue.clear()
            queue.epoch = -1
        queue.taken = 0 if state is None else state.taken

    def finish(self, passed: Queue) -> None:
        """All that was wanted has come: put together the owed outputs, and restore the joint."""
        samples: list[Any] = []
        places: list[Place] = []
        losses: list[Loss] = []
        told: set[int] = set()
        #: what outputs are called once they have passed; until then they are owed whole, since what was lost of
        #: them passes right before them
        names: dict[Hashable, Place] = {}
        origin = FromRedo(self.front, self._redo.owed, 0)
        for place, parts in self._outputs:
            found = [one.found[0][0] if one.found else LOST for one in parts]
            gone = all(one is LOST for one in found)
            for one in parts:
                # An input that fails after it has made the sample: that was reported with what comes next.
                new = [] if one.found else [loss for loss in one.losses if id(loss.record) not in told]
                losses += [
                    self._on(loss, one.input, one.epoch)._replace(
                        before=len(samples),
                        told=loss.told or not gone,
                        origin=BehindLoss(partial(origin.behind, place)) if gone else None,
                    )
                    for loss in new
                ]
                told.update(id(loss.record) for loss in new)
            made = LOST if gone else self._joint.remake(place, found)
            partly = self._redo.wanted.get(key_of(place)) or self._redo.held.get(key_of(place), Held(0)).after
            if made is LOST or (partly and any(one is LOST for one in found) and len(found) > 1):
                if made is not LOST or not any(one.losses for one in parts):
                    losses.append(_vanished(len(samples), place))
                continue
            samples.append(made)
            places.append(_of_those_left(place, found))
            names[key_of(place)] = places[-1]
        lot = _RedoLot(FromRedo(self.front, self._redo.owed, 0, names), places)
        passed.add(samples, places, losses, lot, redo=True)
        if self._saved is not None and not self.only_wanted:
            self._joint.restore(self._saved.own, self._held)
            for one in self._held:
                more = [loss for loss in one.losses if id(loss.record) not in told]
                passed.add([], (), [loss._replace(before=0, hard=True, told=True, origin=None) for loss in more])
                told.update(id(loss.record) for loss in more)


class _RedoLot(NamedTuple):
    """Owed outputs that were put together again."""

    origin: FromRedo
    places: Sequence[Place]

    def cursor_at(self, number: int) -> Cursor:
        return self.origin.cursor(self.places[number])


def _of_those_left(place: Place, members: Sequence[Any]) -> Place:
    """The place of a group without those of its members that were lost when it was made again.

    What is made of the group is numbered by those that are left: should the others succeed in a later resume, the
    numbers must still mean the same.
    """
    if not isinstance(place, (range, list)) or not any(one is LOST for one in members):
        return place
    return [one for one, sample in zip(place, members, strict=True) if sample is not LOST]


def _vanished(before: int, place: Place) -> Loss:
    """A sample that was there when the state was saved and is not made again, or of which something is missing.

    What had been delivered of a group before cannot be told from the rest if one of its samples is missing.
    """
    exc = PenstockError(
        "this sample, or a sample of this group, was there when the state was saved, and is not made any more; "
        "functions must return the same for the same sample"
    )
    return Loss(before, ErrorRecord("resume", -1, 0, exc, place), place, hard=True)
