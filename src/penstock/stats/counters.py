"""How a stage spends its time, counted as it goes. Pure: the caller brings the time.

A stage with n workers has n slots. At any moment each is working, or idle because there is no
input, or idle because there is no room for its output. `advance` adds the time that has passed
to the account of the state the slots were in; it is called whenever that state may change.
"""

from __future__ import annotations

__all__ = ["ReaderCounters", "StageCounters"]


class StageCounters:
    """Seconds by what the slots of one stage did, and samples made."""

    __slots__ = (
        "_fill",
        "_fill_s",
        "_last",
        "blocked",
        "cpu_s",
        "reading_s",
        "samples",
        "waiting_input_s",
        "waiting_room_s",
        "working_s",
    )

    def __init__(self, now: float) -> None:
        self.working_s = 0.0
        #: of the time at work: on a CPU, and in reading a stream, which is done by one worker at a time
        self.cpu_s = 0.0
        self.reading_s = 0.0
        self.waiting_input_s = 0.0
        self.waiting_room_s = 0.0
        self.samples = 0
        #: idle slots wait for room, not for input
        self.blocked = False
        self._fill_s = 0.0
        self._fill = 0.0
        self._last = now

    def advance(self, now: float, idle: int, working: int, fill: float) -> None:
        """Until `now`, `idle` slots had nothing to do and `working` had; the outlet was filled so far."""
        passed = now - self._last
        if passed <= 0:
            return
        self._last = now
        self.working_s += working * passed
        if self.blocked:
            self.waiting_room_s += idle * passed
        else:
            self.waiting_input_s += idle * passed
        self._fill_s += passed
        self._fill += fill * passed

    @property
    def occupancy(self) -> float:
        """The mean share of the outlet's room that was filled."""
        return self._fill / self._fill_s if self._fill_s else 0.0


class ReaderCounters:
    """What the training loop has had and how long it waited."""

    __slots__ = ("batches", "running_s", "samples", "wait_s")

    def __init__(self) -> None:
        self.samples = 0
        self.batches = 0
        self.wait_s = 0.0
        self.running_s = 0.0

    @property
    def wait_share(self) -> float:
        """The share of its time that the training loop waited for data."""
        return min(self.wait_s / self.running_s, 1.0) if self.running_s > 0 else 0.0
