"""What becomes of a sample whose call failed. Pure.

* `Skip` always drops the sample; nothing else drops one unless `on_error` says so.
* What is not an `Exception` (SystemExit, KeyboardInterrupt) always ends the run.
* A retry is a decision too: `decide` is asked again after each.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import FrameType
from typing import Any, Final, Literal

from penstock.errors import PlanError, Skip, TooManyErrors
from penstock.ops.call import Retry
from penstock.plan.plan import Stage
from penstock.program.chunk import Chunk, ErrorRecord, Failure, Ticket

#: what is cleared of such a frame ends its generator
_CAN_GO_ON: Final = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR


@dataclass(frozen=True, slots=True)
class Verdict:
    """Raise, skip, or call again after a while."""

    action: Literal["raise", "skip", "retry"]
    after_s: float = 0.0


_RAISE, _SKIP = Verdict("raise"), Verdict("skip")


def decide(on_error: Any, exc: BaseException, attempt: int) -> Verdict:
    """What to do after call number `attempt` (from 0) of one sample raised `exc`.

    >>> decide("raise", ValueError(), 0).action, decide("skip", ValueError(), 0).action
    ('raise', 'skip')
    >>> [decide(Retry(2, 0.5), ValueError(), attempt) for attempt in (0, 1)]
    [Verdict(action='retry', after_s=0.5), Verdict(action='retry', after_s=1.0)]
    """
    if isinstance(exc, Skip):
        return _SKIP
    if not isinstance(exc, Exception):
        return _RAISE
    if isinstance(on_error, Retry):
        if attempt < on_error.times:
            return Verdict("retry", on_error.backoff_s * 2**attempt)
        on_error = on_error.then
    return _SKIP if on_error == "skip" else _RAISE


def add_note(exc: BaseException, label: str, where: str, index: Any, worker: str) -> None:
    """Say on the user's exception where in the pipeline it happened; the exception stays theirs."""
    place = f" at {where}" if where else ""
    take_note(exc, f"in {label}{place}, sample {index}, worker {worker}")


def take_note(exc: BaseException, text: str) -> None:
    """Add a note; an exception that takes none (a frozen dataclass, say) goes without."""
    try:
        exc.add_note(text)
    except Exception:
        return


def broken(stage: Stage, ticket: Ticket, epoch: int, exc: BaseException) -> Chunk:
    """What went wrong outside of any single call: a factory of per_worker, or a fault of an op."""
    take_note(exc, f"in stage {stage.number} ({stage.label})")
    record = ErrorRecord(stage.label, ticket.first, epoch, exc, ticket.first)
    if isinstance(exc, StopIteration):
        exc = RuntimeError("StopIteration in a worker")
    return Chunk([], (), Failure(exc, record))


class ErrorLimit:
    """``max_errors``: a count, or a share of all samples seen so far.

    A share is judged once 100 samples have been seen, or at the end of the epoch, so that an
    early failure does not count as 100 %.
    """

    def __init__(self, limit: float | None) -> None:
        if limit is not None and not _is_limit(limit):
            raise PlanError(f"max_errors= takes a count such as 10, or a share below 1 such as 0.01, got {limit!r}")
        self.limit = limit

    def check(self, errors: int, samples: int, ended: bool = False) -> TooManyErrors | None:
        """The error to raise when `errors` of `samples` have failed, if any."""
        if self.limit is None or not errors:
            return None
        if isinstance(self.limit, float) and self.limit < 1:
            seen = errors + samples
            if errors <= self.limit * seen or (seen < 100 and not ended):
                return None
            return TooManyErrors(
                f"{errors} of {seen} samples failed, more than max_errors={self.limit:g}; "
                "loader.errors() lists them"
            )
        if errors <= self.limit:
            return None
        return TooManyErrors(
            f"{errors} samples failed, more than max_errors={self.limit:g}; loader.errors() lists them"
        )


def _is_limit(limit: Any) -> bool:
    if isinstance(limit, float):
        return limit >= 0 and (limit < 1 or limit.is_integer())
    return isinstance(limit, int) and not isinstance(limit, bool) and limit >= 0


def let_go_of_samples(exc: BaseException) -> None:
    """Empty the frames of this library that an exception keeps: they hold all samples of its chunk.

    Those of the user stay as they are. A frame that still runs, or that can be gone on with, is left alone.
    """
    traceback = exc.__traceback__
    frame = traceback.tb_frame.f_back if traceback is not None else None
    frames: list[FrameType] = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    for one in frames:
        if _is_ours(one) and not one.f_code.co_flags & _CAN_GO_ON:
            with suppress(RuntimeError):  # it runs
                one.clear()


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("penstock.") or "<penstock" in frame.f_code.co_filename
