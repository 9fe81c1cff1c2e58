"""line: samples in the order of delivery, numbered anew. The plan adds it where an op needs that; users do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from penstock.ops.joint import Input, Joint
from penstock.ops.op import Effect, In, Key, Op
from penstock.provenance import Place

__all__ = ["Line"]


@dataclass(frozen=True)
class Line(Op[In, In]):
    """Pass samples on as they come.

    What is behind it is resumed by their numbers, whatever order they were made in before it.
    """

    verb = "line"
    effect: ClassVar[Effect] = Effect.PASSES

    def joint(self, key: Key, epoch: int, memo: dict[str, Any]) -> Joint:
        return _Line()


class _Line(Joint):
    def step(self, inputs: Sequence[Input], most: int) -> tuple[list[Any], Sequence[Place]]:
        (source,) = inputs
        samples, places = source.take(most)
        self.ended = source.ended and not source.count
        return samples, places

    def merged(self, saved: Sequence[Any], rank: int, world: int) -> Any:
        return None
