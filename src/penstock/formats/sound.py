"""Whether the columns of a record batch hold together, for files that are mapped into memory as they are.

Arrow reads what a file says. In a damaged one, a string may begin anywhere, and reading it ends the process. This
looks at where strings and lists begin, and at none of their values: a batch of mapped memory is not read whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.formats.columns import arrow


def check_batch(batch: Any) -> None:
    """Raise ValueError if reading a value of this record batch could lead out of its memory."""
    batch.validate()
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            _check(column)
        except ValueError as exc:
            raise ValueError(f"column {name!r}: {exc}") from exc


def _check(array: Any) -> None:
    pa = arrow()
    types, kind = pa.types, array.type
    if isinstance(kind, pa.BaseExtensionType):
        _check(array.storage)
    elif types.is_dictionary(kind):
        array.validate(full=True)
    elif types.is_struct(kind):
        for number in range(kind.num_fields):
            _check(array.field(number))
    elif types.is_fixed_size_list(kind):
        _check(array.values)
    elif types.is_string(kind) or types.is_binary(kind):
        _check_offsets(array, np.int32)
    elif types.is_large_string(kind) or types.is_large_binary(kind):
        _check_offsets(array, np.int64)
    elif types.is_list(kind) or types.is_map(kind) or types.is_large_list(kind):
        _check_offsets(array, np.int64 if types.is_large_list(kind) else np.int32)
        _check(array.values)


def _check_offsets(array: Any, dtype: Any) -> None:
    """Where values begin must rise; `validate` has compared the last with the memory there is."""
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return
    width = np.dtype(dtype).itemsize
    offsets = np.frombuffer(buffer, dtype, len(array) + 1, array.offset * width)
    if offsets[0] < 0 or bool((offsets[1:] < offsets[:-1]).any()):
        raise ValueError("its values overlap or lie outside of the file: the file is damaged")
