"""What moves: a ticket goes to a worker, a chunk comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

from penstock.provenance import Place, chosen, joined
from penstock.runtime.marks import Origin, Trace

__all__ = ["Chunk", "CountVaried", "ErrorRecord", "Failure", "Ticket"]


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
    #: the segment of the pipeline that it was lost in, and which epoch that was there
    segment: str = field(default="", repr=False, compare=False)
    turn: int = field(default=0, repr=False, compare=False)
    #: what it was made of there: the number of the segment's input, and the way from that. In a segment further
    #: on, the first of the inputs that it was missing for
    at: tuple[int, tuple[int, ...]] | None = field(default=None, repr=False, compare=False)
    within: str = field(default="", repr=False, compare=False)
    #: it was lost, and told, before a resume
    known: bool = field(default=False, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.op}, sample {self.index}, epoch {self.epoch}: {self.exception!r}"


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
    #: samples lost upstream, to be told when the stream comes to this place
    losses: list[ErrorRecord] = field(default_factory=list)
    #: bytes that its samples take of the loader's budget
    nbytes: int = 0
    #: where its inputs came from
    trace: Trace | None = None

    @property
    def positions(self) -> range:
        """What is to be read."""
        return range(self.first, self.last, self.step)

    @property
    def count(self) -> int:
        """How many samples go in."""
        return len(self.positions) if self.samples is None else len(self.samples)


@dataclass(slots=True)
class Chunk:
    """Samples with their places, what was lost on the way, and the failure that ends them, if any."""

    samples: Any
    places: Sequence[Place]
    failure: Failure | None = None
    losses: list[ErrorRecord] = field(default_factory=list)
    #: bytes that it takes of the loader's budget: where it is in a block, all of that
    nbytes: int = 0
    #: its ticket has no more chunks
    final: bool = False
    #: where its samples came from
    trace: Origin | None = None

    @property
    def blank(self) -> bool:
        """Nothing in it to deliver or to tell."""
        return not self.samples and not self.losses and self.failure is None

    def keep(self, kept: Sequence[bool]) -> None:
        """Leave out the samples whose entry is false."""
        if not all(kept):
            self.samples = list(compress(self.samples, kept))
            self.places = chosen(self.places, kept)

    @staticmethod
    def join(parts: list[Chunk]) -> Chunk:
        """Consecutive chunks as one."""
        if len(parts) == 1:
            return parts[0]
        samples: list[Any] = []
        losses: list[ErrorRecord] = []
        for part in parts:
            samples += part.samples
            losses += part.losses
        places = joined([part.places for part in parts if part.samples] or [()])
        return Chunk(samples, places, parts[-1].failure, losses, final=parts[-1].final)
