"""What a ledger knows of one epoch. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

#: the batches whose number is the first modulo the second
Part = tuple[int, int]


class Entries:
    """One epoch: which batches were handed, to whom, in which order."""

    def __init__(self) -> None:
        #: all batches before this one were handed, and those of `above`
        self.low = 0
        self.above: set[int] = set()
        #: (generation, client) -> the batches that it was handed, in order
        self.clients: dict[tuple[int, str], array[int]] = {}
        #: where the pipeline of a part can go on, and before which of the part's batches: all before it were handed
        self.states: dict[Part, tuple[int, bytes]] = {}
        #: how many batches a part has, once all of them were handed
        self.ended: dict[Part, int] = {}
        #: of batches that were handed long ago it is not known any more to whom
        self.forgotten = False
        self._lows: dict[Part, int] = {}

    def __contains__(self, number: int) -> bool:
        return number < self.low or number in self.above

    def low_of(self, part: Part) -> int:
        """So many batches of a part were handed without a gap, from its first one on.

        >>> entries = Entries()
        >>> entries.add(0, "somebody", [0, 1, 3, 4])
        >>> entries.low_of((0, 2)), entries.low_of((1, 2))
        (1, 2)
        """
        residue, servers = part
        low = self._lows.get(part, 0)
        while low * servers + residue in self:
            low = max(low + 1, (self.low - residue) // servers)
        self._lows[part] = low
        return low

    def add(self, generation: int, client: str, numbers: Iterable[int]) -> None:
        found = self.clients.setdefault((generation, client), array("q"))
        for number in numbers:
            found.append(number)
            if number >= self.low:
                self.above.add(number)
        self._close_gaps()

    def add_unknown(self, low: int, above: Iterable[int]) -> None:
        """All batches before `low`, and those above, were handed; it is not known any more to whom."""
        self.forgotten = True
        self.low, self.above = max(self.low, low), {*self.above, *above}
        self._close_gaps()

    def forget(self) -> None:
        """Keep what was handed, and not to whom."""
        self.clients.clear()
        self.forgotten = True

    def _close_gaps(self) -> None:
        while self.low in self.above:
            self.above.remove(self.low)
            self.low += 1

    def cut(self, generation: int, kept: Mapping[str, int]) -> None:
        """Take back what came after `kept` of this generation, and all of later ones."""
        for key in list(self.clients):
            if key[0] > generation:
                del self.clients[key]
            elif key[0] == generation:
                del self.clients[key][kept.get(key[1], 0) :]
        numbers = {number for entries in self.clients.values() for number in entries}
        self.low, self.above = 0, numbers
        self._close_gaps()
        self._lows.clear()
        self.ended.clear()
        self.states = {part: state for part, state in self.states.items() if state[0] <= self.low_of(part)}

    @property
    def count(self) -> int:
        return self.low + len(self.above)

    @property
    def complete(self) -> bool:
        """Whether all batches of the epoch were handed."""
        return any(all((residue, servers) in self.ended for residue in range(servers)) for _, servers in self.ended)

    def lines(self, epoch: int) -> Iterator[list[Any]]:
        """The fewest lines of a ledger that say all this."""
        if self.forgotten:
            yield ["d", epoch, self.low, sorted(self.above)]
        for (generation, client), numbers in self.clients.items():
            if numbers:
                yield ["c", epoch, generation, client, numbers.tolist()]
        for part, (at, state) in self.states.items():
            yield ["p", *part, epoch, at, state.decode()]
        for part, total in self.ended.items():
            yield ["e", *part, epoch, total]
