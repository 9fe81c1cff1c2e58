"""What moves: a ticket goes to a worker, a chunk comes back. A lost sample travels in its place, as a `Loss`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, compress
from typing import Any, NamedTuple, Protocol

from penstock.provenance import Place, chosen, joined
from penstock.resume.cursor import Cursor


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """One sample that was left out, or that ended the run: an entry of ``loader.errors()``."""

    #: the op as `explain()` shows it
    op: str
    #: the sample's number in its source (for a stream, its number in the epoch)
    index: int
    epoch: int
    exception: BaseException
    #: where in the order of the epoch the sample stood
    place: Place = None
    #: what the source calls the sample, such as the path of its file; nothing if it has no name for it
    name: str = ""

    def __str__(self) -> str:
        return f"{self.op}, sample {sample_label(self.index, self.name)}, epoch {self.epoch}: {self.exception!r}"


def sample_label(index: Any, name: str) -> str:
    """A sample in a message: its number, and its name if it has one.

    >>> sample_label(7, ""), sample_label(7, "cat/001.jpg")
    ('7', "7 ('cat/001.jpg')")
    """
    return f"{index} ({name!r})" if name else str(index)


class Loss(NamedTuple):
    """A lost sample, in its place: it stands right before sample number `before` of its chunk or queue."""

    before: int
    record: ErrorRecord
    #: the recipe of the sample where it stands now
    place: Place
    #: its place is no recipe here: it was lost before samples were put together into groups
    hard: bool = False
    #: reported, and no more: it is told again after a resume, and took its place in the stream before
    told: bool = False
    #: how many ops had made several samples of one, since the last joint or the source, before it was lost
    steps: int = 0
    #: the origin that knows where the stream stands right behind it; None if that is the origin of its chunk
    origin: LossOrigin | None = None

    @staticmethod
    def of(before: int, record: ErrorRecord) -> Loss:
        """A sample that was lost just now."""
        return Loss(before, record, record.place)


@dataclass(frozen=True, slots=True)
class Failure:
    """What ends the stream at its place."""

    exception: BaseException
    record: ErrorRecord | None = None


class CountVaried(Exception):
    """A sample was skipped where the plan had relied on the count: go on from `position` another way."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


class LossOrigin(Protocol):
    """Where a lost sample came from."""

    def behind(self, of: Place) -> Cursor:
        """What is still owed once all that is made of the ticket's input at `of` has been taken."""

    def lost_input(self, place: Place, steps: int) -> Place:
        """What the stream stands behind once a loss has left, for `behind`; None if unknown.

        It is the ticket's input that the loss was made of, by so many ops that make several of one.
        """


class Origin(LossOrigin, Protocol):
    """Where the samples of a chunk came from."""

    def cursor(self, place: Place) -> Cursor:
        """What is still owed once the sample at `place` has been taken, and all that left the stage before it."""


@dataclass(slots=True)
class Ticket:
    """A piece of work: positions ``first`` to ``last`` of the epoch (every ``step``-th), or samples."""

    epoch: int
    first: int = 0
    last: int = 0
    step: int = 1
    samples: list[Any] | None = None
    places: Sequence[Place] = ()
    #: the upstream ended in this; the ticket only carries it to its place in the order
    failure: Failure | None = None
    #: samples lost upstream, each in its place among the samples
    losses: list[Loss] = field(default_factory=list)
    #: bytes that its samples take of the loader's budget
    nbytes: int = 0
    #: where its inputs came from
    origin: Origin | None = None
    #: it makes again what was owed when a state was saved
    redo: bool = False

    @property
    def positions(self) -> range:
        """What is to be read."""
        return range(self.first, self.last, self.step)

    @property
    def count(self) -> int:
        """How many samples go in."""
        return len(self.positions) if self.samples is None else len(self.samples)

    @property
    def inputs(self) -> Sequence[Place]:
        """The places of what goes in."""
        return self.positions if self.samples is None else self.places


@dataclass(slots=True)
class Chunk:
    """Samples with their places, what was lost among them, and the failure that ends them, if any."""

    samples: Any
    places: Sequence[Place]
    failure: Failure | None = None
    losses: list[Loss] = field(default_factory=list)
    #: bytes reserved for it in the loader's budget
    nbytes: int = 0
    #: its ticket has no more chunks
    final: bool = False
    #: where its samples came from
    origin: Origin | None = None
    #: made again, as it was owed when a state was saved
    redo: bool = False

    @property
    def blank(self) -> bool:
        """Nothing in it to deliver or to report."""
        return not self.samples and not self.losses and self.failure is None

    def keep(self, kept: Sequence[Any]) -> None:
        """Leave out the samples whose entry is false."""
        if all(kept):
            return
        self.samples = list(compress(self.samples, kept))
        self.places = chosen(self.places, kept)
        if self.losses:
            left = [0, *accumulate(map(bool, kept))]
            self.losses = [loss._replace(before=left[loss.before]) for loss in self.losses]

    def after(self, count: int) -> Chunk:
        """The chunk without its first `count` samples, and what was lost before them."""
        losses = [loss._replace(before=loss.before - count) for loss in self.losses if loss.before > count]
        return replace(self, samples=self.samples[count:], places=self.places[count:], losses=losses)

    @staticmethod
    def join(parts: list[Chunk]) -> Chunk:
        """Consecutive chunks as one."""
        if len(parts) == 1:
            return parts[0]
        samples: list[Any] = []
        losses: list[Loss] = []
        for part in parts:
            if part.losses:
                losses += [loss._replace(before=loss.before + len(samples)) for loss in part.losses]
            samples += part.samples
        places = joined([part.places for part in parts if part.samples] or [()])
        return Chunk(samples, places, parts[-1].failure, losses, final=parts[-1].final)


def with_losses(losses: list[Loss], lost: Sequence[int], records: Sequence[ErrorRecord], stop: int) -> list[Loss]:
    """The losses of a chunk after samples number `lost` were lost too, and all from number `stop` on were cut off.

    >>> def record(place):
    ...     return ErrorRecord("map()", place, 0, ValueError(), place)
    >>> merged = with_losses([Loss.of(2, record(8))], [1, 3], [record(5), record(9)], 5)
    >>> [(loss.before, loss.place) for loss in merged]
    [(1, 5), (1, 8), (2, 9)]
    """
    if not lost and not losses:
        return losses
    old = [(loss.before, 0, loss) for loss in losses if loss.before <= stop]
    new = [(number, 1, Loss.of(number, record)) for number, record in zip(lost, records, strict=True)]
    out: list[Loss] = []
    dropped = 0
    for position, is_new, loss in sorted(old + new, key=lambda one: one[:2]):
        out.append(loss._replace(before=position - dropped))
        dropped += is_new
    return out
