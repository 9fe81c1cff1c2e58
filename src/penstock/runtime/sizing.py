"""How many samples go into one ticket: about a millisecond of work. Pure."""

from __future__ import annotations

__all__ = ["TARGET_S", "Sizer"]

#: long enough to drown the cost of a hand-over, short enough not to be noticed
TARGET_S = 0.001

_LARGEST = 8192


class Sizer:
    """Starts with one sample, so that the first batch comes at once, and at most doubles.

    >>> sizer = Sizer()
    >>> for _ in range(4):
    ...     sizer.record(sizer.size, seconds=sizer.size * 1e-5)
    >>> sizer.size
    16
    >>> sizer.record(16, seconds=1.0)       # suddenly slow: back to one at once
    >>> sizer.size
    1
    """

    __slots__ = ("_per_unit_s", "size")

    def __init__(self) -> None:
        self.size = 1
        self._per_unit_s = 0.0

    def record(self, units: int, seconds: float) -> None:
        """`units` took `seconds`."""
        if units < 1:
            return
        per_unit_s = seconds / units
        if per_unit_s > self._per_unit_s:
            self._per_unit_s = per_unit_s if per_unit_s * self.size > 8 * TARGET_S else self._mean(per_unit_s)
        else:
            self._per_unit_s = self._mean(per_unit_s)
        fitting = TARGET_S / self._per_unit_s if self._per_unit_s > 0 else _LARGEST
        self.size = max(1, min(int(fitting), 2 * self.size, _LARGEST))

    def _mean(self, per_unit_s: float) -> float:
        return per_unit_s if not self._per_unit_s else 0.7 * self._per_unit_s + 0.3 * per_unit_s
