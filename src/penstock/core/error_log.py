"""What a loader keeps of samples that were left out or ended the run: `loader.errors()`, and `max_errors`."""

from __future__ import annotations

from collections import deque
from typing import Any

from penstock.errors import PlanError
from penstock.program.chunk import Chunk, ErrorRecord, Failure, Loss
from penstock.program.failure import ErrorLimit, let_go_of_samples
from penstock.provenance import weights

#: records kept of samples that failed; all are counted
_RECORDS = 10_000


class ErrorLog:
    """Records of samples that failed, and the limit on their number.

    It belongs to the loader and not to the engine: an exception holds frames, and these hold the loader.
    """

    def __init__(self, limit: float | None, deals: Any) -> None:
        self._limit = ErrorLimit(limit)
        #: ranks deliver in step, so none of them may leave a sample out
        self._in_step = deals is not None and deals.keeps and deals.world > 1
        self.records: deque[ErrorRecord] = deque(maxlen=_RECORDS)
        self.count = 0

    def add(self, record: ErrorRecord) -> None:
        """One more sample has failed."""
        let_go_of_samples(record.exception)
        self.records.append(record)
        self.count += 1

    def cut_off(self, chunk: Chunk, samples: int) -> Failure | None:
        """How the epoch ends after a chunk, if it does; the chunk is cut off where it has too many errors.

        So many `samples` came before it.
        """
        places = chunk.places
        for number, loss in enumerate(chunk.losses, 1):
            seen = weights(places[: loss.before])
            too_many = self._refused(loss) or self._limit.check(self.count + number, samples + seen)
            if too_many is not None:
                chunk.samples, chunk.places = chunk.samples[: loss.before], places[: loss.before]
                chunk.losses = chunk.losses[:number]
                return Failure(too_many)
        return chunk.failure

    def _refused(self, loss: Loss) -> PlanError | None:
        """What a lost sample ends the run in, where ranks deliver in step."""
        return out_of_step(loss.record.op, loss.record.index) if self._in_step else None

    def check(self, samples: int) -> None:
        """The epoch has ended after so many samples: raise if too many have failed."""
        too_many = self._limit.check(self.count, samples, ended=True)
        if too_many is not None:
            raise too_many


def out_of_step(label: str, number: int) -> PlanError:
    """A sample was skipped where ranks rely on all of them delivering as many."""
    return PlanError(
        f"{label} skipped sample {number}, but ranks that deliver in step rely on each; say that it may: "
        'on_error="skip", so that every rank has a stream of its own'
    )
