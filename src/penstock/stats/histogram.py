"""How often something took how long, in steps of two. Pure."""

from __future__ import annotations

from collections.abc import Iterator

#: the first step is 32 µs, the last one 33.6 s; what takes longer is in none but the total
_FIRST, _LAST = 5, 25


class Histogram:
    """Counts of durations.

    >>> histogram = Histogram()
    >>> for seconds in (0.00001, 0.0001, 0.0001, 100):
    ...     histogram.add(seconds)
    >>> [(bound, count) for bound, count in histogram.cumulative() if count][:3]
    [(3.2e-05, 1), (6.4e-05, 1), (0.000128, 3)]
    >>> histogram.count, round(histogram.total_s, 5)
    (4, 100.00021)
    """

    __slots__ = ("_steps", "count", "total_s")

    def __init__(self) -> None:
        self.count = 0
        self.total_s = 0.0
        self._steps = [0] * (_LAST + 1)

    def add(self, seconds: float) -> None:
        """One more took so long."""
        self.count += 1
        self.total_s += seconds
        step = int(seconds * 1e6).bit_length()
        if step <= _LAST:
            self._steps[max(step, _FIRST)] += 1

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """For each bound in seconds, how many took less."""
        total = 0
        for step in range(_FIRST, _LAST + 1):
            total += self._steps[step]
            yield 2**step / 1e6, total
