"""Counters in the text format of Prometheus. Pure.

``stage.decode.working_s`` becomes ``penstock_stage_working_seconds_total{stage="decode"}``: what only grows is a
counter, all else a gauge. A counter that is new in `stats()` is exported by the same rules, without an edit here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isfinite

from penstock.errors import PlanError
from penstock.stats.histogram import Histogram

#: what only grows, beside seconds
_COUNTS = frozenset(
    [
        "samples",
        "batches",
        "errors",
        "deaths",
        "stuck",
        "lock_tries",
        "lock_held",
        "calls",
        "quota_periods",
        "quota_throttled",
        "timed_bytes",
        "draws",
        "waits",
        "hits",
        "misses",
        "evicted",
        "host_waits",
    ]
)
#: seconds that are no sum: those of one moment, means and percentiles
_MOMENTS = frozenset(["startup_s", "age_s", "p50_s", "p95_s", "p99_s", "longest_s"])

_HELP = {
    "samples": "samples handed to the training loop",
    "wait_s": "time that the training loop waited for data",
    "running_s": "time spent in epochs, from the first batch on",
    "wait_share": "wait over running",
    "stage.working_s": "time that workers of the stage had a ticket in hand",
    "stage.waiting_input_s": "time that workers of the stage waited for input",
    "stage.waiting_room_s": "time that workers of the stage waited for room for what they would make",
    "stage.fill": "share of the stage's room that finished work takes now",
}

#: kind, help, and lines
_Family = tuple[str, str, list[str]]


def prometheus(
    stats: Mapping[str, float],
    stages: Sequence[str],
    tickets: Mapping[str, Histogram],
    waits: Histogram,
    labels: Mapping[str, str],
) -> str:
    """All counters, and how long tickets and waits took.

    >>> print(prometheus({"samples": 3, "stage.a.b.fill": 0.5}, ["a.b"], {}, Histogram(), {"rank": "0"}))
    # HELP penstock_samples_total samples handed to the training loop
    # TYPE penstock_samples_total counter
    penstock_samples_total{rank="0"} 3
    ...
    penstock_stage_fill{rank="0",stage="a.b"} 0.5
    ...
    """
    for name in labels:
        if not (name.isascii() and name.isidentifier()) or name.startswith("__") or name in ("stage", "op", "le"):
            raise PlanError(
                f"prometheus(): {name!r} cannot be a label here; use another name of letters and digits"
            )
    families: dict[str, _Family] = {}
    by_length = sorted(stages, key=len, reverse=True)
    for key, value in stats.items():
        key, more = _located(key, by_length)
        name, kind = _named(key)
        _, _, lines = families.setdefault(name, (kind, _HELP.get(key, f"{key} of loader.stats()"), []))
        lines.append(f"{name}{_braces({**labels, **more})} {_number(value)}")
    for label, histogram in tickets.items():
        _add(
            families,
            "penstock_stage_ticket_seconds",
            "how long tickets took",
            histogram,
            {**labels, "stage": label},
        )
    _add(families, "penstock_loop_wait_seconds", "how long each wait of the training loop took", waits, labels)
    return "".join(_text(name, *family) for name, family in families.items())


def _located(key: str, stages: Sequence[str]) -> tuple[str, dict[str, str]]:
    """A key without the name of the stage or op that it belongs to, and that name as a label."""
    if key.startswith("stage."):
        for label in stages:
            if key.startswith(f"stage.{label}."):
                return _of_op(key[len(label) + 7 :], {"stage": label})
    head, dot, last = key.rpartition(".")
    if dot and head != "memory":
        return f"op.{last}", {"op": head.removeprefix("stage.")}
    return key, {}


def _of_op(rest: str, labels: dict[str, str]) -> tuple[str, dict[str, str]]:
    """What a stage counts: of itself, or of one of its ops."""
    if not rest.startswith("op."):
        return f"stage.{rest}", labels
    op, _, last = rest.removeprefix("op.").rpartition(".")
    return f"stage.op.{last}", labels | {"op": op}


def _named(key: str) -> tuple[str, str]:
    """The name of a metric, and its kind."""
    name = "penstock_" + "".join(char if char.isalnum() else "_" for char in key)
    last = key.rpartition(".")[2]
    if last.endswith("_s"):
        name = name.removesuffix("_s") + "_seconds"
    grows = last in _COUNTS or (last.endswith("_s") and last not in _MOMENTS)
    return (f"{name}_total", "counter") if grows else (name, "gauge")


def _add(
    families: dict[str, _Family], name: str, about: str, histogram: Histogram, labels: Mapping[str, str]
) -> None:
    _, _, lines = families.setdefault(name, ("histogram", about, []))
    for bound, count in [*histogram.cumulative(), (inf, histogram.count)]:
        lines.append(f"{name}_bucket{_braces({**labels, 'le': _number(bound)})} {count}")
    lines.append(f"{name}_sum{_braces(labels)} {_number(histogram.total_s)}")
    lines.append(f"{name}_count{_braces(labels)} {histogram.count}")


def _text(name: str, kind: str, about: str, lines: list[str]) -> str:
    return "\n".join([f"# HELP {name} {about}", f"# TYPE {name} {kind}", *lines]) + "\n"


def _braces(labels: Mapping[str, str]) -> str:
    escape = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    inside = ",".join(f'{name}="{str(value).translate(escape)}"' for name, value in labels.items())
    return f"{{{inside}}}" if inside else ""


def _number(value: float) -> str:
    if not isfinite(value):
        return "+Inf" if value > 0 else "-Inf" if value < 0 else "NaN"
    return str(value)
