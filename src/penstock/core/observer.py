"""What a loader counts for `stats()` and `diagnose()`: time, waits, samples, and snapshots of all counters.

Looking at the clocks costs more than handing over a batch, so it is done every 20 ms at the most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

from penstock.core.workers import LOCK
from penstock.lazy import named
from penstock.provenance import Place, weights
from penstock.stats.history import History, Snapshot
from penstock.stats.lock import LOCK_PROBE
from penstock.stats.watch import Clock

#: how often the clocks are looked at while batches are handed over
_LOOK_S = 0.02


class Observer:
    """Counts for one loader."""

    def __init__(self, engine: Any, report_s: float | None = None) -> None:
        self._engine = engine
        #: how often a line is logged while the loop waits, and when the next is due
        self._report_s = math.inf if report_s is None else report_s
        self._report_due = math.inf
        self._counters = engine.counters
        self._history = History()
        self._clock = Clock(self._counters, running=False)
        #: when the clocks are looked at next
        self.due = -math.inf
        #: what has been read and not handed over yet: samples, and the places of all of its chunk
        self.in_hand: tuple[list[Any], Sequence[Place]] = ([], ())

    def begin(self) -> None:
        """An iteration begins."""
        self._clock.stop()
        self._clock = Clock(self._counters)

    def end(self) -> None:
        """The iteration is over."""
        self._clock.stop()

    def look(self, stats: Callable[[], Mapping[str, float]]) -> None:
        """Look at the clocks, and keep a snapshot if it is time for one."""
        LOCK_PROBE.try_if_due(busy=True)  # workers have begun with what there is room for now
        self._clock.tick()
        now = self._clock.now
        if now >= self._history.due:
            self._history.add(Snapshot(now, stats()))
        if now >= self._report_due:
            self._report_due = now + self._report_s
            named("penstock.core.reporting:report")(self._engine.plan, *self.period(stats(), self._report_s))
        self.due = now + _LOOK_S

    def first_came(self, stats: Mapping[str, float], places: Sequence[Place]) -> None:
        """The first batch has come, with others in one chunk: a diagnosis begins here."""
        others = places[1:]
        samples, batches = stats["samples"] - weights(others), stats["batches"] - len(others)
        self._history = History()
        self._history.add(Snapshot(perf_counter(), {**stats, "samples": samples, "batches": batches}))
        self._report_due = perf_counter() + self._report_s
        self._clock.tick()
        self._counters.first_came()

    def put_down(self, samples: list[Any]) -> None:
        """The epoch is over: what was read and not handed over never will be."""
        if self.in_hand[0] is samples:  # and not those of a new iteration
            with LOCK:
                unread, unread_batches = self._unread
                self._counters.samples -= unread
                self._counters.batches -= unread_batches
                self.in_hand = [], ()

    @property
    def _unread(self) -> tuple[int, int]:
        """How many samples and batches have been counted in, but not handed over."""
        samples, places = self.in_hand
        left = len(samples)
        return weights(places[len(places) - left :]), left

    def stats(self, epoch: int, errors: int) -> dict[str, float]:
        """All counters, under the names of the page on stats."""
        counters = self._counters
        with LOCK:
            unread, unread_batches = self._unread
            running_s, cpu_s = self._clock.spent
            wait_s = counters.waited_s(perf_counter())
            startup_s = counters.startup_s
            if startup_s is None:
                startup_s, running_s, cpu_s, wait_s = running_s, 0.0, 0.0, 0.0
            out: dict[str, float] = {
                "samples": counters.samples - unread,
                "batches": counters.batches - unread_batches,
                "epoch": epoch,
                "startup_s": startup_s,
                "running_s": running_s,
                "wait_s": wait_s,
                "wait_share": min(wait_s / running_s, 1.0) if running_s > 0 else 0.0,
                "errors": errors,
            }
        stages: dict[str, float] = self._engine.stage_stats()
        return out | stages | {"cpu_s": cpu_s + stages["cpu_s"]}

    def period(self, stats: Mapping[str, float], last_s: float | None) -> tuple[Snapshot, Snapshot]:
        """The counters at the beginning of the last seconds (or of the run), and now."""
        now = Snapshot(perf_counter(), stats)
        before = self._history.since(-math.inf if last_s is None else now.now - last_s)
        return before or now, now
