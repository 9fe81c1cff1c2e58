"""What joints keep in one loader from epoch to epoch: a `Memo` for each op and composite that has a joint."""

from __future__ import annotations

from typing import Any

from penstock.ops.joint import Memo
from penstock.ops.op import Op
from penstock.plan.plan import Joined, Plan
from penstock.sources.source import Composite


class Memos:
    """The memos of one loader. A memo is made when it is first asked for."""

    def __init__(self) -> None:
        self._memos: dict[Any, Memo] = {}

    def of(self, owner: Op[Any, Any] | Composite, key: Any) -> Memo:
        """The memo of an op (by its number) or of a composite (by its key in the plan)."""
        memo = self._memos.get(key)
        return self._memos.setdefault(key, owner.memo()) if memo is None else memo

    def of_ops(self, plan: Plan) -> list[Memo]:
        """Those of the ops that have joints in `plan`."""
        feeds = [stage.feed for stage in plan.stages]
        steps = [feed.step for feed in feeds if isinstance(feed, Joined) and feed.step is not None]
        return [self.of(step.op, step.number) for step in steps]
