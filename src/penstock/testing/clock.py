"""A clock that a seed decides, in place of the one that penstock's modules read."""

from __future__ import annotations

import random
import sys
import time

#: what one look at the clock may cost: mostly little, now and then more than a ticket should take
_STEPS_S = (*(1e-6,) * 16, *(5e-5,) * 8, *(5e-4,) * 4, 3e-3)


class SeededClock:
    """Every look at it takes a while that the seed decides; nothing else does.

    >>> one, other = SeededClock(seed=3), SeededClock(seed=3)
    >>> [one() for _ in range(5)] == [other() for _ in range(5)]
    True
    """

    def __init__(self, seed: int) -> None:
        #: not the true time: sums of floats must come out the same in every run
        self.now_s = 0.0
        self._random = random.Random(f"clock {seed}")

    def __call__(self) -> float:
        self.now_s += self._random.choice(_STEPS_S)
        return self.now_s


def clocks() -> list[tuple[object, str]]:
    """Where penstock's modules have the clock: (module, name)."""
    return [
        (module, name)
        for path, module in list(sys.modules.items())
        if path.startswith("penstock.") and not path.startswith("penstock.testing")
        for name, value in list(vars(module).items())
        if value is time.perf_counter or value is time.monotonic
    ]
