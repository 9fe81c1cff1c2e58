"""Ways to run one pipeline, and the streams that come out."""

from __future__ import annotations

import math
import socket
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from penstock.errors import PlanError
from penstock.memory.parcel import pack
from penstock.ops.op import joint_of
from penstock.pipeline import Pipeline
from penstock.plan.lengths import flow_length
from penstock.program.chunk import ErrorRecord
from penstock.sources.source import Flow
from penstock.testing.interleaving import interleave
from penstock.testing.same import assert_same, difference

#: a batch that takes longer is one that never comes
_HANGS_S = 60.0
#: bytes that the windows of small samples fit into
_ROOMY = 10_000


@dataclass(frozen=True, slots=True)
class Layout:
    """One way to run a pipeline: where, by how many, within what bounds.

    ``keep`` is the most finished samples that are kept ready, and so bounds the size of a ticket.
    ``order`` is the seed of an interleaving; see `penstock.testing.interleave`.

    >>> print(Layout("process", 2, memory="1MB"))
    on 2 process workers, memory=1MB
    """

    on: str = "thread"
    workers: int = 1
    memory: int | str | None = None
    keep: int | None = None
    order: int | None = None

    def __str__(self) -> str:
        where = "inline" if self.on == "inline" else f"on {self.workers} {self.on} workers"
        bounds = [f"{name}={value}" for name in ("memory", "keep", "order") if (value := getattr(self, name))]
        return ", ".join([where, *bounds])

    def run(self, pipeline: Pipeline[Any], *, seed: int = 0, epochs: int = 2, most: int | None = None) -> Stream:
        """What `pipeline` delivers; of an endless one, `most` samples of every epoch."""
        if self.keep is not None:
            pipeline = pipeline.prefetch(self.keep)
        if most is None and flow_length(pipeline) == math.inf:
            raise ValueError("an endless pipeline needs most=")
        inline = self.on == "inline"
        on, workers = (None, None) if inline else (self.on, self.workers)
        stream = Stream()
        with (
            nullcontext() if self.order is None else interleave(self.order),
            pipeline.loader(
                seed=seed,
                epochs=epochs,
                memory=fitting(pipeline, self.memory),
                timeout_s=_HANGS_S,
                inline=inline,
                on=on,
                workers=workers,
            ) as loader,
        ):
            for _ in range(epochs):
                samples: list[Any] = []
                end: Exception | None = None
                try:
                    samples.extend(islice(loader, most))
                except Exception as exc:
                    end = exc
                stream.epochs.append(samples)
                stream.ends.append(end)
            stream.lost = loader.errors()
        return stream


@dataclass(slots=True)
class Stream:
    """The samples of every epoch, the exception that ended it, if one did, and what was left out."""

    epochs: list[list[Any]] = field(default_factory=list)
    ends: list[Exception | None] = field(default_factory=list)
    lost: list[ErrorRecord] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """No sample was left out, and none ended an epoch."""
        return not self.lost and not any(self.ends)


INLINE = Layout("inline")
LAYOUTS: Sequence[Layout] = (
    *(Layout("thread", workers) for workers in (1, 2, 7)),
    Layout("thread", 2, memory=1),
    Layout("thread", 7, memory="1GB"),
    Layout("thread", 2, keep=1),
    Layout("thread", 3, keep=3),
    *(Layout("thread", 3, order=order) for order in range(1, 6)),
)
ASYNC_LAYOUTS: Sequence[Layout] = (
    *(Layout("async", workers) for workers in (1, 2, 7)),
    Layout("async", 2, memory=1),
    Layout("async", 3, keep=1),
)

#: few, since a process takes a while; what a bound on memory cuts into pieces is cut in the processes, too
FEW_PROCESS_LAYOUTS: Sequence[Layout] = (Layout("process", 2), Layout("process", 3, memory=1))


def sendable(*values: Any) -> bool:
    """Whether worker processes can be given all of this, and there are any here."""
    try:
        pack(values, "what is checked")
    except PlanError:
        return False
    return hasattr(socket, "SCM_RIGHTS")


def fitting(pipeline: Flow, memory: int | str | None) -> int | str | None:
    """`memory`, or more if the pipeline has a window: one that does not fit is refused."""
    return max(memory, _ROOMY) if isinstance(memory, int) and _hoards(pipeline) else memory


def _hoards(flow: Flow) -> bool:
    joints = [joint_of(op) for op in flow.ops]
    parts = [part for _, part in getattr(flow.source, "parts", ())]
    return any(joint is not None and joint.hoards for joint in joints) or any(map(_hoards, parts))


def assert_same_stream(expected: Stream, found: Stream, what: str, *, ordered: bool = True) -> None:
    """Raise AssertionError, naming the first difference, unless both streams are the same.

    Without `ordered` the samples of an epoch may come in any order.
    """
    for epoch, (before, after) in enumerate(zip(expected.epochs, found.epochs, strict=True)):
        before_end, after_end = expected.ends[epoch], found.ends[epoch]
        if type(before_end) is not type(after_end):
            raise AssertionError(
                f"{what}, epoch {epoch} ended in {after_end!r} instead of {before_end!r}"
            ) from after_end
        if ordered:
            assert_same(before, after, f"{what}, epoch {epoch}")
        else:
            assert_same(before, _arranged(before, after), f"{what}, epoch {epoch}, in any order")


def _arranged(like: Sequence[Any], samples: Sequence[Any]) -> list[Any]:
    """`samples` in the order of those in `like` that are the same; the others last."""
    rest = list(samples)
    found = []
    for one in like:
        for number, other in enumerate(rest):
            if difference(one, other) is None:
                found.append(rest.pop(number))
                break
    return [*found, *rest]
