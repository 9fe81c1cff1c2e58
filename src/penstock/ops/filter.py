"""filter: only the samples that pass a test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from penstock.ops.call import CallOp
from penstock.ops.op import Effect, In


@dataclass(frozen=True)
class Filter(CallOp[In, In]):
    """Keep the samples for which ``fn(sample)`` is true.

    Takes the same arguments as ``map``; with ``key`` the function gets that field.

    >>> import penstock as ps
    >>> list(ps.from_sequence(range(6)).filter(lambda x: x % 2 == 0))
    [0, 2, 4]
    """

    verb = "filter"
    effect: ClassVar[Effect] = Effect.SELECTS

    def replaced(self, sample: Any, value: Any) -> Any:
        return value
