"""What a user may ask a loader about its run: counters, diagnosis, plan, errors, traces, metrics and a page."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any, cast

from penstock.checks import whole_number
from penstock.core.engine import Engine
from penstock.core.error_log import ErrorLog
from penstock.core.observer import Observer
from penstock.core.workers import LOCK, nested
from penstock.errors import PlanError
from penstock.lazy import named
from penstock.plan.explain import Explanation
from penstock.program.chunk import ErrorRecord
from penstock.program.folder_cache import folder_notes

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from penstock.core.witness import Timing
    from penstock.stats.report import Diagnosis


_LAST_PORT = 65535

_ISOLATED = "loader(isolate=True): all of it runs in one process of its own, with the workers that it names"


class Views:
    """Counters, diagnosis, plan, errors and traces of a `Loader`."""

    _engine: Engine
    _observer: Observer
    _errors: ErrorLog
    _epoch: int
    _seed: int
    _isolated: bool
    _timing: Timing | None = None
    _dashboard: Any = None

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
        ``workers="auto"``, which numbers were found, as code to put into the pipeline.
        """
        notes = (*self._engine.notes(), *folder_notes(self._engine.plan.stages, self._seed))
        return Explanation(self._engine.plan, (_ISOLATED, *notes) if self._isolated else notes)

    def _repr_html_(self) -> str:
        made: str = named("penstock.showing.html:pipeline_html")(repr(self), self.explain())
        if self.stats()["batches"]:
            made += self.diagnose()._repr_html_()
        return made

    def errors(self) -> list[ErrorRecord]:
        """The samples that were left out or ended the run, oldest first (the last 10 000)."""
        return list(self._errors.records)

    def trace(self, path: str | os.PathLike[str], *, events: int = 500_000) -> AbstractContextManager[None]:
        """Write what every worker does inside this block to `path`, for ui.perfetto.dev or chrome://tracing.

        The file has a track for each worker with its tickets, one for the training loop with its waits, and for
        each stage a counter of what is ready. A name that ends in ``.gz`` is compressed. At most `events` are kept,
        64 bytes each, the first ones; a warning says where the trace ends. The file is written when the block ends,
        in an exception too.

        >>> import os, tempfile
        >>> import penstock as ps
        >>> with tempfile.TemporaryDirectory() as folder, ps.from_sequence(range(4)).loader() as loader:
        ...     with loader.trace(f"{folder}/run.json"):
        ...         samples = list(loader)
        ...     os.listdir(folder)
        ['run.json']
        """
        block = named("penstock.core.tracing:traced")(self._engine, self._isolated, path, events)
        return cast("AbstractContextManager[None]", block)

    def prometheus(self, **labels: str) -> str:
        """The counters in the text format of Prometheus, with histograms of how long tickets and waits took.

        Histograms count from the first call on. `labels` are added to every line, such as ``rank="0"``.

        >>> import penstock as ps
        >>> with ps.from_sequence(range(4)).batch(2).loader() as loader:
        ...     batches = list(loader)
        ...     print(loader.prometheus(rank="0").splitlines()[2])
        penstock_samples_total{rank="0"} 4
        """
        timing = self._timed()
        export = named("penstock.stats.export:prometheus")
        labels_of = [stage.label for stage in self._engine.plan.stages]
        with LOCK:
            return str(export(self.stats(), labels_of, timing.tickets, timing.waits, labels))

    def _timed(self) -> Timing:
        """How long tickets and waits take, counted from now on if they were not before."""
        if self._timing is None:
            self._timing = named("penstock.core.witness:Timing")()
            named("penstock.core.witness:join")(self._engine, self._timing)
        return self._timing

    @property
    def dashboard_url(self) -> str | None:
        """The page of ``loader(dashboard=True)``, with its token; None if there is none."""
        return None if self._dashboard is None else self._dashboard.notice.url

    def _show(self, dashboard: bool | int | None) -> None:
        """Serve the page, if it is wanted: by the argument, or by PENSTOCK_DASHBOARD where that says nothing."""
        port = _wanted(dashboard)
        if port is None:
            return
        self._timed()
        feed = named("penstock.dashboard.feed:Feed")(weakref.ref(self))
        self._dashboard = named("penstock.dashboard.server:Dashboard")(feed, port)
        weakref.finalize(self, self._dashboard.stop)

    def _hide(self) -> None:
        """The page ends."""
        if self._dashboard is not None:
            self._dashboard.close()


def _wanted(dashboard: bool | int | None) -> int | None:
    """The port of the page, 0 for any; None if there is to be no page."""
    if dashboard is None:
        said = os.environ.get("PENSTOCK_DASHBOARD", "")
        if said in ("", "0") or nested():
            return None
        if not said.isdecimal():
            raise PlanError(f"PENSTOCK_DASHBOARD is {said!r}; set it to 1 for a page on a free port, or to a port")
        dashboard = said == "1" or int(said)
    if dashboard is False:
        return None
    if dashboard is True:
        return 0
    port = whole_number(dashboard, "loader(dashboard=)", least=1)
    if port > _LAST_PORT:
        raise PlanError(f"loader(dashboard=) takes a port, at most {_LAST_PORT}, got {port}; True takes a free one")
    return port
