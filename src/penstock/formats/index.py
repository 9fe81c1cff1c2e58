"""Index files: what one pass over a data file has found, as arrays that the next run maps into memory at once.

An index names the file's content (size and time, or the store's tag), so an index of a file that has changed since
is never used: it is made anew. It is kept beside the file under a hidden name, or in the cache directory where that
folder cannot be written to or is remote. Where neither can be written it stays in memory. Writing is atomic, so
several processes may make the same index at once. An index file holds numbers and bytes and is never unpickled.
"""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import storage

Arrays = dict[str, NDArray[Any]]
#: a folder for indexes; None for the usual place; False for memory alone
Where = str | os.PathLike[str] | bool | None

_MAGIC = b"penstock index 1\n"
#: arrays begin at multiples of this
_ALIGN = 64


def cache_folder() -> str:
    """Where penstock keeps what it can make again: ``$PENSTOCK_CACHE``, or ``~/.cache/penstock``."""
    if own := os.environ.get("PENSTOCK_CACHE"):
        return own
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "penstock")


def index_of(
    file: storage.File, kind: str, build: Callable[[storage.File], Arrays], where: Where = None, least: int = 0
) -> Arrays:
    """The index of `file`: the kept one if it fits, or a new one by `build`.

    `kind` names the format of the arrays. Indexes of files below `least` bytes are not kept.
    """
    content = file.content
    if where is False or (where is None and file.size < least):
        return build(file)
    places = _places(file.path, kind, where)
    for place in places:
        found = _load(place, kind, content)
        if found is not None:
            return found
    arrays = build(file)
    for place in places:
        if _store(place, kind, content, arrays):
            found = _load(place, kind, content)
            if found is not None:
                return found
    return arrays


def _places(path: str, kind: str, where: Where) -> list[str]:
    """Where an index of `path` may be, the best first."""
    from hashlib import blake2b

    local = storage.local(path)
    full = os.path.abspath(local) if local is not None else path
    told = f"{kind} {full}".encode("utf-8", "surrogateescape")  # a name may be in no encoding
    elsewhere = f"{os.path.basename(full)}-{blake2b(told, digest_size=8).hexdigest()}.index"
    if isinstance(where, (str, os.PathLike)):
        return [os.path.join(os.fspath(where), elsewhere)]
    cached = os.path.join(cache_folder(), "index", elsewhere)
    if local is None:
        return [cached]
    folder, name = os.path.split(full)
    return [os.path.join(folder, f".{name}.index"), cached]


def _store(place: str, kind: str, content: str, arrays: Arrays) -> bool:
    """Write the index under a temporary name and rename it; False where that is not possible."""
    temporary = f"{place}.{os.getpid()}-{os.urandom(4).hex()}.tmp"
    try:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(temporary, "xb") as file:
            for part in _written(kind, content, arrays):
                file.write(part)
        os.replace(temporary, place)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        return False
    return True


def _written(kind: str, content: str, arrays: Mapping[str, NDArray[Any]]) -> list[Any]:
    import json

    parts: list[bytes] = []
    table, at, check = [], 0, 0
    for name, array in arrays.items():
        data = np.ascontiguousarray(array).tobytes()
        table.append([name, array.dtype.str, list(array.shape), at])
        padded = data + bytes(-len(data) % _ALIGN)
        check = zlib.crc32(padded, check)
        parts.append(padded)
        at += len(padded)
    header = json.dumps({"kind": kind, "content": content, "bytes": at, "check": check, "arrays": table}).encode()
    head = _MAGIC + len(header).to_bytes(8, "little") + header
    return [head + bytes(-len(head) % _ALIGN), *parts]


def _load(place: str, kind: str, content: str) -> Arrays | None:
    """The arrays of an index file; None if there is none that is whole and of this content."""
    import json

    try:
        memory = np.asarray(np.memmap(place, np.uint8, mode="r"))
        start = len(_MAGIC) + 8
        if bytes(memory[: len(_MAGIC)]) != _MAGIC:
            return None
        stop = start + int.from_bytes(bytes(memory[len(_MAGIC) : start]), "little")
        header = json.loads(bytes(memory[start:stop]))
        if header["kind"] != kind or header["content"] != content:
            return None
        body = memory[stop + -stop % _ALIGN :]
        if len(body) != header["bytes"] or zlib.crc32(body.data) != header["check"]:
            return None
        return {name: _array(body, dtype, shape, at) for name, dtype, shape, at in header["arrays"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None  # not there, empty, cut short, or of something else: it is made anew


def _array(body: NDArray[np.uint8], dtype: str, shape: list[int], at: int) -> NDArray[Any]:
    kind = np.dtype(dtype)
    if kind.hasobject:
        raise ValueError("an index holds numbers")
    size = kind.itemsize * int(np.prod(shape, dtype=np.int64))
    return body[at : at + size].view(kind).reshape(shape)


# ---------------------------------------------------------------------- many short strings as two arrays


def packed(strings: list[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The strings end to end, and where each begins; one number more, for the end of the last.

    >>> text, at = packed([b"ab", b"", b"c"])
    >>> bytes(text), at.tolist(), unpacked(text, at)
    (b'abc', [0, 2, 2, 3], [b'ab', b'', b'c'])
    """
    at = np.zeros(len(strings) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, strings), dtype=np.int64, count=len(strings)), out=at[1:])
    return np.frombuffer(b"".join(strings), dtype=np.uint8), at


def unpacked(text: NDArray[np.uint8], at: NDArray[np.int64]) -> list[bytes]:
    """The inverse of `packed`."""
    whole, bounds = text.tobytes(), at.tolist()
    return [whole[start:stop] for start, stop in itertools.pairwise(bounds)]
