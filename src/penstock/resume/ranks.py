"""Merges the states of several ranks, so that another number of ranks can continue. Pure.

Where all ops behind a ``shard()`` keep the count, ranks deliver in step, and the state of one says all. Elsewhere
each rank stands somewhere of its own. What all of them together still owe is dealt to the new ranks: what joints
kept, what was overtaken, and the positions that the slower ranks have not come to. From the furthest position on,
positions are dealt as they always are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.errors import StateMismatch
from penstock.ops.joint import Joint
from penstock.ops.op import Key
from penstock.plan.plan import Indexed, Joined, Plan, Stage, straight_before
from penstock.resume.schema import (
    Edge,
    Front,
    InputState,
    Owed,
    RankState,
    State,
    checksum,
    edit_state,
    opened,
    plain_data,
)  # fmt: skip

Plain = dict[str, Any]


def merge_states(states: Sequence[Plain]) -> Plain:
    """One state for any rank of any world, from those of all ranks, saved at the same step.

    >>> import penstock as ps
    >>> def part(rank, world):
    ...     return ps.from_sequence(range(20)).shard(rank, world).filter(lambda x: x % 3)
    >>> states = []
    >>> for rank in range(2):
    ...     with part(rank, 2).loader() as loader:
    ...         first = next(iter(loader))
    ...         states.append(loader.state_dict())
    >>> merged = ps.merge_states(states)
    >>> rest = []
    >>> for rank in range(3):
    ...     with part(rank, 3).loader(state=merged) as loader:
    ...         rest += list(loader)
    >>> sorted(rest)
    [4, 5, 7, 8, 10, 11, 13, 14, 16, 17, 19]
    """
    states = list(states)
    if not states:
        raise StateMismatch("merge_states() needs the states of all ranks, got none")
    read = [opened(state) for state in states]
    for name in ("pipeline", "seed"):
        for state in read[1:]:
            if getattr(state, name) != getattr(read[0], name):
                one, other = getattr(read[0], name), getattr(state, name)
                raise StateMismatch(f"the states of ranks differ in {name!r}: {one!r} and {other!r}")
    if all(state.rank is None for state in read):
        return _in_step(states, read)
    _check_complete(read)
    epochs = {state.epoch for state in read}
    if max(epochs) > min(epochs) + 1:
        raise StateMismatch(f"the states are of epochs {sorted(epochs)}, too far apart")
    body = {"version": states[0]["version"], "ranks": states}
    return body | {"sum": checksum(body)}


def is_merged(state: Any) -> bool:
    """Whether `merge_states` has made it of states that differ."""
    return isinstance(state, dict) and "ranks" in state


def _in_step(states: list[Plain], read: list[State]) -> Plain:
    """Ranks that deliver in step stand at one place."""
    marks = [_mark(state) for state in read]
    if any(isinstance(mark, dict) and mark.get("mode") == "split" for mark in marks):
        return _of_clients(states, read, marks)
    if all(isinstance(mark, dict) for mark in marks):
        # A data server keeps the stream; what its clients noted of it may differ, their positions may not.
        read = [replace(state, at=None if state.at is None else state.at.front.at) for state in read]  # type: ignore[arg-type]
    for state in read[1:]:
        if (state.epoch, state.at) != (read[0].epoch, read[0].at):
            raise StateMismatch(
                f"ranks that deliver in step stand at different ones: epoch {read[0].epoch}, batch "
                f"{read[0].batch}, and epoch {state.epoch}, batch {state.batch}; save all at one step"
            )
    return states[0]


def _mark(state: State) -> Any:
    """What a stream has saved besides its position."""
    return None if state.at is None or state.at.front.at is None else state.at.front.own


def _of_clients(states: list[Plain], read: list[State], marks: list[Any]) -> Plain:
    """Clients of one data server, each of which was handed other batches."""
    begun = [number for number, state in enumerate(read) if state.at is not None]
    first = begun[0]
    clients: dict[str, Any] = {}
    for number in begun:
        mark, state = marks[number], read[number]
        edge = state.at
        if (
            not isinstance(mark, dict)
            or mark.get("mode") != "split"
            or (edge is not None and edge.owed is not None)
        ):
            raise StateMismatch("an op behind connect() holds batches that other clients cannot make again")
        for name in ("ledger", "generation"):
            if mark.get(name) != marks[first].get(name):
                raise StateMismatch(f"the states of clients differ in {name!r}; save all of them at one step")
        if state.epoch != read[first].epoch:
            raise StateMismatch(
                f"the states are of epochs {read[first].epoch} and {state.epoch}; save all at one step"
            )
        clients |= mark["clients"]
    merged = replace(read[first].at.front, own=marks[first] | {"clients": clients})  # type: ignore[union-attr]
    return edit_state(states[first], at=plain_data(Edge(merged)))


def _check_complete(states: list[State]) -> None:
    ranks = sorted(-1 if state.rank is None else state.rank.rank for state in states)
    worlds = {0 if state.rank is None else state.rank.world for state in states}
    if ranks != list(range(len(states))) or worlds != {len(states)}:
        raise StateMismatch(
            f"the states of all ranks are needed, each once: got ranks {ranks} of {sorted(map(str, worlds))}"
        )


def check_rank(rank: RankState | None, deals: Any) -> None:
    """Refuse the state of another rank, or of another number of them."""
    in_step = deals is not None and deals.keeps
    if (rank is None) != (deals is None or in_step):
        how = "in step" if rank is None else "a stream each"
        raise StateMismatch(
            f"the state is of a pipeline whose ranks deliver {how}, and those of this one do not; use the ops and "
            "the on_error= that it was saved with"
        )
    if rank is None or in_step or deals is None:
        return
    if (rank.rank, rank.world) != (deals.rank, deals.world):
        raise StateMismatch(
            f"the state is of rank {rank.rank} of {rank.world}, and this loader has rank {deals.rank} of "
            f"{deals.world}; ranks do not deliver in step here, so give it the states of all ranks: "
            "load_state_dict([...]) or ps.merge_states([...])"
        )


# ---------------------------------------------------------------------- what falls to one rank


def for_rank(merged: Plain, plan: Plan, deals: Any, seed: int, length: Any) -> State:
    """The part of a merged state that one of the new ranks continues with."""
    states = merged.get("ranks")
    body = {key: value for key, value in merged.items() if key != "sum"}
    if not isinstance(states, list) or merged.get("sum") != checksum(body):
        raise StateMismatch("the state was changed or damaged since it was saved: its checksum does not fit")
    read = [opened(state) for state in states]
    _check_complete(read)
    if deals is None:
        raise StateMismatch("the state is of several ranks, and this pipeline has no shard()")
    epoch = min(state.epoch for state in read)
    now = [state for state in read if state.epoch == epoch]
    if len({(state.rank.rank, state.rank.world) for state in read if state.rank}) != len(read):
        raise StateMismatch("the state is damaged: a rank is there twice")
    first = min(now, key=lambda state: state.batch)
    if all(state.at is None for state in now) and len(now) == len(read):
        edge = None
    else:
        edge = _Union(plan, deals, seed, epoch, length).edge(now, ended=len(now) < len(read))
    return State(
        first.version,
        first.pipeline,
        first.seed,
        epoch,
        max(state.batch for state in now),
        max(state.step for state in read),
        at=edge,
        rank=RankState(deals.rank, deals.world),
    )


@dataclass
class _Union:
    """What several ranks owe, as one of others gets it."""

    plan: Plan
    deals: Any
    seed: int
    epoch: int
    length: Any

    def edge(self, states: list[State], ended: bool) -> Edge:
        """The edge of the new rank that leads to its reader; if a rank has `ended`, no position is dealt anew."""
        return self._edge(self.plan.root, [state.at for state in states], [state.rank for state in states], ended)

    def _edge(self, stage: Stage, edges: list[Edge | None], ranks: list[RankState | None], ended: bool) -> Edge:
        """The edge that leads to a stage: to the one before it, where no joint stands between the two."""
        if stage.interleave > 1:
            raise self._refused(stage.label, "its inputs take turns")
        if (before := straight_before(stage.feed)) is not None:
            return self._edge(before, edges, ranks, ended)
        return self._from_feed(stage, edges, ranks, ended)

    def _from_feed(
        self, stage: Stage, edges: list[Edge | None], ranks: list[RankState | None], ended: bool
    ) -> Edge:
        held = [one for edge in edges if edge is not None for one in edge.held()]
        if isinstance(stage.feed, Indexed) and not stage.batched:
            front, more = self._source(stage, edges, ranks, ended)
        elif isinstance(stage.feed, Indexed):
            inner = [self._inner(edge) for edge in edges]
            front, more = self._source(stage, inner, ranks, ended)
            more += [one for edge in inner if edge is not None for one in edge.held()]
            owed = Owed.of(more[self.deals.rank :: self.deals.world])
            front, more = Front(joint=stage.batched, inputs=[InputState(self.epoch, Edge(front, owed))]), []
        else:
            front, more = self._joint(stage, edges, ranks, ended), []
        dealt = (held + more)[self.deals.rank :: self.deals.world]
        return Edge(front, Owed.of(dealt))

    def _inner(self, edge: Edge | None) -> Edge | None:
        if edge is None or not edge.front.inputs or edge.front.inputs[0] is None:
            return None
        return edge.front.inputs[0].edge

    def _source(
        self, stage: Stage, edges: list[Edge | None], ranks: list[RankState | None], ended: bool
    ) -> tuple[Front, list[Any]]:
        """The source for the new rank, and what slower ranks have left of it."""
        assert isinstance(stage.feed, Indexed)
        if stage.feed.dealt is None:
            raise self._refused("shard()", "it does not stand behind a source that can be indexed")
        stop = int(self.length)
        at = [0 if edge is None else (edge.front.at or 0) for edge in edges]
        furthest = stop if ended else max(at)
        more: list[Any] = []
        for rank, start in zip(ranks, at, strict=True):
            assert rank is not None
            first = start + (rank.rank - start) % rank.world
            more += [(position, None) for position in range(first, furthest, rank.world)]
        return Front(at=furthest), sorted(more)

    def _joint(self, stage: Stage, edges: list[Edge | None], ranks: list[RankState | None], ended: bool) -> Front:
        feed = stage.feed
        if not isinstance(feed, Joined) or feed.step is None or len(feed.children) != 1:
            label = feed.composite.label if isinstance(feed, Joined) and feed.composite else "a stream"
            raise self._refused(label, "what they had left of it cannot be dealt anew")
        joint: Joint | None = feed.step.op.joint(Key(self.seed, feed.step.key), self.epoch, {})
        assert joint is not None
        inner = self._edge(feed.children[0], [self._inner(edge) for edge in edges], ranks, ended)
        try:
            own = joint.merged(
                [None if edge is None else edge.front.own for edge in edges], self.deals.rank, self.deals.world
            )
        except StateMismatch as exc:
            raise self._refused(feed.step.op.label, str(exc)) from None
        return Front(joint=stage.segment, own=own, inputs=[InputState(self.epoch, inner)])

    def _refused(self, label: str, why: str) -> StateMismatch:
        return StateMismatch(
            f"the state is of another number of ranks, and ranks do not deliver in step here; {label} behind "
            f"shard(): {why}; go on with as many ranks as before"
        )
