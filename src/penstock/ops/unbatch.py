"""unbatch: one sample becomes the samples in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from penstock.ops.op import Effect, In, Op, Out
from penstock.provenance import Member, Place
from penstock.trees import unstacked


@dataclass(frozen=True)
class Unbatch(Op[In, Out]):
    """Take every batch apart into its samples: the inverse of ``batch``.

    A list gives its items, an array its rows; dicts, tuples and dataclasses of these are taken
    apart field by field.

    >>> import penstock as ps
    >>> list(ps.from_sequence([["a", "b"], ["c"]]).unbatch())
    ['a', 'b', 'c']
    """

    verb = "unbatch"
    effect: ClassVar[Effect] = Effect.EXPANDS

    def place_of(self, place: Place, number: int) -> Place:
        """Members of a group keep the places that they had before they were put together."""
        return Member(place, number)

    def run(self, samples: list[Any], info: Any) -> list[Any]:
        return list(info.each(unstacked, samples))
