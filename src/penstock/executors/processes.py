"""The process executor: behind each worker is a process of its own, with a thread of ours in front of it.

The thread takes tickets and hands in chunks as any other worker does; the process runs them. What the
two say to each other is the runtime's (`penstock.remote.front` and `serving`); here is how a process
is started, replaced and ended. The `Blocks` in which batches come back belong to a loader, so that they
count for its bound on memory and end with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal, Protocol

from penstock.errors import PlanError
from penstock.executors.executor import Executor, Pool
from penstock.executors.startup import Process, StartOptions
from penstock.executors.templates import Loadable, Templates
from penstock.executors.threads import ThreadWorker
from penstock.machine import memory_limit, usable_cpus
from penstock.memory.block import Blocks

#: what a new process runs; named and not imported, since it is further up
_ENTRY = "penstock.remote.serving:serve"
#: of the memory of the machine, what batches may take that are on their way or kept
_SHARE_OF_MEMORY = 4

OnDeath = Literal["restart", "raise"]


class Front(Protocol):
    """The runtime's own view of a worker process."""

    @property
    def starting(self) -> bool:
        """It has a ticket, and its process is still being started."""

    def forgo(self) -> None:
        """See `Worker.forgo`."""


class ProcessWorker(ThreadWorker):
    """One thread, and the process behind it."""

    def __init__(self, work: Callable[[Any], Any], name: str, executor: ProcessExecutor) -> None:
        self.executor = executor
        #: set by the loop, when it begins
        self.front: Front | None = None
        #: starts in the background, so several processes start at once
        self.process = executor.new_process(name)
        try:
            super().__init__(work, name)
        except BaseException:
            self.process.close()
            raise

    def renew(self) -> Process:
        """Another process in place of the one that has ended."""
        # In this order: the server that starts processes ends with the last one that it has started.
        ended, self.process = self.process, self.executor.new_process(self.name)
        ended.close()
        return self.process

    def interrupt(self) -> None:
        self.process.hang_up()

    def forgo(self) -> None:
        if self.front is not None:
            self.front.forgo()

    @property
    def starting(self) -> bool:
        return self.front is not None and self.front.starting

    def stack(self) -> str:
        return f"  in {self.process!r}"


class ProcessExecutor(Executor):
    """Starts processes."""

    kind: ClassVar[str] = "process"
    remote: ClassVar[bool] = True
    loop: ClassVar[str] = "penstock.remote.front:work_remote"
    packs: ClassVar[str] = "penstock.remote.portable:packed_program"
    #: each takes memory for itself, so fewer than threads: what waits rather than computes belongs on those
    most_workers: ClassVar[int] = min(4 * usable_cpus(), Executor.most_workers)

    def __init__(self, options: StartOptions | None = None, on_death: OnDeath = "restart") -> None:
        self.options = options or StartOptions()
        self.on_death = on_death
        self.templates = Templates(self.options)

    @classmethod
    def of(cls, pool: Pool | None) -> ProcessExecutor:
        if not isinstance(pool, Processes):
            return cls()
        options = StartOptions(pool.start, tuple(sorted(pool.env.items())), pool.mallopt)
        return cls(options, pool.on_death)

    def new_process(self, name: str) -> Process:
        """Start a process; it is ready later."""
        return self.templates.new_process(_ENTRY, name)

    def expect(self, program: Loadable) -> None:
        self.templates.add(program)

    def unshared(self, program: Loadable) -> str:
        return self.templates.why_not(program)

    def start(self, work: Callable[[Any], Any], name: str) -> ProcessWorker:
        return ProcessWorker(work, name, self)


def default_blocks(spare: Callable[[int], int] | None = None, filled: float = 0.5) -> Blocks:
    """Blocks for the batches of one loader; see `Blocks` for the rest."""
    return Blocks(_memory_bytes() // _SHARE_OF_MEMORY, spare, filled)


def _memory_bytes() -> int:
    """The memory of this machine, or of the container that this process runs in."""
    try:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        machine = 8 << 30
    return min(machine, memory_limit() or machine)


@dataclass(eq=False)
class Processes(Pool):
    """A pool of processes that several pipelines share: ``map(fn, on=pool)``.

    ``workers=`` of an op on the pool is then a cap within it. A script needs no main guard: lambdas,
    closures and what is defined in a script or a notebook are sent as they are. Modules that these use
    are imported once, in a process from which the workers are forked.

    A process that dies is replaced and its work redone; with ``on_death="raise"`` it ends the run in
    ``ps.WorkerDied``. ``start`` is ``"forkserver"`` (where there is one), ``"spawn"`` or ``"fork"``.
    ``env`` are environment variables for the processes: they see no GPU and compute on one thread
    each unless these say otherwise, as in ``env={"OMP_NUM_THREADS": "4"}``. ``mallopt=False`` leaves
    the C library's allocator as it is.

    >>> import penstock as ps
    >>> with ps.Processes(2) as pool:
    ...     list(ps.from_sequence([1, 2, 3]).map(lambda x: x * 10, on=pool))
    [10, 20, 30]
    """

    kind: ClassVar[str] = "process"
    _: KW_ONLY
    on_death: OnDeath = "restart"
    start: Literal["forkserver", "spawn", "fork"] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    mallopt: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.on_death not in ("restart", "raise"):
            raise PlanError(f"Processes(on_death=) takes 'restart' or 'raise', got {self.on_death!r}")
        if self.start not in (None, "forkserver", "spawn", "fork"):
            raise PlanError(f"Processes(start=) takes 'forkserver', 'spawn' or 'fork', got {self.start!r}")
        if not all(isinstance(part, str) for item in dict(self.env).items() for part in item):
            raise PlanError(f"Processes(env=) takes names and values as strings, got {self.env!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        env = dict(self.env)
        make = partial(Processes, on_death=self.on_death, start=self.start, env=env, mallopt=self.mallopt)
        return make, (self.workers,)
