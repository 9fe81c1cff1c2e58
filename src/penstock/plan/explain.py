"""A plan in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.plan.plan import Joined, Plan, Stage


class Explanation(str):
    """The report of `explain()`: text to print, and `to_dict()` for programs."""

    __slots__ = ("plan",)
    plan: Plan

    def __new__(cls, plan: Plan, notes: tuple[str, ...] = ()) -> Explanation:
        plan = replace(plan, notes=plan.notes + notes)
        self = super().__new__(cls, _text(plan))
        self.plan = plan
        return self

    def __repr__(self) -> str:
        return str(self)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data, for JSON."""
        return self.plan.to_dict()


def _text(plan: Plan) -> str:
    stages = plan.stages
    length = "length not known before the run"
    if plan.length is not None:
        length = f"{plan.length} per epoch" if isinstance(plan.length, int) else "endless"
    lines = [f"{len(stages)} stage{'s' if len(stages) > 1 else ''}, {length}"]
    for stage in stages:
        lines += _stage_lines(stage)
    lines += [f"note: {note}" for note in plan.notes]
    return "\n".join(lines)


def runs_on(stage: Stage) -> str:
    """The workers of a stage, in words."""
    cap = f", at most {stage.workers} at once" if stage.workers < stage.site.workers else ""
    return f"{stage.site}{cap}"


def _stage_lines(stage: Stage) -> list[str]:
    kept = f"{stage.bound_tickets} tickets"
    if stage.bound_samples is not None:
        kept = f"{stage.bound_samples} samples"
    elif stage.site.auto:
        kept = f"{stage.bound_tickets // stage.workers} tickets per worker"
    order = "" if stage.ordered else ", in the order of completion"
    lines = [f"stage {stage.number}: {stage.label}    {runs_on(stage)}, keeps up to {kept} ready{order}"]
    feed = stage.feed
    if isinstance(feed, Joined):
        inputs = ", ".join(f"stage {child.number}" for child in feed.children)
        lines.append(f"    from {inputs}" + (f" ({feed.composite.label})" if feed.composite is not None else ""))
    else:
        lines.append(f"    {feed.source.label}")
    for step in stage.all_steps():
        if step.added and not step.op.calls_user:
            continue  # the plan has put it there, and a reason says why
        lines.append(f"    {step.op.label}" + (f"    {step.op.where}" if step.op.where else ""))
    lines += [f"      · {reason}" for reason in stage.reasons]
    return lines
