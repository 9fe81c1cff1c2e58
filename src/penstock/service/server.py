"""`serve`: a pipeline behind a socket. One thread owns the socket and answers at once; runs make the batches.

The thread decides nothing: it hands messages to a broker and sends what the broker says. Because it never waits for
the pipeline, heartbeats are answered however long a batch takes.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any, Self

from penstock.checks import any_number, whole_number
from penstock.errors import PlanError, ServiceError
from penstock.pipeline import Pipeline
from penstock.service.broker import Broker, Send
from penstock.service.door import Door, open_door
from penstock.service.extra import zmq_module
from penstock.service.flows import Flows, check_served
from penstock.service.keys import public_keys, read_key
from penstock.service.ledger import Ledger
from penstock.service.protocol import MOST_CREDIT
from penstock.service.seals import secret_of
from penstock.service.split import SplitBroker
from penstock.service.waker import Waker

log = logging.getLogger("penstock.service")

#: how often silent clients are looked for
_TICK_S = 0.5
#: a run whose pipeline does not give its batch in this time is closed with its loader
_GRACE_S = 0.5

#: makes the broker, of what sends and of what wakes the thread
BrokerOf = Callable[[Send, Callable[[], None]], Broker]

MODES = ("split", "shard", "each")


class Server:
    """A pipeline that is being served. Made by `serve`; `close` it, or use it as a context manager.

    ``address`` is where clients connect to, with the port that was picked.
    """

    def __init__(self, broker_of: BrokerOf, flows: Flows, door: Door) -> None:
        self._flows = flows
        self._door = door
        self.address: str = door.address
        self._waker = Waker()
        self._broker: Broker = broker_of(door.send, self._waker.wake)
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._closed = self._hurried = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="penstock-service", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ what users call

    def stats(self) -> dict[str, float]:
        """Counters of the server, and of the loader that makes its batches."""
        return {**self._flows.stats(), **self._broker.stats(), **self._door.stats()}

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the server is closed; whether it is."""
        self._thread.join(timeout_s)
        if self._error is not None:
            raise ServiceError(f"the server at {self.address} has failed: {self._error!r}") from self._error
        return not self._thread.is_alive()

    def drain(self, timeout_s: float) -> bool:
        """Take no new clients, and wait until those that are there have read their epoch; whether they have."""
        self._broker.draining = True
        end = monotonic() + timeout_s
        while self._broker.read and not self._hurried and monotonic() < end:
            if self._closing.wait(0.05):
                break
        return not self._broker.read

    def hurry(self) -> None:
        """Have `drain` wait no longer. May be called by the handler of a signal."""
        self._hurried = True

    def close(self) -> None:
        """End the sessions and the workers. Closing twice is the same as once."""
        self._closing.set()
        self._waker.wake()
        self._thread.join()
        with self._lock:
            if self._closed:
                return
            self._closed = True
        runs = self._broker.ended
        late = [run for run in runs if not run.join(_GRACE_S)]
        self._flows.close()
        for run in late:
            run.join(_GRACE_S)
        self._waker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Server at {self.address}, {self._broker.mode}, {len(self._broker.sessions)} clients>"

    # ------------------------------------------------------------------ the thread

    def _work(self) -> None:
        try:
            self._serve()
        except BaseException as exc:
            self._error = exc
            log.critical("the server at %s has failed", self.address, exc_info=exc)
        finally:
            self._broker.close()
            self._door.close()

    def _serve(self) -> None:
        door, broker = self._door, self._broker
        due = monotonic() + _TICK_S
        while not self._closing.is_set():
            for identity, frames in door.wait(max(0, due - monotonic()), self._waker):
                broker.received(identity, frames)
            broker.made()
            if monotonic() >= due:
                broker.tick()
                door.tick()
                due = monotonic() + _TICK_S


def serve(
    pipeline: Pipeline[Any],
    bind: str = "tcp://127.0.0.1:5557",
    *,
    mode: str = "split",
    credit: int = 10,
    ledger: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    allow: Iterable[str | os.PathLike[str]] = (),
    insecure: bool = False,
    seed: int = 0,
) -> Server:
    """Serve the batches of `pipeline` to clients that `connect`.

    ``mode``: ``"split"`` gives each batch to exactly one client, ``"shard"`` gives rank r of W every W-th,
    ``"each"`` gives all of them to everyone. ``credit`` is how many batches a client may have that it has not
    acknowledged. Port 0 picks a free one. Binds to this machine alone unless there are keys.
    """
    check_served(pipeline)
    if mode not in MODES:
        raise PlanError(f"serve(mode=) takes 'split', 'shard' or 'each', got {mode!r}")
    if ledger is not None and mode != "split":
        raise PlanError(
            f"serve(ledger=) is for mode 'split'; in mode {mode!r} the states of the clients are enough"
        )
    credit = whole_number(credit, "serve(credit=)", least=1)
    if credit > MOST_CREDIT:
        raise PlanError(f"serve(credit=) takes at most {MOST_CREDIT} batches, got {credit}")
    seed = any_number(seed, "serve(seed=)")
    zmq_module()
    own = None if key is None else read_key(key)
    door = open_door(bind, own, public_keys(allow), insecure, credit)
    try:
        flows = Flows(pipeline, seed, secret_of(own))
        broker_of = _broker_of(flows, mode, credit, ledger)
        return Server(broker_of, flows, door)
    except BaseException:
        door.close()
        raise


def _broker_of(flows: Flows, mode: str, credit: int, ledger: str | os.PathLike[str] | None) -> BrokerOf:
    if mode != "split":
        return lambda send, wake: Broker(flows, mode, credit, send, wake)
    kept = Ledger(ledger, flows.fingerprint)
    return lambda send, wake: SplitBroker(flows, kept, credit, send, wake)
