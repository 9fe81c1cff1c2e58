"""Several pieces of a file in few reads: pieces that are near each other come in one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import storage

#: Pieces are read together if what lies between them is no longer than this: a read costs as much as copying this.
_LOCAL_GAP = 1 << 12
_REMOTE_GAP = 1 << 18
#: A local read costs as much as copying this many bytes, and pieces that are read together are copied once more.
_LOCAL_WORTH = 1 << 12
#: The most that is read at once. Local bytes should still be in the processor's cache when they are taken apart.
_LOCAL_LONGEST = 1 << 19
_REMOTE_LONGEST = 1 << 23

Int64s = NDArray[np.int64]


def read_pieces(file: storage.File, at: Int64s, sizes: Int64s) -> list[bytes]:
    """The bytes ``file[at[i] : at[i] + sizes[i]]`` for every i."""
    gap, worth, longest = _LOCAL_GAP, _LOCAL_WORTH, _LOCAL_LONGEST
    if storage.local(file.path) is None:
        gap, worth, longest = _REMOTE_GAP, _REMOTE_LONGEST, _REMOTE_LONGEST
    ends = at + sizes
    starts, stops, lengths = at.tolist(), ends.tolist(), sizes.tolist()
    out: list[bytes] = []
    for first, last in _neighbours(at, ends, gap, worth, longest):
        start, end = starts[first], stops[last - 1]
        if _is_worth(end - start, last - first, worth):
            if len(out) < first:
                out += file.read_many(starts[len(out) : first], lengths[len(out) : first])
            data = file.read_at(start, end - start)
            pieces = zip(starts[first:last], stops[first:last], strict=True)
            out += [data[begin - start : stop - start] for begin, stop in pieces]
    return out + file.read_many(starts[len(out) :], lengths[len(out) :]) if len(out) < len(starts) else out


def _is_worth(span: Any, count: Any, worth: int) -> Any:
    """Whether so many pieces that span so many bytes should be read together; also of arrays of them."""
    return span <= worth * (count - 1)


def _neighbours(at: Int64s, ends: Int64s, gap: int, worth: int, longest: int) -> Iterator[tuple[int, int]]:
    """Runs of pieces that follow each other in the file, as (first, last + 1), each of at most `longest`.

    Runs that are not worth reading together are mostly left out.
    """
    between = at[1:] - ends[:-1]
    cuts = np.flatnonzero((between < 0) | (between > gap)) + 1
    firsts, lasts = np.concatenate(([0], cuts)), np.concatenate((cuts, [len(at)]))
    if len(cuts):  # samples read at random are hundreds of runs, and a look at each would take longer than a read
        spans = ends[lasts - 1] - at[firsts]
        chosen = _is_worth(spans, lasts - firsts, worth) | (spans > longest)
        firsts, lasts = firsts[chosen], lasts[chosen]
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        # Within such a run the ends never fall, so where to cut it is a search.
        while last - first > 1 and ends[last - 1] - at[first] > longest:
            fitting = int(ends[first:last].searchsorted(at[first] + longest, side="right"))
            yield first, first + max(1, fitting)
            first += max(1, fitting)
        if first < last:
            yield first, last
