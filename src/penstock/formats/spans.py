"""Several pieces of a file in few reads: pieces that are near each other come in one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from penstock import storage

__all__ = ["read_pieces"]

#: Pieces are read together if what lies between them is no longer than this: a read costs as much as copying this.
_LOCAL_GAP = 1 << 12
_REMOTE_GAP = 1 << 18
#: A local read costs as much as copying this many bytes, and pieces that are read together are copied once more.
_LOCAL_WORTH = 1 << 13
#: The most that is read at once. Local bytes should still be in the processor's cache when they are taken apart.
_LOCAL_LONGEST = 1 << 19
_REMOTE_LONGEST = 1 << 23

Int64s = NDArray[np.int64]


def read_pieces(file: storage.File, at: Int64s, sizes: Int64s) -> list[bytes]:
    """The bytes ``file[at[i] : at[i] + sizes[i]]`` for every i."""
    # Most calls are for some dozens of pieces: over lists a plain loop is faster than calls of numpy.
    starts, ends, lengths = at.tolist(), (at + sizes).tolist(), sizes.tolist()
    gap, worth, longest = _LOCAL_GAP, _LOCAL_WORTH, _LOCAL_LONGEST
    if storage.local(file.path) is None:
        gap, worth, longest = _REMOTE_GAP, _REMOTE_LONGEST, _REMOTE_LONGEST
    out: list[bytes] = []
    first, count = 0, len(starts)
    while first < count:
        start, end = starts[first], ends[first]
        last = first + 1
        while last < count and 0 <= starts[last] - end <= gap and ends[last] - start <= longest:
            end = ends[last]
            last += 1
        if end - start <= worth * (last - first - 1):
            data = file.read_at(start, end - start)
            if len(out) < first:
                out += file.read_many(starts[len(out) : first], lengths[len(out) : first])
            out += [data[starts[number] - start : ends[number] - start] for number in range(first, last)]
        first = last
    return out + file.read_many(starts[len(out) :], lengths[len(out) :]) if len(out) < count else out
