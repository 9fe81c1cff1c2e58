"""The connections of a client. Whoever reads batches receives them itself; a thread steps in when nobody reads.

One lock guards the connections and the lanes. A reader that waits for a batch holds it, receives, and sends credit
and heartbeats. While nobody waits for a batch, the thread does all that every `_TICK_S`, so that a long step of the
training loop is not taken for a death. So a batch goes from the socket to its reader without passing a thread.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Sequence
from time import monotonic

from penstock.errors import ServiceError
from penstock.memory.recycle import Recycler
from penstock.service import protocol
from penstock.service.keyed import KeyedConnection
from penstock.service.keys import Key
from penstock.service.lane import SILENCE_S, Lane
from penstock.service.plain import PlainConnection
from penstock.service.protocol import FromClient, Malformed
from penstock.service.waker import Waker

#: how often the thread looks whether something came, and heartbeats are looked after
_TICK_S = 0.05
#: messages that are taken in before anything else is looked at
_AT_ONCE = 64
#: a lane whose server is gone for so long is taken over by another, where there are several
TAKE_OVER_S = 5.0


class Line:
    """Connections of several lanes, each with a server."""

    def __init__(self, lanes: Sequence[Lane], addresses: Sequence[str], key: Key | None, timeout_s: float) -> None:
        self._lanes = list(lanes)
        self._addresses = list(addresses)
        self._key = key
        self._timeout_s = timeout_s
        #: lane -> which address it talks to, and since when
        self._at = list(range(len(self._lanes)))
        self._since = [monotonic()] * len(self._lanes)
        #: bytes that had come over each connection when it was looked at last
        self._received = [0] * len(self._lanes)
        self._recycler = Recycler()
        self._connections = [self._dial(address) for address in self._addresses]
        #: whoever has it may use the connections and the lanes
        self.lock = threading.Lock()
        self.error: BaseException | None = None
        self.reconnects = 0
        self._looked = 0.0
        self._closing = threading.Event()
        self._waker = Waker()
        #: have whoever waits in `wait_for` look again
        self.wake = self._waker.wake
        self._thread = threading.Thread(target=self._work, name="penstock-connect", daemon=True)
        for number, lane in enumerate(self._lanes):
            self._say(number, lane.begin(monotonic()))
        self._thread.start()

    def wait_for(self, done: Callable[[], bool]) -> None:
        """Receive until `done()` or an error. The caller has the lock, and whoever makes it true calls `wake`."""
        if not done():
            while self.error is None and not self._turn(_TICK_S, done):
                pass

    def holds(self, number: int, nbytes: int) -> bool:
        """Whether a batch of so many bytes can be received from this server without a wait."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            return self.error is None and self._connections[number].holds(nbytes)
        finally:
            self.lock.release()

    def give_credit(self, number: int) -> None:
        """Say how much more may come, if that is worth a message. The caller has the lock."""
        lane = self._lanes[number]
        if lane.owes_credit:
            self._say(number, lane.want(monotonic()))

    def close(self) -> None:
        """Say bye, and end the thread."""
        if self._closing.is_set():
            return
        self._closing.set()
        self.wake()
        self._thread.join()
        with self.lock:
            for number, lane in enumerate(self._lanes):
                self._say(number, lane.bye())
                self._connections[number].close()
        self._waker.close()

    def _dial(self, address: str) -> PlainConnection | KeyedConnection:
        if self._key is None:
            return PlainConnection(address, self._recycler)
        return KeyedConnection(address, self._key)

    # ------------------------------------------------------------------ the thread

    def _work(self) -> None:
        while not self._closing.wait(_TICK_S) and self.error is None:
            if self.lock.acquire(blocking=False):
                try:
                    self._turn(0, lambda: False)
                finally:
                    self.lock.release()

    # ------------------------------------------------------------------ receiving, for whoever has the lock

    def _turn(self, wait_s: float, done: Callable[[], bool]) -> bool:
        """Wait until something comes, take it in, and do what is due; whether `done()` is true."""
        found = False
        try:
            # Most batches need no wait, and no call for it.
            alone = len(self._connections) == 1 and self._connections[0].pending
            ready = () if alone else self._wait(wait_s)
            now = monotonic()
            for number, connection in enumerate(self._connections):
                if connection.pending or connection.fileno() in ready:
                    found = self._take_in(number, done, now) or found
                if connection.look_after(now):
                    self._say(number, self._lanes[number].begin(now))
            if now - self._looked >= _TICK_S:
                self._looked = now
                for number in range(len(self._lanes)):
                    self._look_after(number)
            return found or done()
        except BaseException as exc:
            self.error = exc
            return False

    def _wait(self, wait_s: float) -> set[int]:
        """Descriptors that have something to receive, or room to send."""
        pending = any(connection.pending for connection in self._connections)
        poll = select.poll()
        poll.register(self._waker, select.POLLIN)
        for connection in self._connections:
            if connection.fileno() >= 0:
                poll.register(connection, select.POLLIN | (select.POLLOUT if connection.unsent else 0))
        ready = {descriptor for descriptor, _ in poll.poll(0 if pending else wait_s * 1000)}
        if self._waker.fileno() in ready:
            self._waker.clear()
        return ready

    def _take_in(self, number: int, done: Callable[[], bool], now: float) -> bool:
        """What came over one connection, until it is what the reader waits for; whether it is."""
        lane, connection = self._lanes[number], self._connections[number]
        for _ in range(_AT_ONCE):
            try:
                frames = connection.receive()
            except Malformed as exc:
                lane.malformed(exc)
                return False
            if frames is None:
                return False
            said = lane.hear(frames, now)
            if said:
                self._say(number, said)
            if done():
                return True
        return False

    def _say(self, number: int, messages: Sequence[FromClient]) -> None:
        for message in messages:
            self._connections[number].send(protocol.encode(message))

    def _look_after(self, number: int) -> None:
        """Heartbeats; a new connection after a silence; another server, or the end, after a long one."""
        lane, now = self._lanes[number], monotonic()
        if lane.over:
            return
        received = self._connections[number].received
        if received != self._received[number]:
            self._received[number] = received
            lane.hears(now)
        gone_s = now - max(lane.alive, self._since[number])
        if now - lane.alive > self._timeout_s:
            self.error = ServiceError(self._gone(number))
        elif gone_s > TAKE_OVER_S and len(self._addresses) > 1:
            self._at[number] = (self._at[number] + 1) % len(self._addresses)
            self._since[number] = now
            self._call(number)
        elif now - max(lane.heard, self._since[number]) > SILENCE_S:
            self._since[number] = max(self._since[number], now - TAKE_OVER_S / 2)
            self._call(number)
        else:
            self._say(number, lane.tick(now))

    def _call(self, number: int) -> None:
        """Leave the connection, and make a new one: the old may be half open."""
        lane = self._lanes[number]
        self.reconnects += 1
        self._connections[number].close()
        self._connections[number] = self._dial(self._addresses[self._at[number]])
        self._received[number] = 0
        lane.heard = monotonic()
        self._say(number, lane.begin(monotonic()))

    def _gone(self, number: int) -> str:
        where = self._addresses[self._at[number]] if len(self._addresses) == 1 else " and ".join(self._addresses)
        if self._key is None:
            keys = ", that it serves without keys (if not, give connect(key=))"
        else:
            keys = ", that it has keys and knows this client's (allow=)"
        if self._lanes[number].put_off:
            return (
                f"the data server at {where} has refused for {self._timeout_s:g} s: {self._lanes[number].put_off}; "
                "try again later, or wait longer with connect(timeout_s=)"
            )
        return (
            f"the data server at {where} has not answered for {self._timeout_s:g} s; check that it runs and can be "
            f"reached from here{keys}, or wait longer with connect(timeout_s=)"
        )
