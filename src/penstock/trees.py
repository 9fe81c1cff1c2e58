"""Sample trees: dicts, tuples, named tuples and dataclasses with arrays, numbers and objects as leaves.

* `stacked` makes one batch of many samples, `unstacked` takes it apart again.
* `nbytes` is what a sample weighs, for byte bounds.
* `read_only` is a copy of the tree's structure with its arrays closed to writing.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.errors import RaggedBatch

__all__ = ["fields_of", "nbytes", "read_only", "rebuilt", "stacked", "unstacked"]

_NUMBERS = (int, float, complex, bool, np.number, np.bool_)
#: numpy kinds that stack: bool, int, unsigned, float, complex, time and its differences
_STACKABLE = frozenset("biufcmM")


def fields_of(tree: Any) -> dict[Any, Any] | None:
    """The fields of a node by name, or None for a leaf."""
    if isinstance(tree, Mapping):
        return dict(tree)
    if isinstance(tree, tuple):
        return dict(enumerate(tree))
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return {field.name: getattr(tree, field.name) for field in dataclasses.fields(tree)}
    return None


def rebuilt(like: Any, fields: Mapping[Any, Any]) -> Any:
    """A node of the kind of `like` with other fields."""
    if isinstance(like, tuple):
        values = list(fields.values())
        return type(like)(*values) if hasattr(like, "_fields") else tuple(values)
    if dataclasses.is_dataclass(like) and not isinstance(like, type):
        return dataclasses.replace(like, **dict(fields))
    return dict(fields)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _leaf_array(value: Any) -> np.ndarray[Any, Any] | None:
    """`value` as an array if it is stackable: an array, a number, a tensor or a list of numbers."""
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
    elif _is_tensor(value):
        array = value.detach().cpu().numpy()
    elif isinstance(value, _NUMBERS):
        array = np.asarray(value)
    elif isinstance(value, list) and value and _all_numbers(value):
        array = np.asarray(value)
    else:
        return None
    return array if array.dtype.kind in _STACKABLE else None


def _all_numbers(values: list[Any]) -> bool:
    for value in values:
        if isinstance(value, list):
            if not _all_numbers(value):
                return False
        elif not isinstance(value, _NUMBERS):
            return False
    return True


Pad = Callable[[str, list[Any]], tuple[Any, Any]]


def stacked(samples: Sequence[Any], describe: Callable[[int], str], pad: Pad | None = None, path: str = "") -> Any:
    """One batch: arrays and numbers stacked, other leaves in a list, nodes field by field.

    `describe` names sample number i in messages. `pad` is asked for leaves of unequal shape.

    >>> stacked([{"x": 1, "s": "a"}, {"x": 2, "s": "b"}], str)
    {'x': array([1, 2]), 's': ['a', 'b']}
    """
    first = samples[0]
    kinds = set(map(type, samples))
    if kinds <= {int, float, bool}:
        return _numbers(samples, kinds)
    if not isinstance(first, (np.ndarray, str, bytes)):
        fields = fields_of(first)
        if fields is not None:
            return _stacked_fields(samples, fields, describe, pad, path)
    if kinds == {np.ndarray}:
        return _arrays(list(samples), describe, pad, path)
    arrays = [_leaf_array(sample) for sample in samples]
    if any(array is None for array in arrays):
        return list(samples)
    return _arrays(arrays, describe, pad, path)


def _numbers(samples: Sequence[Any], kinds: set[type]) -> Any:
    array = np.array(samples)
    if array.dtype == object or (array.dtype.kind == "f" and float not in kinds):
        return list(samples)  # an integer beyond 64 bits stays exact
    return array.astype(np.int64) if array.dtype.kind in "iu" and array.itemsize != 8 else array


def _stacked_fields(
    samples: Sequence[Any], fields: dict[Any, Any], describe: Callable[[int], str], pad: Pad | None, path: str
) -> Any:
    columns: dict[Any, list[Any]] = {name: [] for name in fields}
    for number, sample in enumerate(samples):
        own = fields_of(sample)
        if own is None or own.keys() != fields.keys():
            have = "no fields" if own is None else ", ".join(map(repr, own))
            raise RaggedBatch(
                f"{_named(path)}fields {', '.join(map(repr, fields))}, then {have} at {describe(number)}; "
                "make the samples alike with map(), or use batch(collate=list)"
            )
        for name, value in own.items():
            columns[name].append(value)
    batch: dict[Any, Any] = {}
    for name, values in columns.items():
        inner = f"{path}.{name}" if path else str(name)
        if pad is not None and isinstance(samples[0], Mapping):
            batch[name], lengths = pad(inner, values)
            if lengths is not None:
                batch[f"{name}_length"] = lengths
        else:
            batch[name] = stacked(values, describe, pad, inner)
    return rebuilt(samples[0], batch)


def _named(path: str) -> str:
    return f"field {path!r}: " if path else ""


def _arrays(arrays: list[Any], describe: Callable[[int], str], pad: Pad | None, path: str) -> Any:
    first = arrays[0]
    if first.dtype.kind not in _STACKABLE and any(array.dtype != first.dtype for array in arrays):
        return arrays
    shape = first.shape
    for number, array in enumerate(arrays):
        if array.shape != shape:
            if pad is not None:
                return pad(path, arrays)[0]
            raise RaggedBatch(
                f"{_named(path)}{shape} then {array.shape} at {describe(number)}; "
                "use batch(pad=0), bucket() or collate=list"
            )
    if not shape or not shape[0]:
        return np.stack(arrays)
    # One long concatenation is twice as fast as np.stack, which makes a view of every sample first.
    return np.concatenate(arrays, axis=0).reshape(len(arrays), *shape)


def unstacked(batch: Any) -> Iterator[Any]:
    """The samples of a batch: the inverse of `stacked`.

    >>> list(unstacked({"x": np.array([1, 2]), "s": ["a", "b"]}))
    [{'x': np.int64(1), 's': 'a'}, {'x': np.int64(2), 's': 'b'}]
    """
    fields = None if isinstance(batch, (list, np.ndarray, str, bytes)) else fields_of(batch)
    if fields is None:
        yield from batch
        return
    columns = [list(unstacked(column)) for column in fields.values()]
    if len(set(map(len, columns))) > 1:
        lengths = ", ".join(f"{name!r}: {len(column)}" for name, column in zip(fields, columns, strict=True))
        raise RaggedBatch(f"cannot take a batch apart whose fields have different lengths: {lengths}")
    for row in zip(*columns, strict=True):
        yield rebuilt(batch, dict(zip(fields, row, strict=True)))


def nbytes(tree: Any) -> int:
    """About how many bytes of memory a sample holds.

    >>> nbytes({"x": np.zeros(10), "s": b"abc"})
    83
    """
    size = getattr(tree, "nbytes", None)
    if isinstance(size, int):
        return size
    if isinstance(tree, (bytes, bytearray, str)):
        return len(tree)
    if isinstance(tree, (list, set, frozenset)):
        return 8 * len(tree) + sum(map(nbytes, tree))
    fields = fields_of(tree)
    if fields is not None:
        return sum(map(nbytes, fields.values()))
    return sys.getsizeof(tree, 64)


def read_only(tree: Any) -> Any:
    """The same tree with its arrays as read-only views and its lists and dicts copied."""
    if isinstance(tree, np.ndarray):
        view = tree.view()
        view.flags.writeable = False
        return view
    if isinstance(tree, list):
        return [read_only(item) for item in tree]
    fields = fields_of(tree)
    if fields is None:
        return tree
    return rebuilt(tree, {name: read_only(value) for name, value in fields.items()})
