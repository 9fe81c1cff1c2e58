"""from_torch: numbers of a torch dataset, in the order that a sampler says, and samples of one that is iterated."""

from __future__ import annotations

import copy
import importlib
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from penstock.generators import Private, capture, drawn_in_thread, drawn_since
from penstock.ops.joint import Length
from penstock.randomness import derive
from penstock.sources.source import (
    IndexedSource,
    Indices,
    Opening,
    StreamSource,
    bare_subset,
    content_of,
    picked,
    subset_of,
)

__all__ = ["DatasetStream", "SamplerStream", "TorchIndices"]

#: items of an iterator before which the global generators are looked at
_LOOKED_AT = 8


class TorchIndices(IndexedSource):
    """The numbers of the samples of a map-style dataset, or of some of them. An op after it reads the samples."""

    verb = "from_torch"

    def __init__(self, dataset: Any, indices: Any = None) -> None:
        self.dataset = dataset
        self._size = len(dataset)
        self.subset = subset_of(self._size, indices, "from_torch")

    @property
    def label(self) -> str:
        return f"from_torch({type(self.dataset).__name__} of {len(self)})"

    @property
    def instant(self) -> bool:
        return True

    @property
    def content(self) -> str:
        return content_of(self.subset)

    def __len__(self) -> int:
        return self._size if self.subset is None else len(self.subset)

    def numbers(self, indices: Indices) -> Indices:
        return picked(indices, self.subset)

    def bare(self) -> IndexedSource:
        return bare_subset(self, self.subset)

    def read(self, indices: Indices) -> Sequence[Any]:
        found = picked(indices, self.subset)
        return found if isinstance(found, range) else found.tolist()


class SamplerStream(StreamSource):
    """What a sampler of the user's gives: numbers of samples, or lists of numbers from a batch sampler."""

    verb = "from_torch"

    def __init__(self, dataset: Any, sampler: Any) -> None:
        self.dataset = dataset
        self.sampler = sampler

    @property
    def label(self) -> str:
        return f"from_torch({type(self.dataset).__name__} in the order of {type(self.sampler).__name__})"

    def length(self) -> Length:
        try:
            return len(self.sampler)
        except (TypeError, NotImplementedError):
            return None

    def shards(self) -> Sequence[Any]:
        return (None,)

    def open(self, shard: Any, skip: int) -> Iterator[Any]:
        return self.opened(shard, Opening(0, 0, skip))

    def opened(self, shard: Any, opening: Opening) -> Iterator[Any]:
        return islice(_watched(iter(self._for(opening)), self._drawn), opening.skip, None)

    def _drawn(self, whose: str) -> str:
        return (
            f"the sampler {type(self.sampler).__name__} draws from the global generator of {whose}, so that "
            "runs with "
            "one seed differ, and a resumed run from both; let it draw from a torch.Generator in its attribute "
            "'generator', which is seeded for each epoch"
        )

    def _for(self, opening: Opening) -> Any:
        """The sampler as it is in one epoch: its generator, if it has one, depends on the seed and the epoch."""
        sampler = copy.copy(self.sampler)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(opening.epoch)
        if hasattr(sampler, "generator"):
            torch = importlib.import_module("torch")
            seed = derive("sampler", opening.seed, opening.epoch) & 0x7FFFFFFFFFFFFFFF
            sampler.generator = torch.Generator().manual_seed(seed)
        return sampler


class DatasetStream(StreamSource):
    """The samples of an iterable dataset, read forward in one thread.

    A dataset, or an iterator of one, that has ``state_dict`` and ``load_state_dict`` is resumed by these. Others
    are read from their beginning.
    """

    verb = "from_torch"

    def __init__(self, dataset: Any, rng: bool) -> None:
        self.dataset = dataset
        self._rng = rng
        #: how a dataset that says where it stands is set to its beginning
        self._fresh: Any = None

    @property
    def label(self) -> str:
        return f"from_torch({type(self.dataset).__name__})"

    def length(self) -> Length:
        try:
            return len(self.dataset)
        except (TypeError, NotImplementedError):
            return None

    def shards(self) -> Sequence[Any]:
        return (None,)

    def open(self, shard: Any, skip: int) -> Iterator[Any]:
        return self.opened(shard, Opening(0, 0, skip))

    def opened(self, shard: Any, opening: Opening) -> Iterator[Any]:
        dataset = self.dataset
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(opening.epoch)
        if _stateful(dataset):
            # One that was left half-way would go on from there.
            if self._fresh is None:
                self._fresh = copy.deepcopy(dataset.state_dict()) or {}
            elif self._fresh and opening.mark is None:
                dataset.load_state_dict(copy.deepcopy(self._fresh))
        records = _Records(dataset, opening)
        if not self._rng:
            return records
        if opening.inline:
            return _Seeded(records, derive("from_torch", opening.seed, opening.epoch))
        return _Noting(records, self.label)


class _Records:
    """An iterator over a dataset that can say where it stands, as text, where the dataset can."""

    def __init__(self, dataset: Any, opening: Opening) -> None:
        #: what says where the iterator stands: the dataset, or the iterator itself
        self._keeper: Any = dataset if _stateful(dataset) else None
        if self._keeper is not None and opening.mark is not None:
            dataset.load_state_dict(json.loads(opening.mark))
        self._records: Any = iter(dataset)
        if self._keeper is None and _stateful(self._records):
            self._keeper = self._records
            if opening.mark is not None:
                self._records.load_state_dict(json.loads(opening.mark))
        for _ in range(opening.skip):
            next(self._records, None)

    def __iter__(self) -> _Records:
        return self

    def __next__(self) -> Any:
        return next(self._records)

    def mark(self) -> str | None:
        """Where it stands; None if it cannot say so in plain data."""
        if self._keeper is None:
            return None
        state = self._keeper.state_dict()
        try:
            text = json.dumps(state)
            if json.loads(text) == state:
                return text
            why = "it does not survive JSON"
        except (TypeError, ValueError) as exc:
            why = str(exc)
        warnings.warn(
            f"the state_dict() of {type(self._keeper).__name__} cannot be part of a saved state: {why}. A "
            "resumed loader "
            "reads the dataset from its beginning, up to where it stood; return numbers, strings, lists and dicts",
            RuntimeWarning,
            stacklevel=2,
        )
        self._keeper = None
        return None


class _Seeded:
    """Records that are made with random generators of their own, in the training loop's thread."""

    def __init__(self, records: _Records, seed: int) -> None:
        self._records = records
        self._private = Private(seed)
        self.mark = records.mark

    def __iter__(self) -> _Seeded:
        return self

    def __next__(self) -> Any:
        with self._private.in_place():
            return next(self._records)


class _Noting:
    """Records of a background thread, the first of which are watched for draws from global generators."""

    def __init__(self, records: _Records, label: str) -> None:
        self._watched = _watched(records, partial(drawn_in_thread, label))
        self.mark = records.mark

    def __iter__(self) -> _Noting:
        return self

    def __next__(self) -> Any:
        return next(self._watched)


def _watched(records: Iterator[Any], warning: Callable[[str], str]) -> Iterator[Any]:
    """`records`; a warning if one of the first draws from a global generator, of whom it is told."""
    for _ in range(_LOOKED_AT):
        before = capture()
        try:
            record = next(records)
        except StopIteration:
            return
        if whose := drawn_since(before):
            warnings.warn(warning(whose), RuntimeWarning, stacklevel=2)
            yield record
            break
        yield record
    yield from records


def _stateful(thing: Any) -> bool:
    return hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")


class TorchParts(IndexedSource):
    """The numbers of the parts into which workers divide an iterable dataset. An op after it reads them."""

    verb = "from_torch"

    def __init__(self, dataset: Any, parts: int) -> None:
        self.dataset = dataset
        self._parts = parts

    @property
    def label(self) -> str:
        return f"from_torch({type(self.dataset).__name__} in {self._parts} parts)"

    @property
    def instant(self) -> bool:
        return True

    def __len__(self) -> int:
        return self._parts

    def read(self, indices: Indices) -> Sequence[Any]:
        return indices if isinstance(indices, range) else indices.tolist()
