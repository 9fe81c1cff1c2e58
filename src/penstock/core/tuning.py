"""How many workers a place with ``workers="auto"`` gets, found while it runs. `Tuner` decides, and is pure.

All such places begin with one worker. The tuner looks at windows of a quarter of a second or more: how fast samples
were made, how many workers were busy on average, what CPU time that took, how long the training loop waited. While
the loop waits, every place gets the number of workers that were busy on average, times one factor: the slowest
stage grows most, and stages that wait for others hardly at all. If the rate does not follow, the step is taken back
and a smaller one tried. The search ends when the loop does not wait, the CPU budget is used up, or no step pays. It
keeps the fewest workers that were within 5 % of the best rate.

A busy worker counts against the CPU budget with the share of its time that it would compute if a CPU were always
free. By CPU time alone, workers that wait for a CPU on a busy machine would seem to sleep, and more would be added
for which there are no CPUs.

The budget may leave less than one CPU unused, too little for another worker that computes all the time. If the
budget is all CPUs of the machine, the slowest stage still gets that worker, provided the rate rises: the operating
system keeps the use within the budget. With a smaller budget the stage does not get it, as nothing would keep the
worker from using a whole CPU.

After that the numbers stay, unless the loop waits again and the rate has fallen for several windows in a row. Each
new search waits twice as long for that as the one before, so the numbers do not go up and down for ever.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from penstock.machine import usable_cpus
from penstock.ops.call import CallOp
from penstock.plan.code import call_of
from penstock.plan.plan import Stage
from penstock.stats.counters import StageCounters

#: a window is at least as long; it ends without the samples it should have seen after the longest time
_WINDOW_S, _LONGEST_S = 0.25, 2.0
#: the same for windows before and after a worker is added for a part of which there are CPUs: that gains little
_WEIGHING_S = 1.0
#: samples that make a window worth judging
_ENOUGH = 16
#: after a change, new workers get so long to come before a window begins
_COMING_S = 2.0
#: the factor of the first step; a step that did not pay is tried again with its square root, down to the last
_FIRST_STEP, _LAST_STEP = 4.0, 1.3
#: a step pays if at least this share of what it adds arrives
_PAYS = 0.2
#: the budget has room for a part of a worker if it is so many times what the stages need
_LEFT = 1.02
#: a place limits the others if its workers are busy for this share of the time
_LIMITS = 0.8
#: rates that differ by less are the same
_CLOSE = 0.95
#: the loop waits if it does so for more than this share of the time
_WAITS = 0.03
#: after the search: a share of waiting, and a rate below that share of the one found, for which it begins anew
_WAITS_AGAIN, _SLOWER = 0.1, 0.7
_WINDOWS_AGAIN = 8
#: workers that stay when the loop does not wait, for each that was busy on average
_SPARE = 1.5

#: a share of the CPUs they need for which the stages wait, from which on that is worth a word
_DELAYED = 0.1

#: why the search has ended
_IDLE = "the training loop does not wait"
_NO_FASTER = "more workers made it no faster"
_NO_MORE = "there may not be more workers"
_OTHERS = "a stage whose number is given limits it"


class Seen(NamedTuple):
    """Counters of a running loader at one moment."""

    now: float
    #: samples that the stage which makes most of them has made
    made: float
    #: seconds that workers were busy: of each place that is tuned, then of each stage whose number is given
    busy_s: tuple[float, ...]
    #: the shares of that time that they would be on a CPU if one were always free
    computing: tuple[float, ...]
    #: CPU seconds of each of them
    cpu_s: tuple[float, ...]
    #: seconds that the training loop waited
    wait_s: float
    #: all workers that were asked for are here
    complete: bool = True
    #: worker processes that have not finished their first ticket are starting: they are busy, but not with samples
    starting: bool = False
    #: the training loop has had its first batch: what it waited before is not counted any more
    begun: bool = True


class Tuner:
    """Finds the number of workers of each place, from one look to the next.

    >>> tuner = Tuner([256], cpus=2)
    >>> tuner.look(Seen(0.0, 0, (0.0,), (0.0,), (0.0,), 0.0))
    False
    >>> tuner.look(Seen(0.5, 50, (0.5,), (0.0,), (0.0,), 0.45))      # one worker, always asleep; the loop waits
    True
    >>> tuner.workers
    [5]
    """

    def __init__(self, most: Sequence[int], cpus: float, whole: bool = False) -> None:
        self._most = list(most)
        self._cpus = cpus
        #: the budget is all CPUs of the machine
        self._whole = whole
        #: how many workers each place has now
        self.workers = [1] * len(self._most)
        #: why the search has ended; nothing while it goes on
        self.settled = ""
        self._began: Seen | None = None
        self._changed_at = -math.inf
        self._patience = _WINDOWS_AGAIN
        self._begin_search()

    def _begin_search(self) -> None:
        self.settled = ""
        self._step = _FIRST_STEP
        #: rates found in this search, with the workers that made them; the last is from before the step under way
        self._tried: list[tuple[float, list[int]]] = []
        self._stepped = False
        #: a worker was added, or is about to be, for a part of which there are CPUs
        self._weighing = False
        #: the rate at the end of the search, and windows since then in which more was needed
        self._rate = 0.0
        self._needy = 0

    def look(self, seen: Seen) -> bool:
        """Whether `workers` has changed."""
        began = self._began
        coming = not seen.complete and seen.now - self._changed_at < _COMING_S
        if began is None or coming or not _comparable(began, seen):
            self._began = seen
            return False
        passed, made = seen.now - began.now, seen.made - began.made
        enough = max(_ENOUGH, 2 * max(self.workers))
        if passed < (_WEIGHING_S if self._weighing else _WINDOW_S) or (made < enough and passed < _LONGEST_S):
            return False
        old = list(self.workers)
        (self._keep if self.settled else self._search)(_window(began, seen))
        changed = self.workers != old
        self._began = None if changed else seen
        if changed:
            self._changed_at = seen.now
        return changed

    def _search(self, window: _Window) -> None:
        if self._stepped and window.rate < self._tried[-1][0] * (1 + _PAYS * (self._step - 1)):
            self._step_back(window)
            return
        self._stepped = False
        self._tried.append((window.rate, list(self.workers)))
        if window.waits < _WAITS:
            needed = [max(1, math.ceil(_SPARE * place.busy)) for place in window.places]
            self.workers = list(map(min, self.workers, needed))
            self._settle(window.rate, _IDLE)
            return
        step = min(self._step, self._cpus / window.demand if window.demand > 0 else math.inf)
        one_more = self._one_more(window, step)
        if one_more is not None and not self._weighing:
            self._weighing = True
            self._tried.pop()  # it is measured again, for longer
            return
        if one_more is None and step < 1.1:
            self._settle_on_best(_used_up(window, self._cpus))
            fitting = partial(_fitting, step, self._whole)
            self.workers = list(map(fitting, self.workers, window.places))
            return
        wanted = one_more or self._wanted(window, step)
        if wanted == self.workers:
            full = any(one == most for one, most in zip(self.workers, self._most, strict=True))
            at_rest = _OTHERS if len(window.places) > len(self.workers) else _NO_FASTER
            used_up = _used_up(window, self._cpus) if step < self._step else at_rest
            self._settle_on_best(_NO_MORE if full else used_up)
            return
        self._step, self._stepped = step, True
        self.workers = wanted

    def _wanted(self, window: _Window, step: float) -> list[int]:
        return list(map(partial(_wanted, step), self.workers, self._most, window.places))

    def _one_more(self, window: _Window, step: float) -> list[int] | None:
        """The workers with one more in the slowest stage, if the budget has room for a part of it only."""
        if not self._whole or not _LEFT <= step < self._step or self._wanted(window, step) != self.workers:
            return None
        # Of the places, those that are tuned come first. Not only the slowest may be busy all the time: others wait
        # for a CPU.
        shares = [place.cpu / count for place, count in zip(window.places, self.workers, strict=False)]
        slowest = max(range(len(shares)), key=shares.__getitem__)
        place, count = window.places[slowest], self.workers[slowest]
        if count >= self._most[slowest] or place.busy < _LIMITS * count or not place.computes:
            return None
        return [count + (number == slowest) for number, count in enumerate(self.workers)]

    def _step_back(self, window: _Window) -> None:
        """The step has not paid: try a smaller one from where it began, or end the search."""
        before = self._tried[-1]
        self._tried.insert(-1, (window.rate, list(self.workers)))
        self.workers = list(before[1])
        self._stepped = False
        self._step = math.sqrt(self._step)
        if self._step < _LAST_STEP:
            self._settle_on_best(_NO_FASTER)
        else:
            self._tried.pop()  # it is measured again, before the next step

    def _settle_on_best(self, why: str) -> None:
        best = max(rate for rate, _ in self._tried)
        rate, workers = min((one for one in self._tried if one[0] >= _CLOSE * best), key=lambda one: sum(one[1]))
        self.workers = list(workers)
        self._settle(rate, why)

    def _settle(self, rate: float, why: str) -> None:
        self.settled, self._rate, self._needy = why, rate, 0

    def _keep(self, window: _Window) -> None:
        """The search is over: look whether the numbers still fit."""
        slower = window.rate < _SLOWER * self._rate or self.settled == _IDLE
        self._needy = self._needy + 1 if window.waits > _WAITS_AGAIN and slower else 0
        if self._needy >= self._patience:
            self._patience *= 2
            self._begin_search()


class _Place(NamedTuple):
    """How many workers of a place were busy on average, the share of that in which they needed a CPU, CPUs used."""

    busy: float
    computing: float
    cpu: float

    @property
    def computes(self) -> bool:
        return self.computing > 0.5

    @property
    def demand(self) -> float:
        """CPUs that its workers used, or would have used had they been free."""
        # Libraries may start threads in a worker, so that it uses more CPUs than one.
        return max(self.cpu, self.busy * self.computing)


class _Window(NamedTuple):
    """What was seen between two looks, per second."""

    rate: float
    #: those that are tuned, then the stages whose number is given
    places: Sequence[_Place]
    waits: float

    @property
    def cpu(self) -> float:
        return sum(place.cpu for place in self.places)

    @property
    def demand(self) -> float:
        """CPUs that the stages would use if so many were free."""
        # A stage that is not the slowest has time to wait for a CPU: with more CPUs it would wait less and use no
        # more, unless the slowest became faster. So the stage that computes most speaks for all.
        most = max(self.places, key=lambda place: place.cpu)
        delay = most.demand / most.cpu if most.cpu > 0 else math.inf
        return min(sum(place.demand for place in self.places), delay * self.cpu if self.cpu > 0 else math.inf)


def _comparable(began: Seen, seen: Seen) -> bool:
    """Whether the counters of two looks can be compared: the loop was not away between, and did not begin there."""
    away = seen.now - began.now > 4 * _LONGEST_S
    starting = began.starting or seen.starting
    return not away and not starting and seen.begun == began.begun and seen.wait_s >= began.wait_s


def _window(began: Seen, seen: Seen) -> _Window:
    passed = seen.now - began.now
    busy, cpu = (
        [(one - before) / passed for one, before in zip(after, earlier, strict=True)]
        for after, earlier in ((seen.busy_s, began.busy_s), (seen.cpu_s, began.cpu_s))
    )
    return _Window(
        (seen.made - began.made) / passed,
        list(map(_Place, busy, seen.computing, cpu)),
        (seen.wait_s - began.wait_s) / passed,
    )


def _wanted(step: float, workers: int, most: int, place: _Place) -> int:
    """Workers for a rate that is `step` times as high. Where they compute, not one more than fits the budget."""
    needed = math.floor(step * place.busy + 0.1) if place.computes else math.ceil(step * place.busy * 1.1)
    return min(max(workers, needed), most)


def _fitting(step: float, whole: bool, workers: int, place: _Place) -> int:
    """Workers that a place keeps where the stages need 1 / `step` times the CPU budget; at least one."""
    if not place.computes or step >= 1:
        return workers
    needed = math.ceil(step * place.busy - 0.05) if whole else round(step * place.busy)
    return min(workers, max(1, needed))


def _used_up(window: _Window, cpus: float) -> str:
    """Why the budget allows no more workers."""
    delayed = window.demand - window.cpu
    waiting = f" and wait for {delayed:.1f} more" if delayed >= _DELAYED * window.demand else ""
    return f"the stages use {window.cpu:.1f} of {cpus:g} CPUs{waiting}"


def _computing(group: Sequence[StageCounters]) -> float:
    """The share of the time at work of stages that share workers in which these needed a CPU."""
    working_s = sum(one.working_s for one in group)
    return sum(one.working_s * one.computing for one in group) / working_s if working_s > 0 else 0.0


def _has_unborn(crew: Any) -> bool:
    """Whether a worker process of the crew has not answered yet: its start takes CPUs from the others."""
    fronts = [getattr(worker, "front", None) for worker in crew.workers]
    return any(front is not None and not front.answered for front in fronts)


class Tuning:
    """A tuner at work in an engine: reads the counters of its lanes and sets their workers. Under the lock."""

    def __init__(self, engine: Any, cpus: float) -> None:
        self._engine = engine
        self._cpus = cpus
        #: when to look next
        self.due = -math.inf
        self._crews: list[Any] = []
        self._tuner: Tuner | None = None

    def begin(self) -> bool:
        """A plan is taken over: tune its places, known ones from where they stand. False if it has none."""
        found = [crew for crew in self._engine.crews.values() if crew.auto]
        if found != self._crews:
            self._crews = found
            self._tuner = self._new_tuner() if found else None
        for crew in found:
            self._resize(crew, crew.size)
        return self._tuner is not None

    def _new_tuner(self) -> Tuner:
        return Tuner([crew.most for crew in self._crews], self._cpus, whole=self._cpus >= usable_cpus())

    def look(self, now: float) -> None:
        """Look at the counters, and change the number of workers if that promises more."""
        self.due = now + _WINDOW_S / 4
        tuner = self._tuner
        if tuner is not None and tuner.look(self._seen(now)):
            for crew, workers in zip(self._crews, tuner.workers, strict=True):
                if crew.size != workers:
                    self._resize(crew, workers)

    def _resize(self, crew: Any, workers: int) -> None:
        for lane in self._lanes(crew):
            lane.resize(workers)
        crew.resize(workers)

    def _lanes(self, crew: Any) -> list[Any]:
        return [lane for lane in self._engine.lanes.values() if lane.crew is crew]

    def _seen(self, now: float) -> Seen:
        engine = self._engine
        lanes = list(engine.lanes.values())
        groups = [self._lanes(crew) for crew in self._crews]
        groups += [[lane] for lane in lanes if not lane.crew.auto]
        counters = [[lane.counters for lane in group] for group in groups]
        return Seen(
            now,
            max(lane.counters.samples for lane in lanes),
            tuple(sum(one.working_s for one in group) for group in counters),
            tuple(map(_computing, counters)),
            tuple(sum(one.cpu_s for one in group) for group in counters),
            engine.counters.waited_s(now),
            all(crew.settled for crew in self._crews),
            # The first ticket of a stage is always timed.
            any(lane.remote and not lane.counters.timed_s for lane in lanes) or any(map(_has_unborn, self._crews)),
            engine.counters.startup_s is not None,
        )

    @property
    def notes(self) -> list[str]:
        """The numbers that were found, and why they stay as they are."""
        if self._tuner is None:
            return []
        why = self._tuner.settled
        told = f"has found these numbers ({why})" if why else "is still looking; its numbers now"
        return [as_note(told, {self._lanes(crew)[0].stage: crew.size for crew in self._crews})]


def as_note(told: str, found: Mapping[Stage, int]) -> str:
    """The note on the numbers of workers that stages have."""
    return "\n    ".join([f"workers='auto' {told}, as code:", *(as_code(*one) for one in found.items())])


def as_code(stage: Stage, workers: int) -> str:
    """The call that gives a stage this number of workers: that of its placed op, or ``loader()`` if none is."""
    op = next((step.op for step in stage.all_steps() if step.op.placement is not None), None)
    if op is None:
        kind = "" if stage.site.kind == "thread" else f'on="{stage.site.kind}", '
        return f".loader({kind}workers={workers})"
    if not isinstance(op, CallOp):
        return f"# {op.full_label}: workers={workers}"
    at = f"    # {op.where}" if op.where else ""
    return f"{call_of(op, workers=workers)}{at}"
