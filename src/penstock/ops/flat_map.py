"""flat_map: several samples, or none, from one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from penstock.checks import whole_number
from penstock.ops.call import CallOp
from penstock.ops.fields import with_field
from penstock.ops.op import Delivery, Effect, In, Out


@dataclass(frozen=True)
class FlatMap(CallOp[In, Out]):
    """Replace every sample by the samples that ``fn(sample)`` returns or yields.

    What a generator yields is passed on as it comes, so a function that reads a large shard
    needs no memory for all of it. With ``interleave=n`` the outputs of n consecutive inputs
    alternate one by one, always in the same way; an input that has ended makes room for the next.

    Takes the same arguments as ``map``; with ``key`` every output is the sample with that field replaced.

    >>> import penstock as ps
    >>> list(ps.from_sequence([1, 2]).flat_map(lambda x: [x] * x))
    [1, 2, 2]
    >>> list(ps.from_sequence(["ab", "cd", "e"]).flat_map(iter, interleave=2))
    ['a', 'c', 'b', 'd', 'e']
    """

    _: KW_ONLY
    interleave: int = 1

    verb = "flat_map"
    effect: ClassVar[Effect] = Effect.EXPANDS

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "interleave", whole_number(self.interleave, "flat_map(interleave=)", least=1))

    @property
    def delivery(self) -> Delivery:  # type: ignore[override]
        return Delivery(self.ordered, self.interleave)

    def at_once(self, value: Any) -> Any:
        return list(value)

    def replaced(self, sample: Any, value: Any) -> Any:
        if isinstance(value, AsyncIterator):
            return _each_replaced_async(sample, self.key, value)
        return _each_replaced(sample, self.key, value)


def _each_replaced(sample: Any, key: Any, values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        yield with_field(sample, key, value)


async def _each_replaced_async(sample: Any, key: Any, values: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for value in values:
        yield with_field(sample, key, value)
