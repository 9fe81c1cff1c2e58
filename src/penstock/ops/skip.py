"""skip: leave out the first samples of an epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.checks import saved_number, whole_number
from penstock.ops.joint import Input, Joint, Length
from penstock.ops.op import Effect, In, Key, Op, Order
from penstock.provenance import Place


@dataclass(frozen=True)
class SkipFirst(Op[In, In]):
    """Leave out the first `n` samples of the epoch.

    >>> import penstock as ps
    >>> list(ps.from_sequence("abcd").skip(3))
    ['d']
    """

    n: int

    verb = "skip"
    effect: ClassVar[Effect] = Effect.PASSES

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", whole_number(self.n, "skip(n)"))

    @property
    def label(self) -> str:
        return f"skip({self.n})"

    def order(self) -> Order:
        return _Rest(self.n)

    def joint(self, key: Key, epoch: int, memo: dict[str, Any]) -> Joint:
        return _Discard(self.n)


class _Rest(Order):
    counts = True

    def __init__(self, n: int) -> None:
        self.n = n

    def length(self, n: int) -> Length:
        return max(n - self.n, 0)

    def trace(self, epoch: int, positions: NDArray[np.int64], n: int, key: Key) -> tuple[int, NDArray[np.int64]]:
        return epoch, positions + self.n


class _Discard(Joint):
    def __init__(self, n: int) -> None:
        self.left = n

    def step(self, inputs: Sequence[Input], most: int) -> tuple[list[Any], Sequence[Place]]:
        (source,) = inputs
        before = self.left
        while self.left and source.count:
            self.left -= len(source.take(self.left)[0])
        self.passed_over = before - self.left
        samples, places = source.take(most if not self.left else 0)
        self.ended = source.ended and not source.count
        return samples, places

    def save(self) -> int:
        return self.left

    def restore(self, saved: Any, held: Any) -> None:
        self.left = min(saved_number(saved, "skip()"), self.left)
