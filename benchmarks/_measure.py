"""Run contestants in alternating pairs and say whether a target holds.

A shared machine changes speed from minute to minute, so absolute figures of two runs cannot be compared.
Here the two sides of a ratio are run one directly after the other, each going first in every second pair, and
what is reported is the ratio *inside* each pair: its median, its quartiles and its extremes.

A benchmark file does this:

    bench = Bench("overhead", __doc__)
    bench.versus("one stage", ours, bare, at_least=0.8)     # callables; the ratio is our rate / the bare rate
    bench.limit("first batch", seconds_in_ms, below=5, unit="ms")
    bench.finish()                                          # prints, writes --json, honours --strict

A contestant with a method `prepare` gets it called before its clock starts. `BareProcesses` is the bare side
of what runs in worker processes.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from penstock.executors.newborn import _keep_freed_memory as same_mallopt_as_our_workers

MIN_PAIRS = 7
QUICK_PAIRS = 3
ENOUGH = 0.85  # of the cores that a bare side needs; with less, other programs had them

# Does the whole job once; what it returns must be equal on both sides (usually the number of samples).
Contestant = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Result:
    """One measured quantity: its values, and the bound that its median has to respect."""

    name: str
    values: Sequence[float]
    target: float
    at_least: bool
    unit: str = "x"
    runs: Sequence[dict[str, float]] = ()  # what each pair of a ratio took, to explain odd values
    discarded: int = 0  # pairs in which the bare side did not get its cores
    measured: bool = True

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.values) < 2:
            return self.values[0], self.values[0]
        low, _, high = quantiles(self.values, n=4, method="inclusive")
        return low, high

    @property
    def holds(self) -> bool:
        respected = self.median >= self.target if self.at_least else self.median < self.target
        return self.measured and respected

    @property
    def close(self) -> bool:
        """The target lies between the quartiles: another run may well give the other verdict."""
        low, high = self.quartiles
        return low <= self.target <= high

    @property
    def verdict(self) -> str:
        if not self.measured:
            return f"NOT MEASURED (the bare side lacked cores in {self.discarded} pairs)"
        return ("holds" if self.holds else "MISSED") + (" (close)" if self.close else "")

    @property
    def bound(self) -> str:
        return f"{'>=' if self.at_least else '<'} {self.target:g} {self.unit}".rstrip()

    def line(self) -> str:
        low, high = self.quartiles
        return (
            f"  {self.name:<44} {self.median:8.3f} {self.unit:<2} "
            f"IQR {low:.3f}..{high:.3f}  range {min(self.values):.3f}..{max(self.values):.3f}  "
            f"target {self.bound}: {self.verdict}"
            + (f" [{self.discarded} pairs made again]" if self.discarded and self.measured else "")
        )

    def as_json(self) -> dict[str, Any]:
        low, high = self.quartiles
        return {
            **asdict(self),
            "median": self.median,
            "q1": low,
            "q3": high,
            "min": min(self.values),
            "max": max(self.values),
            "holds": self.holds,
            "close": self.close,
            "verdict": self.verdict,
        }


class Bench:
    """The results of one benchmark file, and its command line."""

    def __init__(self, question: str, doc: str | None, argv: Sequence[str] | None = None) -> None:
        doc = doc or question
        args = _parser(doc).parse_args(argv)
        if args.pairs is not None and args.pairs < MIN_PAIRS and not args.quick:
            raise SystemExit(f"--pairs must be at least {MIN_PAIRS}, got {args.pairs}; --quick allows fewer")
        self.question = question
        self.quick: bool = args.quick
        self.pairs: int = args.pairs or (QUICK_PAIRS if args.quick else MIN_PAIRS)
        self.results: list[Result] = []
        self._strict: bool = args.strict
        self._only: str = args.only
        self._json: Path | None = args.json
        self._load_before = _load()
        print(f"{question}: {doc.strip().splitlines()[0]}", flush=True)
        if self.quick:
            print("  (--quick: small sizes, few pairs; a smoke test, not a measurement)", flush=True)

    def size(self, full: int, quick: int) -> int:
        """The amount of work: `full`, or `quick` under --quick."""
        return quick if self.quick else full

    def wanted(self, name: str) -> bool:
        """Whether --only chooses this case."""
        return self._only in name

    def versus(
        self, name: str, ours: Contestant, bare: Contestant | float, *, at_least: float, cores: int = 1
    ) -> None:
        """Measure our rate over the rate of `bare`, which is a callable, or the seconds of an ideal run.

        A bare side that should keep several `cores` busy and could not is no yardstick: we would look good
        against it. Such pairs are made again, up to twice the number asked for, and counted. Our own side is
        never a reason to discard a pair.
        """
        _run(ours)  # warm-up of both sides: imports, allocator, page cache
        if callable(bare):
            _run(bare)
        kept: list[dict[str, float]] = []
        discarded: list[dict[str, float]] = []
        while len(kept) < self.pairs and len(discarded) < 2 * self.pairs:
            run = _pair(ours, bare, ours_first=(len(kept) + len(discarded)) % 2 == 0)
            had_cores = cores == 1 or run["bare_cpu_s"] >= ENOUGH * cores * run["bare_s"]
            (kept if had_cores else discarded).append(run)
        measured = len(kept) == self.pairs
        runs = kept if measured else kept + discarded
        ratios = [run["bare_s"] / run["ours_s"] for run in runs]
        lost = len(discarded)
        self._add(Result(name, ratios, at_least, True, runs=runs, discarded=lost, measured=measured))

    def limit(
        self, name: str, values: Sequence[float], *, below: float, unit: str, runs: Sequence[dict[str, float]] = ()
    ) -> None:
        """Record values measured elsewhere, whose median has to stay below a bound, and what each was made of."""
        self._add(Result(name, values, below, at_least=False, unit=unit, runs=list(runs)))

    def _add(self, result: Result) -> None:
        self.results.append(result)
        print(result.line(), flush=True)

    def finish(self) -> None:
        """Write the JSON file if asked for; under --strict leave with 1 unless every target holds."""
        missed = [result.name for result in self.results if not result.holds]
        print(f"  {len(self.results) - len(missed)} of {len(self.results)} targets hold", flush=True)
        if self._json is not None:
            self._json.parent.mkdir(parents=True, exist_ok=True)
            self._json.write_text(json.dumps(self.as_json(), indent=1) + "\n")
        if self._strict and missed:
            sys.exit(1)

    def as_json(self) -> dict[str, Any]:
        return {
            "question": self.question,
            "quick": self.quick,
            "pairs": self.pairs,
            "date": datetime.now(UTC).date().isoformat(),
            "machine": {
                "cpus": os.cpu_count(),
                "system": platform.system(),
                "arch": platform.machine(),
                "load_before": self._load_before,
                "load_after": _load(),
            },
            "versions": {
                "python": platform.python_version(),
                **_versions("penstock", "numpy", "pillow", *_peers()),
            },
            "results": [result.as_json() for result in self.results],
        }


def _parser(doc: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, help=f"pairs per ratio, at least {MIN_PAIRS} (the default)")
    parser.add_argument("--quick", action="store_true", help="small sizes and few pairs: a smoke test")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every value to FILE")
    parser.add_argument(
        "--only",
        default="",
        metavar="TEXT",
        help="only cases with TEXT in their name, where a benchmark can choose",
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 unless every target holds")
    return parser


class BareProcesses:
    """Processes that are up already and do nothing but call `work`, each with a share of its own.

    They are forked from here, so that the shares need not be sent, and use the allocator as our workers do.
    Calling it has each of them do its share once, and returns the sum of what they return.
    """

    def __init__(self, work: Callable[[Any], int], shares: Sequence[Any]) -> None:
        fork = multiprocessing.get_context("fork")
        self._pipes = []
        self._processes = []
        for share in shares:
            ours, theirs = fork.Pipe()
            process = fork.Process(target=_bare_loop, args=(theirs, work, share), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __call__(self) -> int:
        for pipe in self._pipes:
            pipe.send(True)
        return sum(pipe.recv() for pipe in self._pipes)

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send(False)
        for process in self._processes:
            process.join()


def _bare_loop(pipe: Any, work: Callable[[Any], int], share: Any) -> None:
    same_mallopt_as_our_workers()
    gc.freeze()  # what was inherited is not looked at again and again
    while pipe.recv():
        pipe.send(work(share))


@dataclass(frozen=True, slots=True)
class _Run:
    seconds: float
    cpu_s: float  # of all threads and processes; against the seconds: were the cores there to be had?
    outcome: object


def _run(contestant: Contestant) -> _Run:
    gc.collect()  # the garbage of one side must not be collected on the other's time
    if prepare := getattr(contestant, "prepare", None):
        prepare()
    cpu, start = _cpu_s(), time.perf_counter()
    outcome = contestant()
    seconds = time.perf_counter() - start
    return _Run(seconds, _cpu_s() - cpu, outcome)


def _cpu_s() -> float:
    """CPU seconds of this process and of those that have come from it and are alive; the latter on Linux."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = stat.read_bytes().rpartition(b")")[2].split()
            pid = int(stat.parent.name)
            parents[pid], ticks[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    family.remove(os.getpid())
    children_s = sum(ticks[pid] for pid in family) / os.sysconf("SC_CLK_TCK") if family else 0.0
    return time.process_time() + children_s


def _pair(ours: Contestant, bare: Contestant | float, *, ours_first: bool) -> dict[str, float]:
    """One run of each side."""
    if not callable(bare):
        our = _run(ours)
        return {"ours_s": our.seconds, "ours_cpu_s": our.cpu_s, "bare_s": bare}
    first, second = (_run(ours), _run(bare)) if ours_first else (_run(bare), _run(ours))
    our, other = (first, second) if ours_first else (second, first)
    if our.outcome != other.outcome:
        raise AssertionError(f"the two sides did different work: {our.outcome!r} against {other.outcome!r}")
    return {
        "ours_s": our.seconds,
        "ours_cpu_s": our.cpu_s,
        "bare_s": other.seconds,
        "bare_cpu_s": other.cpu_s,
    }


def _load() -> float | None:
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _peers() -> list[str]:
    """Those that have taken part."""
    names = ("torch", "spdl", "grain", "tensorpack", "torchdata", "trw", "batchup")
    return [name for name in names if name in sys.modules]


def _versions(*names: str) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
