"""One value, made once and served for every index: the ceiling of whatever reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.sources.source import IndexedSource, Indices
from penstock.trees import read_only


class ConstantSource(IndexedSource):
    """What ``make()`` returns, for every index. It is called when the first sample is read, once per process."""

    verb = "constant"

    def __init__(self, make: Callable[[], Any], of: str, count: int) -> None:
        self.make = make
        self.of = of
        self.count = count
        self._made: list[Any] = []

    @property
    def label(self) -> str:
        return f"constant({self.of})"

    def __len__(self) -> int:
        return self.count

    def read(self, indices: Indices) -> list[Any]:
        if not self._made:
            self._made.append(read_only(self.make()))
        return self._made[:1] * len(indices)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_made": []}
