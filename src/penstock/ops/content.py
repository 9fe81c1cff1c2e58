"""What a reservoir holds: which sample is drawn next, and which is replaced by one that arrives. Pure.

* **Drawn** is one of those used least, at random: first those that were never served, of the oldest pass of
  the upstream. What was drawn a moment ago rests while half of the others are drawn, so that a
  batch has nothing twice.
* **Replaced** is the oldest that was served. Without one, what arrives waits.
* **Once each**: what comes again in a later pass takes the place of its older copy. Where a whole pass
  fits, it also takes over its turn, so that every sample comes once in as many draws as there are samples.

Every sample is in one of four places: it arrived and was not served (`_new`), it may be served again
(`_used`), it rests (`_resting`), or it was served as often as allowed, and only waits to be replaced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from time import monotonic
from typing import Any

#: entries out of date that are tolerated before the heap is rebuilt
_FEW = 64

#: which samples go before others: the use that is next, and the pass of those that were never served
Rank = tuple[int, int]


class Held:
    """One sample in a reservoir."""

    __slots__ = (
        "arrived",
        "at",
        "gone",
        "key",
        "level",
        "number",
        "resting",
        "sample",
        "served",
        "since",
        "since_s",
        "spot",
    )

    def __init__(self, sample: Any, key: Hashable, number: int, level: int) -> None:
        self.level = level
        self.resting = self.gone = False
        #: the list it is in, and where
        self.spot: list[Held] | None = None
        self.at = 0
        #: its place in the order of arrival
        self.arrived = 0
        self.renew(sample, key, number)

    def renew(self, sample: Any, key: Hashable, number: int) -> None:
        """Another copy arrives in its place."""
        self.sample = sample
        #: what the sample is, whatever the pass; None if that is not known
        self.key = key
        #: the pass that it came in
        self.number = number
        self.served = 0
        #: how many had been drawn when it arrived, and when that was
        self.since = 0
        self.since_s = 0.0


class Content:
    """Up to `size` samples, each drawn at most `max_reuse` times.

    >>> content = Content(3, max_reuse=2, key=0)
    >>> [content.offer(letter, letter, 0) for letter in "abcd"]
    [True, True, True, False]
    >>> first = {content.draw(reuse=False).sample for _ in range(3)}
    >>> sorted(first), content.draw(reuse=False)
    (['a', 'b', 'c'], None)
    >>> content.offer("d", "d", 0), content.draw(reuse=False).sample, content.draw(reuse=True).served
    (True, 'd', 2)
    """

    def __init__(self, size: int, max_reuse: int | None, key: int, clock: Callable[[], float] = monotonic) -> None:
        self.size = size
        self.max_reuse = max_reuse
        from random import Random

        self._random = Random(key).random
        self._clock = clock
        #: how many samples a pass of the upstream has, if that is known
        self.per_pass: float | None = None
        self.arrivals = self.draws = self.first_draws = self.reuse_max = 0
        #: of all that was drawn, how many draws and seconds ago it had arrived
        self.age_draws, self.age_s = 0, 0.0
        #: samples that were never served
        self.unserved = 0
        self._all: set[Held] = set()
        self._new: dict[Rank, list[Held]] = {}
        self._used: dict[int, list[Held]] = {}
        self._resting: deque[Held] = deque()
        self._by_key: dict[Hashable, Held] = {}
        #: those that were served, the oldest first; some are out of date
        self._replaceable: list[tuple[int, int, Held]] = []

    def __len__(self) -> int:
        return len(self._all)

    @property
    def fits(self) -> bool:
        """A whole pass of the upstream fits."""
        return self.per_pass is not None and self.per_pass <= self.size

    def has_one(self, reuse: bool, rested: bool = False) -> bool:
        """Whether `draw` would give one."""
        if not self._new and not self._used:
            return not rested and bool(self._resting) and (reuse or any(not one.served for one in self._resting))
        if reuse or not self._used:
            return True
        return bool(self._new) and min(self._new)[0] <= min(self._used)

    def go_on_from(self, other: Content) -> None:
        """Count on what another one has counted."""
        self.draws, self.first_draws, self.reuse_max = other.draws, other.first_draws, other.reuse_max
        self.age_draws, self.age_s = other.age_draws, other.age_s

    def stats(self) -> dict[str, float]:
        """What has been counted, under the names that ``loader.stats()`` gives it."""
        draws = self.draws or 1
        return {
            "fill": len(self),
            "draws": self.draws,
            "fresh_share": self.first_draws / draws,
            "reuse_mean": self.draws / (self.first_draws or 1),
            "reuse_max": self.reuse_max,
            "age_draws": self.age_draws / draws,
            "age_s": self.age_s / draws,
        }

    # ------------------------------------------------------------------ arriving

    def offer(self, sample: Any, key: Hashable, number: int) -> bool:
        """Take in a sample of pass `number`; False as long as there is no place for it."""
        old = self._by_key.get(key) if key is not None else None
        if old is not None and old.number < number:
            if not old.served:
                return False
            if self.fits:
                self._renew(old, sample, key, number)
                return True
            self._remove(old)
        elif len(self) >= (self.per_pass if self.fits and key is None else self.size):  # type: ignore[operator]
            oldest = self._oldest_served()
            if oldest is None:
                return False
            self._remove(oldest)
        one = Held(sample, key, number, self._lowest() if self.fits else 0)
        self._all.add(one)
        self._arrived(one)
        self._put(one)
        return True

    def _renew(self, one: Held, sample: Any, key: Hashable, number: int) -> None:
        self._take_out(one)
        one.renew(sample, key, number)
        self._arrived(one)
        if not one.resting:
            self._put(one)

    def _arrived(self, one: Held) -> None:
        self.arrivals += 1
        self.unserved += 1
        one.arrived = self.arrivals
        one.since, one.since_s = self.draws, self._clock()
        if one.key is not None:
            self._by_key[one.key] = one

    def passed(self, number: int) -> None:
        """Pass `number` of the upstream is over: what was not in it, and has been served, comes no more."""
        if self.fits:
            for one in [one for one in self._all if one.number < number and one.served]:
                self._remove(one)

    def _oldest_served(self) -> Held | None:
        while self._replaceable:
            arrived, _, one = self._replaceable[0]
            if not one.gone and one.arrived == arrived:
                return one
            heappop(self._replaceable)
        return None

    def _remove(self, one: Held) -> None:
        one.gone = True
        one.sample = None
        self._take_out(one)
        self._all.discard(one)
        if self._by_key.get(one.key) is one:
            del self._by_key[one.key]

    # ------------------------------------------------------------------ drawing

    def draw(self, reuse: bool, rested: bool = False) -> Held | None:
        """One of those used least; without `reuse` only one that was never served. None if there is none.

        Where no other may be served, one that rests is; not if it must be `rested`.
        """
        new, used = self._new, self._used
        while not new and not used:
            if rested or not self._resting:
                return None
            self._wake()
        first = min(new) if new else None
        level = min(used) if used else None
        if first is not None and (level is None or first[0] <= level):
            spot = new[first]
        elif reuse and level is not None:
            spot = used[level]
        else:
            return None
        one = spot[int(self._random() * len(spot))]
        self._take_out(one)
        self._served(one)
        return one

    def _served(self, one: Held) -> None:
        self.age_draws += self.draws - one.since
        self.age_s += self._clock() - one.since_s
        self.draws += 1
        if not one.served:
            self.first_draws += 1
            self.unserved -= 1
            heappush(self._replaceable, (one.arrived, self.draws, one))
            if len(self._replaceable) > 2 * len(self._all) + _FEW:
                self._replaceable = [(held.arrived, 0, held) for held in self._all if held.served or held is one]
                heapify(self._replaceable)
        one.served += 1
        one.level += 1
        if one.served > self.reuse_max:
            self.reuse_max = one.served
        if self.max_reuse is None or one.served < self.max_reuse:
            one.resting = True
            self._resting.append(one)
        if len(self._resting) > len(self._all) // 2:
            self._wake()

    def _wake(self) -> None:
        """The sample that has rested longest may be drawn again."""
        one = self._resting.popleft()
        one.resting = False
        if not one.gone:
            self._put(one)

    def _lowest(self) -> int:
        """How often the least used ones have had their turn."""
        levels = [*(level for level, _ in self._new), *self._used]
        return min(levels, default=min((one.level for one in self._resting), default=0))

    # ------------------------------------------------------------------ lists

    def _put(self, one: Held) -> None:
        if one.served:
            spot = self._used.setdefault(one.level, [])
        else:
            spot = self._new.setdefault((one.level, one.number), [])
        one.spot, one.at = spot, len(spot)
        spot.append(one)

    def _take_out(self, one: Held) -> None:
        """Take it out of its list; what is last there takes its place."""
        spot, one.spot = one.spot, None
        if spot is None:
            return
        last = spot.pop()
        if last is not one:
            spot[one.at] = last
            last.at = one.at
        if not spot:
            if one.served:
                del self._used[one.level]
            else:
                del self._new[one.level, one.number]
