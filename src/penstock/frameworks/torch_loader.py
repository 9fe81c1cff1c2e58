"""A loader as code that expects torch's DataLoader wants to see it: `loader.torch()`."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any, Self

from penstock.errors import LengthUnknown
from penstock.ops.op import Effect, Op, group_size
from penstock.ops.read import Read
from penstock.plan.lengths import lengths
from penstock.plan.world import dealt, world_now
from penstock.sources.source import Flow


class _Epochs:
    """The sampler, as far as it is asked for: it is told the epoch, and counts samples."""

    def __init__(self, loader: Any, flow: Flow, batch: Op[Any, Any] | None) -> None:
        self._loader = loader
        self._flow = flow
        self._batch = batch

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration this epoch."""
        self._loader.set_epoch(epoch)

    def __len__(self) -> int:
        """Samples of an epoch on this rank, as a sampler of torch counts them, and not batches."""
        batches = len(self._loader)  # raises LengthUnknown
        if self._batch is None:
            return batches
        samples = lengths(dealt(self._flow, world_now()))[self._flow.ops.index(self._batch)]
        if samples is None or samples == inf:
            raise LengthUnknown(f"the number of samples that reach {self._batch.label} is not known before the run")
        return int(samples)


class TorchLoader:
    """Iterates a penstock loader, with the attributes of a DataLoader. Each iteration is the next epoch.

    It is no DataLoader: frameworks that take one apart, to put another sampler into it, leave an iterable alone.
    """

    #: what a DataLoader has, and what does not arise here: workers stay, and batches come from where they are
    num_workers = 0
    pin_memory = False
    pin_memory_device = ""
    timeout = 0
    prefetch_factor = None
    persistent_workers = True
    worker_init_fn = None
    multiprocessing_context = None
    generator = None
    in_order = True

    def __init__(self, loader: Any, flow: Flow) -> None:
        self.loader = loader
        self._flow = flow
        self._batch = _batch_op(flow)
        source = flow.source
        #: the dataset of `from_torch` or `from_sequence`, or the source itself
        self.dataset = getattr(source, "dataset", source)
        self.sampler = _Epochs(loader, flow, self._batch)
        self.batch_sampler = None

    @property
    def batch_size(self) -> int | None:
        """The size of a batch, or None if samples come one by one or batches vary in size."""
        return None if self._batch is None else group_size(self._batch) or None

    @property
    def drop_last(self) -> bool:
        """Whether a last batch that is short is left out."""
        return bool(getattr(self._batch, "drop_last", False))

    @property
    def collate_fn(self) -> Any:
        """What makes the batches, if it is a function of the user's or of torch."""
        reads = [op.fn.collate for op in self._flow.ops if isinstance(op, Read)]
        return next(filter(None, reads), getattr(self._batch, "collate", None))

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration this epoch."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands; see `Loader.state_dict`."""
        state: dict[str, Any] = self.loader.state_dict()
        return state

    def load_state_dict(self, state: Any) -> None:
        """Go on where `state` was saved."""
        self.loader.load_state_dict(state)

    def close(self) -> None:
        """End the workers; see `Loader.close`."""
        self.loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        # The epoch begins with the first batch: frameworks make iterators that they never read, and tell the
        # epoch later.
        yield from self.loader

    def __len__(self) -> int:
        return len(self.loader)

    def __repr__(self) -> str:
        return f"<TorchLoader of {self.loader!r}>"


def _batch_op(flow: Flow) -> Op[Any, Any] | None:
    """The op that makes the batches which are delivered."""
    op: Op[Any, Any]
    for op in reversed(flow.ops):
        if op.effect is Effect.REGROUPS:
            return op
        if op.effect is Effect.EXPANDS:
            return None
    return None
