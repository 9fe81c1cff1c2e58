"""Which documents make a row of pack: two joints, one that cuts documents and one that fits them in.

A document is known here by its length alone. Its eos counts as its last item. One that comes again in a resume
with another length, because the functions before are not deterministic, is cut as it then is.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.errors import StateMismatch
from penstock.ops.joint import LOST, Ingredient
from penstock.ops.residents import Group, Keeping, Resident
from penstock.provenance import Piece, Place

#: "fit" keeps so many rows open, and no more documents than this unless one row alone has them
OPEN_ROWS = 32
OPEN_DOCUMENTS = 512
_DIGITS = "0123456789abcdefghijklmnopqrstuv"
_NO_ROW = "-"

#: part of a document, and whether its eos follows
Tokens = tuple[Any, bool]


class _Slice(NamedTuple):
    """What of a document stands in a row."""

    one: Resident
    start: int
    stop: int

    @property
    def piece(self) -> Tokens:
        tokens = self.one.sample
        return tokens[self.start : self.stop], self.stop > len(tokens)

    @property
    def place(self) -> Place:
        """A document in several rows has a place in each, told apart by where it is cut."""
        whole = self.stop - self.start == self.one.measure
        return self.one.place if whole else Piece(self.one.place, self.start, self.stop)


class _Rows(Keeping):
    """What both ways to fill rows have in common."""

    def __init__(self, length: int, hoards: str) -> None:
        super().__init__(hoards)
        self.length = length

    def accept(self, one: Resident) -> None:
        if one.measure:
            self.begin(one, 0)
        else:
            self.let_go(one.number)

    @abstractmethod
    def begin(self, one: Resident, start: int) -> None:
        """The part of a document from `start` on is to be put into rows."""

    def ingredients(self, place: Place) -> Sequence[Ingredient]:
        return [Ingredient(one.place if type(one) is Piece else one) for one in place]

    def remake(self, place: Place, samples: Sequence[Any]) -> Any:
        pieces = []
        left = self.length
        for one, sample in zip(place, samples, strict=True):
            if sample is not LOST:
                start, stop = (one.start, one.stop) if type(one) is Piece else (0, sample.measure)
                stop = min(stop, sample.measure)
                if start < stop:
                    left -= stop - start
                    pieces.append(_Slice(Resident(-1, one, *sample), start, stop).piece)
        if left < 0:
            raise StateMismatch("a row of pack() that is owed is longer than a row")
        return pieces or LOST

    def leaving(self, row: list[_Slice]) -> Group:
        for one in row:
            if one.stop == one.one.measure:
                self.let_go(one.one.number)
        return [one.piece for one in row], [one.place for one in row]


class Concat(_Rows):
    """Documents one after the other, cut where a row is full."""

    def __init__(self, length: int, hoards: str) -> None:
        super().__init__(length, hoards)
        #: documents, and how much of each has left: of the first, or of one that was kept when a state was saved
        self.waiting: deque[tuple[Resident, int]] = deque()
        #: how much of all documents has not
        self.count = 0

    def begin(self, one: Resident, start: int) -> None:
        self.waiting.append((one, start))
        self.count += one.measure - start

    def due(self) -> Group | None:
        return self._cut(self.length) if self.count >= self.length else None

    def rest(self) -> Group | None:
        return self._cut(self.count) if self.count else None

    def _cut(self, length: int) -> Group:
        row: list[_Slice] = []
        self.count -= length
        while length:
            one, start = self.waiting.popleft()
            stop = min(start + length, one.measure)
            row.append(_Slice(one, start, stop))
            length -= stop - start
            if stop < one.measure:
                self.waiting.appendleft((one, stop))
        return self.leaving(row)

    def places(self) -> Sequence[Place]:
        return [Piece(one.place, start, 0) if start else one.place for one, start in self.waiting]

    def readmit(self, kept: Sequence[Resident | None], starts: Sequence[int], stand: Any) -> None:
        for one, start in zip(kept, starts, strict=True):
            if one is None:
                continue
            if start < one.measure:
                self.begin(one, start)
            else:
                self.let_go(one.number)


class _Row:
    """A row that still has room."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.slices: list[_Slice] = []

    def add(self, one: _Slice) -> None:
        self.slices.append(one)
        self.room -= one.stop - one.start


class Fit(_Rows):
    """Each document in the first open row that has room for it."""

    def __init__(self, length: int, hoards: str) -> None:
        super().__init__(length, hoards)
        #: in the order in which they were opened
        self.rows: list[_Row] = []
        #: documents that are in no row yet, and from where on: hardly ever more than one
        self.hand: deque[tuple[Resident, int]] = deque()

    def begin(self, one: Resident, start: int) -> None:
        self.hand.append((one, start))

    def due(self) -> Group | None:
        while self.hand:
            one, start = self.hand[0]
            if one.measure - start >= self.length:
                stop = start + self.length
                if stop < one.measure:
                    self.hand[0] = one, stop
                else:
                    self.hand.popleft()
                return self.leaving([_Slice(one, start, stop)])
            if self.kept > OPEN_DOCUMENTS and len(self.rows) > 1:
                return self._close(self._fullest())
            size = one.measure - start
            row = next((row for row in self.rows if row.room >= size), None)
            if row is None:
                if len(self.rows) == OPEN_ROWS:
                    return self._close(self._fullest())
                row = _Row(self.length)
                self.rows.append(row)
            row.add(_Slice(one, start, one.measure))
            self.hand.popleft()
            if not row.room:
                return self._close(row)
        return None

    def rest(self) -> Group | None:
        return self._close(self.rows[0]) if self.rows else None

    def _fullest(self) -> _Row:
        return min(self.rows, key=lambda row: row.room)  # of equals, the one opened first

    def _close(self, row: _Row) -> Group:
        self.rows.remove(row)
        return self.leaving(row.slices)

    def places(self) -> Sequence[Place]:
        starts = {one.number: start for one, start in self.hand}
        starts |= {slice.one.number: slice.start for row in self.rows for slice in row.slices}
        return [
            Piece(place, starts[number], 0) if starts.get(number) else place for number, place in self._held.items()
        ]

    def stand(self) -> str:
        """The row of each document that is kept, a letter each."""
        row_of = {
            one.one.number: digit for digit, row in zip(_DIGITS, self.rows, strict=False) for one in row.slices
        }
        return "".join(row_of.get(number, _NO_ROW) for number in self._held)

    def readmit(self, kept: Sequence[Resident | None], starts: Sequence[int], stand: Any) -> None:
        digits = _NO_ROW * len(kept) if stand is None else str(stand)
        rows = [_Row(self.length) for _ in _DIGITS]
        for one, start, digit in zip(kept, starts, digits, strict=True):
            if one is None:
                continue
            if digit != _NO_ROW:
                row = rows[_DIGITS.index(digit)]
                if 0 < one.measure - start <= row.room:
                    row.add(_Slice(one, start, one.measure))
                    continue
            if start < one.measure:
                self.begin(one, start)
            else:
                self.let_go(one.number)
        self.rows = [row for row in rows if row.slices]
