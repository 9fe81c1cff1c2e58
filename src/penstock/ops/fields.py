"""One field of a sample: read it, or make a copy of the sample with it replaced."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


def _names(sample: Any) -> str:
    if isinstance(sample, Mapping):
        return "its fields are " + ", ".join(map(repr, sample))
    if dataclasses.is_dataclass(sample):
        return "its fields are " + ", ".join(field.name for field in dataclasses.fields(sample))
    if hasattr(sample, "_fields"):
        return "its fields are " + ", ".join(sample._fields)
    return f"the sample is a {type(sample).__name__}"


def get_field(sample: Any, key: Any) -> Any:
    """The field `key` of a dict, tuple, list, named tuple or dataclass.

    >>> get_field({"x": 1}, "x"), get_field((5, 6), 1)
    (1, 6)
    """
    try:
        if isinstance(key, str) and not isinstance(sample, Mapping):
            return getattr(sample, key)
        return sample[key]
    except (KeyError, IndexError, AttributeError, TypeError) as exc:
        exc.add_note(f"key={key!r}: {_names(sample)}")
        raise


def with_field(sample: Any, key: Any, value: Any) -> Any:
    """A copy of `sample` with one field replaced; the sample itself is left alone.

    >>> with_field({"x": 1, "y": 2}, "x", 7), with_field((5, 6), 1, 7)
    ({'x': 7, 'y': 2}, (5, 7))
    """
    if type(sample) is dict:
        return {**sample, key: value}
    if isinstance(sample, tuple):
        names = getattr(sample, "_fields", None)
        if names is not None:
            at = names.index(key) if isinstance(key, str) else key
            kind: Any = type(sample)
            return kind(*sample[:at], value, *sample[at + 1 :])
        items = list(sample)
        items[key] = value
        return tuple(items)
    if dataclasses.is_dataclass(sample) and not isinstance(sample, type):
        return dataclasses.replace(sample, **{key: value})
    copy = sample.copy()
    copy[key] = value
    return copy
