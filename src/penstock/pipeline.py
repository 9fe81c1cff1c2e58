"""Pipeline: a source and ops. An immutable description; nothing runs until it is iterated."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, TypeVar, Unpack, overload

from penstock.checks import any_number, whole_number
from penstock.core.loader import Loader, known_length
from penstock.errors import OnError, PlanError
from penstock.executors.executor import Placement, Pool
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
    Unbatch,
)
from penstock.ops.call import Retry
from penstock.ops.op import Op
from penstock.plan.explain import Explanation
from penstock.plan.rules import Options, make_plan
from penstock.plan.world import dealt, world_now
from penstock.sources.source import Composite, Flow, Source
from penstock.sources.subset import split_source

if TYPE_CHECKING:
    import os

    import numpy as np

    from penstock.program.calls import SampleInfo
    from penstock.writers.write import Written

    Rng = np.random.Generator

__all__ = ["Pipeline"]

T = TypeVar("T", covariant=True)
U = TypeVar("U")
F = TypeVar("F", bound=Callable[..., Any])

Rngs = bool | Literal["global"]
Workers = int | Literal["auto"] | None


class Placing(TypedDict, total=False):
    """The arguments of `map` that do not change how its function is called."""

    workers: Workers
    on: str | Pool | None
    ordered: bool
    on_error: OnError | Retry
    timeout_s: float | None
    name: str | None


def _as(op: type[Op[Any, Any]]) -> Callable[[F], F]:
    """The method's documentation is its op's."""

    def documented(method: F) -> F:
        method.__doc__ = op.__doc__
        return method

    return documented


class Pipeline(Generic[T]):
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

    __slots__ = ("_ops", "_passed", "_source")

    def __init__(self, source: Source, ops: tuple[Op[Any, Any], ...] = ()) -> None:
        if not isinstance(source, Source):
            raise PlanError(
                f"a Pipeline needs a source, got {type(source).__name__}; make one with from_sequence(), "
                "from_iterable() or from_arrays()"
            )
        self._source = source
        self._ops = ops
        #: it was iterated before; None once the user has been told what that means
        self._passed: bool | None = False

    @property
    def source(self) -> Source:
        """Where the samples come from."""
        return self._source

    @property
    def ops(self) -> tuple[Op[Any, Any], ...]:
        """What is done to them, in order."""
        return self._ops

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
    def map(
        self,
        fn: Any,
        *,
        workers: Workers = None,
        on: str | Pool | None = None,
        key: Any = None,
        star: bool = False,
        rng: Rngs = False,
        info: bool = False,
        ordered: bool = True,
        on_error: OnError | Retry = "raise",
        timeout_s: float | None = None,
        name: str | None = None,
    ) -> Pipeline[Any]:
        return self._with(
            Map(
                fn,
                workers=workers,
                on=on,
                key=key,
                star=star,
                rng=rng,
                info=info,
                ordered=ordered,
                on_error=on_error,
                timeout_s=timeout_s,
                name=name,
            )
        )

    @_as(Filter)
    def filter(
        self,
        fn: Callable[..., Any],
        *,
        workers: Workers = None,
        on: str | Pool | None = None,
        key: Any = None,
        star: bool = False,
        rng: Rngs = False,
        info: bool = False,
        ordered: bool = True,
        on_error: OnError | Retry = "raise",
        timeout_s: float | None = None,
        name: str | None = None,
    ) -> Pipeline[T]:
        return self._with(
            Filter(
                fn,
                workers=workers,
                on=on,
                key=key,
                star=star,
                rng=rng,
                info=info,
                ordered=ordered,
                on_error=on_error,
                timeout_s=timeout_s,
                name=name,
            )
        )

    @_as(FlatMap)
    def flat_map(
        self,
        fn: Callable[..., Iterable[U]],
        *,
        workers: Workers = None,
        on: str | Pool | None = None,
        key: Any = None,
        star: bool = False,
        rng: Rngs = False,
        info: bool = False,
        ordered: bool = True,
        on_error: OnError | Retry = "raise",
        timeout_s: float | None = None,
        name: str | None = None,
        interleave: int = 1,
    ) -> Pipeline[U]:
        return self._with(
            FlatMap(
                fn,
                workers=workers,
                on=on,
                key=key,
                star=star,
                rng=rng,
                info=info,
                ordered=ordered,
                on_error=on_error,
                timeout_s=timeout_s,
                name=name,
                interleave=interleave,
            )
        )

    @_as(Tap)
    def tap(
        self,
        fn: Callable[..., Any],
        *,
        workers: Workers = None,
        on: str | Pool | None = None,
        key: Any = None,
        star: bool = False,
        rng: Rngs = False,
        info: bool = False,
        ordered: bool = True,
        on_error: OnError | Retry = "raise",
        timeout_s: float | None = None,
        name: str | None = None,
    ) -> Pipeline[T]:
        return self._with(
            Tap(
                fn,
                workers=workers,
                on=on,
                key=key,
                star=star,
                rng=rng,
                info=info,
                ordered=ordered,
                on_error=on_error,
                timeout_s=timeout_s,
                name=name,
            )
        )

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
    def cache(self, *, max_bytes: int | None = None) -> Pipeline[T]:
        return self._with(Cache(max_bytes=max_bytes))

    @_as(Prefetch)
    def prefetch(self, batches: int) -> Pipeline[T]:
        return self._with(Prefetch(batches))

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

    def _with(self, op: Op[Any, Any]) -> Pipeline[Any]:
        # bucket and pack group samples that were measured right before them.
        return Pipeline(self._source, (*self._ops, *op.preceded_by, op))

    # ------------------------------------------------------------------ running

    def loader(
        self,
        *,
        seed: int = 0,
        epochs: int | None = None,
        state: Any = None,
        on: str | Pool | None = None,
        workers: Workers = None,
        inline: bool = False,
        isolate: bool = False,
        memory: int | str | None = None,
        timeout_s: float | None = None,
        max_errors: float | None = None,
    ) -> Loader[T]:
        """A loader that runs this pipeline, epoch after epoch.

        ``seed`` decides all random choices. ``epochs`` is how many will be read, so that none is
        begun in vain. ``state`` is one that ``loader.state_dict()`` gave: the first epoch goes on
        from there. ``on`` and ``workers`` say where a pipeline runs whose ops do not say so; ``workers=0``
        is the calling thread, and ``loader.explain()`` shows the result. ``inline=True`` runs everything in
        the calling thread, for a debugger. ``isolate=True`` runs everything in a process of its own, so
        that the loader's Python never takes the interpreter lock from the training step.
        ``memory="2GB"`` bounds the bytes of all samples on their way. A batch that does not come within
        ``timeout_s`` raises ``ps.StageTimeout``. ``max_errors`` (a count, or a share below 1) ends a run
        with too many failing samples.
        """
        return Loader(
            self,
            seed=seed,
            epochs=epochs,
            state=state,
            on=on,
            workers=workers,
            inline=inline,
            isolate=isolate,
            memory=memory,
            timeout_s=timeout_s,
            max_errors=max_errors,
        )

    def __iter__(self) -> Iterator[T]:
        """Epoch 0; its workers end with it. The second pass of a pipeline with a random order or draws warns."""
        if self._passed and (chance := _chance(self)):
            self._passed = None
            warnings.warn(
                f"iterating a Pipeline is always epoch 0, so {chance} chooses as it did in the pass before. For a "
                "new order and new draws in every epoch, iterate one loader: with pipeline.loader() as loader: "
                "for epoch, batches in loader.epochs(n)",
                RuntimeWarning,
                stacklevel=2,
            )
        return self.loader(epochs=1).once(self._pass_made)

    def _pass_made(self) -> None:
        if self._passed is False:
            self._passed = True

    def __len__(self) -> int:
        """Samples or batches per epoch."""
        return known_length(self)

    def __bool__(self) -> bool:
        return True

    def peek(
        self, n: int = 1, *, index: int | None = None, epoch: int = 0, seed: int = 0, every_op: bool = False
    ) -> list[Any]:
        """The first `n` samples at once: inline, without workers.

        ``index`` gives the one sample with that number in its source, as a loader with that seed
        would make it in that epoch, up to the first op that needs others. ``every_op=True`` shows
        each sample after every op, as a list of ``(op, sample)``.

        >>> import penstock as ps
        >>> ps.from_sequence([1, 2, 3]).map(lambda x: x * 10).peek(2)
        [10, 20]
        """
        from penstock.core.peek import peek

        return peek(self, n, index, epoch, seed, every_op)

    def write(
        self,
        path: str | os.PathLike[str],
        *,
        format: Literal["tar", "parquet", "lmdb", "jsonl"] = "tar",
        shard_size: int | str = "256MB",
        seed: int = 0,
        on: str | Pool | None = None,
        workers: Workers = None,
        memory: int | str | None = None,
        overwrite: bool = False,
        progress: bool = True,
    ) -> Written:
        """Write one epoch to files in the folder `path`: WebDataset archives, Parquet, LMDB or JSON lines.

        Read them back with `from_tar`, `from_parquet`, `from_lmdb` or ``from_jsonl(tree=True)``: arrays with their
        dtype and shape, numbers, strings, bytes, and dicts, lists and tuples of these come back as they were. Other
        programs read the files too. ``shard_size`` is a number of samples, or a size such as ``"256MB"``.

        A shard has its name only when it is complete. If the process is killed, the same call goes on after the
        last shard and ends with the same files. ``seed``, ``on``, ``workers`` and ``memory`` are as those of
        `loader`. A terminal shows how far it has come.

        >>> import tempfile
        >>> import penstock as ps
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     done = ps.from_sequence([{"n": 1, "s": "a"}, {"n": 2, "s": "b"}]).write(folder, shard_size=1)
        ...     done.samples, done.shards, list(ps.from_tar(folder))
        (2, 2, [{'n': 1, 's': 'a'}, {'n': 2, 's': 'b'}])
        """
        from penstock.writers.write import write

        options = {"on": on, "workers": workers, "memory": memory}
        seed = any_number(seed, "write(seed=)")
        return write(self, path, format, shard_size, seed, overwrite, progress, options)

    def fingerprint(
        self, epoch: int = 0, *, seed: int = 0, on: str | Pool | None = None, workers: Workers = None
    ) -> str:
        """A hash over what one epoch delivers, by where every sample comes from: its provenance.

        The same on every layout and machine that delivers the same samples in the same order; so
        compare it, instead of the data. It runs the whole epoch.

        >>> import penstock as ps
        >>> pipeline = ps.from_sequence(range(100)).shuffle().filter(lambda x: x % 3).batch(8)
        >>> pipeline.fingerprint(workers=4) == pipeline.fingerprint(on="inline")
        True
        >>> pipeline.fingerprint(epoch=1) == pipeline.fingerprint(epoch=0)
        False
        """
        epoch, seed = whole_number(epoch, "fingerprint(epoch)"), any_number(seed, "fingerprint(seed=)")
        Placement.of(on, workers, "fingerprint()")
        from penstock.core.fingerprint import fingerprint

        return fingerprint(self, epoch, seed, Options(on, workers))

    def explain(self) -> Explanation:
        """How the pipeline will run: stages, what was fused and why, workers, bounds. Print it.

        With ``loader(on=, workers=, inline=)`` it may run in another way: `Loader.explain` tells how.
        """
        return Explanation(make_plan(dealt(self, world_now()), Options()))

    # ------------------------------------------------------------------ as a value

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._source, self._ops)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Pipeline):
            return NotImplemented
        return self._source is other._source and self._ops == other._ops

    def __hash__(self) -> int:
        return hash((id(self._source), len(self._ops)))

    def __repr__(self) -> str:
        written = [op.label for op in self._ops if not op.implied]
        return ".".join([self._source.label, *written])


def _chance(flow: Flow) -> str:
    """The first op or source that another epoch would give another order or other draws; "" if there is none."""
    source = flow.source
    if isinstance(source, Composite):
        if source.random:
            return source.label
        for _, part in source.parts:
            if chance := _chance(part):
                return chance
    return next((op.label for op in flow.ops if op.random), "")
