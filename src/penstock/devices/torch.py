"""Tensors of torch: in this process's memory (``"cpu"``), on a CUDA device (`cuda.py`), or on ``"mps"``.

On the CPU nothing is copied: a tensor looks at the memory of the array that a worker has filled. The tensor keeps
the array, and the array keeps its memory from being used again.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from penstock.devices.cuda import CudaTransfer, cuda_index
from penstock.devices.device import Device, Transfer, map_leaves, number_of
from penstock.devices.host import cast, host_tensor, moved_itself
from penstock.errors import PlanError, missing_extra


def cpu(rest: str) -> Device:
    """``"cpu"``, or ``"cpu:0"`` as torch writes it too."""
    if number_of("cpu", rest):
        raise PlanError(f"to('cpu:{rest}'): torch has one CPU device; write to('cpu')")
    return TorchDevice("cpu", None)


def cuda(rest: str) -> Device:
    """``"cuda"``, the current device of the thread that makes the loader, or ``"cuda:1"``."""
    return TorchDevice("cuda", number_of("cuda", rest))


def mps(rest: str) -> Device:
    """``"mps"``: the GPU of an Apple computer."""
    if number_of("mps", rest):
        raise PlanError(f"to('mps:{rest}'): there is one MPS device; write to('mps')")
    return TorchDevice("mps", None)


class TorchDevice(Device):
    """A kind of torch device, and its number if the user has given one."""

    def __init__(self, kind: str, index: int | None) -> None:
        self.kind = kind
        self.index = index
        self.name = kind if index is None else f"{kind}:{index}"
        self.asynchronous = kind == "cuda"
        self.local = kind != "cpu"

    def transfer(self, dtype: Any, depth: int) -> Transfer:
        torch = import_torch(self.name)
        wanted = torch_dtype(torch, dtype, self.name)
        if self.kind == "cpu":
            return HostTransfer(torch, wanted)
        if self.kind == "mps":
            if not torch.backends.mps.is_available():
                raise PlanError(
                    f"to('mps'): torch {torch.__version__} finds no MPS device here; it needs macOS on Apple "
                    "silicon. Use to('cpu')"
                )
            return MpsTransfer(torch, wanted)
        return CudaTransfer(torch, cuda_index(torch, self.index), wanted, depth)

    def check_dtype(self, dtype: Any) -> None:
        _dtype_name(dtype, self.name)

    @property
    def remarks(self) -> tuple[str, ...]:
        if self.kind == "cpu":
            return ("tensors look at the memory of the arrays; nothing is copied",)
        if self.kind == "mps":
            return ("each batch is copied to the device before the next one",)
        return (
            "batches are copied from pinned memory, which is used again, on a CUDA stream of their own",
            "the training loop's stream waits for each copy on the device; the host does not wait",
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TorchDevice) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


class HostTransfer(Transfer):
    """Arrays as tensors of the same memory."""

    def __init__(self, torch: Any, dtype: Any) -> None:
        self._torch = torch
        self._dtype = dtype

    def move(self, batch: Any, own_thread: bool) -> Any:
        return map_leaves(batch, self._leaf)

    def _leaf(self, value: Any) -> Any:
        tensor = host_tensor(self._torch, value)
        if tensor is None:
            return value
        if tensor.device.type != "cpu":
            tensor = tensor.cpu()
        return cast(tensor, self._dtype)


class MpsTransfer(Transfer):
    """Arrays as tensors on Apple's GPU, one copy after the other."""

    def __init__(self, torch: Any, dtype: Any) -> None:
        self._torch = torch
        self._dtype = dtype
        self._bytes = 0

    def move(self, batch: Any, own_thread: bool) -> Any:
        return map_leaves(batch, self._leaf)

    def _leaf(self, value: Any) -> Any:
        tensor = host_tensor(self._torch, value)
        if tensor is None:
            return moved_itself(value, "mps")
        tensor = cast(tensor, self._dtype)
        self._bytes += tensor.nbytes
        return tensor.to("mps")

    def stats(self) -> dict[str, float]:
        return {"bytes": self._bytes}


def import_torch(name: str) -> Any:
    """torch, or an error that says how to get it."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise missing_extra("torch", "torch", f"to({name!r})") from None


def _dtype_name(dtype: Any, device: str) -> str:
    if isinstance(dtype, str) and dtype.removeprefix("torch.").isidentifier():
        return dtype.removeprefix("torch.")
    if type(dtype).__module__ == "torch":
        return str(dtype).removeprefix("torch.")
    try:
        return str(np.dtype(dtype).name)
    except TypeError:
        raise PlanError(
            f"to({device!r}, dtype=) takes a dtype of torch or its name, such as 'float16' or 'bfloat16', "
            f"got {dtype!r}"
        ) from None


def torch_dtype(torch: Any, dtype: Any, device: str) -> Any:
    """The dtype of torch that `to(dtype=)` names, or None."""
    if dtype is None:
        return None
    name = _dtype_name(dtype, device)
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise PlanError(
            f"to({device!r}, dtype={name!r}): that is no floating-point dtype of torch. dtype= converts the "
            "floats of a batch and leaves integers alone; for others use map() behind to()"
        )
    return found
