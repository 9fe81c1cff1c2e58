"""fake: samples made up on the spot, to measure everything else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.checks import whole_number
from penstock.errors import PlanError
from penstock.randomness import Draws, derive
from penstock.sources.source import IndexedSource, Indices


class FakeSource(IndexedSource):
    """Random samples of a given shape that depend on their index alone, or one constant sample."""

    verb = "fake"

    def __init__(self, spec: Any, length: int, constant: bool = False) -> None:
        self.spec = spec
        self.count = whole_number(length, "fake(length=)")
        self.constant = constant
        # Made once: it refuses a bad spec here, at the line the user wrote.
        self._still = _filled(spec, lambda shape, dtype: _read_only(np.zeros(shape, dtype)))

    @property
    def label(self) -> str:
        return f"fake({'constant' if self.constant else 'random'}, {self.count})"

    def __len__(self) -> int:
        return self.count

    def read(self, indices: Indices) -> list[Any]:
        if self.constant:
            return [self._still] * len(indices)
        draws, key = Draws(), derive("fake")
        return [_filled(self.spec, _Noise(draws.at(key, int(index)))) for index in indices]


def _read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


class _Noise:
    """Random bytes as an array; floats are uniform in [0, 1)."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        if dtype.kind == "f":
            return self.rng.random(shape).astype(dtype)
        if dtype.kind == "b":
            return self.rng.integers(0, 2, shape, dtype=np.uint8).astype(bool)
        return np.frombuffer(bytearray(self.rng.bytes(math.prod(shape) * dtype.itemsize)), dtype).reshape(shape)


def _is_leaf(spec: Any) -> bool:
    return (
        isinstance(spec, (tuple, list))
        and len(spec) == 2
        and isinstance(spec[0], (tuple, list))
        and all(isinstance(size, (int, np.integer)) and size >= 0 for size in spec[0])
        and not isinstance(spec[1], (tuple, list, Mapping))
    )


def _filled(spec: Any, make: Any) -> Any:
    if _is_leaf(spec):
        try:
            dtype = np.dtype(spec[1])
        except TypeError as exc:
            raise PlanError(
                f"fake: {spec[1]!r} is not a dtype; write (shape, dtype), as in ((3,), 'float32')"
            ) from exc
        if dtype.kind not in "biuf":
            raise PlanError(f"fake makes numbers and bools, not {dtype}")
        return make(tuple(spec[0]), dtype)
    if isinstance(spec, Mapping):
        return {name: _filled(part, make) for name, part in spec.items()}
    if isinstance(spec, (tuple, list)) and spec:
        return tuple(_filled(part, make) for part in spec)
    raise PlanError(
        f"fake: {spec!r} is not a description of samples; write (shape, dtype), as in "
        "((224, 224, 3), 'uint8'), or a dict or tuple of these"
    )
