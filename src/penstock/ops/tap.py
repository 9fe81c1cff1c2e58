"""tap: look at samples on their way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.ops.call import CallOp
from penstock.ops.op import In


@dataclass(frozen=True)
class Tap(CallOp[In, In]):
    """Call ``fn(sample)`` for its effect and pass the sample on unchanged.

    Takes the same arguments as ``map``.

    >>> import penstock as ps
    >>> seen = []
    >>> list(ps.from_sequence([1, 2]).tap(seen.append)), seen
    ([1, 2], [1, 2])
    """

    verb = "tap"

    def replaced(self, sample: Any, value: Any) -> Any:
        return value

    def run(self, samples: list[Any], info: Any) -> list[Any]:
        super().run(samples, info)
        return list(info.surviving(samples))

    async def run_async(self, samples: list[Any], info: Any) -> list[Any]:
        await super().run_async(samples, info)
        return list(info.surviving(samples))
