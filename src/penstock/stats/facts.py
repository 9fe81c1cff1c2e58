"""What a verdict depends on beside the counters: the stages of a plan, and what the machine allows. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StageFacts:
    """A stage, as far as a verdict depends on it beside its counters."""

    label: str
    #: the kind of its executor
    kind: str = "thread"
    #: stages with the same number share workers, and there are so many
    site: int = 0
    site_workers: int = 1
    #: they are those of a pool
    pooled: bool = False
    ordered: bool = True
    #: the stream that it reads, one worker at a time
    stream: str = ""
    #: the reservoir between it and the training loop, and the stage that fills that
    reservoir: str = ""
    feeder: str = ""
    #: the titles of its ops, the source first, as they are in the names of counters
    ops: tuple[str, ...] = ()
    #: what its last op is called in the user's code, where a prefetch() would follow
    last_op: str = ""
    #: finished batches, or samples, that it keeps ready
    ready: int = 0
    #: why it has one worker, which cannot be changed, and what to do instead; nothing where it can
    alone: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the machine and the user allow."""

    #: CPUs that the process may run on
    cores: int
    #: CPU time that a cgroup allows, in cores
    quota: float | None = None
    #: threads take turns at an interpreter lock
    gil: bool = True
    #: the bound of ``loader(memory=)``, in bytes
    memory: int | None = None
