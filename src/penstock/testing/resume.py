"""`check_resume`: save after every batch, restore each in a fresh loader, and demand the same rest."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from penstock.errors import PlanError
from penstock.pipeline import Pipeline
from penstock.plan.rules import Options, make_plan
from penstock.testing.same import assert_same, difference

#: what a state may take as JSON
_MOST_BYTES = 10_000

#: epoch, and sample or batch
Delivered = tuple[int, Any]


def check_resume(
    pipeline: Pipeline[Any],
    *,
    epochs: int = 2,
    seed: int = 0,
    every: int = 1,
    saved_on: Mapping[str, Any] | None = None,
    restored_on: Mapping[str, Any] | None = None,
    fresh_process: bool = False,
    most_bytes: int = _MOST_BYTES,
) -> None:
    """Raise AssertionError unless `pipeline` can be resumed behind every batch.

    It is run for so many epochs, and its state saved at the start, behind every batch (or each
    ``every``-th) and at the end. Each state goes through JSON into a fresh loader, which must
    deliver the same rest, and into a chain of loaders that deliver so few batches each. ``saved_on`` and
    ``restored_on`` are arguments of these loaders (``{"workers": 4}``, ``{"isolate": True}``);
    with ``fresh_process`` the fresh loaders are in another process, too.

    Where an op does not keep the order, the rest must hold the same samples.

    >>> import penstock as ps
    >>> check_resume(ps.from_sequence(range(10)).filter(lambda x: x % 3).shuffle(window=4).batch(2))
    """
    plan = make_plan(pipeline, Options())
    if plan.approximate is not None:
        raise PlanError(
            f"check_resume(): {plan.approximate.label} is resumed only approximately; check what is before it"
        )
    saved_on, restored_on = dict(saved_on or {}), dict(restored_on or {})
    want, states = _golden(pipeline, epochs, seed, every, saved_on, most_bytes)
    compare = _compare if all(stage.ordered for stage in plan.stages) else _compare_unordered
    if fresh_process:
        rests = _elsewhere(pipeline, states, len(want), epochs, seed, restored_on)
    else:
        rests = [_rest(pipeline, state, epochs, seed, restored_on) for _, state in states]
    for (number, state), rest in zip(states, rests, strict=True):
        compare(want, number, rest, f"resumed behind batch {number} with {state}")
    compare(want, 0, list(_chained(pipeline, epochs, seed, every, restored_on)), "resumed again and again")


def _golden(
    pipeline: Pipeline[Any], epochs: int, seed: int, every: int, arguments: dict[str, Any], most_bytes: int
) -> tuple[list[Delivered], list[tuple[int, str]]]:
    """All that is delivered without a stop, and states as JSON with how many batches came before them."""
    want: list[Delivered] = []
    states = []
    with pipeline.loader(seed=seed, **arguments) as loader:
        states.append((0, json.dumps(loader.state_dict())))
        for epoch, batches in loader.epochs(epochs):
            for batch in batches:
                want.append((epoch, batch))
                if len(want) % every == 0:
                    states.append((len(want), json.dumps(loader.state_dict())))
        states.append((len(want), json.dumps(loader.state_dict())))
    for number, state in states:
        if len(state) > most_bytes:
            raise AssertionError(
                f"the state behind batch {number} takes {len(state)} bytes, more than {most_bytes}"
            )
    return want, states


def _rest(
    pipeline: Pipeline[Any], state: str, epochs: int, seed: int, arguments: dict[str, Any]
) -> list[Delivered]:
    """What a fresh loader delivers from `state` to the end of epoch `epochs` - 1."""
    rest: list[Delivered] = []
    with pipeline.loader(seed=seed, state=json.loads(state), **arguments) as loader:
        first = json.loads(state)["epoch"]
        for _ in range(first, epochs):
            for batch in loader:
                if loader.epoch >= epochs:
                    break
                rest.append((loader.epoch, batch))
    return rest


def _chained(
    pipeline: Pipeline[Any], epochs: int, seed: int, every: int, arguments: dict[str, Any]
) -> Iterator[Delivered]:
    """The whole stream, each `every` batches of another loader."""
    state = None
    while True:
        with pipeline.loader(seed=seed, state=state, **arguments) as loader:
            for number, batch in enumerate(loader, 1):
                if loader.epoch >= epochs:
                    return
                yield loader.epoch, batch
                if number == every:
                    break
            else:
                if loader.epoch + 1 >= epochs:
                    return
            state = json.loads(json.dumps(loader.state_dict()))


def _elsewhere(
    pipeline: Pipeline[Any],
    states: list[tuple[int, str]],
    count: int,
    epochs: int,
    seed: int,
    arguments: dict[str, Any],
) -> list[list[Delivered]]:
    """The rests, made in another process."""
    work = cloudpickle.dumps((pipeline, [state for _, state in states], epochs, seed, arguments))
    code = "from penstock.testing.resume import serve; serve()"
    done = subprocess.run([sys.executable, "-c", code], input=work, capture_output=True, timeout=60 + count)
    if done.returncode:
        raise AssertionError(f"the process that resumed failed:\n{done.stderr.decode(errors='replace')}")
    rests: list[list[Delivered]] = pickle.loads(done.stdout)
    return rests


def serve() -> None:
    """The other process: states in, what comes after them out."""
    pipeline, states, epochs, seed, arguments = pickle.load(sys.stdin.buffer)
    rests = [_rest(pipeline, state, epochs, seed, arguments) for state in states]
    sys.stdout.buffer.write(cloudpickle.dumps(rests))


def _compare(want: list[Delivered], number: int, rest: list[Delivered], what: str) -> None:
    """Whether what came after a state is what came after it without a stop."""
    assert_same([list(one) for one in want[number:]], [list(one) for one in rest], what)


def _compare_unordered(want: list[Delivered], number: int, rest: list[Delivered], what: str) -> None:
    """Whether what came before a state and what came after it are together all samples, in any order."""
    whole = list(want[:number]) + rest
    if len(whole) != len(want):
        raise AssertionError(f"{what}: {len(want)} samples, then {len(whole)}")
    left = list(want)
    for one in whole:
        at = next((i for i, other in enumerate(left) if difference(list(other), list(one)) is None), None)
        if at is None:
            raise AssertionError(f"{what}: {one[1]!r} of epoch {one[0]} came twice, or never before")
        del left[at]
