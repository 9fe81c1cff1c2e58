"""mix: several pipelines as one, in given proportions."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from heapq import heappop, heappush
from numbers import Number
from typing import Any, ClassVar

from penstock.checks import saved_number
from penstock.errors import PlanError
from penstock.ops.joint import LOST, Ingredient, Input, Joint, Length, Memo
from penstock.ops.op import Key, joint_of
from penstock.provenance import Part, Passed, Place
from penstock.randomness import derive
from penstock.sources.source import Composite, Flow
from penstock.turns import Shares, whole_weights

#: passes after a component's first are epochs from here on, below twice this: far from those that a loader
#: counts, and small enough for whatever multiplies them
_PASSES = 1 << 21
#: more components than this are not named in the label
_FEW = 4


class MixSource(Composite):
    """Samples of several pipelines, drawn in the proportions of their weights.

    After any number of draws, each component has given its share of them, rounded down or up. Within
    that bound the order is random, by the loader's seed and the epoch (see `penstock.turns`). A fixed order
    would be simpler, but has a period: of ``a b a b``, every second sample is one component's, and so
    would be all that one of two ranks gets.
    """

    verb = "mix"
    random = True

    def __init__(self, components: Any, stop: str) -> None:
        if stop not in tuple(_JOINTS):
            raise PlanError(f"mix(stop=) is 'first', 'all' or 'cycle', got {stop!r}")
        named = _named(components)
        if not named:
            raise PlanError('mix() needs at least one pipeline: mix({"a": p, "b": q})')
        self.stop = stop
        self.parts = tuple((name, _flow(name, one)) for name, one in named)
        self.weights = tuple(_weight(name, one) for name, one in named)
        if stop == "cycle":
            for name, flow in self.parts:
                _refuse_carrying(name, flow)

    @property
    def label(self) -> str:
        if len(self.parts) > _FEW:
            return f"mix of {len(self.parts)}"
        shares = (f"{float(weight / sum(self.weights)):.3g}" for weight in self.weights)
        return f"mix({', '.join(f'{name} {share}' for (name, _), share in zip(self.parts, shares, strict=True))})"

    def joint(self, key: Key, epoch: int, memo: dict[str, Any]) -> Joint:
        # Not by the composite's key: that depends on how many stages there are.
        mixing = derive("mix", key.seed, epoch)

        names = [name for name, _ in self.parts]
        joint = _JOINTS[self.stop](Shares(names, self.weights, mixing), epoch, memo)
        joint.nested = _nested(self)
        return joint

    def memo(self) -> Memo:
        return _Counted(samples=dict.fromkeys((name for name, _ in self.parts), 0))

    def combined_length(self, lengths: Sequence[Length]) -> Length:
        if self.stop == "cycle" and 0 in lengths:
            raise _empty(self.parts[lengths.index(0)][0])
        if self.stop == "first" and 0 in lengths:
            return 0
        if self.stop != "first" and math.inf in lengths:
            return math.inf
        known = [length for length in lengths if length is not None]
        if len(known) < len(lengths):
            return None
        if self.stop == "all":
            return sum(known)
        weights = whole_weights(self.weights)
        total = sum(weights)
        finite = [(int(n) * total, weight) for n, weight in zip(known, weights, strict=True) if n != math.inf]
        if self.stop == "cycle":
            return max(-(-n // weight) for n, weight in finite)
        return min((n // weight for n, weight in finite), default=math.inf)


# ---------------------------------------------------------------------- what the user gives


def _named(components: Any) -> list[tuple[str, Any]]:
    if isinstance(components, Mapping):
        for name in components:
            if not isinstance(name, str) or not name:
                raise PlanError(f"mix() takes names as strings that are not empty, got {name!r}")
        return list(components.items())
    if isinstance(components, Iterable) and not isinstance(components, (str, bytes)) and not _is_flow(components):
        return [(str(number), one) for number, one in enumerate(components)]
    raise PlanError(
        f"mix() takes a dict of pipelines, or a list, got {type(components).__name__}; "
        'write mix({"a": (p, 0.7), "b": (q, 0.3)})'
    )


def _is_flow(value: Any) -> bool:
    return hasattr(value, "source") and hasattr(value, "ops")


def _flow(name: str, one: Any) -> Flow:
    flow = one[0] if isinstance(one, (tuple, list)) and len(one) == 2 else one
    if not _is_flow(flow):
        raise PlanError(
            f"mix(): component {name!r} must be a pipeline or (pipeline, weight), got {_described(one)}; "
            "make a pipeline with from_sequence() or from_iterable()"
        )
    return flow  # type: ignore[no-any-return]


def _described(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}: {', '.join(type(one).__name__ for one in value[:3])}"
    return type(value).__name__


def _weight(name: str, one: Any) -> Fraction:
    """The weight as it was written: 0.7 is seven tenths, not the nearest number that a float can be."""
    weight = 1 if _is_flow(one) else one[1]
    exact = Fraction(0)
    if not isinstance(weight, bool) and isinstance(weight, Number):
        try:
            exact = Fraction(str(weight))
        except ValueError:  # not finite, or complex
            exact = Fraction(0)
    if exact <= 0:
        raise PlanError(
            f"mix(): the weight of {name!r} must be a positive number, got {weight!r}; "
            "a component that is not wanted is left out"
        )
    return exact


def _refuse_carrying(name: str, flow: Flow) -> None:
    """An op that goes on from epoch to epoch has no place in a component that is begun again out of turn."""
    for op in flow.ops:
        joint = joint_of(op)
        if joint is not None and joint.carries:
            raise PlanError(
                f"mix(stop='cycle') begins component {name!r} again by itself, but {op.label} in it counts on "
                f"every epoch being read once; put {op.label} behind the mix"
            )
    if isinstance(flow.source, Composite):
        for _, part in flow.source.parts:
            _refuse_carrying(name, part)


def _empty(name: str) -> PlanError:
    return PlanError(
        f"mix(stop='cycle'): component {name!r} has no samples, so it cannot be begun again; leave it out, or "
        "use stop='all', which goes on without it"
    )


# ---------------------------------------------------------------------- what draws


class _Counted(Memo):
    """How many samples each component has given in all epochs."""

    def stats(self) -> dict[str, float]:
        return {f"{name}.samples": count for name, count in self["samples"].items()}


class _Mixed(Joint):
    """Draws from its inputs in turn. When it ends, and what becomes of an input that has, is for its heirs."""

    #: how many levels of other mixes are in its components
    nested = 0

    def __init__(self, draws: Shares, epoch: int, memo: dict[str, Any]) -> None:
        self.draws = draws
        self.epoch = epoch
        self.waits: list[int] = []
        #: the inputs that the samples of the last step came from
        self._chosen: list[int] = []
        #: over all epochs, for the stats
        self.counts: dict[str, int] = memo.setdefault("samples", dict.fromkeys(draws.names, 0))

    def step(self, inputs: Sequence[Input], most: int) -> tuple[list[Any], Sequence[Place]]:
        draws = self.draws
        self.waits = []
        chosen: list[int] = []
        while not chosen and not self.ended and not self.waits:
            room = self._room(inputs)
            if room <= 0:
                continue
            chosen = draws.draw(min(most, room), lambda number: inputs[number].count)
            if not chosen:
                number = draws.peek()
                if inputs[number].ended and not inputs[number].items:
                    self._ran_out(number, inputs[number])
                else:
                    self.waits = [number]  # for more, or for what was lost behind its last sample to pass
        self._chosen = chosen
        return self._taken(inputs, chosen)

    def _taken(self, inputs: Sequence[Input], chosen: list[int]) -> tuple[list[Any], Sequence[Place]]:
        """The samples of the inputs that were chosen, in that order."""
        taken = {}
        for number, count in Counter(chosen).items():
            samples, places = inputs[number].take(count)
            named = [self.passed_on(place, number, inputs[number].epoch) for place in places]
            taken[number] = zip(samples, named, strict=True)
            self.counts[self.draws.names[number]] += count
        out = [next(taken[number]) for number in chosen]
        return [sample for sample, _ in out], [place for _, place in out]

    def output_of(self, number: int, taken: int, outputs: int) -> int:
        seen = -1
        for output, chosen in enumerate(self._chosen):
            seen += chosen == number
            if seen == taken:
                return output
        return outputs

    def passed_on(self, place: Place, number: int, epoch: int) -> Place:
        return Part(place, self.draws.names[number])

    def ingredients(self, place: Place) -> Sequence[Ingredient]:
        names = list(self.draws.names)
        # Of a component that is gone nothing can be made any more.
        return (Ingredient(place.place, names.index(place.name)),) if place.name in names else ()

    def remake(self, place: Place, samples: Sequence[Any]) -> Any:
        return samples[0] if samples else LOST

    def drained(self, inputs: Sequence[Input]) -> Sequence[int]:
        return ()

    def lacking(self, inputs: Sequence[Input]) -> Sequence[int]:
        return self.waits

    def next_taken(self, lacking: Sequence[int]) -> Sequence[int]:
        # Others are waited for only to know whether they have ended.
        return [] if self.ended else [number for number in lacking if number == self.draws.peek()]

    def save(self) -> Any:
        return self.draws.save()

    def restore(self, saved: Any, held: Any) -> None:
        self.draws.restore(saved, self.draws.running)

    def _room(self, inputs: Sequence[Input]) -> int:
        """How many draws are certain to come. Without one it has ended, or `waits` says what to know first."""
        return sys.maxsize

    def _ran_out(self, number: int, one: Input) -> None:
        """An input whose turn it is has ended."""
        self.ended = True

    def _arrived(self, number: int, one: Input) -> int:
        """How many samples an input has brought since the proportions count."""
        return self.draws.share(number)[0] + one.count


class _First(_Mixed):
    """Ends when a component has less left than its share of the draws up to the next.

    So the number of draws depends on the lengths alone, not on the order, which is random.
    """

    def __init__(self, draws: Shares, epoch: int, memo: dict[str, Any]) -> None:
        super().__init__(draws, epoch, memo)
        #: up to which draw the samples that have arrived are enough, for each component: a heap
        self.enough = [(0, number) for number in draws.running]

    def restore(self, saved: Any, held: Any) -> None:
        super().restore(saved, held)
        self.enough = [(0, number) for number in self.draws.running]

    def _room(self, inputs: Sequence[Input]) -> int:
        count = self.draws.turns.count
        short: list[int] = []
        while self.enough and self.enough[0][0] <= count:
            number = heappop(self.enough)[1]
            _, weight, total = self.draws.share(number)
            enough = self._arrived(number, inputs[number]) * total // weight
            if enough > count:
                heappush(self.enough, (enough, number))
            else:
                short.append(number)
        if not short:
            return self.enough[0][0] - count
        for number in short:
            heappush(self.enough, (0, number))
        # The first decides: should one have ended and another have failed, it must not matter who was heard of.
        self.waits = [min(short)]
        self.ended = inputs[min(short)].ended
        return 0

    def drained(self, inputs: Sequence[Input]) -> Sequence[int]:
        # The one that has ended it. And the next to be drawn from, if that comes first: while it was waited for,
        # what was lost there has passed, and so it must where nobody had to wait.
        (last,) = self.waits
        return sorted({last, min(last, self.draws.peek())})


class _All(_Mixed):
    """Goes on with the others when a component has ended, in their proportions."""

    def _ran_out(self, number: int, one: Input) -> None:
        self.draws.begin(other for other in self.draws.running if other != number)
        self.ended = not self.draws.running

    def drained(self, inputs: Sequence[Input]) -> Sequence[int]:
        return Joint.drained(self, inputs)

    def save(self) -> Any:
        running = {self.draws.names[number] for number in self.draws.running}
        return {**super().save(), "ended": [name for name in self.draws.names if name not in running]}

    def restore(self, saved: Any, held: Any) -> None:
        ended = set(saved["ended"])
        names = self.draws.names
        self.draws.restore(saved, [number for number, name in enumerate(names) if name not in ended])
        self.ended = not self.draws.running


class _Cycle(_Mixed):
    """Begins a component again that has ended, until all have been run through once.

    Precisely: until the share of the draws of each is at least what it had in its first pass. So this number
    of draws, too, depends on the lengths alone.
    """

    opens_inputs: ClassVar[bool] = True

    def __init__(self, draws: Shares, epoch: int, memo: dict[str, Any]) -> None:
        super().__init__(draws, epoch, memo)
        everyone = draws.running
        self.passes = dict.fromkeys(everyone, 0)
        #: samples drawn in the pass that runs
        self.seen = dict.fromkeys(everyone, 0)
        #: components that may not have been run through yet, and the sizes of their first passes if known
        self.unfinished = list(everyone)
        self.sizes: dict[int, int] = {}
        #: some first pass is known to last up to this draw
        self.until = 0

    def step(self, inputs: Sequence[Input], most: int) -> tuple[list[Any], Sequence[Place]]:
        for one in inputs:
            if one.epoch < 0:
                one.renew(self.epoch)
        return super().step(inputs, most)

    def _taken(self, inputs: Sequence[Input], chosen: list[int]) -> tuple[list[Any], Sequence[Place]]:
        for number in chosen:
            self.seen[number] += 1
        return super()._taken(inputs, chosen)

    def passed_on(self, place: Place, number: int, epoch: int) -> Place:
        return Part(Passed(place, epoch), self.draws.names[number])

    def ingredients(self, place: Place) -> Sequence[Ingredient]:
        found = super().ingredients(place)
        return [Ingredient(one.place.place, one.input, one.place.number) for one in found]

    def _room(self, inputs: Sequence[Input]) -> int:
        count = self.draws.turns.count
        if count < self.until:
            return self.until - count
        for number in list(self.unfinished):
            one, size = inputs[number], self.sizes.get(number)
            _, weight, total = self.draws.share(number)
            self.until = -(-(self._arrived(number, one) if size is None else size) * total // weight)
            if count < self.until:
                return self.until - count
            if size is None and not one.ended:
                # One after the other: should another have failed, it must not matter when that was heard of.
                self.waits = [number]
                return 0
            if not self.passes[number] and not self.seen[number]:
                raise _empty(self.draws.names[number])
            self.unfinished.remove(number)
        # After a resume, what was lost behind the last sample of a first pass may still be on its way.
        self.waits = [number for number in self._once() if not inputs[number].ended]
        self.ended = not self.waits
        return 0

    def _once(self) -> list[int]:
        """The components of which one pass was enough."""
        return [number for number, passes in self.passes.items() if not passes]

    def drained(self, inputs: Sequence[Input]) -> Sequence[int]:
        return self._once()

    def _ran_out(self, number: int, one: Input) -> None:
        if not self.seen[number]:
            raise _empty(self.draws.names[number])
        if not self.passes[number]:
            self.sizes[number] = self.draws.share(number)[0]
        self.passes[number] += 1
        self.seen[number] = 0
        one.renew(_epoch_of_pass(self.epoch, self.passes[number], self.nested))

    def save(self) -> Any:
        names = self.draws.names
        return {
            **super().save(),
            "passes": {names[number]: count for number, count in self.passes.items()},
            "seen": {names[number]: count for number, count in self.seen.items()},
            "sizes": {names[number]: size for number, size in self.sizes.items()},
            "unfinished": [names[number] for number in self.unfinished],
        }

    def restore(self, saved: Any, held: Any) -> None:
        for counts in (saved["passes"], saved["seen"], saved["sizes"]):
            for count in counts.values():
                saved_number(count, "mix()")
        same = self.draws.restore(saved, self.draws.running)
        finished = set(saved["passes"]).difference(saved["unfinished"])
        if not same:
            # The sizes were counted in other proportions; and who has been run through, has been.
            finished.update(saved["sizes"])
        for number, name in enumerate(self.draws.names):
            self.passes[number] = saved["passes"].get(name, 0)
            self.seen[number] = saved["seen"].get(name, 0)
            if same and name in saved["sizes"]:
                self.sizes[number] = saved["sizes"][name]
        self.unfinished = [number for number, name in enumerate(self.draws.names) if name not in finished]


_JOINTS: dict[str, Callable[[Shares, int, dict[str, Any]], _Mixed]] = {
    "first": _First,
    "all": _All,
    "cycle": _Cycle,
}


def _nested(source: Composite) -> int:
    """How many levels of mixes there are in the parts of `source`."""
    inner = [flow.source for _, flow in source.parts if isinstance(flow.source, Composite)]
    return max((_nested(one) + isinstance(one, MixSource) for one in inner), default=0)


def _epoch_of_pass(epoch: int, number: int, nested: int) -> int:
    """The epoch that a component's pass counts as, where `epoch` is that of the mix: the same for its first.

    A mix and one that is nested in it begin at different numbers. Otherwise the second pass of the outer mix
    would be the same epoch of a component as the second pass of the inner one.

    >>> _epoch_of_pass(3, 0, 0), _epoch_of_pass(3, 1, 0) == _epoch_of_pass(3, 1, 1)
    (3, False)
    """
    if number == 0:
        return epoch
    first = derive("pass", epoch, nested) if nested else derive("pass", epoch)
    return _PASSES + (first + number) % _PASSES
