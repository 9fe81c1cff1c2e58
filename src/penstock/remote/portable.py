"""A program as a worker process gets it: what the stage runs, without what only the parent needs.

* Stages before it are left out. What it needs of them to name a sample comes along: lengths and orders.
* A source that stays in the parent is replaced by one that serves what came along with the ticket.
* A cache stays in the parent too: what it holds for a ticket comes along, and what was made goes back.
* A cache in a folder does not: each worker reads and writes the folder itself, and only counts go back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from penstock.memory.parcel import Parcel, pack
from penstock.plan.plan import Indexed, Joined, Site, Stage
from penstock.program.program import Program
from penstock.provenance import Place
from penstock.remote.preload import refuse_in_import
from penstock.sources.source import IndexedSource, Indices
from penstock.trees import read_only

#: stands for a sample's number where a worker reports counts
COUNTED = -1


class CarriedSource(IndexedSource):
    """Stands in for a source that stays in the parent: serves the samples that came with the ticket."""

    verb = "carried"

    def __init__(self, bare: IndexedSource) -> None:
        self._bare = bare
        self.samples: dict[int, Any] = {}

    @property
    def label(self) -> str:
        return self._bare.label

    def __len__(self) -> int:
        return len(self._bare)

    def numbers(self, indices: Indices) -> Indices:
        return self._bare.numbers(indices)

    def read(self, indices: Indices) -> Sequence[Any]:
        return [self.samples[int(index)] for index in indices]


class CarriedStore:
    """Stands in for the store of a cache: has what came with the ticket, and gathers what is to be kept.

    Arrays come out read-only, as they do where the store itself is.
    """

    def __init__(self) -> None:
        self.held: dict[int, tuple[list[Any], list[Place]]] = {}
        self.made: list[tuple[int, list[Any], list[Place]]] = []

    def get(self, key: int) -> tuple[list[Any], list[Place]] | None:
        found = self.held.get(key)
        return None if found is None else ([read_only(sample) for sample in found[0]], found[1])

    def refresh(self) -> bool:
        return False

    def put(self, key: int, samples: list[Any], places: list[Place]) -> list[Any]:
        self.made.append((key, samples, places))
        return [read_only(sample) for sample in samples]

    def taken(self) -> list[tuple[int, list[Any], list[Place]]]:
        """What is to be kept of what was made since the last answer."""
        made, self.made = self.made, []
        return made


class FolderStore(CarriedStore):
    """The store of a cache in a folder, in a worker process. What it counts goes back in place of samples."""

    def __init__(self, store: Any) -> None:
        super().__init__()
        self.store = store
        #: what it had counted by the last answer
        self._told = (0, 0, 0)

    def get(self, key: int) -> Any:
        return self.store.get(key)

    def refresh(self) -> bool:
        found: bool = self.store.refresh()
        return found

    def put(self, key: int, samples: list[Any], places: list[Place]) -> list[Any]:
        kept: list[Any] = self.store.put(key, samples, places)
        return kept

    def taken(self) -> list[tuple[int, list[Any], list[Place]]]:
        now = (self.store.hits, self.store.misses, self.store.evicted)
        since = [one - before for one, before in zip(now, self._told, strict=True)]
        self._told = now
        return [(COUNTED, [*since, self.store.bytes], [])] if any(since) else []


class CountingStore:
    """The store of a cache in a folder, in the parent of the worker processes that use it: only counts."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.stats = store.stats

    def get(self, key: int) -> None:
        """Nothing travels to the workers."""

    def refresh(self) -> bool:
        return False

    def put(self, key: Any, samples: list[Any], places: list[Place]) -> list[Any]:
        if key == COUNTED:
            self.store.count(*samples)
        return samples


def packed_program(program: Program) -> Parcel:
    """The program, ready to be sent. Raises PlanError if something in it cannot be."""
    refuse_in_import()
    stage = program.stage
    parts: list[tuple[str, Any]] = []
    if isinstance(stage.feed, Indexed) and not stage.feed.source.stays:
        parts.append((stage.feed.source.label, stage.feed.source))
    for step in stage.all_steps():
        parts.append((step.op.full_label, step.op))
    parcel = pack(_portable(program), stage.label, parts)
    if _is_in_folder(program.store):
        program.store = CountingStore(program.store)
    return parcel


def _is_in_folder(store: Any) -> bool:
    return hasattr(store, "locate")


def _portable(program: Program) -> Program:
    stage = program.stage
    feed: Any = Joined(())
    if isinstance(stage.feed, Indexed):
        source = stage.feed.source
        feed = replace(stage.feed, source=CarriedSource(source.bare()) if source.stays else source)
    store = None if program.store is None else CarriedStore()
    if _is_in_folder(program.store):
        store = FolderStore(program.store)
    return _rebuilt(program, replace(_alone(stage), feed=feed), store, program.upstream)


def _names_only(program: Program) -> Program:
    """What is needed to say which sample of its source stands at a place."""
    stage = program.stage
    feed: Any = Joined(())
    if isinstance(stage.feed, Indexed):
        feed = replace(stage.feed, source=stage.feed.source.bare())
    return _rebuilt(program, replace(_alone(stage), feed=feed, steps=(), cache_step=None), None, program.upstream)


def _rebuilt(program: Program, stage: Stage, store: Any, upstream: Program | None) -> Program:
    out = Program(stage, program.seed, one_by_one=program.one_by_one, store=store)
    out.upstream = None if upstream is None else _names_only(upstream)
    return out


def _alone(stage: Stage) -> Stage:
    return replace(stage, site=Site(stage.site.number, stage.site.kind, stage.site.workers), reasons=())
