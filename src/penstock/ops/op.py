"""The contract of an op: traits that the plan reads, and `run`, which does the work.

The plan and the runtime never look at an op's type, only at what it says of itself here, so a
new op is one new file.

`Effect` says what an op does to the number of samples:

=========  =========================================  ==========================================
effect     `run(samples, info)` returns               example
=========  =========================================  ==========================================
KEEPS      one output per sample                      map
SELECTS    one truth per sample: keep it or not       filter
EXPANDS    one iterable of outputs per sample         flat_map, unbatch
REGROUPS   one output per group of samples            batch
PASSES     is not run; its joint or order does it all  take, shuffle
=========  =========================================  ==========================================

An op that needs samples in the order of delivery has a `Joint` (`ops/joint.py`): serial, pure, cheap, without
the user's code. What is expensive belongs into `run`, which workers call in parallel.

An op that only changes *which* position is read where (shuffle, repeat) has an `Order`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.executors.executor import Placement
from penstock.ops.joint import Joint, Length
from penstock.provenance import Place

__all__ = [
    "Effect",
    "Key",
    "Length",
    "Op",
    "Order",
    "RunInfo",
    "Share",
]

In = TypeVar("In")
Out = TypeVar("Out")


class Effect(Enum):
    """What an op does to the number of samples."""

    KEEPS = "keeps"
    SELECTS = "selects"
    EXPANDS = "expands"
    REGROUPS = "regroups"
    PASSES = "passes"


@dataclass(frozen=True, slots=True)
class Key:
    """What an op's random choices depend on besides the epoch and the position."""

    seed: int
    op: str


class RunInfo(Protocol):
    """What `run` knows of its samples."""

    epoch: int
    places: Sequence[Place]
    key: Key
    #: what the op's `bind` returned in this worker
    bound: Any

    def each(
        self, fn: Callable[..., Any], samples: Sequence[Any], extra: Callable[[int], Any] | None = None
    ) -> list[Any]:
        """``[fn(sample) for sample in samples]`` under the op's error policy.

        With `extra`, sample number i is called as ``fn(sample, extra(i))``. A sample that fails
        is left out of the result, and is dropped or ends the run as the op's `on_error` says.
        Use it for every call of a user's function.
        """

    async def each_async(
        self, fn: Callable[..., Any], samples: Sequence[Any], extra: Callable[[int], Any] | None = None
    ) -> list[Any]:
        """The same for a function whose result is awaited."""

    def rng(self, number: int) -> np.random.Generator:
        """The generator of sample `number` of the chunk, valid until the next call."""

    def sample_info(self, number: int) -> Any:
        """What a function with ``info=True`` gets for sample `number` of the chunk."""

    @property
    def own_thread(self) -> bool:
        """Whether a worker runs the op, and not the reader in its own thread."""

    def seed_globals(self, number: int) -> None:
        """Seed Python's, numpy's and torch's global generators for sample `number` of the chunk."""


class Order(ABC):
    """A new order of positions, computed for any position alone."""

    #: what it keeps in memory, in words
    stores: str = "nothing is stored"
    #: `trace` calls a function of the user's, so it is never called under the lock
    calls_user: bool = False

    @abstractmethod
    def length(self, n: int) -> Length:
        """How many positions there are over an upstream of `n`."""

    @abstractmethod
    def trace(
        self, epoch: int, positions: NDArray[np.int64], n: int, key: Key
    ) -> tuple[int | NDArray[np.int64], NDArray[np.int64]]:
        """The upstream's epoch (one, or one each) and positions that stand at `positions`."""


@dataclass(frozen=True, slots=True)
class Share:
    """What an op that `parts` is told when a loader is made."""

    rank: int
    world: int
    #: how many samples should go to a rank at once: a batch, where one is made further on
    block: int
    #: why the ranks do not get as many samples by themselves; nothing if all other ops keep the count
    uneven: str
    #: how many samples come, if that is known
    length: Length
    #: whether any of them can be read
    indexed: bool


class Op(ABC, Generic[In, Out]):
    """One step of a pipeline: a frozen value. Subclasses are frozen dataclasses."""

    #: the fluent method's name
    verb: ClassVar[str]
    effect: ClassVar[Effect] = Effect.KEEPS

    placement: Placement | None = None
    #: outputs leave in the order of the inputs
    ordered: bool = True
    #: a sample may be dropped, so the count is not kept
    may_skip: bool = False
    #: calls a function of the user's, which may raise Skip
    calls_user: bool = False
    #: runs coroutines
    asynchronous: bool = False
    #: must not ride on an event loop: it calls a plain function or copies data
    blocking: bool = False
    #: outputs of so many consecutive inputs alternate
    interleave: int = 1
    #: the most finished samples to keep ready; has no say in what is delivered
    buffer: int | None = None
    #: draws from global generators, so it needs a process to itself
    one_thread: bool = False
    #: chooses by the seed and the epoch, so that another epoch gives something else
    random: bool = False
    #: what becomes of a sample that fails: "raise", "skip" or a Retry
    on_error: Any = "raise"
    #: how long a call may take
    timeout_s: float | None = None
    #: the outputs of a group have the places of its members
    ungroups: bool = False
    #: a group is stacked plainly, so a source that reads batches may make it in one read
    plain: bool = False
    #: has a joint
    joined: bool = False
    #: reads the samples whose numbers its source gives: an order behind it is one of these numbers
    reads: bool = False
    #: the order it makes is the same before and after ops on single samples
    commutes: bool = False
    #: it counts samples as they pass
    counts: bool = False
    #: `run` is nothing but ``info.bound(sample)`` for every sample, so maps in a row are one loop
    elementwise: bool = False
    #: goes on for ever
    endless: bool = False
    #: its joint goes on in the next epoch where it stood, with the same inputs
    carries: bool = False
    #: what is behind it must not wait for the workers of what is before it
    decouples: bool = False
    #: runs in one thread of its own in this process, and the ops after it ride there
    own_thread: bool = False
    #: `buffer` also counts what is being made, so that it bounds a memory of which there is little
    strict: bool = False
    #: what `explain()` says about it
    remarks: Sequence[str] = ()
    #: the device that it moves batches to, if it does; `prepared` then makes the ops that run
    target: Any = None
    #: what it passes on depends on who is faster, so a saved state is not exact
    approximate: bool = False
    #: `shard_order` has a say
    orders_shards: bool = False
    #: what to use where positions cannot be read in any order
    instead: str = ""
    #: serves again what it has seen; `store` makes what it keeps
    remembers: bool = False
    #: ops that have to stand before it, and are added with it
    preceded_by: Sequence[Op[Any, Any]] = ()
    #: was added with another op
    implied: ClassVar[bool] = False
    #: stands for the part of one rank; `deal` says what that is, once the rank is known
    parts: bool = False
    #: what came of that: positions are dealt to ranks in blocks
    deals: Any = None

    @property
    def title(self) -> str:
        """What stats and random keys call the op: its name, its function's name, or its verb."""
        return self.verb

    @property
    def label(self) -> str:
        """The op as `explain()` shows it."""
        return self.verb + "()"

    @property
    def where(self) -> str:
        """file:line of the user's function, or nothing."""
        return ""

    @property
    def full_label(self) -> str:
        """The op with its file:line, for messages."""
        return f"{self.label} at {self.where}" if self.where else self.label

    def bind(self) -> Any:
        """Called once per worker; `run` finds the result as ``info.bound``."""
        return None

    def run(self, samples: list[Any], info: Any) -> Sequence[Any]:
        """Do the work on the samples of one chunk; see the table above for what to return."""
        return samples

    async def run_async(self, samples: list[Any], info: Any) -> Sequence[Any]:
        """The same on an event loop, for an op that is `asynchronous`."""
        return self.run(samples, info)

    def order(self) -> Order | None:
        """The order this op makes where the upstream allows random access."""
        return None

    def shard_order(self, count: int, key: Key, epoch: int) -> Sequence[int] | None:
        """In which order the parts of a stream before this op are to be opened, if it has a say in it."""
        return None

    def joint(self, key: Key, epoch: int, memo: dict[str, Any]) -> Joint | None:
        """A new joint for one epoch, where the samples must come in the order of delivery.

        `memo` is the op's own in this loader, and is kept from epoch to epoch.
        """
        return None

    def settled(self, memo: dict[str, Any]) -> bool:
        """Whether the memo will not change any more, so that epochs may overlap."""
        return True

    def left(self, memo: dict[str, Any], whole: bool) -> None:
        """The training loop has left an epoch: at its end if `whole`, else before."""

    def stats(self, memo: dict[str, Any]) -> dict[str, float]:
        """What it has counted, for ``loader.stats()``: each name gets the op's title in front."""
        return {}

    def forget(self, memo: dict[str, Any]) -> None:
        """Another state is to be gone on with: keep no samples."""

    def close(self, memo: dict[str, Any]) -> None:
        """The loader is closed: keep no samples, but what was counted."""

    def store(self) -> Any:
        """For an op that `remembers`: a new, empty `Store`."""
        return None

    def deal(self, share: Share) -> tuple[Sequence[Op[Any, Any]], Sequence[Op[Any, Any]]]:
        """For an op that `parts`: the ops that stand in its place, and those behind all others."""
        return (self,), ()

    def prepared(self) -> tuple[Op[Any, Any], Op[Any, Any] | None]:
        """For an op with a `target`: the op that runs in one loader, and one that runs after all others.

        Called in the thread that makes the loader.
        """
        return self, None

    def received(self, sample: Any) -> Any:
        """What the training loop gets of a sample that this op, the last of all, has passed on.

        The reader calls it.
        """
        return sample

    def counted(self) -> dict[str, float]:
        """What an op that belongs to one loader has counted, for ``loader.stats()``, as `stats` of a joint."""
        return {}

    def ended(self) -> None:
        """The loader of an op that was `prepared` for it is closed."""

    def group_size(self) -> int | None:
        """For REGROUPS: the number of samples in a group, if that never varies."""
        return None

    def largest_group(self) -> int | None:
        """For REGROUPS: the most samples in a group, if that is known."""
        return self.group_size()

    def keeps_group(self, count: int) -> bool:
        """For REGROUPS: whether a last group of `count` samples is passed on."""
        return True

    def large_state(self, before: Sequence[Op[Any, Any]]) -> str:
        """What `explain()` says of the size of a saved state, if this op behind the ops `before` makes it large."""
        return ""

    def length(self, n: Length) -> Length:
        """How many samples leave when `n` come."""
        return n if self.effect in (Effect.KEEPS, Effect.PASSES) and not self.may_skip else unknown(n)


def unknown(n: Length) -> Length:
    """The length behind an op that may drop or multiply samples."""
    return 0 if n == 0 else (math.inf if n == math.inf else None)
