"""The thread in front of a worker process: sends tickets, hands in chunks, and sees to it that nothing is lost.

While the process runs one ticket, another may wait behind it, so that it never waits for the parent. When
it ends without an answer, its tickets are given to others and another process takes its place; `Trial`
says what becomes of the ticket it had in hand.
"""

from __future__ import annotations

import pickle
import signal
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from math import inf
from time import perf_counter
from typing import Any

from penstock.core.lane import Job, Pull
from penstock.core.work import discard, weighed
from penstock.core.workers import LOCK, Crew, out_of
from penstock.errors import PenstockError, WorkerDied
from penstock.executors.ending import Exit
from penstock.executors.processes import ProcessExecutor, ProcessWorker
from penstock.executors.templates import Template
from penstock.memory.parcel import Parcel
from penstock.program.chunk import Chunk
from penstock.program.desk import READING, Desk
from penstock.remote.cargo import Cargo
from penstock.remote.connection import Connection, Death, bury
from penstock.remote.pools import end_with_interpreter, is_stopped
from penstock.remote.remote_task import Paused, RemoteTask, Sent, described
from penstock.remote.remote_task import lost as lost_ticket
from penstock.remote.requests import laid_out, request_for
from penstock.remote.trial import DEATHS_RUNNING, STILLBORN, STILLBORN_KILLED
from penstock.remote.wire import Gone, Message, Reply
from penstock.stats.calls import Timing

#: how long a process has to end by itself when it is not needed any more
_GRACE_S = 0.3

#: hands in what a ticket has made, under the lock; returns what is to be let go of outside of it
HandIn = Callable[[], list[Any]]

_tickets = count(1)


def work_remote(crew: Crew, first: list[Job | Pull], grow: bool, worker: ProcessWorker) -> None:
    """The life of the thread in front of a worker process. It begins as that of a thread does."""
    front = _Front(crew, worker)
    end_with_interpreter(crew)
    try:
        _life(crew, first, grow, worker, front)
    except BaseException as exc:
        crew.failed(worker, exc)
    finally:
        for client in crew.clients:
            client.let_go()
        front.close()


def _life(crew: Crew, first: list[Job | Pull], grow: bool, worker: ProcessWorker, front: _Front) -> None:
    if crew.closed:
        return
    if grow:
        with LOCK:
            crew.rouse()
    job = out_of(first)
    if job is None:
        return
    results = front.give(job)
    job = None
    if worker not in crew.workers:
        with LOCK:
            crew.enlist(worker)
    while True:
        if front.out and not results:
            results = front.answer()
        garbage: list[Any] = []
        with LOCK:
            for hand_in in results:
                garbage += hand_in()
            ends = crew.closed or worker.retired
            jobs = [] if ends else front.take()
        discard(garbage)
        results = []
        if ends:
            return
        for job in jobs:
            results += front.give(job)
        waits = not jobs and not front.out
        jobs = job = hand_in = None  # type: ignore[assignment]
        if waits:
            if worker.retired:
                return
            front.tidy()
            worker.park()


class _Front:
    """One worker process, as its thread sees it."""

    def __init__(self, crew: Crew, worker: ProcessWorker) -> None:
        assert isinstance(crew.executor, ProcessExecutor)
        self.crew = crew
        self.worker = worker
        self.executor = crew.executor
        #: what the process has not answered; it runs the first of them
        self.out: deque[Sent] = deque()
        #: tickets that it has begun and that are paused
        self.paused: dict[int, weakref.ref[Job]] = {}
        #: those of them that nobody waits for; any thread may add to it
        self.unwanted: deque[int] = deque()
        self.stillborn = 0
        #: the process, or one before it, has sent something
        self.answered = False
        self._unreplaced = False
        self._forget_process()
        worker.front = self

    def _forget_process(self) -> None:
        self.connection: Connection | None = None
        self._programs: dict[int, weakref.ref[Parcel]] = {}
        self._overdue = False

    @property
    def desk(self) -> Desk | None:
        """Where the process shows what it has in hand."""
        connection = self.connection
        return None if connection is None else connection.desk

    @property
    def starting(self) -> bool:
        """See `Worker.starting`."""
        return bool(self.out) and self.connection is None

    # ------------------------------------------------------------------ taking, under the lock

    def take(self) -> list[Job]:
        """Tickets to send: one to run, and one to wait behind it where all workers have one."""
        jobs: list[Job] = []
        if not self.out:
            job = self.crew.take(self.worker)
            if job is None:
                return []
            assert isinstance(job, Job)
            jobs.append(job)
        running = jobs[0] if jobs else self.out[0].job
        probing = running.task is not None and running.task.trial.probing
        if len(self.out) + len(jobs) == 1 and self.crew.stretched and not probing:
            ahead = running.stage_run.take_ahead()
            if ahead is not None:
                jobs.append(ahead)
        return jobs

    def forgo(self) -> None:
        """Tell the process to stop early if every ticket that it has belongs to a cancelled epoch."""
        sent, desk = list(self.out), self.desk
        if desk is not None and sent and all(one.job.stage_run.cancelled for one in sent):
            desk.forgo(sent[-1].ticket)

    # ------------------------------------------------------------------ sending

    def give(self, job: Job | Pull) -> list[HandIn]:
        """Send a ticket. Returns what is to be handed in at once: what needs no process, or has failed."""
        assert isinstance(job, Job)
        try:
            return self._give(job)
        except Gone:
            return self._bury()
        except Exception as exc:
            failed = job.broken(exc)
            if self.out and self.out[-1].job is job:
                self._take_back()
            return [self._handing_in(job, failed, True)]

    def _give(self, job: Job) -> list[HandIn]:
        lane, ticket = job.stage_run.lane, job.ticket
        if job.task is None:
            job.task = RemoteTask(lane, self.worker.name)
        if not ticket.count:
            empty = Chunk([], (), ticket.failure or job.task.ends_in, final=True)
            return [self._handing_in(job, empty, True)]
        # A paused ticket gets a new number when it continues, since `forgo` stops all tickets up to a number.
        number = next(_tickets)
        self.out.append(Sent(number, job))
        connection = self._connected()
        job.task.desk, job.task.worker_name = self.desk, self.worker.name
        if len(self.out) == 1:
            job.stage_run.run.engine.tasks[self.worker] = job
        self.tidy()
        alike = not lane.budget.bounded or lane.block_estimate.alike
        grant = connection.grant(lane.blocks, lane.block_estimate.nbytes if alike else 0)
        if job.chunks is not None:
            self.paused.pop(job.chunks.ticket, None)
            connection.wire.send(("go", job.chunks.ticket, number, grant))
            return []
        if lane.number not in self._programs:
            parcel: Parcel = lane.parcel
            head = ("program", lane.number, lane.loader, parcel.token)
            if self._has_already(parcel):
                connection.wire.send(head)
            else:
                connection.send_parcel(head, parcel)
            self._programs[lane.number] = weakref.ref(parcel)
        layout = laid_out(job)
        if not job.ticket.count:
            self._take_back()
            return [self._handing_in(job, Chunk([], (), job.task.ends_in), True)]
        block, body = (None, ()) if layout is None else connection.lend(lane.blocks, number, layout)
        header = None if layout is None else layout.header
        connection.wire.send(("run", *request_for(job, number, header, block, grant)), body)
        return []

    def _has_already(self, parcel: Parcel) -> bool:
        """Whether the process was forked from a template that had loaded the program."""
        template = self.worker.process.server
        return isinstance(template, Template) and parcel.token in template.tokens and template.loaded

    def _connected(self) -> Connection:
        if self.connection is None:
            if self._unreplaced:
                self.worker.renew()
                self._unreplaced = False
            self.connection = Connection(self.worker.process)
            self.connection.watch()
        return self.connection

    def tidy(self) -> None:
        """Tell the process which tickets, programs and blocks it can drop."""
        unwanted = [self.unwanted.popleft() for _ in range(len(self.unwanted))]
        for ticket in unwanted:
            self.paused.pop(ticket, None)
        gone = [number for number, parcel in self._programs.items() if parcel() is None]
        for number in gone:
            del self._programs[number]
        if self.connection is None:
            return
        try:
            if unwanted or gone:
                self.connection.wire.send(("forget", unwanted, gone))
            self.connection.tidy()
        except Gone:
            return  # whoever uses it next finds out

    # ------------------------------------------------------------------ answers

    def answer(self) -> list[HandIn]:
        """Wait for the process to answer. Returns what is to be handed in."""
        try:
            while True:
                connection = self._connected()
                self._wait(connection)
                message = connection.wire.receive()
                self.stillborn, self.answered = 0, True
                kind, *said = message.head
                if kind != "need":
                    break
                self._on_need(connection, *said)
        except Gone:
            return self._bury()
        except Exception as exc:
            # Without memory for the message nobody knows where the next one begins.
            return self._bury(exc)
        return self._on_chunk(connection, Reply(*said), message)

    def _on_need(self, connection: Connection, ticket: int, nbytes: int) -> None:
        job = self.out[0].job
        with LOCK:
            job.stage_run.needs(job, nbytes)
        connection.regrant(job.stage_run.lane.blocks, nbytes)

    def _on_chunk(self, connection: Connection, reply: Reply, message: Message) -> list[HandIn]:
        sent = self.out.popleft()
        job = sent.job
        task: RemoteTask = job.task
        cargo: Cargo = reply.cargo
        lane = job.stage_run.lane
        lane.unit_bytes = cargo.nbytes // max(job.expected, 1) if reply.done else lane.unit_bytes
        if cargo.block is not None or (lane.budget.bounded and cargo.nbytes):
            lane.block_estimate.add(cargo.nbytes)
        for _, ticket in reply.returned:
            connection.lent_back(ticket)
        done = reply.done
        try:
            chunk = connection.received(lane.blocks, cargo, message)
            if reply.kept is not None:
                for key, samples, places in pickle.loads(reply.kept):
                    lane.program.store.put(key, samples, places)
        except Exception as exc:
            # The samples cannot be unpickled here.
            chunk, done = job.broken(exc), True
            if not reply.done:
                self.unwanted.append(sent.ticket)
        if task.trial.probing and reply.done:
            task.trial.probed()
            return self.give(job)
        if done and chunk.failure is None:
            chunk.failure = task.ends_in
        self.crew.deaths = 0
        task.rest()
        if not done:
            job.chunks = Paused(sent.ticket, self.unwanted, self.worker)
            job.owner = self.worker
            self.paused[sent.ticket] = weakref.ref(job)
        if reply.timed is not None:
            job.timing = Timing.of(reply.timed, cargo.nbytes)
        return [self._handing_in(job, chunk, done, reply.seconds, reply.cpu_s)]

    def _handing_in(
        self, job: Job, chunk: Chunk, done: bool, seconds: float = 0.0, cpu_s: float | None = None
    ) -> HandIn:
        in_blocks, chunk.nbytes = chunk.nbytes, 0
        job.finished([chunk], done)
        if job.stage_run.lane.budget.bounded:
            weighed(job, in_blocks)
        job.seconds, job.cpu_s, job.ended = seconds, cpu_s, perf_counter()
        after = self.out[0].job if self.out else None

        def hand_in() -> list[Any]:
            engine = job.stage_run.run.engine
            if after is not None and after.ahead:
                after.stage_run.promoted(after)
            garbage: list[Any] = engine.handed_in(job, self.worker)
            if seconds > 0:
                job.stage_run.lane.counters.worked(seconds)
            if after is not None:
                engine.tasks[self.worker] = after
            return garbage

        return hand_in

    # ------------------------------------------------------------------ waiting

    def _wait(self, connection: Connection) -> None:
        """Wait until the process has sent something or ended, or until its call runs out of time."""
        assert self.desk is not None
        while True:
            timeout_s = self.out[0].job.stage_run.lane.timeout_s
            until = inf
            if timeout_s is not None:
                left = self.desk.deadline - perf_counter()
                if left <= 0:
                    self._overdue = True
                    self.worker.process.kill()
                    raise Gone
                until = perf_counter() + min(left, timeout_s)
            if connection.wait(until):
                return
            if is_stopped(self.worker.process.pid):
                self.worker.process.kill()

    # ------------------------------------------------------------------ deaths

    def _bury(self, cause: Exception | None = None) -> list[HandIn]:
        """The process is gone: give its tickets to other workers, and judge the one that it had in hand.

        With a `cause` the process still runs but cannot be used any more. Its ticket fails with that exception.
        """
        if self.crew.closed:
            return []
        death = bury(self.worker.process, self.connection)
        how = f"worker process {self.worker.name} {death.end}"
        overdue = self._overdue and death.late
        self.stillborn = 0 if death.ticket else self.stillborn + 1
        sent = list(self.out)
        orphans = [job for reference in self.paused.values() if (job := reference()) is not None]
        self.out.clear()
        self.paused.clear()
        self._forget_process()
        try:
            self.worker.renew()
        except (OSError, PenstockError):
            self._unreplaced = True  # whoever has a ticket for it tries again, and tells why if it fails again
        results: list[HandIn] = [partial(self._redone, orphan, orphan=True) for orphan in orphans]
        if not overdue and cause is None:
            self.crew.deaths += 1
            results += [partial(_count_death, one.job) for one in sent[:1]]
        for one in sent:
            lost: Exception | None = None
            if cause is not None and one is sent[0]:
                lost = cause
            elif one.ticket == death.ticket:
                lost = self._judged(one.job, death, how, overdue)
            elif self.stillborn >= _most_stillborn(death.end) and one is sent[0]:
                lost = WorkerDied(f"{how}; that was the {self.stillborn}. time running, before any work was begun")
            if lost is None:
                results.append(partial(self._redone, one.job))
            else:
                failed = lost_ticket(one.job, death.sample, lost)
                results.append(self._handing_in(one.job, failed, True))
        return results

    def _judged(self, job: Job, death: Death, how: str, overdue: bool) -> WorkerDied | None:
        """What a death means for the ticket in hand: an error if it is not to be run again."""
        task: RemoteTask = job.task
        key, sample = death.call, death.sample
        if overdue:
            if key is not None:
                task.timeouts[key] = task.timeouts.get(key, 0) + 1
            return None
        told = how if sample is None else f"{how}, in {described(job.stage_run.lane, sample)}"
        if self.executor.on_death == "raise":
            return WorkerDied(told)
        steps = {READING, *(step.number for step in job.stage_run.lane.program.probeable)}
        # Whoever refuses a condemned call names its op and sample; a condemned read is named here.
        known = told if key is None or key[0] == READING else how
        if task.trial.death(key, known, probeable=sample is None or sample.step in steps):
            return WorkerDied(f"{told}; the ticket has ended its worker again and again")
        if self.crew.deaths > DEATHS_RUNNING:
            return WorkerDied(f"{told}; {self.crew.deaths} worker processes have died without one answer")
        return None

    def _redone(self, job: Job, orphan: bool = False) -> list[Any]:
        """Under the lock: put the job back, so that another worker takes it."""
        stage_run = job.stage_run
        engine = stage_run.run.engine
        if orphan:
            if job.owner is self.worker:
                stage_run.disowned(job)
        else:
            engine.dropped(job, self.worker)
        self.crew.rouse()
        return []

    def _take_back(self) -> None:
        """The last ticket is not sent after all."""
        sent = self.out.pop()
        if self.connection is not None:
            self.connection.revoke(len(self.out))
            self.connection.lent_back(sent.ticket)

    def close(self) -> None:
        """End the process. It ends by itself when its socket does, unless it is inside a call."""
        self.worker.interrupt()
        self.worker.process.exit(_GRACE_S)
        self.worker.process.close()
        if self.connection is not None:
            self.connection.take_back_all()


def _most_stillborn(end: Exit | None) -> int:
    """How many may end before they begin. A killer from outside stops at some time, a fault does not."""
    killed = end is not None and end.signal == signal.SIGKILL
    return STILLBORN_KILLED if killed else STILLBORN


def _count_death(job: Job) -> list[Any]:
    job.stage_run.run.engine.deaths += 1
    return []
