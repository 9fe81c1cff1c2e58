"""What a user may ask a loader about its run: counters, diagnosis, plan, errors, traces, metrics and a page."""

from __future__ import annotations

import gzip
import os
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import IO, TYPE_CHECKING, Any, cast

from penstock.checks import whole_number
from penstock.core.engine import Engine
from penstock.core.error_log import ErrorLog
from penstock.core.observer import Observer
from penstock.core.witness import Timing, Tracing, join, part
from penstock.core.workers import LOCK, nested
from penstock.errors import PenstockError, PlanError
from penstock.lazy import named
from penstock.plan.explain import Explanation
from penstock.program.chunk import ErrorRecord
from penstock.program.folder_cache import folder_notes
from penstock.stats.export import prometheus
from penstock.stats.trace import Recording

if TYPE_CHECKING:
    from penstock.stats.report import Diagnosis

__all__ = ["Views"]

_ISOLATED = "loader(isolate=True): all of it runs in one process of its own, with the workers that it names"
_UNSEEN = (
    "loader(isolate=True): the workers are in another process, so only the waits of the training loop are in this "
    "trace; to see tickets, trace a loader without isolate"
)


class Views:
    """Counters, diagnosis, plan, errors and traces of a `Loader`."""

    _engine: Engine
    _observer: Observer
    _errors: ErrorLog
    _epoch: int
    _seed: int
    _isolated: bool
    _tracing = False
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
        ``workers="auto"``, which numbers were found.
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

    @contextmanager
    def trace(self, path: str | os.PathLike[str], *, events: int = 500_000) -> Iterator[None]:
        """Write what every worker does inside this block to `path`, for ui.perfetto.dev or chrome://tracing.

        The file has a track for each worker with its tickets, one for the training loop with its waits, and for
        each stage a counter of what is ready. A name that ends in ``.gz`` is compressed. At most `events` are kept,
        64 bytes each, the first ones; a warning says where the trace ends. The file is written when the block ends,
        in an exception too.
        """
        limit = whole_number(events, "trace(events=)", least=1)
        target = Path(path)
        if not target.parent.is_dir():
            raise PlanError(f"trace({str(path)!r}): there is no folder {str(target.parent)!r}; make it first")
        if self._tracing:
            raise PenstockError("this loader is being traced already; end that block first")
        engine = self._engine
        engine.check_open()
        recording = Recording(perf_counter(), limit)
        witness = Tracing(recording, lambda: () if self._isolated else engine.lanes.values())
        self._tracing = True
        join(engine, witness)
        try:
            yield
        finally:
            part(engine, witness)
            self._tracing = False
            _write(recording, target, perf_counter(), _UNSEEN if self._isolated else "")

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
        labels_of = [stage.label for stage in self._engine.plan.stages]
        with LOCK:
            return prometheus(self.stats(), labels_of, timing.tickets, timing.waits, labels)

    def _timed(self) -> Timing:
        """How long tickets and waits take, counted from now on if they were not before."""
        if self._timing is None:
            self._timing = Timing()
            join(self._engine, self._timing)
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


def _write(recording: Recording, target: Path, ended: float, note: str) -> None:
    """Write a trace; the file is there as a whole or not at all."""
    pid = os.getpid()
    notes: dict[str, Any] = {"events": len(recording), "dropped": recording.dropped}
    if note:
        notes["note"] = note
    partial = target.with_name(f".{target.name}.{pid}")
    try:
        compressed = target.suffix == ".gz"
        with cast("IO[str]", gzip.open(partial, "wt") if compressed else partial.open("w")) as file:
            recording.write(file, pid, notes)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    if recording.dropped:
        warnings.warn(
            f"the trace {str(target)!r} is full: it has {len(recording)} events, of the first "
            f"{recording.last - recording.began:.3g} s of {ended - recording.began:.3g} s, and lacks "
            f"{recording.dropped} later ones. Trace fewer steps, or give trace(events=) a larger number",
            RuntimeWarning,
            stacklevel=4,
        )


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
    return 0 if dashboard is True else whole_number(dashboard, "loader(dashboard=)", least=1)
