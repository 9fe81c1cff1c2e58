"""measure: how fast a pipeline is, with nobody else to wait for.

It reads batches and drops them, or calls a step with each. Rates are counted from the first batch on; what came
before, the start of the workers above all, is `first_batch_s`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

from penstock.bar import Bar
from penstock.checks import check_positive, whole_number
from penstock.errors import PlanError
from penstock.machine import memory_bytes
from penstock.stats.report import Diagnosis, StageDiagnosis, caveat, per_second, table
from penstock.trees import nbytes

if TYPE_CHECKING:
    from penstock.pipeline import Pipeline


#: one batch in so many is weighed
_WEIGH = 16


@dataclass(frozen=True, slots=True)
class Measurement:
    """What ``ps.measure`` has found. Printed, it is a report; `to_dict` is plain data."""

    samples_per_s: float
    batches_per_s: float
    #: bytes of the arrays, strings and bytes in the batches
    bytes_per_s: float
    #: from the first batch asked for until it came: mostly the start of the workers
    first_batch_s: float
    #: cores that this process and its workers kept busy, on average
    cores: float
    #: the memory of this process and its workers at the end; None where the system does not tell
    rss_bytes: int | None
    samples: int
    batches: int
    #: seconds from the first batch on
    seconds: float
    stages: tuple[StageDiagnosis, ...]
    #: what limited the run; the loop is one that does nothing, or the step
    diagnosis: Diagnosis

    @property
    def gb_per_s(self) -> float:
        """`bytes_per_s` in units of 10**9."""
        return self.bytes_per_s / 1e9

    def to_dict(self) -> dict[str, Any]:
        """The measurement as plain data, for JSON: what has no bound is None."""
        found = asdict(replace(self, stages=()))
        diagnosis = self.diagnosis.to_dict()
        return {**found, "gb_per_s": self.gb_per_s, "stages": diagnosis["stages"], "diagnosis": diagnosis}

    def __str__(self) -> str:
        memory = "" if self.rss_bytes is None else f", {self.rss_bytes / 1e6:.0f} MB of memory"
        return "\n".join(
            [
                f"{per_second(self.samples_per_s, ' samples')}, {per_second(self.batches_per_s, ' batches')}, "
                f"{_bytes_per_second(self.bytes_per_s)}; the first batch came after {self.first_batch_s:.2g} s",
                f"{self.cores:.2g} cores busy{memory}; {self.samples} samples in {self.seconds:.3g} s"
                + caveat(self.seconds),
                "",
                *table(self.diagnosis),
                "",
                self.diagnosis.advice,
            ]
        )


def measure(
    pipeline: Pipeline[Any],
    seconds: float = 2.0,
    *,
    steps: int | None = None,
    step: Callable[[Any], Any] | None = None,
    step_ms: float = 0.0,
    progress: bool = True,
    **loader_options: Any,
) -> Measurement:
    """Read batches for some seconds, epoch after epoch, and say how fast they came.

    The seconds begin with the first batch. ``steps`` (2 or more) ends the run earlier, after that many batches.
    ``step`` is called with each batch but the last, ``step_ms`` waits so long for each, as for an accelerator.
    ``progress`` shows a bar on stderr if that is a terminal. ``loader_options`` are those of ``pipeline.loader()``.

    >>> import penstock as ps
    >>> found = ps.measure(ps.fake({"x": ((8,), "float32")}).batch(10), steps=20)
    >>> found.batches, found.samples, round(found.bytes_per_s / found.samples_per_s)
    (20, 200, 32)
    """
    _check(pipeline, seconds, step, step_ms)
    most = 2**62 if steps is None else whole_number(steps, "measure(steps=)", least=2)
    bar = Bar("measuring", progress)
    with pipeline.loader(**loader_options) as loader:
        try:
            seen = _Seen(seconds, most, bar)
            bar.show(0.0, lambda: "waits for the first batch")
            for _, batch in loader.steps(most):
                if not seen.take(batch):
                    break  # before its step: the first batch counts as none, and its step as one
                if step is not None:
                    step(batch)
                if step_ms:
                    sleep(step_ms / 1000)
        finally:
            bar.erase()
        return _measurement(loader.stats(), loader.diagnose(), seen)


def _check(pipeline: Any, seconds: Any, step: Any, step_ms: Any) -> None:
    if not callable(getattr(pipeline, "loader", None)):
        raise PlanError(
            f"this takes a Pipeline, got {type(pipeline).__name__}; ps.watch() says how long a loop waits for any "
            "other loader"
        )
    if step is not None and not callable(step):
        raise PlanError(f"measure(step=) takes a function that is called with each batch, got {step!r}")
    check_positive(seconds, "measure(seconds=)")
    check_positive(step_ms or None, "measure(step_ms=)")


def at_rate(batches: int, seconds: float) -> str:
    """How many batches have come, and how fast, for the bar."""
    return f"{batches} batch{'es' * (batches != 1)}, {per_second(batches / seconds) if seconds > 0 else 'begun'}"


class _Seen:
    """The batches that have come."""

    def __init__(self, seconds: float, most: int, bar: Bar) -> None:
        self._seconds = seconds
        self._most = most
        self._bar = bar
        self._began: float | None = None
        self.batches = self.weighed = 0
        self.nbytes = 0

    def take(self, batch: Any) -> bool:
        """Count one more; whether there is time for another."""
        now = perf_counter()
        if self._began is None:
            self._began = now
        passed = now - self._began
        if self.batches % _WEIGH == 0:
            self.nbytes += nbytes(batch)
            self.weighed += 1
        self.batches += 1
        share = max(passed / self._seconds, self.batches / self._most)
        self._bar.show(share, lambda: at_rate(self.batches, passed))
        return passed < self._seconds and self.batches < self._most


def _measurement(stats: dict[str, float], diagnosis: Diagnosis, seen: _Seen) -> Measurement:
    running_s = stats["running_s"]
    per_batch = stats["samples"] / max(seen.batches, 1)
    batches_per_s = diagnosis.samples_per_s / per_batch if per_batch else 0.0
    return Measurement(
        samples_per_s=diagnosis.samples_per_s,
        batches_per_s=batches_per_s,
        bytes_per_s=batches_per_s * seen.nbytes / max(seen.weighed, 1),
        first_batch_s=stats["startup_s"],
        cores=stats["cpu_s"] / running_s if running_s else 0.0,
        rss_bytes=memory_bytes(),
        samples=int(stats["samples"]),
        batches=seen.batches,
        seconds=running_s,
        stages=diagnosis.stages,
        diagnosis=diagnosis,
    )


def _bytes_per_second(rate: float) -> str:
    return f"{rate / 1e9:.2f} GB/s" if rate >= 1e8 else f"{rate / 1e6:.2f} MB/s"
