"""What a data server makes batches of: the served pipeline, and loaders of it that stay warm.

With one server a flow is the whole pipeline. With S servers it is the part of the batches whose number is `residue`
modulo S. Where the pipeline lets positions be dealt, such a flow makes those batches and no others.
"""

from __future__ import annotations

import hashlib
import json
import threading
from typing import Any

from penstock.core.loader import Loader
from penstock.errors import PlanError
from penstock.ops.op import Effect, Op, group_size
from penstock.ops.shard import Shard
from penstock.pipeline import Pipeline
from penstock.plan.world import ALONE
from penstock.resume.state import described
from penstock.service.seals import Seals
from penstock.sources.source import Composite, Flow, IndexedSource

#: loaders that wait for their next epoch, with warm workers
_IDLE = 2


def check_served(pipeline: Any) -> None:
    """Refuse what cannot be served."""
    if not isinstance(pipeline, Pipeline):
        raise PlanError(f"serve() takes a Pipeline, got {type(pipeline).__name__}")
    for op in _all_ops(pipeline):
        if op.verb == "to":
            raise PlanError(
                f"serve(): {op.label} in the served pipeline would stage batches on this machine; put it behind "
                "connect(), where the training loop is"
            )


def _all_ops(flow: Flow) -> list[Op[Any, Any]]:
    parts = [part for _, part in flow.source.parts] if isinstance(flow.source, Composite) else []
    return [*flow.ops, *(op for part in parts for op in _all_ops(part))]


def fingerprint_of(pipeline: Pipeline[Any], seed: int) -> str:
    """What tells the stream of one server from that of another: the pipeline in words, and the seed."""
    words = json.dumps([described(pipeline), seed])
    return hashlib.blake2b(words.encode(), digest_size=8).hexdigest()


def part_of(pipeline: Pipeline[Any], residue: int, servers: int) -> Pipeline[Any]:
    """The batches of `pipeline` whose number is `residue` modulo `servers`.

    >>> import penstock as ps
    >>> [batch.tolist() for batch in part_of(ps.from_sequence(range(10)).batch(2), 1, 2)]
    [[2, 3], [6, 7]]
    """
    if servers == 1:
        return pipeline
    at = _before_batches(pipeline)
    ops = list(pipeline.ops)
    ops.insert(at, Shard(residue, servers, equal=False))
    return Pipeline(pipeline.source, tuple(ops))


def _before_batches(pipeline: Pipeline[Any]) -> int:
    """Where whole batches can be dealt by their positions; at the end, where they are made and left out."""
    ops = pipeline.ops
    end = len(ops)
    if not isinstance(pipeline.source, IndexedSource) or any(op.may_skip for op in ops):
        return end
    at = next((number for number, op in enumerate(ops) if op.effect is Effect.REGROUPS), end)
    keep = [op.effect is Effect.KEEPS or op.delivery.ready is not None for op in ops]
    placed = all(kept or op.order() is not None for kept, op in zip(keep[:at], ops[:at], strict=True))
    sized = at == end or group_size(ops[at]) > 0
    return at if placed and all(keep[at + 1 :]) and sized else end


class Flows:
    """Loaders of the parts of one pipeline. Several threads borrow and give back."""

    def __init__(self, pipeline: Pipeline[Any], seed: int, secret: bytes) -> None:
        self.pipeline = pipeline
        self.seed = seed
        self.fingerprint = fingerprint_of(pipeline, seed)
        self.seals = Seals(secret, self.fingerprint)
        self._lock = threading.Lock()
        self._idle: list[tuple[tuple[int, int], Loader[Any]]] = []
        self._lent: set[Loader[Any]] = set()
        self._closed = False

    def borrow(self, residue: int, servers: int) -> Loader[Any]:
        """A loader of one part, warm if there is one. Whoever has it gives it back."""
        with self._lock:
            for number, (part, loader) in enumerate(self._idle):
                if part == (residue, servers):
                    del self._idle[number]
                    self._lent.add(loader)
                    return loader
        made: Loader[Any] = Loader(part_of(self.pipeline, residue, servers), seed=self.seed, world=ALONE)
        with self._lock:
            self._lent.add(made)
        return made

    def give_back(self, loader: Loader[Any], residue: int, servers: int, sound: bool) -> None:
        """Keep a loader for the next epoch, or close it if something failed or enough are kept."""
        drop = [loader]
        with self._lock:
            self._lent.discard(loader)
            if sound and not self._closed:
                self._idle.append(((residue, servers), loader))
                drop = [self._idle.pop(0)[1]] if len(self._idle) > _IDLE else []
        for one in drop:
            one.close()

    def stats(self) -> dict[str, float]:
        """The counters of the loader that has delivered most."""
        with self._lock:
            loaders = [*self._lent, *(one for _, one in self._idle)]
        found = [loader.stats() for loader in loaders]
        return max(found, key=lambda one: one["batches"], default={})

    def close(self) -> None:
        """Close all loaders; whoever reads one gets an error."""
        with self._lock:
            self._closed = True
            loaders = [*self._lent, *(one for _, one in self._idle)]
            self._idle.clear()
            self._lent.clear()
        for loader in loaders:
            loader.close()
