"""What tests of ops and sources share: the layouts in which a pipeline must deliver the same stream."""

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.cases import F, for_each
from tests.runtime.process_helpers import IN_POOL, workers

from penstock import Pipeline, Processes, from_sequence


@dataclass(frozen=True)
class Layout:
    """One way to run a pipeline: how its op is placed, and how its loader is made."""

    label: str
    place: dict[str, Any] = field(default_factory=dict)
    loader: dict[str, Any] = field(default_factory=dict)
    asynchronous: bool = False
    #: runs on worker processes, so functions share nothing with the test
    processes: bool = False

    def fn(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` as this layout calls it."""
        return awaited(function) if self.asynchronous else function

    def epochs(self, pipeline: Pipeline[Any], n: int, seed: int = 0) -> list[list[Any]]:
        """The samples of the first `n` epochs."""
        with pipeline.loader(seed=seed, epochs=n, **self.loader) as loader:
            return [list(samples) for _, samples in loader.epochs(n)]

    def run(self, pipeline: Pipeline[Any], seed: int = 0) -> list[Any]:
        """The samples of one epoch."""
        return self.epochs(pipeline, 1, seed)[0]

    def __str__(self) -> str:
        return self.label


def named(value: Any) -> str:
    """What a test with this value is called: the same in every process, so without an address."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def awaited(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` as a coroutine function."""

    async def call(*args: Any) -> Any:
        return function(*args)

    call.__name__ = function.__name__
    return call


INLINE = Layout("inline", loader={"inline": True})
BACKGROUND = Layout("background")
FOUR = Layout("4-workers", place={"workers": 4})
DEFAULTED = Layout("loader-3-workers", loader={"workers": 3})
ASYNC = Layout("async", place={"workers": 3}, asynchronous=True)
#: shared by all tests of layouts, since two processes take 50 ms of CPU to start; see `warm_pool`
POOL = Processes(2)
TWO_PROCESSES = Layout("2-processes", place={"on": POOL}, loader={"on": POOL}, processes=True)
DEFAULTED_PROCESSES = Layout("loader-3-processes", loader={"on": "process", "workers": 3}, processes=True)


def start_pool() -> None:
    """Have the processes of `POOL` run, if they do not. `POOL.close()` ends them; they may be started again."""
    if POOL.live is None:
        IN_POOL.clear()
        there = set(workers())
        assert list(from_sequence(range(100)).map(abs, on=POOL)) == list(range(100))
        IN_POOL.update(set(workers()) - there)


# One of each kind: `penstock.testing.layouts` and test_same_stream.py go through numbers of workers, too.
THREADS = [INLINE, BACKGROUND, FOUR, DEFAULTED]
PROCESSES = [TWO_PROCESSES, DEFAULTED_PROCESSES]
FEW_THREADS = [INLINE, BACKGROUND, FOUR]


def with_layouts(*layouts: Layout) -> Callable[[F], F]:
    """A test with a `layout` argument goes through these layouts."""
    return for_each("layout", layouts)


any_layout = with_layouts(*THREADS, ASYNC, TWO_PROCESSES)
#: the same without coroutines, for ops that take no function
any_workers = with_layouts(*THREADS, TWO_PROCESSES)
#: a small choice, where one of each kind is enough
few_layouts = with_layouts(*FEW_THREADS, TWO_PROCESSES)

# The same in one process alone: for tests whose functions tell the test something, in a list of both.
any_layout_here = with_layouts(*THREADS, ASYNC)
any_threads = with_layouts(*THREADS)
few_threads = with_layouts(*FEW_THREADS)


def plain(tree: Any) -> Any:
    """Arrays as lists, so that batches can be compared."""
    if hasattr(tree, "tolist"):
        return tree.tolist()
    if isinstance(tree, dict):
        return {name: plain(value) for name, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(map(plain, tree)) if not hasattr(tree, "_fields") else type(tree)(*map(plain, tree))
    return tree


def until_error(samples: Any, kind: type[BaseException]) -> tuple[list[Any], BaseException]:
    """What comes before the exception of that kind, and the exception."""
    seen: list[Any] = []
    with pytest.raises(kind) as caught:
        for sample in samples:
            seen.append(sample)
    return seen, caught.value


def in_threads(function: Callable[[int], Any], count: int) -> None:
    """Call ``function(number)`` in so many threads at once, and wait for all of them."""
    threads = [threading.Thread(target=function, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
