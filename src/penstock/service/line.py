"""The thread of a client: it owns the sockets, answers servers, and calls them again when they fall silent.

Heartbeats come from this thread, so that a long step of the training loop is not taken for a death. It decides only
which address a lane talks to. What comes is left in the lanes; whoever reads is woken.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from time import monotonic
from typing import Any

from penstock.errors import ServiceError
from penstock.service import protocol
from penstock.service.extra import zmq_module
from penstock.service.keys import Key
from penstock.service.lane import SILENCE_S, Lane
from penstock.service.protocol import FromClient
from penstock.service.sockets import dial

__all__ = ["Line"]

_TICK_S = 0.1
_AT_ONCE = 64
#: a lane whose server is gone for so long is taken over by another, where there are several
TAKE_OVER_S = 5.0


class Line:
    """Sockets of several lanes, each with a server, in one thread."""

    def __init__(self, lanes: Sequence[Lane], addresses: Sequence[str], key: Key | None, timeout_s: float) -> None:
        self._zmq = zmq_module()
        self._lanes = list(lanes)
        self._addresses = list(addresses)
        self._key = key
        self._timeout_s = timeout_s
        #: lane -> which address it talks to, and since when
        self._at = list(range(len(self._lanes)))
        self._since = [monotonic()] * len(self._lanes)
        self._sockets: list[Any] = []
        self.changed = threading.Condition()
        self.error: BaseException | None = None
        self.reconnects = 0
        self._closing = False
        self._wakes, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        self._thread = threading.Thread(target=self._work, name="penstock-connect", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Have the thread look after the credit of the lanes."""
        with contextlib.suppress(OSError):  # it is awake
            os.write(self._waker, b"\0")

    def close(self) -> None:
        """Say bye, and end the thread."""
        if self._closing:
            return
        self._closing = True
        self.wake()
        self._thread.join()
        os.close(self._wakes)
        os.close(self._waker)

    # ------------------------------------------------------------------ the thread

    def _work(self) -> None:
        context = self._zmq.Context()
        try:
            self._sockets = [dial(context, self._addresses[at], self._key) for at in self._at]
            for number, lane in enumerate(self._lanes):
                self._say(number, lane.begin(monotonic()))
            while not self._closing and self.error is None:
                self._turn(context)
            for number, lane in enumerate(self._lanes):
                self._say(number, lane.bye())
        except BaseException as exc:
            self.error = exc
        finally:
            context.destroy(linger=200)
            with self.changed:
                self.changed.notify_all()

    def _turn(self, context: Any) -> None:
        zmq = self._zmq
        poller = zmq.Poller()
        poller.register(self._wakes, zmq.POLLIN)
        for socket in self._sockets:
            poller.register(socket, zmq.POLLIN)
        ends = monotonic() + _TICK_S
        while not self._closing and monotonic() < ends:
            ready = dict(poller.poll(_TICK_S * 1000))
            if self._wakes in ready:
                os.read(self._wakes, 4096)
            for number, socket in enumerate(self._sockets):
                if socket in ready:
                    self._take_in(number)
                if self._lanes[number].owes_credit:
                    self._say(number, self._lanes[number].want(monotonic()))
        for number in range(len(self._lanes)):
            self._look_after(context, number)

    def _take_in(self, number: int) -> None:
        zmq, lane, socket = self._zmq, self._lanes[number], self._sockets[number]
        for _ in range(_AT_ONCE):
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            with self.changed:
                answers = lane.hear([frame.buffer for frame in frames], monotonic())
                self.changed.notify_all()
            self._say(number, answers)

    def _say(self, number: int, messages: Sequence[FromClient]) -> None:
        for message in messages:
            with contextlib.suppress(self._zmq.Again):  # it is said again with the next beat
                self._sockets[number].send(protocol.encode(message), self._zmq.NOBLOCK)

    def _look_after(self, context: Any, number: int) -> None:
        """Heartbeats; a new connection after a silence; another server, or the end, after a long one."""
        lane, now = self._lanes[number], monotonic()
        if lane.over:
            return
        gone_s = now - max(lane.alive, self._since[number])
        if now - lane.alive > self._timeout_s:
            self.error = ServiceError(self._gone(number))
        elif gone_s > TAKE_OVER_S and len(self._addresses) > 1:
            self._at[number] = (self._at[number] + 1) % len(self._addresses)
            self._since[number] = now
            self._call(context, number)
        elif now - max(lane.heard, self._since[number]) > SILENCE_S:
            self._since[number] = max(self._since[number], now - TAKE_OVER_S / 2)
            self._call(context, number)
        else:
            self._say(number, lane.tick(now))

    def _call(self, context: Any, number: int) -> None:
        """Leave the connection, and make a new one: the old may be half open."""
        lane = self._lanes[number]
        self.reconnects += 1
        self._sockets[number].close(0)
        self._sockets[number] = dial(context, self._addresses[self._at[number]], self._key)
        lane.heard = monotonic()
        with self.changed:
            answers = lane.begin(monotonic())
        self._say(number, answers)

    def _gone(self, number: int) -> str:
        where = self._addresses[self._at[number]] if len(self._addresses) == 1 else " and ".join(self._addresses)
        keys = "" if self._key is None else ", that it knows this client's public key (allow=)"
        return (
            f"the data server at {where} has not answered for {self._timeout_s:g} s; check that it runs and can be "
            f"reached from here{keys}, or wait longer with connect(timeout_s=)"
        )
