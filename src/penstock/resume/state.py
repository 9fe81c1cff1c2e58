"""The pipeline in words, as a state has it: a state of another one is refused, and the difference named. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.errors import StateMismatch
from penstock.ops.functions import function_name
from penstock.ops.op import Op
from penstock.resume.schema import State
from penstock.sources.source import Composite, Flow, Source

#: arguments that have no say in what is delivered
_NO_MATTER = {"workers", "on", "ordered", "on_error", "timeout_s", "name", "rank", "world"}

_SIMPLE = (bool, int, float, str, bytes, type(None))

Plain = dict[str, Any]


def check_pipeline(state: State, flow: Flow, seed: int) -> None:
    """Refuse a state that is not of a loader of `flow` with this seed."""
    if state.pipeline is not None:
        difference = _difference(state.pipeline, described(flow))
        if difference:
            raise StateMismatch(
                f"the state is of another pipeline: {difference}; to go on with it all the same, use "
                "load_state_dict(state, strict=False)"
            )
    if state.seed != seed:
        raise StateMismatch(
            f"the state was saved with seed={state.seed!r}, and this loader has seed={seed}; "
            "make the loader with the seed of the state"
        )


# ---------------------------------------------------------------------- a pipeline in words


def described(flow: Flow) -> list[Any]:
    """The source and the ops of a pipeline in words, a line each.

    >>> import penstock as ps
    >>> described(ps.from_sequence("abc").shuffle().batch(2))
    ['from_sequence(str of 3): 3 samples', 'shuffle()', 'batch(size=2)']
    """
    return [_source(flow.source), *(_op(op) for op in flow.ops if op.delivery.ready is None)]


def _source(source: Source) -> Any:
    if isinstance(source, Composite):
        return {source.verb: {name: described(part) for name, part in source.parts}}
    length = source.length()
    label = source.saved_label
    known = label if length is None or length == math.inf else f"{label}: {length} samples"
    return f"{known} ({source.content})" if source.content else known


def _op(op: Op[Any, Any]) -> str:
    known: dict[str, Any] = getattr(op, "__dataclass_fields__", {})
    arguments = [
        f"{one.name}={_value(getattr(op, one.name))}"
        for one in known.values()
        if one.name not in _NO_MATTER
        and "not_delivered" not in one.metadata
        and not _is_default(getattr(op, one.name), one.default)
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
            inner = _parts_difference(next(iter(one.values())), next(iter(other.values())))
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


def _parts_difference(saved: Any, now: Plain) -> str:
    """How parts differ that both pipelines have. Parts may come and go."""
    if not isinstance(saved, dict):
        return f"its parts are {saved!r}"
    for name in saved.keys() & now.keys():
        inner = _difference(saved[name], now[name])
        if inner:
            return f"in part {name!r}, {inner}"
    if not saved.keys() & now.keys():
        return f"it had the parts {sorted(saved)}, and this has {sorted(now)}"
    return ""


def _shown(line: Any) -> str:
    if isinstance(line, dict) and len(line) == 1 and isinstance(parts := next(iter(line.values())), dict):
        return f"{next(iter(line))} of {', '.join(map(str, parts))}"
    return str(line)
