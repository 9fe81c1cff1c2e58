"""shuffle: a random order, new in every epoch."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.checks import any_number, saved_number, whole_number
from penstock.ops.joint import Absent, Ingredient, Input, Joint, Length, Redone
from penstock.ops.op import Effect, In, Key, Op, Order
from penstock.places import places_from, plain_places
from penstock.provenance import Member, Place, counter, input_of, key_of, single, steps_from
from penstock.randomness import derive, hashed, permute

#: bytes with which a state names one sample of a group, compressed: 0.1 if they are in order, 3.5 if they are not
_NAMED = 4


@dataclass(frozen=True)
class Shuffle(Op[In, In]):
    """Deliver the samples in a random order that changes with every epoch.

    The same seed and epoch give the same order on every executor and worker count. ``seed``
    stands in for the loader's. Without a window the whole source is permuted, in constant memory.
    ``window=n`` permutes consecutive blocks of n samples: for streams, and after ops that vary
    the count. A stream in several parts is opened in a new order of parts every epoch, so that each
    is still read from its beginning to its end.

    >>> import penstock as ps
    >>> sorted(ps.from_sequence(range(4)).shuffle(seed=0))
    [0, 1, 2, 3]
    """

    window: int | None = None
    _: KW_ONLY
    seed: int | None = None

    verb = "shuffle"
    random = True
    effect: ClassVar[Effect] = Effect.PASSES

    def __post_init__(self) -> None:
        if self.window is not None:
            object.__setattr__(self, "window", whole_number(self.window, "shuffle(window=)", least=1))
        if self.seed is not None:
            object.__setattr__(self, "seed", any_number(self.seed, "shuffle(seed=)"))

    @property
    def label(self) -> str:
        return f"shuffle({'' if self.window is None else f'window={self.window}'})"

    def order(self) -> Order | None:
        return _Permuted(self.seed) if self.window is None else None

    def joint(self, key: Key, epoch: int, memo: dict[str, Any]) -> Joint | None:
        if self.window is None:
            return None
        return _Window(self.window, Key(key.seed if self.seed is None else self.seed, key.op), epoch)


class _Permuted(Order):
    instead = "use shuffle(window=10_000), which shuffles as samples pass"

    def __init__(self, seed: int | None) -> None:
        self.seed = seed

    def length(self, n: int) -> Length:
        return n

    def trace(self, epoch: int, positions: NDArray[np.int64], n: int, key: Key) -> tuple[int, NDArray[np.int64]]:
        seed = key.seed if self.seed is None else self.seed
        return epoch, permute(positions, n, derive("shuffle", seed, epoch, key.op))


class _Window(Joint):
    """Passes on consecutive blocks of samples, each in the order of a key of the sample's place.

    Every sample comes once, ragged tails too. The order depends on places and not on counts, so a lost sample takes
    its own turn, and a block that is made again goes on after the key that was passed on last.
    """

    per_output = 0
    takes_losses = True
    orders_shards = True

    def __init__(self, window: int, key: Key, epoch: int) -> None:
        self.window = window
        self.hoards = f"shuffle(window={window})"
        self._of = (key.seed, epoch, key.op)
        #: the block that is passed on; after other ranks' states were merged, there may be several
        self._blocks: deque[_Block] = deque()

    @cached_property
    def _key(self) -> int:
        return derive("window", *self._of)

    @property
    def kept(self) -> int:
        return sum(len(block.left) for block in self._blocks)

    def step(self, inputs: Sequence[Input], most: int) -> tuple[list[Any], Sequence[Place]]:
        (source,) = inputs
        out: list[tuple[Any, Place]] = []
        if not self._blocks and source.has_items(self.window):
            out = self._begin(*source.take_items(self.window), source)
        while self._blocks and len(out) < most:
            block = self._blocks[0]
            if block.left:
                block.last, sample, place = block.left.pop()
                out.append((sample, place))
            if not block.left:
                self._blocks.popleft()
        self.ended = not self._blocks and source.ended and not source.items
        return [sample for sample, _ in out], [place for _, place in out]

    def _begin(self, items: list[Any], places: Sequence[Place], source: Input) -> list[tuple[Any, Place]]:
        """Put a block in order. Returns what passes at once: losses that stand for an unknown number of samples.

        Nor has a block a turn for anything if all of it is lost.
        """
        if all(type(one) is Absent for one in items):
            return list(zip(items, places, strict=True))
        at_once = [
            number for number, one in enumerate(items) if type(one) is Absent and _covers(one.loss, source.depth)
        ]
        out = [(items[number], places[number]) for number in at_once]
        if at_once:
            gone = set(at_once)
            items = [one for number, one in enumerate(items) if number not in gone]
            places = [one for number, one in enumerate(places) if number not in gone]
        if items:
            block = _Block(_Members(list(places), source.depth, source.ordered))
            self._put(block, items, list(places))
            self._blocks.append(block)
        return out

    def _put(self, block: _Block, items: list[Any], places: list[Place]) -> None:
        turns = self._turns(places)
        block.left = sorted(zip(turns, items, places, strict=True), key=lambda one: one[0], reverse=True)

    def _turns(self, places: Sequence[Place]) -> list[Turn]:
        """What puts samples into their order, for each of `places`."""
        counters = [counter(place) for place in places]
        roots = np.array([position for position, _ in counters], dtype=np.int64)
        ways = np.array([way & 0x7FFFFFFFFFFFFFFF for _, way in counters], dtype=np.int64)
        if ways.any():
            # One by one: what else is in the block has no say in the turn of a sample.
            roots = np.where(ways != 0, roots ^ hashed(ways, self._key >> 1).astype(np.int64), roots)
        keys = hashed(roots, self._key)
        return [(int(key), *one) for key, one in zip(keys.tolist(), counters, strict=True)]

    def large_state(self, groups: Sequence[int]) -> str:
        if not all(groups):
            return f"a state names each sample in the {self.window} groups of a block: up to about {_NAMED} bytes"
        count = self.window * math.prod(groups)
        size = f"up to about {max(1, round(count * _NAMED / 1000))} KB"
        return f"a state names the {count:,} samples in the {self.window} groups of a block: {size}"

    def shard_order(self, count: int) -> list[int]:
        order: list[int] = permute(np.arange(count), count, derive("shards", *self._of)).tolist()
        return order

    def needs(self, inputs: Sequence[Input]) -> int:
        return max(1, self.window - inputs[0].items)

    # ------------------------------------------------------------------ being resumed

    def save(self) -> Any:
        return tuple((block.members, block.last) for block in self._blocks)

    @staticmethod
    def plain(saved: Any, owed: int) -> Any:
        return [members.plain | ({} if last is None else {"key": list(last)}) for members, last in saved]

    def held(self, saved: Any, inputs: Sequence[Input]) -> Sequence[Ingredient]:
        (source,) = inputs
        wanted: list[Ingredient] = []
        for one in saved or ():
            members = _Members.read(one, source.depth, source.ordered)
            self._blocks.append(_Block(members, _turn(one["key"]) if "key" in one else None))
        for block in self._blocks:
            spans, last = block.members.spans, block.last
            if not source.depth and last is not None:
                # Without an op that makes several of one, it is known who has had a turn: that is not made again.
                turns = self._turns([span.place for span in spans])
                spans = [span for span, turn in zip(spans, turns, strict=True) if turn > last]
            block.wanted = len(spans)
            wanted += spans
        return wanted

    def restore(self, saved: Any, held: Sequence[Redone]) -> None:
        redone = iter(held)
        for block in self._blocks:
            parts = [next(redone) for _ in range(block.wanted)]
            found = [one for part in parts for one in part.found]
            for part in parts:
                # One that stands for an unknown number of samples has no turn, and is reported at once.
                own = [loss for loss in part.losses if not block.members.covers(loss)]
                found += [(Absent(loss), loss.place) for loss in own]
                part.losses = [loss for loss in part.losses if block.members.covers(loss)]
            self._put(block, [sample for sample, _ in found], [place for _, place in found])
            last = block.last
            if last is not None:
                block.left = [one for one in block.left if one[0] > last]

    def merged(self, saved: Sequence[Any], rank: int, world: int) -> Any:
        return [block for one in saved for block in one or ()][rank::world]


#: a hash of a place, and the place itself as two numbers
Turn = tuple[int, int, int]


def _turn(saved: Any) -> Turn:
    one, other, third = saved
    return int(one), int(other), int(third)


def _steps(saved: Any) -> tuple[int, ...]:
    """Sub-indices as they were saved."""
    return tuple(saved_number(step, "shuffle(window=)") for step in saved)


def _from(place: Place) -> tuple[Any, ...]:
    """The parts and passes that a sample comes from, and its place there: samples that belong together are near.

    >>> from penstock.provenance import Part, Passed
    >>> _from(7), _from(Part(Passed(7, 2), "a")), _from((Part(7, "a"), 1))
    (((), 7), (('a', '2'), 7), (('a',), 7, 1))
    """
    labels: list[str] = []
    steps: tuple[int, ...] = ()
    while not isinstance(place, int):
        if type(place) is Member:
            steps = steps if place.had_place else (place.number, *steps)
            place = place.place
            continue
        if type(place) is tuple:
            steps = (*place[1:], *steps)
        else:
            labels += map(str, place[1:])
        place = place[0]
    return tuple(labels), place, *steps


def _covers(loss: Any, depth: int) -> bool:
    """Whether a loss stands for an unknown number of samples, or its place is no recipe: then it has no turn."""
    return bool(loss.hard or loss.told or loss.steps < depth)


class _Members:
    """Which samples a block has, named by the inputs that they were made of. It holds none of them."""

    def __init__(self, places: list[Place], depth: int, ordered: bool) -> None:
        self._places = places
        self._depth = depth
        self._ordered = ordered

    @cached_property
    def spans(self) -> list[Ingredient]:
        """The inputs, each with the first and the last of its samples that are in the block."""
        if not self._depth:
            return [Ingredient(place, whole_input=True) for place in self._places]
        spans: list[Ingredient] = []
        for place in self._places:
            of, steps = input_of(place, self._depth), steps_from(place, self._depth)
            if spans and key_of(spans[-1].place) == key_of(of):
                spans[-1] = spans[-1]._replace(last=steps)
            else:
                spans.append(Ingredient(of, first=steps, last=steps, whole_input=True))
        if not self._ordered:
            return spans
        # Between its ends, a block has all that was made of an input.
        end = len(spans) - 1
        return [
            span._replace(first=span.first if number == 0 else None, last=span.last if number == end else None)
            for number, span in enumerate(spans)
        ]

    def covers(self, loss: Any) -> bool:
        """Whether a loss has no turn of its own."""
        return _covers(loss, self._depth)

    @cached_property
    def plain(self) -> dict[str, Any]:
        """As plain data, made once."""
        spans = self.spans
        if all(single(span.place) for span in spans):
            # A block is a set: the parts of a mix one after the other, each in runs.
            spans = sorted(spans, key=lambda span: _from(span.place))
        return {
            "of": plain_places([span.place for span in spans]),
            "first": {str(number): list(span.first) for number, span in enumerate(spans) if span.first},
            "last": {str(number): list(span.last) for number, span in enumerate(spans) if span.last},
        }

    @staticmethod
    def read(saved: Any, depth: int, ordered: bool) -> _Members:
        """What `plain` wrote."""
        members = _Members([], depth, ordered)
        first = {int(number): _steps(steps) for number, steps in saved["first"].items()}
        last = {int(number): _steps(steps) for number, steps in saved["last"].items()}
        members.spans = [
            Ingredient(place, first=first.get(number), last=last.get(number), whole_input=True)
            for number, place in enumerate(places_from(saved["of"]))
        ]
        return members


class _Block:
    """A block that is being passed on."""

    def __init__(self, members: _Members, last: Turn | None = None) -> None:
        self.members = members
        #: what has not been passed on, in reverse order, and the key of what was passed on last
        self.left: list[tuple[Turn, Any, Place]] = []
        self.last = last
        #: how many inputs are made again
        self.wanted = 0
