"""What a client says to one server, and makes of what it hears. Pure: messages and times in, messages out.

A lane asks for batches `first`, `first + step`, … of one epoch. It knows at any time which one comes next. Whenever
something was lost (the connection, the server, one message) it begins a new turn from there, and drops what belongs
to an earlier turn. So no batch comes twice or is left out, whatever happens on the way.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.errors import PlanError, ServiceError
from penstock.service import protocol
from penstock.service.protocol import Ask, Batch, Beat, Bye, End, FromClient, Hello, Ready, Refused, Want, Welcome

#: a client says what it has at least so often
BEAT_S = 0.5
#: a server that has not answered for so long is called again over a new connection
SILENCE_S = 3.0
#: bytes that wait for the loop, whatever the credit in batches
CREDIT_BYTES = 256 << 20
#: the longest pause between two turns that the server has not answered: this power of two of `BEAT_S`
_LONGEST_PAUSE = 4
#: refusals after which it may go well later
_PASSING = ("draining", "busy", "closing")


class Arrived(NamedTuple):
    """A batch that has come, not decoded yet."""

    number: int
    frames: Sequence[memoryview]
    nbytes: int
    #: where the served pipeline stands after this batch, if that came along
    state: bytes


class Plan(NamedTuple):
    """What a lane is for: which batches of which epoch, and where the served pipeline can go on."""

    epoch: int
    first: int = 0
    step: int = 1
    servers: int = 1
    resume: tuple[int, bytes] = (0, b"")


class Lane:
    """One session with one server at a time. `plan_of` says what to read in its mode; None: nothing."""

    def __init__(self, plan_of: Callable[[Welcome], Plan | None], fingerprint: str, now: float) -> None:
        self._plan_of = plan_of
        self.plan: Plan | None = None
        self.token = os.urandom(16)
        self.turn = 0
        self.welcome: Welcome | None = None
        #: of the pipeline that is read; empty until that is known
        self.fingerprint = fingerprint
        #: the number of the next batch, and where the pipeline can go on for it
        self.next = 0
        self.resume: tuple[int, bytes] = (0, b"")
        self.inbox: deque[Arrived] = deque()
        self.inbox_bytes = 0
        #: batches and bytes that came in this turn, and the credit that was given
        self.came = self.came_bytes = 0
        self._given = self._given_bytes = 0
        self._ready = False
        #: why the server does not serve us now, if it has said so
        self.put_off = ""
        #: the epoch is over: how many batches it has
        self.total: int | None = None
        self.error: ServiceError | PlanError | None = None
        #: when the server was heard last over this connection, and when it last was of use
        self.heard = self.alive = now
        self._said = 0.0
        #: turns in a row that the server has not answered with Ready
        self._unanswered = 0
        self.waited_s = 0.0

    @property
    def over(self) -> bool:
        """Nothing more will come."""
        return self.total is not None or self.error is not None

    # ------------------------------------------------------------------ saying

    def begin(self, now: float) -> list[FromClient]:
        """Begin a new turn: what was under way is asked for again."""
        self.turn += 1
        self._ready = False
        self.welcome = None
        self.came = self.came_bytes = self._given = self._given_bytes = 0
        self._said = now
        return [Ask(protocol.VERSION, self.token, self.turn)]

    def want(self, now: float) -> list[FromClient]:
        """What the client has, and how much more it takes."""
        if not self._ready or self.over:
            return []
        self._said = now
        self._given = self.came + self.room
        self._given_bytes = self.came_bytes + max(CREDIT_BYTES - self.inbox_bytes, 0)
        needy = not self.available
        return [
            Want(self.token, self.turn, self.acknowledged, self._given, self._given_bytes, self.waited_s, needy)
        ]

    @property
    def acknowledged(self) -> int:
        """How many batches of this turn the client has for good."""
        return self.came

    @property
    def room(self) -> int:
        """How many more batches may come."""
        return 0 if self.welcome is None else max(self.welcome.credit - len(self.inbox), 0)

    @property
    def available(self) -> int:
        """How many batches the loop may take."""
        return len(self.inbox)

    @property
    def owes_credit(self) -> bool:
        """Enough room was made for it to be worth a message, which takes as long as 0.2 MB of a batch."""
        if not self._ready:
            return False
        room = self.room
        return 2 * (self.came + room - self._given) >= room > 0

    def tick(self, now: float) -> list[FromClient]:
        """Whatever is due."""
        # A server that answers slowly would find every turn over, so each is given twice the time of the last.
        pause_s = BEAT_S if self._ready else BEAT_S * 2 ** min(self._unanswered, _LONGEST_PAUSE)
        if self.over or now - self._said < pause_s:
            return []
        if self._ready:
            return self.want(now)
        self._unanswered += 1
        return self.begin(now)

    def bye(self) -> list[FromClient]:
        """The epoch is over, or left."""
        return [Bye(self.token, self.turn)] if self.turn else []

    # ------------------------------------------------------------------ hearing

    def hear(self, frames: Sequence[memoryview], now: float) -> list[FromClient]:
        """Take in one message; what to answer."""
        try:
            message = protocol.decode_from_server(frames)
        except protocol.Malformed as exc:
            self.malformed(exc)
            return []
        if message.session != self.token:
            return []
        self.heard = now  # an answer to an earlier turn shows a slow server, and not a lost connection
        if message.turn != self.turn or self.over:
            return []
        if isinstance(message, Refused):
            return self._refused(message, now)
        self.alive = now
        if isinstance(message, Batch):
            return self._batch(message, frames[1:], now) if self._ready else []
        if not self._ready and isinstance(message, (End, Beat)):
            return []  # Ready was lost, or never sent: the next turn asks for it again
        if isinstance(message, Welcome):
            return self._welcomed(message)
        if isinstance(message, Ready):
            return self._is_ready(message, now) if self.plan is not None else []
        if isinstance(message, End):
            return self._end(message, now)
        return self._beat(message, now)

    def hears(self, now: float) -> None:
        """Bytes have come, which may be a part of a large batch. Over a slow connection one takes its time."""
        self.heard = now
        if self._ready:
            self.alive = now

    def malformed(self, exc: protocol.Malformed) -> None:
        """What came is no message."""
        self.error = ServiceError(f"it sends what no penstock server sends: {exc}")

    def _welcomed(self, welcome: Welcome) -> list[FromClient]:
        if self.welcome is not None:
            return []
        if self.fingerprint not in ("", welcome.fingerprint):
            self.error = ServiceError(
                f"it serves pipeline {welcome.fingerprint}, and this client reads pipeline {self.fingerprint}; "
                "serve the same pipeline with the same seed"
            )
            return []
        self.fingerprint = welcome.fingerprint
        self.welcome = welcome
        if self.plan is None:
            try:
                plan = self._plan_of(welcome)
            except (ServiceError, PlanError) as exc:
                self.error = exc
                return []
            if plan is None:
                self.total = 0
                return []
            self.plan, self.next, self.resume = plan, plan.first, plan.resume
        if not self.may_begin:
            self._unanswered = 0
            return []
        return [self.hello(self.plan)]

    @property
    def may_begin(self) -> bool:
        """Whether to say hello; if not, the lane asks again a little later."""
        return True

    def hello(self, plan: Plan) -> Hello:
        """What to send, and from where on."""
        at, state = self.resume
        return Hello(
            self.token, self.turn, plan.epoch, self.next, plan.step, plan.servers, self.fingerprint, at, state
        )

    def _is_ready(self, ready: Ready, now: float) -> list[FromClient]:
        self._ready = True
        self._unanswered = 0
        self.put_off = ""
        return self.want(now)

    def _batch(self, batch: Batch, frames: Sequence[memoryview], now: float) -> list[FromClient]:
        assert self.plan is not None
        if self._beyond_credit():
            return []
        if batch.seq != self.came or batch.number != self.next:
            return self.begin(now)
        self.put(batch, frames)
        self.next += self.plan.step
        if batch.state:
            self.resume = (batch.number + self.plan.servers, batch.state)
        return []

    def _beyond_credit(self) -> bool:
        """A server that sends more than it may would fill this machine's memory."""
        beyond = self.came >= self._given or self.came_bytes >= self._given_bytes
        if beyond:
            said = f"a batch beyond the credit of {self._given} batches and {self._given_bytes} bytes"
            self.malformed(protocol.Malformed(said))
        return beyond

    def put(self, batch: Batch, frames: Sequence[memoryview]) -> None:
        """A batch is here."""
        nbytes = sum(map(len, frames))
        self.inbox.append(Arrived(batch.number, frames, nbytes, batch.state))
        self.came += 1
        self.came_bytes += nbytes
        self.inbox_bytes += nbytes

    def take(self) -> Arrived:
        """The loop gets the next batch."""
        arrived = self.inbox.popleft()
        self.inbox_bytes -= arrived.nbytes
        return arrived

    def _end(self, end: End, now: float) -> list[FromClient]:
        assert self.plan is not None
        if end.sent != self.came:
            return self.begin(now)
        first = self.plan.first % self.plan.servers + end.total * self.plan.servers
        if self.next < first:
            self.error = ServiceError(
                f"it ended epoch {self.plan.epoch} after {end.total} batches, and batch {self.next} never came"
            )
        self.total = end.total
        return []

    def _beat(self, beat: Beat, now: float) -> list[FromClient]:
        return self.begin(now) if beat.sent > self.came else []

    def _refused(self, refused: Refused, now: float) -> list[FromClient]:
        self._ready = False
        if refused.code == "unknown":  # it was restarted, or has given us up
            return self.begin(now)
        # Only what a terminal may show.
        said = "".join(one if one.isprintable() else "?" for one in f"{refused.text} ({refused.code})")
        if refused.code in _PASSING:
            self._said = now
            self.put_off = said
            return []
        self.error = ServiceError(said)
        return []
