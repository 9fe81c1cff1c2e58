"""A loader as training frameworks want to see it."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from penstock.lazy import named
from penstock.sources.source import Flow

__all__ = ["Adapters"]

T = TypeVar("T", covariant=True)


class Adapters(Generic[T]):
    """What a `Loader` is to other libraries."""

    _flow: Flow

    def torch(self) -> Any:
        """The loader as code that expects torch's DataLoader wants it.

        It has ``len``, ``dataset``, ``batch_size``, ``sampler.set_epoch`` and the rest. Each iteration is the next
        epoch. It is not an instance of ``DataLoader``, so that no framework takes it apart.

        >>> import penstock as ps
        >>> with ps.from_sequence(range(5)).batch(2).loader() as loader:
        ...     as_torch = loader.torch()
        ...     len(as_torch), as_torch.batch_size, sum(1 for _ in as_torch)
        (3, 2, 3)
        """
        return named("penstock.frameworks.torch_loader:TorchLoader")(self, self._flow)
