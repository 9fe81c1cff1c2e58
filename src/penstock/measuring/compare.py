"""compare: a pipeline and a training step, each alone and both together.

A loop goes as fast as the slower of the two. Alone, the loader shows what it can make, and the step, with one batch
served again and again, what it can take. If both together are slower than either, they take something from each
other: cores, or the interpreter lock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from penstock.bar import Bar
from penstock.checks import check_positive
from penstock.errors import PlanError
from penstock.measuring.measure import at_rate, measure
from penstock.stats.report import Diagnosis, per_second, percent

if TYPE_CHECKING:
    from penstock.pipeline import Pipeline


#: together they reach at least this share of the slower one, unless they stand in each other's way
_TOGETHER = 0.85
#: rates that differ by less are the same
_ALIKE = 1.1


@dataclass(frozen=True, slots=True)
class Comparison:
    """What ``ps.compare`` has found. Printed, it is a report."""

    #: "loader", "step" or "both": they stand in each other's way
    limiting: str
    #: samples per second
    loader_per_s: float
    step_per_s: float
    together_per_s: float
    #: how many times as fast the loop would be if what limits it took no time; "both": undisturbed
    gain: float
    advice: str
    #: of the run with both
    diagnosis: Diagnosis

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain data, for JSON."""
        return {**asdict(self), "diagnosis": self.diagnosis.to_dict()}

    def __str__(self) -> str:
        rows = [
            ("loader alone", self.loader_per_s),
            ("step alone", self.step_per_s),
            ("together", self.together_per_s),
        ]
        rates = [per_second(rate, " samples") for _, rate in rows]
        widest = max(map(len, rates))
        lines = [f"  {name:<12}  {rate:>{widest}}" for (name, _), rate in zip(rows, rates, strict=True)]
        return "\n".join([self.advice, "", *lines])


def compare(
    pipeline: Pipeline[Any],
    step: Callable[[Any], Any],
    seconds: float = 2.0,
    *,
    progress: bool = True,
    **loader_options: Any,
) -> Comparison:
    """Run the loader alone, the step alone on one batch, and both together, some seconds each: which one limits?

    ``step(batch)`` must not return before its work is done: with an accelerator, synchronise in it. The first call
    is not counted, since it often compiles. The step alone gets the first batch again and again.
    ``loader_options`` are those of ``pipeline.loader()``.

    >>> import time
    >>> import penstock as ps
    >>> found = ps.compare(ps.fake(((4,), "float32")).batch(8), lambda batch: time.sleep(0.01), seconds=0.1)
    >>> found.step_per_s < found.loader_per_s
    True
    """
    check_positive(seconds, "compare(seconds=)")
    if not callable(step):
        raise PlanError(f"compare() takes a function that is called with each batch, got {type(step).__name__}")
    alone = measure(pipeline, seconds, progress=progress, **loader_options)
    per_batch = alone.samples / alone.batches
    step_per_s = _steps_per_s(pipeline, step, seconds, progress) * per_batch
    both = measure(pipeline, seconds, step=step, progress=progress, **loader_options)
    return judged(alone.samples_per_s, step_per_s, both.samples_per_s, both.diagnosis)


def _steps_per_s(pipeline: Pipeline[Any], step: Callable[[Any], Any], seconds: float, progress: bool) -> float:
    """Calls of the step per second, all with the same batch."""
    (batch,) = pipeline.constant().peek(1)
    step(batch)
    bar = Bar("the step alone", progress)
    calls, began = 0, perf_counter()
    try:
        while (passed := perf_counter() - began) < seconds:
            step(batch)
            calls += 1
            bar.show(passed / seconds, partial(at_rate, calls, passed))
    finally:
        bar.erase()
    return calls / passed if calls else 1 / passed


def judged(loader_per_s: float, step_per_s: float, together_per_s: float, diagnosis: Diagnosis) -> Comparison:
    """Which of the two limits, from three rates in samples per second. Pure."""
    slower, faster = sorted((loader_per_s, step_per_s))
    margin = faster / slower
    if together_per_s < _TOGETHER * slower:
        limiting, gain = "both", slower / together_per_s
        advice = (
            f"Loader and step stand in each other's way: together they make {per_second(together_per_s)}, "
            f"{percent(1 - together_per_s / slower)} less than the slower of them alone. They share cores and, on "
            'threads, the interpreter lock: try loader(isolate=True), or on="process".'
        )
    elif loader_per_s <= step_per_s:
        limiting, gain = "loader", margin
        advice = (
            f"The loader limits: the step could take {_factor(margin)} what the loader makes. {diagnosis.advice}"
        )
    else:
        limiting, gain = "step", margin
        advice = f"The step limits: the loader could make {_factor(margin)} what the step takes."
        if margin < _ALIKE:
            advice += " That is little: a step that becomes faster will wait for the loader."
    return Comparison(limiting, loader_per_s, step_per_s, together_per_s, gain, advice, diagnosis)


def _factor(margin: float) -> str:
    digits = ".2g" if margin < 10 else ".0f"
    return f"{margin:{digits}} times" if margin >= _ALIKE else "about"
