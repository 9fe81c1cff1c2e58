"""The contract of a device: where `to()` puts the arrays of a batch.

A `Device` is a name that was read: plain data, without the library behind it. `transfer()` is called once for each
loader, in the thread that makes the loader; it imports the library, finds the hardware and returns a `Transfer`.

A `Transfer` belongs to one loader. One thread at a time calls `move`. A device whose copies go on after `move` has
returned is `asynchronous`: its transfer also has `finish`, called in the same thread after all ops that follow, and
`receive`, called in the training loop's thread when the batch is handed over.

Our own devices are found by name in `OWN`. Third parties register theirs as entry points of the group
``penstock.devices``: a callable that takes the rest of the name (``"tpu:3"`` gives ``"3"``) and returns a `Device`.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from penstock.errors import PlanError
from penstock.lazy import named
from penstock.tensors import is_tensor
from penstock.trees import fields_of, rebuilt

#: the devices that come with penstock: the first part of the name, and what makes one of the rest
OWN = {
    "cpu": "penstock.devices.torch:cpu",
    "cuda": "penstock.devices.torch:cuda",
    "mps": "penstock.devices.torch:mps",
    "numpy": "penstock.devices.numpy:numpy",
    "jax": "penstock.devices.jax:jax",
}
#: what people write, and what they mean
_ALMOST = {"gpu": "cuda", "torch": "cpu", "pytorch": "cpu", "host": "cpu", "np": "numpy", "metal": "mps"}


class Transfer(ABC):
    """Moves the batches of one loader."""

    @abstractmethod
    def move(self, batch: Any, own_thread: bool) -> Any:
        """`batch` on the device. `own_thread` says that the calling thread does nothing else."""

    def finish(self, batch: Any) -> Any:
        """`batch` after all ops that ran on it, made ready to cross to another thread."""
        return batch

    def receive(self, batch: Any) -> Any:
        """What `finish` returned, for the training loop's thread, which calls this."""
        return batch

    def stats(self) -> dict[str, float]:
        """What was counted, for ``loader.stats()``."""
        return {}

    def close(self) -> None:
        """The loader is closed: give memory back."""


class Device(ABC):
    """Where batches go, by name."""

    #: as the user would write it: ``"cuda:1"``
    name: str
    #: copies go on after `Transfer.move` has returned, so batches pass `finish` and `receive`
    asynchronous: bool = False
    #: what is there cannot be sent to another process
    local: bool = False

    @abstractmethod
    def transfer(self, dtype: Any, depth: int) -> Transfer:
        """A transfer for one loader. Raises `PlanError` or `MissingExtra` if the device cannot be used here."""

    def check_dtype(self, dtype: Any) -> None:
        """Raise `PlanError` if this cannot be a dtype of the device. Imports nothing."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """What `explain()` says about transfers to it."""
        return ()

    def __repr__(self) -> str:
        return repr(self.name)


def find_device(spec: Any) -> Device:
    """The device that `to()` was given: by its name, or as an object of its library."""
    if isinstance(spec, Device):
        return spec
    module = type(spec).__module__.partition(".")[0]
    if module == "torch" and hasattr(spec, "index"):  # a torch.device
        spec = spec.type if spec.index is None else f"{spec.type}:{spec.index}"
    elif module in ("jax", "jaxlib"):  # a device or a sharding of jax
        found: Device = named("penstock.devices.jax:placed")(spec)
        return found
    if not isinstance(spec, str):
        raise PlanError(
            f"to() takes the name of a device, such as 'cpu', 'cuda' or 'cuda:1', got {spec!r} of type "
            f"{type(spec).__name__}; there are: {', '.join(_known())}"
        )
    kind, colon, rest = spec.partition(":")
    make = _maker(kind)
    if make is None:
        meant = _ALMOST.get(kind.lower(), kind.lower())
        hint = f"; did you mean {meant + colon + rest!r}?" if meant in OWN else ""
        raise PlanError(f"there is no device called {spec!r}; there are: {', '.join(_known())}{hint}")
    if colon and not rest:
        raise PlanError(
            f"to({spec!r}): a number is missing after the colon; write to({kind + ':0'!r}) or to({kind!r})"
        )
    made = make(rest)
    if not isinstance(made, Device):
        raise PlanError(f"to({spec!r}): what is registered as {kind!r} gave a {type(made).__name__}, not a Device")
    return made


def number_of(kind: str, rest: str) -> int | None:
    """The number of a device in its name, or None if the name has none."""
    if not rest:
        return None
    if not rest.isdecimal():
        raise PlanError(
            f"to({f'{kind}:{rest}'!r}): devices of {kind} are numbered from 0, write to({kind + ':0'!r})"
        )
    return int(rest)


def _maker(kind: str) -> Callable[[str], Any] | None:
    if kind in OWN:
        own: Callable[[str], Any] = named(OWN[kind])
        return own
    entry = _registered().get(kind)
    return None if entry is None else entry.load()


def _registered() -> dict[str, Any]:
    from importlib.metadata import entry_points  # takes long, and few have devices of their own

    return {entry.name: entry for entry in entry_points(group="penstock.devices")}


def _known() -> list[str]:
    return [*OWN, *sorted(set(_registered()) - set(OWN))]


def map_leaves(batch: Any, convert: Callable[[Any], Any]) -> Any:
    """`batch` with every leaf replaced by ``convert(leaf)``; lists are nodes too, and other objects leaves.

    A node none of whose leaves have changed is passed on as it is.

    >>> map_leaves({"x": [1, 2], "s": "a"}, lambda leaf: -leaf if isinstance(leaf, int) else leaf)
    {'x': [-1, -2], 's': 'a'}
    """
    if type(batch) is list:
        items = [map_leaves(item, convert) for item in batch]
        return batch if all(map(_same, items, batch)) else items
    fields = None if is_tensor(batch) or callable(getattr(type(batch), "to", None)) else fields_of(batch)
    if fields is None:
        return convert(batch)
    moved = {name: map_leaves(value, convert) for name, value in fields.items()}
    return batch if all(map(_same, moved.values(), fields.values())) else _of_kind(batch, moved)


def _of_kind(batch: Any, fields: dict[Any, Any]) -> Any:
    """A node of the kind of `batch` with other fields; unlike a batch of samples, an OrderedDict remains one."""
    if isinstance(batch, dict) and type(batch) is not dict:
        made = copy.copy(batch)
        made.update(fields)
        return made
    return rebuilt(batch, fields)


def _same(one: Any, other: Any) -> bool:
    return one is other
