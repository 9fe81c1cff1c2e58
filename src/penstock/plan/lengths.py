"""How many samples an epoch of a pipeline has, as far as that can be known before the run. Pure."""

from __future__ import annotations

import math
import sys

from penstock.errors import LengthUnknown, PlanError
from penstock.ops.joint import Length
from penstock.ops.op import Effect, unknown
from penstock.plan.world import dealt, world_now
from penstock.sources.source import Composite, Flow


def flow_length(flow: Flow) -> Length:
    """How many samples one epoch delivers, as far as it can be known before the run."""
    return lengths(flow)[-1]


def lengths(flow: Flow) -> list[Length]:
    """How many samples reach each op in one epoch, and how many leave the last."""
    source = flow.source
    if isinstance(source, Composite):
        lengths = [source.combined_length([flow_length(part) for _, part in source.parts])]
    else:
        lengths = [source.length()]
    for op in flow.ops:
        length = op.length(lengths[-1])
        if length is not None and sys.maxsize < length < math.inf:
            raise PlanError(
                f"{op.label} makes {length} samples of {lengths[-1]}, more than can be counted; "
                "use a smaller number, or repeat() without one to go on for ever"
            )
        varies = op.effect in (Effect.SELECTS, Effect.EXPANDS) or op.may_skip
        lengths.append(unknown(length) if varies else length)
    return lengths


def check_ends(flow: Flow, what: str) -> None:
    """Refuse a pipeline that `what` would read for ever."""
    if flow_length(flow) == math.inf:
        raise PlanError(
            f"{what} reads one epoch, and that of this pipeline is endless; give repeat() a number, or use take(n)"
        )


def known_length(flow: Flow) -> int:
    """The number of samples or batches per epoch; an error that says why where it is not known."""
    length = flow_length(dealt(flow, world_now()))
    if length == math.inf:
        raise LengthUnknown("the pipeline is endless, so it has no length; give repeat() a number, or use take(n)")
    if length is None:
        culprit = next(
            (op.label for op in flow.ops if op.may_skip or op.effect in (Effect.SELECTS, Effect.EXPANDS)),
            flow.source.label,
        )
        raise LengthUnknown(f"the length is not known before the run, because of {culprit}")
    return int(length)
