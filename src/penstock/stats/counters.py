"""How a stage spends its time, counted as it goes. Pure: the caller brings the time.

A stage with n workers has n slots. At any moment each is working, or idle because there is no
input, or idle because there is no room for its output. `advance` adds the time that has passed
to the account of the state the slots were in; it is called whenever that state may change.
"""

from __future__ import annotations

from typing import Any

from penstock.stats.calls import EVERY_S, CallTimes, Timing

#: the counters of a stage that ``loader.stats()`` shows, each summed over all plans of a loader
SUMMED = (
    "working_s",
    "cpu_s",
    "loop_s",
    "reading_s",
    "waiting_input_s",
    "waiting_room_s",
    "waiting_memory_s",
    "timed_s",
    "timed_bytes",
    "timed_busy_s",
    "timed_delay_s",
    "timed_library_s",
    "samples",
)

#: how often the CPU time of a ticket is measured: reading that clock is a system call, and takes some microseconds
_MEASURE_S = 0.005
#: how much less a measured ticket counts than the next one: about the last hundred decide
_FADES = 0.99
#: the same for tickets whose calls are timed, of which there are fewer: about the last second decides
_TIMED_FADES = 0.9


class StageCounters:
    """Seconds by what the slots of one stage did, and samples made."""

    def __init__(self, now: float) -> None:
        self.working_s = 0.0
        #: of the time at work: on a CPU, and in reading a stream, which is done by one worker at a time
        self.cpu_s = 0.0
        self.reading_s = 0.0
        #: of coroutines: their one thread was on a CPU or could have been
        self.loop_s = 0.0
        self.waiting_input_s = 0.0
        self.waiting_room_s = 0.0
        #: of the time that they wait for room: for bytes of `memory=`
        self.waiting_memory_s = 0.0
        self.samples = 0
        #: idle slots wait for room, not for input
        self.blocked = False
        #: there would be room, but for the bound on bytes
        self.short = False
        #: from when on the CPU time of the next ticket is measured
        self.cpu_due = now
        #: time of tickets whose CPU time was not measured, since the last that was
        self.unmeasured_s = 0.0
        #: time and CPU time of the tickets that were measured, the latest ones counted most
        self._measured_s = self._measured_cpu_s = 0.0
        #: from when on the calls of the next ticket are timed, what all such tickets took and weigh, and by op
        self.time_due = now
        self.timed_s = 0.0
        self.timed_bytes = 0
        #: of `timed_s`: workers were on a CPU or could have been; the latter alone
        self.timed_busy_s = 0.0
        self.timed_delay_s = 0.0
        #: CPU time of threads that libraries have started in worker processes, in `timed_s`
        self.timed_library_s = 0.0
        #: time of timed tickets without that in which no CPU was free, and CPU time, the latest ones counted most
        self._undelayed_s = self._undelayed_cpu_s = 0.0
        #: of worker processes: time that they held tickets and that they were at work on them, the latest counted
        #: most; and `working_s` when the last ticket came back
        self._held_s = self._worked_s = self._working_before_s = 0.0
        self.ops: dict[int, CallTimes] = {}
        self._fill_s = 0.0
        self._fill = 0.0
        self.last = now

    def measured(self, seconds: float, cpu_s: float) -> None:
        """A ticket took so long, and so much CPU time."""
        if seconds > 0:
            # One ticket alone may be short where others wait long: a share of its time says nothing of theirs.
            self._measured_s = self._measured_s * _FADES + seconds
            self._measured_cpu_s = self._measured_cpu_s * _FADES + cpu_s
            self.cpu_s += cpu_s + self.unmeasured_s * self._measured_cpu_s / self._measured_s
            self.unmeasured_s = 0.0
            self.cpu_due = self.last + _MEASURE_S

    def on_loop(self, cpu_s: float, delay_s: float) -> None:
        """The one thread of all coroutines was on a CPU for so long since it last said so, and waited for one."""
        self.cpu_s += cpu_s
        self.loop_s += cpu_s + delay_s
        self.cpu_due = self.last + _MEASURE_S

    def timed(self, timing: Timing) -> None:
        """The calls of a ticket were timed."""
        self.timed_s += timing.seconds
        self.timed_busy_s += timing.busy_s
        self.timed_bytes += timing.nbytes
        self.timed_library_s += timing.library_s
        delay_s = min(timing.delay_s, timing.seconds)
        self.timed_delay_s += delay_s
        self._undelayed_s = self._undelayed_s * _TIMED_FADES + timing.seconds - delay_s
        self._undelayed_cpu_s = self._undelayed_cpu_s * _TIMED_FADES + max(timing.busy_s - delay_s, 0.0)
        self.time_due = self.last + EVERY_S
        for step, calls, times in timing.ops:
            self.ops.setdefault(step, CallTimes()).add(calls, times)

    def worked(self, seconds: float) -> None:
        """A worker process was at work on a ticket for so long; `working_s` also has its way there and back."""
        if self._working_before_s:  # the first ticket waits for the start of its process
            self._held_s = self._held_s * _FADES + self.working_s - self._working_before_s
            self._worked_s = self._worked_s * _FADES + seconds
        self._working_before_s = self.working_s

    def advance(self, now: float, idle: int, working: int, fill: float) -> None:
        """Until `now`, `idle` slots had nothing to do and `working` had; the outlet was filled so far."""
        passed = now - self.last
        if passed <= 0:
            return
        self.last = now
        self.working_s += working * passed
        if self.blocked:
            self.waiting_room_s += idle * passed
            if self.short:
                self.waiting_memory_s += idle * passed
        else:
            self.waiting_input_s += idle * passed
        self._fill_s += passed
        self._fill += fill * passed

    @property
    def computing(self) -> float:
        """The share of `working_s` that workers would be on a CPU if one were always free; up to 1.

        Time in which no CPU is free is left out, rather than counted as work: whoever sleeps waits for a CPU too,
        each time it wakes. Where the system does not tell of such time, it is the share on a CPU. A worker process
        does not compute while its ticket is on the way to it, or the result on the way back.
        """
        measured = self._measured_cpu_s / self._measured_s if self._measured_s > 0 else 0.0
        timed = self._undelayed_cpu_s / self._undelayed_s if self._undelayed_s > 0 else 0.0
        at_work = min(self._worked_s / self._held_s, 1.0) if self._held_s > 0 else 1.0
        return min(max(measured, timed), 1.0) * at_work

    @property
    def occupancy(self) -> float:
        """The mean share of the outlet's room that was filled."""
        return self._fill / self._fill_s if self._fill_s else 0.0


class ReaderCounters:
    """What the training loop has had and how long it waited.

    All time until the first batch is start-up and is counted apart: how long workers took to start says nothing
    about what limits the run.
    """

    __slots__ = ("_since", "batches", "cpu_s", "running_s", "samples", "startup_s", "wait_s", "witness")

    def __init__(self) -> None:
        self.samples = 0
        self.batches = 0
        #: from the first batch asked for to the first that came; None until then
        self.startup_s: float | None = None
        self.wait_s = 0.0
        #: time in epochs, and what this process was on a CPU in it
        self.running_s = 0.0
        self.cpu_s = 0.0
        #: when the wait began that is under way
        self._since: float | None = None
        #: who else is told of every wait; nobody, as a rule
        self.witness: Any = None

    def first_came(self) -> None:
        """The first batch has come: what was counted until now was start-up, and the run begins."""
        self.startup_s = self.running_s
        self.running_s = self.cpu_s = self.wait_s = 0.0

    def wait_begins(self, now: float) -> None:
        """The training loop waits from now on."""
        self._since = now

    def wait_ends(self, now: float) -> None:
        """It has got something, or nothing will come; nothing happens if it did not wait."""
        since, self._since = self._since, None
        if since is not None and now > since:
            self.wait_s += now - since
            if self.witness is not None:
                self.witness.waited(since, now)

    def waited_s(self, now: float) -> float:
        """Seconds that it has waited, the wait under way included."""
        return self.wait_s if self._since is None else self.wait_s + max(now - self._since, 0.0)
