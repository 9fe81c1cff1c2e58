"""to: batches as tensors or arrays of a library, on a device."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any

from penstock.checks import whole_number
from penstock.devices.device import Device, Transfer, find_device
from penstock.ops.op import Delivery, In, Moves, Op, Prepared


class _Moving(Op[In, Any]):
    """What the op of a pipeline and that of a loader have in common: a stage of one thread, with a strict bound."""

    depth: int
    target: Device

    verb = "to"

    @property
    def delivery(self) -> Delivery:  # type: ignore[override]
        return Delivery(ready=self.depth, strict=True)

    @property
    def label(self) -> str:
        return f"to({self.target!r})"

    def run(self, samples: list[Any], info: Any) -> list[Any]:
        transfer: Transfer = info.bound
        moved: list[Any] = info.each(lambda sample: transfer.move(sample, info.own_thread), samples)
        return moved


@dataclass(frozen=True)
class To(_Moving[In]):
    """Put the arrays of each batch on a device: as tensors of torch, or as arrays of JAX or numpy.

    ``"cpu"``, ``"cuda"``, ``"cuda:1"`` and ``"mps"`` give tensors of torch; ``"numpy"`` and ``"jax"`` arrays. On
    the CPU nothing is copied. ``"cuda"`` is the current device of the thread that makes the loader. A device of
    torch, and a device or a sharding of JAX, may be given as an object.

    One thread of its own moves the batches, up to ``depth`` ahead of the training loop, and runs the ops after
    it. Any tree of dicts, tuples, lists and dataclasses will do; strings and other objects in it stay as they
    are. ``dtype`` converts floating-point arrays (``"bfloat16"``), and leaves integers, such as labels, alone.

    >>> import numpy as np
    >>> import penstock as ps
    >>> data = ps.from_arrays({"x": np.zeros((4, 2))}).batch(2).to("numpy", dtype="float32")
    >>> [(batch["x"].shape, batch["x"].dtype.name) for batch in data]
    [((2, 2), 'float32'), ((2, 2), 'float32')]
    """

    device: Any
    _: KW_ONLY
    depth: int = 2
    dtype: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", whole_number(self.depth, "to(depth=)", least=1))
        if self.dtype is not None:
            self.target.check_dtype(self.dtype)
        _ = self.target  # refuses a bad name here, at the line the user wrote

    @cached_property
    def target(self) -> Device:  # type: ignore[override]
        return find_device(self.device)

    def bind(self) -> Transfer:
        return self.target.transfer(self.dtype, self.depth)

    @property
    def moves(self) -> Moves:  # type: ignore[override]
        return _Moves(self, None)


class Move(_Moving[Any]):
    """A `to()` in one loader, with its transfer."""

    def __init__(self, op: To[Any], transfer: Transfer) -> None:
        self._op = op
        self._transfer = transfer
        self.depth = op.depth
        self.target = op.target

    @property
    def moves(self) -> Moves:  # type: ignore[override]
        return _Moves(self._op, self._transfer)

    def bind(self) -> Transfer:
        return self._transfer

    def __reduce__(self) -> tuple[Any, ...]:
        # A transfer belongs to this process. Another one is only told what stands before its own stages.
        return _again, (self._op,)


class _Moves(Moves):
    """How a `to()` moves batches; in a loader, by its transfer."""

    def __init__(self, op: To[Any], transfer: Transfer | None) -> None:
        self._op = op
        self._transfer = transfer
        self.local = op.target.local
        self.asynchronous = op.target.asynchronous
        self.remarks = (
            f"at most {op.depth} batches are ready or being moved, beside those that the training loop holds",
            *op.target.remarks,
        )

    def prepared(self) -> Prepared:
        transfer = self._op.bind()
        move = Move(self._op, transfer)
        return Prepared(move, Deliver(transfer), transfer.receive) if self.asynchronous else Prepared(move)

    def stats(self) -> dict[str, float]:
        return {} if self._transfer is None else self._transfer.stats()

    def close(self) -> None:
        if self._transfer is not None:
            self._transfer.close()


class Deliver(Op[Any, Any]):
    """Makes a batch ready for the training loop's thread, after all ops that ride with a `to()`."""

    verb = "to"
    label = ""

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer

    def run(self, samples: list[Any], info: Any) -> list[Any]:
        return [self._transfer.finish(sample) for sample in samples] if info.own_thread else samples


def _again(op: To[Any]) -> To[Any]:
    return op
