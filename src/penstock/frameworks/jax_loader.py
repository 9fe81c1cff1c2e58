"""A loader whose batches are arrays of JAX, on one device or spread over several: `loader.jax()`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from penstock.checks import whole_number
from penstock.devices.device import find_device


class JaxLoader:
    """Iterates a loader, and puts each batch on its devices before it is asked for.

    Each iteration is the next epoch.
    """

    def __init__(self, loader: Any, sharding: Any, depth: int) -> None:
        self.loader = loader
        self._depth = whole_number(depth, "jax(depth=)")
        self._transfer = find_device("jax" if sharding is None else sharding).transfer(None, self._depth)
        #: batches that the loader has handed over and the training loop has not got
        self._ahead: deque[Any] = deque()

    def __iter__(self) -> Iterator[Any]:
        ahead = self._ahead
        ahead.clear()
        for batch in self.loader:
            ahead.append(self._transfer.move(batch, own_thread=False))
            del batch
            if len(ahead) > self._depth:
                yield ahead.popleft()
        while ahead:
            yield ahead.popleft()

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration this epoch."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the training loop stands: batches that are on the devices and not handed over are still owed."""
        state: dict[str, Any] = self.loader.state_dict(behind=len(self._ahead))
        return state

    def load_state_dict(self, state: Any) -> None:
        """Go on where `state` was saved."""
        self._ahead.clear()
        self.loader.load_state_dict(state)
