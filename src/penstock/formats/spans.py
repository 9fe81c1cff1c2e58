"""Several pieces of a file in few reads: pieces that are near each other come in one."""

from __future__ import annotations

from collections.abc import Sequence

from penstock import storage

__all__ = ["read_pieces"]

#: Pieces are read together if what lies between them is no longer than this: a read costs as much as copying this.
_LOCAL_GAP = 1 << 12
_REMOTE_GAP = 1 << 18
#: a local piece of this size is worth a read of its own: taking it out of a larger one would copy it twice
_LOCAL_LARGE = 1 << 15
#: the most that is read at once
_LONGEST = 1 << 23


def read_pieces(file: storage.File, at: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
    """The bytes ``file[at[i] : at[i] + sizes[i]]`` for every i."""
    gap, large = (_LOCAL_GAP, _LOCAL_LARGE) if storage.local(file.path) is not None else (_REMOTE_GAP, _LONGEST)
    out: list[bytes] = []
    read_at = file.read_at
    count, number = len(at), 0
    while number < count:
        start = at[number]
        end = start + sizes[number]
        last = number + 1
        if sizes[number] < large:
            while (
                last < count
                and end <= at[last] <= end + gap
                and sizes[last] < large
                and at[last] + sizes[last] - start <= _LONGEST
            ):
                end = at[last] + sizes[last]
                last += 1
        data = read_at(start, end - start) if end > start else b""
        if last == number + 1:
            out.append(data)
        else:
            out += [
                data[a - start : a - start + size]
                for a, size in zip(at[number:last], sizes[number:last], strict=True)
            ]
        number = last
    return out
