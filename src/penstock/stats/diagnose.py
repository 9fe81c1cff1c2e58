"""The verdict over a run, from its counters: what limits it, and what one change would bring. Pure.

Every stage has a *capacity*: the samples per second that it would make if its workers never waited.
So has the training loop, which is what it would take if it never waited. The run goes as fast as the
least of them, and a change brings as much as there is room up to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, inf

from penstock.stats.history import Snapshot
from penstock.stats.period import Period
from penstock.stats.report import Diagnosis, StageDiagnosis, per_second, percent, times

__all__ = ["LOOP", "Part", "diagnose"]

LOOP = "training loop"

#: a loop that waits less than this is as good as always fed: the rest is scheduling noise
_FED = 0.05
#: up to here above the rate that was seen, a capacity explains it; far above, work comes unevenly
_EXPLAINS = 1.3
#: a gain that is not worth a change
_NOTHING = 1.05
#: cores in use, of those there are, that leave nothing for another worker
_FULL = 0.92
#: a wait for the interpreter lock that shows that others hold it: they are asked to let go of it after 5 ms
_CONTENDED_S = 0.001
#: a share of all time on a CPU, in threads of one stage, that can be what holds the lock
_HOLDS = 0.25
#: a share of the time at work from which on a stage does nothing else than to read its stream
_ONLY_READS = 0.8
#: a share of the time at work from which on a function computes rather than waits
_ON_CPU = 0.7
#: samples served again by a reservoir, on average, that are worth a word
_REUSED = 1.1
#: a share of the workers that is worth a word
_WORTH_NAMING = 0.05
#: no more than so many times the workers there are
_MOST_TIMES = 4


@dataclass(frozen=True, slots=True)
class Part:
    """A stage, as far as a verdict depends on it beside its counters."""

    label: str
    #: the kind of its executor
    kind: str = "thread"
    #: stages with the same number share workers, and there are so many
    site: int = 0
    site_workers: int = 1
    #: they are those of a pool
    pooled: bool = False
    ordered: bool = True
    #: the stream that it reads, one worker at a time
    stream: str = ""
    #: the reservoir between it and the training loop, and the stage that fills that
    reservoir: str = ""
    feeder: str = ""


@dataclass(frozen=True, slots=True)
class _Limit:
    """One thing that can hold up the rest: which stage, in which way, at how many samples per second."""

    label: str
    capacity: float
    #: "workers", "shared" (with other stages) or "stream"
    why: str


def diagnose(parts: Sequence[Part], before: Snapshot, after: Snapshot, cores: int) -> Diagnosis:
    """What limited the run between two snapshots. `parts` are all stages, the last one delivers."""
    return _Case(parts, Period(before, after), cores).verdict()


class _Case:
    """A run, and what is said of it."""

    def __init__(self, parts: Sequence[Part], period: Period, cores: int) -> None:
        self.parts = {part.label: part for part in parts}
        self.period = period
        self.cores = cores
        self.last = parts[-1].label
        self.rows = {part.label: self._row(part) for part in parts}

    # ------------------------------------------------------------------ what the counters say

    def _made(self, part: Part) -> float:
        """Samples made at the end that `part` leads to: the training loop, or a reservoir. Never none."""
        period = self.period
        if part.reservoir:
            end, handed = part.feeder, period.of(f"{part.reservoir}.draws")
        else:
            end, handed = self.last, period.batches
        made = period.stage(end, "samples")
        return max(made * period.samples / handed if handed else 0.0, 1.0)

    def _row(self, part: Part) -> StageDiagnosis:
        period, label = self.period, part.label
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
            capacity=self._capacity(part, workers, working_s),
            workers=workers,
            on=part.kind,
        )

    def _capacity(self, part: Part, workers: int, seconds: float) -> float:
        return workers * self._made(part) / seconds if seconds > 0 else inf

    @cached_property
    def _limits(self) -> list[_Limit]:
        """Everything that can hold up the loop, the tightest first."""
        found = []
        for part in self.parts.values():
            reading_s = self.period.stage(part.label, "reading_s")
            if part.stream:
                found.append(_Limit(part.label, self._capacity(part, 1, reading_s) * self._repeats(part), "stream"))
            if not part.stream or reading_s < _ONLY_READS * self.period.stage(part.label, "working_s"):
                found.append(_Limit(part.label, self.rows[part.label].capacity * self._repeats(part), "workers"))
        return sorted(found + self._shared(), key=lambda one: one.capacity)

    def _shared(self) -> list[_Limit]:
        """Workers that several stages share: what a sample takes of them is the sum over these."""
        found = []
        for site in {part.site for part in self.parts.values()}:
            sharing = self._sharing(site)
            if len(sharing) < 2:
                continue
            again = max(self._repeats(part) for part in sharing)
            per_sample = sum(row.workers / row.capacity for row in (self.rows[part.label] for part in sharing))
            busiest = max(sharing, key=lambda part: self.period.stage(part.label, "working_s"))
            capacity = busiest.site_workers / per_sample * again if per_sample else inf
            found.append(_Limit(busiest.label, capacity, "shared"))
        return found

    def _alike(self, one: _Limit, other: _Limit) -> bool:
        """Whether what helps one helps the other: the same stage, or one on the same workers if these limit."""
        same = self.parts[one.label].site == self.parts[other.label].site
        return one.label == other.label or (other.why == "shared" and same and one.why != "stream")

    def _sharing(self, site: int) -> list[Part]:
        return [part for part in self.parts.values() if part.site == site]

    def _repeats(self, part: Part) -> float:
        """How many samples the training loop gets for one of this stage: more than one by a reservoir."""
        return self.period.reuse(part.reservoir) if part.reservoir else 1.0

    # ------------------------------------------------------------------ the verdict

    def verdict(self) -> Diagnosis:
        period = self.period
        if not period.samples or not period.running_s:
            return self._stalled()
        holder = self._holder() if self._contended else None
        if holder is not None and (gain := self._gain_without_lock(holder)) >= _NOTHING:
            return self._locked(holder, gain)
        if period.wait_share < _FED:
            return self._fed()
        inline = [part for part in self.parts.values() if part.kind == "inline"]
        if sum(period.stage(part.label, "working_s") for part in inline) > period.wait_s / 2:
            return self._inline(max(inline, key=lambda part: period.stage(part.label, "working_s")))
        tightest, *others = self._limits
        next_limit = next((one for one in others if not self._alike(one, tightest)), None)
        if tightest.capacity > _EXPLAINS * period.rate:
            return self._uneven(tightest)
        if self._full:
            return self._crowded(tightest)
        if tightest.why == "stream":
            return self._stream(tightest)
        return self._more_workers(tightest, next_limit)

    @property
    def _full(self) -> bool:
        return self.period.cores_used >= _FULL * self.cores

    @property
    def _contended(self) -> bool:
        """Whether threads wait for the interpreter lock, and a loop that has enough to read feels it."""
        period = self.period
        cost = period.lock_wait_s * period.batches / period.running_s  # it waits at least once for each batch
        return period.lock_wait_s > _CONTENDED_S and (period.wait_share >= _FED or cost >= _FED)

    def _stalled(self) -> Diagnosis:
        """Nothing has come."""
        busiest = max(self.rows.values(), key=lambda row: row.working)
        if not busiest.working or not self.period.wait_s:
            return self._told(LOOP, "Nothing has been read yet: ask again when the loop has had some batches.")
        return self._told(
            busiest.label,
            f"{busiest.label} limits: it is at work, and in {self.period.wait_s:.2g} s of waiting nothing has come "
            "of it. loader(timeout_s=) names the sample that holds it up.",
        )

    def _fed(self) -> Diagnosis:
        told = [
            f"The training loop limits: it waits {self._waits} of its time for data, so faster loading would "
            "change nothing."
        ]
        told += self._hidden()
        return self._told(LOOP, " ".join(told))

    def _hidden(self) -> list[str]:
        """What reservoirs hide, and what that costs."""
        told = []
        for reservoir in dict.fromkeys(part.reservoir for part in self.parts.values() if part.reservoir):
            reuse = self.period.reuse(reservoir)
            if reuse < _REUSED:
                continue
            upstream = [one for one in self._limits if self.parts[one.label].reservoir == reservoir]
            tightest = upstream[0]
            made, taken = per_second(tightest.capacity / reuse), per_second(self.period.rate)
            told.append(
                f"But a reservoir hides {tightest.label}, which makes {made} where the loop takes {taken}: each "
                f"sample is served {times(reuse)} on average."
            )
            told.append(self._hidden_remedy(tightest, reuse))
        return told

    def _hidden_remedy(self, tightest: _Limit, reuse: float) -> str:
        if tightest.why == "stream":
            return f"{self.parts[tightest.label].stream} is read by one worker at a time: move work out of it."
        best = min(reuse, self._gain_of_cores, _MOST_TIMES)
        if best < _NOTHING:
            return f"{self._no_cores} With less work per sample more of them would be new."
        workers = self._workers(tightest)
        wanted = _enough(workers, best)
        return (
            f"With {wanted} workers instead of {workers}: {times(max(reuse / min(best, wanted / workers), 1.0))}."
        )

    def _workers(self, limit: _Limit) -> int:
        return self.parts[limit.label].site_workers if limit.why == "shared" else self.rows[limit.label].workers

    def _inline(self, part: Part) -> Diagnosis:
        gain = min(self.rows[part.label].capacity / self.period.rate, self._gain_of_loop)
        on_cpu = self.period.stage(part.label, "cpu_s") > _ON_CPU * self.period.stage(part.label, "working_s")
        # Whether a function that computes lets go of the interpreter lock is not known; a process helps either way.
        place = 'on="process", workers=1' if on_cpu else "workers=1"
        return self._told(
            part.label,
            f"{part.label} limits: it runs in the training loop's own thread, and takes {self._waits} of its time. "
            f"With a worker of its own, {place}: {_more(gain)}.",
            gain,
        )

    def _uneven(self, tightest: _Limit) -> Diagnosis:
        row, part = self.rows[tightest.label], self.parts[tightest.label]
        gain = min(tightest.capacity / self.period.rate, self._gain_of_loop, _MOST_TIMES)
        could = f"on average it could do {per_second(tightest.capacity)}"
        spare = f"{could}, and still the training loop waits {self._waits} of its time."
        if part.pooled:
            return self._told(
                tightest.label,
                f"{tightest.label} limits, but not by its own work: {spare} The workers of its pool may be busy "
                f"with others. With more of them, or a pool of its own: up to {_factor(gain)}.",
                gain,
            )
        remedy = f"keep more of it ready with prefetch(): up to {_factor(gain)}"
        if part.ordered and row.waiting_room > row.waiting_input:
            remedy += "; or take samples as they are done, with ordered=False"
        return self._told(
            tightest.label,
            f"{tightest.label} limits, but not for lack of workers: {spare} Samples that take much longer than "
            f"others make such waits, and epochs of a few batches. If it is the former, {remedy}.",
            gain,
        )

    def _crowded(self, tightest: _Limit) -> Diagnosis:
        return self._told(
            tightest.label,
            f"{self._busy(tightest)} {self._no_cores} Do less per sample, keep results with cache(), or give it "
            "more cores.",
        )

    def _stream(self, tightest: _Limit) -> Diagnosis:
        return self._told(
            tightest.label,
            f"{self.parts[tightest.label].stream} limits: a stream is read by one worker at a time, and gives "
            f"{per_second(tightest.capacity)}; the training loop waits {self._waits} of its time. Move work out of "
            "it into a map() with workers, or read from a source that can be indexed.",
        )

    def _holder(self) -> StageDiagnosis | None:
        """The stage whose threads hold the interpreter lock most of the time, if there is one."""
        threads = [row.label for row in self.rows.values() if row.on == "thread"]
        spent = {label: self.period.stage(label, "cpu_s") for label in threads}
        label = max(spent, key=spent.__getitem__, default="")
        return self.rows[label] if label and spent[label] > _HOLDS * self.period.of("cpu_s") else None

    def _gain_without_lock(self, row: StageDiagnosis) -> float:
        """What can be gained if the work of a stage is done in processes, which need not take turns."""
        alone = self._processes(row) * self.period.running_s / self.period.stage(row.label, "cpu_s")
        others = (one.capacity / self.period.rate for one in self._limits if one.label != row.label)
        return max(min([alone, self._gain_of_cores, *others]), 1.0)

    def _processes(self, row: StageDiagnosis) -> int:
        return min(max(row.workers, 2), self.cores)

    def _locked(self, row: StageDiagnosis, gain: float) -> Diagnosis:
        return self._told(
            row.label,
            f"{row.label} limits: its threads hold the interpreter lock, and whoever lets go of it waits "
            f"{self.period.lock_wait_s * 1000:.1f} ms to get it back, the training loop too. With "
            f'on="process", workers={self._processes(row)}: up to {_factor(gain)}.',
            gain,
        )

    def _more_workers(self, tightest: _Limit, next_limit: _Limit | None) -> Diagnosis:
        part, workers = self.parts[tightest.label], self._workers(tightest)
        best = self._bounded(float(_MOST_TIMES), tightest, next_limit)
        wanted = _enough(workers, best)
        gain = min(best, wanted / workers)
        if gain < _NOTHING:
            return self._told(
                tightest.label, f"{self._busy(tightest)} {self._no_gain(best, tightest, next_limit)}", gain
            )
        change = _change(workers, wanted) + (" in its pool" if part.pooled else "")
        return self._told(tightest.label, f"{self._busy(tightest)} {change}: {_more(gain)}.", gain)

    def _no_gain(self, best: float, tightest: _Limit, next_limit: _Limit | None) -> str:
        if next_limit is not None and next_limit.capacity / tightest.capacity <= best * 1.01:
            return f"More workers for it alone would not help, as {next_limit.label} is nearly as slow."
        return self._no_cores

    # ------------------------------------------------------------------ gains

    @property
    def _gain_of_loop(self) -> float:
        """What can be gained until the training loop itself limits."""
        rate = self.period.rate
        return self.period.loop_capacity / rate if rate else inf

    @property
    def _gain_of_cores(self) -> float:
        """What can be gained until all cores are in use."""
        used = self.period.cores_used
        return self.cores / used if used else inf

    def _bounded(self, gain: float, tightest: _Limit, next_limit: _Limit | None) -> float:
        """A gain, up to what the next limit, the training loop and the cores allow."""
        bounds = [gain, self._gain_of_loop, self._gain_of_cores]
        if next_limit is not None:
            bounds.append(next_limit.capacity / tightest.capacity)
        return max(min(bounds), 1.0)

    # ------------------------------------------------------------------ words

    @property
    def _waits(self) -> str:
        return percent(self.period.wait_share)

    @property
    def _no_cores(self) -> str:
        return f"All {self.cores} cores are in use, so more workers would not help."

    def _busy(self, tightest: _Limit) -> str:
        row, part = self.rows[tightest.label], self.parts[tightest.label]
        workers, working = row.workers, row.working
        others = ""
        if tightest.why == "shared":
            sharing = [self.rows[one.label] for one in self._sharing(part.site)]
            workers = part.site_workers
            working = sum(one.working * one.workers for one in sharing) / workers
            with_whom = [one.label for one in sharing if one is not row and one.working > _WORTH_NAMING]
            others = f", shared with {' and '.join(with_whom)}," if with_whom else ""
        who = f"its one worker{others} is" if workers == 1 else f"its {workers} workers{others} are"
        return (
            f"{tightest.label} limits: {who} at work {percent(working)} of the time, and the training loop waits "
            f"{self._waits} of its own."
        )

    def _told(self, limiting: str, advice: str, gain: float = 1.0) -> Diagnosis:
        period = self.period
        reuse = max((period.reuse(part.reservoir) for part in self.parts.values() if part.reservoir), default=1.0)
        return Diagnosis(
            limiting=limiting,
            wait_share=period.wait_share,
            advice=advice,
            expected_gain=gain,
            stages=tuple(self.rows.values()),
            loop_capacity=period.loop_capacity,
            samples_per_s=period.rate,
            samples=int(period.samples),
            seconds=period.running_s,
            reuse=reuse,
        )


def _enough(workers: int, gain: float) -> int:
    """As many workers as a gain takes, and more than there are; for its last few percent there is no other."""
    return max(ceil(workers * gain * 0.95), workers + 1)


def _change(workers: int, wanted: int) -> str:
    return f"{workers} → {wanted} workers"


def _more(gain: float) -> str:
    return f"about {_factor(gain)}"


def _factor(gain: float) -> str:
    return f"{percent(gain - 1)} more" if gain < 2 else f"{gain:.2g} times as much"
