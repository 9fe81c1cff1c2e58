"""What sources with ``indices=`` have in common: sample i is sample ``indices[i]`` of what the user gave."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import PlanError
from penstock.sources.source import Bare, IndexedSource, Indices, picked


class ChosenSource(IndexedSource):
    """All samples of something, or those that ``indices=`` names."""

    #: what ``indices=`` names, as `subset_of` makes it; None for all
    subset: NDArray[np.int64] | None = None

    @property
    @abstractmethod
    def whole_length(self) -> int:
        """How many samples there are without ``indices=``."""

    @property
    def whole_content(self) -> str:
        """`Source.content` without ``indices=``."""
        return ""

    @property
    def content(self) -> str:
        return " ".join(filter(None, (self.whole_content, content_of(self.subset))))

    def __len__(self) -> int:
        return self.whole_length if self.subset is None else len(self.subset)

    def numbers(self, indices: Indices) -> Indices:
        return picked(indices, self.subset)

    def bare(self) -> IndexedSource:
        return Bare(self.label, len(self), self.subset)


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


def content_of(subset: NDArray[np.int64] | None) -> str:
    """What tells one subset from another."""
    if subset is None:
        return ""
    from hashlib import blake2b

    return f"indices {blake2b(subset.tobytes(), digest_size=4).hexdigest()}"
