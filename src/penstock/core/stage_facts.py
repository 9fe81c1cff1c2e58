"""The stages of a plan, as a diagnosis sees them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.tally import op_titles
from penstock.plan.plan import Joined, Plan, Stage, Streamed
from penstock.stats.facts import StageFacts

#: of a stage that begins with to(), which has one thread
_MOVES = (
    "One thread moves batches to the device and runs the ops behind to(): put what it need not do before "
    "to(), with workers, or move fewer bytes (uint8 instead of float32)."
)


def facts_of(plan: Plan) -> list[StageFacts]:
    """One for each stage, sources first."""
    return list(_facts(plan.root, "", ""))


def _facts(stage: Stage, reservoir: str, feeder: str) -> Iterator[StageFacts]:
    feed, site = stage.feed, stage.site
    for child in feed.children:
        if stage.draws and isinstance(feed, Joined) and feed.step:
            yield from _facts(child, feed.step.key, child.label)
        else:
            yield from _facts(child, reservoir, feeder)
    yield StageFacts(
        label=stage.label,
        kind=site.kind,
        site=site.number,
        site_workers=site.workers,
        pooled=site.pool is not None,
        ordered=stage.ordered,
        stream=feed.source.label if isinstance(feed, Streamed) else "",
        reservoir=reservoir,
        feeder=feeder,
        ops=tuple(op_titles(stage).values()),
        last_op=next((step.op.label for step in reversed(stage.steps) if step.op.label), stage.label),
        ready=stage.bound_samples or stage.bound_tickets,
        alone=_MOVES if any(step.op.moves is not None for step in stage.steps) else "",
    )
