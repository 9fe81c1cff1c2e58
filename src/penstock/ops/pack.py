"""pack: rows of one length, with several documents in each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from penstock.checks import whole_number
from penstock.errors import PlanError, RaggedBatch, Skip
from penstock.ops.fields import get_field
from penstock.ops.joint import Joint, Length
from penstock.ops.op import Effect, In, Key, Op, member_name, unknown
from penstock.ops.residents import Measured, Measuring
from penstock.ops.rows import Concat, Fit, Tokens
from penstock.trees import leaf_array

How = Literal["concat", "fit"]
Long = Literal["split", "truncate", "drop", "raise"]


class _RowLength(int):
    """How long a row is. An op's `length` is also asked how many samples will leave: that depends on them."""

    def __call__(self, n: Length) -> Length:
        return unknown(n)


@dataclass(frozen=True)
class Pack(Op[In, dict[Any, Any]]):
    """Fill rows of `length` with the field `key` of consecutive samples, so that hardly anything is padded.

    A row is a dict of three arrays: the field itself, ``"segment"`` (1 for the first document of
    the row, 2 for the second; 0 where the row is padded) and ``"position"`` (from 0 in each of
    them). The field is a list of numbers or an array, ``(n,)`` or ``(n, ...)``; other fields are
    left behind. ``eos=`` is put behind every document and counts as part of it.

    ``how="concat"`` puts the documents one after the other and cuts that into rows: every row but
    the last of an epoch is full, and documents go on in the next row. ``how="fit"`` puts each
    whole document into the first open row that has room; a row leaves when it is full, and the
    fullest when there would be more than 32, or more than 512 documents in several rows.

    ``long`` says what becomes of a document that is longer than a row: ``"split"`` it into
    rows, ``"truncate"`` it (its eos stays), ``"drop"`` it (``loader.errors()`` lists it) or
    ``"raise"``. A document without anything in it takes no room.

    >>> import penstock as ps
    >>> documents = ps.from_sequence([{"ids": [1, 1, 1]}, {"ids": [2, 2, 2]}, {"ids": [3]}])
    >>> for row in documents.pack(4, key="ids"):
    ...     print(row["ids"], row["segment"], row["position"])
    [1 1 1 2] [1 1 1 2] [0 1 2 0]
    [2 2 3 0] [1 1 2 0] [0 1 0 0]
    >>> [row["ids"].tolist() for row in documents.pack(4, key="ids", how="fit")]
    [[1, 1, 1, 3], [2, 2, 2, 0]]
    """

    length: int = field()  # type: ignore[assignment]
    _: KW_ONLY
    key: str | int
    how: How = "concat"
    eos: float | None = None
    long: Long = "split"

    verb = "pack"
    effect: ClassVar[Effect] = Effect.REGROUPS

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", _RowLength(whole_number(self.length, "pack(length)", least=1)))
        if isinstance(self.key, bool) or not isinstance(self.key, (str, int)):
            raise PlanError(f"pack(key=) takes the name of a field, got {self.key!r}")
        if self.key in ("segment", "position"):
            raise PlanError(
                f"pack(key={self.key!r}) would give two fields of that name; rename it in a map() before pack()"
            )
        if self.how not in ("concat", "fit"):
            raise PlanError(f"pack(how=) takes 'concat' or 'fit', got {self.how!r}")
        if self.long not in ("split", "truncate", "drop", "raise"):
            raise PlanError(f"pack(long=) takes 'split', 'truncate', 'drop' or 'raise', got {self.long!r}")
        if self.eos is not None:
            eos = self.eos.item() if isinstance(self.eos, np.generic) else self.eos
            if isinstance(eos, bool) or not isinstance(eos, (int, float)):
                raise PlanError(f"pack(eos=) takes a number, got {self.eos!r}")
            object.__setattr__(self, "eos", eos)

    @property
    def label(self) -> str:
        return f"pack({self.length}, key={self.key!r}, how={self.how!r})"

    @property
    def preceded_by(self) -> tuple[Op[Any, Any], ...]:  # type: ignore[override]
        """What must stand right before it: its samples come as arrays, with their lengths."""
        return (_Measure(self.length, self.key, self.eos is not None, self.long),)

    def run(self, samples: list[Any], info: Any) -> Sequence[Any]:
        """Each of `samples` is the list of the pieces of one row."""
        return list(info.each(partial(self._row, describe=member_name(info)), samples))

    def _row(self, pieces: list[Tokens], describe: Callable[[int], str]) -> dict[Any, Any]:
        length = int(self.length)
        dtype = self._dtype([tokens for tokens, _ in pieces], describe)
        row = np.zeros((length, *pieces[0][0].shape[1:]), dtype)
        segment = np.zeros(length, np.int64)
        position = np.zeros(length, np.int64)
        start = 0
        for number, (tokens, ends) in enumerate(pieces):
            stop = start + len(tokens)
            row[start:stop] = tokens
            if ends:
                row[stop] = self._eos(dtype)
                stop += 1
            segment[start:stop] = number + 1
            position[start:stop] = np.arange(stop - start)
            start = stop
        return {self.key: row, "segment": segment, "position": position}

    def _dtype(self, arrays: list[Any], describe: Callable[[int], str]) -> np.dtype[Any]:
        first = arrays[0]
        for number, array in enumerate(arrays):
            if array.shape[1:] != first.shape[1:]:
                raise RaggedBatch(
                    f"field {self.key!r}: (n, *{first.shape[1:]}) then (n, *{array.shape[1:]}) at "
                    f"{describe(number)}; only the first axis may vary in pack()"
                )
        dtype = np.result_type(*{array.dtype for array in arrays})
        if dtype.kind == "f" and all(array.dtype.kind in "iu" for array in arrays):
            names = ", ".join(sorted({str(array.dtype) for array in arrays}))
            raise RaggedBatch(
                f"field {self.key!r}: one row has {names}, which only a float could hold; use one of them"
            )
        return dtype

    def _eos(self, dtype: np.dtype[Any]) -> Any:
        try:
            with np.errstate(all="ignore"):
                value = np.array(self.eos).astype(dtype)
            if value.item() == self.eos:
                return value
        except OverflowError:
            pass
        raise ValueError(
            f"eos={self.eos} cannot be written as {dtype}, the dtype of field {self.key!r}; convert it in a map()"
        )

    def joint(self, key: Key, epoch: int, memo: dict[str, Any]) -> Joint:
        kind = Concat if self.how == "concat" else Fit
        return kind(int(self.length), self.label)


@dataclass(frozen=True)
class _Measure(Measuring[In]):
    """Makes an array of the field and measures it, with its eos."""

    row: int
    key: str | int
    eos: bool
    long: Long

    verb = "pack"

    @property
    def may_skip(self) -> bool:  # type: ignore[override]
        return self.long == "drop"

    @property
    def title(self) -> str:
        return "measure"

    @property
    def label(self) -> str:
        return f"pack(key={self.key!r})"

    def bind(self) -> Callable[[Any], Measured]:
        return self._measured

    def _measured(self, sample: Any) -> Measured:
        tokens = self._array(get_field(sample, self.key))
        measure = len(tokens) + self.eos
        if measure <= self.row or self.long == "split":
            return Measured(measure, tokens)
        if self.long == "truncate":
            return Measured(int(self.row), tokens[: self.row - self.eos])
        said = (
            f"field {self.key!r} is {measure} long{' with its eos' if self.eos else ''}, a row of pack() {self.row}"
        )
        if self.long == "drop":
            raise Skip(said)
        raise ValueError(f"{said}; use long='split', 'truncate' or 'drop', or longer rows")

    def _array(self, value: Any) -> Any:
        if isinstance(value, list) and not value:
            return np.zeros(0, np.int64)  # an empty list has no type of its own
        array = leaf_array(value)
        if array is None or array.dtype.kind in "mM":
            raise TypeError(
                f"pack(key={self.key!r}) needs numbers, got {type(value).__name__}; make numbers of it in a map(), "
                "with a tokeniser or by np.frombuffer(data, 'uint8')"
            )
        if not array.ndim:
            raise TypeError(f"pack(key={self.key!r}) needs a list or an array, got the single number {value!r}")
        return array
