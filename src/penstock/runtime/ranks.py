"""States of several ranks as one, to go on with another number of ranks. Pure.

Where all ops behind a ``shard()`` keep the count, ranks deliver in step, and the state of one says
all. Elsewhere each rank stands somewhere of its own. Up to some position H all of them together
have begun; what each has left before H is a *pass* of its own, run to its end as that rank would
have, by whichever of the new ranks it falls to. From H on, positions are dealt anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.errors import StateMismatch
from penstock.ops.op import Op
from penstock.plan.plan import Indexed, Plan
from penstock.runtime.marks import high

__all__ = ["check_movable", "check_rank", "for_rank", "merge_states"]

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
    for state in states:
        if not isinstance(state, dict) or "version" not in state:
            raise StateMismatch(f"this is no state of a penstock loader: {type(state).__name__} without a version")
        for name in ("version", "pipeline", "seed"):
            if state.get(name) != states[0].get(name):
                raise StateMismatch(
                    f"the states of ranks differ in {name!r}: {states[0].get(name)!r} and {state.get(name)!r}"
                )
    if len(states) == 1 and not states[0].get("part"):
        return states[0]
    if not any(state.get("part") for state in states):
        return _in_step(states)
    _check_complete(states)
    epoch = min(state["epoch"] for state in states)
    if max(state["epoch"] for state in states) > epoch + 1:
        raise StateMismatch(
            f"the states are of epochs {sorted({state['epoch'] for state in states})}, too far apart"
        )
    shared = {name: states[0][name] for name in ("version", "pipeline", "seed", "step")}
    batch = max(state["batch"] for state in states if state["epoch"] == epoch)
    # A rank that has gone on to the next epoch has nothing left of this one.
    ranks = [{"passes": _passes(state), "ended": state["epoch"] > epoch} for state in states]
    return shared | {"epoch": epoch, "batch": batch, "at": None, "ranks": ranks}


def _in_step(states: list[Plain]) -> Plain:
    """Ranks that deliver in step stand at one place."""
    for state in states[1:]:
        if (state["epoch"], state["at"]) != (states[0]["epoch"], states[0]["at"]):
            raise StateMismatch(
                f"ranks that deliver in step stand at different ones: epoch {states[0]['epoch']}, batch "
                f"{states[0]['batch']}, and epoch {state['epoch']}, batch {state['batch']}; save all at one step"
            )
    return states[0]


def _check_complete(states: list[Plain]) -> None:
    parts = [state.get("part") or {} for state in states]
    worlds = {part.get("world") for part in parts}
    ranks = sorted(part.get("rank", -1) for part in parts)
    if len(worlds) != 1 or ranks != list(range(len(states))) or worlds != {len(states)}:
        raise StateMismatch(
            f"the states of all ranks are needed, each once: got ranks {ranks} of {sorted(map(str, worlds))}"
        )


def _passes(state: Plain) -> list[Plain]:
    """What one rank has left of its epoch, in its order; its own part comes last, if that is not over."""
    now = {"at": state["at"], "lost": state.get("lost", []), "part": state["running"]}
    return [now, *state.get("pending", [])]


def for_rank(state: Plain, deals: Any) -> Plain:
    """What of a merged state falls to one rank: the passes it goes through, its own part last."""
    if deals is None:
        raise StateMismatch("the state is of several ranks, and this pipeline has no shard()")
    begun = [one for rank in state["ranks"] if not rank["ended"] for one in rank["passes"]]
    own = [one for one in begun if "until" not in one["part"]]
    # Where one has come to its end, all that is left belongs to the others.
    anew = bool(own) and not any(rank["ended"] for rank in state["ranks"])
    stop = max(map(_high, own)) if anew else _FAR
    passes = [one for one in begun if "until" in one["part"]]
    passes += [one | {"part": one["part"] | {"until": stop}} for one in own]
    mine = passes[deals.rank :: deals.world]
    identity = {"rank": deals.rank, "world": deals.world}
    if anew or not mine:
        mine.append({"at": None, "lost": [], "part": identity | {"base": stop} | ({} if anew else {"until": _FAR})})
    first, *pending = mine
    return {
        "at": first["at"],
        "lost": first["lost"],
        "part": identity,
        "running": first["part"],
        "pending": pending,
    }


#: further than any source goes
_FAR = 1 << 62


def _high(own: Plain) -> int:
    """The first position of a part that has not been begun."""
    return max(int(own["part"]["base"]), high(own["at"]))


def check_rank(part: Plain, deals: Any) -> None:
    """Refuse the state of another rank, or of another number of them."""
    rank, world = part.get("rank"), part.get("world")
    if deals is None or (rank, world) != (deals.rank, deals.world):
        here = "no shard()" if deals is None else f"rank {deals.rank} of {deals.world}"
        raise StateMismatch(
            f"the state is of rank {rank} of {world}, and this loader has {here}; ranks do not deliver in step "
            "here, so give it the states of all ranks: load_state_dict([...]) or ps.merge_states([...])"
        )


def check_movable(plan: Plan, ops: Sequence[Op[Any, Any]]) -> None:
    """Refuse to move what ranks had left to others, where an op counts on more than the samples."""
    known = "the state is of another number of ranks, and ranks do not deliver in step here"
    feed = plan.stages[0].feed
    if not isinstance(feed, Indexed) or feed.dealt is None:
        raise StateMismatch(
            f"{known}; what they had left can be dealt anew only where shard() stands behind a source that can "
            "be indexed: go on with as many ranks as before"
        )
    behind = False
    for op in ops:
        if behind and not op.holds_back and (op.joined or op.remembers):
            raise StateMismatch(
                f"{known}; {op.label} behind shard() goes by what one rank has delivered: go on with as many "
                "ranks as before"
            )
        behind = behind or op.deals is not None
