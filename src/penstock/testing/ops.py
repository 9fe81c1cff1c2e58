"""A check for an op of your own: its stream is the same everywhere, and what it says of itself is true."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from penstock.construct import from_iterable, from_sequence
from penstock.errors import PenstockError, PlanError
from penstock.executors.startup import keep_warm
from penstock.ops.op import Effect, Op, joint_of
from penstock.pipeline import Pipeline
from penstock.plan.lengths import flow_length
from penstock.testing.joints import check_joint
from penstock.testing.layouts import (
    ASYNC_LAYOUTS,
    FEW_PROCESS_LAYOUTS,
    INLINE,
    LAYOUTS,
    Layout,
    Stream,
    assert_same_stream,
    sendable,
)
from penstock.testing.resume import check_resume
from penstock.testing.same import difference

#: about how often an op is saved and restored
_PLACES = 8


def check_op(
    op: Op[Any, Any] | Callable[[Pipeline[Any]], Pipeline[Any]],
    samples: Iterable[Any],
    *,
    layouts: Sequence[Layout] | None = None,
    seed: int = 0,
    epochs: int = 2,
) -> None:
    """Raise AssertionError unless `op` does what an op must, on all of `samples` and on none.

    `op` is an op value, or a function from Pipeline to Pipeline. Over a sequence and over a stream,
    its stream must be the same inline, on any number of threads, with small and large tickets,
    under any memory bound and in several seeded interleavings; an asynchronous op is run on
    coroutines as well, and what can be sent to worker processes, on these. ``layouts`` replaces
    these ways to run it. Samples whose function raises are welcome: they must fail alike everywhere.
    Where none does, the stream must be resumable, too: see `check_resume`.

    An op value must also be frozen, survive pickling unless what it was given does not, name
    itself, and tell the truth in its traits: one output per sample if it KEEPS, a part of the
    samples if it SELECTS, the samples themselves if it PASSES them, and as many as its `length` says.

    >>> from penstock import ops
    >>> check_op(ops.Map(str), range(10))
    >>> check_op(lambda pipeline: pipeline.filter(bool).batch(3), range(10))

    >>> from itertools import count
    >>> numbers = count()
    >>> check_op(ops.Map(lambda x: next(numbers)), range(10))
    Traceback (most recent call last):
    ...
    AssertionError: map(lambda) over a sequence of 10, on 1 thread workers, epoch 0: sample 0: 0, then 20
    """
    given = list(samples)
    if isinstance(op, Op):
        _check_value(op)
        check_joint(op, given, seed)
    processes = sendable(op, given) if layouts is None else any(layout.on == "process" for layout in layouts)
    # It starts while the op runs on threads; from then on each process starts in milliseconds.
    with keep_warm() if processes else nullcontext():
        _check_everywhere(op, given, layouts, seed, epochs)


def _check_everywhere(op: Any, given: list[Any], layouts: Sequence[Layout] | None, seed: int, epochs: int) -> None:
    label = op.label if isinstance(op, Op) else getattr(op, "__name__", repr(op))
    sources = {
        f"a sequence of {len(given)}": from_sequence(given),
        f"a stream of {len(given)}": from_iterable(given),
        "an empty sequence": from_sequence([]),
    }
    inline: dict[str, Stream] = {}
    for name, source in sources.items():
        what = f"{label} over {name}"
        pipeline = _applied(source, op, needs_index="stream" not in name)
        if pipeline is not None:
            inline[name] = _check_streams(pipeline, what, layouts, seed, epochs, given)
            if isinstance(op, Op):
                _check_traits(op, [] if "empty" in name else given, inline[name], what)
            if inline[name].whole and all(one.delivery.ordered for one in pipeline.ops) and not endless(pipeline):
                _check_resumed(pipeline, what, inline[name], seed, epochs)
    if isinstance(op, Op) and op.order() is not None and joint_of(op) is not None:
        one, other = (stream for name, stream in inline.items() if "empty" not in name)
        assert_same_stream(one, other, f"{label}: by position (its order), then as samples pass (its joint)")


def _applied(source: Pipeline[Any], op: Any, needs_index: bool) -> Pipeline[Any] | None:
    """The pipeline; None if the op needs positions and this source has none."""
    try:
        pipeline = source.apply(op)
        pipeline.explain()
    except PlanError:
        if needs_index:
            raise
        return None
    return pipeline


def _check_streams(
    pipeline: Pipeline[Any], what: str, layouts: Sequence[Layout] | None, seed: int, epochs: int, given: list[Any]
) -> Stream:
    length = flow_length(pipeline)
    most = 3 * len(given) + 10 if length == math.inf else None
    # A copy: an op that writes into what it was given would change what it is compared with.
    expected = INLINE.run(pipeline, seed=seed, epochs=epochs, most=most)
    expected.epochs = copy.deepcopy(expected.epochs)
    for end in expected.ends:
        if type(end) is PenstockError:  # what a user's function raises is another one
            raise AssertionError(f"{what}: {end}") from end
    if layouts is None:
        layouts = [
            *LAYOUTS,
            *(ASYNC_LAYOUTS if any(op.asynchronous for op in pipeline.ops) else ()),
            *(FEW_PROCESS_LAYOUTS if sendable(pipeline.ops, given, expected.epochs) else ()),
        ]
    ordered = all(op.delivery.ordered for op in pipeline.ops)
    for layout in layouts:
        found = layout.run(_placed(pipeline, layout), seed=seed, epochs=epochs, most=most)
        assert_same_stream(expected, found, f"{what}, {layout}", ordered=ordered)
    for epoch, delivered in enumerate(expected.epochs):
        due = length if most is None or length is None else min(length, most)
        if expected.whole and due is not None and len(delivered) != due:
            raise AssertionError(f"{what}: length() says {due}, but epoch {epoch} has {len(delivered)} samples")
    return expected


def endless(pipeline: Pipeline[Any]) -> bool:
    return flow_length(pipeline) == math.inf


def _check_resumed(pipeline: Pipeline[Any], what: str, expected: Stream, seed: int, epochs: int) -> None:
    """Whether the stream can be saved and resumed, at a few places."""
    every = max(1, sum(map(len, expected.epochs)) // _PLACES)
    try:
        check_resume(pipeline, epochs=epochs, seed=seed, every=every, restored_on={"workers": 2})
    except AssertionError as exc:
        raise AssertionError(f"{what}, {exc}") from None


def _placed(pipeline: Pipeline[Any], layout: Layout) -> Pipeline[Any]:
    """Ops that have a number of workers get the layout's; those without a placement follow the loader."""
    ops = list(pipeline.ops)
    for number, op in enumerate(ops):
        if getattr(op, "workers", None) is None or getattr(op, "on", None) is not None:
            continue
        on = "process" if layout.on == "process" and not op.asynchronous else None
        ops[number] = dataclasses.replace(op, workers=layout.workers, on=on)  # type: ignore[type-var]
    return Pipeline(pipeline.source, tuple(ops))


def _check_traits(op: Op[Any, Any], given: list[Any], stream: Stream, what: str) -> None:
    for epoch, (delivered, end) in enumerate(zip(stream.epochs, stream.ends, strict=True)):
        if end is not None:
            continue
        lost = sum(record.epoch == epoch for record in stream.lost)
        if op.effect is Effect.KEEPS and len(delivered) + lost != len(given):
            raise AssertionError(
                f"{what}: it KEEPS the count, but epoch {epoch} made {len(delivered)} samples of {len(given)} "
                f"with {lost} left out"
            )
        if op.effect is Effect.SELECTS:
            _check_selected(given, delivered, f"{what}: it SELECTS, but epoch {epoch}")
        if op.effect is Effect.PASSES:
            for sample in delivered:
                if all(difference(one, sample) is not None for one in given):
                    raise AssertionError(f"{what}: it PASSES samples, but {sample!r} is not one of them")


def _check_selected(given: list[Any], delivered: list[Any], what: str) -> None:
    rest = iter(given)
    for sample in delivered:
        if all(difference(one, sample) is not None for one in rest):
            raise AssertionError(f"{what} has {sample!r}, which is not one of the samples, or not in their order")


def _check_value(op: Op[Any, Any]) -> None:
    """Frozen, nameable, picklable, comparable."""
    kind = type(op).__name__
    parameters = getattr(type(op), "__dataclass_params__", None)
    if parameters is None or not parameters.frozen:
        raise AssertionError(f"{kind} must be a dataclass with frozen=True: pipelines are shared between threads")
    if not str(getattr(op, "verb", "")).isidentifier():
        raise AssertionError(f"{kind}.verb must be the name of its method, got {getattr(op, 'verb', None)!r}")
    for name in ("label", "title"):
        text = getattr(op, name)
        if not isinstance(text, str) or not text.strip() or "\n" in text:
            raise AssertionError(f"{kind}.{name} must be one line of text, got {text!r}")
    if kind not in repr(op):
        raise AssertionError(f"repr of {kind} must name it, got {op!r}")
    if op != op or op != dataclasses.replace(op):  # type: ignore[type-var]
        raise AssertionError(f"{op.label} must be equal to a copy of itself")
    _check_hash(op)
    if not sendable([getattr(op, one.name) for one in dataclasses.fields(op)]):  # type: ignore[arg-type]
        return  # what it was given cannot be pickled: a function that holds a lock, for example
    try:
        twin = cloudpickle.loads(cloudpickle.dumps(op))
    except Exception as exc:
        raise AssertionError(f"{op.label} cannot be pickled, although all its fields can: {exc!r}") from exc
    if (type(twin).__qualname__, twin.label) != (type(op).__qualname__, op.label):
        raise AssertionError(f"{op.label} comes out of pickling as {twin.label}")


def _check_hash(op: Any) -> None:
    try:
        hash(op)
    except TypeError as exc:
        for one in dataclasses.fields(op):
            try:
                hash(getattr(op, one.name))
            except TypeError:
                return  # what it was given cannot be hashed: a dict to look up in, for example
        raise AssertionError(f"{op.label} cannot be hashed, although all its fields can") from exc
