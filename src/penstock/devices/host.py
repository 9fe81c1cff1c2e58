"""What all devices of torch do alike: arrays as tensors that look at the same memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.tensors import ARRAY_DTYPES, has_dlpack, is_tensor


def host_tensor(torch: Any, value: Any) -> Any:
    """A leaf as a tensor, without a copy if possible; None if it is not made of numbers that torch has.

    Copied are: arrays that are read-only (a tensor cannot be), of a foreign byte order, or read backwards.
    """
    if is_tensor(value):
        return value
    if isinstance(value, np.ndarray):
        return _of_array(torch, value)
    if has_dlpack(value):
        return torch.from_dlpack(value)
    return None


def _of_array(torch: Any, array: np.ndarray[Any, Any]) -> Any:
    dtype = array.dtype
    if dtype.hasobject or dtype.newbyteorder("=").name not in ARRAY_DTYPES or isinstance(array, np.ma.MaskedArray):
        return None
    if not dtype.isnative:
        array = array.astype(dtype.newbyteorder("="))
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array)


def cast(tensor: Any, dtype: Any) -> Any:
    """A tensor of floats in another dtype; others as they are, so that labels stay labels."""
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


def moved_itself(value: Any, device: Any) -> Any:
    """An object that knows how to go to a device, such as a PackedSequence or a graph; others stay on the host."""
    move = getattr(type(value), "to", None)
    return move(value, device) if callable(move) else value
