"""A stage in the making: what it has so far, and whether an op can join it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from penstock.executors import find_executor
from penstock.ops.joint import Joint
from penstock.ops.op import Effect, Op, in_own_thread, joint_of
from penstock.plan.plan import Feed, Indexed, Joined, Site, Step, chain_before, straight_before


@dataclass
class Draft:
    """A stage in the making."""

    feed: Feed
    site: Site
    workers: int
    segment: str
    steps: list[Step] = field(default_factory=list)
    unit: int = 1
    batched: str = ""
    interleave: int = 1
    ready: int | None = None
    strict: bool = False
    block_read: bool = False
    hopeful: bool = False
    #: the step that keeps what the steps before it have made, sample by sample
    cached: Step | None = None
    #: how many samples are drawn ahead, if the stage only draws and passes them on
    ahead: int | None = None
    reasons: list[str] = field(default_factory=list)

    @property
    def ordered(self) -> bool:
        return all(step.op.delivery.ordered for step in self.steps)


def begins_anew(draft: Draft, op: Op[Any, Any]) -> bool:
    """Whether `op` needs a `Renumber` before it, so that samples before it are owed one by one, by their places.

    So it is where outputs alternate, and where an op that does not keep the order takes single outputs of a sample.
    """
    delivery = op.delivery
    if joint_of(op) is not None or (delivery.ready is not None and op.effect is Effect.PASSES):
        return False
    if draft.interleave > 1:
        return True
    return (not delivery.ordered or delivery.interleave > 1) and expanded(draft) > 0


def expanded(draft: Draft) -> int:
    """How many ops since the source or joint make several samples of one."""
    before = straight_before(draft.feed)
    return (0 if before is None else before.depth) + sum(step.op.effect is Effect.EXPANDS for step in draft.steps)


def remember(draft: Draft, step: Step) -> None:
    """Put a cache that keeps single samples into the stage that makes them."""
    draft.cached = step
    draft.steps.append(step)
    draft.reasons.append(
        f"{step.op.label} keeps single samples: what comes before runs once per sample of the source"
    )


def batched_in_worker(draft: Draft, step: Step, joint: Joint, segment: str) -> Draft:
    """`draft` with its batches made where the samples are, and tickets of whole batches."""
    feed = draft.feed
    chain = chain_before(feed) or []
    if chain:
        draft.feed = Joined((chain[0].batched_later(segment),))
    else:
        draft.batched = segment
    draft.segment = segment
    draft.unit = joint.group_size
    draft.block_read = (
        not draft.steps
        and joint.one_read
        and isinstance(feed, Indexed)
        and feed.source.reads_batches
        and not (find_executor(draft.site.kind).remote and feed.source.stays)
    )
    draft.hopeful = any(one.op.calls_user for steps in (draft.steps, *(s.steps for s in chain)) for one in steps)
    draft.steps.append(step)
    how = "as one read of the source" if draft.block_read else "where the samples are"
    reason = f"{step.op.label} is made by the worker, {how}"
    if draft.hopeful:
        reason += "; should a function skip a sample, batches are cut in the order of delivery from there on"
    draft.reasons.append(reason)
    return draft


def why_not_fused(draft: Draft, op: Op[Any, Any], place: tuple[Site, int]) -> str | None:
    if place[0] is not draft.site:
        if op.placement is not None:
            return f"{op.label} has a place of its own"
        if in_own_thread(op):
            return f"{op.label} has a thread of its own, and ops after it ride there"
        return f"{op.label} is an async def" if op.asynchronous else f"{op.label} would block the event loop"
    if place[1] != draft.workers:
        return f"{op.label} has a number of workers of its own"
    if op.delivery.interleave > 1 and draft.steps:
        return f"{op.label} alternates between its inputs, which an op before it might drop"
    if draft.interleave > 1:
        return f"the samples alternate before they reach {op.label}"
    return None
