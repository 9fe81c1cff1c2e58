"""What the page and ``penstock top`` show of a loader, as plain data, taken from its counters.

A `Feed` does not keep its loader alive. It remembers some minutes of throughput and wait, so that a page that is
opened late has its curves at once.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Mapping
from itertools import pairwise
from time import time
from typing import Any, NamedTuple

#: points of the curves, one per second
_POINTS = 300
#: rates are those of so many seconds
_WINDOW_S = 3.0
#: the verdict is about so many seconds
_VERDICT_S = 30.0
#: errors that are shown, and characters of each
_ERRORS, _LONG = 10, 500


class Gone(Exception):
    """Nobody holds the loader any more."""


class _Point(NamedTuple):
    """Counters at one moment."""

    now: float
    samples: float
    batches: float
    running_s: float
    wait_s: float
    cpu_s: float


class Feed:
    """Reads one loader for whoever watches it."""

    def __init__(self, loader: Callable[[], Any]) -> None:
        #: the loader, or None
        self._loader = loader
        self.began = time()
        self.title = os.path.basename(sys.argv[0] or "python")
        self._points: deque[_Point] = deque(maxlen=_POINTS)
        #: the plan, and the stages that had counters when it was asked for
        self._explained: Mapping[str, Any] = {}
        self._labels: set[str] | None = None

    def tick(self) -> None:
        """Remember one more point of the curves. Called once a second, by one thread."""
        self._points.append(_point(self._found().stats()))

    def snapshot(self, since: float = 0.0) -> dict[str, Any]:
        """Everything there is to show now; of the curves, what is newer than `since`."""
        loader = self._found()
        stats = loader.stats()
        diagnosis = loader.diagnose(last_s=_VERDICT_S)
        plan = self._plan(loader, stats)
        point = _point(stats)
        return {
            "title": self.title,
            "pid": os.getpid(),
            "now": point.now,
            "began": self.began,
            "state": self._state(stats, point),
            **{key: stats[key] for key in ("samples", "batches", "epoch", "errors", "deaths", "stuck")},
            "startup_s": stats["startup_s"],
            **self._rates(point),
            "wait_share_run": stats["wait_share"],
            "memory_bytes": stats["memory.bytes"],
            "blocks_bytes": stats["memory.blocks_bytes"],
            "verdict": _verdict(diagnosis),
            "stages": _stages(plan, diagnosis, stats),
            "recent_errors": [_error(record) for record in loader.errors()[-_ERRORS:]][::-1],
            "curves": self._curves(since),
        }

    def _plan(self, loader: Any, stats: Mapping[str, float]) -> Mapping[str, Any]:
        """The stages, asked for again only if the loader has made another plan: explaining may take long."""
        labels = {key for key in stats if key.endswith(".occupancy")}
        if labels != self._labels:
            self._explained, self._labels = loader.explain().to_dict(), labels
        return self._explained

    def prometheus(self) -> str:
        """The counters in the text format of Prometheus."""
        return str(self._found().prometheus())

    def _found(self) -> Any:
        loader = self._loader()
        if loader is None:
            raise Gone
        return loader

    def _state(self, stats: Mapping[str, float], point: _Point) -> str:
        if not stats["batches"]:
            return "starting" if stats["startup_s"] > 0 else "not read yet"
        last = self._points[-1] if self._points else None
        return "idle" if last is not None and last.running_s == point.running_s else "running"

    def _rates(self, point: _Point) -> dict[str, float]:
        points = self._points.copy()  # another thread adds to them
        before = next((one for one in points if one.now >= point.now - _WINDOW_S), point)
        return _between(before, point)

    def _curves(self, since: float) -> list[list[float]]:
        found = []
        for before, after in pairwise(self._points.copy()):
            if after.now > since:
                rates = _between(before, after)
                found.append([after.now, rates["samples_per_s"], rates["wait_share"]])
        return found


def _point(stats: Mapping[str, float]) -> _Point:
    return _Point(time(), *(stats[key] for key in ("samples", "batches", "running_s", "wait_s", "cpu_s")))


def _between(before: _Point, after: _Point) -> dict[str, float]:
    """Rates between two points. Where the run began between them, its first batch set some counters to 0."""
    passed = after.now - before.now
    grown = [max(one - other, 0.0) for one, other in zip(after, before, strict=True)]
    _, samples, batches, running_s, wait_s, cpu_s = grown
    return {
        "samples_per_s": samples / passed if passed > 0 else 0.0,
        "batches_per_s": batches / passed if passed > 0 else 0.0,
        "wait_share": min(wait_s / running_s, 1.0) if running_s > 0 else 0.0,
        "cores": cpu_s / running_s if running_s > 0 else 0.0,
    }


def _verdict(diagnosis: Any) -> dict[str, Any]:
    return {
        "limiting": diagnosis.limiting,
        "advice": diagnosis.advice,
        "expected_gain": diagnosis.expected_gain,
        "loop_capacity": diagnosis.to_dict()["loop_capacity"],
        "seconds": diagnosis.seconds,
    }


def _stages(plan: Mapping[str, Any], diagnosis: Any, stats: Mapping[str, float]) -> list[dict[str, Any]]:
    judged = {stage["label"]: stage for stage in diagnosis.to_dict()["stages"]}
    found = []
    for stage in plan["stages"]:
        label = stage["label"]
        counted = {
            key: stats.get(f"stage.{label}.{key}", 0.0) for key in ("fill", "occupancy", "samples", "workers")
        }
        shares = judged.get(label, {})
        found.append(
            {key: stage[key] for key in ("stage", "label", "source", "inputs", "joint", "on", "bound")}
            | {"ops": [op["op"] for op in stage["ops"]]}
            | counted
            | {key: shares.get(key) for key in ("working", "waiting_input", "waiting_room", "capacity")}
            | {"limits": label == diagnosis.limiting, "op_times": list(shares.get("ops", ()))}
        )
    return found


def _error(record: Any) -> dict[str, Any]:
    try:
        message = str(record.exception)
    except Exception:
        message = "(its message cannot be printed)"
    return {
        "op": record.op,
        "sample": str(record.index),
        "name": record.name[:_LONG],
        "epoch": record.epoch,
        "type": type(record.exception).__name__,
        "message": message[:_LONG],
    }
