"""The contract of a source.

* An `IndexedSource` can read any of its samples alone: it has a length and `read(indices)`.
* A `StreamSource` can only be read forward: it has shards, each opened with a number of records to skip.
* A `Composite` brings several pipelines together with a joint.

Sources are shared by workers: `read` may be called by several at once.
`penstock.testing.check_source` tries a new one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.errors import PlanError
from penstock.ops.op import Joint, Key, Length, Op

__all__ = ["Composite", "Flow", "IndexedSource", "Indices", "Source", "StreamSource", "subset_of"]

#: positions in a source: consecutive ones as a range, others as an array
Indices = range | NDArray[np.int64]


class Source(ABC):
    """Where samples come from."""

    #: the function that makes it
    verb: ClassVar[str]

    @property
    def label(self) -> str:
        """The source as `explain()` shows it."""
        return self.verb

    @property
    def instant(self) -> bool:
        """Reads never block, so they may ride on an event loop."""
        return False

    def length(self) -> Length:
        """How many samples an epoch has, if it can be known."""
        return None


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

    @property
    def reads_batches(self) -> bool:
        """Whether `read_batch` is worth calling."""
        return False

    def length(self) -> int:
        return len(self)


class StreamSource(Source):
    """Samples can only be read forward."""

    @abstractmethod
    def shards(self) -> Sequence[Any]:
        """The parts of the stream, in their order."""

    @abstractmethod
    def open(self, shard: Any, skip: int) -> Iterator[Any]:
        """A new iterator over one part, without its first `skip` records."""


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

    @abstractmethod
    def joint(self, key: Key, epoch: int, memo: dict[str, Any]) -> Joint:
        """What brings the parts together."""

    @abstractmethod
    def combined_length(self, lengths: Sequence[Length]) -> Length:
        """The length of an epoch, from those of the parts."""


def subset_of(n: int, indices: Any, what: str) -> NDArray[np.int64] | None:
    """`indices=` as an array of positions in a source of `n` samples, checked."""
    if indices is None:
        return None
    array = np.asarray(indices if hasattr(indices, "__len__") else list(indices))
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise PlanError(f"{what}: indices= takes a 1-D sequence of integers, got {array.dtype} {array.shape}")
    array = array.astype(np.int64)
    if array.min() < -n or array.max() >= n:
        bad = int(array[(array < -n) | (array >= n)][0])
        raise PlanError(f"{what}: index {bad} is outside a source of {n} samples")
    return np.where(array < 0, array + n, array)


def picked(indices: Indices, subset: NDArray[np.int64] | None) -> Indices:
    """Positions in the source that stand at positions `indices` of its subset."""
    if subset is None:
        return indices
    return subset[indices.start : indices.stop] if isinstance(indices, range) else subset[indices]
