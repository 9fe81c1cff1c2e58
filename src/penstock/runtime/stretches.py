"""Stretches of what is made of one input: which of its samples are still to come. Pure.

Ops that make several samples of one make a tree of every input. A sample is named by its *way*, the
sub-indices that lead to it, so samples come in the order of their ways. A `Stretch` is a part of the
tree that ends where all that is made of one sample ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

__all__ = ["Stretch", "common", "merged"]

Way = tuple[int, ...]


class Stretch(NamedTuple):
    """All that is made of the sample at `of`; if `behind` is told, only what comes behind that one.

    >>> behind_two = Stretch((), (2,))
    >>> behind_two.holds((2, 1)), behind_two.holds((3,)), behind_two.holds((3, 0))
    (False, True, True)
    """

    of: Way = ()
    #: a sample made of that, with which all that is made of it is over
    behind: Way | None = None

    def holds(self, way: Way) -> bool:
        """Whether the sample at `way` is in it, or leads to one that may be."""
        of, behind = self.of, self.behind
        if len(way) < len(of):
            return way == of[: len(way)]
        if way[: len(of)] != of:
            return False
        if behind is None:
            return True
        return way[: len(behind)] > behind or (len(way) < len(behind) and way == behind[: len(way)])

    def plain(self) -> list[Any]:
        """As plain data: the way, and how much of it leads to `of`; all, if nothing is left out."""
        return [len(self.of), *(self.of if self.behind is None else self.behind)]

    @staticmethod
    def read(saved: Sequence[int]) -> Stretch:
        """The stretch that `plain` was made of.

        >>> Stretch.read([1, 4, 2]), Stretch.read([1, 4])
        (Stretch(of=(4,), behind=(4, 2)), Stretch(of=(4,), behind=None))
        """
        length, *rest = saved
        way = tuple(rest)
        return Stretch(way[:length], way if len(way) > length else None)


def common(one: Iterable[Stretch], other: Sequence[Stretch]) -> list[Stretch]:
    """What is in both of two parts of a tree."""
    return [found for a in one for b in other if (found := _overlap(a, b)) is not None]


def _overlap(one: Stretch, other: Stretch) -> Stretch | None:
    """What two stretches have in common, which is a stretch again."""
    outer, inner = (one, other) if len(one.of) <= len(other.of) else (other, one)
    if inner.of[: len(outer.of)] != outer.of:
        return None
    if outer.behind is None:
        return inner
    if len(outer.behind) <= len(inner.of) or outer.behind[: len(inner.of)] != inner.of:
        # All that is made of the inner one's sample is on one side of where the outer one begins.
        return inner if inner.of[: len(outer.behind)] > outer.behind else None
    if inner.behind is None:
        return Stretch(inner.of, outer.behind)
    return Stretch(inner.of, _later(outer.behind, inner.behind))


def _later(one: Way, other: Way) -> Way:
    """That of two samples behind which less is left: one of which the other is made is over later."""
    shared = min(len(one), len(other))
    if one[:shared] == other[:shared]:
        return one if len(one) <= len(other) else other
    return max(one, other)


def merged(parts: Iterable[Stretch]) -> list[Stretch]:
    """The same part of the tree in as few stretches as that takes: of those that follow each other, one.

    >>> merged([Stretch((2,), (2, 0)), Stretch((), (2,))])
    [Stretch(of=(), behind=(2, 0))]
    """
    out: list[Stretch] = []
    for one in sorted(set(parts), key=lambda one: len(one.of), reverse=True):
        for number, other in enumerate(out):
            if other.behind is not None and other.of == one.behind:
                out[number] = Stretch(one.of, other.behind)
                break
        else:
            out.append(one)
    return sorted(out, key=lambda one: (one.of, one.behind or ()))
