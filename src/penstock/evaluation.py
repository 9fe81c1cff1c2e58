"""evaluate: a function over all batches of a pipeline, in parallel, and its results as one.

What may be relied on: results are put together in the order of the batches, so that the outcome does not depend on
the number of workers. A sum of float numbers
is exact and then rounded once (``math.fsum``). A sum of float arrays
is a compensated one in float64 (Neumaier's). Sums of integers are exact for numbers, and have 64 bits for arrays.
In a mean each batch counts by its number of samples, so that a short last batch has its right share.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal

import numpy as np

from penstock.bar import Bar
from penstock.errors import PlanError
from penstock.ops.op import Effect
from penstock.pipeline import Pipeline
from penstock.plan.lengths import check_ends
from penstock.tensors import is_tensor, on_host
from penstock.trees import fields_of, rebuilt


def evaluate(
    pipeline: Pipeline[Any],
    fn: Callable[[Any], Any],
    reduce: Literal["mean", "concat", "sum"] = "mean",
    *,
    weight: Callable[[Any], float] | None = None,
    in_workers: bool = True,
    progress: bool = True,
    **loader_options: Any,
) -> Any:
    """``fn(batch)`` for every batch of one epoch, and the results as one: their mean, their sum, or all of them.

    ``fn`` returns a number, an array, or a tuple or dict (of tuples and dicts) of these; so does ``evaluate``.

    * ``"mean"``: `fn` returns means over its batch, such as a loss. Each batch counts by its number of samples.
    * ``"sum"``: `fn` returns sums or counts.
    * ``"concat"``: `fn` returns one row for each sample, such as predictions; they are joined in order.

    ``fn`` runs in the workers of the pipeline's last stage. ``in_workers=False`` calls it in this thread, while the
    workers prepare the next batches: for a model on an accelerator. ``weight(batch)`` says how much a batch counts
    in a mean; otherwise it is the number of samples, or 1 if the pipeline does not make batches. ``progress`` shows
    a bar on stderr if that is a terminal. ``loader_options`` are those of ``pipeline.loader()``.

    >>> import penstock as ps
    >>> data = ps.from_arrays(np.arange(10.0)).batch(4)
    >>> evaluate(data, lambda x: {"mean": x.mean(), "largest": x.max()})["mean"]
    4.5
    >>> evaluate(data, lambda x: x * 2, "concat").tolist()
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0, 18.0]
    """
    if reduce not in _REDUCTIONS:
        raise PlanError(f"evaluate: reduce is one of {', '.join(_REDUCTIONS)}, got {reduce!r}")
    check_ends(pipeline, "evaluate")
    weighed = _Weighed(
        fn, (weight or (_samples if _makes_batches(pipeline) else _one)) if reduce == "mean" else _one
    )
    run = pipeline.map(weighed) if in_workers else pipeline
    total = _Total(reduce)
    with run.loader(**{"epochs": 1, **loader_options}) as loader:
        batches: Iterable[Any] = _with_bar(loader) if progress else loader
        for batch in batches:
            total.add(*(batch if in_workers else weighed(batch)))
    if not total.count:
        raise ValueError(
            f"evaluate: {pipeline.source.label} delivered no batch, so there is nothing to put together"
        )
    return total.result()


# ---------------------------------------------------------------------- how much a batch counts


@dataclass(frozen=True)
class _Weighed:
    """The function, and how much its batch counts."""

    fn: Callable[[Any], Any]
    weight: Callable[[Any], float]

    @property
    def __wrapped__(self) -> Callable[[Any], Any]:
        """What messages name."""
        return self.fn

    def __call__(self, batch: Any) -> tuple[float, Any]:
        return self.weight(batch), self.fn(batch)


def _makes_batches(pipeline: Pipeline[Any]) -> bool:
    grouped = False
    for op in pipeline.ops:
        if op.effect is Effect.REGROUPS:
            grouped = True
        elif op.verb == "unbatch":
            grouped = False
    return grouped


def _one(batch: Any) -> float:
    return 1


def _samples(batch: Any) -> float:
    """The number of samples in a batch: the length that all its fields have."""
    lengths = {_length(leaf) for leaf in _leaves(batch)} - {None}
    if len(lengths) != 1:
        raise ValueError(
            f"evaluate: a batch with fields of the lengths {sorted(map(str, lengths))} does not say how many "
            "samples it has; give weight="
        )
    return lengths.pop()  # type: ignore[return-value]


def _leaves(tree: Any) -> Iterator[Any]:
    fields = fields_of(tree)
    if fields is None:
        yield tree
    else:
        for value in fields.values():
            yield from _leaves(value)


def _length(leaf: Any) -> int | None:
    if isinstance(leaf, (str, bytes)):
        return None
    with suppress(TypeError):  # an array without dimensions
        return len(leaf)
    return None


# ---------------------------------------------------------------------- putting results together


class _Total:
    """A tree of leaves that are put together, of the shape that the first result has."""

    def __init__(self, reduce: str) -> None:
        self.count = 0
        self._leaf = _REDUCTIONS[reduce]
        self._weights: list[float] | None = [] if reduce == "mean" else None
        self._like: Any = None
        self._leaves: dict[tuple[Any, ...], Any] = {}

    def add(self, weight: float, tree: Any) -> None:
        """Take in the result of one batch."""
        found = dict(_paths(tree))
        if not self.count:
            self._like = tree
            self._leaves = {path: self._leaf() for path in found}
        elif found.keys() != self._leaves.keys():
            raise ValueError(
                f"evaluate: batch {self.count} gave the fields {_shown(found)}, and the first one "
                f"{_shown(self._leaves)}; the function must return the same for every batch"
            )
        for path, value in found.items():
            try:
                self._leaves[path].add(weight, value)
            except ValueError as exc:
                raise ValueError(f"evaluate: {_shown([path])} of batch {self.count}: {exc}") from exc
        self.count += 1
        if self._weights is not None:
            self._weights.append(weight)

    def result(self) -> Any:
        whole = None if self._weights is None else math.fsum(self._weights)
        if whole == 0:
            raise ValueError("evaluate: all batches together count 0, so there is no mean")
        return self._rebuilt(self._like, (), whole)

    def _rebuilt(self, like: Any, path: tuple[Any, ...], whole: float | None) -> Any:
        fields = fields_of(like)
        if fields is None:
            found = self._leaves[path].result()
            return found if whole is None else found / whole
        return rebuilt(like, {name: self._rebuilt(value, (*path, name), whole) for name, value in fields.items()})


def _paths(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    fields = fields_of(tree)
    if fields is None:
        yield path, tree
    else:
        for name, value in fields.items():
            yield from _paths(value, (*path, name))


def _shown(paths: Iterable[tuple[Any, ...]]) -> str:
    return ", ".join(".".join(map(str, path)) or "the result" for path in paths) or "none"


def _values(value: Any) -> Any:
    """A number or an array, of what a function may return."""
    if is_tensor(value):
        tensor = on_host(value)
        value = (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"a {type(value).__name__} is neither a number nor an array of numbers; use reduce='concat'"
        )
    return array.item() if array.ndim == 0 else array


class _Sum:
    """Numbers by math.fsum, integers exactly; arrays of floats with what rounding loses, of integers in 64 bits."""

    def __init__(self) -> None:
        self._shape: tuple[int, ...] | None = None
        self._numbers: list[Any] = []
        #: the sum of arrays, and what rounding has lost
        self._array: Any = 0
        self._lost: Any = 0.0

    def add(self, weight: float, value: Any) -> None:
        value = _values(value)
        shape = np.shape(value)
        self._shape = shape if self._shape is None else self._shape
        if shape != self._shape:
            first = f"that of the first was {self._shape}" if self._shape else "the first was a single number"
            raise ValueError(
                f"its shape is {shape}, and {first}; return one value for the batch, or use reduce='concat' for "
                "one row per sample"
            )
        if not shape:
            self._numbers.append(value * weight)
            return
        whole = value.dtype.kind != "f" and isinstance(weight, int)
        with np.errstate(invalid="ignore"):  # infinity - infinity
            value = np.multiply(value, weight, dtype=np.int64 if whole else np.float64)
            total = self._array + value
            if total.dtype == np.float64:
                larger = np.abs(self._array) >= np.abs(value)
                self._lost += np.where(larger, (self._array - total) + value, (value - total) + self._array)
        self._array = total

    def result(self) -> Any:
        if self._shape:
            if self._array.dtype != np.float64:
                return self._array
            # Beyond a sum that is infinite or not a number nothing can be added.
            return np.where(np.isfinite(self._array), self._array + self._lost, self._array)
        if not any(isinstance(number, float) for number in self._numbers):
            return sum(self._numbers)
        try:
            return math.fsum(self._numbers)
        except ValueError:  # infinities of both signs
            return math.nan


class _Rows:
    """Rows of all batches."""

    def __init__(self) -> None:
        self._parts: list[Any] = []

    def add(self, weight: float, value: Any) -> None:
        self._parts.append(on_host(value) if is_tensor(value) else value)

    def result(self) -> Any:
        first = self._parts[0]
        if is_tensor(first):
            torch = sys.modules["torch"]
            return torch.cat(self._parts) if first.ndim else torch.stack(self._parts)
        if isinstance(first, list):
            return [item for part in self._parts for item in part]
        if isinstance(first, (np.ndarray, np.generic)) and np.ndim(first):
            return np.concatenate(self._parts)
        if isinstance(first, (int, float, np.generic, np.ndarray)):
            return np.array(self._parts)
        return self._parts


_REDUCTIONS: dict[str, Any] = {"mean": _Sum, "sum": _Sum, "concat": _Rows}


# ---------------------------------------------------------------------- the bar


def _with_bar(loader: Any) -> Iterator[Any]:
    """The batches of `loader`, and how many have come, on the terminal."""
    try:
        length = len(loader)
    except TypeError:  # it is not known
        length = 0
    bar, began, count = Bar(), monotonic(), 0

    def told() -> str:
        return _told(count, length, monotonic() - began)

    try:
        for count, batch in enumerate(loader, 1):
            yield batch
            bar.show(count / length if length else None, told)
    finally:
        bar.finish(count / length if length else None, told)


def _told(count: int, length: int, seconds: float) -> str:
    """
    >>> _told(30, 120, 10.0), _told(3, 0, 2.0)
    ('30/120 batches, 3.0/s, 30 s left', '3 batches, 1.5/s')
    """
    rate = count / seconds if seconds > 0 else 0.0
    left = f", {(length - count) / rate:.0f} s left" if rate and count < length else ""
    return f"{count}{f'/{length}' if length else ''} batches, {rate:.1f}/s{left}"
