"""From a position in the epoch to an index of the source, through every op that changes the order."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.ops.joint import Length
from penstock.ops.op import Key, Order
from penstock.provenance import Place, origin, single, way
from penstock.sources.source import IndexedSource, Indices

Int64s = NDArray[np.int64]
Identify = Callable[[int, Sequence[Place]], Sequence[Hashable]]

#: positions traced at once: small numpy calls cost more than the numbers in them
_BLOCK = 16384
#: a block of so small a source could hold many passes, each with an order of its own
_TINY = 512


class Reading:
    """The order in which one indexed source is read.

    Any worker can ask for any stretch of any epoch; nothing is stored but the blocks last asked for.
    """

    def __init__(self, source: IndexedSource, orders: Sequence[tuple[Order, Key]]) -> None:
        self.source = source
        self.orders = tuple(orders)
        self.lengths: list[Length] = [len(source)]
        for order, _ in self.orders:
            last = self.lengths[-1]
            if not isinstance(last, int):
                raise AssertionError("an order over an endless upstream")
            self.lengths.append(order.length(last))
        #: how many positions an epoch has
        self.length: Length = self.lengths[-1]
        #: positions below this are indices as they are
        self._plain = len(source) if not self.orders else 0
        self._blocks: dict[tuple[int, int], Int64s] = {}

    def indices(self, epoch: int, positions: range) -> Indices:
        """The source's indices at `positions`. Those behind the end are the first ones again."""
        if positions.stop <= self._plain and positions.step == 1:
            return positions
        if not positions:
            return positions
        first, end = positions[0], positions[-1] + 1
        if isinstance(self.length, int) and end > self.length:
            return self.trace(epoch, np.arange(first, positions.stop, positions.step) % self.length)
        if not self.orders:
            return positions if positions.step == 1 else np.arange(first, positions.stop, positions.step)
        if len(self.source) < _TINY:
            return self.trace(epoch, np.arange(first, positions.stop, positions.step))
        block = first // _BLOCK
        if end <= (block + 1) * _BLOCK:
            start = block * _BLOCK
            return self._block(epoch, block)[first - start : end - start : positions.step]
        return self.trace(epoch, np.arange(first, positions.stop, positions.step))

    def index(self, epoch: int, position: int) -> int:
        """What the user calls the sample at one position: its number in what the source was made of."""
        return int(self.source.numbers(self.indices(epoch, range(position, position + 1)))[0])

    def name(self, epoch: int, position: int) -> str:
        """What the source calls the sample at one position; nothing if it has no name for it."""
        try:
            return self.source.name(int(self.indices(epoch, range(position, position + 1))[0]))
        except Exception:
            return ""  # asked while an error is reported, which matters more

    def identities(self, epoch: int, places: Sequence[Place]) -> list[Hashable]:
        """What tells the samples at `places` of `epoch` apart from all others of the source; None for groups."""
        if isinstance(places, range) or all(type(place) is int for place in places):
            return [(index, ()) for index in self.trace(epoch, np.array(places, dtype=np.int64)).tolist()]
        found = [origin(place, epoch) if single(place) else None for place in places]
        out: list[Hashable] = [None] * len(found)
        for one in {known[0] for known in found if known is not None}:
            numbers = [number for number, known in enumerate(found) if known is not None and known[0] == one]
            traced = self.trace(one, np.array([found[number][1] for number in numbers]))  # type: ignore[index]
            for number, index in zip(numbers, traced.tolist(), strict=True):
                out[number] = (index, way(places[number]))
        return out

    @property
    def calls_user(self) -> bool:
        """Whether a function of the user's decides what is read."""
        return any(order.calls_user for order, _ in self.orders)

    def epoch_behind(self, level: int, epoch: int, position: int) -> int:
        """The epoch that ops between order `level` - 1 and order `level` are in, at `position` of `epoch`.

        A pass of ``repeat`` counts as an epoch for what comes before it.
        """
        positions = np.array([position])
        for number in range(len(self.orders) - 1, level - 1, -1):
            order, key = self.orders[number]
            n = self.lengths[number]
            assert isinstance(n, int)
            epochs, positions = order.trace(epoch, positions, n, key)
            epoch = epochs if isinstance(epochs, int) else int(epochs[0])
        return epoch

    def _block(self, epoch: int, block: int) -> Int64s:
        found = self._blocks.get((epoch, block))
        if found is None:
            stop = (block + 1) * _BLOCK
            if isinstance(self.length, int):
                stop = min(stop, self.length)
            found = self.trace(epoch, np.arange(block * _BLOCK, stop))
            if len(self._blocks) > 3:
                self._blocks.clear()
            self._blocks[epoch, block] = found
        return found

    def trace(self, epoch: int, positions: Int64s) -> Int64s:
        """The source's indices at any positions."""
        return self._traced(len(self.orders) - 1, epoch, positions)

    def _traced(self, level: int, epoch: int, positions: Int64s) -> Int64s:
        if level < 0 or not positions.size:
            return positions
        order, key = self.orders[level]
        n = self.lengths[level]
        assert isinstance(n, int)
        epochs, inner = order.trace(epoch, positions, n, key)
        if level == 0:
            return inner
        if isinstance(epochs, int):
            return self._traced(level - 1, epochs, inner)
        out = np.empty_like(inner)
        for one in np.unique(epochs):
            mine = epochs == one
            out[mine] = self._traced(level - 1, int(one), inner[mine])
        return out


class Noted:
    """Identities that workers find out before they hand samples in, since a function of the user's decides on them.

    They are asked for under the lock, where no such function may run.
    """

    def __init__(self, identify: Identify) -> None:
        self._identify = identify
        self._found: dict[tuple[int, Place], Hashable] = {}

    def note(self, epoch: int, places: Sequence[Place]) -> None:
        """Find out what the samples at `places` are. Called without the lock."""
        for place, found in zip(places, self._identify(epoch, places), strict=True):
            if found is not None:
                self._found[epoch, place] = found

    def __call__(self, epoch: int, places: Sequence[Place]) -> Sequence[Hashable]:
        """What was noted of the samples at `places`; None for groups."""
        return [self._found.pop((epoch, place), None) if single(place) else None for place in places]
