"""from_tar: samples of tar archives in the WebDataset layout, by number or as a stream.

A plain archive is indexed in one pass over its headers; after that any sample is one read per field. A compressed
one can only be read forward, with a shard per file. Nothing is extracted to disk. Fields are bytes unless `decode`
says otherwise, and no field is ever unpickled. Archives that `Pipeline.write` has made give back the sample trees.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.errors import PlanError, ReadError
from penstock.formats.columns import dicts
from penstock.formats.compressed import decompressed
from penstock.formats.fields import decoder_of, restored
from penstock.formats.index import Where, index_of, unpacked
from penstock.formats.spans import read_pieces
from penstock.formats.tar import BLOCK
from penstock.formats.webdataset import KIND, TREE, build_index, samples
from penstock.sources.shards import Options, Shard, ShardSource
from penstock.sources.source import Indices
from penstock.sources.streams import FileStream

#: fields by extension, or under names of the user's own; alternatives as "jpg;png"
Fields = Sequence[str] | Mapping[str, str] | None


@dataclass(frozen=True)
class Layout:
    """Which fields a sample gets, under which names, and whether they are decoded."""

    fields: Fields = None
    decode: bool | None = None
    #: the name in the sample, by extension; empty for all
    names: dict[str, str] = field(default_factory=dict, init=False)
    #: the extensions that may stand for each name
    needed: dict[str, list[str]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.decode not in (None, True, False):
            raise PlanError(f"from_tar(decode=) takes True, False or None, got {self.decode!r}")
        if self.fields is None:
            return
        if isinstance(self.fields, str) or not len(self.fields):
            raise PlanError(f"from_tar(fields=) takes a list of extensions or a dict, got {self.fields!r}")
        pairs = self.fields.items() if isinstance(self.fields, Mapping) else [(one, one) for one in self.fields]
        for name, extensions in pairs:
            ways = [one.strip().lstrip(".") for one in extensions.split(";")]
            name = name if isinstance(self.fields, Mapping) else ways[0]
            self.needed[name] = ways
            for one in ways:
                if one in self.names:
                    raise PlanError(f"from_tar(fields=) names the extension {one!r} twice")
                self.names[one] = name

    def name_of(self, extension: str) -> str | None:
        """What a field is called in the sample; None if it is not wanted."""
        return self.names.get(extension) if self.names else extension

    def rank(self, extension: str) -> int:
        """The place of an extension among those that may stand for the same name."""
        ways = self.needed.get(self.names.get(extension, ""), ())
        return ways.index(extension) if extension in ways else 0

    def checked(self, sample: dict[str, Any], path: str, key: str) -> dict[str, Any]:
        """The sample with its fields in the order in which they were asked for, if all are there."""
        if not self.needed:
            return sample
        try:
            return {name: sample[name] for name in self.needed}
        except KeyError as exc:
            ways = " or ".join(map(repr, self.needed[exc.args[0]]))
            raise ReadError(f"{path}: the sample {key!r} has no field {ways}") from None

    def told(self) -> str:
        """For the fingerprint of a source."""
        said = [f"fields {self.fields}"] if self.fields is not None else []
        return " ".join([*said, *([f"decode={self.decode}"] if self.decode is not None else [])])


def _decoded(value: bytes, extension: str, path: str, key: str) -> Any:
    decode = decoder_of(extension)
    if decode is None:
        return value
    try:
        return decode(value)
    except ValueError as exc:
        raise ReadError(
            f"{path}: the field {extension!r} of sample {key!r} cannot be decoded: {exc}; decode=False gives "
            "its bytes"
        ) from exc


def _restored(members: dict[str, bytes], path: str, key: str, given: bool) -> Any:
    """The sample tree of an archive that penstock wrote."""
    try:
        sample = restored(members)
    except (ValueError, KeyError) as exc:
        raise ReadError(f"{path}: the sample {key!r} cannot be read: {exc}; the file is damaged") from exc
    return {"__key__": key, **sample} if given else sample


class _Regular(NamedTuple):
    """An archive whose samples all have the same fields in the same order: no member has to be looked for.

    Looking for members takes calls of numpy, which are half the time of a short read.
    """

    fields: list[int]
    #: of each sample one row, with a column for each field
    at: NDArray[np.int64]
    sizes: NDArray[np.int64]


class _TarShard(Shard):
    """One plain archive and its index."""

    def __init__(self, path: str, options: Options, layout: Layout, where: Where) -> None:
        super().__init__(path, options)
        self.layout = layout
        arrays = index_of(self.file, KIND, build_index, where)
        self.first: NDArray[np.int64] = arrays["first"]
        self.at: NDArray[np.int64] = arrays["at"]
        self.sizes: NDArray[np.int64] = arrays["size"]
        self.field_ids: NDArray[np.int32] = arrays["field"]
        self.keys = arrays["keys"].data
        self.key_at: NDArray[np.int64] = arrays["key_at"]
        self.extensions = [_text(one) for one in unpacked(arrays["fields"], arrays["field_at"])]
        tree = bytes(arrays["tree"])
        self.tree = bool(tree) and layout.decode is None
        self.given_keys = tree == TREE + b"given"
        if not len(self) and self.file.read_at(0, BLOCK) != bytes(BLOCK):
            raise ReadError(f"{path}: no member of this archive is named like a sample's field, as 0001.jpg is")
        self.names = [layout.name_of(extension) for extension in self.extensions]
        self.wanted = None if all(self.names) else np.array([name is not None for name in self.names])
        self.regular = self._regular()

    def __len__(self) -> int:
        return len(self.first) - 1

    def name(self, number: int) -> str:
        return self._keys([number])[0]

    def _keys(self, numbers: Any) -> list[str]:
        if isinstance(numbers, range) and numbers:
            bounds = self.key_at[numbers.start : numbers.stop + 1].tolist()
            first = bounds[0]
            text = str(self.keys[first : bounds[-1]], "utf-8", "surrogateescape")
            if text.isascii():  # a letter is a byte, so positions in the text are those in the file
                return [text[start - first : stop - first] for start, stop in pairwise(bounds)]
        places = np.asarray(numbers, dtype=np.int64)
        return [
            str(self.keys[start:stop], "utf-8", "surrogateescape")
            for start, stop in zip(self.key_at[places].tolist(), self.key_at[places + 1].tolist(), strict=True)
        ]

    def _regular(self) -> _Regular | None:
        if not len(self):
            return None
        members, counts = self._members(np.arange(len(self)))
        alike = self._alike(members, counts)
        if not alike:
            return None
        every = len(members) == len(self.at)
        at, sizes = (self.at, self.sizes) if every else (self.at[members], self.sizes[members])
        return _Regular(alike, at.reshape(len(self), -1), sizes.reshape(len(self), -1))

    def read(self, numbers: Indices) -> list[Any]:
        self.check()
        if self.regular is not None:
            alike, at, sizes = self.regular
            rows = slice(numbers.start, numbers.stop) if isinstance(numbers, range) else numbers
            pieces = read_pieces(self.file, at[rows].ravel(), sizes[rows].ravel())
            found = self._by_column(numbers, alike, pieces)
            if found is not None:
                return found
        members, counts = self._members(np.asarray(numbers, dtype=np.int64))
        pieces = read_pieces(self.file, self.at[members], self.sizes[members])
        found = self._by_column(numbers, self._alike(members, counts), pieces)
        return self._one_by_one(numbers, members, counts, pieces) if found is None else found

    def _by_column(self, numbers: Indices, alike: list[int], pieces: list[bytes]) -> list[Any] | None:
        """Samples that have the same fields; None if they do not, or one cannot be decoded."""
        columns = self._columns(alike, pieces)
        if columns is None:
            return None
        names = [self.names[field] or "" for field in alike]
        return dicts(["__key__", *names], [self._keys(numbers), *columns], len(numbers))

    def _one_by_one(
        self, numbers: Indices, members: NDArray[np.int64], counts: NDArray[np.int64], pieces: list[bytes]
    ) -> list[Any]:
        fields = self.field_ids[members].tolist()
        out: list[Any] = []
        start = 0
        make = self._tree if self.tree else self._sample
        for key, count in zip(self._keys(numbers), counts.tolist(), strict=True):
            stop = start + count
            out.append(make(key, fields[start:stop], pieces[start:stop]))
            start = stop
        return out

    def _members(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The wanted members of these samples, and how many each sample has."""
        first = self.first[numbers]
        counts = self.first[numbers + 1] - first
        total = int(counts.sum())
        ends = np.cumsum(counts)
        members = np.arange(total) + np.repeat(first - (ends - counts), counts)
        if self.wanted is None or self.tree:
            return members, counts
        keep = self.wanted[self.field_ids[members]]
        owner = np.repeat(np.arange(len(numbers)), counts)
        return members[keep], np.bincount(owner[keep], minlength=len(numbers))

    def _alike(self, members: NDArray[np.int64], counts: NDArray[np.int64]) -> list[int]:
        """The numbers of the fields, if these samples have the same in the same order."""
        if self.tree or not len(counts) or not counts[0] or (counts != counts[0]).any():
            return []
        fields = self.field_ids[members].reshape(len(counts), counts[0])
        if (fields != fields[0]).any():
            return []
        found: list[int] = fields[0].tolist()
        names = [self.names[number] for number in found]
        return found if not self.layout.needed or names == list(self.layout.needed) else []

    def _columns(self, alike: list[int], pieces: list[bytes]) -> list[list[Any]] | None:
        """The values of each field; None if samples have to be made one by one, or one cannot be decoded."""
        if not alike:
            return None
        columns: list[list[Any]] = [pieces[number :: len(alike)] for number in range(len(alike))]
        if self.layout.decode:
            for number, field in enumerate(alike):
                decode = decoder_of(self.extensions[field])
                try:
                    columns[number] = columns[number] if decode is None else list(map(decode, columns[number]))
                except ValueError:
                    return None  # one by one it shows which of them it was
        return columns

    def _sample(self, key: str, fields: list[int], pieces: list[bytes]) -> dict[str, Any]:
        names, layout = self.names, self.layout
        if layout.decode:
            path, extensions = self.file.path, self.extensions
            found: dict[Any, Any] = {
                names[one]: _decoded(piece, extensions[one], path, key)
                for one, piece in self._preferred(fields, pieces)
            }
        else:
            found = {names[one]: piece for one, piece in self._preferred(fields, pieces)}
        return {"__key__": key, **layout.checked(found, self.file.path, key)}

    def _preferred(self, fields: list[int], pieces: list[bytes]) -> Iterable[tuple[int, bytes]]:
        """The members of a sample; of several that may stand for one name, what was asked for first is last."""
        found = zip(fields, pieces, strict=True)
        if not self.layout.needed:
            return found
        return sorted(found, key=lambda one: self.layout.rank(self.extensions[one[0]]), reverse=True)

    def _tree(self, key: str, fields: list[int], pieces: list[bytes]) -> Any:
        members = {self.extensions[one]: piece for one, piece in zip(fields, pieces, strict=True)}
        sample = _restored(members, self.file.path, key, self.given_keys)
        if self.layout.needed:
            return self.layout.checked(sample, self.file.path, key)
        return sample


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


class TarSource(ShardSource):
    """Samples of plain archives, in any order."""

    verb = "from_tar"

    def __init__(
        self,
        paths: Sequence[str],
        layout: Layout,
        indices: Iterable[int] | None = None,
        where: Where = None,
        on_error: str = "raise",
        options: Options = None,
    ) -> None:
        self.layout = layout
        self.where = where
        super().__init__(paths, indices, on_error, options)

    def _opened(self, path: str) -> _TarShard:
        return _TarShard(path, self.options, self.layout, self.where)

    def _index_all(self) -> list[int]:
        counts = super()._index_all()
        if not any(counts):
            raise ReadError(f"{self.paths[0]}: no member in this archive, nor in any other that was given")
        return counts

    @property
    def reading(self) -> str:
        return self.layout.told()


class TarStream(FileStream):
    """Samples of compressed archives, read forward."""

    verb = "from_tar"

    def __init__(self, paths: Sequence[str], layout: Layout, most: int, options: Options = None) -> None:
        super().__init__(paths, options)
        self.layout = layout
        self.most = most

    @property
    def reading(self) -> str:
        return self.layout.told()

    def open(self, shard: str, skip: int) -> Iterator[Any]:
        layout = self.layout
        tree_wanted = layout.decode is None

        def wanted(extension: bytes, tree: bytes) -> bool:
            return bool(tree and tree_wanted) or layout.name_of(_text(extension)) is not None

        with decompressed(shard, self.options) as stream:
            for found in samples(shard, stream, skip, self.most, wanted):
                key = _text(found.key)
                fields = {_text(name): data for name, data in found.fields.items()}
                if found.tree and tree_wanted:
                    sample = _restored(fields, shard, key, found.tree == TREE + b"given")
                    yield layout.checked(sample, shard, key) if layout.needed else sample
                else:
                    yield self._sample(fields, shard, key)

    def _sample(self, fields: dict[str, bytes], path: str, key: str) -> dict[str, Any]:
        layout = self.layout
        sample: dict[str, Any] = {}
        order = sorted(fields, key=layout.rank, reverse=True) if layout.needed else fields
        for extension in order:
            data, name = fields[extension], layout.name_of(extension)
            if name is not None:
                sample[name] = _decoded(data, extension, path, key) if layout.decode else data
        return {"__key__": key, **layout.checked(sample, path, key)}
