"""A diagnosis: the verdict over a run, for programs and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any

from penstock.errors import PlanError
from penstock.lazy import named

#: counters of less say little
_SHORT_S = 0.5
#: cores that other programs take that are worth a word
_OTHERS = 0.2
#: ops that take a smaller share of a stage are left out of the table
_SHOWN = 0.005
#: of more ranks, those that wait longest are printed
_MOST_RANKS = 16
#: wait shares that differ by less are the same
_ALIKE = 0.1


@dataclass(frozen=True, slots=True)
class OpDiagnosis:
    """An op of a stage, or its source, by the tickets that were timed."""

    op: str
    #: its share of the time that the stage is at work
    share: float
    #: how long its calls take: half of them up to p50_s, 95 of 100 up to p95_s, 99 of 100 up to p99_s
    p50_s: float
    p95_s: float
    p99_s: float
    longest_s: float
    #: the share of its time in calls that take more than ten times as long as half of them do
    tail_share: float


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
    #: cores that it kept busy, on average
    cores: float = 0.0
    #: the share of its time at work in which its workers could have run, and no CPU was free for them
    delayed: float = 0.0
    #: its source and its ops in turn, where some of its tickets were timed
    ops: tuple[OpDiagnosis, ...] = ()


@dataclass(frozen=True, slots=True)
class RankDiagnosis:
    """One rank of a distributed run."""

    rank: int
    limiting: str
    wait_share: float
    samples_per_s: float
    loop_capacity: float


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
    #: the op that takes most of the limiting stage's time, where some of its tickets were timed
    limiting_op: str = ""
    #: cores that this run may keep busy, that it kept busy, and that other programs kept busy
    cores: float = 0.0
    cores_used: float = 0.0
    others: float = 0.0
    #: of several ranks: what `merge` was given, in a line each
    ranks: tuple[RankDiagnosis, ...] = ()

    @staticmethod
    def merge(diagnoses: Sequence[Diagnosis | Mapping[str, Any]]) -> Diagnosis:
        """One diagnosis of all ranks of a distributed run, in the order of the ranks.

        All ranks go at the speed of the slowest one. So it is the diagnosis of the rank whose loop waits longest,
        with a line for each of the others. Takes what ``to_dict()`` gives too, as it comes from another process.
        """
        if isinstance(diagnoses, (Diagnosis, Mapping)):
            raise _no_diagnoses(diagnoses)
        return merged([one if isinstance(one, Diagnosis) else _from_dict(one) for one in diagnoses])

    def to_dict(self) -> dict[str, Any]:
        """The diagnosis as plain data, for JSON: what has no bound is None."""
        found = asdict(self)
        for name in ("stages", "ranks"):
            found[name] = [_finite(one) for one in found[name]]
        return _finite(found)

    def __str__(self) -> str:
        return "\n".join([self.advice, "", *table(self), "", _summary(self), *_rank_lines(self.ranks)])

    def _repr_html_(self) -> str:
        text: str = named("penstock.showing.html:diagnosis_html")(self)
        return text


def percent(share: float) -> str:
    """A share in words: ``97 %``."""
    return f"{share * 100:.0f} %"


def per_second(rate: float, what: str = "") -> str:
    """A rate in words: ``41.5/s``, or ``41.5 samples/s``."""
    return f"any{what}" if rate == inf else f"{rate:.3g}{what}/s" if rate < 1000 else f"{rate:.0f}{what}/s"


def times(number: float) -> str:
    """How often, in words: ``2.0 times``."""
    return f"{number:.1f} times"


def duration(seconds: float) -> str:
    """
    >>> duration(0.0000213), duration(0.0123), duration(1.5)
    ('0.0213 ms', '12.3 ms', '1.5 s')
    """
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def size(nbytes: float) -> str:
    """A size as ``loader(memory=)`` takes it.

    >>> size(2_000_000_000), size(64_000_000), size(1500)
    ('2GB', '64MB', '1.5KB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if nbytes >= size:
            return f"{nbytes / size:.3g}{unit}"
    return f"{nbytes / 1e3:.3g}KB"


def caveat(seconds: float) -> str:
    """What to add to the figures of so many seconds."""
    return "; that is too short a time to rely on" if seconds < _SHORT_S else ""


def merged(diagnoses: Sequence[Diagnosis]) -> Diagnosis:
    """See `Diagnosis.merge`. Pure."""
    if not diagnoses:
        raise PlanError("Diagnosis.merge() needs the diagnosis of at least one rank")
    ranks = tuple(
        RankDiagnosis(rank, one.limiting, one.wait_share, one.samples_per_s, one.loop_capacity)
        for rank, one in enumerate(diagnoses)
    )
    slowest = max(ranks, key=lambda one: one.wait_share)
    found = diagnoses[slowest.rank]
    least = min(one.wait_share for one in ranks)
    alike = slowest.wait_share - least < _ALIKE
    most = percent(slowest.wait_share)
    if len(ranks) == 1:
        return replace(found, ranks=ranks)
    told = (
        f"All {len(ranks)} ranks wait about as long, up to {most} of their time. Rank {slowest.rank} waits longest:"
        if alike
        else f"Rank {slowest.rank} of {len(ranks)} waits longest, {most} of its time, and the others, "
        f"{percent(least)} and more, go at its speed. There:"
    )
    return replace(
        found,
        advice=f"{told} {found.advice}",
        samples=sum(one.samples for one in diagnoses),
        samples_per_s=sum(one.samples_per_s for one in diagnoses),
        ranks=ranks,
    )


def _from_dict(data: Any) -> Diagnosis:
    """What `to_dict` was made of."""
    try:
        return _restored(data)
    except (KeyError, TypeError, AttributeError):
        raise _no_diagnoses(data) from None


def _no_diagnoses(data: Any) -> PlanError:
    return PlanError(
        "Diagnosis.merge() takes a list with the diagnosis of each rank, or with what its to_dict() gives; it got "
        f"{data!r:.80}"
    )


def _restored(data: Mapping[str, Any]) -> Diagnosis:
    stages = tuple(
        StageDiagnosis(**{**_boundless(one, "capacity"), "ops": tuple(OpDiagnosis(**op) for op in one["ops"])})
        for one in data["stages"]
    )
    ranks = tuple(RankDiagnosis(**_boundless(one, "loop_capacity")) for one in data.get("ranks", ()))
    return Diagnosis(**{**_boundless(data, "loop_capacity"), "stages": stages, "ranks": ranks})


def _boundless(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {**values, key: inf if values[key] is None else values[key]}


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
    op_lines = {stage.label: _op_lines(stage) for stage in diagnosis.stages}
    for name, *cells in rows:
        text = "  ".join(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        mark = ">" if name == diagnosis.limiting else " "
        lines.append(f"{mark} {name.ljust(widths[0])}  {text}".rstrip())
        lines += op_lines.get(name, [])
    return lines


def _op_lines(stage: StageDiagnosis) -> list[str]:
    """How the ops of a stage share its time, unless there is one that the stage is called after."""
    shown = [op for op in stage.ops if op.share >= _SHOWN]
    if [op.op for op in shown] in ([], [stage.label]):
        return []
    widest = max(len(op.op) for op in shown)
    return [
        f"      {op.op.ljust(widest)}  {percent(op.share):>5}   p50 {duration(op.p50_s)}, p95 "
        f"{duration(op.p95_s)}, p99 {duration(op.p99_s)}"
        for op in shown
    ]


RANK_HEAD = ("", "waits", "gets", "could take", "limited by")


def rank_rows(ranks: Sequence[RankDiagnosis]) -> list[tuple[str, ...]]:
    """The cells of each rank, under `RANK_HEAD`; of many ranks, those that wait longest."""
    shown = sorted(ranks, key=lambda one: -one.wait_share)[:_MOST_RANKS]
    return [
        (
            f"rank {one.rank}",
            percent(one.wait_share),
            per_second(one.samples_per_s),
            per_second(one.loop_capacity),
            one.limiting,
        )
        for one in sorted(shown, key=lambda one: one.rank)
    ]


def _rank_lines(ranks: Sequence[RankDiagnosis]) -> list[str]:
    """A line for each rank; of many, for those that wait longest."""
    if len(ranks) < 2:
        return []
    rows = [RANK_HEAD, *rank_rows(ranks)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "",
        *(f"  {name.ljust(widths[0])}  {_right(cells, widths[1:])}  {last}" for name, *cells, last in rows),
    ]
    if left := len(ranks) - len(rows) + 1:
        lines.append(f"  and {left} ranks that wait less")
    return lines


def _right(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=False))


def _summary(diagnosis: Diagnosis) -> str:
    text = f"{diagnosis.samples} samples in {diagnosis.seconds:.3g} s, {per_second(diagnosis.samples_per_s)}"
    if diagnosis.others >= _OTHERS:
        text += f"; other programs kept {diagnosis.others:.1f} cores busy"
    text += caveat(diagnosis.seconds)
    if diagnosis.reuse > 1:
        text += f"; a reservoir served each {times(diagnosis.reuse)} on average"
    return text
