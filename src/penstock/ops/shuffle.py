"""shuffle: a random order, new in every epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.checks import any_number, whole_number
from penstock.ops.op import Effect, In, Input, Joint, Key, Length, Op, Order
from penstock.provenance import Place
from penstock.randomness import derive, permute

__all__ = ["Shuffle"]


@dataclass(frozen=True)
class Shuffle(Op[In, In]):
    """Deliver the samples in a random order that changes with every epoch.

    The same seed and epoch give the same order on every executor and worker count. ``seed``
    stands in for the loader's. Without a window the whole source is permuted, in constant memory.
    ``window=n`` permutes consecutive blocks of n samples: for streams, and after ops that vary
    the count. A stream in several parts is opened in a new order of parts every epoch, so that each
    is still read from its beginning to its end.

    >>> import penstock as ps
    >>> sorted(ps.from_sequence(range(4)).shuffle(seed=0))
    [0, 1, 2, 3]
    """

    window: int | None = None
    _: KW_ONLY
    seed: int | None = None

    verb = "shuffle"
    random = True
    holds_back = True
    instead = "use shuffle(window=10_000), which shuffles as samples pass"
    effect: ClassVar[Effect] = Effect.PASSES

    def __post_init__(self) -> None:
        if self.window is not None:
            object.__setattr__(self, "window", whole_number(self.window, "shuffle(window=)", least=1))
        if self.seed is not None:
            object.__setattr__(self, "seed", any_number(self.seed, "shuffle(seed=)"))

    @property
    def label(self) -> str:
        return f"shuffle({'' if self.window is None else f'window={self.window}'})"

    @property
    def joined(self) -> bool:  # type: ignore[override]
        return self.window is not None

    def order(self) -> Order | None:
        return _Permuted(self.seed) if self.window is None else None

    @property
    def orders_shards(self) -> bool:  # type: ignore[override]
        return self.window is not None

    def shard_order(self, count: int, key: Key, epoch: int) -> list[int]:
        seed = key.seed if self.seed is None else self.seed
        order: list[int] = permute(np.arange(count), count, derive("shards", seed, epoch, key.op)).tolist()
        return order

    def joint(self, key: Key, epoch: int, memo: dict[str, Any]) -> Joint | None:
        if self.window is None:
            return None
        return _Window(self.window, Key(key.seed if self.seed is None else self.seed, key.op), epoch)


class _Permuted(Order):
    def __init__(self, seed: int | None) -> None:
        self.seed = seed

    def length(self, n: int) -> Length:
        return n

    def trace(self, epoch: int, positions: NDArray[np.int64], n: int, key: Key) -> tuple[int, NDArray[np.int64]]:
        seed = key.seed if self.seed is None else self.seed
        return epoch, permute(positions, n, derive("shuffle", seed, epoch, key.op))


class _Window(Joint):
    """Permutes consecutive blocks of samples, each by its own key: every sample once, ragged tails too."""

    def __init__(self, window: int, key: Key, epoch: int) -> None:
        self.window = window
        self.hoards = f"shuffle(window={window})"
        self.key = key
        self.epoch = epoch
        self.block = 0

    def step(self, inputs: Sequence[Input], most: int) -> tuple[list[Any], Sequence[Place]]:
        (source,) = inputs
        if source.count < self.window and not source.ended:
            return [], []
        samples, places = source.take(self.window)
        self.ended = source.ended and not source.count
        key = derive("window", self.key.seed, self.epoch, self.key.op, self.block)
        self.block += 1
        order = permute(np.arange(len(samples)), len(samples), key).tolist()
        return [samples[i] for i in order], [places[i] for i in order]

    def save(self) -> int:
        return self.block

    def restore(self, saved: int) -> None:
        self.block = saved
