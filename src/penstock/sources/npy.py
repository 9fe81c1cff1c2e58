"""from_npy: rows of ``.npy`` and ``.npz`` files, or whole files as samples. Nothing is ever unpickled.

Local ``.npy`` files are mapped into memory, and so are the arrays of a ``.npz`` file that `np.savez` wrote. Those
of a compressed ``.npz`` are decompressed once and kept within a bound on bytes. Rows of remote ``.npy`` files are
read by their position. A file that is cut short is refused when it is opened.
"""

from __future__ import annotations

import lzma
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock import storage
from penstock.errors import ReadError
from penstock.formats.groups import Groups
from penstock.formats.npy import Pickled, npy_array
from penstock.formats.rows import Arrays, Rows, npy_rows, npz_arrays
from penstock.sources.blocks import BlockShard, BlockSource
from penstock.sources.chosen import ChosenSource, subset_of
from penstock.sources.shards import Options, Shard, files_label, names_content
from penstock.sources.source import Indices

#: decompressed arrays that a process keeps
CACHE_BYTES = 1 << 29
#: what zipfile and its decompressors raise over damaged files
_DAMAGE = (ValueError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError)

#: dtype and shape of the rows of each array
Form = dict[str, tuple[str, tuple[int, ...]]]


def _is_npz(path: str) -> bool:
    return storage.without_query(path).lower().endswith(".npz")


def _bad(path: str, exc: Exception) -> ReadError:
    hint = "" if isinstance(exc, Pickled) else "; the file is damaged, or is not what its name says"
    return ReadError(f"{path}: {exc}{hint}")


class _Shard(BlockShard):
    """One file: its arrays by name; a ``.npy`` file has one without a name."""

    def __init__(self, path: str, options: Options, groups: Groups[Arrays]) -> None:
        super().__init__(path, options)
        self.options = options
        self.groups = groups
        self._rows: Mapping[str, Rows] | None = None
        for name, rows in self.columns().items():
            if not rows.shape:
                what = f"the array {name!r}" if name else "its array"
                raise ReadError(f"{path}: {what} has no dimension, so no rows; rows=False gives whole files")
        lengths = {name: rows.shape[0] for name, rows in self.columns().items()}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            raise ReadError(f"{path}: its arrays have different lengths ({told}), so they have no rows in common")
        self.count = next(iter(lengths.values()))
        self.alone = list(lengths) == [""]
        #: what rows of other files must be like; strings may be of any length
        self.form = {
            name: ("text" if rows.listed else str(rows.dtype), rows.shape[1:])
            for name, rows in self.columns().items()
        }

    def columns(self) -> Mapping[str, Rows]:
        """The arrays; compressed ones may have to be decompressed again."""
        if self._rows is not None:
            return self._rows
        try:
            if not _is_npz(self.path):
                self._rows = {"": npy_rows(self.path, self.file, 0, self.size)}
                return self._rows
            found: Arrays = self.groups.get(self.path, lambda: npz_arrays(self.path, self.file, self.options))
        except _DAMAGE as exc:
            raise _bad(self.path, exc) from exc
        if not found.nbytes:
            self._rows = found.rows
        return found.rows


class NpySource(BlockSource):
    """Rows of arrays in files, in any order."""

    verb = "from_npy"

    def __init__(
        self,
        paths: Sequence[str],
        indices: Iterable[int] | None = None,
        cache_bytes: int = CACHE_BYTES,
        options: Options = None,
    ) -> None:
        self.groups: Groups[Arrays] = Groups(cache_bytes)
        self._forms: dict[int, Form] = {}
        super().__init__(paths, indices, options)

    def _opened(self, path: str) -> _Shard:
        return _Shard(path, self.options, self.groups)

    def _note(self, number: int, shard: Shard) -> None:
        assert isinstance(shard, _Shard)
        self._forms[number] = shard.form

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


def _told(form: Form) -> str:
    return ", ".join(
        f"{name}: " * bool(name) + f"rows of {dtype}{list(shape)}" for name, (dtype, shape) in form.items()
    )


class NpyFiles(ChosenSource):
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
    def whole_content(self) -> str:
        return names_content(self.paths)

    @property
    def whole_length(self) -> int:
        return len(self.paths)

    def name(self, index: int) -> str:
        return self.paths[int(self.numbers(range(index, index + 1))[0])]

    def read(self, indices: Indices) -> list[Any]:
        return [self._whole(self.paths[int(number)]) for number in self.numbers(indices)]

    def _whole(self, path: str) -> Any:
        file = storage.file(path, self.options)
        try:
            if not _is_npz(path):
                return npy_array(file.read())
            arrays = npz_arrays(path, file, self.options).rows
            return {name: rows.whole().copy() for name, rows in arrays.items()}
        except _DAMAGE as exc:
            raise _bad(path, exc) from exc
