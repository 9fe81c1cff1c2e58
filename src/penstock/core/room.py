"""How much a stage may make ahead: the bounds on finished tickets, on late ones, and on bytes. Pure.

Only finished work whose turn has come counts; tickets in hand come on top. In an epoch that was begun early, in
a stage that draws samples ahead, and in one whose bound is strict, they count too. The ticket that the stream waits
for is always admitted.
"""

from __future__ import annotations

from typing import Any

from penstock.core.lane import Job

#: what may wait for a late ticket before it, in bytes and in chunks
_WAITING_BYTES, _WAITING = 256 * 1024 * 1024, 1 << 16


class Room:
    """The room for what one stage makes in one epoch."""

    __slots__ = ("_draws", "_lane", "_stage", "_strict", "_swift")

    def __init__(self, stage_run: Any) -> None:
        self._stage = stage_run
        self._lane = lane = stage_run.lane
        #: what is in the making counts as well
        self._strict = lane.draws or lane.stage.strict
        self._draws = lane.draws
        #: only the number of finished tickets bounds it, so there is room as long as few are here
        self._swift = not (lane.draws or lane.budget.bounded or lane.bound_samples is not None)

    def units(self) -> int:
        """How many units a new ticket may have; 0 if there is no room for one."""
        stage, lane = self._stage, self._lane
        current: bool = stage.run.current
        size: int = lane.sizer.size
        if self._swift and current and stage.outlet.held < lane.bound_tickets and not stage.paused:
            return size
        if self._strict or not current:
            tickets, samples = self._filled
            units = size if tickets < lane.bound_tickets else 0
            if lane.bound_samples is not None:
                units = lane.bound_samples - samples
        else:
            units = 0 if self._full else size
        if units > 0 and (not lane.budget.bounded or lane.budget.admits(lane.estimate.nbytes)):
            return units
        lane.counters.short = units > 0
        return max(units, 1) if stage.issued <= self._waited_for else 0

    @property
    def content(self) -> bool:
        """Whether nothing need be taken in now, since so much is ready that no ticket will be cut."""
        stage = self._stage
        return stage.run.current and not self._draws and self._full and stage.issued > self._waited_for

    def resumable(self, worker: Any) -> Job | None:
        """The paused ticket that `worker` may go on with, if there is one."""
        stage, lane = self._stage, self._lane
        paused: list[Job] = stage.paused
        if lane.remote:
            paused = [job for job in paused if job.owner is None or job.owner is worker]
            if not paused:
                return None
        waited_for = self._waited_for
        for job in paused:
            if job.number == waited_for:
                return job
        tickets, samples = self._filled
        full = tickets - stage.open >= lane.bound_tickets
        if lane.bound_samples is not None:
            full = samples - stage.expected >= lane.bound_samples
        return None if full or not lane.budget.admits(lane.estimate.nbytes) else paused[0]

    @property
    def _waited_for(self) -> int:
        """The ticket that must go on before anything more can leave; -1 if nobody waits."""
        outlet = self._stage.outlet
        return outlet.head if self._stage.run.current and not outlet.ready else -1

    @property
    def _filled(self) -> tuple[int, int]:
        """Tickets and samples that take up room.

        The epoch being read counts its own; one begun early counts all, and so has what is left.
        """
        stage, lane = self._stage, self._lane
        if stage.run.current:
            return stage.outlet.held + stage.open, stage.held_samples + stage.expected
        return lane.held + lane.open, lane.held_samples + lane.expected

    @property
    def _full(self) -> bool:
        """Whether enough is ready for delivery, or too much waits for a late ticket before it.

        Tickets in hand do not count: they are as many as there are workers.
        """
        outlet, lane = self._stage.outlet, self._lane
        ready, bound = len(outlet.ready), lane.bound_tickets
        if lane.bound_samples is None:
            enough = ready >= bound
        else:
            # One ticket per worker comes on top; without it workers would stop whenever all of them end at once.
            enough = outlet.ready_samples >= lane.bound_samples + lane.cap * lane.sizer.size
        if enough or len(self._stage.paused) >= bound:
            return True
        waiting: int = outlet.held - ready
        late_bytes: int = waiting * lane.late_estimate.nbytes
        return waiting >= bound and (waiting >= _WAITING or late_bytes >= _WAITING_BYTES)
