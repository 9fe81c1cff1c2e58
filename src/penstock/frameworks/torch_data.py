"""from_torch: the dataset, or the whole DataLoader, of a torch program as a pipeline.

What a DataLoader was told is kept: samplers, batch samplers, collate functions, workers and their functions. The
samplers that come with torch become ops of ours, which store no permutation and resume exactly; others are
iterated as they are. What cannot be kept is refused with the reason.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from inspect import isfunction
from typing import Any, Literal

import numpy as np

from penstock.checks import whole_number
from penstock.errors import OnError, PlanError, missing_extra
from penstock.ops.call import Retry
from penstock.ops.read import Collate, Fetch, Parts, Read, ReadParts
from penstock.pipeline import Pipeline
from penstock.ported import names_ours
from penstock.sources.torch import DatasetStream, SamplerStream, TorchIndices, TorchParts

Rng = Literal["global"] | None

#: what ``iter(DataLoader)`` returns: of one epoch, though it is an iterable like a dataset
_LOADER_ITERATORS = frozenset(("_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"))


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a DataLoader was told, or would have been."""

    dataset: Any
    #: makes a batch of samples; of one sample, without a batch size. None: samples as they are
    collate: Callable[[Any], Any] | None
    batch_size: int | None = None
    drop_last: bool = False
    sampler: Any = None
    #: one of the user's; torch's own only cuts what a sampler gives
    batch_sampler: Any = None
    workers: int | None = None
    worker_init_fn: Callable[[int], Any] | None = None
    pinned: bool = False
    prefetched: int | None = None
    in_order: bool = True
    rng: Rng = "global"
    on_error: OnError | Retry = "raise"
    timeout_s: float | None = None

    @property
    def placement(self) -> dict[str, Any]:
        return {"on": "process", "workers": self.workers} if self.workers else {}


@names_ours
def from_torch(
    data: Any,
    *,
    batch_size: int | None = None,
    shuffle: bool | None = None,
    sampler: Any = None,
    batch_sampler: Any = None,
    collate_fn: Callable[[Any], Any] | None = None,
    drop_last: bool = False,
    workers: int | None = None,
    worker_init_fn: Callable[[int], Any] | None = None,
    rng: Rng = "global",
    on_error: OnError | Retry = "raise",
    timeout_s: float | None = None,
) -> Pipeline[Any]:
    """A torch ``Dataset``, or a whole ``DataLoader``, as a pipeline.

    Of a DataLoader all is taken over: dataset, sampler, batch size, ``collate_fn``, workers. Of a dataset, the
    arguments mean what they mean there. Without a batch size the pipeline gives single samples, as the dataset
    makes them. Batches are made by torch's ``default_collate`` unless there is a ``collate_fn``, so numbers become
    tensors. ``workers=n`` reads in n processes; ``worker_init_fn`` and ``get_worker_info()`` work there as in a
    DataLoader.

    Random orders are drawn from ``loader(seed=)`` and not from torch's generator. ``rng="global"`` seeds the
    global generators of Python, numpy and torch for every sample in worker processes, so that a dataset that
    draws from them gives the same samples in every run; in the calling thread (``inline=True``) they are put back
    afterwards. In other threads of the training process nothing is seeded: a dataset that draws there gets a
    warning. ``rng=None`` seeds only the start of each worker process, and lets a dataset with ``__getitems__``
    read many samples in one call.

    ``on_error`` and ``timeout_s`` are those of ``map``, for the reads of a map-style dataset.

    >>> import penstock as ps, pytest
    >>> torch = pytest.importorskip("torch")
    >>> dataset = torch.utils.data.TensorDataset(torch.arange(6), torch.arange(6) * 10)
    >>> [[x.tolist(), y.tolist()] for x, y in ps.from_torch(dataset, batch_size=4)]
    [[[0, 1, 2, 3], [0, 10, 20, 30]], [[4, 5], [40, 50]]]
    """
    if rng not in (None, "global"):
        raise PlanError(
            f"from_torch(rng=) takes 'global' or None, got {rng!r}; for rng=True use from_sequence().map()"
        )
    for name, function in (("collate_fn", collate_fn), ("worker_init_fn", worker_init_fn)):
        if function is not None and not callable(function):
            raise PlanError(f"from_torch({name}=) takes a function, got {function!r}")
    workers = None if workers is None else whole_number(workers, "from_torch(workers=)")
    torch = _torch_data()
    given = {
        "batch_size": batch_size, "shuffle": shuffle, "sampler": sampler, "batch_sampler": batch_sampler,
        "collate_fn": collate_fn, "drop_last": drop_last or None, "worker_init_fn": worker_init_fn,
    }  # fmt: skip
    rest = {"rng": rng, "on_error": on_error, "timeout_s": timeout_s}
    if isinstance(data, torch.DataLoader):
        twice = [name for name, value in given.items() if value is not None]
        if twice:
            raise TypeError(f"from_torch(DataLoader) takes {twice[0]} from the DataLoader; leave {twice[0]}= out")
        asked = _of_loader(torch, data, workers, rest)
    else:
        asked = _of_dataset(torch, data, given, workers, rest)
    if _iterable(torch, asked.dataset):
        return _iterated(asked)
    return _pinned(torch, _mapped(torch, asked), asked)


def _torch_data() -> Any:
    try:
        return importlib.import_module("torch.utils.data")
    except ImportError:
        raise missing_extra("torch", "torch", "from_torch") from None


def _iterable(torch: Any, dataset: Any) -> bool:
    return isinstance(dataset, torch.IterableDataset) or not hasattr(dataset, "__getitem__")


# ---------------------------------------------------------------------- what was asked for


def _of_loader(torch: Any, loader: Any, workers: int | None, rest: dict[str, Any]) -> _Asked:
    kind = type(loader)
    # torchdata's StatefulDataLoader delivers what a DataLoader does, and only adds its state.
    if kind.__iter__ is not torch.DataLoader.__iter__ and not kind.__module__.startswith("torchdata."):
        raise PlanError(
            f"from_torch: {kind.__name__} has an __iter__ of its own, which from_torch would not call. Give it "
            "the dataset and the arguments of the DataLoader, and do what __iter__ does in a map() after from_torch"
        )
    if loader.timeout:
        raise PlanError(
            f"DataLoader(timeout={loader.timeout}) bounds the wait for a batch, which is a matter of our "
            f"loader: leave it out and write .loader(timeout_s={loader.timeout})"
        )
    if loader.multiprocessing_context is not None:
        raise PlanError(
            "DataLoader(multiprocessing_context=) has no effect here: penstock starts its worker processes itself, "
            "from a server without threads. Leave it out"
        )
    count = loader.num_workers if workers is None else workers
    ahead = loader.prefetch_factor
    batches = loader.batch_sampler
    # One of torch's cuts what its sampler gives. With one of the user's, the other attributes mean nothing.
    cut = batches if type(batches) is torch.BatchSampler else loader
    return _Asked(
        dataset=loader.dataset,
        collate=loader.collate_fn,
        batch_size=cut.batch_size,
        drop_last=bool(cut.drop_last),
        sampler=cut.sampler,
        batch_sampler=batches if cut is loader else None,
        workers=count or None,
        worker_init_fn=loader.worker_init_fn,
        pinned=loader.pin_memory,
        prefetched=None if ahead in (None, 2) else ahead * count,
        in_order=getattr(loader, "in_order", True),
        **rest,
    )


def _of_dataset(
    torch: Any, dataset: Any, given: dict[str, Any], workers: int | None, rest: dict[str, Any]
) -> _Asked:
    if isinstance(dataset, type):
        raise PlanError(
            f"from_torch takes a dataset, got the class {dataset.__name__}: write {dataset.__name__}(…)"
        )
    if _read_once(dataset) or type(dataset).__name__ in _LOADER_ITERATORS:
        raise PlanError(
            f"from_torch: a {type(dataset).__name__} can be iterated only once, and each epoch iterates it; give "
            "the DataLoader itself, an IterableDataset, or a function that makes the iterator to from_iterable"
        )
    if not hasattr(dataset, "__getitem__") and not hasattr(dataset, "__iter__"):
        raise PlanError(
            f"from_torch takes a Dataset, an IterableDataset or a DataLoader of torch, got {type(dataset).__name__}"
        )
    given = {name: value for name, value in given.items() if value is not None}
    if "batch_size" in given:
        given["batch_size"] = whole_number(given["batch_size"], "from_torch(batch_size=)", least=1)
    given.setdefault("batch_size", 1 if "batch_sampler" in given else None)
    if _iterable(torch, dataset):
        for name in ("shuffle", "sampler", "batch_sampler"):
            if given.get(name):
                raise PlanError(
                    f"from_torch: {name}= chooses samples by their number, and {type(dataset).__name__} can "
                    "only be iterated; use .shuffle(window=n) after from_torch"
                )
        size = given["batch_size"]
        if size is None and given.get("drop_last"):
            raise PlanError("from_torch(drop_last=True) drops a short last batch; give batch_size= too")
        collate = given.get("collate_fn") or (None if size is None else torch.default_collate)
        told = {"batch_size": size, "drop_last": given.get("drop_last", False)}
        init = given.get("worker_init_fn")
        return _Asked(dataset, collate, workers=workers or None, worker_init_fn=init, **told, **rest)
    if given.get("shuffle") and hasattr(dataset, "__len__") and not len(dataset):
        raise PlanError(
            f"from_torch(shuffle=True): {type(dataset).__name__} is empty: its len() is 0. Check the path or the "
            "filter that it was made with; an evaluation set that may be empty needs no shuffle"
        )
    try:
        made = torch.DataLoader(dataset, **given)  # torch's own checks, and its own defaults
    except ValueError as exc:
        raise PlanError(f"from_torch: {exc}") from None
    asked = _of_loader(torch, made, workers, rest)
    # torch would make lists of tuples, which batch() does not stack.
    raw = given["batch_size"] is None and "collate_fn" not in given
    return replace(asked, collate=None) if raw else asked


# ---------------------------------------------------------------------- map-style datasets


def _mapped(torch: Any, asked: _Asked) -> Pipeline[Any]:
    by_batch = asked.batch_sampler is not None
    if by_batch:
        pipeline = _iterated_sampler(asked.dataset, asked.batch_sampler)
    else:
        pipeline = _ordered(torch, asked.dataset, asked.sampler)
        if asked.batch_size is not None and not asked.in_order:
            # Single samples would overtake each other into other batches than the sampler's.
            pipeline = pipeline.batch(asked.batch_size, drop_last=asked.drop_last, collate=list)
            by_batch = True
    fetch = Fetch(asked.dataset, asked.workers, asked.worker_init_fn, asked.collate if by_batch else None)
    fetch.by_key = isinstance(pipeline.source, SamplerStream)
    pipeline = pipeline.apply(
        Read(
            fetch,
            rng=asked.rng or False,
            on_error=asked.on_error,
            timeout_s=asked.timeout_s,
            ordered=asked.in_order,
            name=type(asked.dataset).__name__,
            **asked.placement,
        )
    )
    if not by_batch:
        pipeline = _batched(asked, pipeline)
    return pipeline if asked.prefetched is None else pipeline.prefetch(asked.prefetched)


def _batched(asked: _Asked, pipeline: Pipeline[Any]) -> Pipeline[Any]:
    """Samples behind a read as batches, or each by itself through the collate function."""
    if asked.batch_size is None:
        return pipeline if asked.collate is None else pipeline.map(asked.collate)
    seeded = asked.rng is not None
    collate = Collate(asked.batch_size, drop_last=asked.drop_last, collate=asked.collate, seeded=seeded)
    return pipeline.apply(collate)


def _ordered(torch: Any, dataset: Any, sampler: Any) -> Pipeline[Any]:
    """The numbers of a dataset in the order of a sampler."""
    kind = type(sampler)
    if kind in (list, tuple, range) and _positions(dataset, sampler):
        return Pipeline(TorchIndices(dataset, sampler))
    if not hasattr(dataset, "__len__"):
        if kind is torch.SequentialSampler:
            raise PlanError(
                f"from_torch: {type(dataset).__name__} has __getitem__ and no __len__, so nobody knows its last "
                "sample; add __len__, give a sampler=, or write __iter__ without __getitem__"
            )
        return _iterated_sampler(dataset, sampler)
    if kind is torch.SubsetRandomSampler and _positions(dataset, sampler.indices):
        return Pipeline(TorchIndices(dataset, sampler.indices)).shuffle()
    whole: Pipeline[Any] = Pipeline(TorchIndices(dataset))
    if kind is torch.SequentialSampler:
        return whole
    if kind is torch.RandomSampler:
        return _random(whole, len(dataset), sampler)
    if kind is torch.WeightedRandomSampler:
        if len(sampler.weights) > len(dataset):
            raise PlanError(
                f"from_torch: WeightedRandomSampler has {len(sampler.weights)} weights, and "
                f"{type(dataset).__name__} has {len(dataset)} samples; give it one weight for each sample"
            )
        weights = np.zeros(len(dataset))
        weights[: len(sampler.weights)] = np.asarray(sampler.weights)
        return whole.resample(weights, replace=bool(sampler.replacement), n=int(sampler.num_samples))
    if kind is torch.DistributedSampler:
        if not sampler.shuffle:
            # Nothing is random, so each rank gets what torch gives it. The sampler has done what shard() does.
            return Pipeline(TorchIndices(dataset, list(sampler))).shard(0, 1, equal=False)
        return whole.shuffle().shard(
            sampler.rank, sampler.num_replicas, equal="drop" if sampler.drop_last else "wrap"
        )
    return _iterated_sampler(dataset, sampler)


def _iterated_sampler(dataset: Any, sampler: Any) -> Pipeline[Any]:
    """What a sampler or a batch sampler of the user's gives, which each epoch iterates anew."""
    kind = type(sampler).__name__
    if not hasattr(sampler, "__iter__"):
        raise PlanError(f"from_torch: a sampler is iterated, and {kind} cannot be; give it an __iter__")
    if _read_once(sampler):
        raise PlanError(
            f"from_torch: the sampler is a {kind}, which can be iterated only once, and each epoch iterates it; "
            "give a list, or an object whose __iter__ returns a new iterator"
        )
    return Pipeline(SamplerStream(dataset, sampler))


def _read_once(iterable: Any) -> bool:
    """Whether it is a generator or a built-in iterator: a class of the user's may begin anew in its __iter__."""
    return isinstance(iterable, Iterator) and not isfunction(type(iterable).__iter__)


def _positions(dataset: Any, keys: Any) -> bool:
    """Whether all `keys` are positions, counted from 0; a dataset may take anything else as a key, -1 included."""
    if not hasattr(dataset, "__len__") or not hasattr(keys, "__len__"):
        return False
    if isinstance(keys, (list, tuple)) and not all(isinstance(key, (int, np.integer)) for key in keys):
        return False
    numbers = np.asarray(keys)
    whole = numbers.ndim == 1 and (numbers.dtype.kind in "iu" or not numbers.size)
    return whole and (not numbers.size or 0 <= numbers.min() <= numbers.max() < len(dataset))


def _random(whole: Pipeline[Any], size: int, sampler: Any) -> Pipeline[Any]:
    count = sampler.num_samples
    if sampler.replacement:
        return whole.resample(np.ones(size), n=count)
    if count == size or not size:
        return whole.shuffle()
    return (
        whole.shuffle().repeat(math.ceil(count / size)).take(count) if count > size else whole.shuffle().take(count)
    )


def _pinned(torch: Any, pipeline: Pipeline[Any], asked: _Asked) -> Pipeline[Any]:
    """Batches in pinned memory where there is a device to copy them to; elsewhere pinning has no effect."""
    if not asked.pinned or not importlib.import_module("torch").cuda.is_available():
        return pipeline
    return pipeline.map(torch._utils.pin_memory.pin_memory, on="thread", workers=1)


# ---------------------------------------------------------------------- iterable datasets


def _iterated(asked: _Asked) -> Pipeline[Any]:
    if asked.on_error != "raise" or asked.timeout_s is not None:
        raise PlanError(
            "from_torch(on_error=, timeout_s=) are for reads of single samples, and "
            f"{type(asked.dataset).__name__} is "
            "iterated: an iterator that has raised cannot go on. Catch the exception in the dataset"
        )
    if asked.workers is None:
        pipeline: Pipeline[Any] = Pipeline(DatasetStream(asked.dataset, asked.rng is not None))
        return _batched(asked, pipeline)
    parts = Parts(
        asked.dataset, asked.workers, asked.worker_init_fn, asked.batch_size, asked.drop_last, asked.collate
    )
    read = ReadParts(
        parts,
        interleave=asked.workers,
        rng=asked.rng or False,
        name=type(asked.dataset).__name__,
        **asked.placement,
    )
    return Pipeline(TorchParts(asked.dataset, asked.workers)).apply(read)
