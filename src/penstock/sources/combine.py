"""zip and concat: several pipelines as one source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.checks import saved_number
from penstock.errors import PlanError
from penstock.ops.joint import LOST, Ingredient, Input, Joint, Length
from penstock.ops.op import Key
from penstock.provenance import Part, Place, Row
from penstock.sources.source import Composite, Flow


class _Parts(Composite):
    def __init__(self, flows: Sequence[Flow]) -> None:
        if not flows:
            raise PlanError(f"{self.verb}() needs at least one pipeline")
        for flow in flows:
            if not hasattr(flow, "source") or not hasattr(flow, "ops"):
                raise PlanError(
                    f"{self.verb}() takes pipelines, got {type(flow).__name__}; "
                    "make one with from_sequence() or from_iterable()"
                )
        self.parts = tuple((str(number), flow) for number, flow in enumerate(flows))

    @property
    def label(self) -> str:
        return f"{self.verb} of {len(self.parts)}"


class ZipSource(_Parts):
    """Tuples of one sample of each pipeline; ends with the shortest."""

    verb = "zip"

    def joint(self, key: Key, epoch: int, memo: dict[str, Any]) -> Joint:
        return _Together()

    def combined_length(self, lengths: Sequence[Length]) -> Length:
        if 0 in lengths:
            return 0
        return None if None in lengths else min(length for length in lengths if length is not None)


class ConcatSource(_Parts):
    """One pipeline after the other."""

    verb = "concat"

    def joint(self, key: Key, epoch: int, memo: dict[str, Any]) -> Joint:
        return _InTurn([name for name, _ in self.parts])

    def combined_length(self, lengths: Sequence[Length]) -> Length:
        return None if None in lengths else sum(length for length in lengths if length is not None)


class _Together(Joint):
    groups = True

    def step(self, inputs: Sequence[Input], most: int) -> tuple[list[Any], Sequence[Place]]:
        if self.ended:
            return [], []
        count = min(most, *(one.count for one in inputs)) if len(inputs) > 1 else min(most, inputs[0].count)
        columns, places = zip(*(one.take(count) for one in inputs), strict=True)
        # The first part without a sample decides: should one have ended and another have failed, it must not
        # matter who was heard of first.
        self.ended = self.ended or next((one.ended for one in inputs if not one.count), False)
        return list(zip(*columns, strict=True)), list(map(Row, zip(*places, strict=True)))

    def lacking(self, inputs: Sequence[Input]) -> Sequence[int]:
        return [number for number, one in enumerate(inputs) if not one.count][:1]

    def drained(self, inputs: Sequence[Input]) -> Sequence[int]:
        # A row is filled from the first part on. The parts before the one that has ended had their samples for it,
        # so what was lost before these is told, whether it came before it was known that there is no row, or after.
        return range(min(self.lacking(inputs), default=-1) + 1)

    # It ends before its longer inputs do, and must not begin again when it is resumed.
    def save(self) -> Any:
        return self.ended

    def restore(self, saved: Any, held: Any) -> None:
        self.ended = bool(saved)

    def ingredients(self, place: Place) -> Sequence[Ingredient]:
        return [Ingredient(one, number) for number, one in enumerate(place.places)]

    def remake(self, place: Place, samples: Sequence[Any]) -> Any:
        return LOST if any(sample is LOST for sample in samples) else tuple(samples)


class _InTurn(Joint):
    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.current = 0

    def step(self, inputs: Sequence[Input], most: int) -> tuple[list[Any], Sequence[Place]]:
        while self.current < len(inputs):
            one = inputs[self.current]
            samples, places = one.take(most)
            if samples:
                return samples, [Part(place, self.names[self.current]) for place in places]
            if not one.ended or one.items:
                return [], []  # what was lost behind its last sample passes first
            self.current += 1
        self.ended = True
        return [], []

    def lacking(self, inputs: Sequence[Input]) -> Sequence[int]:
        return [self.current] if self.current < len(inputs) else []

    def drained(self, inputs: Sequence[Input]) -> Sequence[int]:
        return ()

    def save(self) -> Any:
        return self.current

    def restore(self, saved: Any, held: Any) -> None:
        self.current = saved_number(saved, "concat()")

    def passed_on(self, place: Place, number: int, epoch: int) -> Place:
        return Part(place, self.names[number])

    def ingredients(self, place: Place) -> Sequence[Ingredient]:
        return (Ingredient(place.place, self.names.index(place.name)),)
