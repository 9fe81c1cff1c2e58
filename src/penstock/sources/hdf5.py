"""from_hdf5: rows of the data sets in HDF5 files, opened by each process for itself.

Data sets without filters whose rows lie whole in the file, in chunks or without, are mapped into memory, past HDF5
and its lock. The others are read by h5py: consecutive rows in one call, single rows one by one, which is up to ten
times as fast as h5py's lists of indices.
Each process keeps 64 MB of decoded chunks per data set. Strings of variable length are str, those of a fixed length
bytes. Only local files are mapped; remote ones are read through h5py in many small requests.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import storage
from penstock.errors import PlanError, ReadError, missing_extra
from penstock.formats.hdf5_chunks import mapped_chunks
from penstock.formats.rows import Mapped, Rows
from penstock.formats.seekable import seekable
from penstock.sources.blocks import BlockShard, BlockSource
from penstock.sources.shards import Options
from penstock.sources.source import Indices

#: decoded chunks that HDF5 keeps for each data set, and the slots of its table: a prime, a hundred times the chunks
_CHUNK_BYTES, _CHUNK_SLOTS = 1 << 26, 100_003
#: rows that are read in vain to make one call of two
_GAP = 4


def _h5py() -> Any:
    try:
        import h5py
    except ImportError:
        raise missing_extra("h5py", "hdf5", "reading HDF5 files") from None
    return h5py


class _Column(Rows):
    """A data set, and how its rows are read."""

    def __init__(self, dataset: Any, path: str) -> None:
        super().__init__(dataset.dtype, dataset.shape)
        self._path = path
        kind = _h5py().check_string_dtype(dataset.dtype)
        text = kind is not None and kind.length is None
        here = storage.local(path)
        #: how rows are read past HDF5; None where only HDF5 can read them
        self._direct: Rows | None = None
        if here is not None:
            self._direct = _mapped(dataset, here) or (mapped_chunks(dataset, here) if kind is None else None)
        self._array: Any = dataset.asstr() if text else dataset
        self.owned = self._direct is None or self._direct.owned

    def block(self, numbers: Indices) -> NDArray[Any]:
        try:
            return self._block(numbers) if self._direct is None else self._direct.block(numbers)
        except (OSError, RuntimeError, ValueError) as exc:
            raise ReadError(f"{self._path}: rows from {int(numbers[0])} on cannot be read: {exc}") from exc

    def fill(self, numbers: Indices, out: NDArray[Any]) -> None:
        if self._direct is None:
            out[...] = self.block(numbers)
        else:
            self._direct.fill(numbers, out)

    def _block(self, numbers: Indices) -> NDArray[Any]:
        """Rows that HDF5 reads."""
        if isinstance(numbers, range):
            found: NDArray[Any] = self._array[numbers.start : numbers.stop]
            return found
        out = np.empty((len(numbers), *self.shape[1:]), self.dtype)
        order = np.argsort(numbers, kind="stable")
        rising = numbers[order]
        bounds = np.flatnonzero(np.diff(rising) > _GAP) + 1
        for places, rows in zip(np.split(order, bounds), np.split(rising, bounds), strict=True):
            first, last = int(rows[0]), int(rows[-1])
            if first == last:
                out[places] = self._array[first]
            else:
                out[places] = self._array[first : last + 1][rows - first]
        return out


def _mapped(dataset: Any, here: str) -> Rows | None:
    """The rows of a data set whose values lie in the file as they are; None for any other."""
    offset = dataset.id.get_offset()
    plain = dataset.chunks is None and not dataset.external and not dataset.is_virtual
    if offset is None or not plain or dataset.dtype.hasobject or not dataset.size or not dataset.shape:
        return None
    if offset + dataset.size * dataset.dtype.itemsize > os.path.getsize(here):
        raise ValueError(f"the data set {dataset.name!r} ends behind the file, which was cut short")
    mapped = np.asarray(np.memmap(here, dataset.dtype, mode="r", offset=offset, shape=dataset.shape))
    for row in (0, len(mapped) - 1):
        if mapped[row].tobytes() != np.asarray(dataset[row]).tobytes():
            return None  # the file counts its positions from somewhere else
    return Mapped(mapped)


class _Shard(BlockShard):
    """One file, opened in this process."""

    def __init__(self, path: str, options: Options, fields: Sequence[str] | None, alone: bool) -> None:
        super().__init__(path, options)
        self.options = options
        self.fields = fields
        self.alone = alone
        self._opened: tuple[int, Any, dict[str, _Column]] = 0, None, {}
        columns = self.columns()
        lengths = {name: column.shape[0] if column.shape else -1 for name, column in columns.items()}
        if set(lengths.values()) == {-1}:
            raise PlanError(f"from_hdf5: {path}: {', '.join(lengths)}: a data set without dimensions has no rows")
        if len(set(lengths.values())) > 1 or -1 in lengths.values():
            told = ", ".join(f"{name}: {'none' if n < 0 else n}" for name, n in lengths.items())
            raise PlanError(
                f"from_hdf5: the data sets of {path} have different numbers of rows ({told}); name those that "
                "belong together with fields=[...]"
            )
        self.count = next(iter(lengths.values()))

    def columns(self) -> dict[str, _Column]:
        """The data sets; a forked child opens the file for itself."""
        if self._opened[0] != os.getpid():
            h5py = _h5py()
            try:
                here = storage.local(self.path)
                source = here if here is not None else io.BufferedReader(seekable(self.path, self.options), 1 << 16)
                cached = {"rdcc_nbytes": _CHUNK_BYTES, "rdcc_nslots": _CHUNK_SLOTS}
                file = h5py.File(source, "r", locking="best-effort", **cached)
                self._opened = os.getpid(), file, _columns(file, self.path, self.fields)
            except (OSError, ValueError, RuntimeError) as exc:
                if isinstance(exc, (FileNotFoundError, PermissionError, ReadError)):
                    raise
                raise ReadError(f"{self.path}: {exc}") from exc
        return self._opened[2]


def _columns(file: Any, path: str, fields: Sequence[str] | None) -> dict[str, _Column]:
    h5py = _h5py()
    known: dict[str, Any] = {}
    file.visititems(lambda name, found: known.__setitem__(name, found) if isinstance(found, h5py.Dataset) else None)
    wanted = list(known) if fields is None else list(fields)
    for name in wanted:
        if name not in known and isinstance(found := _linked(file, name), h5py.Dataset):
            known[name] = found
        if name not in known:
            raise PlanError(
                f"from_hdf5: {path} has no data set {name!r}; it has {', '.join(map(repr, known)) or 'none'}"
            )
    if not wanted:
        raise PlanError(f"from_hdf5: {path} has no data set")
    return {name: _Column(known[name], path) for name in wanted}


def _linked(file: Any, name: str) -> Any:
    """What a link leads to, which is in no listing of the file; None if it leads nowhere."""
    try:
        return file.get(name)
    except (OSError, KeyError, RuntimeError):
        return None


class Hdf5Source(BlockSource):
    """Rows of data sets in files, in any order."""

    verb = "from_hdf5"
    most_open = 256  # each has a descriptor

    def __init__(
        self,
        paths: Sequence[str],
        fields: str | Sequence[str] | None = None,
        indices: Iterable[int] | None = None,
        options: Options = None,
    ) -> None:
        if isinstance(fields, Mapping):
            raise PlanError(
                f"from_hdf5(fields=) takes a list of names, got {fields!r}; map() gives them other names"
            )
        self.alone = isinstance(fields, str)
        self.fields = [fields] if isinstance(fields, str) else None if fields is None else list(fields)
        if self.fields == []:
            raise PlanError("from_hdf5(fields=) names at least one data set")
        super().__init__(paths, indices, options)

    def _opened(self, path: str) -> _Shard:
        return _Shard(path, self.options, self.fields, self.alone)

    @property
    def reading(self) -> str:
        return "" if self.fields is None else f"fields {', '.join(self.fields)}"
