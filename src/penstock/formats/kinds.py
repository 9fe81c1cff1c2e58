"""What the columns of a Parquet file mean that penstock wrote: the Python and numpy types behind Arrow's.

A column has one kind. Numbers, text, bytes, arrays of one dimension and arrays of one shape have Arrow's own types,
which every reader knows; the kind says whether a number was Python's or numpy's. Anything else (nested dicts and
lists, arrays of many shapes) is MessagePack in a binary column. The kinds are in the metadata of the file's schema.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.formats.columns import Column, Columns, arrow, column_of, whole
from penstock.formats.tree import from_msgpack, is_plain_json, to_msgpack

#: the key of the metadata
META = b"penstock"
#: a field of samples that are no dicts
WHOLE = "__sample__"
_NUMBERS = ("bool", "int", "float")
_DTYPES = frozenset("?bBhHiIlLqQfd")
_INT64 = range(-(1 << 63), 1 << 63)


class Form:
    """What a sample is: a dict, a tuple, or anything else, in one column; and the kind of each column."""

    def __init__(self, shape: str, kinds: dict[str, str]) -> None:
        self.shape = shape
        self.kinds = kinds

    def encoded(self) -> bytes:
        return json.dumps({"version": 1, "sample": self.shape, "kinds": self.kinds}).encode()

    @classmethod
    def decoded(cls, data: bytes | None) -> Form | None:
        """From the metadata of a file; None if penstock did not write it. Raises ValueError for another version."""
        if data is None:
            return None
        found = json.loads(data)
        if found.get("version") != 1:
            raise ValueError(f"it was written by a newer penstock ({found.get('version')})")
        return cls(found["sample"], found["kinds"])

    def sample(self, row: dict[str, Any]) -> Any:
        """The sample that a row was."""
        if self.shape == "tuple":
            return tuple(row.values())
        return row[WHOLE] if self.shape == "whole" else row


def kind_of(value: Any) -> str:
    """The kind of a single value; "" for None, which every column may hold.

    >>> kind_of(3), kind_of(np.float32(1)), kind_of(np.zeros((2, 3), "uint8")), kind_of([1])
    ('int', 'number float32', 'array uint8 2 3', 'tree')
    """
    kind = type(value)
    if value is None:
        return ""
    if kind is bool:
        return "bool"
    if kind is int:
        return "int" if value in _INT64 else "tree"
    if kind is float:
        return "float"
    if kind is str:
        return "str" if is_plain_json(value) else "tree"
    if kind is bytes:
        return "bytes"
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.char in _DTYPES and value.dtype.isnative:
        if isinstance(value, np.generic):
            return f"number {value.dtype}"
        # Parquet gives back no lists of the length 0, as the values of an empty array of several dimensions are.
        if type(value) in (np.ndarray, np.memmap) and (value.ndim == 1 or value.size):
            return " ".join(["array", str(value.dtype), *map(str, value.shape)])
    return "tree"


def kinds_of(values: Sequence[Any]) -> str:
    """The kind of a column with these values."""
    found = {kind_of(value) for value in values} - {""}
    if not found:
        return "tree"  # nothing but None says nothing of what follows
    if len(found) == 1:
        (kind,) = found
        # Arrays of one dimension may have any length, and mostly have by the end.
        return f"{' '.join(kind.split()[:2])} *" if kind.startswith("array") and len(kind.split()) == 3 else kind
    heads = {" ".join(kind.split()[:2]) for kind in found}
    flat = all(kind.startswith("array") and len(kind.split()) == 3 for kind in found)
    return f"{heads.pop()} *" if flat and len(heads) == 1 else "tree"


def fits(kind: str, value: Any) -> bool:
    """Whether a value can go into a column of this kind."""
    own = kind_of(value)
    flat = kind.endswith("*") and len(own.split()) == 3 and own.startswith(kind[:-1])
    return kind == "tree" or own in ("", kind) or flat


def type_of(kind: str) -> Any:
    """The Arrow type of a column."""
    pa = arrow()
    head, *rest = kind.split()
    if head == "array":
        inner = pa.from_numpy_dtype(np.dtype(rest[0]))
        return pa.list_(inner) if rest[1] == "*" else pa.fixed_shape_tensor(inner, [int(one) for one in rest[1:]])
    if head == "number":
        return pa.from_numpy_dtype(np.dtype(rest[0]))
    simple = {"bool": pa.bool_(), "int": pa.int64(), "float": pa.float64(), "str": pa.string()}
    return simple.get(head, pa.binary())


def to_array(kind: str, values: Sequence[Any], name: str) -> Any:
    """The values of a column as an Arrow array."""
    pa = arrow()
    target = type_of(kind)
    if kind == "tree":
        return pa.array([to_msgpack(value, name) for value in values], target)
    if kind.startswith("array") and not kind.endswith("*"):
        rows = [None if value is None else value.reshape(-1) for value in values]
        return pa.ExtensionArray.from_storage(target, pa.array(rows, target.storage_type))
    return pa.array(list(values), target, from_pandas=False)


# ---------------------------------------------------------------------- back


class Restored(Columns):
    """The columns of a file that penstock wrote: rows are the samples that were written."""

    def __init__(self, table: Any, form: Form) -> None:
        names = table.schema.names
        columns = [restoring(form.kinds.get(name, ""), whole(table, number)) for number, name in enumerate(names)]
        super().__init__(table, columns)
        self._form = form if list(form.kinds) == names else Form("dict", {})

    def rows(self, numbers: Any) -> list[Any]:
        rows = super().rows(numbers)
        return rows if self._form.shape == "dict" else [self._form.sample(row) for row in rows]

    def shaped(self, row: dict[str, Any]) -> Any:
        return self._form.sample(row)


def restoring(kind: str, array: Any) -> Column:
    """A column that gives back the values that were written."""
    if kind in _NUMBERS:
        return _Plain(array)
    return _Trees(array) if kind == "tree" else column_of(array)


class _Plain(Column):
    """Numbers of Python's own."""

    def __init__(self, array: Any) -> None:
        super().__init__(array)
        self._numbers = column_of(array)

    def part(self, numbers: Any) -> Any:
        # A batch of Python's numbers has the types that these have in numpy, which are those of the column.
        return self._numbers.part(numbers)


class _Trees(Column):
    """Whatever MessagePack holds."""

    def __init__(self, array: Any) -> None:
        super().__init__(array)
        self.is_text = False

    def rows(self, numbers: Any) -> list[Any]:
        return [from_msgpack(value) for value in super().rows(numbers)]
