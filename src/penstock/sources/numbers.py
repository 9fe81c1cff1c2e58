"""A source as the numbers of its samples, for an op that reads them: reads are then calls with an error policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.sources.source import IndexedSource, Indices


class Numbers(IndexedSource):
    """Sample i is the number i; everything else is as `whole` says."""

    verb = "numbers"

    def __init__(self, whole: IndexedSource) -> None:
        self.whole = whole
        #: what the user has given, if that is one thing
        self.dataset = getattr(whole, "dataset", whole)

    @property
    def label(self) -> str:
        return self.whole.label

    @property
    def instant(self) -> bool:
        return True

    @property
    def read_by_op(self) -> bool:
        return True

    @property
    def content(self) -> str:
        return self.whole.content

    def __len__(self) -> int:
        return len(self.whole)

    def numbers(self, indices: Indices) -> Indices:
        return self.whole.numbers(indices)

    def name(self, index: int) -> str:
        return self.whole.name(index)

    def bare(self) -> IndexedSource:
        return self.whole.bare()

    def read(self, indices: Indices) -> Sequence[Any]:
        return indices if isinstance(indices, range) else indices.tolist()


class Items:
    """A source that is read one sample at a time, by ``[]``."""

    def __init__(self, source: IndexedSource) -> None:
        self._source = source

    def __getitem__(self, number: int) -> Any:
        return self._source.read(range(number, number + 1))[0]
