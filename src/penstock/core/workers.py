"""The workers behind a placement: who is idle, who may be woken, whose ticket is next.

One lock guards all bookkeeping of a process: `LOCK`. It is held for microseconds, never while a
function of the user's runs. Whoever takes a ticket looks whether there is another and wakes one
idle worker for it, so wake-ups spread as far as there is work and no further. A reader that has
nothing to read starts workers one after the other until something comes.
"""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from time import monotonic, thread_time
from typing import Any, Protocol

from penstock import system
from penstock.core.lane import Job, Pull
from penstock.core.stage import StageRun
from penstock.executors import find_executor
from penstock.executors.executor import Executor, Worker
from penstock.machine import run_delay_s
from penstock.plan.plan import Site
from penstock.program.failure import take_note

# An RLock, because a finalizer of the user's may run wherever memory is allocated.
LOCK = threading.RLock()
system.at_fork(after_in_child=LOCK._at_fork_reinit)  # type: ignore[attr-defined]


class _Here(threading.local):
    """What the calling thread is."""

    #: the crew whose worker it is
    crew: Crew | None = None
    #: it is a worker of a worker process
    nested = False


HERE = _Here()


def nested() -> bool:
    """Whether this runs inside a function of a pipeline."""
    return HERE.crew is not None or HERE.nested


_numbers = count(1)


class Client(Protocol):
    """A loader, as a crew sees it."""

    def stage_runs(self, crew: Crew) -> Sequence[StageRun]:
        """The stages that may have tickets for `crew`, the most urgent first."""

    def spread(self, own: Crew) -> None:
        """A ticket was taken that may have made room for other crews than `own`: wake one worker of each."""

    def goes_on(self) -> bool:
        """A worker has found nothing to do: begin the next epoch, if that is possible. True if it was begun."""

    def wake_nested_reader(self) -> None:
        """A worker has begun to wait in a pipeline of its own."""

    def crew_closed(self) -> None:
        """The crew has no workers any more."""

    def failed(self, exc: BaseException) -> None:
        """Its bookkeeping went wrong: the epoch that is read ends in `exc`."""

    def let_go(self) -> None:
        """A worker ends: if that is because nobody holds the loader any more, what is ready is dropped."""

    @property
    def winds_down(self) -> bool:
        """There will be no more tickets, in this epoch or another."""


class Crew:
    """Workers of one executor, and the loaders they work for."""

    def __init__(
        self, executor: Executor, size: int, name: str, work: Any, shared: bool = False, auto: bool = False
    ) -> None:
        #: belongs to a pool, and so outlives its loaders
        self.shared = shared
        self.executor = executor
        #: how many workers there may be; where the loader finds that number, it begins with one, and has a limit
        self.size = 1 if auto else size
        self.auto, self.most = auto, size
        #: its workers live in this process, and not in one that was forked from it
        self.pid = os.getpid()
        self.name = f"penstock-{name}-{next(_numbers)}"
        self.work = work
        self.workers: list[Worker] = []
        self.idle: list[Worker] = []
        #: workers that were given up inside a call
        self.stuck: list[Worker] = []
        #: workers that are ending by themselves
        self.leaving: list[Worker] = []
        # Weak: a worker that waits must not keep alive a loader that nobody holds any more.
        self._clients: list[weakref.ref[Client]] = []
        self.closed = False
        #: why there are fewer workers than were asked for
        self.lack: Exception | None = None
        self._told = False
        #: workers inside a function that itself reads a pipeline, and waits there
        self.reading = 0
        #: woken, and not here yet. One at a time: where the interpreter lock is what there is
        #: too little of, it takes long to come, and more of them would only stand in the way
        self._coming: set[Worker] = set()
        #: the first tickets of workers that are being started
        self._starting: set[Job | Pull] = set()
        self._turn = 0
        #: of those on one event loop, the one that began a ticket last
        self.turn_of: Worker | None = None
        #: the thread of their event loop, and when it was last asked for: its CPU time, its wait for a CPU
        self._loop = (0, 0.0, 0.0)
        self._started = 0
        #: processes that have died since the last one answered
        self.deaths = 0

    def loop_spent(self) -> tuple[float, float]:
        """CPU time of the event loop that calls this, and its wait for a CPU, since it last did."""
        now = threading.get_ident(), thread_time(), run_delay_s()
        before, self._loop = self._loop, now
        return (now[1] - before[1], now[2] - before[2]) if before[0] == now[0] else (0.0, 0.0)

    # ------------------------------------------------------------------ under the lock

    @property
    def clients(self) -> list[Client]:
        """The loaders that are still there."""
        return [client for reference in self._clients if (client := reference()) is not None]

    def join(self, client: Client) -> None:
        if client not in self.clients:
            self._clients = [weakref.ref(one) for one in [*self.clients, client]]

    def _job(self, worker: Worker | None, now: float = 0.0) -> Job | Pull | None:
        """A ticket from one of the loaders: round robin between them, downstream first."""
        clients = self._clients
        if self.shared and clients:
            self._turn = turn = (self._turn + 1) % len(clients)
            clients = clients[turn:] + clients[:turn]
        for reference in clients:
            client = reference()
            if client is None:
                continue
            stage_run = job = None
            try:
                for stage_run in client.stage_runs(self):
                    job = stage_run.take(worker, now)
                    if job is not None:
                        break
                else:
                    if client.goes_on():
                        job = self._job(worker, now)
                if job is not None:
                    if stage_run is not None and not stage_run.plain:
                        client.spread(self)
                    return job
            except BaseException as exc:
                _blame(client, stage_run, exc)
        return None

    def _runnable(self, worker: Worker | None = None) -> bool:
        """Whether there is a ticket, for `worker` if it matters who takes it. Changes nothing."""
        for reference in self._clients:
            client = reference()
            if client is None:
                continue
            stage_run = None
            try:
                for stage_run in client.stage_runs(self):
                    if stage_run.runnable(worker):
                        return True
            except BaseException as exc:
                _blame(client, stage_run, exc)
        return False

    def take(self, worker: Worker, now: float = 0.0) -> Job | Pull | None:
        """A ticket for `worker`; None puts it among the idle, or retires it if there will be no more.

        `now` is when the worker became free, if that was a moment ago.
        """
        if self._coming:
            self._coming.discard(worker)
        job = self._job(worker, now)
        if job is None:
            if self._surplus and worker in self.workers:
                self._retire(worker)
            elif not self.shared and not self._starting and all(client.winds_down for client in self.clients):
                self._retire(worker)
            elif worker not in self.idle:
                self.idle.append(worker)
                if self.executor.remote:
                    self.rouse()  # a ticket that was paused in a process can be gone on with only there
            return None
        if self.idle or len(self.workers) < self.size:
            self.rouse()
        return job

    def _retire(self, worker: Worker) -> None:
        """`worker` has nothing in hand, and ends."""
        worker.retired = True
        if worker in self.workers:
            self.workers.remove(worker)
            self.leaving.append(worker)

    @property
    def _surplus(self) -> bool:
        """There are more workers than there may be. Processes stay: a ticket may be paused in any of them."""
        return self.auto and len(self.workers) > self.size and not self.executor.remote

    def resize(self, size: int) -> None:
        """Have so many workers from now on: more are started when there is work, idle ones end."""
        self.size = size
        while self._surplus and self.idle:
            worker = self.idle.pop()
            self._retire(worker)
            worker.unpark()

    @property
    def settled(self) -> bool:
        """As many workers are here as there may be, or more than there is work for."""
        return len(self.workers) >= self.size or bool(self.idle)

    def rouse(self) -> None:
        """If there is a runnable ticket, wake or start one worker for it."""
        if self._coming or self.closed:
            return
        if self.idle:
            worker = self._able()
            if worker is not None:
                self._wake(worker)
        elif len(self.workers) < self.size:
            job = self.opening()
            if job is not None:
                self.start(job, grow=True)

    def _wake(self, worker: Worker) -> None:
        self.idle.remove(worker)
        self._coming.add(worker)
        worker.unpark()

    def nudge(self) -> None:
        """As `rouse`, where there is surely something to do: an idle worker looks for itself."""
        if self._coming or self.closed or not self.idle or self.executor.remote:
            self.rouse()
        else:
            self._wake(self.idle[-1])

    def _able(self) -> Worker | None:
        """An idle worker for which there is something to do."""
        if not self.executor.remote:
            return self.idle[-1] if self._runnable() else None
        # A ticket that was paused in a process can be gone on with only there.
        return next((one for one in reversed(self.idle) if self._runnable(one)), None)

    @property
    def stretched(self) -> bool:
        """All workers there may be are here, and none is idle: a ticket may wait behind another."""
        return self._complete and not self._starting and not self.idle and not self._coming

    def opening(self) -> Job | Pull | None:
        """A runnable ticket that nobody is here for, and for which a worker is to be started."""
        if self._complete or self.idle or self.closed or self.executor.inline:
            return None
        job = self._job(None)
        if job is not None:
            self._starting.add(job)
        return job

    def start(self, job: Job | Pull, grow: bool = False) -> None:
        """Start a worker with `job` in hand. It lets the crew grow on, unless the caller is going to do that.

        Starting takes a while, so whoever can calls this without holding the lock.
        """
        self._started += 1
        box = [job]
        try:
            worker = self.executor.start(partial(self.work, self, box, grow), f"{self.name}.{self._started}")
        except BaseException as exc:
            with LOCK:
                self._starting.discard(job)
                if out_of(box) is not None:
                    job.stage_run.untaken(job)
                if not isinstance(exc, Exception):
                    raise  # Ctrl-C, perhaps after the worker has begun: then it comes by itself
                self._cannot_grow(exc)
                self.rouse()
            return
        with LOCK:
            self._starting.discard(job)
            self.enlist(worker)
            if not self.closed:
                return
        # Closed meanwhile, by someone who could not know of this worker.
        worker.unpark()
        worker.interrupt()
        if not grow:
            worker.join(1.0)

    def enlist(self, worker: Worker) -> None:
        """A new worker is here: who started it says so, and the worker itself, should the other not come to it."""
        if worker not in self.workers and worker not in self.leaving:
            (self.leaving if worker.retired else self.workers).append(worker)

    def resettle(self, client: Client) -> None:
        """The reader of `client` was stopped in the middle of a change here: all workers say anew what they do."""
        self._starting = {job for job in self._starting if job.stage_run.run.engine is not client}
        self._coming.clear()
        self.idle.clear()
        for worker in self.workers:
            worker.unpark()

    def _cannot_grow(self, exc: Exception) -> None:
        """The system gives no more workers: those that are here do the work, or nobody can."""
        self.lack = exc
        here = len(self.workers) + len(self._starting)
        self.size = max(here, 1)
        if not here:
            self.closed = True
            for client in self.clients:
                client.crew_closed()

    def tell_lack(self) -> None:
        """Warn, once, that there were fewer workers than asked for."""
        if self.lack is not None and not self._told:
            self._told = True
            warnings.warn(
                f"only {self.size} {self.executor.kind} workers could be started: {self.lack}",
                RuntimeWarning,
                stacklevel=4,
            )

    def needs_help(self, nested: Crew | None) -> bool:
        """Whether a reader that is a worker of crew `nested` should run tickets meant for this crew."""
        if nested is None or self.executor.asynchronous:
            return False
        return not self.idle and self._complete and (self is nested or self.reading > 0)

    @property
    def _complete(self) -> bool:
        """As many workers as there may be are here, or on their way."""
        here = len(self.workers)
        return here >= self.size or here + len(self._starting) >= self.size

    def replace(self, worker: Worker) -> None:
        """`worker` is stuck in a call: another takes its place."""
        if worker in self.workers:
            self.workers.remove(worker)
            self.stuck.append(worker)

    def failed(self, worker: Worker, exc: BaseException) -> None:
        """`worker` ends in what is no failure of a sample: its loaders are told, and another may take its place."""
        take_note(exc, f"a fault inside penstock, which has ended worker {worker.name}")
        with LOCK:
            worker.retired = True
            self._coming.discard(worker)
            for workers in (self.workers, self.idle):
                if worker in workers:
                    workers.remove(worker)
            self.leaving.append(worker)
            for client in self.clients:
                client.failed(exc)

    def leave(self, client: Client) -> None:
        self._clients = [weakref.ref(one) for one in self.clients if one is not client]
        self._turn = 0

    # ------------------------------------------------------------------ ending

    def dismiss(self) -> list[Worker]:
        """Tell all workers to end; returns them. Safe inside a finalizer."""
        self.closed = True
        workers = list(self.workers)
        for client in list(self.clients):
            client.crew_closed()
        for worker in workers:
            worker.unpark()
            worker.interrupt()
        return workers

    def close(self, grace_s: float = 2.0, quiet: bool = False) -> None:
        """End all workers and wait for them; warn of those stuck in a call."""
        deadline = monotonic() + grace_s
        workers = self.dismiss() + self.leaving
        stuck = [worker for worker in workers if not worker.join(max(deadline - monotonic(), 0))]
        stuck += [worker for worker in self.stuck if not worker.join(min(grace_s, 0.25))]
        self.executor.close()
        if stuck and not quiet:
            for worker in stuck:
                warnings.warn(
                    f"worker {worker.name} is still inside a call {grace_s:g} s after close; a thread cannot be "
                    f"killed, so it is left behind. It stands here:\n{worker.stack()}",
                    RuntimeWarning,
                    stacklevel=3,
                )


def _blame(client: Client, stage_run: StageRun | None, exc: BaseException) -> None:
    """Something went wrong while a ticket was looked for: the loader's epoch ends in it."""
    if not isinstance(exc, KeyboardInterrupt):
        where = "" if stage_run is None else f" in {stage_run.lane.stage.label}"
        take_note(exc, f"a fault inside penstock, while it looked for work{where}")
    client.failed(exc)
    if _interrupts(exc):
        raise exc


def _interrupts(exc: BaseException) -> bool:
    """Whether it is Ctrl-C, which is for whoever reads."""
    return isinstance(exc, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


def out_of(box: list[Job | Pull]) -> Job | Pull | None:
    """The first ticket of a worker: the worker takes it out, or whoever could not start it. Only one of them."""
    try:
        return box.pop()
    except IndexError:
        return None


def crew_for(site: Site, loop_of: Callable[[Executor], Any]) -> Crew:
    """The crew of a site: that of its pool, or a new one, whose workers run the loop that fits."""
    pool = site.pool
    if pool is not None and pool.live is not None and not pool.live.closed and pool.live.pid == os.getpid():
        live: Crew = pool.live
        return live
    executor = find_executor(site.kind).of(pool)
    loop = loop_of(executor)
    if pool is None:
        return Crew(executor, site.workers, site.kind, loop, auto=site.auto)
    pool.live = crew = Crew(executor, site.workers, f"{site.kind}-pool", loop, shared=True)
    # When nobody holds the pool any more, its workers end.
    weakref.finalize(pool, Crew.dismiss, crew).atexit = False
    return crew
