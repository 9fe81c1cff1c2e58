"""The contract of an op: traits that the plan reads, and `run`, which does the work.

The plan and the runtime never look at an op's type, only at what it says of itself here and in the `Order` and
the `Joint` that it returns. So a new op is one new file.

`Effect` says what an op does to the number of samples:

=========  =========================================  ==========================================
effect     `run(samples, info)` returns               example
=========  =========================================  ==========================================
KEEPS      one output per sample                      map
SELECTS    one truth per sample: keep it or not       filter
EXPANDS    one iterable of outputs per sample         flat_map, unbatch
REGROUPS   one output per group of samples            batch
PASSES     is not run; its joint or order does it all  take, shuffle
DEALS      is not run; `deal` says what stands for it   shard
=========  =========================================  ==========================================

An op that needs samples in the order of delivery has a `Joint` (`ops/joint.py`): serial, pure, cheap, without
the user's code. What is expensive belongs into `run`, which workers call in parallel.

An op that only changes *which* position is read where (shuffle, repeat) has an `Order`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.executors.executor import Placement
from penstock.ops.joint import Joint, Length, Memo
from penstock.provenance import Place, extended

In = TypeVar("In")
Out = TypeVar("Out")


#: the metadata of a field of an op that has no say in what is delivered: a saved state does not name it
NOT_DELIVERED: Mapping[str, bool] = {"not_delivered": True}


class Effect(Enum):
    """What an op does to the number of samples."""

    KEEPS = "keeps"
    SELECTS = "selects"
    EXPANDS = "expands"
    REGROUPS = "regroups"
    PASSES = "passes"
    DEALS = "deals"


@dataclass(frozen=True, slots=True)
class Key:
    """What an op's random choices depend on besides the epoch and the position."""

    seed: int
    op: str


class RunInfo(Protocol):
    """What `run` knows of its samples."""

    epoch: int
    places: Sequence[Place]
    #: what the op's `bind` returned in this worker
    bound: Any

    @property
    def key(self) -> Key:
        """What the op's random choices depend on."""

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
    #: the op counts delivered samples, so an earlier function that skips one would make positions wrong
    counts: bool = False
    #: the order is the same before and after ops that treat every sample by itself, even if these vary the count
    commutes: bool = False
    #: for an op without a joint: what the user can write where positions cannot be read in any order
    instead: str = ""

    @abstractmethod
    def length(self, n: int) -> Length:
        """How many positions there are over an upstream of `n`."""

    @abstractmethod
    def trace(
        self, epoch: int, positions: NDArray[np.int64], n: int, key: Key
    ) -> tuple[int | NDArray[np.int64], NDArray[np.int64]]:
        """The upstream's epoch (one, or one each) and positions that stand at `positions`."""


class Delivery(NamedTuple):
    """How the outputs of an op leave its stage."""

    #: in the order of the inputs; otherwise as they are finished
    ordered: bool = True
    #: how many consecutive inputs take turns, one output at a time
    interleave: int = 1
    #: the most finished samples that the stage keeps ready; it does not change what is delivered
    ready: int | None = None
    #: `ready` also counts samples in the making, so that it bounds a scarce memory
    strict: bool = False


class Prepared(NamedTuple):
    """What stands for an op that `moves` batches, in one loader."""

    op: Op[Any, Any]
    #: an op that runs after all others
    last: Op[Any, Any] | None = None
    #: what the reader makes of each batch before the training loop gets it
    receive: Callable[[Any], Any] | None = None


class Moves(ABC):
    """Moves batches to a device, in one thread of its own in which the ops after it run, too."""

    #: what `explain()` says about it
    remarks: Sequence[str] = ()
    #: what it has moved cannot leave the process
    local: bool = False
    #: copies may still run after a batch has been passed on
    asynchronous: bool = False

    @abstractmethod
    def prepared(self) -> Prepared:
        """What runs in one loader. Called in the thread that makes the loader."""

    def stats(self) -> dict[str, float]:
        """What it has counted in its loader, for ``loader.stats()``: each name gets the op's title in front."""
        return {}

    def close(self) -> None:
        """Its loader is closed."""


@dataclass(frozen=True, slots=True)
class Share:
    """What an op that DEALS is told when a loader is made."""

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
    """One step of a pipeline: a frozen value. Subclasses are frozen dataclasses.

    An op has these twelve traits. What else the plan wants to know, it asks the op's `Order` or `Joint`.
    """

    #: the fluent method's name
    verb: ClassVar[str]

    effect: ClassVar[Effect] = Effect.KEEPS
    placement: Placement | None = None
    delivery: Delivery = Delivery()
    #: a sample may be dropped, so the count is not kept
    may_skip: bool = False
    #: calls a function of the user's, which may raise Skip
    calls_user: bool = False
    #: what becomes of a sample that fails: "raise", "skip" or a Retry
    on_error: Any = "raise"
    #: how long a call may take
    timeout_s: float | None = None
    #: chooses by the seed and the epoch, so another epoch gives something else. "global": it draws from the global
    #: generators, so only one thread of a process may run it
    random: bool | Literal["global"] = False
    #: runs coroutines
    asynchronous: bool = False
    #: `run` is nothing but ``info.bound(sample)`` for every sample, so maps in a row are one loop
    elementwise: bool = False
    #: ops that have to stand right before it, and are added with it
    preceded_by: Sequence[Op[Any, Any]] = ()
    #: for an op that moves batches to a device: how
    moves: Moves | None = None

    @property
    def title(self) -> str:
        """What stats and random keys call the op: its name, its function's name, or its verb."""
        return self.verb

    @property
    def label(self) -> str:
        """The op as `explain()` shows it; nothing if it does not."""
        return self.verb + "()"

    @property
    def where(self) -> str:
        """file:line of the user's function, or nothing."""
        return ""

    @property
    def full_label(self) -> str:
        """The op with its file:line, for messages."""
        return f"{self.label} at {self.where}" if self.where else self.label or self.verb

    def bind(self) -> Any:
        """Called once per worker; `run` finds the result as ``info.bound``."""
        return None

    def run(self, samples: list[Any], info: RunInfo) -> Sequence[Any]:
        """Do the work on the samples of one chunk; see the table above for what to return."""
        return samples

    async def run_async(self, samples: list[Any], info: RunInfo) -> Sequence[Any]:
        """The same on an event loop, for an op that is `asynchronous`."""
        return self.run(samples, info)

    def place_of(self, place: Place, number: int) -> Place:
        """For EXPANDS: the place of output `number` of the sample at `place`."""
        return extended(place, number)

    def order(self) -> Order | None:
        """The order this op makes where the upstream allows random access."""
        return None

    def joint(self, key: Key, epoch: int, memo: dict[str, Any]) -> Joint | None:
        """A new joint for one epoch, where the samples must come in the order of delivery.

        `memo` is what `memo()` has returned, and is kept from epoch to epoch. The plan makes a joint, too, which it
        never runs: it reads the joint's attributes.
        """
        return None

    def memo(self) -> Memo:
        """What the joints of this op share in one loader: a new, empty one."""
        return Memo()

    def deal(self, share: Share) -> tuple[Sequence[Op[Any, Any]], Sequence[Op[Any, Any]]]:
        """For DEALS: the ops that stand in its place, and those behind all others."""
        return (self,), ()

    def length(self, n: Length) -> Length:
        """How many samples leave when `n` come. If the op has an `Order`, the order says it for whole numbers."""
        if isinstance(n, int) and (order := self.order()) is not None:
            return order.length(n)
        return n if self.effect in (Effect.KEEPS, Effect.PASSES, Effect.DEALS) and not self.may_skip else unknown(n)


def joint_of(op: Op[Any, Any]) -> Joint | None:
    """A joint of `op` that is never run, to read its attributes; None if the op has no joint."""
    return op.joint(Key(0, ""), 0, op.memo())


def is_eager(op: Op[Any, Any]) -> bool:
    """Whether `op` keeps samples ready, so that what comes after it never waits for the workers before it."""
    joint = joint_of(op)
    return joint is not None and joint.eager


def in_own_thread(op: Op[Any, Any]) -> bool:
    """Whether `op` runs in one thread of its own in this process, and the ops after it ride there."""
    return op.moves is not None or is_eager(op)


def blocks(op: Op[Any, Any]) -> bool:
    """Whether `op` must not run on an event loop: it calls a plain function, or looks samples up."""
    if op.effect in (Effect.PASSES, Effect.DEALS):
        joint = joint_of(op)
        return joint is not None and joint.remembers
    return not op.asynchronous


def group_size(op: Op[Any, Any]) -> int:
    """How many samples each group of `op` has; 0 if it makes no groups, or if that varies."""
    joint = joint_of(op)
    return 0 if joint is None else joint.group_size


def member_name(info: Any) -> Callable[[int], str]:
    """What errors call a sample, by its number in the group that a worker has in hand."""
    return lambda number: f"sample {info.task.index_of(info.task.place_in_hand[number])}"


def added(ops: Sequence[Op[Any, Any]]) -> set[int]:
    """The numbers of those `ops` that the user did not write: each came with another op."""
    found = {number for number, op in enumerate(ops) if not op.label}
    for number, op in enumerate(ops):
        before = tuple(op.preceded_by)
        first = number - len(before)
        if before and tuple(ops[max(first, 0) : number]) == before:
            found.update(range(first, number))
    return found


def unknown(n: Length) -> Length:
    """The length behind an op that may drop or multiply samples."""
    return 0 if n == 0 else (math.inf if n == math.inf else None)
