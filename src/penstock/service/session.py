"""What a server knows of one client in one epoch, and what may be sent to it. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from penstock.service.protocol import Hello, Want
from penstock.service.run import Run


@dataclass(slots=True, eq=False)
class Session:
    """One client that reads one epoch. Numbers are those of its flow."""

    token: bytes
    #: where the socket reaches it
    identity: bytes
    turn: int
    epoch: int
    #: the flow: batches with number `part[0]` modulo `part[1]`
    part: tuple[int, int]
    #: the number of the next batch to send, and the step to the one after it
    next: int
    step: int
    heard: float
    run: Run | None = None
    #: where the pipeline can go on for this client, should the window not have what it needs
    resume: tuple[int, bytes] = (0, b"")
    #: that state was given out by a server with our secret, for that place
    vouched: bool = False
    #: of this turn: batches and bytes sent, the credit for both, and what was acknowledged
    sent: int = 0
    sent_bytes: int = 0
    batches: int = 0
    nbytes: int = 0
    acknowledged: int = 0
    #: the end was said, with so many batches for all clients together; it is said again while the client asks
    over: bool = False
    total: int = 0
    waited_s: float = 0.0
    needy: bool = False
    #: in mode "split": numbers that were sent and not acknowledged, in the order of sending
    leased: deque[int] = field(default_factory=deque)

    @staticmethod
    def of(hello: Hello, identity: bytes, now: float) -> Session:
        """The session that a hello asks for."""
        residue, servers = hello.first % hello.servers, hello.servers
        session = Session(
            hello.session, identity, hello.turn, hello.epoch, (residue, servers),
            hello.first // servers, hello.step // servers, now,
        )  # fmt: skip
        session.resume = (hello.state_at // servers, hello.state)
        return session

    @property
    def has_credit(self) -> bool:
        """Whether one more batch may be sent."""
        return self.sent < self.batches and self.sent_bytes < self.nbytes

    @property
    def reach(self) -> int:
        """All batches that its credit covers have a number below this one."""
        return self.next + (self.batches - self.sent) * self.step if self.has_credit else self.next

    def wants(self, want: Want, most: int, now: float) -> None:
        """Take over the credit that the client gives, up to `most` batches that are not acknowledged."""
        self.heard = now
        self.acknowledged = max(self.acknowledged, min(want.acknowledged, self.sent))
        self.batches = max(self.batches, min(want.batches, self.acknowledged + most))
        self.nbytes = max(self.nbytes, want.nbytes)
        self.waited_s, self.needy = want.waited_s, want.needy


def covering(runs: list[Run], session: Session, ahead: int) -> Run | None:
    """The run that has, or will soon have made, the next batch of a session; the one furthest on if several do."""
    found = [
        run for run in runs
        if run.epoch == session.epoch and run.part == session.part and run.failure is None
        and run.owner in (b"", session.token) and run.first <= session.next <= run.made + ahead
    ]  # fmt: skip
    return max(found, key=lambda run: run.made, default=None)
