"""What the counters of a run say, in figures: the capacity of each stage, what can hold up the rest, gains. Pure.

Every stage has a *capacity*: the samples per second that it would make if its workers never waited. The run goes as
fast as the least of them, and a change brings as much as there is room up to the next. `penstock.stats.diagnose`
makes a verdict of it; a live view can use the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

from penstock.stats.facts import Limits, StageFacts
from penstock.stats.period import Period
from penstock.stats.report import OpDiagnosis, StageDiagnosis

#: a share of the time at work from which on a stage does nothing else than to read its stream
_ONLY_READS = 0.8
#: capacities that differ by less are about the same
_ABOUT = 1.05
#: a share of the time at work from which on a function computes rather than waits
_ON_CPU = 0.7
#: the same where most of its time no CPU was free: of the little that is left, the lock and the system take a part
_ON_CPU_DELAYED, _MOSTLY_DELAYED = 0.5, 0.5
#: however busy others are, the system gives us about so much of the machine
_FAIR = 0.5
#: a share of the periods of a CPU quota in which we had to wait that makes the quota what limits
_THROTTLED = 0.3
#: cores in use, of those there are for us, that leave nothing for another worker
_FULL = 0.92


@dataclass(frozen=True, slots=True)
class Limit:
    """One thing that can hold up the rest: which stage, in which way, at how many samples per second."""

    label: str
    capacity: float
    #: "workers", "shared" (with other stages), "stream", or "coroutines" (the one thread of all of them)
    why: str

    @property
    def helped_by_workers(self) -> bool:
        """Whether more workers would help."""
        return self.why in ("workers", "shared")


class Figures:
    """A run, in figures."""

    def __init__(self, stages: Sequence[StageFacts], period: Period, allowed: Limits) -> None:
        self.stages = {stage.label: stage for stage in stages}
        self.period = period
        self.allowed = allowed
        self.last = stages[-1].label
        self.rows = {stage.label: self._row(stage) for stage in stages}

    # ------------------------------------------------------------------ stages

    def _made(self, stage: StageFacts) -> float:
        """Samples made at the end that `stage` leads to: the training loop, or a reservoir. Never none."""
        period = self.period
        if stage.reservoir:
            end, handed = stage.feeder, period.of(f"{stage.reservoir}.draws")
        else:
            end, handed = self.last, period.batches
        made = period.stage(end, "samples")
        return max(made * period.samples / handed if handed else 0.0, 1.0)

    def _row(self, stage: StageFacts) -> StageDiagnosis:
        period, label = self.period, stage.label
        working_s, input_s, room_s = (
            period.stage(label, f"{name}_s") for name in ("working", "waiting_input", "waiting_room")
        )
        # Between epochs its workers wait too, first of all for room; that is nobody's fault.
        pauses_s = (working_s + input_s + room_s) * self.period.pause_share
        room_s, pauses_s = max(room_s - pauses_s, 0.0), max(pauses_s - room_s, 0.0)
        input_s = max(input_s - pauses_s, 0.0)
        total_s = working_s + input_s + room_s or 1.0
        workers = period.workers(label)
        return StageDiagnosis(
            label=label,
            working=working_s / total_s,
            waiting_input=input_s / total_s,
            waiting_room=room_s / total_s,
            capacity=self._capacity(stage, workers, working_s),
            workers=workers,
            on=stage.kind,
            cores=period.stage(label, "cpu_s") / period.running_s if period.running_s > 0 else 0.0,
            delayed=self._delayed(label),
            ops=self._ops(stage),
        )

    def _ops(self, stage: StageFacts) -> tuple[OpDiagnosis, ...]:
        """The ops of a stage, by the tickets that were timed; none if none was."""
        spent = {
            title: self._timed(stage.label, f"op.{title}.timed_s")
            for title in stage.ops
            if self._timed(stage.label, f"op.{title}.calls")
        }
        # Only some calls of a ticket are timed. No op can be blamed for time between them in which no CPU was free.
        undelayed_s = self._timed(stage.label, "timed_s") - self._timed(stage.label, "timed_delay_s")
        total_s = max(undelayed_s, sum(spent.values())) or 1.0
        rows = []
        for title, op_s in spent.items():
            now = {
                key: self.period.now(stage.label, f"op.{title}.{key}")
                for key in ("p50_s", "p95_s", "p99_s", "longest_s", "tail_share")
            }
            rows.append(OpDiagnosis(op=title, share=op_s / total_s, **now))
        return tuple(rows)

    def _capacity(self, stage: StageFacts, workers: int, seconds: float) -> float:
        return workers * self._made(stage) / seconds if seconds > 0 else inf

    def _timed(self, label: str, key: str) -> float:
        """A counter of the tickets whose calls were timed: of the period, or of the run where none was in it."""
        # Where one ticket takes long, the last that was timed may have begun before the first batch came.
        seen = self.period.stage if self.period.stage(label, "timed_s") else self.period.now
        return seen(label, key)

    def on_cpu(self, label: str) -> bool:
        """Whether a stage computes, rather than waits, while it is at work."""
        working_s, timed_s = self.period.stage(label, "working_s"), self._timed(label, "timed_s")
        if self.period.stage(label, "cpu_s") > _ON_CPU * working_s > 0:
            return True
        # Whoever sleeps waits for a CPU too, each time it wakes: such time tells nothing of what it does. But who
        # never got further than that would have computed.
        delay_s = self._timed(label, "timed_delay_s")
        least = _ON_CPU if delay_s < _MOSTLY_DELAYED * timed_s else _ON_CPU_DELAYED
        computed_s, undelayed_s = (
            max(self._timed(label, "timed_busy_s") - delay_s, 0.0),
            max(timed_s - delay_s, 0.0),
        )
        return timed_s > 0 and computed_s >= least * undelayed_s

    def held_s(self, label: str) -> float:
        """Seconds in which threads of a stage can have held the interpreter lock.

        A thread that waits for a CPU keeps the lock, so every second on a CPU counts with the wait for it.
        """
        if self.stages[label].kind == "async":
            return self.loop_s(self.stages[label])
        cpu_s, busy_s = self.period.stage(label, "cpu_s"), self._timed(label, "timed_busy_s")
        on_cpu_s = busy_s - self._timed(label, "timed_delay_s")
        stretched_s = cpu_s * busy_s / on_cpu_s if on_cpu_s > 0 else cpu_s
        return max(cpu_s, min(stretched_s, self.period.running_s))

    def _delayed(self, label: str) -> float:
        """The share of its time at work in which a stage could have run, and no CPU was free for it."""
        timed_s = self._timed(label, "timed_s")
        return self._timed(label, "timed_delay_s") / timed_s if timed_s else 0.0

    def cores_per_worker(self, label: str) -> float:
        """Cores that one worker keeps busy while it is at work."""
        working_s = self.period.stage(label, "working_s")
        return self.period.stage(label, "cpu_s") / working_s if working_s > 0 else 0.0

    def library_share(self, label: str) -> float:
        """The share of their CPU time that worker processes spend in threads of libraries."""
        cpu_s = self._timed(label, "timed_busy_s") - self._timed(label, "timed_delay_s")
        return self._timed(label, "timed_library_s") / cpu_s if cpu_s > 0 else 0.0

    def bytes_per_s(self, label: str) -> float:
        """Bytes that one worker hands in per second at work, by the tickets that were timed."""
        timed_s = self._timed(label, "timed_s")
        return self._timed(label, "timed_bytes") / timed_s if timed_s else 0.0

    # ------------------------------------------------------------------ what can hold up the rest

    @cached_property
    def limits(self) -> list[Limit]:
        """Everything that can hold up the loop, the tightest first."""
        found = []
        for stage in self.stages.values():
            reading_s = self.period.stage(stage.label, "reading_s")
            if stage.stream:
                found.append(
                    Limit(stage.label, self._capacity(stage, 1, reading_s) * self.repeats(stage), "stream")
                )
            if not stage.stream or reading_s < _ONLY_READS * self.period.stage(stage.label, "working_s"):
                found.append(Limit(stage.label, self.rows[stage.label].capacity * self.repeats(stage), "workers"))
            if stage.kind == "async":
                found.append(Limit(stage.label, self._capacity(stage, 1, self.loop_s(stage)), "coroutines"))
        return sorted(found + self._shared(), key=lambda one: one.capacity)

    @property
    def tightest(self) -> Limit:
        """What holds up the loop. Of two about as tight in one stage, that which more workers would not move."""
        first, *others = self.limits
        held = (one for one in others if one.label == first.label and not one.helped_by_workers)
        return next((one for one in held if one.capacity <= _ABOUT * first.capacity), first)

    def loop_s(self, stage: StageFacts) -> float:
        """Seconds that the thread of its coroutines computed, for all stages whose coroutines share it."""
        return sum(self.period.stage(one.label, "loop_s") for one in self.sharing(stage.site))

    def _shared(self) -> list[Limit]:
        """Workers that several stages share: what a sample takes of them is the sum over these."""
        found = []
        for site in {stage.site for stage in self.stages.values()}:
            sharing = self.sharing(site)
            if len(sharing) < 2:
                continue
            again = max(self.repeats(stage) for stage in sharing)
            per_sample = sum(row.workers / row.capacity for row in (self.rows[stage.label] for stage in sharing))
            busiest = max(sharing, key=lambda stage: self.period.stage(stage.label, "working_s"))
            capacity = busiest.site_workers / per_sample * again if per_sample else inf
            found.append(Limit(busiest.label, capacity, "shared"))
        return found

    def alike(self, one: Limit, other: Limit) -> bool:
        """Whether what helps one helps the other: the same stage, or one on the same workers if these limit."""
        same = self.stages[one.label].site == self.stages[other.label].site
        return one.helped_by_workers and (one.label == other.label or (other.why == "shared" and same))

    def sharing(self, site: int) -> list[StageFacts]:
        """The stages that run on the same workers."""
        return [stage for stage in self.stages.values() if stage.site == site]

    def repeats(self, stage: StageFacts) -> float:
        """How many samples the training loop gets for one of this stage: more than one by a reservoir."""
        return self.period.reuse(stage.reservoir) if stage.reservoir else 1.0

    def workers(self, limit: Limit) -> int:
        """The workers that more of would help."""
        return self.stages[limit.label].site_workers if limit.why == "shared" else self.rows[limit.label].workers

    # ------------------------------------------------------------------ cores and gains

    @property
    def cores(self) -> float:
        """Cores that this run may keep busy: all there are, less what other programs take, up to the quota."""
        count = self.allowed.cores
        left = max(count - self.period.others, _FAIR * count)
        return left if self.allowed.quota is None else min(left, self.allowed.quota)

    @property
    def full(self) -> bool:
        """Whether this run keeps all cores busy that it may use, or a quota makes it wait."""
        return self.period.throttled > _THROTTLED or self.period.cores_used >= _FULL * self.cores

    @property
    def gain_of_loop(self) -> float:
        """What can be gained until the training loop itself limits."""
        rate = self.period.rate
        return self.period.loop_capacity / rate if rate else inf

    @property
    def gain_of_cores(self) -> float:
        """What can be gained until all cores are in use."""
        used = self.period.cores_used
        if self.period.throttled > _THROTTLED:
            return 1.0
        return max(self.cores / used, 1.0) if used else inf

    def most_workers(self, label: str, workers: int) -> int:
        """The most workers that make sense: for a stage that computes, no more than there are cores."""
        per_worker = max(self.cores_per_worker(label), 1.0)
        return max(int(self.cores / per_worker + 0.5), workers) if self.on_cpu(label) else 1 << 30
