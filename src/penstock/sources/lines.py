"""from_text and from_jsonl: lines of text files, and of files with one JSON value per line.

A plain file is indexed by where its lines begin, 8 bytes each, in one pass at the speed of the disk. Indexes of
large files are kept. A compressed file (``.gz``, ``.zst``) can only be read forward, with a shard per file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, islice, pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.errors import PlanError, ReadError
from penstock.formats.compressed import decompressed
from penstock.formats.index import Where, index_of
from penstock.formats.lines import build_index, build_index_without_blank, forward, stripped
from penstock.formats.spans import read_pieces
from penstock.formats.tree import from_json
from penstock.sources.shards import Options, Shard, ShardSource
from penstock.sources.source import Indices
from penstock.sources.streams import FileStream

#: indexing a smaller file takes less than half a second
_KEPT_BYTES = 1 << 28
#: lines of more bytes are decoded each from its place: to decode all and then take them apart would copy them twice
_SHORT = 300
_LINE_FEED, _RETURN = 10, 13


class Text:
    """Lines as strings."""

    verb = "from_text"
    kind = "lines 1"
    build = staticmethod(build_index)

    def __init__(self, encoding: str = "utf-8") -> None:
        try:
            if "a\n".encode(encoding) != b"a\n":
                raise LookupError
        except LookupError:
            raise PlanError(
                f"from_text(encoding=) takes an encoding in which a line feed is one byte, got {encoding!r}"
            ) from None
        self.encoding = encoding

    @property
    def told(self) -> str:
        return "" if self.encoding == "utf-8" else f"encoding={self.encoding}"

    def wanted(self, line: bytes) -> bool:
        return True

    def decode(self, line: bytes) -> str:
        return stripped(line).decode(self.encoding)

    def decode_all(self, lines: bytes, bounds: Sequence[int]) -> list[str]:
        """Lines that follow each other, each with its end; nothing if they are better decoded one by one."""
        if b"\r" in lines or lines[-1:] != b"\n":  # one letter is found ten times as fast as two
            return []
        if len(lines) <= _SHORT * (len(bounds) - 1):
            return str(memoryview(lines)[:-1], self.encoding).split("\n")
        view, encoding = memoryview(lines), self.encoding
        return [str(view[start : stop - 1], encoding) for start, stop in pairwise(bounds)]

    def decode_part(self, text: bytes, start: int, stop: int) -> str:
        """One line, without copying its bytes first."""
        if stop > start and text[stop - 1] == _LINE_FEED:
            stop -= 1
            if stop > start and text[stop - 1] == _RETURN:
                stop -= 1
        return str(memoryview(text)[start:stop], self.encoding)


class Json:
    """A JSON value per line; lines of nothing but white space are left out."""

    verb = "from_jsonl"
    kind = "json lines 1"
    build = staticmethod(build_index_without_blank)

    def __init__(self, tree: bool = False) -> None:
        self.tree = tree
        decoder = msgspec.json.Decoder()
        self.decode: Callable[[bytes], Any] = from_json if tree else decoder.decode
        #: several lines at once, at the speed of C
        self._decode_lines = decoder.decode_lines

    @property
    def told(self) -> str:
        return "tree" if self.tree else ""

    def wanted(self, line: bytes) -> bool:
        return bool(line.strip())

    def decode_all(self, lines: bytes, bounds: Sequence[int]) -> list[Any]:
        """Values of lines that follow each other; nothing if they have to be decoded one by one."""
        return [] if self.tree else self._decode_lines(lines)

    def decode_part(self, text: bytes, start: int, stop: int) -> Any:
        """The value of one line."""
        return self.decode(text[start:stop])

    def __reduce__(self) -> tuple[Any, ...]:
        return Json, (self.tree,)


def _bad(path: str, number: int, at: int | None, exc: Exception, line: bytes) -> ReadError:
    where = "" if at is None else f", byte {at}"
    hint = "; encoding= names another one" if isinstance(exc, UnicodeDecodeError) else ""
    if isinstance(exc, msgspec.DecodeError):
        hint = "; each line must be one whole JSON value"
        if b"NaN" in line or b"Infinity" in line:
            hint = "; JSON has neither NaN nor Infinity: write null"
    return ReadError(f"{path}: record {number + 1}{where}: {exc}{hint}")


_DAMAGE = (ValueError, msgspec.DecodeError, RecursionError)


class _Lines(Shard):
    """One plain file."""

    def __init__(self, path: str, options: Options, what: Text | Json, where: Where) -> None:
        super().__init__(path, options)
        self.what = what
        self.at: NDArray[np.int64] = index_of(self.file, what.kind, what.build, where, least=_KEPT_BYTES)["at"]

    def __len__(self) -> int:
        return len(self.at) - 1

    def name(self, number: int) -> str:
        return f"record {number + 1}"

    def read(self, numbers: Indices) -> list[Any]:
        self.check()
        if not len(numbers):
            return []
        text, bounds = self._text(numbers)
        try:
            found: list[Any] = self.what.decode_all(text, bounds)
            if len(found) == len(numbers):
                return found
        except _DAMAGE:
            pass  # one by one it shows which of them it was
        out: list[Any] = []
        decode = self.what.decode_part
        try:
            for start, stop in pairwise(bounds):
                out.append(decode(text, start, stop))
        except _DAMAGE as exc:
            number = int(numbers[len(out)])
            line = text[bounds[len(out)] : bounds[len(out) + 1]]
            raise _bad(self.path, number, int(self.at[number]), exc, line) from exc
        return out

    def _text(self, numbers: Indices) -> tuple[bytes, list[int]]:
        """The lines end to end, and where each begins; one number more, for the end of the last."""
        if isinstance(numbers, range):
            at = self.at[numbers.start : numbers.stop + 1]
            first = int(at[0])
            return self.file.read_at(first, int(at[-1]) - first), (at - first).tolist()
        at, ends = self.at[numbers], self.at[numbers + 1]
        lines = read_pieces(self.file, at, ends - at)
        lines = [line if line[-1:] == b"\n" else line + b"\n" for line in lines]
        return b"".join(lines), [0, *accumulate(map(len, lines))]


class LineSource(ShardSource):
    """Lines of plain files, in any order."""

    def __init__(
        self,
        paths: Sequence[str],
        what: Text | Json,
        indices: Iterable[int] | None = None,
        where: Where = None,
        on_error: str = "raise",
        options: Options = None,
    ) -> None:
        self.what = what
        self.where = where
        super().__init__(paths, indices, on_error, options)

    @property
    def verb(self) -> str:  # type: ignore[override]
        return self.what.verb

    def _opened(self, path: str) -> _Lines:
        return _Lines(path, self.options, self.what, self.where)

    @property
    def reading(self) -> str:
        return self.what.told


class LineStream(FileStream):
    """Lines of compressed files, read forward."""

    def __init__(self, paths: Sequence[str], what: Text | Json, most: int, options: Options = None) -> None:
        super().__init__(paths, options)
        self.what = what
        self.most = most

    @property
    def verb(self) -> str:  # type: ignore[override]
        return self.what.verb

    @property
    def reading(self) -> str:
        return self.what.told

    def open(self, shard: str, skip: int) -> Iterator[Any]:
        what = self.what
        with decompressed(shard, self.options) as stream:
            lines = enumerate(filter(what.wanted, forward(shard, stream, self.most)))
            for number, line in islice(lines, skip, None):
                try:
                    sample = what.decode(line)
                except _DAMAGE as exc:
                    raise _bad(shard, number, None, exc, line) from exc
                yield sample
