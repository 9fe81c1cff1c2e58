"""What `explain()` says of how samples are read, dealt to ranks and drawn. Pure."""

from __future__ import annotations

from typing import Any

from penstock.memory import SHARED_BYTES
from penstock.ops.joint import Length
from penstock.ops.op import Op
from penstock.plan.plan import Stage
from penstock.sources.source import IndexedSource


def how_drawn(op: Op[Any, Any], length: Length, stage: Stage) -> list[str]:
    """What is to be known of an op that is there to have samples at hand."""
    reasons = [
        f"{op.label} has a thread of its own, so that no draw waits for the workers of stage {stage.number}",
        f"samples come as the workers of stage {stage.number} finish them, and are drawn at random; "
        "what was served before is served again only when the training loop would wait",
        "which samples come depends on who is faster: not the same for every layout, nor exact after a resume",
    ]
    if op.length(length) is None:
        reasons.append("how many draws an epoch has is not known yet, so the first pass serves every sample once")
    return reasons


def how_read(source: IndexedSource, remote: bool) -> list[str]:
    """How samples get from an indexed source to the workers."""
    if not remote:
        return ["workers read their own samples; only positions reach them"]
    if source.stays:
        return [f"{source.stays}, is read here; its items travel with the tickets"]
    reasons = ["worker processes read their own samples; only positions reach them"]
    if source.heap_bytes >= SHARED_BYTES:
        size = f"{source.heap_bytes / 1e6:,.0f} MB"
        reasons.append(f"{size} of arrays are copied into shared memory once; all processes look at that")
    return reasons


def how_dealt(portion: Any) -> str:
    """Which positions this rank gets."""
    if portion.world == 1:
        return "there is one rank, which gets all positions"
    what = "sample" if portion.block == 1 else f"block of {portion.block}"
    rest = {"drop": "; a last round that is not full is dropped", False: ""}.get(
        portion.equal, "; the last round is filled up with the first samples"
    )
    return f"rank {portion.rank} gets every {portion.world}th {what} of the epoch{rest}; no other position is read"
