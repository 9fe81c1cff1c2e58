"""from_tfrecord: records of TFRecord files, as bytes or as ``tf.train.Example``, without TensorFlow.

A plain file is indexed by its headers. The checksum of each length is compared when the file is indexed, that of
the data whenever a record is read. A file that is compressed with gzip can only be read forward, with a shard per
file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import PlanError, ReadError
from penstock.formats.compressed import decompressed
from penstock.formats.example import parse_example
from penstock.formats.index import Where, index_of
from penstock.formats.spans import read_pieces
from penstock.formats.tfrecord import FOOTER, HEADER, KIND, all_checked, build_index, forward
from penstock.sources.shards import Options, Shard, ShardSource
from penstock.sources.source import Indices
from penstock.sources.streams import FileStream

#: names of features, or names with what each of them is: bytes, str, int, float, or (shape, dtype)
Features = Sequence[str] | Mapping[str, Any] | None


class Examples:
    """What is made of the bytes of a record."""

    def __init__(self, features: Features = None, raw: bool = False) -> None:
        self.features = features
        self.raw = raw
        if raw and features is not None:
            raise PlanError("from_tfrecord(raw=True) gives the bytes of records, so features= has no meaning")
        if isinstance(features, str):
            raise PlanError(f"from_tfrecord(features=) takes a list of names or a dict, got {features!r}")
        self.wanted: dict[str, Callable[[Any], Any]] | None = None
        if features is not None:
            kinds = features if isinstance(features, Mapping) else dict.fromkeys(features)
            self.wanted = {name: _conversion(name, kind) for name, kind in kinds.items()}

    @property
    def told(self) -> str:
        return "raw" if self.raw else f"features {self.features}" if self.features is not None else ""

    def __call__(self, data: bytes) -> Any:
        """The sample; ValueError says what is wrong with the record."""
        if self.raw:
            return data
        found = parse_example(data)
        if self.wanted is None:
            return found
        try:
            return {name: convert(found[name]) for name, convert in self.wanted.items()}
        except KeyError as exc:
            raise ValueError(f"it has no feature {exc}; it has {', '.join(map(repr, found))}") from None

    def __reduce__(self) -> tuple[Any, ...]:
        return Examples, (self.features, self.raw)


def _conversion(name: str, kind: Any) -> Callable[[Any], Any]:
    if kind is None:
        return lambda value: value
    if kind in (bytes, str, int, float):
        return lambda value: _single(value, name, kind)
    try:
        shape, dtype = kind
        return _shaped(name, tuple(shape), np.dtype(dtype))
    except (TypeError, ValueError):
        raise PlanError(
            f"from_tfrecord(features=): {name!r} takes bytes, str, int, float or (shape, dtype), got {kind!r}"
        ) from None


def _single(value: Any, name: str, kind: type) -> Any:
    if len(value) != 1:
        raise ValueError(f"the feature {name!r} has {len(value)} values, not one; give ((n,), dtype) for it")
    fits = isinstance(value, list) == (kind in (bytes, str))
    if not fits or (kind is int and value.dtype.kind == "f"):
        has = "bytes" if isinstance(value, list) else str(value.dtype)
        raise ValueError(f"the feature {name!r} has {has}, not {kind.__name__}")
    return value[0].decode() if kind is str else value[0] if kind is bytes else kind(value[0])


def _shaped(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        # Byte strings hold raw values of the dtype, as tf.io.decode_raw reads them.
        array = np.frombuffer(b"".join(value), dtype) if isinstance(value, list) else value
        try:
            return array.astype(dtype).reshape(shape)[()]
        except ValueError:
            raise ValueError(f"the feature {name!r} has {array.size} values, which do not fit {shape}") from None

    return convert


class _Records(Shard):
    """One plain file."""

    def __init__(self, path: str, options: Options, examples: Examples, check: bool, where: Where) -> None:
        super().__init__(path, options)
        self.examples = examples
        self.check_data = check
        arrays = index_of(self.file, KIND, build_index, where)
        self.at: NDArray[np.int64] = arrays["at"]
        self.sizes: NDArray[np.int64] = arrays["size"]

    def __len__(self) -> int:
        return len(self.at)

    def name(self, number: int) -> str:
        return f"record {number}"

    def read(self, numbers: Indices) -> list[Any]:
        self.check()
        chosen = np.asarray(numbers, dtype=np.int64)
        places = self.at[chosen]
        pieces = read_pieces(self.file, places, self.sizes[chosen] + FOOTER)
        at = places.tolist()
        records = all_checked(self.path, at, pieces) if self.check_data else [piece[:-FOOTER] for piece in pieces]
        if self.examples.raw:
            return records
        out = []
        for place, data in zip(at, records, strict=True):
            try:
                out.append(self.examples(data))
            except ValueError as exc:
                raise ReadError(f"{self.path}: the record at byte {place - HEADER}: {exc}") from exc
        return out


class RecordSource(ShardSource):
    """Records of plain files, in any order."""

    verb = "from_tfrecord"

    def __init__(
        self,
        paths: Sequence[str],
        examples: Examples,
        check: bool = True,
        indices: Iterable[int] | None = None,
        where: Where = None,
        on_error: str = "raise",
        options: Options = None,
    ) -> None:
        self.examples = examples
        self.check_data = check
        self.where = where
        super().__init__(paths, indices, on_error, options)

    def _opened(self, path: str) -> _Records:
        return _Records(path, self.options, self.examples, self.check_data, self.where)

    @property
    def reading(self) -> str:
        return self.examples.told


class RecordStream(FileStream):
    """Records of compressed files, read forward."""

    verb = "from_tfrecord"

    def __init__(
        self, paths: Sequence[str], examples: Examples, check: bool, most: int, options: Options = None
    ) -> None:
        super().__init__(paths, options)
        self.examples = examples
        self.check_data = check
        self.most = most

    @property
    def reading(self) -> str:
        return self.examples.told

    def open(self, shard: str, skip: int) -> Iterator[Any]:
        with decompressed(shard, self.options, "gzip") as stream:
            for number, data in enumerate(forward(shard, stream, self.most, skip, self.check_data)):
                try:
                    sample = self.examples(data)
                except ValueError as exc:
                    raise ReadError(f"{shard}: record {skip + number}: {exc}") from exc
                yield sample
