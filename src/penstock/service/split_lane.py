"""Mode "split", the client's side. Pure.

The loop gets a batch only after the server has confirmed that it is entered in the ledger. Two batches are
acknowledged ahead of the loop, so that the confirmation is usually there when the loop asks; no more, because what
was handed to a client that dies is gone with it.

With several servers a client has a lane for each. Lanes go on from a saved state one after the other: the first one
asks for the ledger to be rolled back, and the others say hello when it was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from penstock.errors import ServiceError
from penstock.service.lane import Arrived, Lane, Plan
from penstock.service.protocol import Batch, Beat, End, FromClient, Hello, Malformed, Ready, Welcome

#: batches that are confirmed and wait for the loop
AHEAD = 2


class SplitLane(Lane):
    """A session in which the server chooses the batches."""

    #: of the inbox, so many from its beginning are confirmed
    confirmed: int
    #: batches of this turn that were acknowledged, and confirmed
    _acked: int
    _known: int
    generation: int
    was_ready: bool
    ledger: str
    #: all lanes of this client
    lanes: Sequence[Lane]

    @property
    def available(self) -> int:
        return self.confirmed

    def _welcomed(self, welcome: Welcome) -> list[FromClient]:
        if self.ledger not in ("", welcome.ledger):
            self.error = ServiceError(
                "it was started again with another ledger, so that nobody knows which batches were handed out; "
                "begin a new epoch, and serve with ledger= to survive a restart"
            )
            return []
        self.ledger = welcome.ledger
        return super()._welcomed(welcome)

    def begin(self, now: float) -> list[FromClient]:
        self._acked = self._known = 0
        return super().begin(now)

    def hello(self, plan: Plan) -> Hello:
        claims = tuple(one.number for one in self.unconfirmed)
        # Only the first time: afterwards the server knows this client, or its ledger does.
        state = b"" if self.was_ready or self is not self.lanes[0] else self.resume[1]
        return Hello(
            self.token, self.turn, plan.epoch, plan.first, plan.step, plan.servers, self.fingerprint,
            state=state, claims=claims,
        )  # fmt: skip

    @property
    def may_begin(self) -> bool:
        return not self.resume[1] or self is self.lanes[0] or bool(ready_lanes(self.lanes[:1]))

    @property
    def unconfirmed(self) -> list[Arrived]:
        return list(self.inbox)[self.confirmed :]

    def _is_ready(self, ready: Ready, now: float) -> list[FromClient]:
        kept = set(ready.kept)
        sure = list(self.inbox)[: self.confirmed] + [one for one in self.unconfirmed if one.number in kept]
        self.inbox = deque(sure)
        self.inbox_bytes = sum(one.nbytes for one in sure)
        self.confirmed = len(sure)
        if any(one.generation != ready.generation for one in ready_lanes(self.lanes)):
            self.error = ServiceError(
                "other clients have gone back to a saved state, and batches that this client was handed are handed "
                "out again; end all clients before some go back, and give all of them the states and the same list "
                "of addresses"
            )
            return []
        self.generation = ready.generation
        self.was_ready = True
        return super()._is_ready(ready, now)

    def _batch(self, batch: Batch, frames: Sequence[memoryview], now: float) -> list[FromClient]:
        if self._beyond_credit():
            return []
        if batch.seq != self.came:
            return self.begin(now)
        self.put(batch, frames)
        return self.want(now) if self.ack_due else []

    @property
    def acknowledged(self) -> int:
        self._acked = max(self._acked, self._target)
        return self._acked

    @property
    def _target(self) -> int:
        waiting = len(self.inbox) - self.confirmed
        return self.came - waiting + min(waiting, max(AHEAD - self.confirmed, 0))

    @property
    def ack_due(self) -> bool:
        """There is something to acknowledge."""
        return self._ready and self._target > self._acked

    @property
    def owes_credit(self) -> bool:
        return self.ack_due or super().owes_credit

    def _beat(self, beat: Beat, now: float) -> list[FromClient]:
        if beat.sent > self.came:
            return self.begin(now)
        if not self._known <= beat.acknowledged <= self._acked:
            self.malformed(Malformed(f"{beat.acknowledged} batches confirmed, of {self._acked} acknowledged"))
            return []
        self.confirmed += beat.acknowledged - self._known
        self._known = beat.acknowledged
        return self.want(now) if self.ack_due else []

    def take(self) -> Arrived:
        self.confirmed -= 1
        return super().take()

    def _end(self, end: End, now: float) -> list[FromClient]:
        if end.sent != self.came or len(self.inbox) != self.confirmed:
            return self.begin(now)
        self.total = end.total
        return []


def ready_lanes(lanes: Sequence[Lane]) -> list[SplitLane]:
    """Those that a server was ready for at least once: they know the generation of the ledger."""
    return [lane for lane in lanes if isinstance(lane, SplitLane) and lane.was_ready]


def be_split(lane: Lane, lanes: Sequence[Lane] = ()) -> None:
    """The server turned out to be in mode "split": from here on the lane is one of those.

    The mode is known only once the server has answered, and whoever reads has the lane already.
    """
    lane.__class__ = SplitLane
    assert isinstance(lane, SplitLane)
    lane.confirmed = lane._acked = lane._known = lane.generation = 0
    lane.was_ready = False
    lane.ledger = "" if lane.welcome is None else lane.welcome.ledger
    lane.lanes = lanes or (lane,)
