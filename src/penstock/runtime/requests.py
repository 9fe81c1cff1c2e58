"""A ticket as it is sent to a worker process, and what has to come along with it."""

from __future__ import annotations

from typing import Any

from penstock.provenance import counter
from penstock.runtime.remote_task import RemoteTask
from penstock.runtime.stage_run import Job
from penstock.runtime.wire import Request

__all__ = ["along", "request_for"]


def request_for(job: Job, number: int, header: bytes | None, block: int | None, grant: int | None) -> Request:
    """The ticket of `job`. What comes along looks like `header` and is in `block`, or in the message."""
    lane, ticket = job.stage_run.lane, job.ticket
    task: RemoteTask = job.task
    return Request(
        ticket=number,
        program=lane.number,
        epoch=ticket.epoch,
        first=ticket.first,
        last=ticket.last,
        places=None if ticket.samples is None else ticket.places,
        header=header,
        block=block,
        grant=grant,
        portion=lane.budget.portion if lane.budget.bounded else 0,
        timeouts=task.timeouts,
        condemned=task.trial.condemned,
        probe=_probe_from(job) if task.trial.probing else None,
    )


def along(job: Job) -> dict[str, Any]:
    """What has to come along with a ticket: its samples, what only this process can read, what a cache holds."""
    ticket, program = job.ticket, job.stage_run.lane.program
    tree: dict[str, Any] = {}
    if ticket.samples is not None:
        tree["samples"] = ticket.samples
    reading = program.reading
    if reading is None:
        return tree
    if reading.source.stays:
        tree["read"] = list(reading.source.read(reading.indices(ticket.epoch, ticket.first, ticket.last)))
    if program.store is not None:
        held = {}
        for index in map(int, reading.indices(ticket.epoch, ticket.first, ticket.last)):
            found = program.store.get(index)
            if found is not None:
                held[index] = found
        if held:
            tree["held"] = held
    return tree


def _probe_from(job: Job) -> int:
    """The sample of a ticket to begin a probe with: behind the last one that was found to kill."""
    condemned = job.task.trial.condemned
    if not condemned:
        return 0
    position: int = list(condemned)[-1][1]
    if job.ticket.samples is None:
        return max(0, position - job.ticket.first + 1)
    positions = [counter(place)[0] for place in job.ticket.places]
    return positions.index(position) + 1 if position in positions else 0
