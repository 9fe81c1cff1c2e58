"""What a server does with each message, in the modes "shard" and "each". It calls `send`, and touches no socket.

Every client reads batches in the order of their numbers: all of them, or every W-th. Clients that stand near each
other share a run, so that a batch is made once; a run that began from a state which nobody vouches for is its
client's alone. A client that has fallen out of the window of its run gets a run of
its own, which begins where that client stands: nobody waits for it. As soon as another run has its next batch, it
goes back to that one. Only the server's thread calls in here.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from penstock.service import protocol
from penstock.service.flows import Flows
from penstock.service.protocol import Ask, Batch, Beat, End, FromClient, Hello, Ready, Refused, Want, Welcome
from penstock.service.run import Item, Run
from penstock.service.session import Session, covering

log = logging.getLogger("penstock.service")

Send = Callable[[bytes, Sequence[Any]], None]

#: a client that has said nothing for so long is gone
LEASE_S = 10.0
#: the window of a run that has made all is kept for so long after its last client has left
LINGER_S = 5.0
#: clients at the same time
MOST_SESSIONS = 4096
#: passes over the pipeline at the same time, each with a loader; those that are just ending count too
MOST_RUNS = 32
#: lines in the log that clients can cause, in a minute
MOST_LINES = 20
#: bytes that the window of one run keeps
WINDOW_BYTES = 512 << 20
#: a run whose window holds so much makes only what there is credit for
AHEAD_BYTES = 64 << 20


class Broker:
    """Sessions, the runs that make their batches, and what is sent to whom."""

    mode = "shard"

    def __init__(self, flows: Flows, mode: str, credit: int, send: Send, wake: Callable[[], None]) -> None:
        self.flows = flows
        self.mode = mode
        self.credit = credit
        self.send = send
        self.wake = wake
        self.sessions: dict[bytes, Session] = {}
        self.runs: list[Run] = []
        self.ended: list[Run] = []
        self.draining = False
        #: sessions that this server has ended although their clients read on, and when
        self._interrupted: dict[bytes, float] = {}
        self._lines: deque[float] = deque(maxlen=MOST_LINES)
        self.counts = dict.fromkeys(("batches", "bytes", "sessions", "expired", "malformed", "refused", "runs"), 0)

    # ------------------------------------------------------------------ messages

    def received(self, identity: bytes, frames: Sequence[Any]) -> None:
        """Handle one message. Whatever it is, it costs its sender and nobody else."""
        try:
            message = protocol.decode_from_client(frames)
        except protocol.Malformed:
            self.counts["malformed"] += 1
            return
        if isinstance(message, Ask):
            self._ask(identity, message)
        elif isinstance(message, Hello):
            self._hello(identity, message)
        else:
            session = self.sessions.get(message.session)
            if session is None or session.turn != message.turn or session.identity != identity:
                if isinstance(message, Want):
                    self.refuse(identity, message, "unknown", "no such session here; say hello again")
                else:
                    self._interrupted.pop(message.session, None)
            elif isinstance(message, Want):
                self._want(session, message)
            else:
                self.leave(session)

    def _ask(self, identity: bytes, ask: Ask) -> None:
        if ask.version != protocol.VERSION:
            said = f"the server speaks protocol {protocol.VERSION}, the client {ask.version}; use one release"
            self.refuse(identity, ask, "version", said)
        elif self.draining and self._is_new(ask.session):
            self.refuse(identity, ask, "draining", "this server is ending")
        elif len(self.sessions) >= MOST_SESSIONS and self._is_new(ask.session):
            self.refuse(identity, ask, "busy", f"this server has {MOST_SESSIONS} sessions, and takes no more")
        else:
            self.say(identity, self.welcome(ask))

    def welcome(self, ask: Ask) -> Welcome:
        return Welcome(ask.session, ask.turn, self.mode, self.flows.fingerprint, self.credit)

    def _hello(self, identity: bytes, hello: Hello) -> None:
        if hello.fingerprint not in ("", self.flows.fingerprint):
            said = (
                f"the client goes on with a stream of pipeline {hello.fingerprint}, and this server has pipeline "
                f"{self.flows.fingerprint}; serve the same pipeline with the same seed"
            )
            self.refuse(identity, hello, "pipeline", said)
        elif hello.step % hello.servers or (
            hello.state and hello.state_at % hello.servers != hello.first % hello.servers
        ):
            self.refuse(
                identity, hello, "numbers", f"a step of {hello.step} over {hello.servers} servers makes no sense"
            )
        elif self.draining and self._is_new(hello.session):
            self.refuse(identity, hello, "draining", "this server is ending")
        elif len(self.sessions) >= MOST_SESSIONS and hello.session not in self.sessions:
            self.refuse(identity, hello, "busy", f"this server has {MOST_SESSIONS} sessions, and takes no more")
        else:
            before = self.sessions.pop(hello.session, None)
            session = Session.of(hello, identity, monotonic())
            at, state = session.resume
            session.vouched = self.flows.seals.holds(state, (session.epoch, session.part, at))
            self.sessions[hello.session] = session
            self._interrupted.pop(hello.session, None)
            self.counts["sessions"] += before is None
            self.open(session, before, hello)

    def _is_new(self, token: bytes) -> bool:
        """Whether a session would be another one, and not the next turn of one that is here."""
        return token not in self.sessions and token not in self._interrupted

    def open(self, session: Session, before: Session | None, hello: Hello) -> None:
        """A session begins, or begins anew."""
        if before is not None:
            session.run = before.run
        self.say(session.identity, Ready(session.token, session.turn))

    def _want(self, session: Session, want: Want) -> None:
        was_over = session.over
        session.wants(want, self.credit, monotonic())
        self.acknowledged(session)
        if session.token not in self.sessions:
            return
        # Before further batches and the end: in mode "split" a batch is the client's once it hears this.
        self.say(session.identity, Beat(session.token, session.turn, session.sent, session.acknowledged))
        self.pump(session)
        if was_over:
            self._say_end(session)

    def acknowledged(self, session: Session) -> None:
        """The client has said what it has."""

    def refuse(self, identity: bytes, message: FromClient, code: str, text: str) -> None:
        self.counts["refused"] += code not in ("unknown", "draining")
        self.say(identity, Refused(message.session, message.turn, code, text))

    def say(self, identity: bytes, message: protocol.FromServer) -> None:
        self.send(identity, [protocol.encode(message)])

    # ------------------------------------------------------------------ batches

    def pump(self, session: Session) -> None:
        """Send what there is credit for; have the next made."""
        while session.has_credit and not session.over:
            run = self._run_for(session)
            if run is None:
                return  # its next Want asks again
            item = run.item(session.next)
            if item is not None:
                self.post(session, item)
                session.next += session.step
            elif run.failure is not None:
                self.fail(session, run)
                return
            elif run.total is not None and session.next >= run.total:
                self.finish(session, run.total)
            else:
                break
        self._make_ahead(session)
        self._trim(session.run)

    def _make_ahead(self, session: Session) -> None:
        """Have made what there is credit for and, while memory allows, half as much again for the next credit."""
        run = session.run
        if run is not None and not session.over:
            ahead = 0 if run.nbytes > AHEAD_BYTES else self.credit // 2 * session.step
            run.allow(session.reach + ahead)

    def _run_for(self, session: Session) -> Run | None:
        """The run that makes the next batch of a session; None as long as there are too many of them."""
        run = session.run
        if run is not None and run.first <= session.next and (run.epoch, run.part) == (session.epoch, session.part):
            return run
        found = covering(self.runs, session, 2 * self.credit * session.step)
        if found is None:
            if self.crowded():
                return None
            # From where the others of its round read, who may be a little later.
            first = max(session.next - session.step + 1, session.resume[0] if session.resume[1] else 0)
            owner = b"" if session.vouched or not session.resume[1] else session.token
            found = self.start(session.epoch, session.part, min(first, session.next), session.resume, owner)
        session.run = found
        self.sweep()
        return found

    def crowded(self) -> bool:
        """There are as many runs as may be, and all are read by clients that have credit."""
        if len(self.runs) + len(self.ended) < MOST_RUNS:
            return False
        read = {id(one.run) for one in self.sessions.values() if one.has_credit and not one.over}
        idle = next((run for run in self.runs if id(run) not in read), None)
        if idle is not None and not self.ended:
            for session in [one for one in self.sessions.values() if one.run is idle]:
                self.interrupt(session)
            if idle in self.runs:
                self._end(idle)
        return True

    def start(
        self, epoch: int, part: tuple[int, int], first: int, resume: tuple[int, bytes], owner: bytes = b""
    ) -> Run:
        run = Run(self.flows, epoch, part, first, resume, self.wake, owner)
        self.runs.append(run)
        self.counts["runs"] += 1
        return run

    def post(self, session: Session, item: Item) -> None:
        """Send one batch."""
        servers = session.part[1]
        number = item.number * servers + session.part[0]
        head = protocol.encode(Batch(session.token, session.turn, session.sent, number, item.state))
        self.send(session.identity, [head, item.header, *item.frames])
        if item.state and session.run is not None:
            session.resume, session.vouched = (item.number + 1, item.state), not session.run.owner
        session.sent += 1
        session.sent_bytes += item.nbytes
        self.counts["batches"] += 1
        self.counts["bytes"] += item.nbytes

    def finish(self, session: Session, total: int) -> None:
        session.over, session.total = True, total
        self._say_end(session)

    def _say_end(self, session: Session) -> None:
        self.say(session.identity, End(session.token, session.turn, session.sent, session.total))

    def fail(self, session: Session, run: Run) -> None:
        """The pipeline has raised: the client gets a code, the server's log has the exception."""
        failure = run.failure
        said = f"the served pipeline raised {type(failure).__name__} in epoch {run.epoch}; see the server's log"
        if not run.logged and self.may_log():
            run.logged = True
            log.error("epoch %d of the served pipeline failed", run.epoch, exc_info=failure)
        self.say(session.identity, Refused(session.token, session.turn, "pipeline", said))
        self.leave(session)

    def may_log(self) -> bool:
        """Whether there may be one more line that clients have caused: they must not fill the disk."""
        now = monotonic()
        if len(self._lines) == MOST_LINES and now - self._lines[0] < 60:
            return False
        self._lines.append(now)
        return True

    def _trim(self, run: Run | None) -> None:
        if run is not None:
            steps = [one.step for one in self.sessions.values() if one.run is run]
            run.trim(2 * self.credit * max(steps, default=1), WINDOW_BYTES)

    # ------------------------------------------------------------------ ends

    def leave(self, session: Session) -> None:
        """The client has said bye, or is gone."""
        self.sessions.pop(session.token, None)
        session.run = None
        self.sweep()

    def interrupt(self, session: Session) -> None:
        """End a session whose client is there: it says hello again once it wants something."""
        self._interrupted[session.token] = monotonic()
        self.leave(session)

    @property
    def read(self) -> bool:
        """Whether clients read here, or will read on."""
        return bool(self.sessions or self._interrupted)

    def sweep(self) -> None:
        """End the runs that nobody reads. One that is complete stays for clients that come a little later."""
        used = {id(one.run) for one in self.sessions.values()}
        now = monotonic()
        for run in list(self.runs):
            if id(run) in used:
                run.unused = None
                continue
            run.unused = run.unused or now
            if run.total is None or run.failure is not None or now - run.unused > LINGER_S:
                self._end(run)
        self.ended = [run for run in self.ended if not run.join(0)]

    def _end(self, run: Run) -> None:
        self.runs.remove(run)
        run.close()
        self.ended.append(run)

    def made(self) -> None:
        """Some run has made a batch, or has ended."""
        for session in list(self.sessions.values()):
            if session.run is not None and session.has_credit and not session.over:
                self.pump(session)

    def tick(self) -> None:
        """Let go of clients that have been silent."""
        limit = monotonic() - LEASE_S
        for session in [one for one in self.sessions.values() if one.heard < limit]:
            if not session.over:
                self.counts["expired"] += 1
                if self.may_log():
                    log.warning(
                        "a client of epoch %d was silent for %g s; its session ends", session.epoch, LEASE_S
                    )
            self.leave(session)
        self._interrupted = {token: ended for token, ended in self._interrupted.items() if ended > limit}
        self.sweep()

    def close(self) -> None:
        """Tell all clients, and end all runs. Does not wait."""
        for session in list(self.sessions.values()):
            self.say(
                session.identity, Refused(session.token, session.turn, "closing", "the server has been closed")
            )
            self.leave(session)
        for run in list(self.runs):
            self._end(run)

    def stats(self) -> dict[str, float]:
        """Counters as a flat dict."""
        sessions = list(self.sessions.values())
        found: dict[str, float] = {f"server.{name}": count for name, count in self.counts.items()}
        found["server.clients"] = len(sessions)
        found["server.open_runs"] = len(self.runs)
        found["server.window_bytes"] = sum(run.nbytes for run in self.runs)
        found["server.unacknowledged"] = sum(one.sent - one.acknowledged for one in sessions)
        #: clients that have credit wait for the pipeline; clients without hold it up
        found["server.waiting_clients"] = sum(one.has_credit and not one.over for one in sessions)
        found["server.full_clients"] = sum(not one.has_credit and not one.over for one in sessions)
        found["server.clients_waited_s"] = sum(one.waited_s for one in sessions)
        return found
