"""How many samples go into one ticket: about a millisecond of work, five for another process. Pure."""

from __future__ import annotations

from collections import deque

__all__ = ["BLOCKS", "CACHED_BYTES", "PAUSE_REMOTE_S", "PAUSE_S", "TARGET_REMOTE_S", "TARGET_S", "Sizer", "shared"]

#: long enough to drown the cost of a hand-over, short enough not to be noticed
TARGET_S = 0.001
#: the same where it is handed over to another process
TARGET_REMOTE_S = 0.005
#: a ticket that has run so long hands in what it has, and goes on later
PAUSE_S = 4 * TARGET_S
PAUSE_REMOTE_S = 4 * TARGET_REMOTE_S

#: blocks read in one ticket at the most, so that their memory is still in the cache when it is used again
BLOCKS = 8
#: bytes that a worker process should make in one ticket at the most, for the same reason
CACHED_BYTES = 4 * 1024 * 1024

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

    __slots__ = ("_recent", "_target_s", "size")

    def __init__(self, target_s: float = TARGET_S) -> None:
        self.size = 1
        self._target_s = target_s
        self._recent: deque[float] = deque(maxlen=5)

    def record(self, units: int, seconds: float) -> None:
        """`units` took `seconds`."""
        if units < 1:
            return
        self._recent.append(seconds / units)
        if self.size == 1 and seconds >= self._target_s:
            return
        per_unit_s = sorted(self._recent)[len(self._recent) // 2]
        fitting = self._target_s / per_unit_s if per_unit_s > 0 else _LARGEST
        self.size = max(1, min(int(fitting), 2 * self.size, _LARGEST))


def shared(left: int, workers: int, usual: int) -> int:
    """Half of an equal part, so that whoever is done early finds more; an equal part where that is little.

    A ticket of less than a quarter of the usual time is hardly worth another worker's waking up.
    """
    half = -(-left // (2 * workers))
    return half if 4 * half >= usual else max(min(usual // 4, -(-left // workers)), 1)
