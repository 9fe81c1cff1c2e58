"""A loader as training frameworks want to see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.lazy import named
from penstock.sources.source import Flow

T = TypeVar("T", covariant=True)

#: what code asks a DataLoader for, and `torch()` has
_OF_DATALOADER = frozenset(
    ("dataset", "batch_size", "drop_last", "sampler", "batch_sampler", "collate_fn", "num_workers")
)


class Adapters(Generic[T]):
    """What a `Loader` is to other libraries."""

    _flow: Flow

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            said = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in _OF_DATALOADER:
                said += ", which torch's DataLoader has; the object that loader.torch() returns has it too"
            raise AttributeError(said, name=name, obj=self)

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "a loader runs workers, so it cannot be copied or sent to another process; make another one from its "
            "pipeline, with state=loader.state_dict() to continue where it stands"
        )

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

    def jax(self, sharding: Any = None, *, depth: int = 2) -> Any:
        """The loader's batches as arrays of JAX, put on their devices up to `depth` batches ahead.

        ``sharding`` is a sharding or a device of JAX; without it, arrays go to JAX's default device. Each iteration
        is the next epoch. ``state_dict()`` of what is returned is where the training loop stands.
        """
        return named("penstock.frameworks.jax_loader:JaxLoader")(self, sharding, depth)

    def keras(self) -> Any:
        """The loader as a ``keras.utils.PyDataset``, for ``model.fit``: each epoch there is the next one here.

        Samples are tuples ``(inputs, targets)``, or ``(inputs, targets, weights)``.
        """
        return named("penstock.frameworks.keras_dataset:keras_dataset")(self)
