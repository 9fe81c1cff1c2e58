"""Turns: whose turn it is when several take part with given shares. Pure, exact, and never far off.

* **Exact**: shares are ratios of whole numbers. After any number of turns, each participant has had its
  share of them, rounded down or rounded up, and nothing else.
* **Without a pattern**: within that bound the order is drawn at random from a key. A fixed order would have
  a period, and what is taken from it at regular steps (every second sample for one of two ranks, the first
  of each batch) could be one participant's alone.

How: the turns of a participant are jobs, each with a first and a last moment at which it keeps the bound.
Taking the most urgent job first always meets them. So a few turns are planned that way, and one of these
is taken at random, as long as those it overtakes can wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from heapq import heapify, heappop, heappush
from math import gcd, lcm
from typing import Any

from penstock.checks import saved_number
from penstock.errors import StateMismatch
from penstock.randomness import derive

#: turns that are planned, and among which one is chosen
_PLANNED = 8
_WORD = 2**64 - 1


def whole_weights(weights: Sequence[Fraction]) -> list[int]:
    """The smallest whole numbers in the same proportions.

    >>> whole_weights([Fraction("0.7"), Fraction("0.3")])
    [7, 3]
    """
    scale = lcm(*(weight.denominator for weight in weights))
    whole = [weight.numerator * (scale // weight.denominator) for weight in weights]
    common = gcd(*whole)
    return [weight // common for weight in whole]


class Turns:
    """An endless sequence of participants, by number. `peek` and `advance` walk along it.

    Each has a weight and a salt, any number that is its own: equally urgent turns are put into an order
    by salts and key, so the sequence does not depend on how participants are numbered.

    >>> turns = Turns([3, 1], salts=[11, 12], key=0)
    >>> first = [turns.advance() for _ in range(8)]
    >>> first.count(0), first.count(1)
    (6, 2)
    """

    def __init__(
        self,
        weights: Sequence[int],
        salts: Sequence[int],
        key: int,
        drawn: Sequence[int] | None = None,
        planned: Sequence[int] = (),
    ) -> None:
        common = gcd(*weights)
        self.weights = [weight // common for weight in weights]
        self.total = sum(self.weights)
        #: how many turns each has had
        self.drawn = [0] * len(weights) if drawn is None else list(drawn)
        self.count = sum(self.drawn)
        self._key = key
        self._salts = [salt ^ key for salt in salts]
        self._counted = list(self.drawn)
        #: the planned turns: the participant, and the first and the last moment
        self._plan: list[tuple[int, int, int]] = []
        for number in planned:
            self._append(number)
        #: turns after those whose first moment is still to come, by that; the others by their last
        self._waiting = [(self._first(number, done), number) for number, done in enumerate(self._counted)]
        heapify(self._waiting)
        self._ready: list[tuple[int, int, int]] = []
        self._choice: int | None = None
        self._block = -1
        self._bits = 0

    @property
    def planned(self) -> list[int]:
        """With `drawn`, all it takes to go on from here."""
        return [number for number, _, _ in self._plan]

    @property
    def fair(self) -> bool:
        """Whether each has had its share, rounded down or up: always, unless it was given other numbers."""
        shares = [weight * self.count for weight in self.weights]
        return all(
            share // self.total <= done <= -(-share // self.total)
            for share, done in zip(shares, self.drawn, strict=True)
        )

    def peek(self) -> int:
        """Whose turn is next."""
        if self._choice is None:
            self._choice = self._chosen()
        return self._plan[self._choice][0]

    def advance(self) -> int:
        """Whose turn it was."""
        number = self.peek()
        choice = self._choice
        assert choice is not None
        del self._plan[choice]
        self._choice = None
        self.drawn[number] += 1
        self.count += 1
        return number

    def _chosen(self) -> int:
        """Which of the planned turns is taken now."""
        plan, now = self._plan, self.count
        while len(plan) < _PLANNED:
            self._plan_one()
        within: list[int] = []
        firsts: dict[int, int] = {}
        for place, (number, first, last) in enumerate(plan):
            # Turns of one participant stay in their order; the later ones count as chances of the first.
            if number in firsts:
                within.append(firsts[number])
            elif first <= now:
                firsts[number] = place
                within.append(place)
            # What is overtaken comes one later than planned, which must not be past its last moment.
            if last == now + place:
                break
        return within[len(within) * self._fraction(now) >> 16] if len(firsts) > 1 else within[0]

    def _fraction(self, now: int) -> int:
        """A random number below 2**16, the same for the same turn."""
        block, at = divmod(now, 8)
        if block != self._block:
            self._block, self._bits = block, derive("turns", self._key, block)
        return self._bits >> 16 * at & 0xFFFF

    def _plan_one(self) -> None:
        """Plan one more turn: of those whose first moment has come, the one whose last comes first."""
        moment = self.count + len(self._plan)
        waiting, ready = self._waiting, self._ready
        while waiting and waiting[0][0] <= moment:
            number = heappop(waiting)[1]
            done = self._counted[number]
            heappush(ready, (self._last(number, done), self._tie(number, done), number))
        number = heappop(ready)[2]
        self._append(number)
        heappush(waiting, (self._first(number, self._counted[number]), number))

    def _append(self, number: int) -> None:
        done = self._counted[number]
        self._counted[number] = done + 1
        self._plan.append((number, self._first(number, done), self._last(number, done)))

    def _first(self, number: int, done: int) -> int:
        """The first moment for a turn after `done` others: before it, the share rounded up would be exceeded."""
        return done * self.total // self.weights[number]

    def _last(self, number: int, done: int) -> int:
        """The last moment for it: after that, the share rounded down would be missed."""
        return -(-(done + 1) * self.total // self.weights[number]) - 1

    def _tie(self, number: int, done: int) -> int:
        """Decides at random between turns that are equally urgent."""
        word = (self._salts[number] + done * 0x9E3779B97F4A7C15) & _WORD
        word = ((word ^ word >> 30) * 0xBF58476D1CE4E5B9) & _WORD
        return ((word ^ word >> 27) * 0x94D049BB133111EB & _WORD) >> 16


class Shares:
    """Who takes part by name, and the turns of those that run: counted anew whenever these change.

    >>> shares = Shares(["a", "b"], [Fraction(1), Fraction(1)], key=0)
    >>> shares.begin([1])
    >>> shares.draw(5, available={1: 3}.get)
    [1, 1, 1]
    """

    def __init__(self, names: Sequence[str], weights: Sequence[Fraction], key: int) -> None:
        self.names = names
        self.weights = whole_weights(weights)
        self.salts = [derive(name) for name in names]
        self.key = key
        #: draws so far, of each and in all
        self.drawn = [0] * len(names)
        self.next = 0
        self.begin(range(len(names)))

    def begin(
        self,
        running: Iterable[int],
        began: int | None = None,
        drawn: Sequence[int] | None = None,
        ahead: Sequence[int] = (),
    ) -> None:
        """Go on with these participants, in proportions that count from here."""
        self.running = list(running)
        self.began = self.next if began is None else began
        self._turn_of = {number: turn for turn, number in enumerate(self.running)}
        if not self.running:
            return
        self.turns = Turns(
            [self.weights[number] for number in self.running],
            [self.salts[number] for number in self.running],
            derive("turns", self.key, self.began),
            drawn,
            ahead,
        )

    @property
    def proportions(self) -> dict[str, int]:
        """The weights of those that run, by name, as the smallest whole numbers."""
        return {self.names[number]: self.turns.weights[turn] for number, turn in self._turn_of.items()}

    def peek(self) -> int:
        """Whose turn is next."""
        return self.running[self.turns.peek()]

    def draw(self, most: int, available: Callable[[int], int]) -> list[int]:
        """The next turns, at the most so many, up to one of a participant that has nothing left to give."""
        turns, running = self.turns, self.running
        left: dict[int, int] = {}
        chosen: list[int] = []
        while len(chosen) < most:
            number = running[turns.peek()]
            if number not in left:
                left[number] = available(number)
            if left[number] == 0:
                break
            left[number] -= 1
            turns.advance()
            chosen.append(number)
        self.next += len(chosen)
        for number, count in Counter(chosen).items():
            self.drawn[number] += count
        return chosen

    def share(self, number: int) -> tuple[int, int, int]:
        """The turns one that runs has had, its weight, and all weights together."""
        turn = self._turn_of[number]
        return self.turns.drawn[turn], self.turns.weights[turn], self.turns.total

    def save(self) -> dict[str, Any]:
        """Where it stands, by name: small, plain data."""
        saved: dict[str, Any] = {"next": self.next, "drawn": dict(zip(self.names, self.drawn, strict=True))}
        if self.running:
            names = [self.names[number] for number in self.running]
            saved["began"] = self.began
            saved["weights"] = self.proportions
            saved["ahead"] = [names[turn] for turn in self.turns.planned]
            if self.began:
                saved["since"] = dict(zip(names, self.turns.drawn, strict=True))
        return saved

    def restore(self, saved: Mapping[str, Any], running: Iterable[int]) -> bool:
        """Go on as saved, with those that are running.

        False if these or their shares are others now: then proportions count from here.
        """
        self.next = _count(saved["next"])
        self.drawn = [_count(saved["drawn"].get(name, 0)) for name in self.names]
        self.begin(running)
        if not self.running or saved.get("weights") != self.proportions:
            return False
        turn_of = {self.names[number]: turn for number, turn in self._turn_of.items()}
        since = saved.get("since", saved["drawn"])
        self.begin(
            self.running,
            _count(saved["began"]),
            [_count(since[name]) for name in turn_of],
            [turn_of[name] for name in saved["ahead"]],
        )
        if not self.turns.fair or self.began + self.turns.count != self.next:
            raise StateMismatch("the state is damaged: it counts draws of mix() that its weights cannot give")
        return True


def _count(saved: Any) -> int:
    return saved_number(saved, "mix()")
