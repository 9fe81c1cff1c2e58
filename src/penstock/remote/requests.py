"""A ticket as it is sent to a worker process, and the samples that are sent with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.core.lane import Job
from penstock.errors import NotCarried
from penstock.memory.codec import Layout, layout_of
from penstock.program.chunk import ErrorRecord, Failure
from penstock.remote.cargo import first_unsendable
from penstock.remote.remote_task import RemoteTask
from penstock.remote.wire import Request


def request_for(job: Job, number: int, header: bytes | None, block: int | None, grant: int | None) -> Request:
    """The ticket of `job`. What is sent with it is described by `header`, and is in `block` or in the message."""
    lane, ticket = job.stage_run.lane, job.ticket
    task: RemoteTask = job.task
    return Request(
        ticket=number,
        program=lane.number,
        epoch=ticket.epoch,
        first=ticket.first,
        last=ticket.last,
        step=ticket.step,
        places=None if ticket.samples is None else ticket.places,
        header=header,
        block=block,
        grant=grant,
        portion=lane.budget.portion if lane.budget.bounded else 0,
        timeouts=task.timeouts,
        condemned=task.trial.condemned,
        probe=task.trial.probing,
    )


def laid_out(job: Job) -> Layout | None:
    """The layout of what is sent with the ticket of `job`; None for nothing.

    A sample that cannot be sent cuts the ticket short: it ends there, in an error that names it.
    """
    tree = _along(job)
    if not tree:
        return None
    try:
        return layout_of(tree)
    except Exception as exc:
        what = "samples" if "samples" in tree else "read"
        found = first_unsendable(tree[what])
        if found is None:
            raise exc
        number, cause = found
    _cut_short(job, number, cause)
    tree[what] = tree[what][: job.ticket.count]
    return layout_of(tree)


def _cut_short(job: Job, number: int, cause: Exception) -> None:
    ticket, lane = job.ticket, job.stage_run.lane
    unit, steps = lane.stage.unit, lane.stage.steps
    place = ticket.positions[number] if ticket.samples is None else ticket.places[number]
    label = steps[0].op.label if steps else lane.stage.label
    index = lane.program.index_of(ticket.epoch, place)
    exc = NotCarried(
        f"sample {index} cannot be sent to the worker process that runs {label}: {cause}; "
        "make it in the worker, or run the op on='thread'"
    )
    job.task.ends_in = Failure(exc, ErrorRecord(label, index, ticket.epoch, exc, place))
    whole = number // unit * unit
    if ticket.samples is None:
        job.ticket = replace(ticket, last=ticket.first + whole * ticket.step)
    else:
        job.ticket = replace(ticket, samples=ticket.samples[:whole], places=ticket.places[:whole])


def _along(job: Job) -> dict[str, Any]:
    """What has to be sent with a ticket: its samples, what only this process can read, what a cache holds."""
    ticket, program = job.ticket, job.stage_run.lane.program
    tree: dict[str, Any] = {}
    if ticket.samples is not None:
        tree["samples"] = ticket.samples
    reading = program.reading
    if reading is None:
        return tree
    if job.stage_run.lane.reads_here:
        tree["read"] = list(reading.source.read(reading.indices(ticket.epoch, ticket.positions)))
    if program.store is not None:
        held = {}
        for index in map(int, reading.indices(ticket.epoch, ticket.positions)):
            found = program.store.get(index)
            if found is not None:
                held[index] = found
        if held:
            tree["held"] = held
    return tree
