"""batch: many samples become one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from penstock.errors import PlanError, RaggedBatch
from penstock.ops.functions import check_function, function_name, where
from penstock.ops.joint import LOST, Ingredient, Input, Joint, Length
from penstock.ops.op import Effect, Key, Op, member_name
from penstock.ops.op import In as Sample
from penstock.provenance import Place
from penstock.trees import stacked


@dataclass(frozen=True)
class Batch(Op[Sample, Any]):
    """Put `size` consecutive samples together into one batch.

    Numbers, arrays and lists of numbers are stacked into one array (dtypes are kept, Python ints give
    int64), torch tensors into one tensor; strings, bytes and other objects go into a list; dicts, tuples,
    named tuples and dataclasses are batched field by field. The last batch of an epoch may be
    short: ``drop_last=True`` leaves it out, ``drop_last="raise"`` makes it an error.

    Samples of unequal shape are an error that names the field and the sample, and so is a None among
    numbers. ``pad=0`` pads
    them to the largest of the batch; in a dict, ``"x"`` gets ``"x_length"`` beside it, and
    ``pad={"x": 0}`` pads that field only. ``collate=fn`` makes the batch from the list of samples instead.

    >>> import penstock as ps
    >>> [batch.tolist() for batch in ps.from_sequence(range(5)).batch(2)]
    [[0, 1], [2, 3], [4]]
    """

    size: int
    _: KW_ONLY
    drop_last: bool | Literal["raise"] = False
    pad: Any = None
    collate: Callable[[list[Any]], Any] | None = None

    verb = "batch"
    effect: ClassVar[Effect] = Effect.REGROUPS

    def __post_init__(self) -> None:
        if isinstance(self.size, bool) or not isinstance(self.size, (int, np.integer)):
            raise PlanError(f"batch size must be a number, got {self.size!r}")
        if self.size < 1:
            raise PlanError(
                f"batch size must be at least 1, got {self.size}; to pass samples one by one, leave batch() out"
            )
        object.__setattr__(self, "size", int(self.size))
        if self.drop_last not in (True, False, "raise"):
            raise PlanError(f'batch(drop_last=) is True, False or "raise", got {self.drop_last!r}')
        if self.collate is not None:
            check_function(self.collate, "batch(collate=)")
            if self.pad is not None:
                raise PlanError("batch: collate= makes the whole batch, so pad= has no effect; leave one out")

    @property
    def label(self) -> str:
        rest = {True: ", drop_last", "raise": ", drop_last='raise'"}.get(self.drop_last, "")
        rest += f", pad={self.pad}" if self.pad is not None else ""
        rest += f", collate={function_name(self.collate)}" if self.collate is not None else ""
        return f"batch({self.size}{rest})"

    @property
    def where(self) -> str:
        return where(self.collate) if self.collate is not None else ""

    @property
    def calls_user(self) -> bool:  # type: ignore[override]
        return self.collate is not None

    def run(self, samples: list[Any], info: Any) -> Sequence[Any]:
        """Each of `samples` is the list of one group; the places are those of their samples."""
        describe, pad = member_name(info), self.pad
        batches: list[Any] = info.each(self.collate or (lambda group: stacked(group, describe, pad)), samples)
        return batches

    def joint(self, key: Key, epoch: int, memo: dict[str, Any]) -> Joint:
        return Cut(self.size, self.drop_last, one_read=self.collate is None and self.pad is None)

    def length(self, n: Length) -> Length:
        if not isinstance(n, int):
            return n
        return n // self.size if self.drop_last else -(-n // self.size)


def too_few(count: int, size: int) -> RaggedBatch:
    """The error for a last batch that is short and must not be."""
    return RaggedBatch(
        f"the last batch of the epoch has {count} of {size} samples; use drop_last=False to take it as it is, or "
        "drop_last=True to leave it out"
    )


class Cut(Joint):
    """Cuts samples into groups in the order of delivery."""

    groups = True

    def __init__(self, size: int, drop_last: bool | Literal["raise"], one_read: bool = False) -> None:
        self.size = self.per_output = self.group_size = self.largest_group = size
        self.drop_last = drop_last
        self.one_read = one_read

    def keeps_group(self, count: int) -> bool:
        if count < self.size and self.drop_last == "raise":
            raise too_few(count, self.size)
        return count == self.size or not self.drop_last

    def step(self, inputs: Sequence[Input], most: int) -> tuple[list[Any], Sequence[Place]]:
        (source,) = inputs
        size = self.size
        samples, places = source.take(size * min(most, source.count // size))
        starts = range(0, len(samples), size)
        groups = [samples[start : start + size] for start in starts]
        members: list[Place] = [places[start : start + size] for start in starts]
        if source.ended and source.count < size:
            if source.count and self.drop_last == "raise" and not groups:
                raise too_few(source.count, size)
            if source.count and not self.drop_last and len(groups) < most:
                group, last = source.take(size)
                groups.append(group)
                members.append(last)
            self.ended = self.drop_last is True or not source.count
        return groups, members

    def needs(self, inputs: Sequence[Input]) -> int:
        return self.size - inputs[0].count

    def merged(self, saved: Sequence[Any], rank: int, world: int) -> Any:
        return None  # what it has not cut is still in its input

    def ingredients(self, place: Place) -> Sequence[Ingredient]:
        return [Ingredient(one) for one in place]

    def remake(self, place: Place, samples: Sequence[Any]) -> Any:
        return [sample for sample in samples if sample is not LOST]
