"""The stages of a plan, as a diagnosis sees them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.observer import Observer
from penstock.errors import PlanError
from penstock.executors.executor import worker_count
from penstock.plan.plan import Joined, Plan, Stage, Streamed
from penstock.stats.diagnose import Part, diagnose
from penstock.stats.report import Diagnosis

__all__ = ["diagnosis", "parts_of"]


def diagnosis(plan: Plan, observer: Observer, stats: dict[str, float], last_s: float | None) -> Diagnosis:
    """What `Loader.diagnose` says: about the whole run, or its last seconds."""
    if last_s is not None and (isinstance(last_s, (bool, str)) or not last_s > 0):
        raise PlanError(f"diagnose(last_s=) takes a positive number of seconds, got {last_s!r}")
    before, now = observer.period(stats, last_s)
    return diagnose(parts_of(plan), before, now, worker_count("auto"))


def parts_of(plan: Plan) -> list[Part]:
    """One part per stage, sources first."""
    return list(_parts(plan.root, "", ""))


def _parts(stage: Stage, reservoir: str, feeder: str) -> Iterator[Part]:
    feed, site = stage.feed, stage.site
    for child in feed.children:
        if stage.joint_op is not None and stage.joint_op.decouples and isinstance(feed, Joined) and feed.step:
            yield from _parts(child, feed.step.key, child.label)
        else:
            yield from _parts(child, reservoir, feeder)
    yield Part(
        label=stage.label,
        kind=site.kind,
        site=site.number,
        site_workers=site.workers,
        pooled=site.pool is not None,
        ordered=stage.ordered,
        stream=feed.source.label if isinstance(feed, Streamed) else "",
        reservoir=reservoir,
        feeder=feeder,
    )
