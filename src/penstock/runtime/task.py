"""What a worker has in hand: on view for timeouts and messages, and what the calls need to know."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any

from penstock.ops.op import Key, Op
from penstock.plan.plan import Step
from penstock.provenance import Place
from penstock.randomness import Draws
from penstock.sources.source import Source

if TYPE_CHECKING:
    from types import FrameType

    from penstock.runtime.calls import Calls
    from penstock.runtime.fused import FusedMaps
    from penstock.runtime.program import Program

__all__ = ["Abandoned", "Bench", "Post", "Task"]


class Abandoned(BaseException):
    """The call came back after its timeout; its worker has been replaced and only has to end."""


class Bench:
    """What one worker keeps for one loader: its own functions and its own generator."""

    def __init__(self) -> None:
        self.bound: dict[int, Any] = {}
        #: by stage
        self.posts: dict[Program, Post] = {}

    @cached_property
    def draws(self) -> Draws:
        return Draws()

    def bind(self, steps: Sequence[Step]) -> None:
        """Make the functions of `steps`, those that this worker has not made before."""
        for step in steps:
            if step.number not in self.bound:
                self.bound[step.number] = step.op.bind()


@dataclass(frozen=True, slots=True)
class Post:
    """What stays the same from ticket to ticket, for one worker at one stage."""

    seed: int
    bench: Bench
    program: Program
    #: wait before a retry; False when the loader is closing
    pause: Callable[[float], bool]
    #: runs a coroutine to its end, where there is no event loop
    run_coroutine: Callable[[Coroutine[Any, Any, Any]], Any]
    #: tells whoever waits of a new deadline
    heed: Callable[[float], None]
    #: the reader itself runs the ticket, and Ctrl-C is for it
    inline: bool = False


class Task:
    """One ticket in the hands of one worker."""

    # Most tickets have none of these.
    abandoned = False
    #: what is being made will be kept, and served again in other epochs
    for_cache = False
    deadline: float | None = None
    _doing: Calls | FusedMaps | Source | None = None
    _places: Sequence[Place] = ()
    _out: Sequence[Any] = ()
    _lost: Sequence[int] = ()

    def __init__(self, post: Post, epoch: int, worker_name: str) -> None:
        self.post = post
        self.bench = post.bench
        self.program = post.program
        self.epoch = epoch
        self.worker_name = worker_name
        #: how often a sample has run out of time in a step
        self._timeouts: dict[tuple[int, Place], int] = {}

    def index_of(self, place: Place) -> int:
        """The number in its source of the sample at `place`."""
        return self.program.index_of(self.epoch, place)

    def key(self, step: Step) -> Key:
        return Key(self.post.seed, step.key)

    def begin(
        self,
        doing: Calls | FusedMaps | Source,
        places: Sequence[Place],
        out: Sequence[Any] = (),
        lost: Sequence[int] = (),
    ) -> None:
        """A read or an op begins. `out` grows with every call, `lost` with every sample that is dropped."""
        self._doing, self._places, self._out, self._lost = doing, places, out, lost

    def rest(self) -> None:
        """Nothing is in hand any more. Calls and task refer to each other, which would keep samples alive."""
        self._doing, self._places, self._out, self._lost = None, (), (), ()

    def call_began(self, timeout_s: float) -> None:
        self.deadline = perf_counter() + timeout_s
        self.post.heed(self.deadline)

    def call_ended(self) -> None:
        self.deadline = None
        if self.abandoned:
            raise Abandoned

    def goes_through(self, exc: BaseException) -> bool:
        """Whether `exc` is not the sample's, but ends the worker's own work."""
        return isinstance(exc, Abandoned) or (self.post.inline and isinstance(exc, KeyboardInterrupt))

    def timeouts(self, step: int, place: Place) -> int:
        """How often this sample has run out of time before."""
        return self._timeouts.get((step, place), 0) if self._timeouts else 0

    def condemn(self) -> None:
        """The call in hand is past its deadline: when the ticket is run again, that counts as a failed call."""
        doing = self._doing
        if doing is not None and not isinstance(doing, Source):
            key = doing.step_in(None).number, self.place_in_hand
            self._timeouts[key] = self._timeouts.get(key, 0) + 1

    def inherit(self, other: Task) -> None:
        """Go on where an abandoned task left off."""
        self._timeouts = other._timeouts

    @property
    def place_in_hand(self) -> Place:
        """The place of the sample that is being worked on."""
        places = self._places
        return places[min(len(self._out) + len(self._lost), len(places) - 1)]

    def describe(self, frame: FrameType | None = None) -> str:
        """The op and the sample in hand; `frame` is where the worker stands."""
        doing = self._doing
        if doing is None or not self._places:
            return "nothing yet"
        what: Source | Op[Any, Any] = doing if isinstance(doing, Source) else doing.step_in(frame).op
        where = "" if isinstance(what, Source) or not what.where else f" at {what.where}"
        return f"{what.label}{where}, sample {self.index_of(self.place_in_hand)}"
