"""How many samples go into one ticket. Pure.

About a millisecond of work, and five of them for another process: long enough to drown the cost of a hand-over,
short enough not to be noticed. Waking a thread on another core may take a fifth of a millisecond, so a ticket takes
up to four milliseconds once its stage has made many samples, if its samples fit into the processor's cache.
Many workers that wait at the same time hand in one after the other, under one lock, and that cost adds up. So their
tickets may be longer still, if the samples are small.
"""

from __future__ import annotations

from collections import deque
from math import inf

#: what the work of a ticket should take
TARGET_S = 0.001
#: the same where it is handed over to another process
TARGET_REMOTE_S = 0.005
#: a ticket that has run so long hands in what it has, and goes on later
PAUSE_S = 4 * TARGET_S
PAUSE_REMOTE_S = 4 * TARGET_REMOTE_S

#: what a ticket may take if its samples have no more bytes than this
_LONG_S, _LONG_BYTES = 0.004, 1024 * 1024
#: what it may take more for each worker beside it, and at the most, if its samples have no more bytes than this
_PER_WORKER_S, _LONGEST_S, _SMALL_BYTES = 0.0005, 0.032, 64 * 1024
#: such tickets have at most this part of the samples that each worker has made
_EARLY = 4

#: batches that are one read each go together up to so many, or as many as have so few bytes: their memory should
#: still be in the cache when it is used again
BLOCKS, BLOCKS_BYTES = 8, 256 * 1024
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

    After a while a ticket takes four milliseconds, if its samples are known to fit into the processor's cache:

    >>> cheap = Sizer()
    >>> for _ in range(40):
    ...     cheap.record(cheap.size, seconds=cheap.size * 1e-5)
    >>> cheap.size
    100
    >>> cheap.unit_bytes = 1000
    >>> for _ in range(40):
    ...     cheap.record(cheap.size, seconds=cheap.size * 1e-5)
    >>> cheap.size
    400

    With many workers, small samples that each take longer than a ticket should go together after a while:

    >>> waits = Sizer(workers=64)
    >>> waits.unit_bytes = 100
    >>> for _ in range(64 * 100):
    ...     waits.record(waits.size, seconds=waits.size * 0.005)
    >>> waits.size
    6
    """

    __slots__ = ("_long_s", "_made", "_recent", "_target_s", "_workers", "size", "stretch", "unit_bytes")

    def __init__(self, target_s: float = TARGET_S, workers: int = 1) -> None:
        self.size = 1
        #: what one unit weighs, as far as that is known
        self.unit_bytes = inf
        self._target_s = target_s
        self._recent: deque[float] = deque(maxlen=5)
        self._made = 0
        self.share_among(workers)

    def share_among(self, workers: int) -> None:
        """So many workers take tickets from now on."""
        self._workers = workers
        self._long_s = max(self._target_s, min(workers * _PER_WORKER_S, _LONGEST_S))
        #: how many times its usual time a ticket may take
        self.stretch = self._long_s / self._target_s

    def record(self, units: int, seconds: float) -> None:
        """`units` took `seconds`."""
        if units < 1:
            return
        self._recent.append(seconds / units)
        self._made += units
        if self.size == 1 and seconds >= self._long_s:
            return
        per_unit_s = sorted(self._recent)[len(self._recent) // 2]
        fitting = _LARGEST if per_unit_s <= 0 else self._fitting(per_unit_s)
        self.size = max(1, min(fitting, 2 * self.size, _LARGEST))

    def _fitting(self, per_unit_s: float) -> int:
        """How many units a ticket should have that take so long each."""
        early, unit_bytes = self._made // (_EARLY * self._workers), max(self.unit_bytes, 1)
        longer = min(max(_LONG_S, self._target_s) / per_unit_s, _LONG_BYTES / unit_bytes)
        longest = min(self._long_s / per_unit_s, _SMALL_BYTES / unit_bytes)
        return int(max(self._target_s / per_unit_s, min(early, max(longer, longest))))


def shared(left: int, workers: int, usual: int) -> int:
    """Half of an equal part, so that whoever is done early finds more; an equal part where that is little.

    A ticket of less than a quarter of the usual time is hardly worth another worker's waking up.
    """
    half = -(-left // (2 * workers))
    return half if 4 * half >= usual else max(min(usual // 4, -(-left // workers)), 1)
