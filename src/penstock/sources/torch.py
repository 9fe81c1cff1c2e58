"""from_torch: numbers of a torch dataset, in the order that a sampler says, and samples of one that is iterated."""

from __future__ import annotations

import copy
import importlib
import json
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import islice
from typing import Any

from penstock.errors import StateMismatch
from penstock.generators import capture, drawn_in_thread, drawn_since, kept, seed_all
from penstock.ops.joint import Length
from penstock.randomness import derive
from penstock.sources.chosen import ChosenSource, subset_of
from penstock.sources.source import IndexedSource, Indices, Opening, StreamSource

Around = Callable[[int], AbstractContextManager[None]]

#: items of an iterator before which the global generators are looked at
_LOOKED_AT = 8
#: records between two marks, and marks that are kept: of more records than are ever on their way
_MARKED_EVERY, _MARKS = 16, 4096
#: a step of a Hugging Face dataset whose state leaves out what its buffer holds: a resume would lose samples
_FORGETFUL = "BufferShuffledExamplesIterable"


class TorchIndices(ChosenSource):
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
    def whole_length(self) -> int:
        return self._size

    def read(self, indices: Indices) -> Sequence[Any]:
        found = self.numbers(indices)
        return found if isinstance(found, range) else found.tolist()


class _Iterated(StreamSource):
    """One iterable of torch's, or of the user's, as a stream of one part."""

    verb = "from_torch"

    def __init__(self, iterable: Any) -> None:
        self._iterable = iterable

    def length(self) -> Length:
        try:
            return len(self._iterable)
        except (TypeError, NotImplementedError):
            return None

    def shards(self) -> Sequence[Any]:
        return (None,)

    def open(self, shard: Any, skip: int) -> Iterator[Any]:
        return self.opened(shard, skip, Opening(0))


class SamplerStream(_Iterated):
    """What a sampler of the user's gives: numbers of samples, or lists of numbers from a batch sampler."""

    def __init__(self, dataset: Any, sampler: Any) -> None:
        super().__init__(sampler)
        self.dataset = dataset
        self.sampler = sampler

    @property
    def label(self) -> str:
        return f"from_torch({type(self.dataset).__name__} in the order of {type(self.sampler).__name__})"

    def opened(self, shard: Any, skip: int, opening: Opening) -> Iterator[Any]:
        sampler = self._for(opening)
        return islice(_watched(self._steady(sampler), self._drawn), skip, None)

    def _steady(self, sampler: Any) -> Iterator[Any]:
        """What `sampler` gives; a warning if it counts its epochs itself, which a copy for each epoch forgets."""
        before = _plain_state(sampler)
        for number, item in enumerate(sampler):
            if number == 0 and not hasattr(sampler, "set_epoch"):
                self._check_steady(before, _plain_state(sampler))
            yield item

    def _check_steady(self, before: dict[str, Any], after: dict[str, Any]) -> None:
        changed = sorted(name for name, value in after.items() if before.get(name, value) != value)
        if changed:
            warnings.warn(
                f"the sampler {type(self.sampler).__name__} changes its attribute {changed[0]!r} when it is "
                "iterated. Each epoch iterates a copy of the sampler, so that a resumed run sees the same order; "
                "what it changes is forgotten. Give it a method set_epoch(epoch): that is called before each epoch",
                RuntimeWarning,
                stacklevel=2,
            )

    def _drawn(self, whose: str) -> str:
        return (
            f"the sampler {type(self.sampler).__name__} draws from the global generator of {whose}, so that runs "
            "with one seed differ, and a resumed run from both; let it draw from a torch.Generator in its "
            "attribute 'generator', which is seeded for each epoch"
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


class DatasetStream(_Iterated):
    """The samples of an iterable dataset, read forward in one thread.

    A dataset, or an iterator of one, that has ``state_dict`` and ``load_state_dict`` is resumed by these. Others
    are read from their beginning.
    """

    def __init__(self, dataset: Any, rng: bool) -> None:
        super().__init__(dataset)
        self.dataset = dataset
        self._rng = rng
        #: how a dataset that says where it stands is set to its beginning
        self._fresh: Any = None

    @property
    def label(self) -> str:
        return f"from_torch({type(self.dataset).__name__})"

    def opened(self, shard: Any, skip: int, opening: Opening) -> Iterator[Any]:
        dataset = self.dataset
        marks = Marks(opening.mark, skip)
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(opening.epoch)
        elif _stateful(dataset):
            # One that was left half-way, and knows of no epochs, would go on from there.
            if self._fresh is None:
                self._fresh = copy.deepcopy(dataset.state_dict()) or {}
            elif self._fresh and marks.begun is None:
                dataset.load_state_dict(copy.deepcopy(self._fresh))
        seeded = self._rng and opening.inline
        records = _Records(dataset, marks, skip, partial(_seeded, opening) if seeded else _as_they_are)
        opening.mark_at = marks.at
        if seeded or not self._rng:
            return records
        return _watched(records, partial(drawn_in_thread, self.label))


class Marks:
    """Where an iterator has said that it stood, by the position of its next record.

    A state has the last mark before its position, and earlier ones ever farther apart: what is owed may be older.

    >>> marks = Marks(None, 0)
    >>> for position in range(10):
    ...     marks.add(position, f"at {position}")
    >>> marks.at(7)
    [[7, 'at 7'], [6, 'at 6'], [4, 'at 4'], [0, 'at 0']]
    >>> Marks(marks.at(7), 5).begun
    (4, 'at 4')
    """

    def __init__(self, saved: Any, skip: int) -> None:
        known = [(position, text) for position, text in _checked(saved) if position <= skip]
        #: the last one before the first record that is read, if there is one
        self.begun: tuple[int, str] | None = max(known, default=None)
        self._marks: deque[tuple[int, str]] = deque([] if self.begun is None else [self.begun], maxlen=_MARKS)

    def add(self, position: int, text: str) -> None:
        self._marks.append((position, text))

    def at(self, position: int) -> list[list[Any]]:
        found = [list(one) for one in tuple(self._marks) if one[0] <= position]
        return [found[-number] for number in (1, 2, 4, 8, 16, 32, 64) if number <= len(found)]


def _checked(saved: Any) -> list[Any]:
    """What `Marks.at` has said; StateMismatch for anything else."""
    marks = [] if saved is None else saved
    for one in marks if isinstance(marks, list) else [None]:
        if not (isinstance(one, list) and len(one) == 2 and type(one[0]) is int and isinstance(one[1], str)):
            raise StateMismatch(f"the state is damaged: {saved!r} is no place of a dataset")
    return marks


class _Records:
    """An iterator over a dataset that notes now and then where it stands, where the dataset can say so."""

    def __init__(self, dataset: Any, marks: Marks, skip: int, around: Around) -> None:
        #: in what the record at a position is made
        self._around = around
        #: what says where the iterator stands: the dataset, or the iterator itself
        self._keeper: Any = dataset if _stateful(dataset) else None
        begun, state = (0, None) if marks.begun is None else marks.begun
        with around(-1):
            if self._keeper is not None and state is not None:
                dataset.load_state_dict(json.loads(state))
            self._records: Any = iter(dataset)
            if self._keeper is None and _stateful(self._records):
                self._keeper = self._records
                if state is not None:
                    self._records.load_state_dict(json.loads(state))
        for position in range(0 if self._keeper is None else begun, skip):
            with around(position):
                next(self._records, None)
        self._marks = marks
        self._position = skip

    def __iter__(self) -> _Records:
        return self

    def __next__(self) -> Any:
        with self._around(self._position):
            record = next(self._records)
        self._position += 1
        if self._keeper is not None and self._position % _MARKED_EVERY == 0:
            self._mark()
        return record

    def _mark(self) -> None:
        """Note where it stands, unless that is no plain data."""
        state = self._keeper.state_dict()
        try:
            text = json.dumps(state)
            why = "" if json.loads(text) == state else "it does not survive JSON"
        except (TypeError, ValueError) as exc:
            why = str(exc)
        if not why:
            self._marks.add(self._position, text)
            return
        warnings.warn(
            f"the state_dict() of {type(self._keeper).__name__} cannot be part of a saved state: {why}. A resumed "
            "loader reads the dataset from its beginning, up to where it stood; return numbers, strings, lists and "
            "dicts",
            RuntimeWarning,
            stacklevel=2,
        )
        self._keeper = None


def _as_they_are(position: int) -> AbstractContextManager[None]:
    return nullcontext()


@contextmanager
def _seeded(opening: Opening, position: int) -> Iterator[None]:
    """In the training loop's thread: the global generators, seeded for one record and put back afterwards."""
    with kept():
        seed_all(derive("from_torch", opening.seed, opening.epoch, position))
        yield


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


def _plain_state(sampler: Any) -> dict[str, Any]:
    """The numbers, texts and flags among the attributes of a sampler."""
    kinds = (int, float, str, bool)
    return {name: value for name, value in getattr(sampler, "__dict__", {}).items() if type(value) in kinds}


def _stateful(thing: Any) -> bool:
    """Whether `thing` can say where it stands, and all of it."""
    step = getattr(thing, "_ex_iterable", None)
    while step is not None:
        if type(step).__name__ == _FORGETFUL:
            return False
        step = getattr(step, "ex_iterable", None)
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
