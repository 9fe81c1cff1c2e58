"""A check of an op's joint, alone and inline: it calls no function of the user's, it ends, its state stays small.

The joint runs over a long stream in the engine itself; only its steps and the functions that the op was given are
watched. A step that never returns is found by the lines that it runs, not by the clock.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import cycle, islice
from typing import Any

from penstock.construct import from_iterable
from penstock.ops.functions import function_name, is_async
from penstock.ops.joint import Joint
from penstock.ops.op import Op, joint_of
from penstock.plan.lengths import flow_length
from penstock.resume.schema import opened, plain_data
from penstock.testing.same import assert_same

#: samples that the joint gets, and the numbers of outputs after which its state is weighed
_SAMPLES = 2000
_WEIGHED = (500, 1000, 2000)
#: a state that has grown by as much for every output, from each weighing to the next, has no bound
_BYTES_PER_OUTPUT = 1.0
#: outputs of an op that does not say how many there are: a joint that has made more does not end
_MOST = 20 * _SAMPLES
#: lines of Python in one step: one that has run more does not return
_LINES = 1_000_000


def check_joint(op: Op[Any, Any], given: Sequence[Any], seed: int = 0) -> None:
    """Raise AssertionError if the joint of `op`, over many samples like `given`, does what no joint may."""
    if not given or joint_of(op) is None:
        return
    samples = list(islice(cycle(given), _SAMPLES))
    _, sizes = _delivered(op, samples, seed, None)
    _check_sizes(op.label, sizes)
    singly, _ = _delivered(op, samples[: _SAMPLES // 10], seed, 1)
    together, _ = _delivered(op, samples[: _SAMPLES // 10], seed, None)
    what = f"{op.label}: what its joint passes on depends on how many samples a step is asked for"
    assert_same(together, singly, what)


def _delivered(op: Op[Any, Any], samples: list[Any], seed: int, cap: int | None) -> tuple[list[Any], list[int]]:
    """What comes out of `op`, and the sizes of its states; each step is asked for `cap` samples at the most."""
    watch = _Watch(op.label, cap)
    pipeline = from_iterable(samples).apply(watch.watched(op))
    length = flow_length(pipeline)
    most = len(samples) if length == math.inf else (_MOST if length is None else int(length) + 1)
    delivered: list[Any] = []
    sizes: list[int] = []
    with pipeline.loader(seed=seed, inline=True) as loader:
        try:
            for sample in islice(loader, most):
                delivered.append(sample)
                if len(delivered) in _WEIGHED:
                    sizes.append(len(json.dumps(plain_data(opened(loader.state_dict())))))
        except Exception:
            pass  # a failure is compared on all layouts; here the watch says whether it is the joint's
    if watch.found:
        raise AssertionError(watch.found)
    if length is None and len(delivered) == most:
        raise AssertionError(
            f"{op.label}: its joint has passed on {most} samples of {len(samples)} and has not ended; set `ended`, "
            "or let length() return math.inf if it goes on for ever"
        )
    return delivered, sizes


def _check_sizes(label: str, sizes: list[int]) -> None:
    if len(sizes) < len(_WEIGHED):
        return
    grown = [
        (after - before) / (later - earlier)
        for before, after, earlier, later in zip(sizes, sizes[1:], _WEIGHED, _WEIGHED[1:], strict=False)
    ]
    if min(grown) >= _BYTES_PER_OUTPUT:
        told = ", ".join(f"{size} bytes after {count}" for size, count in zip(sizes, _WEIGHED, strict=True))
        raise AssertionError(
            f"{label}: its state grows with the samples that it has delivered: {told}; save what is still needed, "
            "and give what the joint remembers a bound"
        )


class _Watch:
    """Notes the first thing that a joint must not do."""

    def __init__(self, label: str, cap: int | None) -> None:
        self.label = label
        self.cap = cap
        self.found = ""

    def watched(self, op: Op[Any, Any]) -> Op[Any, Any]:
        """A copy of `op` with its functions and the steps of its joints watched."""
        twin = copy.copy(op)
        for one in dataclasses.fields(op):  # type: ignore[arg-type]
            value = getattr(op, one.name)
            if callable(value) and not isinstance(value, (type, int)) and not is_async(value):
                object.__setattr__(twin, one.name, self._function(value))

        def joint(itself: Any, key: Any, epoch: int, memo: Any) -> Joint | None:
            made = type(op).joint(itself, key, epoch, memo)
            if made is not None:
                made.step = self._step(made.step)  # type: ignore[method-assign]
            return made

        kind = type(type(op).__name__, (type(op),), {"joint": joint, "__slots__": ()})
        object.__setattr__(twin, "__class__", kind)
        return twin

    def note(self, found: str) -> AssertionError:
        self.found = self.found or f"{self.label}: {found}"
        return AssertionError(self.found)

    def _function(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(fn)
        def watched(*args: Any, **kwargs: Any) -> Any:
            joint = _joint_above()
            if joint is not None:
                raise self.note(
                    f"{function_name(fn)} is called in its joint, {type(joint).__name__}, which runs under the "
                    "lock of all loaders; call it in run(), or in an op that preceded_by adds"
                )
            return fn(*args, **kwargs)

        return watched

    def _step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def watched(inputs: Any, most: int) -> Any:
            lines = 0

            def trace(frame: Any, event: str, arg: Any) -> Any:
                nonlocal lines
                lines += event == "line"
                if lines > _LINES:
                    raise self.note(f"a step of its joint has run {_LINES:,} lines and has not returned")
                return trace

            before = sys.gettrace()
            sys.settrace(trace)
            try:
                return step(inputs, most if self.cap is None else min(most, self.cap))
            finally:
                sys.settrace(before)

        return watched


def _joint_above() -> Joint | None:
    """The joint whose method has called, if one has."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Joint):
            return owner
        frame = frame.f_back
    return None
