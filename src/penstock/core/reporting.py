"""From the counters of a loader to its diagnosis, and to the line of ``loader(report_s=)``.

Imported when one is asked for: most runs never are.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping

from penstock.core.observer import Observer
from penstock.core.stage_facts import facts_of
from penstock.errors import PlanError
from penstock.machine import cpu_quota, cpus
from penstock.plan.plan import Plan
from penstock.stats.diagnose import diagnose
from penstock.stats.facts import Limits
from penstock.stats.history import Snapshot
from penstock.stats.report import Diagnosis, percent

#: a loop that waits less is not worth a line
_WORTH_A_LINE = 0.05


def diagnosis(plan: Plan, observer: Observer, stats: dict[str, float], last_s: float | None) -> Diagnosis:
    """What `Loader.diagnose` says: about the whole run, or its last seconds."""
    if last_s is not None and (isinstance(last_s, (bool, str)) or not last_s > 0):
        raise PlanError(f"diagnose(last_s=) takes a positive number of seconds, got {last_s!r}")
    return diagnosed(plan, *observer.period(stats, last_s))


def diagnosed(plan: Plan, before: Snapshot, now: Snapshot) -> Diagnosis:
    """What limited a loader between two snapshots of its counters."""
    return diagnose(facts_of(plan), before, now, limits(now.stats))


def limits(stats: Mapping[str, float]) -> Limits:
    """What the machine and the user allow."""
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    memory = int(stats.get("memory.allowed_bytes", 0)) or None
    return Limits(len(cpus()), cpu_quota(), gil, memory)


def report(plan: Plan, before: Snapshot, now: Snapshot) -> None:
    """Log one line if the training loop has waited."""
    found = diagnosed(plan, before, now)
    if found.wait_share >= _WORTH_A_LINE:
        logging.getLogger("penstock").warning(
            "epoch %d, batch %d: the training loop waited %s of the last %.3g s for data. %s",
            now.stats["epoch"],
            now.stats["batches"],
            percent(found.wait_share),
            found.seconds,
            found.advice,
        )
