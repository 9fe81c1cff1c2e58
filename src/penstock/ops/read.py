"""What `from_torch` runs: the reads of a map-style dataset, its collate function, and the parts of an iterable one.

They differ from map, batch and flat_map in two things. Datasets of torch draw from the global generators of their
process: in worker processes these are seeded for every sample, batch or part; in the calling thread they are put
back afterwards; in other threads of the training process they are left alone, and draws are reported. And
datasets ask `torch.utils.data.get_worker_info()` where they run.
"""

from __future__ import annotations

import copy
import importlib
import reprlib
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from penstock import system
from penstock.generators import Private, capture, drawn_in_thread, drawn_since, kept, seed_all
from penstock.ops.batch import Batch
from penstock.ops.flat_map import FlatMap
from penstock.ops.map import Map
from penstock.randomness import derive

#: calls in a thread before which the global generators are looked at
_LOOKED_AT = 8
_WORD = 2**63 - 1


class Fetch:
    """A dataset as a function of a sample's number; of a list of numbers, if a batch sampler chooses them."""

    def __init__(
        self,
        dataset: Any,
        workers: int | None = None,
        worker_init_fn: Callable[[int], Any] | None = None,
        collate: Callable[[Any], Any] | None = None,
        written: Any = None,
    ) -> None:
        self.dataset = dataset
        self.workers = workers
        self.worker_init_fn = worker_init_fn
        #: for lists of numbers: makes a batch of their samples
        self.collate = collate
        #: a sampler of the user's gives the numbers: messages name them, besides the position in its order
        self.by_key = False
        #: messages name the file and line of this
        self.__wrapped__ = (written or type(dataset)).__getitem__
        base = getattr(sys.modules.get("torch.utils.data"), "Dataset", None)
        #: the dataset reads lists of numbers and no single ones
        self._only_several = base is not None and self.__wrapped__ is base.__getitem__
        if self._only_several and hasattr(dataset, "__getitems__"):
            self.__wrapped__ = type(dataset).__getitems__

    def __call__(self, number: Any) -> Any:
        try:
            samples = self.several(number) if self.collate is not None else self._one(number)
        except Exception as exc:
            if self.by_key:
                exc.add_note(f"the sampler asked for {reprlib.repr(number)}")
            raise
        return samples if self.collate is None else self.collate(samples)

    def _one(self, number: Any) -> Any:
        return self.several([number])[0] if self._only_several else self.dataset[number]

    def several(self, numbers: Sequence[Any]) -> Sequence[Any]:
        """The samples with these numbers, in one call where the dataset has one for that."""
        at_once = getattr(self.dataset, "__getitems__", None)
        if at_once is None:
            return [self.dataset[number] for number in numbers]
        samples: Sequence[Any] = at_once(list(numbers))
        return samples

    def enter(self) -> None:
        """A worker is about to make its first call: in a process, say which one it is, as torch would."""
        if not self.workers or not system.worker_name:
            return
        number = int(system.worker_name.rpartition(".")[2]) % self.workers
        module = _worker_module()
        # Workers are forked from one process, whose generators all of them would go on with.
        seed = derive("worker", number) & _WORD
        seed_all(seed)
        module._worker_info = _worker_info(module, self.dataset, number, self.workers, seed)
        if self.worker_init_fn is not None:
            _initialised(self.worker_init_fn, number)


class _Drawing:
    """A function that may draw from global generators, for one worker."""

    def __init__(self, fn: Callable[[Any], Any], label: str) -> None:
        self.fn = fn
        self.label = label
        #: calls in a thread that are still to be watched
        self.left = _LOOKED_AT

    def each(self, samples: list[Any], info: Any) -> list[Any]:
        """``[fn(sample) for sample in samples]``, seeded where that is possible."""
        fn = self.fn
        out: list[Any]
        if system.worker_name:
            out = info.each(lambda sample, _: fn(sample), samples, info.seed_globals)
        elif not info.own_thread:
            with kept():
                out = info.each(lambda sample, _: fn(sample), samples, info.seed_globals)
        else:
            out = info.each(self._watched if self.left else fn, samples)
        return out

    def _watched(self, sample: Any) -> Any:
        if not self.left:
            return self.fn(sample)
        self.left -= 1
        before = capture()
        result = self.fn(sample)
        if whose := drawn_since(before):
            self.left = 0
            warnings.warn(drawn_in_thread(self.label, whose), RuntimeWarning, stacklevel=2)
        return result


@dataclass(frozen=True)
class Read(Map[Any, Any]):
    """Replace every number by ``dataset[number]``."""

    verb = "read"
    #: it may run in several threads: there, nothing is seeded
    random = False

    @property
    def elementwise(self) -> bool:  # type: ignore[override]
        return False

    def bind(self) -> _Drawing:  # type: ignore[override]
        self.fn.enter()
        return _Drawing(self.fn, self.label)

    def run(self, samples: list[Any], info: Any) -> list[Any]:
        bound: _Drawing = info.bound
        fetch: Any = bound.fn
        if self.rng == "global":
            return bound.each(samples, info)
        if fetch.collate is None and hasattr(fetch.dataset, "__getitems__") and self.timeout_s is None:
            try:
                found = list(fetch.several(samples))
                if len(found) == len(samples):
                    return found
            except Exception:
                pass  # one by one, to find the sample
        out: list[Any] = info.each(fetch, samples)
        return out


@dataclass(frozen=True)
class Collate(Batch[Any]):
    """`batch` by a collate function that may draw from global generators, or by torch's own."""

    seeded: bool = field(default=True, kw_only=True)

    def bind(self) -> _Drawing:
        assert self.collate is not None
        default = getattr(sys.modules.get("torch.utils.data"), "default_collate", None)
        return _Drawing(_default_collate if self.collate is default else self.collate, self.label)

    def run(self, samples: list[Any], info: Any) -> Sequence[Any]:
        bound: _Drawing = info.bound
        return bound.each(samples, info) if self.seeded else list(info.each(bound.fn, samples))


def _default_collate(samples: list[Any]) -> Any:
    """torch's function; its error says what it cannot do, and a note says what can be done."""
    try:
        return importlib.import_module("torch.utils.data").default_collate(samples)
    except (TypeError, RuntimeError) as exc:
        exc.add_note(
            "default_collate takes tensors, arrays, numbers and strings, and dicts, lists and tuples of them, all "
            "of one shape. For other samples give collate_fn=, or leave batch_size= out and write .batch(n, pad=0) "
            "or .batch(n, collate=list)"
        )
        raise


class Parts:
    """The parts of an iterable dataset, one for each worker, in batches, as torch's DataLoader makes them."""

    def __init__(
        self,
        dataset: Any,
        workers: int,
        worker_init_fn: Callable[[int], Any] | None,
        batch_size: int | None,
        drop_last: bool,
        collate: Callable[[Any], Any] | None,
    ) -> None:
        self.dataset = dataset
        self.workers = workers
        self.worker_init_fn = worker_init_fn
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.collate = collate
        self.__wrapped__ = type(dataset).__iter__

    def __call__(self, part: int, epoch: int, seed: int) -> Iterator[Any]:
        """The batches of one part; `get_worker_info()` says which, while they are made."""
        # A worker of torch has a dataset of its own, and its function may cut that down to its part.
        dataset = self.dataset if self.worker_init_fn is None else copy.copy(self.dataset)
        inside = partial(_as_worker, dataset, part, self.workers, seed)
        with inside():
            if self.worker_init_fn is not None:
                _initialised(self.worker_init_fn, part)
            if hasattr(dataset, "set_epoch"):
                dataset.set_epoch(epoch)
            records = iter(dataset)
        while True:
            with inside():
                group = list(islice(records, self.batch_size or 1))
                short = len(group) < (self.batch_size or 1)
                if not group or (short and self.drop_last):
                    return
                batch = group if self.batch_size is not None else group[0]
                if self.collate is not None:
                    batch = self.collate(batch)
            yield batch
            if short:
                return


@dataclass(frozen=True)
class ReadParts(FlatMap[int, Any]):
    """Replace the number of each part by the batches of that part."""

    verb = "read"
    random = False

    def bind(self) -> Any:
        return self.fn

    def run(self, samples: list[Any], info: Any) -> list[Any]:
        parts: Parts = info.bound

        def opened(part: int) -> Iterator[Any]:
            seed = derive("part", info.key.seed, info.key.op, info.epoch, part) & _WORD
            batches = parts(part, info.epoch, seed)
            return batches if self.rng != "global" else _seeded(batches, seed)

        out: list[Any] = info.each(opened, samples)
        return out


def _seeded(batches: Iterator[Any], seed: int) -> Iterator[Any]:
    """`batches`, made with random generators of their own, whatever else is made in between."""
    private = Private(seed)
    while True:
        with private.in_place():
            try:
                batch = next(batches)
            except StopIteration:
                return
        yield batch


def _initialised(init: Callable[[int], Any], number: int) -> None:
    """Call the user's ``worker_init_fn``; an exception says where it was raised."""
    try:
        init(number)
    except Exception as exc:
        exc.add_note(f"in worker_init_fn({number})")
        raise


def _worker_module() -> Any:
    return importlib.import_module("torch.utils.data._utils.worker")


def _worker_info(module: Any, dataset: Any, number: int, workers: int, seed: int) -> Any:
    return module.WorkerInfo(id=number, num_workers=workers, seed=seed, dataset=dataset)


@contextmanager
def _as_worker(dataset: Any, number: int, workers: int, seed: int) -> Iterator[None]:
    """Inside the block, `torch.utils.data.get_worker_info()` says that this is worker `number`."""
    module = _worker_module()
    before = module._worker_info
    module._worker_info = _worker_info(module, dataset, number, workers, seed)
    try:
        yield
    finally:
        module._worker_info = before
