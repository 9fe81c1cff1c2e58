"""bucket: batches of samples of about the same length."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from penstock.checks import whole_number
from penstock.errors import PlanError
from penstock.ops.fields import get_field
from penstock.ops.functions import as_function, function_name, is_async, where
from penstock.ops.joint import Joint, Length
from penstock.ops.op import Effect, In, Key, Op, member_name, unknown
from penstock.ops.residents import Group, Keeping, Measured, Measuring, Resident
from penstock.trees import stacked

#: more bounds than this are counted in a label, not listed
_SHOWN = 4


@dataclass(frozen=True)
class Bucket(Op[In, Any]):
    """Put samples of about the same length together into one batch, so that little is padded.

    ``by`` names the field whose length counts, or is a function from the sample to a number;
    ``bucket(len, ...)`` is for samples that have a length themselves. A sample that measures no
    more than ``bounds[i]``, and more than the bound before, belongs to bin i; longer ones to one
    more bin. A batch leaves as soon as its bin has ``size`` samples: one number, or one for each
    bin. At the end of the epoch the rests leave in the order of the bins, short as they are.

    ``budget`` bounds the padded batch: its rows times its longest never exceed it. A batch leaves
    when the next sample of its bin would be too much. A sample that is alone too much is an error.

    Batches are padded as by ``batch(pad=)``: in a dict, ``"x"`` gets ``"x_length"`` beside it.

    >>> import penstock as ps
    >>> words = ps.from_sequence([[1], [2, 2, 2], [3], [4, 4, 4, 4]])
    >>> for batch in words.bucket(len, [2], size=2):
    ...     print(batch.tolist())
    [[1], [3]]
    [[2, 2, 2, 0], [4, 4, 4, 4]]
    """

    by: str | int | Callable[[Any], Any]
    bounds: Sequence[float]
    _: KW_ONLY
    size: int | Sequence[int]
    budget: float | None = None
    pad: Any = 0

    verb = "bucket"
    effect: ClassVar[Effect] = Effect.REGROUPS

    def __post_init__(self) -> None:
        if isinstance(self.by, bool) or not (isinstance(self.by, (str, int)) or callable(self.by)):
            raise PlanError(f"bucket(by) takes the name of a field, or a function of the sample, got {self.by!r}")
        if callable(self.by) and is_async(self.by):
            raise PlanError(f"bucket(by={function_name(self.by)}) is an async def; measure in a map() before it")
        object.__setattr__(self, "bounds", _ascending(self.bounds))
        object.__setattr__(self, "size", _sizes(self.size, len(self.bounds) + 1))
        if self.budget is not None:
            object.__setattr__(self, "budget", _positive(self.budget))

    @property
    def label(self) -> str:
        bounds: Any = list(self.bounds) if len(self.bounds) <= _SHOWN else f"{len(self.bounds)} bounds"
        rest = "" if self.budget is None else f", budget={self.budget}"
        return f"bucket({_by(self.by)}, {bounds}, size={_shown(self.size)}{rest})"

    @property
    def preceded_by(self) -> tuple[Op[Any, Any], ...]:  # type: ignore[override]
        """What must stand right before it: its samples come measured."""
        return (_Measure(self.by, self.budget),)

    def run(self, samples: list[Any], info: Any) -> Sequence[Any]:
        """Each of `samples` is the list of one group; the places are those of their samples."""
        return list(info.each(partial(stacked, describe=member_name(info), pad=self.pad), samples))

    def joint(self, key: Key, epoch: int, memo: dict[str, Any]) -> Joint:
        sizes = [self.size] * (len(self.bounds) + 1) if isinstance(self.size, int) else list(self.size)
        return _Bins(self.bounds, sizes, self.budget, self.label)

    def length(self, n: Length) -> Length:
        return unknown(n)


@dataclass(frozen=True)
class _Measure(Measuring[In]):
    """Measures a sample by the length of a field, or by the user's function."""

    by: str | int | Callable[[Any], Any]
    budget: float | None

    verb = "bucket"

    @property
    def calls_user(self) -> bool:  # type: ignore[override]
        return callable(self.by)

    @property
    def title(self) -> str:
        return function_name(self.by) if callable(self.by) else "measure"

    @property
    def label(self) -> str:
        return f"bucket(by={_by(self.by)})"

    @property
    def where(self) -> str:
        return where(self.by) if callable(self.by) else ""

    def bind(self) -> Callable[[Any], Measured]:
        by, budget = self.by, self.budget
        own = as_function(by, self.label) if callable(by) else partial(_field_length, key=by)

        def measured(sample: Any) -> Measured:
            measure = own(sample)
            if type(measure) is not int:
                measure = _number(measure, self.label)
            if budget is not None and measure > budget:
                raise ValueError(
                    f"a sample that measures {measure} does not fit into budget={budget}, even alone; "
                    "allow more, or filter() or shorten such samples before bucket()"
                )
            return Measured(measure, sample)

        return measured


class _Bins(Keeping):
    """One open group in every bin."""

    def __init__(self, bounds: Sequence[float], sizes: list[int], budget: float | None, hoards: str) -> None:
        super().__init__(hoards)
        self.bounds = bounds
        self.sizes = sizes
        self.largest_group = max(sizes)
        self.budget = budget
        self.bins: list[list[Resident]] = [[] for _ in sizes]
        self.longest: list[Any] = [0] * len(sizes)
        self._full: list[Resident] = []

    def accept(self, one: Resident) -> None:
        number = bisect_left(self.bounds, one.measure)
        group = self.bins[number]
        longest = max(self.longest[number], one.measure) if group else one.measure
        if group and self.budget is not None and (len(group) + 1) * longest > self.budget:
            # A bin with a group in it is for two samples or more, so the new one does not fill it.
            self._full = group
            group, longest = [], one.measure
        group.append(one)
        if len(group) == self.sizes[number]:
            self._full = group
            group = []
        self.bins[number] = group
        self.longest[number] = longest

    def due(self) -> Group | None:
        group = self._full
        if not group:
            return None
        self._full = []
        return self._leaving(group)

    def rest(self) -> Group | None:
        for number, group in enumerate(self.bins):
            if group:
                self.bins[number] = []
                return self._leaving(group)
        return None

    def _leaving(self, group: list[Resident]) -> Group:
        for one in group:
            self.let_go(one.number)
        return [one.sample for one in group], [one.place for one in group]


# ---------------------------------------------------------------------- what the user may give


def _by(by: Any) -> str:
    return function_name(by) if callable(by) else repr(by)


def _shown(size: Any) -> str:
    return str(size if isinstance(size, int) else list(size))


def _field_length(sample: Any, key: Any) -> int:
    value = get_field(sample, key)
    try:
        return len(value)
    except TypeError:
        raise TypeError(
            f"bucket(by={key!r}): the field is {type(value).__name__}, which has no length; to go by its value, "
            f"use by=lambda sample: sample[{key!r}]"
        ) from None


def _number(value: Any, label: str) -> Any:
    """`value` as a plain number: of numpy, or a tensor with one item, too."""
    try:
        plain = value.item()
    except (AttributeError, ValueError, RuntimeError):
        plain = value
    if isinstance(plain, bool) or not isinstance(plain, (int, float)) or math.isnan(plain):
        raise TypeError(f"{label} must give a number, got {value!r}")
    return plain


def _ascending(bounds: Any) -> tuple[float, ...]:
    if isinstance(bounds, (str, bytes)) or not isinstance(bounds, (Sequence, np.ndarray)):
        raise PlanError(f"bucket(bounds) takes numbers in ascending order, such as [16, 64, 256], got {bounds!r}")
    plain = tuple(bound.item() if isinstance(bound, np.generic) else bound for bound in bounds)
    for bound in plain:
        if isinstance(bound, bool) or not isinstance(bound, (int, float)) or math.isnan(bound):
            raise PlanError(f"bucket(bounds) takes numbers in ascending order, got {bound!r} among them")
    for before, bound in pairwise(plain):
        if bound <= before:
            raise PlanError(f"bucket(bounds) must ascend, got {bound!r} after {before!r}; sort them, each once")
    return plain


def _sizes(size: Any, bins: int) -> int | tuple[int, ...]:
    if isinstance(size, (str, bytes)) or not isinstance(size, (Sequence, np.ndarray)) or np.ndim(size) == 0:
        return whole_number(size, "bucket(size=)", least=1)
    if len(size) != bins:
        raise PlanError(
            f"bucket(size=) has {len(size)} numbers for {bins} bins; {bins - 1} bounds make {bins} bins, the last "
            "for what is longer than all bounds"
        )
    return tuple(whole_number(one, "bucket(size=)", least=1) for one in size)


def _positive(budget: Any) -> float:
    plain: Any = budget.item() if isinstance(budget, np.generic) else budget
    if isinstance(plain, bool) or not isinstance(plain, (int, float)) or not plain > 0:
        raise PlanError(f"bucket(budget=) must be a positive number, got {budget!r}")
    return plain
