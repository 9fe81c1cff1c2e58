"""A part of another source: some of its samples, in an order of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import PlanError
from penstock.indices import split
from penstock.sources.chosen import content_of, subset_of
from penstock.sources.source import Composite, IndexedSource, Indices, Source, picked


class Subset(IndexedSource):
    """Sample i is sample ``indices[i]`` of `whole`; everything else is as the whole says.

    Samples keep the numbers that they have there. A subset of a subset is one of the whole.

    >>> from penstock.sources.sequence import SequenceSource
    >>> part = Subset(SequenceSource("abcde"), [4, 1])
    >>> list(part.read(range(2))), Subset(part, [1]).numbers(range(1)).tolist()
    (['e', 'b'], [1])
    """

    verb = "subset"

    def __init__(self, whole: IndexedSource, indices: Iterable[int]) -> None:
        chosen = subset_of(len(whole), indices, whole.label)
        if chosen is None:
            raise PlanError(f"a subset of {whole.label} needs indices, got None; use the source itself for all")
        self.whole: IndexedSource = whole
        self.chosen: NDArray[np.int64] = chosen
        if isinstance(whole, Subset):
            self.whole, self.chosen = whole.whole, whole.chosen[chosen]

    @property
    def label(self) -> str:
        return f"{self.whole.label}.split({len(self)} of {len(self.whole)})"

    @property
    def content(self) -> str:
        return " ".join(filter(None, (self.whole.content, content_of(self.chosen))))

    @property
    def instant(self) -> bool:
        return self.whole.instant

    @property
    def reads_batches(self) -> bool:
        return self.whole.reads_batches

    @property
    def stays(self) -> str:
        return self.whole.stays

    @property
    def why_not_shuffled(self) -> str:
        return self.whole.why_not_shuffled

    @property
    def heap_bytes(self) -> int:
        return self.whole.heap_bytes

    def bare(self) -> IndexedSource:
        return Subset(self.whole.bare(), self.chosen)

    def __len__(self) -> int:
        return len(self.chosen)

    def numbers(self, indices: Indices) -> Indices:
        return self.whole.numbers(picked(indices, self.chosen))

    def name(self, index: int) -> str:
        return self.whole.name(int(self.chosen[index]))

    def read(self, indices: Indices) -> Sequence[Any]:
        return self.whole.read(picked(indices, self.chosen))

    def read_batch(self, indices: Indices) -> Any:
        return self.whole.read_batch(picked(indices, self.chosen))


def split_source(
    source: Source, fractions: Sequence[float], seed: int, labels: Iterable[Any] | None
) -> list[Subset]:
    """Parts of `source` that share no sample and leave none out."""
    if isinstance(source, Composite):
        raise PlanError(
            f"split: what comes from {source.label} cannot be read at any position; split the pipelines that it "
            "is made of, with the same seed, and put their parts together"
        )
    if not isinstance(source, IndexedSource):
        raise PlanError(
            f"split: {source.label} is a stream, which can only be read forward; use a source that can be "
            "indexed, such as from_sequence(), or tell the samples apart with filter()"
        )
    return [Subset(source, part) for part in split(len(source), fractions, seed=seed, labels=labels)]
