"""take: the first samples of an epoch."""

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
class Take(Op[In, In]):
    """Deliver the first `n` samples of the epoch, or all if there are fewer.

    >>> import penstock as ps
    >>> list(ps.from_sequence("abcd").take(2))
    ['a', 'b']
    """

    n: int

    verb = "take"
    effect: ClassVar[Effect] = Effect.PASSES

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", whole_number(self.n, "take(n)"))

    @property
    def label(self) -> str:
        return f"take({self.n})"

    def order(self) -> Order:
        return _First(self.n)

    def joint(self, key: Key, epoch: int, memo: dict[str, Any]) -> Joint:
        return _Limit(self.n)

    def length(self, n: Length) -> Length:
        return None if n is None else min(n, self.n)


class _First(Order):
    counts = True

    def __init__(self, n: int) -> None:
        self.n = n

    def length(self, n: int) -> Length:
        return min(n, self.n)

    def trace(self, epoch: int, positions: NDArray[np.int64], n: int, key: Key) -> tuple[int, NDArray[np.int64]]:
        return epoch, positions


class _Limit(Joint):
    def __init__(self, n: int) -> None:
        self.left = n
        self.ended = n == 0

    def step(self, inputs: Sequence[Input], most: int) -> tuple[list[Any], Sequence[Place]]:
        (source,) = inputs
        samples, places = source.take(min(most, self.left))
        self.left -= len(samples)
        self.ended = self.left == 0 or (source.ended and not source.count)
        return samples, places

    def save(self) -> int:
        return self.left

    def restore(self, saved: Any, held: Any) -> None:
        self.left = min(saved_number(saved, "take()"), self.left)
        self.ended = self.left == 0

    def drained(self, inputs: Sequence[Input]) -> Sequence[int]:
        return () if self.left == 0 else super().drained(inputs)
