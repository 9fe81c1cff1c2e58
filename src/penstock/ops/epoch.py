"""epoch: epochs of a chosen length that keep their place in the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.checks import saved_number, whole_number
from penstock.errors import StateMismatch
from penstock.ops.joint import Input, Joint, Length, Repeating
from penstock.ops.op import Effect, In, Key, Op, Order
from penstock.provenance import Passed, Place

#: empty passes in a row after which there is no data
_EMPTY_PASSES = 100


@dataclass(frozen=True)
class Epoch(Op[In, In]):
    """Make an epoch `n` samples long; the next one continues where it ended.

    When the data ends it begins again, as the next epoch of what comes before.

    >>> import penstock as ps
    >>> with ps.from_sequence([1, 2, 3, 4, 5]).epoch(3).loader(epochs=3) as loader:
    ...     [list(samples) for _, samples in loader.epochs(3)]
    [[1, 2, 3], [4, 5, 1], [2, 3, 4]]
    """

    n: int

    verb = "epoch"
    effect: ClassVar[Effect] = Effect.PASSES

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", whole_number(self.n, "epoch(n)", least=1))

    @property
    def label(self) -> str:
        return f"epoch({self.n})"

    def order(self) -> Order:
        return _Stretch(self.n)

    def joint(self, key: Key, epoch: int, memo: dict[str, Any]) -> Joint:
        return _Onward(self.n, epoch)

    def length(self, n: Length) -> Length:
        return 0 if n == 0 else self.n


class _Stretch(Order):
    counts = True

    def __init__(self, n: int) -> None:
        self.n = n

    def length(self, n: int) -> Length:
        return self.n if n else 0

    def trace(
        self, epoch: int, positions: NDArray[np.int64], n: int, key: Key
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        passes, inner = np.divmod(positions + epoch * self.n, n)
        return passes, inner


class _Onward(Repeating):
    """Takes the next `n` samples of an upstream that goes round and round."""

    carries = True

    def __init__(self, n: int, epoch: int) -> None:
        self.n = n
        self.next = epoch * n
        self.stop = self.next + n
        #: passes without a sample, one after the other, and whether this one has had none so far
        self.empty = 0
        self.fresh = False

    def step(self, inputs: Sequence[Input], most: int) -> tuple[list[Any], Sequence[Place]]:
        (source,) = inputs
        if source.epoch < 0 or source.taken > self.next:
            source.renew(0)
        self.passed_over = 0
        while source.taken < self.next and source.count:
            self.passed_over += len(source.take(self.next - source.taken)[0])
            self.empty = 0
            self.fresh = False
        number = source.epoch
        behind = source.taken < self.next
        samples, places = source.take(0 if behind else min(most, self.stop - self.next))
        self.next += len(samples)
        if samples:
            self.empty = 0
            self.fresh = False
        if self.next >= self.stop:
            self.ended = True
        elif source.ended and not source.count:
            self.empty += 1 if self.fresh else 0
            self.fresh = True
            self.ended = self.empty >= _EMPTY_PASSES
            source.renew(source.epoch + 1)
        return samples, [Passed(place, number) for place in places]

    def save(self) -> list[int]:
        return [self.next, self.empty, self.fresh]

    def restore(self, saved: Any, held: Any) -> None:
        *counts, fresh = saved
        self.next, self.empty = (saved_number(one, "epoch()") for one in counts)
        if self.next < self.stop - self.n:
            raise StateMismatch(
                f"the state is damaged: epoch({self.n}) stands at sample {self.next}, and its epoch begins at "
                f"{self.stop - self.n}"
            )
        self.fresh = bool(fresh)
        self.ended = self.next >= self.stop

    def drained(self, inputs: Sequence[Input]) -> Sequence[int]:
        return ()
