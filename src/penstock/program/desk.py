"""What a worker process has in hand, on view for its parent.

A process that is killed cannot say what it was doing, so it writes that down as it goes, into a page
of memory that its parent sees too: the ticket, the op, the sample, and by when the call must end.
That costs about 0.1 µs per sample. Every field is one aligned word, so none is ever half written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.provenance import Place, counter, origin

if TYPE_CHECKING:
    from penstock.memory.segment import Mapping


#: in place of the number of a step: the source is being read
READING = -1

_TICKET, _STEP, _EPOCH, _POSITION, _WAY, _UNWANTED, _DEADLINE = range(7)
_SIGN = 1 << 63


class Sample(NamedTuple):
    """The sample in hand: the step that it is in, and what tells it from every other there."""

    step: int
    epoch: int
    position: int
    way: int


class Desk:
    """The page, as either side sees it. Only the worker writes, but for `unwanted`."""

    def __init__(self, mapping: Mapping) -> None:
        memory = np.asarray(mapping).data
        self._words = memory.cast("q")
        self._times = memory.cast("d")

    # ------------------------------------------------------------------ the worker

    def take(self, ticket: int) -> None:
        """Begin with a ticket, or with none: 0."""
        self._times[_DEADLINE] = inf
        self._words[_STEP] = READING - 1
        self._words[_TICKET] = ticket

    def at(self, step: int, epoch: int, place: Place) -> None:
        """The sample at `place` is in hand."""
        words = self._words
        if type(place) is not int:
            epoch, _ = origin(place, epoch)
            place, way = counter(place)
            words[_WAY] = way - 2 * _SIGN if way >= _SIGN else way
        else:
            words[_WAY] = 0
        words[_EPOCH] = epoch
        words[_POSITION] = place
        words[_STEP] = step

    def watch(self, step: int, epoch: int, samples: Sequence[Any], places: Sequence[Place]) -> Iterator[Any]:
        """The samples, each put down as it is taken."""
        words = self._words
        if isinstance(places, range):
            self.at(step, epoch, places.start)
            for position, sample in zip(places, samples, strict=True):
                words[_POSITION] = position
                yield sample
            return
        for place, sample in zip(places, samples, strict=True):
            self.at(step, epoch, place)
            yield sample

    def heed(self, deadline: float) -> None:
        """The call in hand must end by then; `inf` if there is none."""
        self._times[_DEADLINE] = deadline

    def wanted(self, ticket: int) -> bool:
        """Whether somebody still waits for what comes of a ticket."""
        return ticket > self._words[_UNWANTED]

    # ------------------------------------------------------------------ the parent

    @property
    def ticket(self) -> int:
        """The ticket in hand, or 0."""
        return self._words[_TICKET]

    @property
    def sample(self) -> Sample | None:
        """The sample in hand, if there is one."""
        words = self._words
        step, way = words[_STEP], words[_WAY]
        if not words[_TICKET] or step < READING:
            return None
        return Sample(step, words[_EPOCH], words[_POSITION], way + 2 * _SIGN if way < 0 else way)

    @property
    def deadline(self) -> float:
        """When the call in hand runs out of time."""
        return self._times[_DEADLINE]

    def forgo(self, ticket: int) -> None:
        """Nobody waits any more for tickets up to this one."""
        self._words[_UNWANTED] = ticket


def new_desk() -> tuple[int, Desk]:
    """A desk, and the descriptor to send to its worker."""
    from mmap import PAGESIZE

    from penstock.memory.segment import new_segment

    fd, mapping = new_segment(PAGESIZE)
    desk = Desk(mapping)
    desk.take(0)
    return fd, desk
