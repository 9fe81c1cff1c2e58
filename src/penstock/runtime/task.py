"""What a worker has in hand: on view for timeouts and messages, and what the calls need to know."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any

from penstock.ops.op import Key
from penstock.plan.plan import Step
from penstock.provenance import Place
from penstock.randomness import Draws
from penstock.sources.source import Source

if TYPE_CHECKING:
    from types import FrameType

    from penstock.runtime.calls import Calls
    from penstock.runtime.fused import FusedMaps
    from penstock.runtime.program import Program

__all__ = ["Abandoned", "Bench", "Task"]


class Abandoned(BaseException):
    """The call came back after its timeout; its worker has been replaced and only has to end."""


class Bench:
    """What one worker keeps for one loader: its own functions and its own generator."""

    def __init__(self) -> None:
        self.bound: dict[int, Any] = {}

    @cached_property
    def draws(self) -> Draws:
        return Draws()

    def bind(self, steps: Sequence[Step]) -> None:
        """Make the functions of `steps`, those that this worker has not made before."""
        for step in steps:
            if step.number not in self.bound:
                self.bound[step.number] = step.op.bind()


class Task:
    """One ticket in the hands of one worker."""

    def __init__(
        self,
        *,
        epoch: int,
        seed: int,
        bench: Bench,
        worker_name: str,
        program: Program,
        pause: Callable[[float], bool],
        run_coroutine: Callable[[Coroutine[Any, Any, Any]], Any],
        heed: Callable[[float], None],
        inline: bool = False,
    ) -> None:
        self.epoch = epoch
        self.seed = seed
        self.bench = bench
        self.worker_name = worker_name
        self.program = program
        #: wait before a retry; False when the loader is closing
        self.pause = pause
        #: runs a coroutine to its end, where there is no event loop
        self.run_coroutine = run_coroutine
        #: tells whoever waits of a new deadline
        self.heed = heed
        self.inline = inline
        self.abandoned = False
        #: what is being made will be kept, and served again in other epochs
        self.for_cache = False
        self.deadline: float | None = None
        #: how often a sample has run out of time in a step
        self._timeouts: dict[tuple[int, Place], int] = {}
        self._calls: Calls | None = None
        self._fused: FusedMaps | None = None
        self._out: list[Any] = []
        self._reading: tuple[Source | None, Sequence[Place]] = (None, ())

    def index_of(self, place: Place) -> int:
        """The number in its source of the sample at `place`."""
        return self.program.index_of(self.epoch, place)

    def key(self, step: Step) -> Key:
        return Key(self.seed, step.key)

    def begin(self, calls: Calls, out: list[Any], fused: FusedMaps | None = None) -> None:
        """An op begins; `out` grows with every call, and so says which sample is in hand."""
        self._calls, self._out, self._fused = calls, out, fused

    def rest(self) -> None:
        """Nothing is in hand any more. Calls and task refer to each other, which would keep samples alive."""
        self._calls, self._out, self._fused = None, [], None

    def begin_read(self, source: Source, places: Sequence[Place]) -> None:
        """A read begins."""
        self._calls = None
        self._reading = (source, places)

    def call_began(self, timeout_s: float) -> None:
        self.deadline = perf_counter() + timeout_s
        self.heed(self.deadline)

    def call_ended(self) -> None:
        self.deadline = None
        if self.abandoned:
            raise Abandoned

    def goes_through(self, exc: BaseException) -> bool:
        """Whether `exc` is not the sample's, but ends the worker's own work."""
        return isinstance(exc, Abandoned) or (self.inline and isinstance(exc, KeyboardInterrupt))

    def timeouts(self, step: int, place: Place) -> int:
        """How often this sample has run out of time before."""
        return self._timeouts.get((step, place), 0) if self._timeouts else 0

    def condemn(self) -> None:
        """The call in hand is past its deadline: when the ticket is run again, that counts as a failed call."""
        if self._calls is not None:
            key = self._calls.step.number, self._calls.place_in_hand
            self._timeouts[key] = self._timeouts.get(key, 0) + 1

    def inherit(self, other: Task) -> None:
        """Go on where an abandoned task left off."""
        self._timeouts = other._timeouts

    @property
    def number_in_hand(self) -> int:
        """Which sample of its chunk is being worked on."""
        calls = self._calls
        return 0 if calls is None else min(len(self._out) + len(calls.lost), len(calls.places) - 1)

    def describe(self, frame: FrameType | None = None) -> str:
        """The op and the sample in hand; `frame` is where the worker stands."""
        calls = self._calls
        if calls is None:
            source, places = self._reading
            if source is None:
                return "nothing yet"
            return f"{source.label}, sample {self.index_of(places[0])}"
        op = (calls.step if self._fused is None else self._fused.step_in(frame)).op
        place = f" at {op.where}" if op.where else ""
        return f"{op.label}{place}, sample {calls.index(self.number_in_hand)}"
