"""What a worker has in hand: on view for timeouts and messages, and what the calls need to know."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any

from penstock.errors import StageTimeout, WorkerDied
from penstock.ops.op import Key, Op
from penstock.plan.plan import Step
from penstock.program.desk import READING, Desk
from penstock.provenance import Place, counter
from penstock.randomness import Draws
from penstock.sources.source import Source

if TYPE_CHECKING:
    from types import FrameType

    from penstock.program.calls import Calls
    from penstock.program.fused import FusedMaps
    from penstock.program.program import Program
    from penstock.stats.calls import Timing


#: a call that is never made again has no attempt left
_LAST_ATTEMPT = 1 << 30


class Abandoned(BaseException):
    """The call came back after its timeout; its worker has been replaced and only has to end."""


class Bench:
    """What one worker keeps for one loader: its own functions and its own generator."""

    def __init__(self) -> None:
        self.bound: dict[int, Any] = {}
        #: the functions of maps that are called in one loop
        self.fused: dict[FusedMaps, list[Any]] = {}

    @cached_property
    def draws(self) -> Draws:
        return Draws()

    def bind(self, steps: Sequence[Step]) -> None:
        """Make the functions of `steps`, those that this worker has not made before."""
        for step in steps:
            if step.number not in self.bound:
                self.bound[step.number] = step.op.bind()


@dataclass(slots=True, eq=False)
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
    #: where a worker process says what it has in hand
    desk: Desk | None = None
    #: a task that nothing is in the hands of any more
    spare: Task | None = None
    #: in a worker process: from when on the calls of the next ticket are timed
    time_due: float = 0.0


#: a sample in a step: the step's number (or READING), and the two numbers that `counter` gives
CallKey = tuple[int, int, int]


def call_key(step: int, place: Place) -> CallKey:
    """What tells the call of a step for one sample from all others."""
    return step, *counter(place)


class Task:
    """One ticket in the hands of one worker."""

    # Most tickets have none of these.
    abandoned = False
    #: the deadline of the call in hand, in a list that is this call's own. The worker takes the deadline out when
    #: the call has ended, whoever gives the call up does so before: only one of them finds it
    call: Sequence[float] = ()
    #: what is being made will be kept, and served again in other epochs
    for_cache = False
    #: the times of its calls, if this ticket is one of those that are timed
    timing: Timing | None = None
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
        #: how often a call has run out of time
        self.timeouts: dict[CallKey, int] = {}
        #: calls that have killed their worker again and again, and how
        self.condemned: dict[CallKey, str] = {}

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
        desk = self.post.desk
        if desk is not None and places:
            desk.at(READING if isinstance(doing, Source) else doing.step_in(None).number, self.epoch, places[0])

    def watched(self, step: Step, samples: Sequence[Any], places: Sequence[Place]) -> Iterator[Any]:
        """The samples, on their way into a function."""
        desk = self.post.desk
        return iter(samples) if desk is None else desk.watch(step.number, self.epoch, samples, places)

    def rest(self) -> None:
        """Nothing is in hand any more. Calls and task refer to each other, which would keep samples alive."""
        self._doing, self._places, self._out, self._lost = None, (), (), ()

    def done(self) -> None:
        """Its ticket is done. The next ticket of the same worker may use it, unless something is known of calls."""
        self._doing, self._places, self._out, self._lost = None, (), (), ()
        post = self.post
        if self.bench is post.bench and not self.timeouts and not self.condemned:
            post.spare = self

    def call_began(self, timeout_s: float) -> None:
        deadline = perf_counter() + timeout_s
        self.call = [deadline]
        self.post.heed(deadline)

    def call_ended(self) -> None:
        self.post.heed(inf)
        if not _taken_out(self.call):
            raise Abandoned

    @property
    def deadline(self) -> float | None:
        """When the call in hand runs out of time."""
        return next(iter(self.call), None)

    def goes_through(self, exc: BaseException) -> bool:
        """Whether `exc` is not the sample's, but ends the worker's own work."""
        return isinstance(exc, Abandoned) or (self.post.inline and isinstance(exc, KeyboardInterrupt))

    @property
    def wary(self) -> bool:
        """Some of the calls are known to fail."""
        return bool(self.timeouts or self.condemned)

    def verdict(self, step: Step, place: Place) -> tuple[BaseException, int] | None:
        """Why a call is not made (again), and which attempt that was; None if nothing speaks against it."""
        key = call_key(step.number, place)
        if key in self.condemned:
            told = f"{self.condemned[key]}, in {step.op.full_label}, sample {self.index_of(place)}"
            raises = hasattr(step.op, "on_error") and not step.op.may_skip
            advice = "; on_error='skip' leaves such samples out" if raises else ""
            return WorkerDied(told + advice), _LAST_ATTEMPT
        if key in self.timeouts:
            exc = StageTimeout(f"{step.op.label} did not return within {step.op.timeout_s:g} s")
            return exc, self.timeouts[key] - 1
        return None

    def condemn(self, call: Sequence[float]) -> bool:
        """Give up a call that was seen to be late: False if it has ended since.

        When the ticket is run again, that counts as a failed call.
        """
        if not _taken_out(call):
            return False
        # Its worker cannot go on to another sample any more, so this one is still in hand.
        doing = self._doing
        if doing is not None and not isinstance(doing, Source):
            key = call_key(doing.step_in(None).number, self.place_in_hand)
            self.timeouts[key] = self.timeouts.get(key, 0) + 1
        return True

    def inherit(self, other: Task) -> None:
        """Go on where an abandoned task left off."""
        self.timeouts = other.timeouts

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


def _taken_out(call: Any) -> bool:
    """Take the deadline out of `call`; False if somebody else has."""
    try:
        call.pop()
    except IndexError:
        return False
    return True
