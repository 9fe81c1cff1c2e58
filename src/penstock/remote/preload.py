"""What a template does before workers are forked from it: unpack their programs, and see whether a fork is safe.

Some things do not survive a fork: threads, which are not copied; the position in an open file, which all
processes would share; and a random generator without a seed of its own, which would give the same numbers in
every process. The first two are found here and said, and workers then load their programs themselves. The
third is mended in each worker, by `after_fork`.

`refuse_in_import` is here too: processes that a module starts while a worker imports it would import that module
in their turn, and start processes without end.
"""

from __future__ import annotations

import gc
import importlib
import os
import random
import socket
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import numpy as np

from penstock.errors import PlanError
from penstock.executors import newborn
from penstock.executors.templates import MOST_FDS
from penstock.memory.parcel import unpack

#: programs that this process was forked with, by the token of their parcel
preloaded: dict[int, Any] = {}
#: generators that were made without a seed, while programs were loaded
_unseeded: list[Any] = []
#: whether this process was started to run programs of another
_is_worker = False


def become_worker() -> None:
    """Note that this process is a worker of another one.

    On Linux it no longer takes a core at once from what runs there when it has something to do again: that may be
    the training loop, which would then wait for a few milliseconds. Its share of the cores stays the same.
    """
    global _is_worker
    _is_worker = True
    with suppress(AttributeError, OSError):
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def refuse_in_import() -> None:
    """Raise PlanError where processes are about to be started by a module that a worker is importing."""
    if not _is_worker:
        return
    frame: FrameType | None = sys._getframe(1)
    at = ""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and not at:
            at = f"{frame.f_globals.get('__name__')} at {frame.f_code.co_filename}:{frame.f_lineno}"
        if at and frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            raise PlanError(
                f"the module {at} runs a pipeline on processes while a worker process imports it. The workers of "
                "that pipeline would import the module too, and start workers of their own, without end. Put the "
                'part of the module that runs the pipeline under: if __name__ == "__main__":'
            )
        frame = frame.f_back


def load(control: socket.socket, programs: Sequence[Any]) -> str:
    """Load the programs, whose memory comes by `control`.

    Returns why this process cannot be forked afterwards; empty if it can.
    """
    become_worker()
    try:
        before = _files()
        with _noting_unseeded():
            for token, data, blocks, later in programs:
                preloaded[token] = unpack(data, _descriptors(control, blocks))
                _import(later)
        threads = len(os.listdir("/proc/self/task")) - 1
        left = sorted(_files() - before)
    except BaseException as exc:  # also the exit that a module asks for
        preloaded.clear()
        return f"loading it raised {type(exc).__name__}: {exc}"
    if threads:
        return f"loading it started {threads} thread{'s' if threads > 1 else ''}, which a forked process would lack"
    if left:
        return f"loading it left {', '.join(left[:3])} open, and forked processes would share the position in it"
    return ""


def after_fork() -> None:
    """In a worker: generators without a seed draw their own numbers."""
    while _unseeded:
        _reseed(_unseeded.pop())


def _descriptors(control: socket.socket, count: int) -> list[int]:
    fds: list[int] = []
    while len(fds) < count:
        _, more = newborn.received(control, MOST_FDS)
        if not more:
            raise ConnectionError("there is no descriptor left for the memory that came with it")
        fds += more
    return fds


def _import(names: list[str]) -> None:
    """What functions import when they are called. One that cannot be imported says so there."""
    for name in names:
        with suppress(Exception):
            importlib.import_module(name)


# Open files.


def _files() -> set[str]:
    """What this process has open that matters in a fork: not devices, and not what is only mapped."""
    found = set()
    mapped = _mapped()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            status = os.fstat(int(name))
            if stat.S_ISCHR(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_ino in mapped):
                continue
            found.add(f"{os.readlink(f'/proc/self/fd/{name}')} (descriptor {name})")
    return found


def _mapped() -> set[int]:
    """Inodes of files that are mapped into memory. Python's mmap holds a descriptor, but has no position in it."""
    with open("/proc/self/maps", "rb") as maps:
        return {int(line.split(None, 5)[4]) for line in maps}


# Random generators.


@contextmanager
def _noting_unseeded() -> Iterator[None]:
    """Note generators that take their seed from the system while this lasts. What the user has seeded stays."""
    numpys = importlib.import_module("numpy.random.bit_generator")
    seed, randbits = random.Random.seed, getattr(numpys, "randbits", None)
    entropy: set[int] = set()

    def noting(self: random.Random, a: Any = None, version: int = 2) -> None:
        if a is None:
            _unseeded.append(self)
        seed(self, a, version)

    def drawing(bits: int) -> int:
        assert randbits is not None
        drawn: int = randbits(bits)
        entropy.add(drawn)
        return drawn

    random.Random.seed = noting  # type: ignore[method-assign]
    if randbits is not None:
        numpys.randbits = drawing  # type: ignore[attr-defined]
    try:
        yield
    finally:
        random.Random.seed = seed  # type: ignore[method-assign]
        if randbits is not None:
            numpys.randbits = randbits  # type: ignore[attr-defined]
        kinds = {np.random.Generator, np.random.RandomState} if entropy else set()
        _unseeded.extend(one for one in gc.get_objects() if type(one) in kinds and _entropy(one) in entropy)


def _entropy(generator: Any) -> Any:
    """What a numpy generator was seeded with; None if that is not a number."""
    entropy = getattr(getattr(_bits(generator), "seed_seq", None), "entropy", None)
    return entropy if isinstance(entropy, int) else None


def _bits(generator: Any) -> Any:
    return generator.bit_generator if hasattr(generator, "bit_generator") else generator._bit_generator


def _reseed(generator: Any) -> None:
    if isinstance(generator, random.Random):
        generator.seed()
    else:
        bits = _bits(generator)
        bits.state = type(bits)().state
