"""Sample trees: dicts, tuples, named tuples and dataclasses with arrays, numbers and objects as leaves.

* `stacked` makes one batch of many samples, `unstacked` takes it apart again.
* `nbytes` is what a sample weighs, for byte bounds.
* `read_only` is a copy of the tree's structure with its arrays closed to writing.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from penstock.errors import RaggedBatch
from penstock.tensors import is_tensor, is_tensor_type, on_host

_NUMBERS = (int, float, complex, bool, np.number, np.bool_)
#: plain numbers, and the kind of array they make when all are alike
_SWIFT = {int: "i", float: "f", bool: "b"}
#: the types of a list of nothing but text, or but bytes
_TEXTS = ({str}, {bytes})
#: numpy kinds that stack: bool, int, unsigned, float, complex, time and its differences, structures
_STACKABLE = frozenset("biufcmMV")


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
        # A copy, and not a new one: its __post_init__ has run, and may not be made for batches.
        new = copy.copy(like)
        for name, value in fields.items():
            object.__setattr__(new, name, value)
        return new
    return dict(fields)


def _tensor_array(tensor: Any) -> np.ndarray[Any, Any]:
    try:
        array: np.ndarray[Any, Any] = on_host(tensor).numpy()
    except TypeError as exc:
        raise TypeError(
            f"numpy has nothing like {tensor.dtype}: convert the tensor in a map(), as by x.float()"
        ) from exc
    return array


def batch_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of a batch of such values: the same in the byte order of this machine.

    A number taken out of an array always has that order, so a batch of single numbers could not keep another one.

    >>> batch_dtype(np.dtype(">i4")) == np.dtype("int32")
    True
    """
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def leaf_array(value: Any) -> np.ndarray[Any, Any] | None:
    """`value` as an array if it is stackable: an array, a number, a tensor or a list of numbers."""
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
    elif is_tensor(value):
        array = _tensor_array(value)
    elif isinstance(value, _NUMBERS):
        array = np.asarray(value)
    elif isinstance(value, list) and _all_numbers(value) and _shape(value) is not None:
        array = np.asarray(value)
    else:
        return None
    return array if array.dtype.kind in _STACKABLE and not array.dtype.hasobject else None


def _all_numbers(values: list[Any]) -> bool:
    for value in values:
        if isinstance(value, list):
            if not _all_numbers(value):
                return False
        elif not isinstance(value, _NUMBERS):
            return False
    return True


def stacked(samples: Sequence[Any], describe: Callable[[int], str], pad: Any = None, path: str = "") -> Any:
    """One batch: arrays and numbers stacked, tensors too, other leaves in a list, nodes field by field.

    `describe` names sample number i in messages, and `path` the field that the samples are of. `pad` fills up
    leaves of unequal shape: a value, or a dict of values by field.

    >>> stacked([{"x": 1, "s": "a"}, {"x": 2, "s": "b"}], str)
    {'x': array([1, 2]), 's': ['a', 'b']}
    >>> stacked([[1, 2], [3]], str, pad=0)
    array([[1, 2],
           [3, 0]])
    """
    kind = type(samples[0])
    # Plain numbers, as a rule: then they make an array without a look at each of them first.
    if kind in _SWIFT and (array := _plain_array(samples, kind)) is not None:
        return array
    return _Stacking(describe, pad).batch(samples, path, pad)[0]


def numbers_stacked(samples: Sequence[Any], size: int) -> list[Any] | None:
    """Batches of `size` samples as `stacked` makes them, cut out of one array; None unless all are plain numbers.

    >>> numbers_stacked([1, 2, 3], 2)
    [array([1, 2]), array([3])]
    """
    kinds = set(map(type, samples[::size]))
    kind = kinds.pop() if len(kinds) == 1 else None
    array = _plain_array(samples, kind) if kind in _SWIFT else None
    if array is None:
        return None
    whole = len(array) // size * size
    batches = [row.copy() for row in array[:whole].reshape(-1, size)]
    return batches if whole == len(array) else [*batches, array[whole:].copy()]


def _plain_array(samples: Sequence[Any], kind: Any) -> np.ndarray[Any, Any] | None:
    """The samples as an array if all of them are numbers like the first, which is a `kind`."""
    try:
        array = np.array(samples)
    except (ValueError, OverflowError):
        return None
    return array if array.ndim == 1 and array.dtype.kind == _SWIFT[kind] else None


class _Stacking:
    """Stacks the samples of one batch, field by field."""

    def __init__(self, describe: Callable[[int], str], pad: Any) -> None:
        self.describe = describe
        self.by_field: Mapping[str, Any] | None = pad if isinstance(pad, Mapping) else None

    def batch(self, values: Sequence[Any], path: str, pad: Any) -> tuple[Any, Any]:
        """The batch of `values`, and their lengths if they were padded."""
        first = values[0]
        if not isinstance(first, (np.ndarray, str, bytes)):
            fields = fields_of(first)
            if fields is not None:
                return self._fields(values, fields, path, pad), None
        fill = self.by_field.get(path) if self.by_field is not None else pad
        kinds = set(map(type, values))
        if kinds <= {int, float, bool}:
            return _numbers(values), None
        if any(map(is_tensor_type, kinds)):
            return self._tensors(values, path, fill)
        if any(issubclass(kind, np.ma.MaskedArray) for kind in kinds):
            self._refuse_masked(values, path)
        arrays = [leaf_array(value) for value in values]
        if any(array is None for array in arrays):
            self._check_gaps(values, arrays, path)
            self._check_lists(values, path)
            return list(values), None
        if fill is not None and first is not None and all(array.ndim for array in arrays if array is not None):
            return _padded(values, arrays, fill)
        return self._arrays(arrays, path), None

    def _fields(self, samples: Sequence[Any], fields: dict[Any, Any], path: str, pad: Any) -> Any:
        columns: dict[Any, list[Any]] = {name: [] for name in fields}
        for number, sample in enumerate(samples):
            own = fields_of(sample)
            if own is None or own.keys() != fields.keys():
                have = "no fields" if own is None else ", ".join(map(repr, own))
                raise RaggedBatch(
                    f"{_named(path)}fields {', '.join(map(repr, fields))}, then {have} at "
                    f"{self.describe(number)}; make the samples alike with map(), or use batch(collate=list)"
                )
            for name, value in own.items():
                columns[name].append(value)
        batch: dict[Any, Any] = {}
        for name, values in columns.items():
            batch[name], lengths = self.batch(values, f"{path}.{name}" if path else str(name), pad)
            if lengths is not None and isinstance(samples[0], Mapping):
                batch[f"{name}_length"] = lengths
        return rebuilt(samples[0], batch)

    def _arrays(self, arrays: list[Any], path: str) -> Any:
        shape = arrays[0].shape
        for number, array in enumerate(arrays):
            if array.shape != shape:
                raise self._ragged(path, shape, array.shape, number)
        dtype = self._common(arrays, path)
        if dtype.kind == "f" and all(array.dtype.kind in "iu" for array in arrays):
            return arrays  # signed and unsigned 64-bit integers have no common type but a float
        if not shape or not shape[0]:
            return np.stack(arrays, dtype=dtype)
        # One long concatenation is twice as fast as np.stack, which makes a view of every sample first.
        return np.concatenate(arrays, axis=0, dtype=dtype).reshape(len(arrays), *shape)

    def _common(self, arrays: list[Any], path: str) -> np.dtype[Any]:
        """The dtype of the batch: that of all, or one that holds the values of all."""
        first, *others = dict.fromkeys(array.dtype for array in arrays)
        if not others:
            return batch_dtype(first)
        try:
            return np.result_type(first, *others)
        except TypeError:
            number = next(number for number, array in enumerate(arrays) if array.dtype != first)
            raise self._ragged(path, first, arrays[number].dtype, number) from None

    def _tensors(self, values: Sequence[Any], path: str, fill: Any) -> tuple[Any, Any]:
        """The tensors as one, and their lengths if they were padded."""
        torch = sys.modules["torch"]
        for number, value in enumerate(values):
            if is_tensor(value) != is_tensor(values[0]):
                one, other = (type(one).__name__ for one in (values[0], value))
                raise self._ragged(
                    path, one, other, number, "make them alike with map(), or use batch(collate=list)"
                )
            if is_tensor(value) and value.requires_grad:
                raise RaggedBatch(
                    f"{_named(path)}the tensor of {self.describe(number)} requires grad, and no batch on its way "
                    "from a worker can be part of its graph; call .detach() on it in map()"
                )
        if fill is not None and all(value.ndim for value in values):
            return _padded_tensors(torch, values, fill)
        shape = tuple(values[0].shape)
        for number, value in enumerate(values):
            if tuple(value.shape) != shape:
                raise self._ragged(path, shape, tuple(value.shape), number)
        return torch.stack(list(values)), None

    def _refuse_masked(self, values: Sequence[Any], path: str) -> None:
        number = next(number for number, value in enumerate(values) if isinstance(value, np.ma.MaskedArray))
        raise RaggedBatch(
            f"{_named(path)}{self.describe(number)} is a masked array, and a batch would lose the mask; "
            "give x.filled(value) and x.mask as two fields"
        )

    def _check_gaps(self, values: Sequence[Any], arrays: Sequence[Any], path: str) -> None:
        """Whether a field makes an array must not depend on which of its samples are in this batch."""
        gap = next((number for number, value in enumerate(values) if _has_none(value)), None)
        if gap is None:
            return
        numbers = any(array is not None for array in arrays)
        if numbers or any(fields_of(value) is not None for value in values):
            raise RaggedBatch(
                f"{_named(path)}None at {self.describe(gap)}, where other samples have "
                f"{'numbers' if numbers else 'fields'}; put a value there with map(), leave the sample out with "
                "filter(), or use batch(collate=list)"
            )

    def _check_lists(self, values: Sequence[Any], path: str) -> None:
        """Lists of numbers that do not fit together are an error, not a list of lists."""
        if not all(isinstance(value, list) and _all_numbers(value) for value in values):
            return
        shapes = [_shape(value) for value in values]
        for number, shape in enumerate(shapes):
            if shape is None:
                raise self._ragged(path, shapes[0], "rows of unequal length", number)
            if shape != shapes[0]:
                raise self._ragged(path, shapes[0], shape, number)

    def _ragged(self, path: str, one: Any, other: Any, number: int, remedy: str = "") -> RaggedBatch:
        remedy = remedy or "use batch(pad=0), bucket() or collate=list"
        return RaggedBatch(f"{_named(path)}{one} then {other} at {self.describe(number)}; {remedy}")


def _named(path: str) -> str:
    return f"field {path!r}: " if path else ""


def _has_none(value: Any) -> bool:
    return value is None or (isinstance(value, list) and any(map(_has_none, value)))


def _shape(value: Any) -> tuple[int, ...] | None:
    """The shape of nested lists, None if they are ragged."""
    if not isinstance(value, list):
        return ()
    inner = {_shape(item) for item in value}
    if len(inner) > 1 or None in inner:
        return None
    return (len(value), *(inner.pop() or () if inner else ()))


def _numbers(samples: Sequence[Any]) -> Any:
    array = np.array(samples)
    if array.dtype == object or (array.dtype.kind == "f" and float not in set(map(type, samples))):
        return list(samples)  # an integer beyond 64 bits stays exact
    return array.astype(np.int64) if array.dtype.kind in "iu" and array.itemsize != 8 else array


def _padded(values: Sequence[Any], arrays: Sequence[Any], fill: Any) -> tuple[Any, Any]:
    """The arrays as one, filled up with `fill` to the largest, and their lengths."""
    if len({array.ndim for array in arrays}) > 1:
        return list(values), None
    shape = tuple(map(max, zip(*(array.shape for array in arrays), strict=True)))
    # An empty list has no type of its own.
    typed = [
        array for value, array in zip(values, arrays, strict=True) if array.size or not isinstance(value, list)
    ]
    out = np.full((len(arrays), *shape), fill, dtype=np.result_type(*(typed or arrays)))
    for number, array in enumerate(arrays):
        corner: tuple[slice, ...] = tuple(slice(size) for size in array.shape)
        out[number][corner] = array
    return out, np.array([len(array) for array in arrays], dtype=np.int64)


def _padded_tensors(torch: Any, tensors: Sequence[Any], fill: Any) -> tuple[Any, Any]:
    """The same of tensors, as tensors."""
    if len({tensor.ndim for tensor in tensors}) > 1:
        return list(tensors), None
    shape = tuple(map(max, zip(*(tensor.shape for tensor in tensors), strict=True)))
    dtype = reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    out = torch.full((len(tensors), *shape), fill, dtype=dtype, device=tensors[0].device)
    for number, tensor in enumerate(tensors):
        out[number][tuple(slice(size) for size in tensor.shape)] = tensor
    return out, torch.tensor([len(tensor) for tensor in tensors])


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
    kind = type(tree)
    if kind in _SWIFT:
        return sys.getsizeof(tree)
    if kind is str or kind is bytes:
        return len(tree)
    if kind is dict:
        return sum(map(nbytes, tree.values()))
    try:
        size = getattr(tree, "nbytes", None)
    except Exception:
        size = None  # of somebody's class, or of a sparse tensor, that has none
    if isinstance(size, int):
        return size
    if isinstance(tree, (bytes, bytearray, str)):
        return len(tree)
    if isinstance(tree, (list, set, frozenset)):
        # A batch has a list of every column of text or of files: their lengths are found at the speed of C.
        weigh = len if set(map(type, tree)) in _TEXTS else nbytes
        return 8 * len(tree) + sum(map(weigh, tree))
    fields = fields_of(tree)
    if fields is not None:
        return sum(map(nbytes, fields.values()))
    return sys.getsizeof(tree, 64)


def read_only(tree: Any) -> Any:
    """The same tree with its arrays as read-only views and its lists and dicts copied."""
    if isinstance(tree, np.ndarray):
        view = tree.view()
        if type(tree) is not np.ndarray:
            vars(view).update(vars(tree))
        view.flags.writeable = False
        return view
    if isinstance(tree, list):
        return [read_only(item) for item in tree]
    if isinstance(tree, dict) and type(tree) is not dict:
        new = copy.copy(tree)  # with whatever else its class has given it
        for name, value in tree.items():
            dict.__setitem__(new, name, read_only(value))
        return new
    fields = fields_of(tree)
    if fields is None:
        return tree
    return rebuilt(tree, {name: read_only(value) for name, value in fields.items()})
