"""What samples and batches are made of: a line for each field, with its type, shape, dtype and range."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from penstock.tensors import is_tensor, on_host
from penstock.trees import fields_of

#: letters of a string or of a number of values that are shown
_LETTERS = 40


class Field(NamedTuple):
    """One leaf of a sample."""

    name: str
    #: what it is: "uint8 (224, 224, 3)", "str", "list of 3"
    kind: str
    #: its range, or the value itself
    value: str


def described(sample: Any) -> str:
    """The fields of a sample, a line each.

    >>> print(described({"image": np.zeros((2, 3), np.uint8), "label": 7}))
    image  uint8 (2, 3)  0 to 0
    label  int           7
    """
    rows = fields(sample)
    widths = [max(len(row[place]) for row in rows) for place in (0, 1)]
    lines = [f"{row.name:<{widths[0]}}  {row.kind:<{widths[1]}}  {row.value}".strip() for row in rows]
    return "\n".join(lines)


def fields(sample: Any) -> list[Field]:
    """The leaves of a sample."""
    return [Field(".".join(map(str, path)), *_leaf(value)) for path, value in _leaves(sample, ())]


def _leaves(tree: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    inside = fields_of(tree)
    if not inside:
        yield path, tree
        return
    for name, value in inside.items():
        yield from _leaves(value, (*path, name))


def array_of(value: Any) -> np.ndarray[Any, Any] | None:
    """An array or a tensor as an array; None for anything else."""
    if isinstance(value, np.ndarray):
        return value
    if not is_tensor(value):
        return None
    tensor = on_host(value.detach())
    try:
        array: np.ndarray[Any, Any] = tensor.numpy()
    except TypeError:  # numpy has nothing like bfloat16
        array = tensor.float().numpy()
    return array


def _leaf(value: Any) -> tuple[str, str]:
    """What a leaf is, and its range or value."""
    array = array_of(value)
    if array is not None:
        return f"{getattr(value, 'dtype', array.dtype)} {tuple(array.shape)}", _range(array)
    kind = type(value).__name__
    if isinstance(value, (list, set)):
        return f"{kind} of {len(value)}", _short(repr, value)
    if isinstance(value, (bytes, bytearray)):
        return f"{kind} of {len(value)}", _short(repr, bytes(value[:_LETTERS]))
    return kind, _short(repr, value)


def _range(array: np.ndarray[Any, Any]) -> str:
    if array.size == 0:
        return "empty"
    if array.dtype.kind == "b":
        return f"{int(array.sum())} of {array.size} true"
    if array.dtype.kind not in "iuf":
        return _short(str, array.ravel()[:3])
    missing = ""
    if array.dtype.kind == "f":
        finite = np.isfinite(array)
        if not finite.all():
            missing = f", {int(array.size - finite.sum())} not finite"
            array = array[finite]
            if array.size == 0:
                return missing.removeprefix(", ")
    if array.size == 1:
        return f"{_number(array.ravel()[0])}{missing}"
    mean = f", mean {float(array.mean()):.3g}" if array.dtype.kind == "f" else ""
    return f"{_number(array.min())} to {_number(array.max())}{mean}{missing}"


def _number(value: Any) -> str:
    """A whole number with all of its digits: a label or an index is told from the next one by the last."""
    return f"{value:.4g}" if isinstance(value, np.floating) else str(value)


def _short(form: Callable[[Any], str], value: Any) -> str:
    """The value as text, not too long. What users put into samples may fail here."""
    try:
        text = form(value)
    except Exception as exc:
        return f"(cannot be printed: {type(exc).__name__})"
    return text if len(text) <= _LETTERS else text[: _LETTERS - 1] + "…"
