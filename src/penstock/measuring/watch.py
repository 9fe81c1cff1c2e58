"""watch: how long a training loop waits for its loader, whatever loader that is.

The loop's time is split at two points: where it asks for the next batch, and where it gets it. Two looks at the
clock per batch are all it costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from math import inf
from time import perf_counter
from typing import Any, Generic, TypeVar

from penstock.stats.report import per_second, percent

T = TypeVar("T")

#: a loop that waits less than this is as good as always fed
_FED = 0.05


@dataclass(frozen=True, slots=True)
class Waits:
    """How a loop has spent its time. The very first batch, with the start of all workers, is counted apart."""

    batches: int
    epochs: int
    #: from the first batch asked for until it came
    first_batch_s: float
    #: seconds in which the loop waited for a batch, and in which it worked on one
    wait_s: float
    step_s: float
    #: of `wait_s`: for the first batches of later epochs
    epoch_start_s: float
    #: the longest single wait
    longest_s: float

    @property
    def wait_share(self) -> float:
        """The share of its time that the loop waited."""
        total = self.wait_s + self.step_s
        return self.wait_s / total if total > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain data, for JSON."""
        return {**asdict(self), "wait_share": self.wait_share}

    def __str__(self) -> str:
        if self.batches < 2:
            return f"{self.batches} batches so far: read some more, then look again."
        total = self.wait_s + self.step_s
        rate = per_second((self.batches - 1) / total if total else inf, " batches")
        fed = per_second((self.batches - 1) / self.step_s if self.step_s else inf, " batches")
        told = [
            f"The loop waited {percent(self.wait_share)} of its time for data: {self.wait_s:.3g} s of {total:.3g} s"
            f", {self.wait_s / (self.batches - 1) * 1000:.3g} ms per batch, the longest {self.longest_s:.3g} s."
        ]
        if self.wait_share < _FED:
            told.append("The training step limits, so a faster loader would change next to nothing.")
        else:
            told.append(f"It gets {rate}; with a loader that is never late it would get {fed}.")
        if self.epoch_start_s > self.wait_s / 2 and self.epochs > 1:
            told.append(
                f"Most of the wait, {self.epoch_start_s:.3g} s, is for the first batches of {self.epochs - 1} "
                "later epochs: workers that stay warm and begin the next epoch early would save it."
            )
        told.append(f"The first batch of all came after {self.first_batch_s:.3g} s.")
        return " ".join(told)


class Watched(Generic[T]):
    """The items of an iterable, and how long whoever reads them has waited. Made by `watch`."""

    def __init__(self, iterable: Iterable[T]) -> None:
        self.iterable = iterable
        self._batches = self._epochs = 0
        self._first_s = self._wait_s = self._step_s = self._epoch_start_s = self._longest_s = 0.0

    def __iter__(self) -> Iterator[T]:
        """One pass. Several passes add up."""
        self._epochs += 1
        asked = perf_counter()
        items = iter(self.iterable)
        first = True
        while True:
            try:
                item = next(items)
            except StopIteration:
                return
            got = perf_counter()
            self._waited(got - asked, first)
            first = False
            yield item
            asked = perf_counter()
            self._step_s += asked - got

    def _waited(self, seconds: float, first: bool) -> None:
        self._batches += 1
        if self._batches == 1:
            self._first_s = seconds
            return
        self._wait_s += seconds
        self._longest_s = max(self._longest_s, seconds)
        if first:
            self._epoch_start_s += seconds

    def __len__(self) -> int:
        return len(self.iterable)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return True

    @property
    def waits(self) -> Waits:
        """What has been counted so far."""
        return Waits(
            self._batches,
            self._epochs,
            self._first_s,
            self._wait_s,
            self._step_s,
            self._epoch_start_s,
            self._longest_s,
        )

    @property
    def wait_share(self) -> float:
        """The share of its time that the loop waited, from the first batch on."""
        return self.waits.wait_share

    def __str__(self) -> str:
        return str(self.waits)


def watch(iterable: Iterable[T]) -> Watched[T]:
    """Iterate `iterable` through this, and it says what share of its time the loop waited: for any loader.

    >>> import penstock as ps
    >>> batches = ps.watch([1, 2, 3])
    >>> for batch in batches:
    ...     pass
    >>> batches.waits.batches, 0 <= batches.wait_share <= 1
    (3, True)
    """
    return Watched(iterable)
