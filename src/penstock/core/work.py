"""The one loop: take a ticket, run it, hand in what came out.

Threads run `work`, coroutines `work_async`, and a reader without workers runs `execute` itself.
All of them wait only where they park, and only for a runnable ticket.
"""

from __future__ import annotations

import warnings
from time import perf_counter, thread_time
from typing import Any

from penstock.core.budget import estimated_bytes
from penstock.core.lane import Job, Pull
from penstock.core.workers import HERE, LOCK, Crew, out_of
from penstock.program.calls import interrupted
from penstock.program.chunk import Chunk
from penstock.program.fused import FusedMaps
from penstock.program.parts import timed_parts
from penstock.program.program_async import after, chunks_async
from penstock.program.sizing import PAUSE_S
from penstock.program.task import Abandoned, Bench, Post, Task
from penstock.stats.calls import Timing
from penstock.trees import nbytes


def work(crew: Crew, first: list[Job | Pull], grow: bool, worker: Any) -> None:
    """The life of a thread. It begins with a ticket, which it takes out of `first`.

    What escapes from here is no failure of a sample: the epoch ends in it, in the training loop.
    """
    try:
        _life(crew, first, grow, worker)
    except BaseException as exc:
        crew.failed(worker, exc)


def _life(crew: Crew, first: list[Job | Pull], grow: bool, worker: Any) -> None:
    """While it waits, nothing here may hold on to a job: it leads to the loader, and its worker outlives that."""
    HERE.crew = crew
    if worker.staged:
        worker.turn()
    if crew.closed:
        return
    if grow:
        with LOCK:
            crew.rouse()
    job: Job | Pull | None = out_of(first)
    if job is None:
        return
    run(job, worker)
    if worker not in crew.workers:
        with LOCK:
            crew.enlist(worker)
    while True:
        if worker.staged:
            worker.turn()
        with LOCK:
            # Handing in and taking the next ticket are one visit to the lock.
            garbage, now = (), 0.0
            if job is not None:
                garbage, now = job.stage_run.run.engine.handed_in(job, worker), job.ended
            ends = crew.closed or worker.retired
            job = None if ends else crew.take(worker, now)
        if garbage:
            discard(garbage)
        if job is not None:
            run(job, worker)
        elif ends or worker.retired:
            return
        else:
            worker.park()


async def work_async(crew: Crew, first: list[Job | Pull], grow: bool, worker: Any) -> None:
    """The life of a coroutine. It begins, and may end, as that of a thread does.

    A function that awaits nothing must not keep the others on the loop from their tickets.
    """
    import asyncio

    try:
        others_ran = perf_counter()
        with LOCK:
            crew.enlist(worker)
            if grow:
                crew.rouse()
        job = out_of(first)
        if job is None:
            return
        while True:
            crew.turn_of = worker
            if isinstance(job, Job):
                await _run_async(job, worker)
            elif job is not None:
                _pull(job, worker)
            with LOCK:
                garbage, now = (), 0.0
                if job is not None:
                    garbage, now = job.stage_run.run.engine.handed_in(job, worker), job.ended
                ends = crew.closed or worker.retired
                job = None if ends else crew.take(worker, now)
            if garbage:
                discard(garbage)
            if job is None:
                if ends or worker.retired:
                    return
                await worker.park()
            elif crew.turn_of is not worker:
                others_ran = now
            elif now - others_ran > PAUSE_S:
                await asyncio.sleep(0)
                others_ran = perf_counter()
    except BaseException as exc:
        if interrupted(exc):
            raise
        crew.failed(worker, exc)


def execute(job: Job | Pull, worker: Any, inline: bool = False) -> None:
    """Run one job up to its end, or until it has run long enough, and hand in what came out."""
    run(job, worker, inline)
    if worker.staged:
        worker.turn()
    with LOCK:
        garbage = job.stage_run.run.engine.handed_in(job, worker)
    discard(garbage)


def run(job: Job | Pull, worker: Any, inline: bool = False) -> None:
    """Run one job. What came out is left in it, to be handed in."""
    if type(job) is not Job:
        _pull(job, worker)  # type: ignore[arg-type]
        return
    engine = job.stage_run.run.engine
    lane = job.stage_run.lane
    began = perf_counter()
    cpu_began = thread_time() if began >= lane.counters.cpu_due else None
    parts: list[Chunk] = []
    done = True
    try:
        if engine.blocks is not None:
            engine.blocks.trim()
        if job.chunks is None:
            task = _task(job, worker, inline)
            if cpu_began is not None and began >= lane.counters.time_due:
                task.timing = Timing(thread_time)
            engine.tasks[worker] = job
            # One unit of a program that makes nothing more of it needs no generator.
            if lane.program.simple and job.expected == 1:
                parts = [lane.program.whole(job.ticket, task)]
            else:
                job.chunks = lane.program.chunks(job.ticket, task)
                done = _advanced(job, parts, began)
        else:
            _taken_over(job, worker, inline)
            engine.tasks[worker] = job
            done = _advanced(job, parts, began)
    except Abandoned:
        worker.retired = True
        return
    except BaseException as exc:
        if inline and isinstance(exc, KeyboardInterrupt):
            engine.dropped(job, worker)
            raise
        parts.append(job.broken(exc))
    _ended(job, parts, done, began)
    job.cpu_s = None if cpu_began is None else thread_time() - cpu_began
    if cpu_began is not None and job.task is not None and job.task.timing is not None:
        _timed(job)


def _advanced(job: Job, parts: list[Chunk], began: float) -> bool:
    """Add chunks to `parts` until it is time to hand them in; True if the ticket has no more."""
    for chunk in job.chunks:
        parts.append(chunk)
        if chunk.final or chunk.failure is not None:
            return True
        if _enough(job, chunk, began):
            return False
    return True


def _ended(job: Job, parts: list[Chunk], done: bool, began: float) -> None:
    """Nothing is in hand any more: what was made is ready to be handed in."""
    task = job.task
    if task is not None:
        task.done() if done else task.rest()
    if len(parts) == 1 and done and job.progress is None and job.stage_run.lane.identities is None:
        job.made, job.done = parts[0], True
    else:
        job.finished(parts, done)
    if job.made is not None and job.stage_run.lane.budget.bounded:
        weighed(job)
    job.ended = now = perf_counter()
    job.seconds = now - began


def _timed(job: Job) -> None:
    """Leave in the job what the timing of its calls has shown."""
    job.timing, job.task.timing = job.task.timing, None
    job.timing.end()
    if job.made is not None:
        job.timing.nbytes = estimated_bytes(job.made.samples)


def weighed(job: Job, in_blocks: int = 0) -> None:
    """Say what the chunk of a job weighs: at least as much as its blocks do."""
    chunk = job.made
    assert chunk is not None
    chunk.nbytes = max(in_blocks, sum(map(nbytes, chunk.samples)))
    job.made_bytes = 0


def _pull(pull: Pull, worker: Any) -> None:
    began = perf_counter()
    pull.pulled = pull.stage_run.inlet.pull(pull.most, worker.name)
    pull.ended = now = perf_counter()
    pull.seconds = now - began


async def _run_async(job: Job, worker: Any) -> None:
    """The same on an event loop."""
    engine, lane = job.stage_run.run.engine, job.stage_run.lane
    began = perf_counter()
    parts: list[Chunk] = []
    done = True
    try:
        if job.chunks is None:
            task = _task(job, worker, False)
            if began >= lane.counters.time_due:
                task.timing = Timing()
            job.chunks = chunks_async(lane.program, job.ticket, task)
        else:
            _taken_over(job, worker, False)
        engine.tasks[worker] = job
        if lane.program.simple:
            done = await _advanced_simply(job, parts, began)
        else:
            done = await _advanced_async(job, parts, began)
    except BaseException as exc:
        if interrupted(exc):
            raise
        parts.append(job.broken(exc))
    _ended(job, parts, done, began)
    if job.ended >= lane.counters.cpu_due:
        lane.counters.on_loop(*lane.crew.loop_spent())
    if job.task is not None and job.task.timing is not None:
        _timed(job)


async def _advanced_simply(job: Job, parts: list[Chunk], began: float) -> bool:
    """As `_advanced`, where one chunk is made of one: an async generator would cost more than its calls.

    Every `await` in between costs time whenever a call of the user's waits, so there are few.
    """
    stages = timed_parts(job.stage_run.lane.program.parts, job.task)
    for chunk in job.chunks:
        for part in stages:
            if not chunk.samples:
                break
            if isinstance(part, FusedMaps):
                chunk = await part.run_async(chunk, job.task)
            else:
                chunk = await after(part, chunk, job.task)
        if type(chunk.samples) is not list:
            chunk.samples = list(chunk.samples)
        if not chunk.blank:
            parts.append(chunk)
        if chunk.final or chunk.failure is not None:
            return True
        if _enough(job, chunk, began):
            return False
    return True


async def _advanced_async(job: Job, parts: list[Chunk], began: float) -> bool:
    done = True
    async for chunk in job.chunks:
        parts.append(chunk)
        if chunk.final or chunk.failure is not None:
            break
        if _enough(job, chunk, began):
            done = False
            break
    if done:
        await job.chunks.aclose()
    return done


def _enough(job: Job, chunk: Chunk, began: float) -> bool:
    """Whether the job has run long enough, or made enough, to hand in what it has."""
    lane = job.stage_run.lane
    budget = lane.budget
    if budget.bounded:
        job.made_bytes += sum(map(nbytes, chunk.samples))
        if job.made_bytes >= budget.portion:
            return True
    return bool(perf_counter() - began > PAUSE_S * lane.sizer.stretch)


def _post(job: Job, worker: Any, inline: bool) -> Post:
    """What the worker keeps for the stage of `job`: its own functions, made if this is its first ticket there."""
    lane = job.stage_run.lane
    post: Post | None = lane.posts.get(worker)
    if post is None:
        engine = job.stage_run.run.engine
        bench = engine.benches.get(worker)
        if bench is None:
            bench = engine.benches[worker] = Bench()
        bench.bind(lane.stage.steps)
        post = lane.posts[worker] = Post(
            engine.seed,
            bench,
            lane.program,
            engine.pause,
            engine.bridge.run,
            engine.reader.heed,
            inline,
            engine.desk,
        )
    return post


def _task(job: Job, worker: Any, inline: bool) -> Task:
    """What the calls of `job` need to know."""
    post: Post = job.stage_run.lane.posts.get(worker) or _post(job, worker, inline)
    task, post.spare = post.spare, None
    if task is None or task.abandoned:
        task = Task(post, job.ticket.epoch, worker.name)
    else:
        task.epoch = job.ticket.epoch
    condemned = job.stage_run.run.engine.condemned
    if condemned:
        task.condemned = condemned
    if job.task is not None:
        task.inherit(job.task)
    job.task = task
    return task


def _taken_over(job: Job, worker: Any, inline: bool) -> None:
    """Go on with a job that was paused, with this worker's own functions: those of another may be in use."""
    if job.task.worker_name != worker.name:
        job.task.bench = _post(job, worker, inline).bench
        job.task.worker_name = worker.name


def discard(garbage: Any) -> None:
    """Close what is open in it and let go of it. Runs functions of the user's, so never under the lock."""
    for item in garbage:
        close = getattr(item, "close", None)
        if close is None:
            continue
        try:
            close()
        except Exception as exc:
            warnings.warn(f"closing an iterator raised {exc!r}", RuntimeWarning, stacklevel=2)
    if garbage:
        garbage.clear()
