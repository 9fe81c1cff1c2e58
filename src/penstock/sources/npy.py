"""from_npy: rows of ``.npy`` and ``.npz`` files, or whole files as samples. Nothing is ever unpickled.

Local ``.npy`` files are mapped into memory, and so are the arrays of a ``.npz`` file that `np.savez` wrote. Those
of a compressed ``.npz`` are decompressed once and kept within a bound on bytes. Rows of remote ``.npy`` files are
read by their position. A file that is cut short is refused when it is opened.
"""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import storage
from penstock.errors import ReadError
from penstock.formats.groups import Groups
from penstock.formats.npy import header_length, npy_array, npy_header
from penstock.formats.seekable import seekable
from penstock.formats.spans import read_pieces
from penstock.memory.recycle import Recycler
from penstock.sources.shards import Options, Shard, ShardSource, files_label, split_runs
from penstock.sources.source import IndexedSource, Indices, bare_subset, content_of, picked, subset_of
from penstock.trees import batch_dtype, stacked

__all__ = ["CACHE_BYTES", "NpyFiles", "NpySource"]

#: decompressed arrays that a process keeps
CACHE_BYTES = 1 << 29
#: kinds of arrays whose rows make a list of a batch: text, and what numpy does not know
_LISTED = "USO"


#: dtype and shape of the rows of each array
Form = dict[str, tuple[str, tuple[int, ...]]]


def _is_npz(path: str) -> bool:
    return path.lower().partition("?")[0].endswith(".npz")


def _bad(path: str, exc: Exception) -> ReadError:
    return ReadError(f"{path}: {exc}; the file is damaged, or is not what its name says")


# ---------------------------------------------------------------------- arrays in files


class _Rows:
    """The rows of one array, wherever its values are."""

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        if not shape:
            raise ValueError("an array without dimensions has no rows")
        self.dtype = dtype
        self.shape = shape

    def block(self, numbers: Indices) -> NDArray[Any]:
        raise NotImplementedError


class _Mapped(_Rows):
    """In memory, or mapped into it."""

    def __init__(self, array: NDArray[Any]) -> None:
        super().__init__(array.dtype, array.shape)
        self.array = array

    def block(self, numbers: Indices) -> NDArray[Any]:
        return self.array[numbers.start : numbers.stop] if isinstance(numbers, range) else self.array[numbers]


class _Remote(_Rows):
    """In a file that is read by position."""

    def __init__(self, file: storage.File, dtype: np.dtype[Any], shape: tuple[int, ...], at: int) -> None:
        super().__init__(dtype, shape)
        self.file = file
        self.at = at
        self.row_bytes = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))

    def block(self, numbers: Indices) -> NDArray[Any]:
        at = [self.at + int(number) * self.row_bytes for number in numbers]
        pieces = read_pieces(self.file, at, [self.row_bytes] * len(at))
        return np.frombuffer(b"".join(pieces), self.dtype).reshape(len(at), *self.shape[1:])


def _npy_rows(path: str, file: storage.File, at: int, size: int) -> _Rows:
    """The rows of a ``.npy`` file that takes ``file[at : at + size]``."""
    start = file.read_at(at, min(12, size))
    length = header_length(start)
    if length > min(size, 1 << 16):
        raise ValueError("its header is longer than the file")
    dtype, fortran, shape = npy_header(file.read_at(at, length))
    count = 1
    for one in shape:
        count *= one
    if count < 0 or length + count * dtype.itemsize > size:
        raise ValueError(f"{dtype}{list(shape)} takes {count * dtype.itemsize} bytes, and {size - length} follow")
    here = storage.local(path)
    if not count or not dtype.itemsize:
        return _Mapped(np.empty(shape, dtype))
    if here is not None:
        order = "F" if fortran else "C"
        found = np.memmap(here, dtype, mode="r", offset=at + length, shape=shape, order=order)  # type: ignore[call-overload]
        return _Mapped(np.asarray(found))
    if fortran:
        return _Mapped(npy_array(file.read_at(at, size)))
    return _Remote(file, dtype, shape, at + length)


class _Arrays:
    """The arrays of a ``.npz`` file by name."""

    def __init__(self, rows: Mapping[str, _Rows], nbytes: int) -> None:
        self.rows = rows
        self.nbytes = nbytes


def _npz_arrays(path: str, file: storage.File, options: Options) -> _Arrays:
    rows: dict[str, _Rows] = {}
    nbytes = 0
    with zipfile.ZipFile(io.BufferedReader(seekable(path, options), 1 << 16)) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 1:
                head = file.read_at(member.header_offset, 30)
                # The lengths of name and extra field are those of the member's own header, not of the directory.
                skipped = 30 + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
                rows[name] = _npy_rows(path, file, member.header_offset + skipped, member.file_size)
            else:
                array = _decompressed(archive, member)
                nbytes += array.nbytes
                rows[name] = _Mapped(array)
    if not rows:
        raise ValueError("there is no array in it")
    return _Arrays(rows, nbytes)


def _decompressed(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """An array of a compressed member, read only as far as its header says: what follows may be a bomb."""
    with archive.open(member) as stream:
        start = stream.read(12)
        length = header_length(start)
        head = start + stream.read(min(length, 1 << 16) - len(start))
        dtype, _, shape = npy_header(head)
        size = dtype.itemsize
        for one in shape:
            size *= one
        if size < 0 or length + size != member.file_size:
            raise ValueError(
                f"{member.filename}: {dtype}{list(shape)} does not take {member.file_size - length} bytes"
            )
        data = stream.read(size)
        if len(data) < size or stream.read(1):
            raise ValueError(f"{member.filename} does not have the {size} bytes that it should have")
    array = npy_array(head + data)
    array.flags.writeable = False
    return array


# ---------------------------------------------------------------------- the sources


class _Shard(Shard):
    """One file: its arrays by name; a ``.npy`` file has one without a name."""

    def __init__(self, path: str, options: Options, groups: Groups[_Arrays]) -> None:
        super().__init__(path, options)
        self.options = options
        self.groups = groups
        self._rows: Mapping[str, _Rows] | None = None
        lengths = {name: rows.shape[0] for name, rows in self.arrays().items()}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            raise ReadError(f"{path}: its arrays have different lengths ({told}), so they have no rows in common")
        self.count = next(iter(lengths.values()))
        #: what rows of other files must be like; strings may be of any length
        self.form = {
            name: ("text" if rows.dtype.kind in _LISTED else str(rows.dtype), rows.shape[1:])
            for name, rows in self.arrays().items()
        }

    def arrays(self) -> Mapping[str, _Rows]:
        """The arrays; compressed ones may have to be decompressed again."""
        if self._rows is not None:
            return self._rows
        try:
            if not _is_npz(self.path):
                self._rows = {"": _npy_rows(self.path, self.file, 0, self.size)}
                return self._rows
            found: _Arrays = self.groups.get(self.path, lambda: _npz_arrays(self.path, self.file, self.options))
        except (ValueError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as exc:
            raise _bad(self.path, exc) from exc
        if not found.nbytes:
            self._rows = found.rows
        return found.rows

    def __len__(self) -> int:
        return self.count

    def name(self, number: int) -> str:
        return f"row {number}"

    def read(self, numbers: Indices) -> list[Any]:
        self.check()
        columns = {name: _read_only(rows.block(numbers)) for name, rows in self.arrays().items()}
        if list(columns) == [""]:
            return list(columns[""])
        return [dict(zip(columns, row, strict=True)) for row in zip(*map(list, columns.values()), strict=True)]


def _read_only(block: NDArray[Any]) -> NDArray[Any]:
    view = block.view()
    view.flags.writeable = False
    return view


class NpySource(ShardSource):
    """Rows of arrays in files, in any order."""

    verb = "from_npy"

    def __init__(
        self,
        paths: Sequence[str],
        indices: Iterable[int] | None = None,
        cache_bytes: int = CACHE_BYTES,
        options: Options = None,
    ) -> None:
        self.groups: Groups[_Arrays] = Groups(cache_bytes)
        self._forms: dict[int, Form] = {}
        super().__init__(paths, indices, "raise", options)
        self._recycler = Recycler()

    def _opened(self, path: str) -> _Shard:
        return _Shard(path, self.options, self.groups)

    def _summary(self, number: int) -> tuple[int, str, int]:
        shard = self._opened(self.paths[number])
        self._forms[number] = shard.form
        return len(shard), shard.content, shard.size

    def _index_all(self) -> list[int]:
        counts = super()._index_all()
        first = self._forms[0]
        for number, path in enumerate(self.paths):
            if self._forms[number] != first:
                raise ReadError(
                    f"{path} has {_told(self._forms[number])}, and {self.paths[0]} has {_told(first)}; rows of one "
                    "pipeline must be alike, so read them as two"
                )
        self._forms.clear()
        return counts

    @property
    def reads_batches(self) -> bool:
        return True

    def read_batch(self, indices: Indices) -> Any:
        chosen = picked(indices, self.subset)
        runs = []
        for number, within, places in split_runs(self.starts, chosen):
            shard = self._shard(number)
            assert isinstance(shard, _Shard)
            shard.check()
            runs.append((shard.arrays(), within, places))
        names = list(runs[0][0])
        batch = {
            name: self._joined([(arrays[name], within, places) for arrays, within, places in runs], chosen, name)
            for name in names
        }
        return batch[""] if names == [""] else batch

    def _joined(self, runs: list[tuple[_Rows, Indices, Any]], indices: Indices, name: str) -> Any:
        dtype = runs[0][0].dtype
        if dtype.kind in _LISTED:
            rows: list[Any] = [None] * len(indices)
            for one, within, places in runs:
                for place, row in zip(places, _read_only(one.block(within)), strict=True):
                    rows[place] = row
            return stacked(rows, lambda place: f"sample {int(indices[place])}", path=name)
        out = self._recycler.empty((len(indices), *runs[0][0].shape[1:]), batch_dtype(dtype))
        for one, within, places in runs:
            out[slice(places.start, places.stop) if isinstance(places, range) else places] = one.block(within)
        return out

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_recycler": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._recycler = Recycler()


def _told(form: Form) -> str:
    return ", ".join(
        f"{name}: " * bool(name) + f"rows of {dtype}{list(shape)}" for name, (dtype, shape) in form.items()
    )


class NpyFiles(IndexedSource):
    """Whole files: an array, or a dict of them, is one sample."""

    verb = "from_npy"

    def __init__(self, paths: Sequence[str], indices: Iterable[int] | None = None, options: Options = None) -> None:
        self.paths = list(paths)
        self.options = options
        self.subset = subset_of(len(self.paths), indices, self.verb)

    @property
    def label(self) -> str:
        return files_label(self.verb, self.paths)

    @property
    def content(self) -> str:
        from hashlib import blake2b

        told = "\n".join(map(os.path.basename, self.paths))
        files = f"files {blake2b(told.encode('utf-8', 'surrogateescape'), digest_size=8).hexdigest()}"
        return " ".join(filter(None, (files, content_of(self.subset))))

    def __len__(self) -> int:
        return len(self.paths) if self.subset is None else len(self.subset)

    def bare(self) -> IndexedSource:
        return bare_subset(self, self.subset)

    def numbers(self, indices: Indices) -> Indices:
        return picked(indices, self.subset)

    def name(self, index: int) -> str:
        return self.paths[int(picked(range(index, index + 1), self.subset)[0])]

    def read(self, indices: Indices) -> list[Any]:
        return [self._whole(self.paths[int(number)]) for number in picked(indices, self.subset)]

    def _whole(self, path: str) -> Any:
        file = storage.file(path, self.options)
        try:
            if not _is_npz(path):
                return npy_array(file.read())
            arrays = _npz_arrays(path, file, self.options).rows
            return {name: rows.block(range(rows.shape[0])).copy() for name, rows in arrays.items()}
        except (ValueError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as exc:
            raise _bad(path, exc) from exc
