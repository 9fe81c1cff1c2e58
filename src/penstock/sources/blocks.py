"""What sources of arrays in files have in common: a batch is one block of each array, without rows in between."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from penstock.formats.columns import dicts
from penstock.formats.rows import Rows
from penstock.memory.recycle import Recycler
from penstock.sources.shards import Options, Shard, ShardSource, split_runs
from penstock.sources.source import Indices
from penstock.trees import batch_dtype, stacked


class BlockShard(Shard):
    """One file: its arrays by name, all of one length."""

    #: its only array gives rows without a dict
    alone: bool
    count: int

    @abstractmethod
    def columns(self) -> Mapping[str, Rows]:
        """The arrays."""

    def __len__(self) -> int:
        return self.count

    def name(self, number: int) -> str:
        return f"row {number}"

    def read(self, numbers: Indices) -> list[Any]:
        self.check()
        columns = self.columns()
        found = [list(_read_only(rows.block(numbers))) for rows in columns.values()]
        return found[0] if self.alone else dicts(list(columns), found, len(numbers))


def _read_only(block: NDArray[Any]) -> NDArray[Any]:
    view = block.view()
    view.flags.writeable = False
    return view


class BlockSource(ShardSource):
    """Rows of arrays in files, in any order."""

    def __init__(self, paths: Sequence[str], indices: Iterable[int] | None = None, options: Options = None) -> None:
        self._recycler = Recycler()
        super().__init__(paths, indices, "raise", options)

    @property
    def reads_batches(self) -> bool:
        return True

    def read_batch(self, indices: Indices) -> Any:
        chosen = self.numbers(indices)
        runs: list[tuple[Mapping[str, Rows], Indices, Any]] = []
        alone = False
        for number, within, places in split_runs(self.starts, chosen):
            shard = self._shard(number)
            assert isinstance(shard, BlockShard)
            shard.check()
            runs.append((shard.columns(), within, places))
            alone = shard.alone
        batch = {
            name: self._joined([(columns[name], within, places) for columns, within, places in runs], chosen, name)
            for name in runs[0][0]
        }
        return next(iter(batch.values())) if alone else batch

    def _joined(self, runs: list[tuple[Rows, Indices, Any]], indices: Indices, name: str) -> Any:
        """The rows of one array from several files as a batch, the same as if they had been stacked one by one."""
        first, within, _ = runs[0]
        if first.listed or any(
            one.shape[1:] != first.shape[1:] or one.dtype != first.dtype for one, _, _ in runs[1:]
        ):
            rows: list[Any] = [None] * len(indices)
            for one, within, places in runs:
                for place, row in zip(places, _read_only(one.block(within)), strict=True):
                    rows[place] = row
            return stacked(rows, lambda place: f"sample {int(indices[place])}", path=name)
        dtype = batch_dtype(first.dtype)
        if len(runs) == 1 and first.owned and first.dtype == dtype:
            return first.block(within)
        out = self._recycler.empty((len(indices), *first.shape[1:]), dtype)
        if len(runs) == 1:
            first.fill(within, out)
            return out
        for one, within, places in runs:
            out[slice(places.start, places.stop) if isinstance(places, range) else places] = one.block(within)
        return out

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_recycler": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._recycler = Recycler()
