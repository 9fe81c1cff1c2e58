"""What a pipeline with a cache in a folder is told when it is written, and what it says of that folder."""

from __future__ import annotations

from collections.abc import Iterable
from glob import escape, glob
from os import path
from typing import Any

from penstock.errors import PlanError
from penstock.lazy import named
from penstock.ops.cache import WHOLE_EPOCHS
from penstock.ops.op import Op
from penstock.plan.plan import Stage, Step
from penstock.plan.positions import on_positions
from penstock.plan.world import ALONE, dealt
from penstock.sources.source import Flow


def check_single_samples(flow: Flow, op: Op[Any, Any]) -> None:
    """Refuse a cache in a folder where it could not keep samples one by one."""
    flow = dealt(flow, ALONE)
    found = on_positions(flow, [Step(one, number, "") for number, one in enumerate(flow.ops)])
    if found.cache is None or found.cache.op is not op:
        raise PlanError(WHOLE_EPOCHS.format(label=op.label))


def folder_notes(stages: Iterable[Stage], seed: int | None = None) -> tuple[str, ...]:
    """For each stage with a cache in a folder: which folder and key it has, and how much is there.

    A pipeline has no seed yet, so it says all that is there of any seed.
    """
    return tuple(note for stage in stages if (note := _note(stage, seed)))


def _note(stage: Stage, seed: int | None) -> str:
    op: Any = None if stage.cache_step is None else stage.steps[stage.cache_step].op
    if op is None or op.path is None:
        return ""
    key, about = named("penstock.program.cache_key:cache_key")(stage, seed, op.version)
    segments = named("penstock.disk.folder:segments")
    any_seed = "seed" in about and seed is None
    folders = glob(path.join(escape(op.path), f"{key}-seed*")) if any_seed else [path.join(op.path, key)]
    nbytes = sum(size for folder in folders for _, size in segments(folder))
    where = path.join(op.path, f"{key}-seed<seed>" if any_seed else key)
    room = "" if op.max_bytes is None else f", at most {_size(op.max_bytes)} in all of {op.path}"
    return f"{op.label} keeps its samples in {where}: {_size(nbytes)} so far{room}"


def _size(nbytes: float) -> str:
    for unit in ("bytes", "KB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:,.1f} GB"
