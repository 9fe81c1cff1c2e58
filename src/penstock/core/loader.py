"""The loader: a plan that runs, seen by the training loop."""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any, Self, TypeVar

from penstock import system
from penstock.checks import any_number, check_positive, whole_number
from penstock.core.adapters import Adapters
from penstock.core.budget import parse_bytes
from penstock.core.engine import Engine
from penstock.core.epoch import Run
from penstock.core.error_log import ErrorLog
from penstock.core.iteration import Counted, Iteration, Left, ReadBy
from penstock.core.observer import Observer
from penstock.core.redo import Start
from penstock.core.saving import Saving
from penstock.core.views import Views
from penstock.core.workers import nested
from penstock.errors import LengthUnknown, PlanError, StateMismatch
from penstock.executors import find_executor
from penstock.executors.executor import Placement, Pool
from penstock.lazy import named
from penstock.plan.lengths import known_length
from penstock.plan.rules import Options
from penstock.plan.staging import Staging
from penstock.plan.world import World, dealt, portion_of, world_now
from penstock.program.chunk import Chunk, CountVaried
from penstock.provenance import weights
from penstock.resume.schema import Edge
from penstock.sources.source import Flow

T = TypeVar("T", covariant=True)


class Loader(Views, Adapters[T]):
    """Runs a pipeline for a training loop. Made by ``pipeline.loader(...)``.

    Iterating it is one epoch. Workers start once and stay warm between epochs; use it as a
    context manager, or `close` it, to end them.

    >>> import penstock as ps
    >>> with ps.from_sequence(range(4)).batch(2).loader(seed=1) as loader:
    ...     for epoch, batches in loader.epochs(2):
    ...         print(epoch, [batch.tolist() for batch in batches])
    0 [[0, 1], [2, 3]]
    1 [[0, 1], [2, 3]]
    """

    def __init__(
        self,
        flow: Flow,
        *,
        seed: int = 0,
        epochs: int | None = None,
        state: Any = None,
        on: str | Pool | None = None,
        workers: int | str | None = None,
        inline: bool = False,
        isolate: bool = False,
        memory: int | str | None = None,
        cpus: float | None = None,
        timeout_s: float | None = None,
        max_errors: float | None = None,
        report_s: float | None = None,
        world: World | None = None,
        dashboard: bool | int | None = None,
    ) -> None:
        for given, name in ((timeout_s, "timeout_s"), (cpus, "cpus"), (report_s, "report_s")):
            check_positive(given, f"loader({name}=)")
        seed = any_number(seed, "loader(seed=)")
        epochs = None if epochs is None else whole_number(epochs, "loader(epochs=)", least=1)
        asked = Placement.of(on, workers, "loader()")
        if asked is not None:
            find_executor(asked.kind)
        self._timeout_s = timeout_s
        #: what the user has made, and what of it this rank runs
        self._flow = flow
        self._dealt = flow = dealt(flow, world or world_now(), needs_shard=not nested())
        self._deals = portion_of(flow)
        self._staging = Staging(flow, isolate)
        flow = self._staging.flow
        if isolate and inline:
            raise PlanError("loader(): inline=True runs all of it here, isolate=True elsewhere; use one of them")
        if isolate and (why := system.why_no_processes()):
            raise PlanError(why)
        self._isolated = isolate
        # What stands in for an engine has its methods, so that there are two kinds concerns only this line.
        kind: Any = named("penstock.remote.isolated:Isolated") if isolate else Engine
        self._engine: Engine = kind(flow, Options(on, workers, inline, cpus), seed, parse_bytes(memory))
        self._last_epoch = math.inf if epochs is None else epochs - 1
        self._engine.last_epoch = self._last_epoch
        self._seed = seed
        self._next_epoch = 0
        self._epoch = 0
        #: batches handed over by this loader, in all: the one number that is counted for every batch
        self._handed = 0
        #: where the batches of this epoch, and the steps, are counted from
        self._epoch_from = self._steps_from = 0
        self._saving = Saving(self._flow, self._deals, seed, self._engine)
        #: what is to be gone on with
        self._resumed: Edge | None = None
        self._started: Run | None = None
        self._iteration: Iteration | None = None
        self._errors = ErrorLog(max_errors, self._deals)
        self._observer = Observer(self._engine, report_s)
        weakref.finalize(self, self._engine.finalizer()).atexit = False
        if state is not None:
            self.load_state_dict(state)
        self._show(dashboard)

    # ------------------------------------------------------------------ reading

    def __iter__(self) -> Iterator[T]:
        """One epoch. A new iteration ends the one before, with a warning if its iterator is still held."""
        iteration = self._begin(ReadBy.ITER, stacklevel=3)
        batches = self._batches(iteration)
        iteration.iterator = weakref.ref(batches)
        return batches

    def _begin(self, by: ReadBy, stacklevel: int) -> Iteration:
        """Enter the next epoch, or what is left of the one that was resumed."""
        self._overtake(stacklevel + 1)
        edge = self._resumed
        iteration = Iteration(self._entered(edge), by)
        run, batch = iteration.run, 0
        if edge is None:
            self._stand_at(run.epoch)
        else:
            # All of it may have been delivered before the state was saved, and an epoch is never empty for that.
            if not iteration.has_rest(self._engine, self._timeout_s, self._errors):
                self._go_to(run.epoch + 1)
                return self._begin(by, stacklevel + 1)
            batch = self._saving.moment.batch
        # Nothing is called from here on: Ctrl-C comes before it, when all of the epoch is to come, or after it.
        self._epoch = run.epoch
        self._next_epoch = run.epoch + 1
        self._epoch_from = self._handed - batch
        self._iteration = iteration
        self._resumed = None
        return iteration

    def _overtake(self, stacklevel: int) -> None:
        """A new iteration ends the one under way. The user is told what that loses: now, or on reading the old."""
        iteration = self._iteration
        if iteration is None or iteration.ended:
            return
        self._engine.check_open()  # a loader that a fork has copied ends nothing
        iteration.overtaken = iteration.by is ReadBy.EPOCHS
        if iteration.is_held() and self._left() != 0:
            iteration.warn(self.batch_index, stacklevel + 1)
        self._end_iteration()

    def _left(self) -> int | None:
        """How many batches of this epoch are still to come, if that is known."""
        try:
            return max(len(self) - self.batch_index, 0)
        except LengthUnknown:
            return None

    def _entered(self, edge: Edge | None) -> Run:
        run, self._started = self._started, None
        if run is not None and run.epoch == self._next_epoch and not run.ended:
            return run
        return self._enter(edge)

    def _enter(self, edge: Edge | None, ahead: bool = False) -> Run:
        if edge is None:
            return self._engine.enter(self._next_epoch, ahead=ahead)
        try:
            return self._engine.enter(self._next_epoch, Start(edge), ahead=ahead)
        except (LookupError, TypeError, ValueError, AttributeError, AssertionError, PlanError) as exc:
            # Nothing of the user's runs in there, only what was saved is read.
            raise StateMismatch(f"the state is damaged: {exc!r}") from exc

    def _batches(self, iteration: Iteration) -> Iterator[T]:
        """Hands batches over one by one; what has been handed over is no longer held here."""
        if iteration.is_over():
            return
        engine = self._engine
        receive = self._staging.receive
        observer = self._observer
        finalizing = sys.is_finalizing
        observer.begin()
        whole = kept = at_exit = False
        try:
            while True:
                samples = iteration.samples
                while samples:
                    if iteration.losses:
                        iteration.report(self._errors)
                    self._handed += 1
                    yield samples.pop() if receive is None else receive(samples.pop())
                    if iteration.ended:
                        break
                else:
                    if iteration.losses:
                        iteration.report(self._errors)
                if (iteration.ended or iteration.closed or iteration.overtaken) and iteration.is_over():
                    return
                if iteration.samples:
                    continue  # another iterator of the same steps has read on meanwhile
                if iteration.failure is not None:
                    self._fail(iteration)
                chunk = iteration.first or engine.read(iteration.run, self._timeout_s)
                iteration.first = None
                if chunk is None:
                    break
                self._take_in(chunk, iteration)
            if iteration.is_over():
                return
            whole = True
            self._errors.check(engine.counters.samples)
        except GeneratorExit:
            # torch keeps iterators alive until modules have lost their names; the workers have ended by then.
            at_exit = finalizing()
            kept = at_exit or (iteration.by is ReadBy.STEPS and not iteration.ended)
            raise
        finally:
            if not at_exit:
                observer.end()
            if not kept:
                observer.put_down(iteration.samples)
                if not iteration.ended:
                    iteration.ended = True
                    if whole:
                        self._stand_at(iteration.run.epoch + 1)
                    engine.leave(iteration.run, whole)

    def _take_in(self, chunk: Chunk, iteration: Iteration) -> None:
        """A chunk was read: count it, and remember where it came from. Its batches wait with the first one last."""
        counters, observer = self._engine.counters, self._observer
        if perf_counter() >= observer.due:
            observer.look(self.stats)
        if chunk.losses:
            iteration.failure = self._errors.cut_off(chunk, counters.samples)
            iteration.losses = list(chunk.losses)
        else:
            iteration.failure = chunk.failure
        samples: list[Any] = chunk.samples
        places = chunk.places
        count = len(samples)
        counters.samples += count if type(places) is range else weights(places)
        counters.batches += count
        if counters.startup_s is None:
            observer.first_came(self.stats(), places)
        iteration.samples, iteration.count = samples, count
        observer.in_hand = samples, places
        if count:
            self._saving.handed(chunk, iteration.run.epoch, self._handed - self._epoch_from, self._handed)
        if count > 1:
            samples.reverse()

    def _fail(self, iteration: Iteration) -> None:
        """The stream ends here, in an exception; or goes on another way."""
        failure, iteration.failure = iteration.failure, None
        assert failure is not None
        exc = failure.exception
        if isinstance(exc, CountVaried):
            iteration.run = self._engine.replan(iteration.run, exc.position)
            return
        if failure.record is not None:
            self._errors.add(failure.record)
        iteration.ended = True
        self._engine.leave(iteration.run)
        raise exc

    def _end_iteration(self) -> None:
        iteration, self._iteration = self._iteration, None
        if iteration is not None and not iteration.ended:
            iteration.ended = True
            self._observer.end()
            self._observer.put_down(self._observer.in_hand[0])
            self._engine.leave(iteration.run)

    def epochs(self, n: int | None = None) -> Counted[tuple[int, Counted[T]]]:
        """``(epoch, batches)`` for the next `n` epochs; numbers go on where the loader stands.

        Without a number, up to the last of ``loader(epochs=)``: so a script that is run again, with a
        state, goes on to the same end. Both iterators have a length, where it is known. Read each epoch inside the
        loop: the next one ends it, and reading it after that is an error.
        """
        if n is not None:
            left = Left(whole_number(n, "epochs(n)"))
        elif self._last_epoch < math.inf:
            left = Left(max(int(self._last_epoch) + 1 - self._next_epoch, 0))
        else:
            raise PlanError("epochs() without a number needs to know how many: pipeline.loader(epochs=90)")
        return Counted(self._each_epoch(n, left), left)

    def _each_epoch(self, n: int | None, left: Left) -> Iterator[tuple[int, Counted[T]]]:
        last = self._last_epoch if n is None else self._next_epoch + n - 1
        self._engine.last_epoch = min(self._last_epoch, last)
        while self._next_epoch <= last:
            iteration = self._begin(ReadBy.EPOCHS, stacklevel=3)
            if self._epoch > last:
                # A state saved behind the last batch of an epoch: that one was over already.
                self._end_iteration()
                self._next_epoch = self._epoch
                break
            left.count = max(left.count - 1, 0)
            yield self._epoch, Counted(self._batches(iteration), self._left_of(iteration))
        left.count = 0
        self._engine.last_epoch = self._last_epoch

    def _left_of(self, iteration: Iteration) -> Callable[[], int]:
        """How many batches of one iteration are still to come; an error that says why where that is not known."""
        return lambda: 0 if iteration.ended else max(len(self) - self.batch_index, 0)

    def steps(self, n: int) -> Counted[tuple[int, T]]:
        """``(step, batch)`` for the next `n` batches, in whatever epochs they are.

        Called again it goes on with the next batch, in the middle of an epoch too, also after a ``break``. A step
        is a batch that was handed over, in whatever way: numbers go on where the loader stands, after a resume too.
        ``for batch in loader`` begins a new epoch instead, and so ends the one that `steps` was in.

        >>> import penstock as ps
        >>> with ps.from_sequence(range(5)).loader() as loader:
        ...     list(loader.steps(3)), list(loader.steps(3))
        ([(0, 0), (1, 1), (2, 2)], [(3, 3), (4, 4), (5, 0)])
        """
        left = Left(whole_number(n, "steps(n)"))
        return Counted(self._each_step(left), left)

    def _each_step(self, left: Left) -> Iterator[tuple[int, T]]:
        while left.count:
            before = self.step
            iteration = self._iteration
            anew = iteration is None or iteration.ended or iteration.by is not ReadBy.STEPS
            if anew:
                iteration = self._begin(ReadBy.STEPS, stacklevel=3)
            assert iteration is not None
            for batch in self._batches(iteration):
                left.count -= 1
                yield self.step - 1, batch
                if not left.count:
                    return
            if anew and self.step == before:
                raise PlanError(f"steps(): epoch {self._epoch} has no samples, so step {before} never comes")

    def start(self) -> Self:
        """Begin to fill the buffers of the next epoch now. Starting twice is the same as once."""
        if self._iteration is not None and not self._iteration.ended:
            return self
        if self._next_epoch <= self._last_epoch and (self._started is None or self._started.ended):
            self._started = self._enter(self._resumed, ahead=True)
        return self

    # ------------------------------------------------------------------ where it stands

    @property
    def epoch(self) -> int:
        """The epoch being read, or the last one that was."""
        return self._epoch

    @property
    def batch_index(self) -> int:
        """How many batches of this epoch have been handed over."""
        return self._handed - self._epoch_from

    @property
    def step(self) -> int:
        """How many batches have been handed over in all, those before a resume included."""
        return self._handed - self._steps_from

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch number `epoch`."""
        epoch = whole_number(epoch, "set_epoch(epoch)")
        if epoch == self._next_epoch:
            if self._iteration is not None and self._iteration.by is ReadBy.STEPS:
                self._end_iteration()  # steps() would go on with it
            return
        self._end_iteration()
        self._go_to(epoch)

    def _go_to(self, epoch: int) -> None:
        """Forget what was to be gone on with: next comes this epoch, from its beginning."""
        self._started = None
        self._stand_at(epoch)
        self._next_epoch = epoch
        self._resumed = None

    # ------------------------------------------------------------------ saving and loading

    def state_dict(self, behind: int = 0) -> dict[str, Any]:
        """Where the stream stands behind the last batch handed over: plain data for JSON, a few hundred bytes.

        A loader that loads it, here or in another process, with any number of workers, goes on with
        exactly the samples that were not delivered yet. ``behind=n`` is for frameworks that fetch
        ahead: the state as it was n batches ago.

        >>> import json
        >>> import penstock as ps
        >>> pipeline = ps.from_sequence(range(6)).batch(2)
        >>> with pipeline.loader() as loader:
        ...     first = next(iter(loader))
        ...     saved = json.dumps(loader.state_dict())
        >>> with pipeline.loader(state=json.loads(saved)) as loader:
        ...     [batch.tolist() for batch in loader]
        [[2, 3], [4, 5]]
        """
        behind = whole_number(behind, "state_dict(behind=)")
        return self._saving.after(self._handed - behind, max(0, self.step - behind), behind)

    def load_state_dict(self, state: Any, *, strict: bool = True) -> None:
        """Go on where `state` was saved: the next iteration delivers what was left of that epoch.

        Where ranks do not deliver in step and their number has changed, the states of all of them
        are needed, as a list. ``strict=False`` takes the state of a pipeline that was changed.
        """
        read = self._saving.read(state, strict)
        self._end_iteration()
        self._started = None
        self._engine.forget(read.carried)
        self._next_epoch = self._epoch = read.epoch
        self._epoch_from = self._handed - read.batch
        self._steps_from = self._handed - read.step
        self._resumed = read.at
        self._saving.chunks.clear()
        self._saving.stand(read, self._handed)

    def _stand_at(self, epoch: int) -> None:
        """The stream stands before the first batch of an epoch."""
        self._saving.stand(self._saving.start_of(epoch), self._handed)

    def __len__(self) -> int:
        """Batches per epoch."""
        return known_length(self._flow)

    # ------------------------------------------------------------------ ending

    def close(self) -> None:
        """End the epoch and all workers of this loader. Closing twice is the same as once."""
        try:
            if self._iteration is not None and not self._iteration.ended:
                self._iteration.closed = True
            self._end_iteration()
            self._started = None
        finally:
            self._engine.close()
            self._staging.close()
            self._hide()

    def once(self, then: Callable[[], None] | None = None) -> Iterator[T]:
        """One epoch, and the end of the loader with it.

        ``then`` is called when the pass is over, unless it was only a look at the first batch.
        """
        self._engine.once = True
        whole = False
        try:
            yield from self
            whole = True
        except GeneratorExit:
            # The iterator is being collected, maybe inside the garbage collector: end, but do not wait.
            self._engine.abandon()
            raise
        finally:
            if then is not None and (whole or self.step > 1):
                then()
            if not self._engine.closed:
                self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        state = "closed" if self._engine.closed else f"epoch {self._epoch}, batch {self.batch_index}"
        return f"<Loader of {len(self._engine.plan.stages)} stages, {state}>"
