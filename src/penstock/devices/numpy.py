"""numpy arrays: tensors and arrays of other libraries as arrays that look at the same memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.devices.device import Device, Transfer, map_leaves
from penstock.errors import PlanError
from penstock.tensors import has_dlpack, is_tensor, on_host


def numpy(rest: str) -> Device:
    """``"numpy"``."""
    if rest:
        raise PlanError(f"to('numpy:{rest}'): numpy has one memory, that of the host; write to('numpy')")
    return NumpyDevice()


class NumpyDevice(Device):
    """Arrays in this process's memory."""

    name = "numpy"

    def transfer(self, dtype: Any, depth: int) -> Transfer:
        return NumpyTransfer(None if dtype is None else self._dtype(dtype))

    def check_dtype(self, dtype: Any) -> None:
        self._dtype(dtype)

    def _dtype(self, dtype: Any) -> np.dtype[Any]:
        try:
            found: np.dtype[Any] = np.dtype(dtype)
        except TypeError:
            found = np.dtype(bool)
        if found.kind != "f":
            raise PlanError(
                f"to('numpy', dtype=) takes a floating-point dtype of numpy, such as 'float32', got {dtype!r}; it "
                "converts the floats of a batch and leaves integers alone"
            )
        return found

    @property
    def remarks(self) -> tuple[str, ...]:
        return ("tensors become arrays that look at their memory; nothing is copied",)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NumpyDevice)

    def __hash__(self) -> int:
        return hash(self.name)


class NumpyTransfer(Transfer):
    """Tensors as arrays of the same memory."""

    def __init__(self, dtype: np.dtype[Any] | None) -> None:
        self._dtype = dtype

    def move(self, batch: Any, own_thread: bool) -> Any:
        return map_leaves(batch, self._leaf)

    def _leaf(self, value: Any) -> Any:
        if is_tensor(value):
            value = _array(value)
        elif has_dlpack(value):
            # Some have both, and hand numbers that DLPack does not know (bfloat16) to `__array__` alone.
            value = np.asarray(value) if hasattr(type(value), "__array__") else np.from_dlpack(value)
        if self._dtype is not None and isinstance(value, np.ndarray) and value.dtype.kind == "f":
            value = value.astype(self._dtype, copy=False)
        return value


def _array(tensor: Any) -> Any:
    if str(tensor.layout) != "torch.strided":
        raise TypeError(
            f"numpy has no arrays of the layout {tensor.layout}: convert the tensor in a map() before to('numpy'), "
            "as by x.to_dense()"
        )
    try:
        return on_host(tensor).numpy()
    except TypeError as exc:
        raise TypeError(
            f"numpy has nothing like {tensor.dtype}: convert the tensor in a map() before to('numpy'), as by "
            "x.float()"
        ) from exc
