"""prefetch: how much is kept ready."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.checks import whole_number
from penstock.ops.op import Delivery, Effect, In, Op


@dataclass(frozen=True)
class Prefetch(Op[In, In]):
    """Keep up to `batches` finished samples of this stage ready (batches, if it ends with ``batch``).

    Workers begin nothing new while so many wait, and one ticket per worker on top of that, so that prefetch hardly
    ever slows a stage. Without it, two finished tickets per worker are kept ready.

    >>> import penstock as ps
    >>> with ps.from_sequence(range(64)).batch(2).prefetch(32).loader() as loader:
    ...     len(list(loader))
    32
    """

    batches: int

    verb = "prefetch"
    effect: ClassVar[Effect] = Effect.PASSES

    def __post_init__(self) -> None:
        object.__setattr__(self, "batches", whole_number(self.batches, "prefetch(batches)", least=1))

    @property
    def label(self) -> str:
        return f"prefetch({self.batches})"

    @property
    def delivery(self) -> Delivery:  # type: ignore[override]
        return Delivery(ready=self.batches)
