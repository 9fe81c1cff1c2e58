"""A source and ops, and what can be done with them but adding ops: run them, look at them, compare them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from penstock.checks import any_number, whole_number
from penstock.core.loader import Loader
from penstock.errors import PlanError
from penstock.executors.executor import Placement, Pool
from penstock.lazy import named
from penstock.ops.op import Op, added
from penstock.plan.explain import Explanation
from penstock.plan.lengths import known_length
from penstock.plan.rules import Options, make_plan
from penstock.plan.world import dealt, world_now
from penstock.ported import names_ours
from penstock.program.folder_cache import folder_notes
from penstock.sources.source import Composite, Flow, Source

if TYPE_CHECKING:
    import os

    from penstock.writers.write import Written

T = TypeVar("T", covariant=True)

Workers = int | Literal["auto"] | None


class Runnable(Generic[T]):
    """What a `Pipeline` is, without the ops that it adds."""

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

    # ------------------------------------------------------------------ running

    @names_ours
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
        cpus: float | None = None,
        timeout_s: float | None = None,
        max_errors: float | None = None,
        report_s: float | None = None,
        dashboard: bool | int | None = None,
    ) -> Loader[T]:
        """A loader that runs this pipeline, epoch after epoch.

        ``seed`` decides all random choices. ``epochs`` is how many will be read, so that none is
        begun in vain. ``state`` is one that ``loader.state_dict()`` gave: the first epoch goes on
        from there. ``on`` and ``workers`` say where a pipeline runs whose ops do not say so; ``workers=0``
        is the calling thread, and ``loader.explain()`` shows the result. ``inline=True`` runs everything in
        the calling thread, for a debugger. ``isolate=True`` runs everything in a process of its own, so
        that the loader's Python never takes the interpreter lock from the training step.
        ``memory="2GB"`` bounds the bytes of all samples on their way. ``cpus=4`` is the CPU time per second
        that stages with ``workers="auto"`` may use in all. A batch that does not come within
        ``timeout_s`` raises ``ps.StageTimeout``. ``max_errors`` (a count, or a share below 1) ends a run
        with too many failing samples. ``report_s=60`` logs a line (`logging`, "penstock") after every 60 s in which
        the training loop has waited for data. ``dashboard=True`` serves a page on this machine that shows the run
        while it goes on, and prints its address; a number is its port. ``PENSTOCK_DASHBOARD=1`` does so for loaders
        that say nothing.
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
            cpus=cpus,
            timeout_s=timeout_s,
            max_errors=max_errors,
            report_s=report_s,
            dashboard=dashboard,
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
        plan = make_plan(dealt(self, world_now()), Options())
        return Explanation(plan, folder_notes(plan.stages))

    # ------------------------------------------------------------------ as a value

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._source, self._ops)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Runnable):
            return NotImplemented
        return self._source is other._source and self._ops == other._ops

    def __hash__(self) -> int:
        return hash((id(self._source), len(self._ops)))

    def _repr_html_(self) -> str:
        try:
            explained, why = self.explain(), ""
        except PlanError as exc:
            explained, why = None, str(exc)
        made: str = named("penstock.showing.html:pipeline_html")(repr(self), explained, why)
        return made

    def __repr__(self) -> str:
        unwritten = added(self._ops)
        written = [op.label for number, op in enumerate(self._ops) if number not in unwritten]
        return ".".join([self._source.label, *written])


def first_of(pipeline: Runnable[T]) -> T:
    """The first sample or batch of an epoch."""
    found = pipeline.peek(1)
    if not found:
        raise PlanError(f"{pipeline!r} delivers nothing, so there is no first batch to serve again")
    return found[0]  # type: ignore[no-any-return]


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
