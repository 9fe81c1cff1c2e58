"""What a loader saves: a version, what pipeline it is of, and where that stands. Pure.

::

    version    of this layout; a state of an older one is read or refused, never misread
    pipeline   the source and the ops, each in words: a changed pipeline is refused by naming the difference
    seed       what all random choices hang on
    epoch      the epoch to go on with, and `batch`, `step`: how many batches of it, and in all, were delivered
    at         where the epoch stands (`penstock.runtime.marks`); None at its start
    lost       samples further on that were lost already, and told: they are not tried again
    carried    inputs that go on from epoch to epoch
    part       what rank of what world it is, where ranks do not deliver in step
    running    whose part is being delivered: its own, or what another rank had left
    pending    what else is to come in this epoch: what other ranks had left when their number changed
    approximate  there, and true, if what comes depends on who is faster (reservoir), so it is not exact
    ranks      instead of these, in a state that was merged of those of all ranks
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.errors import StateMismatch
from penstock.ops.functions import function_name
from penstock.ops.op import Op
from penstock.runtime.again import Start
from penstock.runtime.ranks import check_rank, for_rank
from penstock.sources.source import Composite, Flow, Source

__all__ = ["VERSION", "Moment", "checked", "described", "read"]

VERSION = 1
#: arguments that have no say in what is delivered
_NO_MATTER = {"workers", "on", "ordered", "on_error", "timeout_s", "name", "rank", "world", "max_bytes"}

_SIMPLE = (bool, int, float, str, bytes, type(None))

Plain = dict[str, Any]


@dataclass(slots=True)
class Moment:
    """Where a loader stands: what a state says besides what it is of."""

    epoch: int
    batch: int = 0
    step: int = 0
    at: Plain | None = None
    lost: list[Any] = field(default_factory=list)
    carried: Plain = field(default_factory=dict)
    part: Plain = field(default_factory=dict)
    running: Plain = field(default_factory=dict)
    pending: list[Plain] = field(default_factory=list)

    @property
    def start(self) -> Start:
        """Where the epoch is to be gone on with."""
        return Start(self.at, self.lost, self.running)

    def to_state(self, pipeline: list[Any], seed: int) -> Plain:
        """The state of a loader that stands here; `pipeline` is what `described` gives."""
        out: Plain = {
            "version": VERSION,
            "pipeline": pipeline,
            "seed": seed,
            "epoch": self.epoch,
            "batch": self.batch,
            "step": self.step,
            "at": self.at,
        }
        for name in ("lost", "carried", "part", "running", "pending"):
            if getattr(self, name):
                out[name] = getattr(self, name)
        return out


def read(state: Any, flow: Flow, seed: int, deals: Any) -> Moment:
    """The moment that `state` was saved at; refuses a state of something else.

    `deals` is the part that this loader delivers, where its pipeline has a shard().
    """
    checked(state, flow, seed)
    try:
        if "ranks" in state:
            state = state | for_rank(state, deals)
        moment = Moment(
            int(state["epoch"]),
            int(state["batch"]),
            int(state["step"]),
            state["at"],
            list(state.get("lost", [])),
            dict(state.get("carried", {})),
            dict(state.get("part", {})),
            dict(state.get("running", {})),
            list(state.get("pending", [])),
        )
    except (KeyError, TypeError, ValueError) as exc:
        raise StateMismatch(f"the state is damaged: {exc!r}") from exc
    if moment.part or (deals is not None and not deals.keeps):
        check_rank(moment.part, deals)
    return moment


def checked(state: Any, flow: Flow, seed: int) -> None:
    """Refuse what is not a state of a loader of `flow` with this seed."""
    if not isinstance(state, dict) or "version" not in state:
        raise StateMismatch(f"this is no state of a penstock loader: {type(state).__name__} without a version")
    if state["version"] != VERSION:
        raise StateMismatch(
            f"the state has version {state['version']!r}, and this penstock reads version {VERSION}; "
            "load it with the release that saved it"
        )
    saved, now = state.get("pipeline"), described(flow)
    if saved is not None:
        difference = _difference(saved, now)
        if difference:
            raise StateMismatch(
                f"the state is of another pipeline: {difference}; to go on with it all the same, use "
                "load_state_dict(state, strict=False), or set state['pipeline'] = None"
            )
    if state.get("seed") != seed:
        raise StateMismatch(
            f"the state was saved with seed={state.get('seed')!r}, and this loader has seed={seed}; "
            "make the loader with the seed of the state"
        )


# ---------------------------------------------------------------------- a pipeline in words


def described(flow: Flow) -> list[Any]:
    """The source and the ops of a pipeline in words, a line each.

    >>> import penstock as ps
    >>> described(ps.from_sequence("abc").shuffle().batch(2))
    ['from_sequence(str of 3): 3 samples', 'shuffle()', 'batch(size=2)']
    """
    return [_source(flow.source), *(_op(op) for op in flow.ops if op.buffer is None)]


def _source(source: Source) -> Any:
    if isinstance(source, Composite):
        return {source.verb: {name: described(part) for name, part in source.parts}}
    length = source.length()
    known = source.label if length is None or length == math.inf else f"{source.label}: {length} samples"
    return f"{known} ({source.content})" if source.content else known


def _op(op: Op[Any, Any]) -> str:
    known: dict[str, Any] = getattr(op, "__dataclass_fields__", {})
    arguments = [
        f"{one.name}={_value(getattr(op, one.name))}"
        for one in known.values()
        if one.name not in _NO_MATTER and not _is_default(getattr(op, one.name), one.default)
    ]
    return f"{op.verb}({', '.join(arguments)})"


def _is_default(value: Any, default: Any) -> bool:
    """Whether an argument was left out; a release that adds one then reads older states."""
    return value is default or (type(value) is type(default) and isinstance(value, _SIMPLE) and value == default)


def _value(value: Any) -> str:
    """An argument in words that stay the same from run to run."""
    if isinstance(value, _SIMPLE):
        return repr(value)
    if callable(value):
        return function_name(value)
    if isinstance(value, np.ndarray):
        from hashlib import blake2b

        digest = blake2b(np.ascontiguousarray(value).tobytes(), digest_size=4).hexdigest()
        return f"{value.dtype} {value.shape} {digest}"
    if isinstance(value, Sequence):
        if len(value) > 16:
            return f"{type(value).__name__} of {len(value)}"
        return f"[{', '.join(map(_value, value))}]"
    return type(value).__name__


def _difference(saved: Any, now: list[Any]) -> str:
    """The first thing in which two pipelines differ; nothing if they do not."""
    if not isinstance(saved, list):
        return f"it says {saved!r}"
    for number, (one, other) in enumerate(zip(saved, now, strict=False)):
        if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
            inner = _parts_difference(*one.values(), *other.values())
            if inner:
                return inner
        elif one != other:
            what = "its source" if number == 0 else f"op {number}"
            return f"{what} was {_shown(one)}, and is {_shown(other)}"
    if len(saved) > len(now):
        return f"it had {_shown(saved[len(now)])} behind op {len(now) - 1}, and this has not"
    if len(now) > len(saved):
        return f"this has {_shown(now[len(saved)])} behind op {len(saved) - 1}, and it had not"
    return ""


def _parts_difference(saved: Plain, now: Plain) -> str:
    """How parts differ that both pipelines have. Parts may come and go."""
    for name in saved.keys() & now.keys():
        inner = _difference(saved[name], now[name])
        if inner:
            return f"in part {name!r}, {inner}"
    if not saved.keys() & now.keys():
        return f"it had the parts {sorted(saved)}, and this has {sorted(now)}"
    return ""


def _shown(line: Any) -> str:
    return line if isinstance(line, str) else f"{next(iter(line))} of {', '.join(next(iter(line.values())))}"
