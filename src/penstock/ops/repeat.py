"""repeat: the whole stream several times in one epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.checks import saved_number, whole_number
from penstock.ops.joint import Input, Joint, Length, Repeating
from penstock.ops.op import Effect, In, Key, Op, Order
from penstock.provenance import Passed, Place
from penstock.randomness import derive

#: where passes without a number begin in each epoch, far from those of other epochs
_FAR = 1 << 40
_FURTHEST = 1 << 62


@dataclass(frozen=True)
class Repeat(Op[In, In]):
    """Run through the samples `times` times in one epoch; without a number, for ever.

    Each pass counts as an epoch of what comes before: a shuffle gives it an order of its own.
    A batch after it may hold samples of two passes.

    >>> import penstock as ps
    >>> list(ps.from_sequence("ab").repeat(2))
    ['a', 'b', 'a', 'b']
    """

    times: int | None = None

    verb = "repeat"
    effect: ClassVar[Effect] = Effect.PASSES

    def __post_init__(self) -> None:
        if self.times is not None:
            object.__setattr__(self, "times", whole_number(self.times, "repeat(times)"))

    @property
    def label(self) -> str:
        return f"repeat({'' if self.times is None else self.times})"

    def order(self) -> Order:
        return _Passes(self.times)

    def joint(self, key: Key, epoch: int, memo: dict[str, Any]) -> Joint:
        return _Again(self.times, epoch)

    def length(self, n: Length) -> Length:
        if n == 0 or self.times == 0:
            return 0
        return math.inf if self.times is None else (None if n is None else n * self.times)


def first_pass(times: int | None, epoch: int) -> int:
    """The upstream's epoch with which epoch `epoch` begins.

    >>> first_pass(3, 2), first_pass(None, 1) == 1 << 40, first_pass(None, 1 << 40) < 1 << 62
    (6, True, True)
    """
    first = epoch * (_FAR if times is None else times)
    if first < _FURTHEST:
        return first
    # Passes of passes: any number far from others will do, as long as an array can hold it.
    return derive("passes", epoch) % (_FURTHEST // _FAR) * _FAR


class _Passes(Order):
    def __init__(self, times: int | None) -> None:
        self.times = times
        self.commutes = times is not None
        # For ever, unless a pass is empty, and that only the samples can tell.
        self.counts = times is None

    def length(self, n: int) -> Length:
        if n == 0 or self.times == 0:
            return 0
        return math.inf if self.times is None else n * self.times

    def trace(
        self, epoch: int, positions: NDArray[np.int64], n: int, key: Key
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        passes, inner = np.divmod(positions, n)
        return first_pass(self.times, epoch) + passes, inner


class _Again(Repeating):
    """Starts the upstream again when it ends. A pass without samples ends it for good."""

    def __init__(self, times: int | None, epoch: int) -> None:
        self.times = math.inf if times is None else times
        self.first = first_pass(times, epoch)
        self.passes = 0
        self.seen = 0
        self.fresh = True
        self.ended = times == 0

    def step(self, inputs: Sequence[Input], most: int) -> tuple[list[Any], Sequence[Place]]:
        (source,) = inputs
        if self.fresh or source.epoch < 0:
            self.fresh = False
            source.renew(self.first)
        samples, places = source.take(most)
        self.seen += len(samples)
        number = source.epoch
        if source.ended and not source.count:
            self.passes += 1
            if self.passes >= self.times or not self.seen:
                self.ended = True
            else:
                self.seen = 0
                source.renew(self.first + self.passes)
        return samples, [Passed(place, number) for place in places]

    def save(self) -> list[int]:
        return [self.passes, self.seen, self.fresh]

    def restore(self, saved: Any, held: Any) -> None:
        *counts, fresh = saved
        self.passes, self.seen = (saved_number(one, "repeat()") for one in counts)
        self.fresh = bool(fresh)
