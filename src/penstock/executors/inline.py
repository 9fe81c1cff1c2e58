"""The inline executor: no workers; the reader runs every ticket in its own thread, for pdb."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from penstock.executors.executor import Executor, Worker


class InlineExecutor(Executor):
    """Starts nothing. Whoever reads does the work."""

    kind: ClassVar[str] = "inline"
    inline: ClassVar[bool] = True

    def start(self, work: Callable[[Any], Any], name: str) -> Worker:
        raise RuntimeError("an inline executor has no workers")
