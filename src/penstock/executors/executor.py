"""The contract of an executor: it starts workers and gives them a place to wait.

An executor knows nothing of tickets, order or failure. It is handed a loop (`work`), starts
something that runs it (a thread, a coroutine, a process with a thread in front of it), and can
wake it, wait for its end and say where it stands. The loop itself is written once, in
`penstock.core.work`; `penstock.testing.check_executor` tries a new executor.

A `Placement` says where an op runs; a `Pool` is a placement that several pipelines share.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from penstock.checks import whole_number
from penstock.errors import PlanError
from penstock.machine import usable_cpus

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: the executors that come with penstock, by name: the class, or where it is, as "module:name"
OWN: dict[str, type[Executor] | str] = {
    "async": "penstock.executors.coroutines:AsyncExecutor",
    "inline": "penstock.executors.inline:InlineExecutor",
    "process": "penstock.executors.processes:ProcessExecutor",
    "thread": "penstock.executors.threads:ThreadExecutor",
}


class Worker(ABC):
    """One worker of an executor: it runs the loop until the loop returns."""

    name: str
    #: abandoned while inside a call: the worker ends as soon as the call returns
    retired: bool = False
    #: a test chooses who runs next, so `turn` is called wherever another worker might as well run
    staged: bool = False

    @abstractmethod
    def park(self) -> Any:
        """Wait until `unpark`. What it returns is awaited, if the executor is asynchronous."""

    def turn(self) -> None:
        """A point where another worker might just as well run; tests use it to choose which."""

    @abstractmethod
    def unpark(self) -> None:
        """Wake the worker if it waits. Never blocks, never takes a lock."""

    def interrupt(self) -> None:
        """End the call in hand, where that is possible."""

    def forgo(self) -> None:
        """The loader may have dropped the epoch: the worker need not finish a ticket that nobody waits for."""

    @abstractmethod
    def join(self, timeout_s: float) -> bool:
        """Wait for the loop to return; False if it has not within `timeout_s`."""

    @property
    def starting(self) -> bool:
        """Whether it has a ticket, and cannot begin because its process is still being started."""
        return False

    def frame(self) -> FrameType | None:
        """The frame the worker stands in, if it is in this process and in a thread of its own."""
        return None

    @abstractmethod
    def stack(self) -> str:
        """Where the worker stands right now, as a formatted traceback."""


class Executor(ABC):
    """Starts workers. One executor object serves one pool."""

    kind: ClassVar[str]
    #: workers are coroutines on an event loop and run `async def` functions
    asynchronous: ClassVar[bool] = False
    #: has no workers: the reader itself runs every ticket
    inline: ClassVar[bool] = False
    #: behind each worker is a process, which runs the tickets; see `penstock.executors.processes`
    remote: ClassVar[bool] = False
    #: what a worker runs, as "module:name", if it is not the loop of a thread, or of a coroutine if `asynchronous`
    loop: ClassVar[str] = ""
    #: what makes of a program something that can be sent to the workers, if they are `remote`
    packs: ClassVar[str] = ""
    #: workers of an op that names this executor but no number
    default_workers: ClassVar[int] = 1
    #: workers that a loader may start where it finds the number itself
    most_workers: ClassVar[int] = 256

    @classmethod
    def of(cls, pool: Pool | None) -> Executor:
        """An executor for a pool, with the pool's own settings, or for none."""
        return cls()

    @abstractmethod
    def start(self, work: Callable[[Any], Any], name: str) -> Worker:
        """Start a worker that runs ``work(worker)`` (awaits it, if `asynchronous`).

        Several threads may do so at once. Workers may all end, and others be started later.
        """

    def expect(self, program: Any) -> None:
        """Workers that are started from now on are going to run this program, where they are `remote`."""

    def unshared(self, program: Any) -> str:
        """Why each worker loads such a program by itself, as far as that is known; empty if none does."""
        return ""

    def close(self) -> None:
        """Called after all workers have ended."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an op runs: a kind of executor, a number of workers, or a pool and a cap in it."""

    kind: str
    workers: int | str | None = None
    pool: Pool | None = None

    @classmethod
    def of(cls, on: str | Pool | None, workers: int | str | None, what: str) -> Placement | None:
        """The placement that `on` and `workers` ask for; None when they ask for nothing. No workers: inline."""
        workers = _checked(workers, what, least=0)
        if workers == 0 and (on is None or isinstance(on, (str, Pool))):
            return cls("inline")
        if isinstance(on, Pool):
            return cls(on.kind, workers, on)
        if on is None:
            return None if workers is None else cls("thread", workers)
        if not isinstance(on, str):
            raise PlanError(
                f"{what}: on= takes the name of an executor, such as 'thread', or a pool such as ps.Threads(4), "
                f"got {on!r}"
            )
        if on not in OWN and on not in (others := registered()):
            raise no_executor(on, others)
        return cls(on, workers)


def registered() -> dict[str, EntryPoint]:
    """The executors of third parties: entry points of the group ``penstock.executors``, by name."""
    from importlib.metadata import entry_points  # takes long, and few have such executors

    return {entry.name: entry for entry in entry_points(group="penstock.executors")}


def no_executor(kind: str, others: Iterable[str]) -> PlanError:
    """To be raised where `kind` is neither ours nor one of the `others`."""
    return PlanError(f"there is no executor called {kind!r}; there are: {', '.join(sorted({*OWN, *others}))}")


def worker_count(workers: int | str) -> int:
    """A number of workers: the number itself, or for "auto" in a pool one per CPU that this process may use."""
    return workers if isinstance(workers, int) else usable_cpus()


def _checked(workers: Any, what: str, least: int = 1) -> int | str | None:
    """A number of workers as it was asked for; refuses what is none."""
    if workers is None or (isinstance(workers, str) and workers == "auto"):
        return workers
    try:
        return whole_number(workers, f"{what}: workers=", least=least)
    except PlanError as exc:
        raise PlanError(
            f"{exc}; 'auto' finds the number while it runs, map(workers=0) runs in the calling thread"
        ) from None


@dataclass(eq=False)
class Pool:
    """Workers that several pipelines share. Made by `ps.Threads(n)`; pickles as its description.

    Workers start when they are first needed and stay warm until `close`, the end of the
    ``with`` block, or until nobody holds the pool any more.
    """

    kind: ClassVar[str] = ""
    workers: int
    #: what runs behind the pool in this process; the runtime fills it in
    live: Any = field(default=None, repr=False, init=False)

    def __post_init__(self) -> None:
        self.workers = worker_count(_checked(0 if self.workers is None else self.workers, type(self).__name__) or 1)

    def close(self) -> None:
        """End the workers. Loaders that still use the pool are closed first."""
        live, self.live = self.live, None
        if live is not None:
            live.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.workers,)
