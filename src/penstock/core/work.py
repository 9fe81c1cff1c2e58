"""The one loop: take a ticket, run it, hand in what came out.

Threads run `work`, coroutines `work_async`, and a reader without workers runs `execute` itself.
All of them wait only where they park, and only for a runnable ticket.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.core.stage import Job, Pull
from penstock.core.workers import HERE, LOCK, Crew, out_of
from penstock.program.calls import interrupted
from penstock.program.chunk import Chunk
from penstock.program.program_async import chunks_async
from penstock.program.sizing import PAUSE_S
from penstock.program.task import Abandoned, Bench, Post, Task
from penstock.stats.watch import Watch
from penstock.trees import nbytes

__all__ = ["HandIn", "discard", "execute", "joined", "work", "work_async"]

#: hands in what a job has made, under the lock; returns what is to be let go of outside of it
HandIn = Callable[[], list[Any]]


def work(crew: Crew, first: list[Job | Pull], grow: bool, worker: Any) -> None:
    """The life of a thread. It begins with a ticket, which it takes out of `first`.

    What escapes from here is no failure of a sample: the epoch ends in it, in the training loop.
    """
    try:
        _life(crew, first, grow, worker)
    except BaseException as exc:
        crew.failed(worker, exc)


def _life(crew: Crew, first: list[Job | Pull], grow: bool, worker: Any) -> None:
    """Nothing here may hold on to a job: it leads to the loader, and its worker outlives that."""
    HERE.crew = crew
    worker.turn()
    if crew.closed:
        return
    if grow:
        with LOCK:
            crew.rouse()
    job: Job | Pull | None = out_of(first)
    if job is None:
        return
    hand_in = _run(job, worker)
    job = None
    if worker not in crew.workers:
        with LOCK:
            crew.enlist(worker)
    while True:
        worker.turn()
        with LOCK:
            # Handing in and taking the next ticket are one visit to the lock.
            garbage = hand_in() if hand_in is not None else []
            ends = crew.closed or worker.retired
            job = None if ends else crew.take(worker)
        discard(garbage)
        hand_in = None
        if job is None:
            if ends or worker.retired:
                return
            worker.park()
        else:
            hand_in = _run(job, worker)
            job = None


async def work_async(crew: Crew, first: list[Job | Pull], grow: bool, worker: Any) -> None:
    """The life of a coroutine. It begins, and may end, as that of a thread does."""
    try:
        await _life_async(crew, first, grow, worker)
    except BaseException as exc:
        if interrupted(exc):
            raise
        crew.failed(worker, exc)


async def _life_async(crew: Crew, first: list[Job | Pull], grow: bool, worker: Any) -> None:
    with LOCK:
        crew.enlist(worker)
        if grow:
            crew.rouse()
    job = out_of(first)
    if job is None:
        return
    while True:
        if isinstance(job, Pull):
            execute(job, worker)
        elif job is not None:
            await _execute_async(job, worker)
        with LOCK:
            if crew.closed:
                return
            job = crew.take(worker)
        if worker.retired:
            return
        if job is None:
            await worker.park()


def execute(job: Job | Pull, worker: Any, inline: bool = False) -> None:
    """Run one job up to its end, or until it has run long enough, and hand in what came out."""
    hand_in = _run(job, worker, inline)
    if hand_in is not None:
        worker.turn()
        discard(hand_in())


def _run(job: Job | Pull, worker: Any, inline: bool = False) -> HandIn | None:
    """Run one job. Returns what is to be called to hand in what came out; that returns what to let go of."""
    run = job.stage_run.run
    if isinstance(job, Pull):
        inlet: Any = job.stage_run.inlet
        watch = Watch()
        pulled = inlet.pull(job.most, worker.name)
        return partial(run.engine.pulled, job, pulled, watch.spent)
    stint = _Stint(job, worker, Watch())
    try:
        if run.engine.blocks is not None:
            run.engine.blocks.trim()
        program = job.stage_run.lane.program
        begins = job.chunks is None
        if begins:
            _task(job, worker, inline)
        elif job.task.worker_name != worker.name:
            # Another worker has paused it, and uses its own functions and generator for something else by now.
            job.task.bench = _post(job, worker, inline).bench
        job.task.worker_name = worker.name
        run.engine.tasks[worker] = job
        if begins:
            # One unit of a program that makes nothing more of it needs no generator.
            whole = program.simple and job.expected == 1
            job.chunks = (program.whole(job.ticket, job.task),) if whole else program.chunks(job.ticket, job.task)
        for chunk in job.chunks:
            if stint.add(chunk):
                break
        else:
            stint.done = True
    except Abandoned:
        worker.retired = True
        return None
    except BaseException as exc:
        if inline and isinstance(exc, KeyboardInterrupt):
            run.engine.dropped(job, worker)
            raise
        stint.broken(exc)
    return stint.ended()


async def _execute_async(job: Job, worker: Any) -> None:
    """The same on an event loop."""
    stint = _Stint(job, worker, Watch(cpu=False))
    try:
        if job.task is not None and job.task.worker_name != worker.name:
            job.task.bench = _post(job, worker, False).bench
            job.task.worker_name = worker.name
        if job.chunks is None:
            job.chunks = chunks_async(job.stage_run.lane.program, job.ticket, _task(job, worker, False))
        job.stage_run.run.engine.tasks[worker] = job
        async for chunk in job.chunks:
            if stint.add(chunk):
                break
        else:
            stint.done = True
        if stint.done:
            await job.chunks.aclose()
    except BaseException as exc:
        if interrupted(exc):
            raise
        stint.broken(exc)
    discard(stint.ended()())


class _Stint:
    """One worker's time with one job: the chunks it has made, and whether the job is done."""

    __slots__ = ("done", "job", "parts", "watch", "worker")

    def __init__(self, job: Job, worker: Any, watch: Watch) -> None:
        self.job = job
        self.worker = worker
        self.parts: list[Chunk] = []
        self.done = False
        self.watch = watch

    def add(self, chunk: Chunk) -> bool:
        """One more chunk; True if it is time to hand in."""
        self.parts.append(chunk)
        self.done = chunk.final or chunk.failure is not None
        return self.done or _enough(self.job, chunk, self.watch)

    def broken(self, exc: BaseException) -> None:
        """It ended in what is not the failure of a single call."""
        self.parts.append(self.job.broken(exc))
        self.done = True

    def ended(self) -> HandIn:
        """Nothing is in hand any more. Returns what hands in what came out."""
        job = self.job
        if job.task is not None:
            job.task.rest()
        chunk = joined(job, self.parts, self.done)
        return partial(job.stage_run.run.engine.handed_in, job, self.worker, chunk, self.done, self.watch.spent)


def _enough(job: Job, chunk: Chunk, watch: Watch) -> bool:
    """Whether the job has run long enough, or made enough, to hand in what it has."""
    budget = job.stage_run.lane.budget
    if budget.bounded:
        job.made_bytes += sum(map(nbytes, chunk.samples))
        if job.made_bytes >= budget.portion:
            return True
    return watch.elapsed_s > PAUSE_S


def _post(job: Job, worker: Any, inline: bool) -> Post:
    """What the worker keeps for the stage of `job`: its own functions, made if this is its first ticket there."""
    lane, engine = job.stage_run.lane, job.stage_run.run.engine
    bench = engine.benches.get(worker)
    if bench is None:
        bench = engine.benches[worker] = Bench()
    post = bench.posts.get(lane.program)
    if post is None:
        bench.bind(lane.stage.steps)
        post = bench.posts[lane.program] = Post(
            engine.seed,
            bench,
            lane.program,
            engine.pause,
            engine.bridge.run,
            engine.reader.heed,
            inline,
            engine.desk,
        )
    return post  # type: ignore[no-any-return]


def _task(job: Job, worker: Any, inline: bool) -> Task:
    """What the calls of `job` need to know."""
    engine = job.stage_run.run.engine
    task = Task(_post(job, worker, inline), job.ticket.epoch, worker.name)
    if engine.condemned:
        task.condemned = engine.condemned
    if job.task is not None:
        task.inherit(job.task)
    job.task = task
    return task


def joined(job: Job, parts: list[Chunk], done: bool) -> Chunk | None:
    """The chunks of a job as one, without what it had handed in before it was begun again."""
    if not parts:
        return None
    in_blocks = sum(part.nbytes for part in parts)
    chunk = job.progress.news(Chunk.join(parts), job.ticket)
    if not done:
        job.progress.handed_in(chunk, job.ticket)
    lane = job.stage_run.lane
    if lane.identities is not None:
        lane.identities.note(job.stage_run.inlet.epoch, chunk.places)
    chunk.nbytes = 0
    if lane.budget.bounded:
        chunk.nbytes = max(in_blocks, sum(map(nbytes, chunk.samples)))
        job.made_bytes = 0
    return chunk


def discard(garbage: list[Any]) -> None:
    """Close what is open in it and let go of it. Runs functions of the user's, so never under the lock."""
    for item in garbage:
        close = getattr(item, "close", None)
        if close is None:
            continue
        try:
            close()
        except Exception as exc:
            warnings.warn(f"closing an iterator raised {exc!r}", RuntimeWarning, stacklevel=2)
    garbage.clear()
