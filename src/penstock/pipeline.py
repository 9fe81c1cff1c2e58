"""Pipeline: a source and ops. An immutable description; nothing runs until it is iterated."""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, cast, overload

from penstock.errors import LengthUnknown, OnError, PlanError
from penstock.executors.executor import Pool
from penstock.ops import (
    Batch,
    Bucket,
    Cache,
    Epoch,
    Filter,
    FlatMap,
    Map,
    Pack,
    Prefetch,
    Repeat,
    Resample,
    Reservoir,
    Shard,
    Shuffle,
    SkipFirst,
    Take,
    Tap,
    To,
    Unbatch,
)
from penstock.ops.call import Retry
from penstock.ops.op import Op
from penstock.ported import names_ours
from penstock.program.folder_cache import check_single_samples
from penstock.runnable import Runnable, Workers, first_of
from penstock.sources.constant import ConstantSource
from penstock.sources.subset import split_source

if TYPE_CHECKING:
    import numpy as np

    from penstock.program.calls import SampleInfo

    Rng = np.random.Generator

T = TypeVar("T", covariant=True)
U = TypeVar("U")
F = TypeVar("F", bound=Callable[..., Any])

Rngs = bool | Literal["global"]


class Placing(TypedDict, total=False):
    """The arguments of `map` that do not change how its function is called."""

    workers: Workers
    on: str | Pool | None
    ordered: bool
    on_error: OnError | Retry
    timeout_s: float | None
    name: str | None


class Calling(Placing, total=False):
    """All arguments of `filter`, `flat_map` and `tap` that `map` has too."""

    key: Any
    star: bool
    rng: Rngs
    info: bool


def _as(op: type[Op[Any, Any]]) -> Callable[[F], F]:
    """The method's documentation is its op's, and so is the signature of one that passes on ``**arguments``.

    A wrong argument is refused in the words of the method.
    """

    def documented(method: F) -> F:
        method.__doc__ = op.__doc__
        own = inspect.signature(method)
        if "arguments" in own.parameters:
            taken = [own.parameters["self"], *inspect.signature(op).parameters.values()]
            method.__signature__ = own.replace(parameters=taken)  # type: ignore[attr-defined]
        return cast(F, names_ours(method))

    return documented


class Pipeline(Runnable[T]):
    """A source and the ops behind it: what is done to every sample, in order.

    A pipeline is immutable: every method returns a new one. It can be shared, printed, compared
    and sent to another process. ``for batch in pipeline`` runs epoch 0, every time;
    ``pipeline.loader()`` gives a loader for many epochs, with workers that stay warm.

    >>> import penstock as ps
    >>> pipeline = ps.from_sequence(range(6)).filter(lambda x: x % 2).map(lambda x: x * x)
    >>> list(pipeline)
    [1, 9, 25]
    >>> pipeline
    from_sequence(range of 6).filter(lambda).map(lambda)
    """

    __slots__ = ()

    # ------------------------------------------------------------------ ops

    # How the function is called decides what it must look like.
    @overload
    def map(
        self,
        fn: Callable[[Any], Any],
        *,
        key: str | int,
        rng: Literal[False, "global"] = False,
        info: Literal[False] = False,
        **placing: Unpack[Placing],
    ) -> Pipeline[T]: ...
    @overload
    def map(
        self, fn: Callable[[Any, Rng], Any], *, key: str | int, rng: Literal[True], **placing: Unpack[Placing]
    ) -> Pipeline[T]: ...
    @overload
    def map(
        self,
        fn: Callable[[Any, SampleInfo], Any],
        *,
        key: str | int,
        info: Literal[True],
        **placing: Unpack[Placing],
    ) -> Pipeline[T]: ...
    @overload
    def map(
        self,
        fn: Callable[..., Awaitable[U]],
        *,
        star: Literal[True],
        rng: Rngs = False,
        info: bool = False,
        **placing: Unpack[Placing],
    ) -> Pipeline[U]: ...
    @overload
    def map(
        self,
        fn: Callable[..., U],
        *,
        star: Literal[True],
        rng: Rngs = False,
        info: bool = False,
        **placing: Unpack[Placing],
    ) -> Pipeline[U]: ...
    @overload
    def map(
        self, fn: Callable[[T, Rng], Awaitable[U]], *, rng: Literal[True], **placing: Unpack[Placing]
    ) -> Pipeline[U]: ...
    @overload
    def map(self, fn: Callable[[T, Rng], U], *, rng: Literal[True], **placing: Unpack[Placing]) -> Pipeline[U]: ...
    @overload
    def map(
        self, fn: Callable[[T, SampleInfo], Awaitable[U]], *, info: Literal[True], **placing: Unpack[Placing]
    ) -> Pipeline[U]: ...
    @overload
    def map(
        self, fn: Callable[[T, SampleInfo], U], *, info: Literal[True], **placing: Unpack[Placing]
    ) -> Pipeline[U]: ...
    @overload
    def map(
        self, fn: Callable[[T], Awaitable[U]], *, rng: Literal[False, "global"] = False, **placing: Unpack[Placing]
    ) -> Pipeline[U]: ...
    @overload
    def map(
        self, fn: Callable[[T], U], *, rng: Literal[False, "global"] = False, **placing: Unpack[Placing]
    ) -> Pipeline[U]: ...
    @overload
    def map(self, fn: dict[Any, U] | list[U], *, key: None = None, **placing: Unpack[Placing]) -> Pipeline[U]: ...

    @_as(Map)
    def map(self, fn: Any, **arguments: Any) -> Pipeline[Any]:
        return self._with(Map(fn, **arguments))

    @_as(Filter)
    def filter(self, fn: Callable[..., Any], **arguments: Unpack[Calling]) -> Pipeline[T]:
        return self._with(Filter(fn, **arguments))

    @_as(FlatMap)
    def flat_map(
        self, fn: Callable[..., Iterable[U]], *, interleave: int = 1, **arguments: Unpack[Calling]
    ) -> Pipeline[U]:
        return self._with(FlatMap(fn, interleave=interleave, **arguments))

    @_as(Tap)
    def tap(self, fn: Callable[..., Any], **arguments: Unpack[Calling]) -> Pipeline[T]:
        return self._with(Tap(fn, **arguments))

    @overload
    def batch(
        self,
        size: int,
        *,
        drop_last: bool | Literal["raise"] = False,
        pad: Any = None,
        collate: Callable[[list[T]], U],
    ) -> Pipeline[U]: ...
    @overload
    def batch(
        self, size: int, *, drop_last: bool | Literal["raise"] = False, pad: Any = None, collate: None = None
    ) -> Pipeline[Any]: ...

    @_as(Batch)
    def batch(
        self,
        size: int,
        *,
        drop_last: bool | Literal["raise"] = False,
        pad: Any = None,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> Pipeline[Any]:
        return self._with(Batch(size, drop_last=drop_last, pad=pad, collate=collate))

    @_as(Unbatch)
    def unbatch(self) -> Pipeline[Any]:
        return self._with(Unbatch())

    @_as(Bucket)
    def bucket(
        self,
        by: str | int | Callable[[T], Any],
        bounds: Sequence[float],
        *,
        size: int | Sequence[int],
        budget: float | None = None,
        pad: Any = 0,
    ) -> Pipeline[Any]:
        return self._with(Bucket(by, bounds, size=size, budget=budget, pad=pad))

    @_as(Pack)
    def pack(
        self,
        length: int,
        *,
        key: str | int,
        how: Literal["concat", "fit"] = "concat",
        eos: float | None = None,
        long: Literal["split", "truncate", "drop", "raise"] = "split",
    ) -> Pipeline[dict[Any, Any]]:
        return self._with(Pack(length, key=key, how=how, eos=eos, long=long))

    @_as(Shuffle)
    def shuffle(self, window: int | None = None, *, seed: int | None = None) -> Pipeline[T]:
        return self._with(Shuffle(window, seed=seed))

    @_as(Resample)
    def resample(
        self, weights: Any = None, *, balance: Any = None, replace: bool = True, n: int | None = None
    ) -> Pipeline[T]:
        return self._with(Resample(weights, balance=balance, replace=replace, n=n))

    @_as(Shard)
    def shard(
        self,
        rank: int | None = None,
        world: int | None = None,
        *,
        equal: Literal["drop", "wrap", "pad", False] | None = None,
        steps: int | None = None,
    ) -> Pipeline[T]:
        return self._with(Shard(rank, world, equal=equal, steps=steps))

    @_as(Repeat)
    def repeat(self, times: int | None = None) -> Pipeline[T]:
        return self._with(Repeat(times))

    @_as(Take)
    def take(self, n: int) -> Pipeline[T]:
        return self._with(Take(n))

    @_as(SkipFirst)
    def skip(self, n: int) -> Pipeline[T]:
        return self._with(SkipFirst(n))

    @_as(Epoch)
    def epoch(self, n: int) -> Pipeline[T]:
        return self._with(Epoch(n))

    @_as(Reservoir)
    def reservoir(
        self, size: int, *, min_fill: int | None = None, max_reuse: int | None = None, draws: int | None = None
    ) -> Pipeline[T]:
        return self._with(Reservoir(size, min_fill=min_fill, max_reuse=max_reuse, draws=draws))

    @_as(Cache)
    def cache(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        max_bytes: int | None = None,
        version: str | int | None = None,
    ) -> Pipeline[T]:
        op: Cache[Any] = Cache(path, max_bytes=max_bytes, version=version)
        made = self._with(op)
        if path is not None:
            check_single_samples(made, op)
        return made

    @_as(Prefetch)
    def prefetch(self, batches: int) -> Pipeline[T]:
        return self._with(Prefetch(batches))

    @_as(To)
    def to(self, device: Any, *, depth: int = 2, dtype: Any = None) -> Pipeline[Any]:
        return self._with(To(device, depth=depth, dtype=dtype))

    @overload
    def apply(self, op: Op[Any, U]) -> Pipeline[U]: ...
    @overload
    def apply(self, op: Callable[[Pipeline[T]], Pipeline[U]]) -> Pipeline[U]: ...

    def apply(self, op: Any) -> Pipeline[Any]:
        """Add an op value, or hand the pipeline to a function that returns a pipeline.

        >>> import penstock as ps
        >>> def doubled(pipeline):
        ...     return pipeline.map(lambda x: 2 * x)
        >>> list(ps.from_sequence([1, 2]).apply(doubled).apply(ps.ops.Take(1)))
        [2]
        """
        if isinstance(op, Op):
            return self._with(op)
        if not callable(op):
            raise PlanError(f"apply takes an op, or a function from Pipeline to Pipeline, got {op!r}")
        made = op(self)
        if not isinstance(made, Pipeline):
            raise PlanError(f"the function given to apply must return a Pipeline, got {type(made).__name__}")
        return made

    def split(
        self, fractions: Sequence[float], *, seed: int = 0, labels: Iterable[Any] | None = None
    ) -> list[Pipeline[T]]:
        """Divide the source's samples at random; a pipeline with the same ops over each of the parts.

        The parts share no sample and leave none out. ``fractions`` add up to 1. With ``labels``, one per sample of
        the source, every class is divided in these fractions. What is one per sample in an op, such as the
        weights of ``resample``, belongs behind the split.

        >>> import penstock as ps
        >>> train, check = ps.from_sequence(range(10)).map(lambda x: x * x).split([0.8, 0.2])
        >>> list(train), list(check)
        ([1, 9, 16, 25, 36, 49, 64, 81], [0, 4])
        """
        return [Pipeline(part, self._ops) for part in split_source(self._source, fractions, seed, labels)]

    def constant(self) -> Pipeline[T]:
        """The first sample or batch of this pipeline, for ever: what the training step can take at most.

        An epoch is as long as it would be, where that is known, and endless otherwise. The one batch is made when
        it is first read. It is the same object every time, and its arrays are read-only.

        >>> import penstock as ps
        >>> [batch.tolist() for batch in ps.from_sequence(range(6)).shuffle().batch(2).constant()]
        [[3, 4], [3, 4], [3, 4]]
        """
        try:
            count = len(self)
        except LengthUnknown:
            count = 0
        kept: Pipeline[Any] = Pipeline(ConstantSource(partial(first_of, self), repr(self), count or 1))
        return kept if count else kept.repeat()

    def _with(self, op: Op[Any, Any]) -> Pipeline[Any]:
        # bucket and pack group samples that were measured right before them.
        return Pipeline(self._source, (*self._ops, *op.preceded_by, op))
