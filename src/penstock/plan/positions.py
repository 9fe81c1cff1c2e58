"""Which ops work on positions alone: the first rule of a plan, and the same for every layout.

Over an indexed source an op such as shuffle need not touch samples: it changes which index is read
at which position, and that can be computed by whoever reads. So it is moved to the source, past ops
that treat every sample by itself. Where ops run has no say in it, or the stream would depend on that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from penstock.errors import PlanError
from penstock.ops.joint import Length
from penstock.ops.op import Effect, Op, Order, joint_of
from penstock.plan.plan import Step
from penstock.sources.source import Flow, IndexedSource, Source, StreamSource

_PER_SAMPLE = (Effect.KEEPS, Effect.SELECTS, Effect.EXPANDS)


@dataclass
class Positions:
    """The ops of one pipeline that were moved to its source."""

    orders: list[Step] = field(default_factory=list)
    #: the cache that keeps single samples, if there is one
    cache: Step | None = None
    #: what deals the positions to ranks
    dealt: Step | None = None

    def __contains__(self, step: Step) -> bool:
        return step is self.dealt or any(step is one for one in self.orders)


def on_positions(flow: Flow, steps: list[Step]) -> Positions:
    """Decide for every op of `flow`."""
    found = Positions()
    length: Length = flow.source.length() if isinstance(flow.source, IndexedSource) else None
    #: why a position is no longer that of one sample of the source
    lost = _why_not_indexed(flow.source)
    before: list[Op[Any, Any]] = []
    for number, step in enumerate(steps):
        op = step.op
        order, joint = op.order(), joint_of(op)
        if order is not None:
            why = lost or _why_not(order, length, before, steps[number + 1 :], flow.source)
            if not why and isinstance(length, int):
                _check_random(op, flow.source)
                found.orders.append(step)
                length = order.length(length)
                continue
            if joint is None:
                raise _no_random_access(op, order, why)
        if joint is not None and joint.portion is not None:
            if not lost and not any(map(_varies, before)):
                found.dealt = step
                lost = f"{op.label} leaves only some of the positions"
                continue
            lost = lost or f"{op.label} deals samples as they pass"
        if joint is not None and joint.remembers and not lost and found.cache is None and _in_one_place(before):
            found.cache = step
        elif joint is not None or op.effect is Effect.REGROUPS or op.delivery.interleave > 1:
            lost = lost or f"{op.label} takes samples in the order of delivery"
        before.append(op)
    return found


def _check_random(op: Op[Any, Any], source: Source) -> None:
    """Refuse a random order over a source that would take very long to read in one."""
    if op.random and isinstance(source, IndexedSource) and source.why_not_shuffled:
        raise PlanError(f"{op.label} over {source.why_not_shuffled}")


def _why_not_indexed(source: Source) -> str:
    if isinstance(source, IndexedSource):
        return ""
    if isinstance(source, StreamSource):
        return f"{source.label} is a stream, which can only be read forward"
    return f"what comes from {source.label} cannot be read at any position"


def _why_not(order: Order, length: Length, before: list[Op[Any, Any]], later: list[Step], source: Source) -> str:
    """Why `order` cannot work on positions behind ops that treat every sample by itself; nothing if it can."""
    if not isinstance(length, int):
        return "an endless stream has no whole"
    if order.commutes:
        return ""
    numbers = isinstance(source, IndexedSource) and source.read_by_op
    varying = [one for one in before[numbers:] if _varies(one)]
    if varying:
        return f"{varying[0].label} before it varies the count"
    calling = [one for one in before if one.calls_user]
    # It is done all the same where an op further on cannot do without positions.
    needed = any(one.op.order() is not None and joint_of(one.op) is None for one in later)
    if order.counts and calling and not needed:
        return f"{calling[0].label} may skip a sample, and then counting positions is not counting samples"
    return ""


def _varies(op: Op[Any, Any]) -> bool:
    """Whether it may drop or multiply samples."""
    return op.may_skip or op.effect in (Effect.SELECTS, Effect.EXPANDS)


def _in_one_place(ops: list[Op[Any, Any]]) -> bool:
    """Whether one worker runs all of `ops`, so that a sample can be made from its position there."""
    placements = [op.placement for op in ops if op.placement is not None]
    if any(op.asynchronous or op.effect not in _PER_SAMPLE for op in ops if op.delivery.ready is None):
        return False
    return all(one == placements[0] and one.pool is not None for one in placements[1:])


def _no_random_access(op: Op[Any, Any], order: Order, why: str) -> PlanError:
    instead = f", or {order.instead}" if order.instead else ""
    return PlanError(
        f"{op.label} needs to read any position, but {why}; put {op.label} right behind the source{instead}"
    )
