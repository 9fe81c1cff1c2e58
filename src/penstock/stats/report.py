"""A diagnosis: the verdict over a run, for programs and in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import inf
from typing import Any

__all__ = ["Diagnosis", "StageDiagnosis", "per_second", "percent", "table", "times"]

#: counters of less say little
_SHORT_S = 0.5


@dataclass(frozen=True, slots=True)
class StageDiagnosis:
    """One stage: how its workers spent their time, as shares that add up to one, and what it could do."""

    label: str
    working: float
    waiting_input: float
    waiting_room: float
    #: samples per second if its workers never waited
    capacity: float
    workers: int
    #: the kind of its executor
    on: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What limits a run, and what one change would bring: ``loader.diagnose()``. Printed, it is a report."""

    #: the label of a stage, or "training loop"
    limiting: str
    #: the share of its time that the training loop waited for data, from the first batch on
    wait_share: float
    #: what to do, in a sentence or two
    advice: str
    #: how many times as fast the run would be; 1.0 if the advice brings no speed
    expected_gain: float
    stages: tuple[StageDiagnosis, ...]
    #: samples per second that the training loop would take if it never waited
    loop_capacity: float
    #: samples per second, from the first batch on
    samples_per_s: float
    samples: int
    #: the time in epochs that it is about
    seconds: float
    #: how often a reservoir has served each sample, on average
    reuse: float

    def to_dict(self) -> dict[str, Any]:
        """The diagnosis as plain data, for JSON: what has no bound is None."""
        found = asdict(self)
        found["stages"] = [_finite(stage) for stage in found["stages"]]
        return _finite(found)

    def __str__(self) -> str:
        return "\n".join([self.advice, "", *table(self), "", _summary(self)])


def percent(share: float) -> str:
    """A share in words: ``97 %``."""
    return f"{share * 100:.0f} %"


def per_second(rate: float, what: str = "") -> str:
    """A rate in words: ``41.5/s``, or ``41.5 samples/s``."""
    return f"any{what}" if rate == inf else f"{rate:.3g}{what}/s" if rate < 1000 else f"{rate:.0f}{what}/s"


def times(number: float) -> str:
    """How often, in words: ``2.0 times``."""
    return f"{number:.1f} times"


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    return {key: None if value == inf else value for key, value in values.items()}


def table(diagnosis: Diagnosis) -> list[str]:
    """A line for each stage and one for the training loop: how each spent its time, and what it could do."""
    rows: list[tuple[str, ...]] = [("", "workers", "working", "waits for input", "for room", "could do")]
    for stage in diagnosis.stages:
        shares = [percent(share) for share in (stage.working, stage.waiting_input, stage.waiting_room)]
        rows.append((stage.label, f"{stage.workers} {stage.on}", *shares, per_second(stage.capacity)))
    share = diagnosis.wait_share
    rows.append(("training loop", "", percent(1 - share), percent(share), "", per_second(diagnosis.loop_capacity)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *cells in rows:
        text = "  ".join(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        mark = ">" if name == diagnosis.limiting else " "
        lines.append(f"{mark} {name.ljust(widths[0])}  {text}".rstrip())
    return lines


def _summary(diagnosis: Diagnosis) -> str:
    text = f"{diagnosis.samples} samples in {diagnosis.seconds:.3g} s, {per_second(diagnosis.samples_per_s)}"
    if diagnosis.seconds < _SHORT_S:
        text += "; that is too short a time to rely on"
    if diagnosis.reuse > 1:
        text += f"; a reservoir served each {times(diagnosis.reuse)} on average"
    return text
