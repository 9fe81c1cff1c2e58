"""renumber: samples in the order of delivery, with new numbers. The plan adds it before an op that needs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from penstock.ops.joint import Input, Joint
from penstock.ops.op import Effect, In, Key, Op
from penstock.provenance import Place


@dataclass(frozen=True)
class Renumber(Op[In, In]):
    """Pass samples on as they arrive.

    A resumed stream names the samples after it by their new numbers, whatever order they were made in.
    """

    verb = "renumber"
    effect: ClassVar[Effect] = Effect.PASSES

    def joint(self, key: Key, epoch: int, memo: dict[str, Any]) -> Joint:
        return _Renumber()


class _Renumber(Joint):
    def step(self, inputs: Sequence[Input], most: int) -> tuple[list[Any], Sequence[Place]]:
        (source,) = inputs
        samples, places = source.take(most)
        self.ended = source.ended and not source.count
        return samples, places

    def merged(self, saved: Sequence[Any], rank: int, world: int) -> Any:
        return None
