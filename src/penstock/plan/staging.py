"""What a `to()` is in one loader: its transfer is made, and checked against the ops around it.

Pure but for that.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from penstock.errors import PlanError
from penstock.ops.op import Op, in_own_thread
from penstock.plan.world import Dealt
from penstock.sources.source import Composite, Flow


class Staging:
    """A pipeline in which every op that moves batches to a device is made for one loader, in this thread."""

    def __init__(self, flow: Flow, isolated: bool) -> None:
        #: what the reader calls with each batch that it hands over, if anything
        self.receive: Callable[[Any], Any] | None = None
        moving = _moving(flow)
        if isolated:
            _refuse_local(moving)
        elif moving:
            flow = self._prepared(flow, top=True)
            moving = _moving(flow)
        self.flow = flow
        self._moves = [op.moves for op in moving if op.moves is not None]

    def _prepared(self, flow: Flow, top: bool) -> Flow:
        source = flow.source
        if isinstance(source, Composite):
            source = copy.copy(source)
            source.parts = tuple((name, self._prepared(part, top=False)) for name, part in source.parts)
        ops: list[Op[Any, Any]] = []
        last: Op[Any, Any] | None = None
        for number, op in enumerate(flow.ops):
            if op.moves is None:
                ops.append(op)
                continue
            if op.moves.asynchronous:
                _check_riders(op, flow.ops[number + 1 :], top)
            made = op.moves.prepared()
            ops.append(made.op)
            if last is None and made.last is not None:
                last, self.receive = made.last, made.receive
        return Dealt(source, (*ops, last) if last is not None else tuple(ops))

    def close(self) -> None:
        """The loader is closed."""
        for one in self._moves:
            one.close()


def _refuse_local(moving: list[Op[Any, Any]]) -> None:
    """Refuse devices whose batches cannot leave the process they were moved in."""
    for op in moving:
        if op.moves is not None and op.moves.local:
            raise PlanError(
                f"loader(isolate=True) runs {op.label} in another process, and what is on that device cannot "
                "be sent here; leave isolate=True out, or leave to() out and move each batch in the training loop"
            )


def _moving(flow: Flow) -> list[Op[Any, Any]]:
    """The ops that move batches to a device."""
    parts = [part for _, part in flow.source.parts] if isinstance(flow.source, Composite) else []
    return [op for part in parts for op in _moving(part)] + [op for op in flow.ops if op.moves is not None]


def _check_riders(op: Op[Any, Any], later: tuple[Op[Any, Any], ...], top: bool) -> None:
    """Copies may still run when the transfer worker passes a batch on; only the training loop may wait for them."""
    if not top:
        raise PlanError(
            f"{op.label} stands in a part of another pipeline; put it behind the mix(), zip() or concat(), so that "
            "the batches of all parts are moved in the order in which they are delivered"
        )
    for one in later:
        if one.placement is not None or in_own_thread(one) or one.asynchronous:
            raise PlanError(
                f"{one.label} behind {op.label} has a place of its own, and would not wait for the copy to "
                "the device; "
                f"put it before {op.label}, or leave workers= and on= out, so that it runs in the transfer worker"
            )
