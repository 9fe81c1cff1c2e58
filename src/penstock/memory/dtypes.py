"""Names of numpy's dtypes in headers: enough to rebuild them, and nothing that a stranger could misuse."""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod
from typing import Annotated, Any

import msgspec
import numpy as np

from penstock.errors import BadHeader

__all__ = ["Shape", "Size", "dtype_of", "name_of"]

#: of a header; msgspec checks them as it decodes
Size = Annotated[int, msgspec.Meta(ge=0)]
Shape = Annotated[tuple[Size, ...], msgspec.Meta(max_length=64)]

_SIMPLE = re.compile(r"[<>|]([biufc][0-9]{1,2}|[SUV][0-9]{1,10}|[mM]8(\[([1-9][0-9]{0,8})?[a-zA-Z]{1,2}\])?)")
#: characters of a name, so that the names remembered stay small
_LONGEST_NAME = 10_000


class _Record(msgspec.Struct, array_like=True):
    """A dtype with fields: name, offset, dtype, shape and title of each."""

    fields: list[tuple[str, Size, str | _Record, Shape, str | None]]
    nbytes: Size


@lru_cache(maxsize=256)
def name_of(dtype: np.dtype[Any]) -> str | None:
    """The name of a dtype in headers: its own, or JSON if it has fields. None if it could not be rebuilt."""
    try:
        name = dtype.str if dtype.names is None else msgspec.json.encode(_form_of(dtype)).decode()
        return name if dtype_of(name) == dtype else None
    except (BadHeader, TypeError, UnicodeEncodeError):
        return None


def _form_of(dtype: np.dtype[Any]) -> str | _Record:
    if dtype.names is None:
        return dtype.str
    parts: Any = dtype.fields
    fields = []
    for name in dtype.names:
        part, offset, *title = parts[name]
        fields.append((name, offset, _form_of(part.base), part.shape, title[0] if title else None))
    return _Record(fields, dtype.itemsize)


@lru_cache(maxsize=256)
def dtype_of(name: str) -> np.dtype[Any]:
    """The dtype with that name in headers. BadHeader if there is none."""
    try:
        if len(name) > _LONGEST_NAME:
            raise ValueError("the name is too long")
        return _built(msgspec.json.decode(name, type=_Record) if name.startswith("[") else name)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.DecodeError) as exc:
        raise BadHeader(f"the header names a dtype {name[:80]!r} that cannot be made: {exc}") from None


def _built(form: str | _Record) -> np.dtype[Any]:
    if isinstance(form, str):
        if not _SIMPLE.fullmatch(form):
            raise ValueError("not a dtype of plain values")
        return np.dtype(form)
    names, formats, offsets, titles = [], [], [], []
    for name, offset, part, shape, title in form.fields:
        base = _built(part)
        # numpy counts these bytes in 32 bits, and does not look at every sum.
        if offset + base.itemsize * prod(shape) > min(form.nbytes, (1 << 31) - 1):
            raise ValueError(f"field {name!r} is outside of the item")
        names.append(name)
        formats.append(np.dtype((base, shape)))
        offsets.append(offset)
        titles.append(title)
    return np.dtype(
        {"names": names, "formats": formats, "offsets": offsets, "titles": titles, "itemsize": form.nbytes}
    )
