"""The contract of a source.

* An `IndexedSource` can read any of its samples alone: it has a length and `read(indices)`.
* A `StreamSource` can only be read forward: it has shards, each opened with a number of records to skip.
* A `Composite` brings several pipelines together with a joint.

Sources are shared by workers: `read` may be called by several at once.
`penstock.testing.check_source` tries a new one.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.errors import PlanError
from penstock.ops.joint import Joint, Length, Memo
from penstock.ops.op import Key, Op
from penstock.trees import nbytes

#: a Python list of so many bytes is not copied into other processes
_LONG_BYTES = 1_000_000
#: items of it that are looked at, to find that out
_LOOKED_AT = 64

#: positions in a source: consecutive ones as a range, others as an array
Indices = range | NDArray[np.int64]


class Source(ABC):
    """Where samples come from."""

    #: the function that makes it
    verb: ClassVar[str]
    #: every rank gets its own part from elsewhere, so that the pipeline needs no shard()
    deals_itself: ClassVar[bool] = False

    @property
    def label(self) -> str:
        """The source as `explain()` shows it."""
        return self.verb

    @property
    def saved_label(self) -> str:
        """The source as a saved state names it: without what may be another in the next run."""
        return self.label

    @property
    def instant(self) -> bool:
        """Reads never block, so they may ride on an event loop."""
        return False

    def length(self) -> Length:
        """How many samples an epoch has, if it can be known."""
        return None

    @property
    def content(self) -> str:
        """What tells it from another with the same label and length: of which samples or files it is made."""
        return ""


class IndexedSource(Source):
    """Any sample can be read alone."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, indices: Indices) -> Sequence[Any]:
        """The samples at `indices`, in that order. What is returned is not changed."""

    def read_batch(self, indices: Indices) -> Any:
        """The samples at `indices` as one batch, where the source can do better than sample by sample."""
        return NotImplemented

    def numbers(self, indices: Indices) -> Indices:
        """What the user calls these samples: their numbers in what the source was made of."""
        return indices

    def name(self, index: int) -> str:
        """What the user calls the sample at `index`, if it has a name: its path. Errors name the sample by it."""
        return ""

    @property
    def reads_batches(self) -> bool:
        """Whether `read_batch` is worth calling."""
        return False

    @property
    def read_by_op(self) -> bool:
        """Its samples are numbers, and the first op reads what they stand for: a later order is one of numbers."""
        return False

    @property
    def stays(self) -> str:
        """Why other processes do not get the source, but samples that were read here; nothing if they do."""
        return ""

    @property
    def why_not_shuffled(self) -> str:
        """Why reading it in random order would take very long, and what to do instead; nothing if it would not."""
        return ""

    @property
    def heap_bytes(self) -> int:
        """How large its arrays are that are not in a file: worker processes share one copy of them."""
        return 0

    def bare(self) -> IndexedSource:
        """What is left of the source without its data: its length, and what its samples are called."""
        return Bare(self.label, len(self), None)

    def length(self) -> int:
        return len(self)


class Bare(IndexedSource):
    """What is left of a source without its data."""

    verb = "from_nothing"

    def __init__(self, label: str, size: int, subset: NDArray[np.int64] | None) -> None:
        self._label = label
        self._size = size
        self._subset = subset

    @property
    def label(self) -> str:
        return self._label

    def __len__(self) -> int:
        return self._size

    def numbers(self, indices: Indices) -> Indices:
        return picked(indices, self._subset)

    def read(self, indices: Indices) -> Sequence[Any]:
        raise PlanError(f"{self._label} is not here")


@dataclass(slots=True)
class Opening:
    """One pass over a stream: what the loader tells the source, and what the source may tell the loader."""

    epoch: int
    seed: int = 0
    #: the training loop's thread reads, and not a worker
    inline: bool = False
    #: what `mark_at` said when the state was saved from which this pass goes on
    mark: Any = None
    #: set by the source: what else to save with the position of the next record; plain data, for JSON
    mark_at: Callable[[int], Any] | None = None
    #: set by the source: the pass is over, and who waits inside of the source returns. It must not block
    stop: Callable[[], None] | None = None
    #: set by the source: whether its next record comes without a wait. Several records are then read in one turn
    ready: Callable[[], bool] | None = None

    def saved(self, position: int) -> Any:
        """What the source wants to have saved at `position`."""
        return None if self.mark_at is None else self.mark_at(position)


class StreamSource(Source):
    """Samples can only be read forward."""

    @abstractmethod
    def shards(self) -> Sequence[Any]:
        """The parts of the stream, in their order."""

    @abstractmethod
    def open(self, shard: Any, skip: int) -> Iterator[Any]:
        """A new iterator over one part, without its first `skip` records."""

    def opened(self, shard: Any, skip: int, opening: Opening) -> Iterator[Any]:
        """`open`, for a source that depends on the epoch, waits for others, or need not be read from its beginning.

        Such a source sets `opening.mark_at` to a function that says in plain data what it needs to go on from a
        position. A resumed loader opens it with what that has said, as `opening.mark`.
        """
        return self.open(shard, skip)


class Flow(Protocol):
    """A source and the ops behind it: what a `Pipeline` is to the plan."""

    @property
    def source(self) -> Source: ...

    @property
    def ops(self) -> tuple[Op[Any, Any], ...]: ...


class Composite(Source):
    """Several pipelines as one source."""

    #: by name or number, in the order of the joint's inputs
    parts: tuple[tuple[str, Flow], ...]
    #: whose turn it is differs from epoch to epoch, by the seed
    random: ClassVar[bool] = False

    @abstractmethod
    def joint(self, key: Key, epoch: int, memo: dict[str, Any]) -> Joint:
        """What brings the parts together."""

    @abstractmethod
    def combined_length(self, lengths: Sequence[Length]) -> Length:
        """The length of an epoch, from those of the parts."""

    def memo(self) -> Memo:
        """What its joints share in one loader: a new, empty one. Its stats get the composite's verb in front."""
        return Memo()


def length_of(data: Any, what: str) -> int:
    """``len(data)``; refuses more than can be counted."""
    try:
        return len(data)
    except OverflowError:
        raise PlanError(
            f"{what}: a {type(data).__name__} of more than {sys.maxsize} samples is more than can be counted; "
            "give a part of it, or read it forward with from_iterable"
        ) from None


def picked(indices: Indices, subset: NDArray[np.int64] | None) -> Indices:
    """Positions in the source that stand at positions `indices` of its subset."""
    if subset is None:
        return indices
    return subset[indices.start : indices.stop] if isinstance(indices, range) else subset[indices]


def why_long_list(items: Sequence[Any]) -> str:
    """Why a Python list is read here and not in every worker process; nothing if it is short.

    Its items are objects, and so would be copied into each of them.
    """
    count = len(items)
    looked_at = [items[number] for number in range(0, count, max(1, count // _LOOKED_AT))]
    about = sum(map(nbytes, looked_at)) * count // max(len(looked_at), 1) + 8 * count
    if about < _LONG_BYTES:
        return ""
    return f"a {type(items).__name__} of {count:,} items, about {about / 1e6:,.0f} MB"
