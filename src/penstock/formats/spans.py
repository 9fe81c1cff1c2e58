"""Several pieces of a file in few reads: pieces that are near each other come in one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from penstock import storage

__all__ = ["read_pieces"]

#: Pieces are read together if what lies between them is no longer than this: a read costs as much as copying this.
_LOCAL_GAP = 1 << 12
_REMOTE_GAP = 1 << 18
#: a local piece of this size is worth a read of its own: taking it out of a larger one would copy it twice
_LOCAL_LARGE = 1 << 12
#: the most that is read at once
_LONGEST = 1 << 23

Int64s = NDArray[np.int64]


def read_pieces(file: storage.File, at: Int64s, sizes: Int64s) -> list[bytes]:
    """The bytes ``file[at[i] : at[i] + sizes[i]]`` for every i."""
    if len(at) < 2:
        return [_piece(file, start, size) for start, size in zip(at.tolist(), sizes.tolist(), strict=True)]
    gap, large = (_LOCAL_GAP, _LOCAL_LARGE) if storage.local(file.path) is not None else (_REMOTE_GAP, _LONGEST)
    ends = at + sizes
    between = at[1:] - ends[:-1]
    small = sizes < large
    apart = (between < 0) | (between > gap) | ~small[1:] | ~small[:-1]
    if apart.all():
        return file.read_many(at.tolist(), sizes.tolist())
    return _joined(file, at.tolist(), ends.tolist(), apart.tolist())


def _joined(file: storage.File, at: list[int], ends: list[int], apart: list[bool]) -> list[bytes]:
    """Each run of pieces that are not apart, in one read, or in several where it is long."""
    out: list[bytes] = []
    first, count = 0, len(at)
    while first < count:
        last = first
        while last < count - 1 and not apart[last] and ends[last + 1] - at[first] <= _LONGEST:
            last += 1
        start = at[first]
        data = _piece(file, start, ends[last] - start)
        if first == last:
            out.append(data)
        else:
            out += [data[at[number] - start : ends[number] - start] for number in range(first, last + 1)]
        first = last + 1
    return out


def _piece(file: storage.File, start: int, size: int) -> bytes:
    return file.read_at(start, size) if size else b""
