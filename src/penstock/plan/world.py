"""Which part of the samples this process gets: rank and world, once they are known.

A pipeline says ``shard()``; who asks decides what that means: a loader takes rank and world from
the environment, a look at single samples takes all of them.
"""

from __future__ import annotations

import copy
import os
import sys
from dataclasses import dataclass
from typing import Any

from penstock.errors import PlanError
from penstock.ops.joint import Length
from penstock.ops.op import Effect, Op, Share, group_size, is_eager, joint_of
from penstock.sources.source import Composite, Flow, IndexedSource, Source


@dataclass(frozen=True, slots=True)
class World:
    """This rank, and how many there are."""

    rank: int = 0
    size: int = 1
    #: what said so
    told_by: str = ""


ALONE = World()


@dataclass(frozen=True, slots=True)
class Dealt:
    """A pipeline whose shards know their rank: a `Flow`."""

    source: Source
    ops: tuple[Op[Any, Any], ...]


def world_now() -> World:
    """Rank and world of this process, as torch.distributed or the environment have it."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return World(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")
    size = os.environ.get("WORLD_SIZE", "")
    if not size:
        return ALONE
    rank = os.environ.get("RANK", "0")
    if not size.isdecimal() or not rank.isdecimal() or int(rank) >= max(int(size), 1):
        raise PlanError(
            f"RANK={rank!r} and WORLD_SIZE={size!r} in the environment make no sense; unset or mend them"
        )
    return World(int(rank), max(int(size), 1), "WORLD_SIZE in the environment")


def dealt(flow: Flow, world: World, *, needs_shard: bool = False) -> Flow:
    """`flow` with what every shard() is in `world`.

    With `needs_shard`, several ranks and no shard() is an error: all of them would deliver the same.
    """
    if needs_shard and world.size > 1 and not _has_shard(flow):
        raise _repeated(flow, world)
    return _dealt(flow, world, top=True)


def portion_of(flow: Flow) -> Any:
    """What a dealt pipeline, or one of its parts, deals; None without a shard()."""
    for op in flow.ops:
        joint = joint_of(op)
        if joint is not None and joint.portion is not None:
            return joint.portion
    parts = flow.source.parts if isinstance(flow.source, Composite) else ()
    return next((found for _, part in parts if (found := portion_of(part)) is not None), None)


def _has_shard(flow: Flow) -> bool:
    parts = [part for _, part in flow.source.parts] if isinstance(flow.source, Composite) else []
    deals = flow.source.deals_itself or any(op.effect is Effect.DEALS for op in flow.ops)
    return deals or any(map(_has_shard, parts))


def _repeated(flow: Flow, world: World) -> PlanError:
    length: Length = flow.source.length() if not isinstance(flow.source, Composite) else None
    if isinstance(length, int):
        each = f"each of the {world.size} ranks would deliver all {length:,} samples"
        told = f"{each}, {length * (world.size - 1):,} of them repeated"
    else:
        told = f"each of the {world.size} ranks would deliver all samples, so each comes {world.size} times"
    return PlanError(
        f"{world.told_by} says that there are {world.size} ranks, but the pipeline has no shard(): {told}; "
        "add .shard(), or .shard(world=1) if every rank should read everything"
    )


def _dealt(flow: Flow, world: World, top: bool) -> Flow:
    source = flow.source
    if isinstance(source, Composite):
        if not any(map(_has_shard, (part for _, part in source.parts))):
            parts = source.parts
        else:
            parts = tuple((name, _dealt(part, world, False)) for name, part in source.parts)
        if parts is not source.parts:
            source = copy.copy(source)
            source.parts = parts
    if not any(op.effect is Effect.DEALS for op in flow.ops):
        return flow if source is flow.source else Dealt(source, flow.ops)
    ops: list[Op[Any, Any]] = []
    behind: list[Op[Any, Any]] = []
    length: Length = None if isinstance(source, Composite) else source.length()
    for number, op in enumerate(flow.ops):
        if op.effect is Effect.DEALS:
            before, later = flow.ops[:number], flow.ops[number + 1 :]
            if (eager := next(filter(is_eager, before), None)) is not None:
                raise PlanError(
                    f"{op.label} behind {eager.label}: every rank would fill it with all samples; put "
                    f"{op.label} before {eager.label}"
                )
            uneven = "it is part of another pipeline" if not top else _uneven(later)
            block = 1 if uneven else _block(later)
            indexed = isinstance(source, IndexedSource) and all(
                _plain(one) or one.order() is not None for one in before
            )
            here, last = op.deal(Share(world.rank, world.size, block, uneven, length, indexed))
            ops += here
            behind += last
        else:
            ops.append(op)
            length = op.length(length)
    return Dealt(source, (*ops, *behind))


def _plain(op: Op[Any, Any]) -> bool:
    """Whether as many samples leave as come, in the same order."""
    if not op.delivery.ordered or op.may_skip:
        return False
    if op.effect is Effect.KEEPS or op.delivery.ready is not None:
        return True
    joint = joint_of(op)
    return joint is not None and joint.remembers


def _block(later: tuple[Op[Any, Any], ...]) -> int:
    """How many samples go to a rank at once: a batch, or one."""
    for op in later:
        if op.effect is Effect.REGROUPS:
            return group_size(op) or 1
    return 1


def _uneven(later: tuple[Op[Any, Any], ...]) -> str:
    """Why ranks that get as many samples do not deliver as many; nothing if they do."""
    batched = False
    for op in later:
        if op.effect is Effect.REGROUPS and group_size(op) and not batched:
            batched = True
        elif not _plain(op):
            return f"{op.label} varies what each of them delivers"
    return ""
