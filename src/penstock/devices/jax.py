"""Arrays of JAX: on its default device, on one of its devices, or spread over several by a sharding.

`jax.device_put` starts a copy and returns at once; JAX itself makes whoever uses the array wait for it. On the
CPU it may look at the memory of the numpy array instead of copying. It then holds the array, and the array keeps
its memory from being used again.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from penstock.devices.device import Device, Transfer, map_leaves, number_of
from penstock.errors import PlanError, missing_extra
from penstock.tensors import array_of, dtype_name, has_dlpack, is_tensor

#: kinds of numpy dtypes that JAX has
_NUMBERS = frozenset("biufc")


def jax(rest: str) -> Device:
    """``"jax"``: JAX's default device. ``"jax:1"``: number 1 of ``jax.devices()``."""
    return JaxDevice("jax" + (f":{rest}" if rest else ""), index=number_of("jax", rest))


def placed(where: Any) -> Device:
    """A device or a sharding of JAX."""
    return JaxDevice(f"jax {where}", where=where)


class JaxDevice(Device):
    """Where `jax.device_put` puts arrays."""

    local = True

    def __init__(self, name: str, index: int | None = None, where: Any = None) -> None:
        self.name = name
        self.index = index
        self.where = where

    def transfer(self, dtype: Any, depth: int) -> Transfer:
        try:
            module = importlib.import_module("jax")
        except ImportError:
            raise missing_extra("jax", "jax", f"to({self.name!r})") from None
        where = self.where
        if self.index is not None:
            devices = module.devices()
            if self.index >= len(devices):
                raise PlanError(
                    f"to({self.name!r}): JAX has {len(devices)} devices here, 'jax:0' to 'jax:{len(devices) - 1}'"
                )
            where = devices[self.index]
        return JaxTransfer(module, where, None if dtype is None else _dtype(module, dtype))

    @property
    def remarks(self) -> tuple[str, ...]:
        return ("jax.device_put starts each copy; on the CPU, JAX may look at the memory of the array instead",)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JaxDevice) and (other.name, other.where) == (self.name, self.where)

    def __hash__(self) -> int:
        return hash(self.name)


class JaxTransfer(Transfer):
    """Arrays as arrays of JAX."""

    def __init__(self, module: Any, where: Any, dtype: Any) -> None:
        self._jax = module
        self._where = where
        #: starts a copy. With devices of several processes, each has its own part of the global array
        self._put = module.device_put
        if not getattr(where, "is_fully_addressable", True):
            self._put = lambda value, sharding: module.make_array_from_process_local_data(sharding, value)
        self._dtype = dtype
        self._bytes = 0

    def move(self, batch: Any, own_thread: bool) -> Any:
        return map_leaves(batch, self._leaf)

    def _leaf(self, value: Any) -> Any:
        if is_tensor(value):
            name = dtype_name(value)
            if name is None:
                return value
            plain = value.device.type == "cpu" and hasattr(np, name)
            value = array_of(value) if plain else self._jax.dlpack.from_dlpack(value.detach().contiguous())
        elif isinstance(value, np.ndarray):
            if value.dtype.kind not in _NUMBERS or isinstance(value, np.ma.MaskedArray):
                return value
        elif not isinstance(value, self._jax.Array):
            if not has_dlpack(value):
                return value
            value = self._jax.dlpack.from_dlpack(value)
        try:
            moved = self._put(value, self._where)
        except ValueError as exc:
            if self._where is not None:
                exc.add_note(
                    f"an array of shape {tuple(value.shape)} was to be put on {self._where}; if it is the short "
                    "last batch of an epoch, leave it out with batch(n, drop_last=True)"
                )
            raise
        if self._dtype is not None and self._jax.numpy.issubdtype(moved.dtype, self._jax.numpy.floating):
            moved = moved.astype(self._dtype)
        self._bytes += moved.nbytes
        return moved

    def stats(self) -> dict[str, float]:
        return {"bytes": self._bytes}


def _dtype(module: Any, dtype: Any) -> Any:
    try:
        found = module.numpy.dtype(dtype)
    except TypeError:
        found = module.numpy.dtype(bool)
    if not module.numpy.issubdtype(found, module.numpy.floating):
        raise PlanError(
            f"to('jax', dtype=) takes a floating-point dtype of JAX, such as 'bfloat16', got {dtype!r}; it "
            "converts the floats of a batch and leaves integers alone"
        )
    return found
