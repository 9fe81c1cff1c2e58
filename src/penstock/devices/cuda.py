"""Batches to a CUDA device, while the training step runs.

The transfer worker copies each array into pinned memory and starts the copy to the device on a stream of its own.
An event marks the end of that copy: when it has happened, the pinned memory is used again. A second event marks
the end of what later ops have done with the batch. The training loop's stream waits for it on the device, when
the batch is handed over; the host never waits for it.

The tensors are allocated on the transfer's stream. `record_stream` tells torch's allocator that the training loop's
stream uses them too, so that their memory is not given to a later copy before the step that reads them is over.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from penstock.devices.device import Transfer, map_leaves
from penstock.devices.host import cast, host_tensor, moved_itself
from penstock.errors import PlanError
from penstock.tensors import is_tensor

#: sizes of pinned buffers are multiples of this, so that batches of nearly one size share them
_ROUND = 256 * 1024


class Staged(NamedTuple):
    """A batch on its way to the device, and the event after which it is there."""

    batch: Any
    ready: Any


class CudaTransfer(Transfer):
    """Copies the batches of one loader to one CUDA device."""

    def __init__(self, torch: Any, index: int, dtype: Any, depth: int) -> None:
        self._torch = torch
        self._device = torch.device("cuda", index)
        self._dtype = dtype
        self._stream = torch.cuda.Stream(device=self._device)
        self._pinned = PinnedBuffers(torch, depth + 1)
        #: the stream that was current in the transfer worker before
        self._before: Any = None
        self._bytes = 0

    def move(self, batch: Any, own_thread: bool) -> Any:
        cuda = self._torch.cuda
        if own_thread:
            # Until `finish`: ops behind to() run in this thread, and so on this stream.
            self._before = self._before or cuda.current_stream(self._device)
            cuda.set_stream(self._stream)
            return self._copied(batch)[0]
        current = cuda.current_stream(self._device)
        with cuda.stream(self._stream):
            moved, copied = self._copied(batch)
        self._handed_to(current, moved, copied)
        return moved

    def finish(self, batch: Any) -> Staged:
        staged = Staged(batch, self._stream.record_event())
        if self._before is not None:
            self._torch.cuda.set_stream(self._before)
            self._before = None
        return staged

    def receive(self, batch: Any) -> Any:
        if type(batch) is not Staged:
            return batch
        self._handed_to(self._torch.cuda.current_stream(self._device), *batch)
        return batch.batch

    def _handed_to(self, stream: Any, batch: Any, ready: Any) -> None:
        stream.wait_event(ready)

        def record(leaf: Any) -> Any:
            if is_tensor(leaf) and leaf.is_cuda:
                leaf.record_stream(stream)
            return leaf

        map_leaves(batch, record)

    def _copied(self, batch: Any) -> tuple[Any, Any]:
        """The batch on the device, and the event after which all of its copies are done."""
        held: list[Any] = []
        try:
            moved = map_leaves(batch, lambda leaf: self._leaf(leaf, held))
        finally:
            # Also if a leaf fails: the copies before it may still be running.
            copied = self._stream.record_event()
            self._pinned.release(held, copied)
        return moved, copied

    def _leaf(self, value: Any, held: list[Any]) -> Any:
        source = host_tensor(self._torch, value)
        if source is None:
            return moved_itself(value, self._device)
        source = source.detach()  # a copy that belongs to a graph would keep its buffer in it
        if source.device.type != "cpu" or source.layout is not self._torch.strided or source.is_nested:
            tensor = source.to(self._device, non_blocking=True)
        else:
            tensor = self._torch.empty_like(source, device=self._device)  # with its memory format
            if source.numel():
                tensor.copy_(self._staged(source, tensor.stride(), held), non_blocking=True)
            self._bytes += source.nbytes
        return cast(tensor, self._dtype)

    def _staged(self, source: Any, strides: Any, held: list[Any]) -> Any:
        """The values of `source` in pinned memory with these `strides`; the memory is in `held` from now on."""
        if source.is_pinned() and source.stride() == strides:
            held.append(source)
            return source
        buffer = self._pinned.take(source.nbytes)
        held.append(buffer)
        staged = buffer[: source.nbytes].view(source.dtype).as_strided(source.shape, strides)
        staged.copy_(source)
        return staged

    def stats(self) -> dict[str, float]:
        return {
            "bytes": self._bytes,
            "pinned_bytes": self._pinned.nbytes,
            "host_waits": self._pinned.waits,
        }

    def close(self) -> None:
        self._pinned.close()


class PinnedBuffers:
    """Pinned host memory, used again when the copy out of it is done. One thread at a time uses it."""

    def __init__(self, torch: Any, most: int) -> None:
        self._torch = torch
        #: batches whose copies may be under way; before one more, the host waits for the oldest
        self._most = most
        self._free: list[Any] = []
        self._under_way: deque[tuple[Any, list[Any]]] = deque()
        #: buffers that are ours, those in use included, and what they have
        self._own: set[int] = set()
        self.nbytes = 0
        #: how often the host has waited for a copy
        self.waits = 0

    def take(self, nbytes: int) -> Any:
        """A pinned buffer of at least `nbytes`, the caller's until `release`."""
        self._collect()
        fitting = [buffer for buffer in self._free if nbytes <= buffer.numel() <= 2 * nbytes + _ROUND]
        if fitting:
            best = min(fitting, key=lambda buffer: buffer.numel())
            self._free = [buffer for buffer in self._free if buffer is not best]
            return best
        # Buffers that fit nothing any more belong to batches of another size.
        for buffer in self._free[: max(0, len(self._free) - self._most)]:
            self._forget(buffer)
        size = -(-nbytes // _ROUND) * _ROUND
        buffer = self._torch.empty(size, dtype=self._torch.uint8, pin_memory=True)
        self._own.add(id(buffer))
        self.nbytes += size
        return buffer

    def release(self, buffers: list[Any], copied: Any) -> None:
        """The copies out of `buffers` are done when the event `copied` has happened."""
        if buffers:
            self._under_way.append((copied, buffers))

    def _collect(self) -> None:
        """Take back the buffers whose copies are done; wait for the oldest if too many are under way."""
        while self._under_way:
            copied, buffers = self._under_way[0]
            if not copied.query():
                if len(self._under_way) < self._most:
                    return
                self.waits += 1
                copied.synchronize()
            self._under_way.popleft()
            # Those that were pinned by somebody else are only kept alive here.
            self._free += [buffer for buffer in buffers if id(buffer) in self._own]

    def _forget(self, buffer: Any) -> None:
        self._free = [one for one in self._free if one is not buffer]
        self._own.discard(id(buffer))
        self.nbytes -= buffer.numel()

    def close(self) -> None:
        """Give all memory back. Copies that are under way are waited for."""
        while self._under_way:
            copied, _ = self._under_way.popleft()
            copied.synchronize()
        self._free.clear()
        self._own.clear()
        self.nbytes = 0


def cuda_index(torch: Any, index: int | None) -> int:
    """The number of the CUDA device: the given one, or the current one of this thread."""
    written = "cuda" if index is None else f"cuda:{index}"
    if not torch.cuda.is_available():
        built = getattr(torch.version, "cuda", None)
        why = (
            "it was built without CUDA"
            if built is None
            else f"it was built with CUDA {built}, and finds no GPU or driver"
        )
        raise PlanError(
            f"to({written!r}): torch {torch.__version__} sees no CUDA device: {why}; check CUDA_VISIBLE_DEVICES, "
            "install a build of torch with CUDA, or use to('cpu')"
        )
    if index is None:
        return int(torch.cuda.current_device())
    count = torch.cuda.device_count()
    if index >= count:
        raise PlanError(f"to({written!r}): there are {count} CUDA devices here, 'cuda:0' to 'cuda:{count - 1}'")
    return index
