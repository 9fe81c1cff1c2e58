"""Tickets in the hands of a worker process: sent and not answered, or paused there."""

from __future__ import annotations

from typing import Any

from penstock.core.lane import Job
from penstock.memory.block import Block

__all__ = ["Paused", "Sent"]


class Sent:
    """A ticket that was sent and is not answered yet."""

    __slots__ = ("grant", "job", "ticket")

    def __init__(self, ticket: int, job: Job, grant: Block | None) -> None:
        self.ticket = ticket
        self.job = job
        self.grant = grant


class Paused:
    """Stands in `Job.chunks` for a ticket that was paused in a worker process."""

    def __init__(self, front: Any, ticket: int) -> None:
        self.front = front
        self.ticket = ticket

    def close(self) -> None:
        """Nobody waits for the rest of it."""
        self.front.unwanted.append(self.ticket)
        self.front.worker.unpark()
