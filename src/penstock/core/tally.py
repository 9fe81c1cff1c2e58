"""What stages and joints have counted, under the names that ``loader.stats()`` gives it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.core.budget import Budget
from penstock.core.lane import Lane
from penstock.core.memos import Memos
from penstock.plan.plan import Indexed, Joined, Plan, Stage
from penstock.program.desk import READING
from penstock.stats.counters import SUMMED

if TYPE_CHECKING:
    from penstock.memory.block import Blocks


def lane_tally(lanes: Iterable[Lane]) -> dict[str, float]:
    """The counters of all stages. Those of a plan that was made again add up."""
    out: dict[str, float] = {}
    for lane in lanes:
        name = f"stage.{lane.stage.label}"
        for key in SUMMED:
            out[f"{name}.{key}"] = out.get(f"{name}.{key}", 0) + getattr(lane.counters, key)
        titles = op_titles(lane.stage)
        for number, times in lane.counters.ops.items():
            if number in titles:
                out |= {f"{name}.op.{titles[number]}.{key}": value for key, value in times.figures().items()}
        out[f"{name}.occupancy"] = lane.counters.occupancy
        out[f"{name}.fill"] = lane.fill
        out[f"{name}.workers"] = min(lane.cap, lane.crew.size)
        for step in lane.stage.steps:
            if step.op.moves is not None:
                out |= {f"{step.key}.{key}": value for key, value in step.op.moves.stats().items()}
        if hasattr(lane.program.store, "stats"):  # a cache in a folder; one store for all plans of a loader
            step = lane.stage.steps[lane.stage.cache_step or 0]
            out |= {f"{step.key}.{key}": value for key, value in lane.program.store.stats().items()}
    return out


def op_titles(stage: Stage) -> dict[int, str]:
    """What the ops of a stage are called in counters, by their numbers; its source is the first."""
    titles = {READING: stage.feed.source.verb} if isinstance(stage.feed, Indexed) else {}
    for step in stage.steps:
        title, number = step.op.title, 2
        while title in titles.values():
            title, number = f"{step.op.title}#{number}", number + 1
        titles[step.number] = title
    return titles


def memory_tally(budget: Budget, blocks: Blocks | None) -> dict[str, float]:
    """What `memory=` counts, and what blocks take."""
    return {
        "memory.bytes": budget.used,
        "memory.allowed_bytes": budget.allowed or 0,
        "memory.blocks_bytes": 0 if blocks is None else blocks.nbytes,
        "memory.blocks_peak_bytes": 0 if blocks is None else blocks.peak_bytes,
    }


def joint_tally(plan: Plan, memos: Memos) -> dict[str, float]:
    """What ops and composites count at their joints, by the memory that each has."""
    out: dict[str, float] = {}
    for stage in plan.stages:
        for name, value in _at_joint(stage, memos).items():
            out[name] = out.get(name, 0) + value
    return out


def _at_joint(stage: Stage, memos: Memos) -> dict[str, float]:
    feed = stage.feed
    if not isinstance(feed, Joined):
        return {}
    if feed.step is not None:
        found, name = memos.of(feed.step.op, feed.step.number).stats(), feed.step.key
    elif feed.composite is not None:
        found, name = memos.of(feed.composite, feed.key).stats(), feed.composite.verb
    else:
        return {}
    return {f"{name}.{key}": value for key, value in found.items()}
