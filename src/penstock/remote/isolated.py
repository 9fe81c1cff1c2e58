"""``loader(isolate=True)``: the engine runs in a process of its own, and this one only looks at what it makes.

No thread of ours runs in the training process, so none takes the interpreter lock from the training step:
whoever reads looks into the socket itself. A few chunks are sent ahead, each for a *credit* that the reader
has given; what crosses is a header, and the batches are views of shared memory.

With every chunk the process says where the epoch stands after it. When it dies, another goes on from there.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from math import inf
from time import perf_counter
from typing import Any, NamedTuple, cast

from penstock.core.budget import Budget, Estimate
from penstock.core.closing import check_open
from penstock.core.redo import BEGINNING, Start
from penstock.core.tally import memory_tally
from penstock.core.tuning import as_note
from penstock.errors import PenstockError, PlanError, StageTimeout, WorkerDied
from penstock.executors.processes import default_blocks
from penstock.executors.startup import Process, StartOptions
from penstock.interrupts import uninterrupted
from penstock.memory.block import Blocks
from penstock.memory.exceptions import unpacked
from penstock.memory.parcel import pack
from penstock.plan.plan import Plan
from penstock.plan.rules import Options, make_plan
from penstock.program.chunk import Chunk
from penstock.provenance import Place
from penstock.remote.cargo import Cargo, troubled
from penstock.remote.connection import Connection, bury
from penstock.remote.preload import refuse_in_import
from penstock.remote.trial import DEATHS_RUNNING_ISOLATED, Trial
from penstock.remote.wire import Gone, Message
from penstock.resume.schema import Edge, InputState, checked, plain_data
from penstock.sources.source import Flow
from penstock.stats.counters import ReaderCounters
from penstock.stats.watch import Meter

_ENTRY = "penstock.remote.pump:serve"
#: it is one process and not one per worker, and it may place batches on a device
_OPTIONS = StartOptions(gpus=True)
#: chunks that may be on their way
_CREDITS = 3
#: chunks that a training loop holds as a rule: the one it works on, and the next
_IN_HAND = 2
#: the share of `memory=` that these chunks may take, as a divisor
_SHARE = 4
#: how long a process has to end by itself
_GRACE_S = 0.3
#: how long to wait for word of what holds up a batch
_WORD_S = 1.0
#: how long an answer may take; the process may just be importing what the pipeline needs
_ANSWER_S = 60.0

_runs = count(1)
_questions = count(1)


class _Run:
    """One epoch, as the reader sees it."""

    def __init__(self, epoch: int, start: Start = BEGINNING) -> None:
        self.epoch = epoch
        #: where another process would begin: where the loader said, later after the last chunk that has come
        self.edge: Edge | None = start.edge
        self.ended = False
        self.restart()

    def restart(self) -> None:
        """A process makes the epoch, from `edge` on."""
        self.number = next(_runs)
        #: its chunks that have come, and how many had come when the process was told that the loop waits
        self.chunks = 0
        self.asked = -1


class Isolated:
    """Stands in a loader for an engine that runs elsewhere."""

    def __init__(self, flow: Flow, options: Options, seed: int, memory: int | None) -> None:
        refuse_in_import()
        self.plan = make_plan(flow, options)
        _refuse_pools(self.plan)
        parts: list[tuple[str, Any]] = [
            (step.op.full_label, step.op) for stage in self.plan.stages for step in stage.all_steps()
        ]
        #: a reservoir serves samples again while the training loop waits, so the process is told when it does
        self._draws = self.plan.draws
        #: of `memory=`, what chunks on their way here and idle blocks may take; the rest is for the process
        self._budget = Budget(None if memory is None else memory // _SHARE)
        engine_memory = None if memory is None else memory - memory // _SHARE
        self._parcel = pack((flow, options, seed, engine_memory), "the pipeline", parts)
        self.blocks = default_blocks(self._budget.spare if self._budget.bounded else None)
        self.counters = ReaderCounters()
        self._meter = Meter()
        self.last_epoch: float = inf
        self.once = False
        self.closed = False
        self._pid = os.getpid()
        self._current: _Run | None = None
        self._connection: Connection | None = None
        self._estimate = Estimate()
        self._stats: dict[str, float] = {"stuck": 0, "deaths": 0, "cpu_s": 0.0}
        self._deaths = self._deaths_running = 0
        #: what came while the reader waited for an answer: it is read first
        self._early: deque[Chunk | BaseException | bool] = deque()
        self._carried: dict[str, InputState] = {}
        #: so that the finalizer reaches the process without holding the engine
        self._processes: list[Process] = []
        #: what deaths without anything new say of the sample in hand
        self._trial = Trial()

    def notes(self) -> list[str]:
        """As that of an engine, as far as the counters of the process say it."""
        found = {}
        for stage in {stage.site: stage for stage in self.plan.stages if stage.site.auto}.values():
            if workers := self._stats.get(f"stage.{stage.label}.workers"):
                found[stage] = int(workers)
        return [as_note("has these numbers now", found)] if found else []

    # ------------------------------------------------------------------ epochs

    def enter(self, epoch: int, start: Start = BEGINNING, ahead: bool = False) -> _Run:
        """Make `epoch` the one that is read, from `start` on."""
        self.check_open()
        if self._current is not None:
            self.leave(self._current)
        run = self._current = _Run(epoch, start)
        try:
            self._begin(run)
        except Gone:
            self._bury(run)
        return run

    def _begin(self, run: _Run) -> None:
        with self._exchange():
            connection = self._connected()
            connection.wire.send(("enter", run.number, run.epoch, self.last_epoch, self.once, plain_data(run.edge)))

    def leave(self, run: _Run, whole: bool = False) -> None:
        """The epoch is over for the reader."""
        run.ended = True
        if run is self._current:
            self._current = None
            self._early.clear()
            self._tell("leave", run.number, whole)

    def _tell(self, *message: Any) -> None:
        """Send a message that only this process needs: if it has ended, the message is dropped."""
        if self._connection is not None:
            with suppress(Gone), self._exchange():  # if it has ended, the next epoch finds out
                self._connection.wire.send(message)

    def replan(self, run: _Run, position: int) -> _Run:
        """The process does that itself."""
        raise AssertionError("an isolated engine never asks for another plan")

    # ------------------------------------------------------------------ reading

    def read(self, run: _Run, timeout_s: float | None) -> Chunk | None:
        """The next chunk of the epoch, or None at its end. Waits for it."""
        began = perf_counter()
        self.counters.wait_begins(began)
        deadline = inf if timeout_s is None else began + timeout_s
        try:
            while True:
                self.check_open()
                if self._early:
                    early = self._early.popleft()
                    if isinstance(early, BaseException):
                        raise early
                    return early if isinstance(early, Chunk) else None
                if run.ended:
                    return None
                try:
                    if self._connection is None:  # given up since, by `_exchange`
                        run.restart()
                        self._begin(run)
                    connection = self._connected()
                    if self._draws and run.asked < run.chunks and not connection.spoken:
                        run.asked = run.chunks
                        with self._exchange():
                            connection.wire.send(("asks", run.number, run.chunks))
                    if not connection.wait(deadline):
                        raise StageTimeout(f"no batch within {timeout_s:g} s; held up by {self._holding()}")
                    found = self._received(connection, run)
                except Gone:
                    if not self.closed:
                        self._bury(run)
                    continue
                if isinstance(found, Chunk):
                    if not found.blank:
                        return found
                elif found:
                    return None
        finally:
            self.counters.wait_ends(perf_counter())

    @contextmanager
    def _exchange(self) -> Iterator[None]:
        """Drop the process if the block is interrupted, by Ctrl-C for instance.

        An exchange that stops half-way leaves half a message in the socket, or a process that waits for its
        answer for ever.
        """
        try:
            yield
        except Gone:
            raise
        except BaseException:
            self._drop_process()
            raise

    def _received(self, connection: Connection, run: _Run) -> Chunk | bool:
        """Take in a message. Returns what it brings: a chunk of this epoch, or True for its end."""
        with self._exchange():
            found = self._heard(connection, run, connection.wire.receive())
        if isinstance(found, BaseException):
            raise found
        return found

    def _heard(self, connection: Connection, run: _Run, message: Message) -> Chunk | BaseException | bool:
        """What a message brings: a chunk of this epoch, what it has failed in, or True for its end."""
        kind, *said = message.head
        if kind == "need":
            connection.regrant(self.blocks, *said)
        elif kind == "chunk":
            number, cargo, stats, edge = said
            chunk = self._on_chunk(connection, cargo, stats, message)
            if number == run.number:
                run.chunks += 1
                if edge is not None:
                    run.edge = checked(edge, Edge)
                    self._deaths_running = 0
                    self._trial.relieve()
                chunk.origin = cast(Any, _Elsewhere(number, run.chunks, run.edge))
                return chunk
        elif kind == "end":
            number, stats, trouble = said
            self._stats = stats
            if number == run.number:
                run.ended = True
                return True if trouble is None else troubled(Chunk([], ()), trouble)
        elif kind == "failed":
            number, exception = said
            if number == run.number:
                return unpacked(exception)
        return False

    def _on_chunk(
        self, connection: Connection, cargo: Cargo, stats: dict[str, float] | None, message: Message
    ) -> Chunk:
        if cargo.block is not None:
            self._estimate.add(cargo.nbytes)
        chunk = connection.received(self.blocks, cargo, message)
        self._stats = stats or self._stats
        self._credit(connection)
        return chunk

    def _credit(self, connection: Connection) -> None:
        nbytes = self._estimate.nbytes
        if self._budget.allowed is not None:
            # What is larger has to be asked for, and waits until somebody reads.
            nbytes = min(nbytes, self._budget.allowed // (_CREDITS + _IN_HAND))
        connection.wire.send(("credit", connection.grant(self.blocks, nbytes)))

    def _holding(self) -> str:
        """What the stream waits for, as the process tells it."""
        try:
            return str(self._answer(_WORD_S, "holding"))
        except Gone:
            return "its process, which has ended"
        except TimeoutError:
            return "its process, which does not answer"

    # ------------------------------------------------------------------ where it stands

    def standing(self, origin: Any, places: Sequence[Place], number: int) -> Edge | None:
        """Where the epoch stands after sample `number` of a chunk that was handed over."""
        if number == len(places) - 1:
            edge: Edge | None = origin.edge
            return edge
        told = self._ask("where the epoch stands", "standing", origin.run, origin.chunk, number)
        if told is None:
            raise PenstockError(
                "the process that made this batch has died; take one more batch, then save the state"
            )
        return checked(told, Edge)

    def carrying(self) -> dict[str, InputState]:
        """Between two epochs: the positions of inputs that continue from epoch to epoch."""
        if self._connection is not None and self.plan.carries:
            told = self._ask("where inputs stand that go on from epoch to epoch", "carrying")
            self._carried = checked(told, dict[str, InputState]) if told else self._carried
        return self._carried

    def forget(self, carried: dict[str, InputState]) -> None:
        """Continue from another state."""
        if self._current is not None:
            self.leave(self._current)
        self._carried = carried
        self._tell("forget", plain_data(carried))  # the next one is told when it is begun

    def _ask(self, about: str, kind: str, *question: Any) -> Any:
        """The process's answer; None if it has ended. PenstockError if it does not answer."""
        try:
            return self._answer(_ANSWER_S, kind, *question)
        except Gone:
            return None
        except TimeoutError:
            raise PenstockError(
                f"the isolated process {self._processes[-1].pid} has not answered within {_ANSWER_S:g} s; it was "
                f"asked {about}. It is stopped, or stuck in a call that keeps the interpreter lock; ask again, or "
                "close the loader"
            ) from None

    def _answer(self, patience_s: float, kind: str, *question: Any) -> Any:
        """The process's answer to a question. Gone if it has ended, TimeoutError if it does not answer in time."""
        connection = self._connection
        if connection is None:
            raise Gone
        number = next(_questions)
        deadline = perf_counter() + patience_s
        with self._exchange():
            connection.wire.send((kind, number, *question))
        while connection.wait(deadline):
            with self._exchange():
                message = connection.wire.receive()
                # What a question gets that was given up is left alone: it has another number.
                if message.head[:2] == ("answer", number):
                    return message.head[2]
                with uninterrupted():  # what has been heard counts as handed over
                    found = self._heard(connection, self._current or _Run(-1), message)
                    if found is not False and not (isinstance(found, Chunk) and found.blank):
                        self._early.append(found)
        raise TimeoutError

    # ------------------------------------------------------------------ the process

    def _connected(self) -> Connection:
        if self._connection is None:
            with uninterrupted():  # no process is without an owner who ends it
                process = Process(_ENTRY, "penstock-isolated", _OPTIONS)
                self._processes.append(process)
                # After that start: the server that forks processes ends with the last of them.
                while len(self._processes) > 1:
                    self._processes[0].close()
                    self._processes.pop(0)
            connection = self._connection = Connection(process)
            if self._trial.probing:
                connection.watch()
            condemned = list(self._trial.condemned.items())
            connection.send_parcel(("engine", self._budget.allowed, condemned), self._parcel)
            if self._carried:
                connection.wire.send(("forget", plain_data(self._carried)))
            for _ in range(_CREDITS):
                self._credit(connection)
        return self._connection

    @uninterrupted()
    def _drop_process(self) -> None:
        """End the process and wait until it has gone."""
        while self._processes:
            self._processes[-1].close()
            self._processes.pop()
        self._hang_up()

    def _hang_up(self) -> None:
        """The process will say nothing more, and will not write any more: all blocks that it was given are free."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.take_back_all()

    def _bury(self, run: _Run) -> None:
        """The process is gone: another takes its place, or nobody can."""
        told, call = "the isolated process", None
        if self._processes:
            death = bury(self._processes[-1], self._connection)
            told, call = f"{told} {death.end}", death.call
        self._hang_up()
        self._deaths += 1
        self._deaths_running += 1
        known = len(self._trial.condemned)
        self._trial.death(call, told)
        if len(self._trial.condemned) > known:
            self._trial.relieve()
        if self._deaths_running >= DEATHS_RUNNING_ISOLATED:
            self._drop_process()
            raise WorkerDied(f"{told}, {self._deaths_running} times running without a batch")
        run.restart()
        try:
            self._begin(run)
        except Gone:
            self._bury(run)

    # ------------------------------------------------------------------ the rest of an engine

    def stage_stats(self) -> dict[str, float]:
        """The counters of all stages, as the process last told them."""
        here = self._meter.counts
        deaths = self._stats["deaths"] + self._deaths
        memory = memory_tally(self._budget, self.blocks)
        memory = {name: value + self._stats.get(name, 0) for name, value in memory.items()}
        return here | self._stats | memory | {"deaths": deaths, "open_s": here["open_s"]}

    def check_open(self) -> None:
        check_open({}, self._pid, self.closed)

    def finalizer(self) -> Callable[[], None]:
        """What ends the process of a loader that nobody holds any more."""
        return partial(_abandoned, self._processes, self.blocks)

    def abandon(self) -> None:
        self.closed = True
        _abandoned(self._processes, self.blocks)

    @uninterrupted()
    def close(self) -> None:
        """End the process. Called again, it ends what the first call has not."""
        if self._pid != os.getpid():
            return
        self.closed = True
        self._meter.stop()
        if self._current is not None:
            self._current.ended = True
        if self._processes:
            self._processes[-1].hang_up()
            self._processes[-1].exit(_GRACE_S)
        self._drop_process()
        self.blocks.close()


def _abandoned(processes: list[Process], blocks: Blocks) -> None:
    for process in list(processes):
        process.kill()
    blocks.close()


def _refuse_pools(plan: Plan) -> None:
    for stage in plan.stages:
        pool = stage.site.pool
        if pool is not None:
            ops = ", ".join(step.op.label for step in stage.steps)
            raise PlanError(
                f"loader(isolate=True) runs everything in one process of its own, where the pool of {ops} is not; "
                "give workers= instead of a pool, or leave isolate out"
            )


class _Elsewhere(NamedTuple):
    """Where a chunk came from, as far as this process knows: its number, and where the epoch stood after it."""

    run: int
    chunk: int
    edge: Edge | None
