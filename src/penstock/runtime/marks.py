"""Where the stream stands: from any delivered sample back to the sources, without counting outputs. Pure.

The ops of a pipeline fall into *segments*: what stands between two joints, however many stages it
is cut into. A segment's inputs are numbered from where its feed began: by position at a source, by
output at a joint. Where a segment stands is told in these numbers (`Standing`): every input from
`next` on is still to come, and some before it, wholly or in part. So it does not depend on how
tickets were cut or where ops ran.

While the stream runs nothing of that is computed. A ticket has a `Trace`, which remembers where its
inputs came from, and its chunks carry it on: a trace leads to the chunks of the stage before, to a
`Record` of the joint between two steps, or to the source. Only `plain` walks back and makes of it
what is saved; `penstock.runtime.again` reads that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.provenance import Passed, Place, path, root, single, starts
from penstock.runtime.stretches import Stretch, merged

if TYPE_CHECKING:
    from penstock.runtime.again import Again

__all__ = [
    "Came",
    "Given",
    "Leaf",
    "Loose",
    "Mark",
    "Origin",
    "Record",
    "Shard",
    "Standing",
    "Trace",
    "Turn",
    "Turns",
    "down",
    "high",
    "place_from",
    "plain",
    "plain_place",
]

Plain = dict[str, Any]


class Shard(NamedTuple):
    """The part of a stream that records from `start` on are in."""

    number: int
    start: int


class Leaf(NamedTuple):
    """A source, as the feed of a segment."""

    epoch: int
    #: the parts of a stream that the records of a ticket are in
    shards: tuple[Shard, ...] = ()
    #: positions that belong together, and the segment that begins with them, where workers make the batches
    unit: int = 1
    batched: str = ""
    #: what was to come when the epoch was resumed, as numbers from `first` on
    again: Again | None = None
    first: int = 0
    #: where positions are dealt to ranks in step: how many go to all of them in one round
    round_size: int = 1
    block: int = 1

    def round_end(self, position: int) -> int:
        """Where all ranks stand when this one stands at `position`, if they deliver in step."""
        done = position - self.first
        if self.round_size == 1 or done % self.block:
            return position
        return (
            self.first
            + (done // self.block - 1) // (self.round_size // self.block) * self.round_size
            + self.round_size
        )

    def plain(self, position: int) -> Plain:
        """What it takes to begin at `position`."""
        out: Plain = {"feed": {"position": position}}
        for shard in self.shards:
            if shard.start <= position:
                out["feed"]["shard"] = [shard.number, position - shard.start]
        if not self.batched:
            return out
        return {"feed": {"joint": self.batched, "inputs": [{"epoch": self.epoch, "at": out}], "counts": [0]}}


class Given(NamedTuple):
    """Nothing has been taken since the start, or since a resume: what is saved is what was loaded."""

    saved: Plain | None


class Mark(NamedTuple):
    """Right behind one sample."""

    origin: Origin
    place: Place


@dataclass(slots=True, eq=False)
class Record:
    """A joint between two steps: with it, and its inputs from there on, the joint can be made again."""

    key: str
    saved: Any
    #: behind the last sample taken of every input, and how many there were
    marks: tuple[Mark | Given, ...]
    counts: tuple[int, ...]
    #: the epochs that the inputs are in; -1 if one is not open
    epochs: tuple[int, ...]
    #: the samples of the one input that the joint keeps
    held: tuple[Mark, ...] = ()
    #: the number of its first output
    first: int = 0
    #: how many outputs its step made
    outputs: int = 0
    #: what was lost among the samples that its step took: the segment, its epoch, and the place
    lost: list[tuple[str, int, Place]] = field(default_factory=list)
    next: Record | None = None
    #: what a composite calls its inputs
    names: tuple[str, ...] = ()
    #: what was to come of the joint when the epoch was resumed
    again: Again | None = None
    #: how the samples that its step took fall to its outputs, if there are several that are told apart
    cuts: Cuts | None = None

    def part(self, number: int) -> Record:
        """The joint before output `number` of its step, as if every output had been a step of its own."""
        if self.cuts is None:
            return self
        later = self.next
        for at in range(self.outputs - 1, number - 1, -1):
            marks = self.marks if at == 0 else (self.cuts.mark(at),)
            counts = (self.counts[0] + at * self.cuts.even,)
            first = self.first + at
            later = Record(self.key, self.saved, marks, counts, self.epochs, first=first, outputs=1, next=later)
        assert later is not None
        return later


class Cuts(NamedTuple):
    """A step of a joint that makes every output of `even` samples: where these came from, and their places."""

    even: int
    came: Sequence[Came]
    places: Sequence[Sequence[Place]]

    def mark(self, number: int) -> Mark:
        """Behind the last sample of the output before `number`."""
        last = number * self.even - 1
        origin = None
        for offset, one, _ in self.came:
            if offset > last:
                break
            origin = one
        assert origin is not None
        return Mark(origin, self.places[number - 1][-1])


#: what some inputs of a ticket came from: their offset there, a joint's step, a chunk of the stage before
#: or the source, and the number (of an output, in the chunk, or the position) of the first of them
Came = tuple[int, Any, int]


class Address(NamedTuple):
    """An input of a segment, and the way from there to one sample that was made of it."""

    number: int
    ref: Record | Leaf
    way: tuple[int, ...] = ()


class Loss(Protocol):
    """A sample that was lost."""

    @property
    def at(self) -> tuple[int, tuple[int, ...]] | None:
        """The number of the segment's input that it was made of, and the way from there; None if not known."""


class Origin(Protocol):
    """What a chunk carries: where its samples came from."""

    def after(self, place: Place) -> Standing:
        """How the segment stands behind the sample at `place`."""

    def locate(self, place: Place) -> Address:
        """The input that the sample at `place` was made of."""

    def rank(self, lost: Loss, places: Sequence[Place]) -> int:
        """How many of the samples at `places` come before one that was lost."""

    @property
    def sieves(self) -> tuple[Any, ...]:
        """What of the samples made of these inputs has been delivered before a resume."""


@dataclass(slots=True, eq=False)
class Standing:
    """How a segment stands: all inputs from `next` on are to come, and those before it that are `wanted`."""

    next: int
    ref: Record | Leaf
    #: inputs before `next`
    wanted: dict[int, Record | Leaf] = field(default_factory=dict)
    #: of these inputs only what is in one of some stretches
    parts: dict[int, list[Stretch]] = field(default_factory=dict)
    #: where outputs alternate: which of the inputs to come has which turn, and whose turn it is
    turns: list[int] | None = None
    turn: int = 0

    def reopen(self, one: Address, way: tuple[int, ...]) -> None:
        """What comes of one sample behind `way` is still to come."""
        self.wanted[one.number] = one.ref
        self.parts.setdefault(one.number, []).append(Stretch(one.way, one.way + way))

    def want(self, one: Address) -> None:
        """All that comes of one input, or of one sample made of it, is still to come."""
        if one.number >= self.next:
            return
        self.wanted[one.number] = one.ref
        if one.way:
            self.parts.setdefault(one.number, []).append(Stretch(one.way))


class Trace:
    """Where the inputs of one ticket came from."""

    __slots__ = ("_numbers", "_sources", "grouped", "places", "sieves", "unit")

    def __init__(
        self,
        places: Sequence[Place],
        sources: Sequence[Came],
        sieves: tuple[Any, ...] = (),
        unit: int = 1,
        grouped: bool = False,
    ) -> None:
        self.places = places
        self._sources = sources
        #: made when it is first asked for
        self._numbers: dict[Place, int] | None = None
        self.sieves = sieves
        #: inputs that belong together, where the worker itself makes the batches, and whether it does
        self.unit = unit
        self.grouped = grouped

    def input(self, place: Place) -> tuple[int, tuple[int, ...]]:
        """The input that `place` was made of, and the way from there."""
        places = self.places
        if self.grouped:
            assert isinstance(places, range)
            start = (root(place) - places.start) // places.step // self.unit * self.unit
            group = places[start : start + self.unit]
            return start, path(place, group) or ()
        if isinstance(places, range):
            number = places.index(root(place))
            return number, path(place, places[number]) or ()
        known = self._by_place()
        for start in starts(place):
            if single(start) and start in known:
                return known[start], path(place, start) or ()
        # A member of a group, or what was made of one.
        for number, one in enumerate(places):
            way = path(place, one)
            if way is not None:
                return number, way
        raise LookupError(f"{place!r} was not made of any of {places!r}")

    def _by_place(self) -> dict[Place, int]:
        """The numbers of the inputs by their places, for those that are not groups."""
        if self._numbers is None:
            self._numbers = {one: number for number, one in enumerate(self.places) if single(one)}
        return self._numbers

    def rank(self, lost: Loss, places: Sequence[Place]) -> int:
        return _rank(self, lost, places)

    def _source(self, number: int) -> tuple[Any, int]:
        """What input `number` came from, and its number there."""
        source, at = None, 0
        for offset, one, first in self._sources:
            if offset > number:
                break
            source, at = one, first + number - offset
        if isinstance(source, Record) and source.cuts is not None:
            return source.part(at), 0
        return source, at

    def address(self, number: int) -> Address:
        """Input `number` of the ticket, as an input of its segment."""
        source, at = self._source(number)
        if isinstance(source, Leaf):
            return Address(self.places[number], source)
        if isinstance(source, Record):
            return Address(source.first + at, source)
        found: Address = source.locate(self.places[number])
        return found

    def locate(self, place: Place) -> Address:
        number, way = self.input(place)
        one = self.address(number)
        return Address(one.number, one.ref, one.way + way)

    def after(self, place: Place) -> Standing:
        number, way = self.input(place)
        out = self.behind(number)
        if way:
            out.reopen(self.address(number), way)
        return out

    def behind(self, number: int) -> Standing:
        """How the segment stands when all that comes of input `number` has been delivered."""
        source, _ = self._source(number)
        if isinstance(source, (Leaf, Record)):
            one = self.address(number)
            end = one.number + min(self.unit, len(self.places) - number)
            return Standing(source.round_end(end) if isinstance(source, Leaf) else end, one.ref)
        out: Standing = source.after(self.places[number])
        return out

    def add_rest(self, place: Place, out: Standing) -> None:
        """What comes of the ticket behind the sample at `place` (all, if that is None) is still to come."""
        first = 0
        if place is not None:
            number, way = self.input(place)
            if way:
                out.reopen(self.address(number), way)
            first = number + self.unit
        for number in range(first, len(self.places), self.unit):
            out.want(self.address(number))


class Loose:
    """Of a chunk of a stage that does not keep the order: what of other tickets has left before it."""

    __slots__ = ("_high", "_others", "_trace")

    def __init__(self, trace: Trace, others: tuple[tuple[Trace, Place], ...], high: Trace) -> None:
        self._trace = trace
        #: tickets of which not all has left, and the last sample that has
        self._others = others
        #: the last ticket of which something has left
        self._high = high

    @property
    def sieves(self) -> tuple[Any, ...]:
        return self._trace.sieves

    def locate(self, place: Place) -> Address:
        return self._trace.locate(place)

    def rank(self, lost: Loss, places: Sequence[Place]) -> int:
        return _rank(self, lost, places)

    def after(self, place: Place) -> Standing:
        last = len(self._high.places) - 1
        out = self._high.behind(last // self._high.unit * self._high.unit)
        self._trace.add_rest(place, out)
        for trace, left in self._others:
            trace.add_rest(left, out)
        return out


#: where outputs alternate, how that stands behind one sample: its ticket, who has which turn, whose turn it is,
#: and the last of the tickets that have been begun
Turn = tuple[int, tuple[int, ...], int, Trace]


class Turns:
    """Of a chunk of a stage whose outputs alternate between tickets of one input each."""

    __slots__ = ("_last", "_lost", "_places", "_traces", "_turns")

    def __init__(
        self,
        places: Sequence[Place],
        turns: Sequence[Turn],
        traces: dict[int, Trace],
        last: dict[int, Place],
        lost: Sequence[tuple[Any, int]] = (),
    ) -> None:
        self._places = places
        self._turns = turns
        #: of all tickets that have, or wait for, a turn
        self._traces = traces
        #: the last sample of each ticket that had left before this chunk
        self._last = last
        #: what was lost, and how many samples of this chunk came before it
        self._lost = lost

    @property
    def sieves(self) -> tuple[Any, ...]:
        return tuple(sieve for trace in self._traces.values() for sieve in trace.sieves)

    def locate(self, place: Place) -> Address:
        return self._traces[self._turns[self._places.index(place)][0]].locate(place)

    def rank(self, lost: Loss, places: Sequence[Place]) -> int:
        return next((rank for one, rank in self._lost if one is lost), len(places))

    def after(self, place: Place) -> Standing:
        stop = self._places.index(place) + 1
        last = dict(self._last)
        for (ticket, *_), one in zip(self._turns[:stop], self._places[:stop], strict=True):
            last[ticket] = one
        _, turns, turn, high = self._turns[stop - 1]
        out = high.behind(0)
        for ticket in turns:
            trace = self._traces.get(ticket)
            if trace is not None:
                trace.add_rest(last.get(ticket), out)
        inputs = sorted(turns)
        out.turns = [inputs.index(ticket) for ticket in turns]
        out.turn = turn
        return out


def _rank(origin: Origin, lost: Loss, places: Sequence[Place]) -> int:
    """`Origin.rank` where samples come in the order of a segment's inputs; somewhere, where they do not.

    What was lost may have been made of an input before those of `places`: a later stage tells it with the
    samples that follow.
    """
    if lost.at is None:
        return len(places)
    low, high = 0, len(places)
    while low < high:
        middle = (low + high) // 2
        one = origin.locate(places[middle])
        if (one.number, one.way) < lost.at:
            low = middle + 1
        else:
            high = middle
    return low


# ---------------------------------------------------------------------- what is saved


def plain(mark: Mark | Given, held: Sequence[Mark] = ()) -> Plain | None:
    """How a segment stands behind `mark`, as plain data; None if it has not begun.

    The samples that are `held` by the joint behind it are still to come, too.
    """
    if isinstance(mark, Given):
        return mark.saved
    standing = mark.origin.after(mark.place)
    for one in held:
        standing.want(one.origin.locate(one.place))
    return _plain_standing(standing)


def _plain_standing(standing: Standing) -> Plain:
    ref, reached = standing.ref, standing.next
    if ref.again is not None:
        first, unit = (ref.first, ref.unit) if isinstance(ref, Leaf) else (0, 1)
        ref.again.narrow(standing, first, unit)
    low = min(standing.wanted, default=standing.next)
    ref = standing.wanted.get(low, standing.ref)
    unit = 1
    if isinstance(ref, Leaf):
        # What was to come before a resume, and is still further on, may be in a part that is not open yet.
        base, unit = min(low, reached) if ref.shards else low, ref.unit
        out = ref.plain(base)
    else:
        if ref.first + ref.outputs <= low and ref.next is not None:
            ref = ref.next
        base = ref.first
        out = {"feed": _plain_record(ref, standing.next)}
    if standing.next > base:
        out["next"] = -(-(standing.next - base) // unit)
    if standing.wanted:
        out["wanted"] = _runs(sorted((number - base) // unit for number in standing.wanted))
    if standing.parts:
        out["parts"] = [
            [(number - base) // unit, *one.plain()]
            for number, parts in sorted(standing.parts.items())
            for one in merged(parts)
        ]
    if standing.turns is not None:
        out["turns"], out["turn"] = standing.turns, standing.turn
    return out


def _plain_record(record: Record, stop: int) -> Plain:
    """The joint where `record` was made; its outputs up to number `stop` are made again and left out."""
    inputs: list[Any] = []
    for number, mark in enumerate(record.marks):
        epoch = record.epochs[number]
        inputs.append(None if epoch < 0 else {"epoch": epoch, "at": plain(mark, record.held)})
    out: Plain = {"joint": record.key, "inputs": inputs, "counts": list(record.counts)}
    if record.names:
        out["names"] = list(record.names)
    if record.saved is not None:
        out["saved"] = record.saved
    if stop > record.first:
        lost: list[Any] = []
        again: Record | None = record
        while again is not None and again.first < stop and again.next is not None:
            found = [[segment, turn, plain_place(place)] for segment, turn, place in again.lost]
            lost += [one for one in found if one not in lost]
            again = again.next
        if again is not None:
            out["taken"] = [now - before for now, before in zip(again.counts, record.counts, strict=True)]
            if len(again.marks) == 1:
                out["high"] = high(plain(again.marks[0], again.held))
        if lost:
            out["lost"] = lost
    return out


def high(at: Plain | None) -> int:
    """The first position of the source from which on nothing has been begun, where there is one source."""
    found = 0
    for one in down(at):
        feed = one["feed"]
        found = max(found, feed["position"] + one.get("next", 0) if "position" in feed else feed.get("high", 0))
    return found


def down(at: Plain | None) -> Iterator[Plain]:
    """A saved standing, that of its one input, and so on to the source; no further where there are several."""
    while at is not None:
        yield at
        inputs = [one for one in at["feed"].get("inputs", ()) if one is not None]
        at = inputs[0]["at"] if len(inputs) == 1 else None


def _runs(numbers: list[int]) -> list[list[int]]:
    """Ascending numbers as runs: how far each begins behind the end of the one before, and its length.

    >>> _runs([3, 4, 5, 9])
    [[3, 3], [3, 1]]
    """
    out: list[list[int]] = []
    end = 0
    for number in numbers:
        if out and number == end:
            out[-1][1] += 1
        else:
            out.append([number - end, 1])
        end = number + 1
    return out


def plain_place(place: Place) -> Any:
    """A place as plain data.

    >>> plain_place((7, 2)), place_from(plain_place([Passed((7, 2), 3), range(1, 9, 4)]))
    ({'way': [7, 2]}, [Passed(place=(7, 2), number=3), range(1, 9, 4)])
    """
    if isinstance(place, int):
        return place
    if isinstance(place, Passed):
        return {"pass": place.number, "of": plain_place(place.place)}
    if isinstance(place, range):
        return {"from": place.start, "to": place.stop, "by": place.step}
    parts = [plain_place(one) for one in place]
    return {"way": parts} if isinstance(place, tuple) else parts


def place_from(saved: Any) -> Place:
    """The place that `plain_place` was made of."""
    if isinstance(saved, int):
        return saved
    if isinstance(saved, list):
        return [place_from(one) for one in saved]
    if "pass" in saved:
        return Passed(place_from(saved["of"]), saved["pass"])
    if "from" in saved:
        return range(saved["from"], saved["to"], saved["by"])
    return tuple(map(place_from, saved["way"]))
