"""The global random generators of a process: Python's, numpy's and torch's.

Libraries that draw from them give other numbers in every run, and on every layout. In a worker process they can
be seeded before each sample. The training process uses them itself, for dropout for instance: there they are
changed only in its own thread, and put back afterwards (`kept`). In a background thread nothing can be done but
to notice (`drawn_since`).
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

#: the states of the generators of Python, numpy and torch; None for one that is not imported
States = tuple[Any, Any, Any]


def _torch() -> Any:
    return sys.modules.get("torch")


def seed_all(seed: int) -> None:
    """Seed all of them."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch = _torch()
    if torch is not None:
        # Not torch.manual_seed: it asks every kind of device too, which takes a hundred times as long.
        torch.default_generator.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)


def capture() -> States:
    """Where all of them stand."""
    torch = _torch()
    return random.getstate(), np.random.get_state(), None if torch is None else torch.get_rng_state()


def restore(states: States) -> None:
    """Put all of them where they stood."""
    python, numpy, of_torch = states
    random.setstate(python)
    np.random.set_state(numpy)
    if of_torch is not None:
        _torch().set_rng_state(of_torch)


@contextmanager
def kept() -> Iterator[None]:
    """What is drawn or seeded inside the block has no effect on what is drawn after it.

    >>> random.seed(1)
    >>> with kept():
    ...     seed_all(5)
    ...     a = random.random()
    >>> b = random.random()
    >>> random.seed(1)
    >>> a != b == random.random()
    True
    """
    states = capture()
    try:
        yield
    finally:
        restore(states)


def drawn_since(states: States) -> str:
    """Whose generator has been drawn from or seeded since `capture` gave `states`; nothing if none was."""
    python, numpy, of_torch = capture()
    if python != states[0]:
        return "Python's random"
    if numpy[2:] != states[1][2:] or not np.array_equal(numpy[1], states[1][1]):
        return "numpy.random"
    if states[2] is not None and not bool((of_torch == states[2]).all()):
        return "torch"
    return ""


def drawn_in_thread(what: str, whose: str) -> str:
    """What to say where a background thread of the training process has drawn."""
    return (
        f"{what} draws from the global generator of {whose} in a thread of the training process. Runs with "
        "one seed "
        "differ, because nothing can be seeded there; run it on worker processes, with from_torch(..., workers=n), "
        "where each sample is seeded"
    )


class Private:
    """Generators of its own for an iterator: in place while it makes an item, and put aside between two.

    So what it draws does not depend on who else draws between its items.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._states: States | None = None

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside the block, the global generators are the iterator's own."""
        with kept():
            if self._states is None:
                seed_all(self._seed)
            else:
                restore(self._states)
            try:
                yield
            finally:
                self._states = capture()
