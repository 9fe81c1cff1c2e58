"""shard: this rank's part of the samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal

from penstock.checks import saved_number, whole_number
from penstock.errors import PlanError
from penstock.ops.joint import Input, Joint, Length, Repeating
from penstock.ops.op import Effect, In, Key, Op, Share
from penstock.provenance import Passed, Place, root

Equal = Literal["drop", "wrap", "pad", False]


@dataclass(frozen=True)
class Shard(Op[In, In]):
    """Deliver only the part of this rank, of `world` ranks.

    Rank and world come from the arguments, from RANK and WORLD_SIZE in the environment or from
    ``torch.distributed``, when the loader is made. Where all ops behind keep the count, batch number
    b of the whole stream goes to rank b mod world, so the ranks together deliver the same stream for
    any world, and ``equal`` says what happens to a last round that is not full: ``"drop"`` it (the
    default), ``"wrap"`` around to the first samples, ``"pad"`` with them and mark those (a field
    ``"padding"`` in a dict, else a bool behind the sample), or ``False``: each sample once, some
    ranks get less.

    Where an op varies the count, ranks cannot be equal by themselves: each gets every world-th
    sample, and ``steps=n`` makes epochs of exactly n batches on all of them, a rank that has
    nothing left beginning again.

    >>> import penstock as ps
    >>> numbers = ps.from_sequence(range(8))
    >>> [[batch.tolist() for batch in numbers.shard(rank, 2).batch(2)] for rank in range(2)]
    [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    """

    rank: int | None = None
    world: int | None = None
    _: KW_ONLY
    equal: Equal | None = None
    steps: int | None = None

    verb = "shard"
    effect: ClassVar[Effect] = Effect.DEALS

    def __post_init__(self) -> None:
        if self.world is not None:
            object.__setattr__(self, "world", whole_number(self.world, "shard(world=)", least=1))
        if self.rank is not None:
            object.__setattr__(self, "rank", whole_number(self.rank, "shard(rank=)"))
            if self.world is not None and self.rank >= self.world:
                raise PlanError(f"shard: rank {self.rank} of {self.world}; ranks are 0 to {self.world - 1}")
        if not (self.equal is None or self.equal is False or self.equal in ("drop", "wrap", "pad")):
            raise PlanError(f'shard(equal=) takes "drop", "wrap", "pad" or False, got {self.equal!r}')
        if self.steps is not None:
            object.__setattr__(self, "steps", whole_number(self.steps, "shard(steps=)", least=1))

    def deal(self, share: Share) -> tuple[Sequence[Op[Any, Any]], Sequence[Op[Any, Any]]]:
        rank = share.rank if self.rank is None else self.rank
        world = share.world if self.world is None else self.world
        if self.world == 1:
            rank = 0
        if rank >= world:
            raise PlanError(f"{self.label}: rank {rank} of {world}; ranks are 0 to {world - 1}")
        equal: Equal = False
        if self.equal is not None:
            equal = self.equal
        elif not share.uneven and self.steps is None:
            equal = "drop"
        if equal and share.uneven:
            raise PlanError(
                f"{self.label}: ranks cannot be made equal, because {share.uneven}; use shard(steps=n), which "
                "gives every rank n batches an epoch, or equal=False"
            )
        if equal == "drop" and isinstance(share.length, int) and 0 < share.length < share.block * world:
            raise PlanError(
                f"{self.label}: {share.length} samples are not enough for {share.block} on each of {world} ranks; "
                "use equal='wrap', 'pad' or False, or fewer ranks"
            )
        here: list[Op[Any, Any]] = [Portion(rank, world, block=share.block, equal=equal, keeps=not share.uneven)]
        if equal in ("wrap", "pad"):
            if not share.indexed or not isinstance(share.length, int):
                raise PlanError(
                    f"{self.label}: a stream cannot go back to its first samples; use equal='drop', equal=False "
                    "or steps="
                )
            if equal == "pad":
                here.append(MarkPadding(share.length))
        return here, () if self.steps is None else (Rounds(self.steps),)

    @property
    def label(self) -> str:
        given = [f"{name}={value!r}" for name in ("rank", "world") if (value := getattr(self, name)) is not None]
        given += [f"equal={self.equal!r}"] if self.equal is not None else []
        given += [f"steps={self.steps}"] if self.steps is not None else []
        return f"shard({', '.join(given)})"


@dataclass(frozen=True)
class Portion(Op[In, In]):
    """What a ``shard()`` is once rank and world are known.

    Samples are dealt in blocks: block number b goes to rank b mod world. `keeps` says that all ops
    behind keep the count, so that the ranks together deliver one stream.
    """

    rank: int
    world: int
    _: KW_ONLY
    block: int = 1
    equal: Equal = False
    keeps: bool = False

    verb = "shard"
    effect: ClassVar[Effect] = Effect.PASSES

    @property
    def label(self) -> str:
        return f"shard(rank={self.rank}, world={self.world})"

    def joint(self, key: Key, epoch: int, memo: dict[str, Any]) -> Joint:
        return _Deal(self)

    def stop(self, n: float, base: int = 0) -> float:
        """Where the part ends that is dealt from position `base` on, of `n` positions."""
        round_size = self.block * self.world
        if self.equal is False or n == math.inf:
            return n
        rounds = (n - base) // round_size if self.equal == "drop" else -(-(n - base) // round_size)
        return base + rounds * round_size

    def length(self, n: Length) -> Length:
        if not isinstance(n, int):
            return n
        stop = int(self.stop(n))
        full, rest = divmod(stop, self.block * self.world)
        return full * self.block + min(max(rest - self.rank * self.block, 0), self.block)


class _Deal(Joint):
    """Takes whole rounds of a stream, and passes on this rank's block of each."""

    per_output = 0

    def __init__(self, portion: Portion[Any]) -> None:
        self.portion = portion
        self.round_size = portion.block * portion.world
        if portion.world > 1:
            self.wasted = (
                f"each of the {portion.world} ranks reads everything before it and drops what is another's; "
                "put shard() right behind a source that is read by number to avoid that"
            )

    def step(self, inputs: Sequence[Input], most: int) -> tuple[list[Any], Sequence[Place]]:
        (source,) = inputs
        portion, first = self.portion, self.portion.rank * self.portion.block
        while source.count >= self.round_size or source.ended:
            samples, places = source.take(self.round_size)
            self.ended = source.ended and not source.count
            if len(samples) < self.round_size and portion.equal == "drop":
                break
            if samples[first : first + portion.block] or self.ended:
                return samples[first : first + portion.block], places[first : first + portion.block]
        return [], []


@dataclass(frozen=True)
class Rounds(Op[In, In]):
    """Exactly `n` samples or batches an epoch: what ends before that begins again, as another pass."""

    n: int

    verb = "steps"
    effect: ClassVar[Effect] = Effect.PASSES

    @property
    def label(self) -> str:
        return f"steps({self.n})"

    def joint(self, key: Key, epoch: int, memo: dict[str, Any]) -> Joint:
        return _Round(self.n, epoch)

    def length(self, n: Length) -> Length:
        return self.n


class _Round(Repeating):
    def __init__(self, n: int, epoch: int) -> None:
        self.n = self.left = n
        self.epoch = epoch
        self.passes = 0
        #: outputs of this pass
        self.seen = 0

    def step(self, inputs: Sequence[Input], most: int) -> tuple[list[Any], Sequence[Place]]:
        (source,) = inputs
        if source.epoch < 0:
            source.renew(self.epoch)
        samples, places = source.take(min(most, self.left))
        number = source.epoch
        self.left -= len(samples)
        self.seen += len(samples)
        self.ended = not self.left
        if not self.ended and source.ended and not source.count:
            if not self.seen:
                raise PlanError(
                    f"shard(steps={self.n}): this rank has no samples at all, so it cannot have {self.n} steps; "
                    "give it some, or use fewer ranks"
                )
            self.passes += 1
            self.seen = 0
            source.renew(self.epoch + (self.passes << 40))
        return samples, [Passed(place, number) for place in places]

    def save(self) -> list[int]:
        return [self.left, self.passes, self.seen]

    def restore(self, saved: Any, held: Any) -> None:
        left, self.passes, self.seen = (saved_number(one, "shard(steps=)") for one in saved)
        self.left = min(left, self.n)
        self.ended = not self.left

    def drained(self, inputs: Sequence[Input]) -> Sequence[int]:
        return ()


@dataclass(frozen=True)
class MarkPadding(Op[Any, Any]):
    """Say of every sample whether it is there only so that all ranks have as many."""

    #: how many samples there are
    n: int

    verb = "padding"

    def run(self, samples: list[Any], info: Any) -> list[Any]:
        return [_marked(sample, root(place) >= self.n) for sample, place in zip(samples, info.places, strict=True)]


def _marked(sample: Any, padding: bool) -> Any:
    if isinstance(sample, dict):
        return {**sample, "padding": padding}
    return (*sample, padding) if type(sample) is tuple else (sample, padding)
