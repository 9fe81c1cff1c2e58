"""What stages and joints have counted, under the names that ``loader.stats()`` gives it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.core.budget import Budget
from penstock.core.lane import Lane
from penstock.plan.plan import Joined, Plan, Stage

if TYPE_CHECKING:
    from penstock.memory.block import Blocks

__all__ = ["joint_tally", "lane_tally", "memory_tally"]

_SUMS = ("working_s", "cpu_s", "reading_s", "waiting_input_s", "waiting_room_s", "samples")


def lane_tally(lanes: Iterable[Lane]) -> dict[str, float]:
    """The counters of all stages. Those of a plan that was made again add up."""
    out: dict[str, float] = {}
    for lane in lanes:
        name = f"stage.{lane.stage.label}"
        for key in _SUMS:
            out[f"{name}.{key}"] = out.get(f"{name}.{key}", 0) + getattr(lane.counters, key)
        out[f"{name}.occupancy"] = lane.counters.occupancy
        out[f"{name}.fill"] = lane.fill
        out[f"{name}.workers"] = min(lane.cap, lane.crew.size)
        for step in lane.stage.steps:
            out |= {f"{step.key}.{key}": value for key, value in step.op.counted().items()}
        if hasattr(lane.program.store, "stats"):  # a cache in a folder; one store for all plans of a loader
            step = lane.stage.steps[lane.stage.cache_step or 0]
            out |= {f"{step.key}.{key}": value for key, value in lane.program.store.stats().items()}
    return out


def memory_tally(budget: Budget, blocks: Blocks | None) -> dict[str, float]:
    """What `memory=` counts, and what blocks take."""
    return {
        "memory.bytes": budget.used,
        "memory.blocks_bytes": 0 if blocks is None else blocks.nbytes,
        "memory.blocks_peak_bytes": 0 if blocks is None else blocks.peak_bytes,
    }


def joint_tally(plan: Plan, memos: Mapping[Any, dict[str, Any]]) -> dict[str, float]:
    """What ops and composites count at their joints, by the memory that each has."""
    out: dict[str, float] = {}
    for stage in plan.stages:
        for name, value in _at_joint(stage, memos).items():
            out[name] = out.get(name, 0) + value
    return out


def _at_joint(stage: Stage, memos: Mapping[Any, dict[str, Any]]) -> dict[str, float]:
    feed = stage.feed
    if not isinstance(feed, Joined):
        return {}
    if feed.step is not None:
        found, name = feed.step.op.stats(memos.get(feed.step.number, {})), feed.step.key
    elif feed.composite is not None:
        found, name = feed.composite.stats(memos.get(feed.key, {})), feed.composite.verb
    else:
        return {}
    return {f"{name}.{key}": value for key, value in found.items()}
