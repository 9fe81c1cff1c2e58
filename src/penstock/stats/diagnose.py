"""The verdict over a run, from its counters: what limits it, and what one change would bring. Pure.

`penstock.stats.figures` has what the counters say in figures; here it is judged and put into words.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from penstock.stats.facts import Limits, StageFacts
from penstock.stats.figures import Figures, Limit
from penstock.stats.history import Snapshot
from penstock.stats.period import Period
from penstock.stats.report import Diagnosis, StageDiagnosis, duration, per_second, percent, size, times

LOOP = "training loop"

#: a loop that waits less than this is as good as always fed: the rest is scheduling noise
_FED = 0.05
#: up to here above the rate that was seen, a capacity explains it; far above, work comes unevenly
_EXPLAINS = 1.3
#: whoever is at work for this share of the time is what limits: in short runs, what is ready counts as made and
#: not as delivered
_ALWAYS = 0.97
#: a gain that is not worth a change
_NOTHING = 1.05
#: the mean wait of all tries of the interpreter lock that shows that others hold it, where so many tries found it
#: held. They let go of it after 5 ms, a free lock takes less than 0.1 ms, and three tries in four may find it free
_CONTENDED_S, _HELD_TRIES = 0.0002, 3
#: the same where fewer did, and the least sum of the waits: one try that something else held up does not reach it
_FEW_CONTENDED_S, _FEW_CONTENDED_SUM_S = 0.0005, 0.0075
#: a share of all time on a CPU, and of the run, in threads of one stage, that can be what holds the lock
_HOLDS = 0.25
#: a share of a core without which nobody holds the lock, however long it waits for a CPU; more than one core nobody
#: can use with the lock in hand
_LEAST_CORE, _ONE_CORE = 0.1, 1.05
#: samples served again by a reservoir, on average, that are worth a word
_REUSED = 1.1
#: a share of the workers that is worth a word
_WORTH_NAMING = 0.05
#: no more than so many times the workers there are
_MOST_TIMES = 4
#: a share of its time in which a stage waits for memory that makes the bound on memory what limits
_STARVED = 0.2
#: bytes per second that one worker hands in when it does little but copy
_COPIES = 1e9
#: cores that one worker keeps busy when its libraries start threads of their own
_THREADED = 1.4
#: the same where a worker gets no more than one core: the share of that which those threads get
_IN_LIBRARIES = 0.25
#: cores that other programs take that are worth a word
_OTHERS = 0.2
#: a share of the time of an op in calls that take ten times as long as most, which makes them what to look at
_TAIL = 0.4
#: a share of the time at work in which workers wait for a CPU that is worth a word
_DELAYED = 0.1
#: a share of samples that fail that is worth a word
_FAILING = 0.05
#: the most that prefetch() is advised
_MOST_READY = 1000
#: how the name of a stream from a data server begins, and who knows why it is slow
_SERVED = "connect("
_ASK_THE_SERVER = (
    "The server knows why: penstock serve --report-s 10 prints whether clients wait for its pipeline. If they do, "
    "start it with PENSTOCK_DASHBOARD=1 and run penstock top there for the diagnosis of that pipeline; if not, the "
    "network limits."
)


def diagnose(stages: Sequence[StageFacts], before: Snapshot, after: Snapshot, allowed: Limits) -> Diagnosis:
    """What limited the run between two snapshots. `stages` are all stages, the last one delivers."""
    return _Case(stages, Period(before, after), allowed).verdict()


class _Case(Figures):
    """A run, and what is said of it."""

    # ------------------------------------------------------------------ the verdict

    def verdict(self) -> Diagnosis:
        period = self.period
        if not period.samples or not period.running_s:
            return self._stalled()
        holder = self._holder() if self.allowed.gil and self._contended else None
        if holder is not None and (gain := self._gain_without_lock(holder)) >= _NOTHING:
            return self._locked(holder, gain)
        if holder is not None and (period.wait_share < _FED or holder.cores < _ONE_CORE):
            return self._held(holder)
        if period.wait_share < _FED:
            return self._fed()
        inline = [stage for stage in self.stages.values() if stage.kind == "inline"]
        if sum(period.stage(stage.label, "working_s") for stage in inline) > period.wait_s / 2:
            return self._inline(max(inline, key=lambda stage: period.stage(stage.label, "working_s")))
        tightest = self.tightest
        others = (one for one in self.limits if one is not tightest)
        next_limit = next((one for one in others if not self.alike(one, tightest)), None)
        if tightest.capacity > _EXPLAINS * period.rate and not self._at_work(tightest):
            return self._starved(tightest) or self._uneven(tightest)
        if self.full:
            return self._crowded(tightest)
        if tightest.why == "stream":
            return self._stream(tightest)
        if tightest.why == "coroutines":
            return self._coroutines(tightest, next_limit)
        return self._more_workers(tightest, next_limit)

    def _at_work(self, tightest: Limit) -> bool:
        """Whether what limits never had to wait for those after it, whatever its capacity."""
        row = self.rows[tightest.label]
        if tightest.why == "stream":  # where CPUs are busy, the next reader waits for one, which is not reading
            return row.waiting_room <= 1 - _ALWAYS
        return tightest.why == "workers" and row.working >= _ALWAYS

    @property
    def _contended(self) -> bool:
        """Whether threads wait for the interpreter lock, and a loop that has enough to read feels it."""
        period = self.period
        cost = period.lock_wait_s * period.batches / period.running_s  # it waits at least once for each batch
        often = period.lock_wait_s > _CONTENDED_S and period.of("lock_held") >= _HELD_TRIES
        long = period.lock_wait_s > _FEW_CONTENDED_S and period.of("lock_wait_s") > _FEW_CONTENDED_SUM_S
        return (often or long) and (period.wait_share >= _FED or cost >= _FED)

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
        for reservoir in dict.fromkeys(stage.reservoir for stage in self.stages.values() if stage.reservoir):
            reuse = self.period.reuse(reservoir)
            if reuse < _REUSED:
                continue
            upstream = [one for one in self.limits if self.stages[one.label].reservoir == reservoir]
            tightest = upstream[0]
            made, taken = per_second(tightest.capacity / reuse), per_second(self.period.rate)
            told.append(
                f"But a reservoir hides {tightest.label}, which makes {made} where the loop takes {taken}: each "
                f"sample is served {times(reuse)} on average."
            )
            told.append(self._hidden_remedy(tightest, reuse))
        return told

    def _hidden_remedy(self, tightest: Limit, reuse: float) -> str:
        if tightest.why == "stream":
            if self.stages[tightest.label].stream.startswith(_SERVED):
                return _ASK_THE_SERVER
            return f"{self.stages[tightest.label].stream} is read by one worker at a time: move work out of it."
        best = min(reuse, self.gain_of_cores, _MOST_TIMES)
        if best < _NOTHING:
            return f"{self._no_cores(tightest.label)} With less work per sample more of them would be new."
        workers = self.workers(tightest)
        wanted = _enough(workers, best)
        left = reuse / min(best, wanted / workers)
        served = times(left) if left >= _NOTHING else "once"
        return f"With {wanted} workers instead of {workers}, each sample would be served {served}."

    def _inline(self, stage: StageFacts) -> Diagnosis:
        gain = min(self.rows[stage.label].capacity / self.period.rate, self.gain_of_loop)
        # Whether a function that computes lets go of the interpreter lock is not known; a process helps either way.
        place = 'on="process", workers=1' if self.allowed.gil and self.on_cpu(stage.label) else "workers=1"
        return self._told(
            stage.label,
            f"{stage.label} limits: it runs in the training loop's own thread, and takes {self._waits} of its "
            f"time. With a worker of its own, {place}: {_more(gain)}.",
            gain,
        )

    def _uneven(self, tightest: Limit) -> Diagnosis:
        row, stage = self.rows[tightest.label], self.stages[tightest.label]
        gain = min(tightest.capacity / self.period.rate, self.gain_of_loop, _MOST_TIMES)
        could = f"on average it could do {per_second(tightest.capacity)}"
        spare = f"{could}, and still the training loop waits {self._waits} of its time."
        if stage.pooled:
            return self._told(
                tightest.label,
                f"{tightest.label} limits, but not by its own work: {spare} The workers of its pool may be busy "
                f"with others. With more of them, or a pool of its own: up to {_factor(gain)}.",
                gain,
            )
        remedy = f"Keep more of it ready, with prefetch({self._ready(row, stage)}) after {stage.last_op}"
        if stage.ordered and row.waiting_room > row.waiting_input:
            remedy += ", or take samples as they are done, with ordered=False"
        return self._told(
            tightest.label,
            f"{tightest.label} limits, but not for lack of workers: {spare} {self._tail(row)} {remedy}: up to "
            f"{_factor(gain)}.",
            gain,
        )

    def _ready(self, row: StageDiagnosis, stage: StageFacts) -> int:
        """How many finished batches bridge the longest call, at the speed of the training loop."""
        per_batch = self.period.samples / max(self.period.batches, 1.0)
        longest_s = max((op.longest_s for op in row.ops), default=0.0)
        batches = longest_s * min(self.period.loop_capacity / per_batch, 1e6)
        return min(max(ceil(batches) + 1, 2 * stage.ready, 4), _MOST_READY)

    def _tail(self, row: StageDiagnosis) -> str:
        """Why work comes unevenly, as far as the calls that were timed tell."""
        slow = max(row.ops, key=lambda op: op.tail_share * op.share, default=None)
        if slow is None or slow.tail_share < _TAIL:
            return (
                "Samples that take much longer than others make such waits, and so do epochs of a few batches, and "
                "a loop that takes many batches at once and then none."
            )
        return (
            f"Half of the calls of {slow.op} take up to {duration(slow.p50_s)}, and 1 in 100 takes "
            f"{duration(slow.p99_s)} or more, up to {duration(slow.longest_s)}: while the loop waits for one of "
            "these, too little else is ready."
        )

    def _starved(self, tightest: Limit) -> Diagnosis | None:
        """The bound on memory limits, if workers wait for it and could do more."""
        memory = self.allowed.memory
        share = {label: self._waiting_memory(label) for label in self.rows}
        label = max(share, key=share.__getitem__)
        if memory is None or share[label] < _STARVED:
            return None
        gain = min(tightest.capacity / self.period.rate, self.gain_of_loop, self.gain_of_cores, _MOST_TIMES)
        return self._told(
            label,
            f"loader(memory={size(memory)!r}) limits: the workers of {label} wait {percent(share[label])} of "
            f"their time for memory that other batches take, and the training loop waits {self._waits} of its own. "
            f"With memory={size(memory * gain * 1.2)!r}, or smaller samples (uint8 instead of float32): up to "
            f"{_factor(gain)}.",
            gain,
        )

    def _waiting_memory(self, label: str) -> float:
        """The share of its time that a stage waited for memory."""
        total_s = sum(
            self.period.stage(label, f"{name}_s") for name in ("working", "waiting_input", "waiting_room")
        )
        return self.period.stage(label, "waiting_memory_s") / total_s if total_s else 0.0

    def _crowded(self, tightest: Limit) -> Diagnosis:
        return self._told(
            tightest.label,
            f"{self._busy(tightest)} {self._no_cores(tightest.label)}{self._delay(tightest.label)} "
            f"{self._less_work(tightest.label)}",
        )

    def _less_work(self, label: str) -> str:
        """What to do when there are no cores left."""
        each = self.cores_per_worker(label)
        threaded = each > _THREADED or self.library_share(label) > _IN_LIBRARIES
        if self.stages[label].kind == "process" and threaded:
            busy = f"keeps {each:.1f} cores busy" if each > _THREADED else "computes in several threads at once"
            return (
                f"Each of its processes {busy}, since its libraries start threads of their own. Let each process "
                "use one thread: cv2.setNumThreads(0), torch.set_num_threads(1), or "
                'env={"OMP_NUM_THREADS": "1"} of ps.Processes.'
            )
        return "Do less per sample, keep results with cache(), or give it more cores."

    def _copying(self, tightest: Limit) -> Diagnosis:
        rate = self.bytes_per_s(tightest.label)
        return self._told(
            tightest.label,
            f"{self._busy(tightest)} Each hands in {rate / 1e9:.1f} GB/s, so it copies memory more than it "
            "computes, and more workers would share the same memory. Make samples smaller (uint8 instead of "
            "float32, fewer fields), or leave a copy out: arrays read as batches, threads instead of processes.",
        )

    def _stream(self, tightest: Limit) -> Diagnosis:
        stream, rate = self.stages[tightest.label].stream, per_second(tightest.capacity)
        waits = f"the training loop waits {self._waits} of its time."
        if stream.startswith(_SERVED):
            told = f"{stream} limits: batches come at {rate}, and {waits} {_ASK_THE_SERVER}"
        else:
            told = (
                f"{stream} limits: a stream is read by one worker at a time, and gives {rate}; {waits} Move work "
                "out of it into a map() with workers, or read from a source that can be indexed."
            )
        return self._told(tightest.label, told)

    def _coroutines(self, tightest: Limit, next_limit: Limit | None) -> Diagnosis:
        gain = self._bounded(float(max(round(self.cores), 1)), tightest, next_limit)
        change = self._no_cores(tightest.label)
        if gain >= _NOTHING:
            change = f"{self._out_of_coroutines}: up to {_factor(gain)}."
        busy = self.loop_s(self.stages[tightest.label]) / self.period.running_s
        return self._told(
            tightest.label,
            f"{tightest.label} limits: its coroutines share one thread, which computes {percent(min(busy, 1.0))} "
            f"of the time, and the training loop waits {self._waits} of its own. {change}",
            gain,
        )

    @property
    def _out_of_coroutines(self) -> str:
        """Whether what computes lets go of the interpreter lock is not known; a process helps either way."""
        place = 'on="process", ' if self.allowed.gil else ""
        return f"Move what computes into a map() of its own, with {place}workers={max(round(self.cores), 1)}"

    def _holder(self) -> StageDiagnosis | None:
        """The stage whose threads hold the interpreter lock most of the time, if there is one."""
        threads = [row.label for row in self.rows.values() if row.on in ("thread", "async")]
        spent = {label: self.period.stage(label, "cpu_s") for label in threads}
        label = max(spent, key=spent.__getitem__, default="")
        if not label or self.held_s(label) <= _HOLDS * self.period.running_s:
            return None
        least_s = max(_HOLDS * self.period.of("cpu_s"), _LEAST_CORE * self.period.running_s)
        return self.rows[label] if spent[label] > least_s else None

    def _gain_without_lock(self, row: StageDiagnosis) -> float:
        """What can be gained if the work of a stage is done in processes, which need not take turns."""
        alone = self._processes(row) * self.period.running_s / self.held_s(row.label)
        others = (one.capacity / self.period.rate for one in self.limits if one.label != row.label)
        return max(min([alone, self.gain_of_cores, *others]), 1.0)

    def _processes(self, row: StageDiagnosis) -> int:
        return min(max(row.workers, 2), max(round(self.cores), 1))

    def _locked(self, row: StageDiagnosis, gain: float) -> Diagnosis:
        alone = self.stages[row.label].alone
        change = f'With on="process", workers={self._processes(row)}'
        if row.on == "async":
            change = self._out_of_coroutines
        remedy = alone or f"{change}: up to {_factor(gain)}."
        return self._told(row.label, f"{self._holds(row)} {remedy}", gain)

    def _held(self, row: StageDiagnosis) -> Diagnosis:
        """The lock limits, but there are no cores for processes."""
        return self._told(row.label, f"{self._holds(row)} {self._no_cores(row.label)} {self._less_work(row.label)}")

    def _holds(self, row: StageDiagnosis) -> str:
        who = "coroutines" if row.on == "async" else "threads"
        return (
            f"{row.label} limits: its {who} hold the interpreter lock, and whoever lets go of it waits "
            f"{self.period.lock_wait_s * 1000:.1f} ms to get it back, the training loop too."
        )

    def _more_workers(self, tightest: Limit, next_limit: Limit | None) -> Diagnosis:
        stage, workers = self.stages[tightest.label], self.workers(tightest)
        if stage.alone:
            return self._told(tightest.label, f"{self._busy(tightest)} {stage.alone}")
        if self.on_cpu(tightest.label) and self.bytes_per_s(tightest.label) > _COPIES:
            return self._copying(tightest)
        best = self._bounded(float(_MOST_TIMES), tightest, next_limit)
        wanted = min(_enough(workers, best), self.most_workers(tightest.label, workers))
        gain = min(best, wanted / workers)
        if gain < _NOTHING:
            return self._told(
                tightest.label, f"{self._busy(tightest)} {self._no_gain(best, tightest, next_limit)}", gain
            )
        change = f"{workers} → {wanted} workers" + (" in its pool" if stage.pooled else "")
        return self._told(tightest.label, f"{self._busy(tightest)} {change}: {_more(gain)}.", gain)

    def _no_gain(self, best: float, tightest: Limit, next_limit: Limit | None) -> str:
        if next_limit is not None and next_limit.capacity / tightest.capacity <= best * 1.01:
            return f"More workers for it alone would not help, as {self._name(next_limit)} is nearly as slow."
        if not self.full and self.on_cpu(tightest.label):
            return (
                f"It computes, and there are no cores for more workers ({self._available}), so "
                f"{self._useless(tightest.label)}.{self._delay(tightest.label)} {self._less_work(tightest.label)}"
            )
        return self._no_cores(tightest.label)

    def _name(self, limit: Limit) -> str:
        """What limits, where that is not the workers of a stage."""
        if limit.why == "stream":
            return f"{self.stages[limit.label].stream}, read by one worker at a time,"
        return f"the one thread of {limit.label}" if limit.why == "coroutines" else limit.label

    def _bounded(self, gain: float, tightest: Limit, next_limit: Limit | None) -> float:
        """A gain, up to what the next limit, the training loop and the cores allow."""
        bounds = [gain, self.gain_of_loop, self.gain_of_cores]
        if next_limit is not None:
            bounds.append(next_limit.capacity / tightest.capacity)
        return max(min(bounds), 1.0)

    # ------------------------------------------------------------------ words

    @property
    def _waits(self) -> str:
        return percent(self.period.wait_share)

    def _delay(self, label: str) -> str:
        """How much others are felt."""
        delayed = self.rows[label].delayed
        return f" Its workers wait {percent(delayed)} of their time for a CPU." if delayed >= _DELAYED else ""

    @property
    def _available(self) -> str:
        """The cores that this run may keep busy, and why not more."""
        quota, others = self.allowed.quota, self.period.others
        if quota is not None and quota <= self.cores:
            return f"{quota:.3g} for it, which is the CPU quota of the cgroup"
        taken = f", as other programs keep {others:.1f} busy" if others >= _OTHERS else ""
        return f"{self.cores:.2g} for it{taken}"

    def _no_cores(self, label: str) -> str:
        count, quota, others = self.allowed.cores, self.allowed.quota, self.period.others
        if quota is not None and (quota <= count - others or self.full):
            busy = f"All of the {quota:.3g} cores that the CPU quota of the cgroup allows are in use"
        elif others >= _OTHERS:
            busy = f"Other programs keep {others:.1f} of the {count} cores busy, and this run the rest"
        else:
            busy = f"All {count} cores are in use"
        return f"{busy}, so {self._useless(label)}."

    def _useless(self, label: str) -> str:
        """Why more workers of a stage that computes are not advised."""
        # The system shares a core by workers: with more of them, a stage gets more of what others have now.
        quota = self.allowed.quota
        bounded = (quota is not None and quota <= self.cores) or self.rows[label].workers >= self.allowed.cores
        if self.period.others >= _OTHERS and not bounded:
            return "more workers would gain only what they take from other programs"
        return "more workers would not help"

    def _busy(self, tightest: Limit) -> str:
        row, stage = self.rows[tightest.label], self.stages[tightest.label]
        workers, working = row.workers, row.working
        others = ""
        if tightest.why == "shared":
            sharing = [self.rows[one.label] for one in self.sharing(stage.site)]
            workers = stage.site_workers
            working = min(sum(one.working * one.workers for one in sharing) / workers, 1.0)
            with_whom = [one.label for one in sharing if one is not row and one.working > _WORTH_NAMING]
            others = f", shared with {' and '.join(with_whom)}," if with_whom else ""
        who = f"its one worker{others} is" if workers == 1 else f"its {workers} workers{others} are"
        return (
            f"{tightest.label} limits: {who} at work {percent(working)} of the time, and the training loop waits "
            f"{self._waits} of its own.{_inside(row)}"
        )

    def _besides(self) -> str:
        """What is worth knowing whatever limits: samples that fail."""
        failed = self.period.of("errors")
        share = failed / max(failed + self.period.samples, 1.0)
        if share < _FAILING:
            return ""
        return (
            f" {percent(share)} of the samples fail and are left out, after taking their time: see loader.errors()."
        )

    def _told(self, limiting: str, advice: str, gain: float = 1.0) -> Diagnosis:
        period = self.period
        reuse = max(
            (period.reuse(stage.reservoir) for stage in self.stages.values() if stage.reservoir), default=1.0
        )
        ops = self.rows[limiting].ops if limiting in self.rows else ()
        slow = any(op.share >= _WORTH_NAMING for op in ops)
        return Diagnosis(
            limiting=limiting,
            wait_share=period.wait_share,
            advice=advice + self._besides(),
            expected_gain=gain,
            stages=tuple(self.rows.values()),
            loop_capacity=period.loop_capacity,
            samples_per_s=period.rate,
            samples=int(period.samples),
            seconds=period.running_s,
            reuse=reuse,
            limiting_op=max(ops, key=lambda op: op.share).op if slow else "",
            cores=self.cores,
            cores_used=period.cores_used,
            others=period.others,
        )


def _inside(row: StageDiagnosis) -> str:
    """How the ops of a stage share its time, unless one that the stage is called after takes all of it."""
    named = [op for op in sorted(row.ops, key=lambda op: -op.share) if op.share >= _WORTH_NAMING]
    if not named or [op.op for op in named] == [row.label]:
        return ""
    return f" Of the stage's time, {', '.join(f'{op.op} takes {percent(op.share)}' for op in named[:4])}."


def _enough(workers: int, gain: float) -> int:
    """As many workers as a gain takes, and more than there are; for its last few percent there is no other."""
    return max(ceil(workers * gain * 0.95), workers + 1)


def _more(gain: float) -> str:
    return f"about {_factor(gain)}"


def _factor(gain: float) -> str:
    return f"{percent(gain - 1)} more" if gain < 2 else f"{gain:.2g} times as much"
