"""Arrow columns as samples: rows as Python and numpy values, and blocks of rows as one array.

A number is a numpy scalar of the column's type, so that a batch of rows has that type too; text is str, binary is
bytes, a list of numbers is an array, a struct is a dict, and a null is None. A list of anything else is a Python
list. Arrays of rows are copies: a row that is kept does not keep its whole row group in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import missing_extra

#: so few values take less time one by one
_FEW = 8
#: consecutive positions, or any
Numbers = range | NDArray[np.int64]


def import_arrow(name: str, purpose: str) -> Any:
    """A module of pyarrow, which is an extra."""
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        raise missing_extra("pyarrow", "parquet", purpose) from None


def arrow() -> Any:
    return import_arrow("pyarrow", "reading Parquet, Arrow and CSV files")


class Columns:
    """The columns of a table, a row group or a record batch."""

    def __init__(self, table: Any, columns: list[Column] | None = None) -> None:
        self.names: list[str] = table.schema.names
        self.count: int = table.num_rows
        self.nbytes: int = table.nbytes
        self._columns = columns or [column_of(whole(table, number)) for number in range(len(self.names))]
        #: which columns are text or binary: a batch of them is a list, whatever is in it
        self.texts = [column.is_text for column in self._columns]

    def rows(self, numbers: Numbers) -> list[Any]:
        """The rows with these numbers, as dicts."""
        return dicts(self.names, [column.rows(numbers) for column in self._columns], len(numbers))

    def shaped(self, row: dict[str, Any]) -> Any:
        """What a row, or a batch of rows, is to the user."""
        return row

    def parts(self, numbers: Numbers) -> list[Any]:
        """For each column an array of its rows, or a list of them where they make none."""
        return [column.part(numbers) for column in self._columns]


def dicts(names: list[str], columns: list[list[Any]], count: int) -> list[dict[str, Any]]:
    """A dict of each row, from lists of one length.

    >>> dicts(["x", "y"], [[1, 2], ["a", "b"]], 2)
    [{'x': 1, 'y': 'a'}, {'x': 2, 'y': 'b'}]
    """
    return _dict_maker(len(names))(names, columns) if names else [{} for _ in range(count)]


@cache
def _dict_maker(count: int) -> Callable[[list[str], list[list[Any]]], list[dict[str, Any]]]:
    """A loop with so many fields written out: a third of the time that ``dict(zip(names, row))`` takes."""
    keys = [f"k{number}" for number in range(count)]
    values = [f"v{number}" for number in range(count)]
    pairs = ", ".join(f"{key}: {value}" for key, value in zip(keys, values, strict=True))
    source = (
        f"def make(names, columns):\n    {', '.join(keys)}, = names\n"
        f"    return [{{{pairs}}} for {', '.join(values)}, in zip(*columns, strict=True)]"
    )
    scope: dict[str, Any] = {}
    exec(compile(source, "<penstock: rows>", "exec"), scope)  # our own text, and no name of the user's in it
    made: Callable[[list[str], list[list[Any]]], list[dict[str, Any]]] = scope["make"]
    return made


def whole(table: Any, number: int) -> Any:
    """A column in one piece."""
    column = table.column(number)
    return column.combine_chunks() if hasattr(column, "combine_chunks") else column


def column_of(array: Any) -> Column:
    """How an Arrow array is read."""
    types = arrow().types
    kind = array.type
    if types.is_dictionary(kind):
        return column_of(array.dictionary_decode())
    if _is_view(kind):
        return column_of(array.cast(_plain(kind)))  # rows of a view cannot be taken in any order
    if isinstance(kind, arrow().FixedShapeTensorType):
        return _tensors(array)
    if isinstance(kind, arrow().BaseExtensionType):
        return column_of(array.storage)
    if _is_number(kind):
        return _Numbers(array)
    if types.is_fixed_size_list(kind) and _is_number(kind.value_type) and not array.flatten().null_count:
        return _FixedLists(array, (kind.list_size,))
    if types.is_list(kind) or types.is_large_list(kind):
        return _Lists(array) if _is_number(kind.value_type) and not array.values.null_count else Column(array)
    if types.is_struct(kind):
        return _Structs(array)
    return Column(array)


def _is_number(kind: Any) -> bool:
    """Whether numpy has such a type."""
    types = arrow().types
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_timestamp(kind)
        or types.is_duration(kind)
        or types.is_date32(kind)
    )


def _is_text(kind: Any) -> bool:
    types = arrow().types
    names = ("string", "large_string", "binary", "large_binary", "fixed_size_binary")
    return any(getattr(types, f"is_{name}", lambda _: False)(kind) for name in names)


def _is_view(kind: Any) -> bool:
    types = arrow().types
    return any(getattr(types, f"is_{name}_view", lambda _: False)(kind) for name in ("string", "binary"))


def _plain(kind: Any) -> Any:
    pa = arrow()
    return pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary()


class Column:
    """Any column: Python objects as Arrow gives them."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.is_text = _is_text(array.type)
        self._is_string = self.is_text and str(array.type) in ("string", "large_string")

    def rows(self, numbers: Numbers) -> list[Any]:
        """One value per row."""
        if len(numbers) <= _FEW:
            return [self.array[number].as_py() for number in numbers]
        try:
            taken = self._taken(numbers)
        except arrow().ArrowNotImplementedError:  # a type whose rows Arrow gives only one by one
            return [self.array[number].as_py() for number in numbers]
        # By way of an array of objects strings take half the time, and binary values twice.
        found: list[Any] = taken.to_numpy(zero_copy_only=False).tolist() if self._is_string else taken.to_pylist()
        return found

    def part(self, numbers: Numbers) -> Any:
        """The rows as one array, or as a list."""
        return self.rows(numbers)

    def _taken(self, numbers: Numbers) -> Any:
        if isinstance(numbers, range):
            return self.array.slice(numbers.start, len(numbers))
        return self.array.take(arrow().array(numbers))

    @cached_property
    def valid(self) -> NDArray[np.bool_] | None:
        """Which rows are not null; None if all are."""
        if not self.array.null_count:
            return None
        found: NDArray[np.bool_] = self.array.is_valid().to_numpy(zero_copy_only=False)
        return found

    def _with_nulls(self, rows: list[Any], numbers: Numbers) -> list[Any]:
        if self.valid is None:
            return rows
        return [row if is_there else None for row, is_there in zip(rows, _at(self.valid, numbers), strict=True)]

    def _all_there(self, numbers: Numbers) -> bool:
        return self.valid is None or bool(np.all(_at(self.valid, numbers)))


def _at(values: NDArray[Any], numbers: Numbers) -> NDArray[Any]:
    return values[numbers.start : numbers.stop] if isinstance(numbers, range) else values[numbers]


class _Numbers(Column):
    """Numbers: a numpy array, and which of them are there."""

    def __init__(self, array: Any) -> None:
        super().__init__(array)
        filled = array if not array.null_count else array.fill_null(_zero(array.type))
        self.values: NDArray[Any] = filled.to_numpy(zero_copy_only=False)

    def rows(self, numbers: Numbers) -> list[Any]:
        return self._with_nulls(list(_at(self.values, numbers)), numbers)

    def part(self, numbers: Numbers) -> Any:
        if not self._all_there(numbers):
            return self.rows(numbers)
        found = _at(self.values, numbers)
        return found.copy() if isinstance(numbers, range) else found


def _zero(kind: Any) -> Any:
    pa = arrow()
    return pa.scalar(False) if pa.types.is_boolean(kind) else pa.scalar(0).cast(kind)


class _FixedLists(Column):
    """Lists of one length: an array with a row of one shape for each."""

    def __init__(self, array: Any, shape: tuple[int, ...], order: tuple[int, ...] = ()) -> None:
        super().__init__(array)
        # What a null has in its place is left out of this.
        there = array.flatten().to_numpy(zero_copy_only=False).reshape(len(array) - array.null_count, *shape)
        if order:
            there = there.transpose(0, *(1 + axis for axis in order))
        self.values: NDArray[Any] = there
        if self.valid is not None:
            self.values = np.zeros((len(array), *there.shape[1:]), there.dtype)
            self.values[self.valid] = there

    def rows(self, numbers: Numbers) -> list[Any]:
        return self._with_nulls(list(self._block(numbers)), numbers)

    def part(self, numbers: Numbers) -> Any:
        return self._block(numbers) if self._all_there(numbers) else self.rows(numbers)

    def _block(self, numbers: Numbers) -> NDArray[Any]:
        found = _at(self.values, numbers)
        return found.copy() if isinstance(numbers, range) else found


def _tensors(array: Any) -> Column:
    """Arrow's tensors of a fixed shape. Its own way to numpy gives neither nulls nor truth values."""
    kind = array.type
    return _FixedLists(array.storage, tuple(kind.shape), tuple(kind.permutation or ()))


class _Lists(Column):
    """Lists of numbers: all numbers in one array, and where each list begins."""

    def __init__(self, array: Any) -> None:
        super().__init__(array)
        self.offsets: NDArray[Any] = array.offsets.to_numpy().astype(np.int64)
        self.values: NDArray[Any] = array.values.to_numpy(zero_copy_only=False)

    def rows(self, numbers: Numbers) -> list[Any]:
        starts, stops = _at(self.offsets[:-1], numbers).tolist(), _at(self.offsets[1:], numbers).tolist()
        values = self.values
        rows = [values[start:stop].copy() for start, stop in zip(starts, stops, strict=True)]
        return self._with_nulls(rows, numbers)


class _Structs(Column):
    """Dicts of the fields' values."""

    def __init__(self, array: Any) -> None:
        super().__init__(array)
        kind = array.type
        self.names = [kind.field(number).name for number in range(kind.num_fields)]
        # `flatten` gives a null to the fields of a struct that is one.
        self.inner = [column_of(part) for part in array.flatten()]

    def rows(self, numbers: Numbers) -> list[Any]:
        rows = dicts(self.names, [column.rows(numbers) for column in self.inner], len(numbers))
        return self._with_nulls(rows, numbers)
