"""What a user may ask a loader about its run. None of it changes the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.engine import Engine
from penstock.core.error_log import ErrorLog
from penstock.core.observer import Observer
from penstock.plan.explain import Explanation
from penstock.program.chunk import ErrorRecord

if TYPE_CHECKING:
    from penstock.stats.report import Diagnosis

__all__ = ["Views"]

_ISOLATED = "loader(isolate=True): all of it runs in one process of its own, with the workers that it names"


class Views:
    """Counters, diagnosis, plan and errors of a `Loader`."""

    _engine: Engine
    _observer: Observer
    _errors: ErrorLog
    _epoch: int
    _isolated: bool

    def stats(self) -> dict[str, float]:
        """Counters as a flat dict of numbers; see the page on stats for their names."""
        return self._observer.stats(self._epoch, self._errors.count)

    def diagnose(self, last_s: float | None = None) -> Diagnosis:
        """What limits the run since its first batch, or its last seconds, and what one change would bring.

        Print it for a report. It may be asked for at any time, after `close` too.
        """
        from penstock.core.reporting import diagnosis

        return diagnosis(self._engine.plan, self._observer, self.stats(), last_s)

    def explain(self) -> Explanation:
        """How this loader runs the pipeline: the plan that its ``on``, ``workers`` and ``inline`` have made.

        Once its worker processes have started, it also says what of them could not be shared; and, for
        ``workers="auto"``, which numbers were found.
        """
        notes = tuple(self._engine.notes())
        return Explanation(self._engine.plan, (_ISOLATED, *notes) if self._isolated else notes)

    def errors(self) -> list[ErrorRecord]:
        """The samples that were left out or ended the run, oldest first (the last 10 000)."""
        return list(self._errors.records)
