"""Whether two samples are the same: in type, dtype, shape and value, down to every leaf."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def difference(one: Any, other: Any, at: str = "sample") -> str | None:
    """Where and how `other` differs from `one`, in words; None if they are the same.

    Arrays are compared by dtype, shape and value, where NaN is the same as NaN. Objects of a class
    that does not say when two of them are equal are compared by what is in them.

    >>> difference({"x": np.zeros(2)}, {"x": np.zeros(2)})
    >>> difference({"x": np.zeros(2)}, {"x": np.zeros(3)})
    "sample['x']: shape (2,), then (3,)"
    >>> difference((1, "a"), (1, "b"))
    "sample[1]: 'a', then 'b'"
    """
    if type(one) is not type(other):
        return f"{at}: {type(one).__name__} {one!r}, then {type(other).__name__} {other!r}"
    if isinstance(one, Mapping):
        if list(one) != list(other):
            return f"{at}: fields {list(one)}, then {list(other)}"
        return _first(difference(one[name], other[name], f"{at}[{name!r}]") for name in one)
    if isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return f"{at}: {len(one)} items, then {len(other)}"
        return _first(
            difference(a, b, f"{at}[{number}]") for number, (a, b) in enumerate(zip(one, other, strict=True))
        )
    if dataclasses.is_dataclass(one) and not isinstance(one, type):
        names = [field.name for field in dataclasses.fields(one)]
        return _first(difference(getattr(one, name), getattr(other, name), f"{at}.{name}") for name in names)
    if hasattr(one, "__array__"):
        return _array_difference(np.asarray(one), np.asarray(other), at)
    # NaN is not equal to itself, and is the same all the same.
    same = one == other or (one != one and other != other)
    if not same and getattr(type(one), "__eq__", None) is object.__eq__:
        inside, within = _state(one), _state(other)
        same = inside is not None and difference(inside, within) is None
    return None if same else f"{at}: {one!r}, then {other!r}"


def _state(value: Any) -> list[Any] | None:
    """What an object is made of, by its own word for pickle; None if it has none."""
    try:
        reduced = value.__reduce_ex__(4)
    except Exception:  # a lock, a file: equal to nothing but itself
        return None
    return None if isinstance(reduced, str) else list(reduced[1:3])


def _first(found: Any) -> str | None:
    return next((text for text in found if text is not None), None)


def _array_difference(one: Any, other: Any, at: str) -> str | None:
    if one.dtype != other.dtype:
        return f"{at}: dtype {one.dtype}, then {other.dtype}"
    if one.shape != other.shape:
        return f"{at}: shape {one.shape}, then {other.shape}"
    if one.dtype == object:
        return difference(one.tolist(), other.tolist(), at)
    equal = np.array_equal(one, other, equal_nan=one.dtype.kind in "fcmM")
    return None if equal else f"{at}: {one!r}, then {other!r}"


def assert_same(expected: Sequence[Any], found: Sequence[Any], what: str) -> None:
    """Raise AssertionError, naming the first sample that differs, unless both streams are the same.

    >>> assert_same([1, 2, 3], [1, 5, 3], "on 2 threads")
    Traceback (most recent call last):
    ...
    AssertionError: on 2 threads: sample 1: 2, then 5
    >>> assert_same([1, 2], [1], "on 2 threads")
    Traceback (most recent call last):
    ...
    AssertionError: on 2 threads: 2 samples, then 1; the first that is missing: 2
    """
    for number, (one, other) in enumerate(zip(expected, found, strict=False)):
        text = difference(one, other, f"sample {number}")
        if text is not None:
            raise AssertionError(f"{what}: {text}")
    if len(expected) != len(found):
        longer, word = (expected, "missing") if len(expected) > len(found) else (found, "too many")
        raise AssertionError(
            f"{what}: {len(expected)} samples, then {len(found)}; the first that is {word}: "
            f"{longer[min(len(expected), len(found))]!r}"
        )
