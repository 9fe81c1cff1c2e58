"""Every test must end as it began: no thread, process, descriptor or shared memory left behind.

A failure of a random run (`make fuzz`, `make soak`) is kept in a file, with the command that runs it again.
"""

import os

# Before numpy is imported. Its library for linear algebra would start threads in each of hundreds of processes: a
# third of the CPU that the import takes. Nothing here multiplies large matrices.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import gc
import inspect
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from _pytest.doctest import DoctestModule
from tests import nursery
from tests.helpers import POOL, start_pool
from tests.later import Later
from tests.logs import Counted, Log
from tests.random_examples import KEPT, SEED, TIMES

from penstock.executors import servers
from penstock.executors.startup import keep_warm
from penstock.testing import ops as checked_ops
from penstock.testing import sources as checked_sources
from penstock.testing.layouts import FEW_PROCESS_LAYOUTS, Layout
from penstock.testing.leaks import leaks_since, snapshot

_failed = pytest.StashKey[bool]()

#: What test modules import, and with them the workers that take functions from there.
PRELOAD = ("pytest", "hypothesis.strategies", "hypothesis", "penstock", "penstock.testing", "tests.helpers")

FEW_LAYOUTS = (
    Layout("thread", 1),
    Layout("thread", 7, memory=1),
    Layout("thread", 3, keep=3),
    Layout("thread", 3, order=1),
)

#: the file whose tests run, and how many hundred modules are imported
_running: tuple[Path | None, int] = None, 0


def pytest_configure() -> None:
    # A shell starts `make test &` with interrupts ignored, and so would be all processes that tests interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    report = yield
    if report.failed:
        item.stash[_failed] = True
        if SEED is not None:
            _keep(item, report)
    return report


def _keep(item: pytest.Item, report: pytest.TestReport) -> None:
    """Write a failure of a random run to a file, and say how it is run again."""
    target = "soak" if item.get_closest_marker("soak") else "fuzz"
    command = f"PENSTOCK_SEED={SEED} PENSTOCK_TIMES={TIMES} make {target} ARGS='{item.nodeid}'"
    KEPT.mkdir(exist_ok=True)
    path = KEPT / (re.sub(r"\W+", "-", item.nodeid)[-150:] + f"-{SEED}.txt")
    path.write_text(f"{command}\n\n{report.longreprtext}\n")
    report.sections.append(("random data", f"run again: {command}\nkept in: {path}"))


class _WarmServer:
    """One server, and one pool of two processes, for all test modules in a row that need the same."""

    def __init__(self) -> None:
        self.preload: tuple[str, ...] = ()
        self.kept = ExitStack()

    def start(self, preload: tuple[str, ...]) -> None:
        if preload != self.preload:
            self.close()
            patch = self.kept.enter_context(pytest.MonkeyPatch.context())
            patch.setattr(servers, "PRELOAD", (*servers.PRELOAD, *preload))
            self.kept.enter_context(keep_warm())
            self.preload = preload

    def close(self) -> None:
        self.preload = ()
        POOL.close()
        self.kept.close()


_warm = _WarmServer()


@pytest.fixture
def counted(tmp_path: Path) -> Callable[..., Counted]:
    """Makes functions that count their calls."""
    numbers = count()
    return lambda *fn: Counted(Log(tmp_path / f"calls-{next(numbers)}"), *fn)


@pytest.fixture(scope="module")
def warm_processes(request: pytest.FixtureRequest) -> None:
    """Share one server among tests, so that a worker process starts in milliseconds.

    A module whose functions need more than others (torch) names it in a tuple `PRELOAD` of its own.
    """
    _warm.start((*PRELOAD, *_preload(request.node)))


@pytest.fixture(scope="module")
def warm_pool(warm_processes: None) -> None:
    """Have the processes run that all tests of layouts share."""
    start_pool()


def pytest_sessionfinish() -> None:
    _warm.close()
    nursery.stop()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Any:
    """Almost nothing that it makes is garbage; to look for some would take an eighth of its time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Any:
    """Files of tests have no examples in docstrings; to look for them is a quarter of the time of collection."""
    found = yield
    return [one for one in found if not isinstance(one, DoctestModule)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In an order that starts and imports little.

    Tests that import torch come first, so that one pytest process runs them all: it takes 2.5 s of CPU. Then come
    the modules with worker processes, so that one server, which takes 1 s, lasts for many of them.
    """
    warm = {item.path for item in items if "warm_processes" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: (not _imports_torch(item), item.path not in warm, _preload(item)))


def _preload(item: pytest.Item) -> tuple[str, ...]:
    return tuple(getattr(getattr(item, "module", None), "PRELOAD", ()))


def _imports_torch(item: pytest.Item) -> bool:
    if isinstance(getattr(getattr(item, "module", None), "torch", None), Later):
        return True
    code = getattr(inspect.unwrap(getattr(item, "function", None)), "__code__", None)
    return code is not None and "importorskip" in code.co_names and "torch" in code.co_consts


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.path not in _modules_with_processes(item.session):
        _warm.close()
    _freeze_before(item.path)


@cache
def _modules_with_processes(session: pytest.Session) -> set[Path]:
    return {item.path for item in session.items if "warm_processes" in getattr(item, "fixturenames", ())}


def _freeze_before(path: Path) -> None:
    """Between files, and after many imports, exempt what lives from garbage collection.

    Every look for leaks may be a collection, and one takes 0.2 s with all that torch or a file of tests keeps.
    """
    global _running
    if (now := (path, len(sys.modules) // 100)) != _running:
        _running = now
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _check_on_few_layouts() -> Iterator[None]:
    """The published checks try a layout of each kind in `make test`, and resume at few places; in random runs, all.

    One check of an op and one of a source ask for all layouts: see tests/testing.
    """
    with pytest.MonkeyPatch.context() as patch:
        if SEED is None:
            patch.setattr(checked_ops, "LAYOUTS", FEW_LAYOUTS)
            patch.setattr(checked_sources, "LAYOUTS", FEW_LAYOUTS)
            patch.setattr(checked_ops, "FEW_PROCESS_LAYOUTS", FEW_PROCESS_LAYOUTS[:1])
            patch.setattr(checked_sources, "FEW_PROCESS_LAYOUTS", FEW_PROCESS_LAYOUTS[:1])
            patch.setattr(checked_ops, "_PLACES", 3)
        yield


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    layout = getattr(request.node, "callspec", None) and request.node.callspec.params.get("layout")
    if getattr(layout, "processes", False):
        request.getfixturevalue("warm_pool")
    nursery.start()
    # Autouse comes first and so is torn down last: what a test's own fixtures close is closed by then.
    before = snapshot()
    yield
    # A long grace costs nothing where nothing leaks, and threads take their time on a busy machine.
    # The traceback of a failed test keeps its objects alive; a second error would only hide the first.
    if not request.node.stash.get(_failed, False) and (found := leaks_since(before, grace_s=30)):
        pytest.fail("left behind:\n  " + "\n  ".join(found), pytrace=False)
