"""Samples that wait in the order of delivery, with what was lost among them. Pure.

A queue stands before every joint, and behind it. It remembers the lot that each sample came in, so that the
stream can be told to stand after any of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from penstock.ops.joint import Absent, Length
from penstock.program.chunk import Chunk, Failure, Loss, LossOrigin, Origin
from penstock.provenance import Place, joined
from penstock.resume.cursor import Came, Cursor, Lot


class ChunkLot(NamedTuple):
    """A chunk of the stage before: where its samples came from, without them."""

    places: Sequence[Place]
    origin: Origin

    def cursor_at(self, number: int) -> Cursor:
        return self.origin.cursor(self.places[number])


class _AfterLoss(NamedTuple):
    """What was lost behind the last sample that has come, as a lot of which all is taken."""

    origin: LossOrigin
    #: what the origin stands behind
    of: Place

    def cursor_at(self, number: int) -> Cursor:
        return self.origin.behind(self.of)


class _Part:
    """Samples that came together."""

    __slots__ = ("first", "losses", "lot", "places", "redo", "samples")

    def __init__(
        self, samples: list[Any], places: Sequence[Place], losses: Sequence[Loss], lot: Lot | None, redo: bool
    ) -> None:
        #: made again, as it was owed when a state was saved
        self.redo = redo
        self.samples = samples
        self.places = places
        self.losses = deque(losses)
        self.lot = lot
        #: how many samples have been taken
        self.first = 0

    def leaving(self, loss: Loss, before: int) -> Loss:
        """One of the losses, among the samples that it leaves with."""
        origin = loss.origin
        if origin is None and not loss.hard and type(self.lot) is ChunkLot:
            origin = self.lot.origin
        return loss._replace(before=before, origin=origin)

    def let_go(self) -> None:
        """All samples are taken, and their list belongs to whoever took them; what was lost behind them stays."""
        self.samples, self.places, self.first = [], (), 0
        self.losses = deque(loss._replace(before=0) for loss in self.losses)


class Queue:
    """An `Input` of a joint; and what a joint has passed on, until tickets are cut of it."""

    def __init__(self, *, length: Length = None, depth: int = 0, ordered: bool = True) -> None:
        self.length = length
        self.note: Any = None
        self.depth = depth
        self.ordered = ordered
        #: samples that have come in all, and what they weigh
        self.come = self.come_bytes = 0
        self.epoch = -1
        self.taken = 0
        self.clear()

    def clear(self) -> None:
        """Nothing waits here, and nothing has been taken."""
        self.count = 0
        #: lost samples that wait here, and how many of them take no place
        self.lost = 0
        self._told = 0
        self.ended = False
        self.failure: Failure | None = None
        #: the lot of the sample taken last, and its number there
        self.last: tuple[Lot, int] | None = None
        #: where the samples taken last came from, and what was lost before each of them
        self.came: list[Came] = []
        self.passed: list[Loss] = []
        #: those taken last were made again
        self.redone = False
        #: some that came were made again
        self._redoes = False
        self._stepped = 0
        self._parts: deque[_Part] = deque()

    def add(
        self,
        samples: list[Any],
        places: Sequence[Place],
        losses: Sequence[Loss] = (),
        lot: Lot | None = None,
        redo: bool = False,
    ) -> None:
        """Samples that came together, and what was lost among them."""
        if samples or losses:
            self._parts.append(_Part(samples, places, losses, lot, redo))
            self.count += len(samples)
            self._redoes = self._redoes or redo
            if losses:
                self.lost += len(losses)
                self._told += sum(loss.told for loss in losses)

    def add_chunk(self, chunk: Chunk) -> None:
        lot = None if chunk.origin is None else ChunkLot(chunk.places, chunk.origin)
        self.add(chunk.samples, chunk.places, chunk.losses, lot, chunk.redo)

    @property
    def alike(self) -> int:
        """How many samples one ticket may have: what is made again does not travel with what is not."""
        if not self._redoes or not self._next_is_redone:
            return self.count
        left = [part for part in self._parts if part.first < len(part.samples)]
        return sum(len(part.samples) - part.first for part in takewhile(lambda part: part.redo, left)) or self.count

    @property
    def _next_is_redone(self) -> bool:
        """Whether the next sample was made again. What was lost goes with any."""
        return self._redoes and next((part.redo for part in self._parts if part.first < len(part.samples)), False)

    def place_at(self, number: int) -> Place:
        """The place of sample `number` of those that wait."""
        for part in self._parts:
            left = len(part.samples) - part.first
            if number < left:
                return part.places[part.first + number]
            number -= left
        raise IndexError(number)

    @property
    def in_row(self) -> int:
        """How many of the next samples came together and have consecutive places."""
        part = self._parts[0] if self._parts else None
        return len(part.samples) - part.first if part is not None and type(part.places) is range else 0

    def leading(self) -> list[Loss]:
        """Remove and return what was lost before the next sample."""
        out: list[Loss] = []
        while self._parts:
            part = self._parts[0]
            while part.losses and part.losses[0].before <= part.first:
                out.append(part.leaving(part.losses.popleft(), 0))
            if part.losses or part.first < len(part.samples):
                break
            self._parts.popleft()
        self._gone(out)
        if not self.count:
            self._stand_behind(out)
        return out

    def _stand_behind(self, losses: Sequence[Loss]) -> None:
        """Losses leave, and no sample waits: the stream stands behind the last of them.

        Otherwise it would be owed still, and a joint further on that keeps it would want what is to come.
        """
        for loss in reversed(losses):
            origin = loss.origin
            if origin is not None and (of := origin.lost_input(loss.place, loss.steps)) is not None:
                self.last = _AfterLoss(origin, of), 0
                return

    def _gone(self, losses: Sequence[Loss]) -> None:
        """These wait here no longer."""
        self.lost -= len(losses)
        self._told -= sum(loss.told for loss in losses)

    @property
    def trailing(self) -> int:
        """How many were lost behind the last sample that waits here."""
        found = 0
        for part in reversed(self._parts):
            found += sum(loss.before >= len(part.samples) for loss in part.losses)
            if part.first < len(part.samples):
                break
        return found

    def shed(self) -> list[Loss]:
        """Remove and return what was lost behind the last sample that waits here."""
        out: list[Loss] = []
        for part in reversed(self._parts):
            kept = [loss for loss in part.losses if loss.before < len(part.samples)]
            out = [part.leaving(loss, 0) for loss in part.losses if loss.before >= len(part.samples)] + out
            part.losses = deque(kept)
            if part.first < len(part.samples):
                break
        self._gone(out)
        return out

    def begin_step(self) -> None:
        """A joint is about to take some: forget what was told of those taken before."""
        self.came, self.passed, self._stepped = [], [], 0

    def take(self, most: int) -> tuple[list[Any], Sequence[Place]]:
        """The first samples, at the most so many; what was lost before them is in `passed`."""
        taken: list[tuple[list[Any], Sequence[Place]]] = []
        self.redone = self._next_is_redone
        already, left = self._stepped, min(most, self.count)
        most = left
        while left > 0:
            part = self._parts[0]
            first, stop = part.first, min(part.first + left, len(part.samples))
            if stop > first:
                offset = already + most - left
                if part.lot is not None:
                    self.came.append((offset, part.lot, first))
                    self.last = part.lot, stop - 1
                left -= stop - first
                whole = first == 0 and stop == len(part.samples)
                taken.append(
                    (part.samples, part.places) if whole else (part.samples[first:stop], part.places[first:stop])
                )
                while part.losses and part.losses[0].before < stop:
                    loss = part.losses.popleft()
                    self._gone((loss,))
                    self.passed.append(part.leaving(loss, offset + max(loss.before - first, 0)))
                part.first = stop
                if stop == len(part.samples) and part.losses:
                    part.let_go()
            else:
                self._pass_over(part, already + most - left)
            if part.first == len(part.samples) and not part.losses:
                self._parts.popleft()
        self.count -= most
        self.taken += most
        self._stepped += most
        if not taken:
            return [], ()
        if len(taken) == 1:
            return taken[0]
        samples: list[Any] = []
        for some, _ in taken:
            samples += some
        return samples, joined([one[1] for one in taken])

    def _pass_over(self, part: _Part, offset: int) -> None:
        """All samples of `part` are taken, and more will be: what was lost behind them stands before the next."""
        self._gone(part.losses)
        self.passed += [part.leaving(loss, offset) for loss in part.losses]
        part.losses.clear()

    @property
    def items(self) -> int:
        return self.count + self.lost - self._told

    def has_items(self, most: int) -> bool:
        if self.ended or not self.lost:
            return self.items > 0 if self.ended else self.count >= most
        lost_first = behind = 0
        for part in self._parts:
            lost_first += sum(loss.before <= part.first and not loss.told for loss in part.losses)
            if part.first < len(part.samples):
                break
        for part in reversed(self._parts):
            behind += sum(loss.before >= len(part.samples) and not loss.told for loss in part.losses)
            if part.first < len(part.samples):
                break
        return lost_first >= most or (self.count > 0 and self.items - behind >= most)

    def take_items(self, most: int) -> tuple[list[Any], Sequence[Place]]:
        """The first `most` samples and lost ones in their order; with a sample among them, as many more as it takes
        to end with one, and none behind the last: so the stream can be told to stand right behind them.
        """
        out: list[Any] = []
        places: list[Place] = []
        counted = 0
        alone = True
        while self._parts and (counted < most or (not alone and type(out[-1]) is Absent)):
            if not alone and not self.count:
                break
            part = self._parts[0]
            if part.losses and part.losses[0].before <= part.first:
                loss = part.losses.popleft()
                self._gone((loss,))
                out.append(Absent(part.leaving(loss, 0)))
                places.append(loss.place)
                counted += not loss.told
            else:
                stop = part.losses[0].before if part.losses else len(part.samples)
                stop = min(stop, part.first + max(most - counted, 1))
                alone = alone and stop == part.first
                counted += stop - part.first
                out += part.samples[part.first : stop]
                places += part.places[part.first : stop]
                self.count -= stop - part.first
                self.taken += stop - part.first
                part.first = stop
                if part.lot is not None:
                    self.last = part.lot, stop - 1
            if part.first == len(part.samples) and not part.losses:
                self._parts.popleft()
        if alone:
            self._stand_behind([one.loss for one in out])
        return out, places
