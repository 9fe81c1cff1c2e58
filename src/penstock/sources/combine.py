"""zip and concat: several pipelines as one source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.errors import PlanError
from penstock.ops.op import Input, Joint, Key, Length
from penstock.provenance import Place
from penstock.sources.source import Composite, Flow

__all__ = ["ConcatSource", "ZipSource"]


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
        return _InTurn()

    def combined_length(self, lengths: Sequence[Length]) -> Length:
        return None if None in lengths else sum(length for length in lengths if length is not None)


class _Together(Joint):
    def __init__(self) -> None:
        #: how many have been passed on, which is also the place of the next
        self.next = 0

    def step(self, inputs: Sequence[Input], most: int) -> tuple[list[Any], Sequence[Place]]:
        count = min(most, *(one.count for one in inputs)) if len(inputs) > 1 else min(most, inputs[0].count)
        columns = [one.take(count)[0] for one in inputs]
        self.next += count
        # The first part without a sample decides: should one have ended and another have failed, it must not
        # matter who was heard of first.
        self.ended = next((one.ended for one in inputs if not one.count), False)
        return list(zip(*columns, strict=True)), range(self.next - count, self.next)

    def lacking(self, inputs: Sequence[Input]) -> Sequence[int]:
        return [number for number, one in enumerate(inputs) if not one.count][:1]

    def save(self) -> Any:
        return {"next": self.next}

    def restore(self, saved: Any) -> None:
        self.next = saved["next"]


class _InTurn(Joint):
    def __init__(self) -> None:
        self.current = 0
        self.next = 0

    def step(self, inputs: Sequence[Input], most: int) -> tuple[list[Any], Sequence[Place]]:
        while self.current < len(inputs):
            one = inputs[self.current]
            samples, _ = one.take(most)
            if one.ended and not one.count:
                self.current += 1
            if samples:
                self.next += len(samples)
                self.ended = self.current == len(inputs)
                return samples, range(self.next - len(samples), self.next)
            if not one.ended:
                return [], []
        self.ended = True
        return [], []

    def lacking(self, inputs: Sequence[Input]) -> Sequence[int]:
        return [self.current] if self.current < len(inputs) else []

    def save(self) -> Any:
        return {"next": self.next, "current": self.current}

    def restore(self, saved: Any) -> None:
        self.next = saved["next"]
        self.current = saved["current"]
