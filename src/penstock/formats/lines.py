"""Lines of text files: where each begins, in one pass, and line by line where a file can only be read forward.

A line ends with a line feed; a carriage return before it is not part of the line. The last line needs no end. A
byte order mark at the beginning of the file is not part of the first line. Nothing here decodes text.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from penstock import storage
from penstock.errors import ReadError

BOM = b"\xef\xbb\xbf"
#: read at once while looking for ends of lines
_CHUNK = 1 << 22
_LINE_FEED = 10
_SPACES = np.frombuffer(b" \t\r\n", dtype=np.uint8)

Int64s = NDArray[np.int64]


def build_index(file: storage.File) -> dict[str, NDArray[Any]]:
    """``at``: where each line begins, and the end of the last."""
    at, _ = _starts(file)
    return {"at": at}


def build_index_without_blank(file: storage.File) -> dict[str, NDArray[Any]]:
    """The same, without lines of nothing but white space: they belong to the line before them."""
    at, doubtful = _starts(file)
    if len(doubtful):
        blank = [
            number
            for number in doubtful.tolist()
            if not file.read_at(int(at[number]), int(at[number + 1] - at[number])).strip()
        ]
        at = np.delete(at, blank)
    return {"at": at}


def _starts(file: storage.File) -> tuple[Int64s, Int64s]:
    """Where lines begin, with the end of the last; and the numbers of those that begin with white space."""
    size = file.size
    first = len(BOM) if size >= len(BOM) and file.read_at(0, len(BOM)) == BOM else 0
    parts: list[Int64s] = []
    doubtful: list[Int64s] = []
    count = 0
    begins = True  # a line begins with the next byte
    for base in range(first, size, _CHUNK):
        chunk = np.frombuffer(file.read_at(base, min(_CHUNK, size - base)), dtype=np.uint8)
        starts = np.flatnonzero(chunk == _LINE_FEED) + 1
        if begins:
            starts = np.concatenate([[0], starts])
        begins = bool(len(starts)) and starts[-1] == len(chunk)
        starts = starts[: len(starts) - begins]
        doubtful.append(np.flatnonzero(np.isin(chunk[starts], _SPACES)) + count)
        count += len(starts)
        parts.append(starts + base)
    at = np.concatenate([*parts, [size]]).astype(np.int64)
    return at, np.concatenate(doubtful) if doubtful else np.empty(0, dtype=np.int64)


def stripped(line: bytes) -> bytes:
    """A line without its end.

    >>> stripped(b"a\\r\\n"), stripped(b"a "), stripped(b"\\n")
    (b'a', b'a ', b'')
    """
    if line[-1:] == b"\n":
        return line[:-2] if line[-2:-1] == b"\r" else line[:-1]
    return line


def forward(path: str, stream: BinaryIO, most: int) -> Iterator[bytes]:
    """The lines of a stream, with their ends. A line of more than `most` bytes is refused before it is all read."""
    reader = io.BufferedReader(cast(io.RawIOBase, stream), 1 << 17)
    number = 0
    while line := reader.readline(most + 1):
        if len(line) > most:
            raise ReadError(f"{path}: line {number + 1} has more than max_bytes={most} bytes")
        yield line.removeprefix(BOM) if number == 0 else line
        number += 1
