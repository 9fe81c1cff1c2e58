"""Tensors of torch as arrays with the same bits, and back.

torch is imported only to make a tensor. Who only looks for tensors asks `is_tensor`, which goes by what the user's
program has imported: where torch is not loaded, nothing is a tensor.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import missing_extra

#: torch's dtypes that numpy does not have, and numpy's of the same size to carry the bits
_DISGUISED = {
    "bfloat16": "int16", "complex32": "int32", "float8_e4m3fn": "uint8", "float8_e4m3fnuz": "uint8",
    "float8_e5m2": "uint8", "float8_e5m2fnuz": "uint8", "float8_e8m0fnu": "uint8",
}  # fmt: skip
_SHARED = (
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
#: numpy's dtypes by the names of those of torch that they carry
ARRAY_DTYPES = {**{name: np.dtype(name) for name in _SHARED}, **{n: np.dtype(d) for n, d in _DISGUISED.items()}}


def is_tensor_type(kind: type) -> bool:
    """Whether values of this type are tensors."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor is not None and issubclass(kind, tensor)


def is_tensor(value: Any) -> bool:
    """Whether `value` is a tensor."""
    return is_tensor_type(type(value))


def has_dlpack(value: Any) -> bool:
    """Whether `value` is an array of another library, whose memory DLPack lets us look at."""
    return hasattr(type(value), "__dlpack__") and not isinstance(value, (np.ndarray, np.generic))


def dtype_name(tensor: Any) -> str | None:
    """The name of a tensor's dtype, if arrays can carry its bits: a plain one, on any device that has values."""
    name = str(tensor.dtype).removeprefix("torch.")
    strided = tensor.layout is sys.modules["torch"].strided and not tensor.is_nested
    plain = strided and tensor.device.type != "meta"
    return name if plain and name in ARRAY_DTYPES else None


def on_host(tensor: Any) -> Any:
    """The values of a tensor in this process's memory, without history; the same memory where that is possible."""
    return tensor.detach().cpu().resolve_conj().resolve_neg()


def array_of(tensor: Any) -> NDArray[Any]:
    """The bits of a tensor that has a `dtype_name`, as an array; the same memory where that is possible."""
    torch = sys.modules["torch"]
    tensor = on_host(tensor)
    disguise = _DISGUISED.get(str(tensor.dtype).removeprefix("torch."))
    array: NDArray[Any] = (tensor if disguise is None else tensor.view(getattr(torch, disguise))).numpy()
    return array


def tensor_of(array: NDArray[Any], name: str) -> Any:
    """The tensor of the dtype `name` that looks at the memory of `array`, or at a copy if that is read-only."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        raise missing_extra("torch", "torch", "making a tensor") from None
    # A tensor cannot be closed to writing.
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    return tensor.view(getattr(torch, name)) if name in _DISGUISED else tensor
