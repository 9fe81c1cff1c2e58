"""How many samples go into one ticket: about a millisecond of work. Pure."""

from __future__ import annotations

from collections import deque

__all__ = ["TARGET_S", "Sizer"]

#: long enough to drown the cost of a hand-over, short enough not to be noticed
TARGET_S = 0.001

_LARGEST = 8192


class Sizer:
    """Starts with one sample, so that the first batch comes at once, and at most doubles.

    What counts is the median of the last five tickets: a thread that had to wait for the
    interpreter lock looks slow once, a function that has become slow looks so again and again.

    >>> sizer = Sizer()
    >>> for _ in range(4):
    ...     sizer.record(sizer.size, seconds=sizer.size * 1e-5)
    >>> sizer.size
    16
    >>> sizer.record(16, seconds=1.0)       # one slow ticket changes nothing
    >>> sizer.size
    32
    >>> for _ in range(2):
    ...     sizer.record(16, seconds=1.0)   # three do
    >>> sizer.size
    1
    """

    __slots__ = ("_recent", "size")

    def __init__(self) -> None:
        self.size = 1
        self._recent: deque[float] = deque(maxlen=5)

    def record(self, units: int, seconds: float) -> None:
        """`units` took `seconds`."""
        if units < 1:
            return
        self._recent.append(seconds / units)
        if self.size == 1 and seconds >= TARGET_S:
            return
        per_unit_s = sorted(self._recent)[len(self._recent) // 2]
        fitting = TARGET_S / per_unit_s if per_unit_s > 0 else _LARGEST
        self.size = max(1, min(int(fitting), 2 * self.size, _LARGEST))
