"""One pass of a training loop through an epoch, and the iterators that a loader hands out.

An `Iteration` is what a loader knows about the epoch that is being read. It does not hold the loader, so a loader
may keep it without a reference cycle. A `Counted` is an iterator with a length, which progress bars ask for.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, TypeVar

from penstock.core.epoch import Run
from penstock.core.error_log import ErrorLog
from penstock.errors import PenstockError
from penstock.program.chunk import Chunk, Failure, Loss

T = TypeVar("T", covariant=True)


class ReadBy(Enum):
    """What the user wrote to read an epoch. It decides what happens when a new iteration begins."""

    #: ``iter(loader)``: dropping the iterator ends the epoch; a new iteration warns
    ITER = "iter"
    #: ``loader.epochs()``: the next epoch ends it, and reading it after that is refused
    EPOCHS = "epochs"
    #: ``loader.steps()``: the next call goes on with it
    STEPS = "steps"


class Iteration:
    """An epoch that is being read, and what of it was read ahead and not handed over."""

    def __init__(self, run: Run, by: ReadBy) -> None:
        self.run = run
        self.by = by
        self.ended = False
        #: ended by `close`, and not by a new iteration
        self.closed = False
        #: ended by a new iteration, although the user still holds its iterator
        self.overtaken = False
        #: what ``iter(loader)`` gave; an iterator that was dropped unread never learns of its end
        self.iterator: Callable[[], Any] | None = None
        #: a chunk that was read to see whether there is one
        self.first: Chunk | None = None
        #: samples of the last chunk that are still to be handed over, the next one last
        self.samples: list[Any] = []
        #: how many it had, and what was lost among them and is not reported yet
        self.count = 0
        self.losses: list[Loss] = []
        #: how the epoch ends after these samples
        self.failure: Failure | None = None

    def has_rest(self, engine: Any, timeout_s: float | None, errors: ErrorLog) -> bool:
        """Whether a batch is left of a resumed epoch; if not, it ends here, and its last losses are recorded."""
        losses: list[Loss] = []
        try:
            while (chunk := engine.read(self.run, timeout_s)) is not None:
                chunk.losses = losses = losses + chunk.losses
                if chunk.samples or chunk.failure is not None:
                    break
        except BaseException:
            # Ctrl-C, or a timeout: the next iteration goes on with it all the same.
            self.ended = True
            engine.leave(self.run)
            raise
        if chunk is None:
            chunk = Chunk([], (), losses=losses)
            if errors.cut_off(chunk, engine.counters.samples) is None:
                self.ended = True
                engine.leave(self.run, whole=True)
                for loss in losses:
                    errors.add(loss.record)
                return False
        self.first = chunk
        return True

    def is_held(self) -> bool:
        """Whether somebody still holds an iterator that ``iter(loader)`` gave, and may mean to read it."""
        return self.iterator is not None and self.iterator() is not None

    def is_over(self) -> bool:
        """Whether it has ended. An epoch that was cut short must not look like a whole one: that is an error."""
        if self.closed:
            raise PenstockError("the loader was closed while it was read, so this epoch is not complete")
        if self.overtaken:
            raise PenstockError(
                f"epoch {self.run.epoch} was ended by a newer iteration of its loader before all of it was read; "
                "epochs() gives one epoch at a time: read each inside the loop over epochs()"
            )
        return self.ended

    def warn(self, batches: int, stacklevel: int) -> None:
        """Say what a new iteration loses, after so many batches of this one."""
        warnings.warn(
            f"a new iteration of this loader ends the one under way: the rest of epoch {self.run.epoch} after "
            f"{batches} batches is not delivered. To read an epoch in parts use loader.steps(n) or keep one "
            "iterator; to read twice at the same time make two loaders",
            RuntimeWarning,
            stacklevel=stacklevel,
        )

    def report(self, errors: ErrorLog) -> None:
        """Record what was lost before the next sample of the chunk in hand.

        A state saved before that sample owes them: they are made again, and reported, after a resume.
        """
        number = self.count - len(self.samples)
        while self.losses and self.losses[0].before <= number:
            errors.add(self.losses.pop(0).record)


class Left:
    """How many items an iterator still has to give."""

    __slots__ = ("count",)

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self) -> int:
        return self.count


class Counted(Iterator[T]):
    """An iterator that knows how many items are still to come.

    >>> letters = Counted(iter("abc"), Left(3))
    >>> len(letters), next(letters)
    (3, 'a')
    """

    __slots__ = ("_items", "_left")

    def __init__(self, items: Iterator[T], left: Callable[[], int]) -> None:
        self._items = items
        self._left = left

    def __iter__(self) -> Iterator[T]:
        return self._items  # a for loop then runs the generator itself, without a call of ours per item

    def __next__(self) -> T:
        return next(self._items)

    def __len__(self) -> int:
        return self._left()

    def __bool__(self) -> bool:
        return True
