"""The process behind ``loader(isolate=True)``: runs an engine, and sends what it reads as long as it has credit.

Two threads: one listens to the parent, the other reads the engine and sends. The parent's side is
`penstock.remote.isolated`.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from dataclasses import replace
from time import perf_counter, process_time
from typing import Any

from penstock.core.engine import Engine
from penstock.core.epoch import Run
from penstock.core.redo import Start
from penstock.memory.exceptions import packed
from penstock.memory.parcel import unpack
from penstock.program.chunk import Chunk, CountVaried, Loss
from penstock.remote.cargo import measured, troubles
from penstock.remote.preload import become_worker
from penstock.remote.wire import Gone, Message
from penstock.remote.worker_end import WorkerEnd
from penstock.resume.schema import Edge, InputState, checked, plain_data

#: counters are sent along with a chunk at most so often
_STATS_S = 0.05
#: lost samples that are reported at once, even if no sample follows them
_MANY = 32
#: the last chunks whose origins are kept: those that the loader remembers, and those on their way
_REMEMBERED = 64


def serve(sock: socket.socket, name: str) -> None:
    """Serve the parent at the other end of `sock` until it closes."""
    become_worker()
    pump = _Pump(WorkerEnd(sock))
    reading = threading.Thread(target=pump.read, name="penstock-pump", daemon=True)
    reading.start()
    try:
        pump.listen()
    except Gone:
        pump.close()


class _Pump:
    def __init__(self, connection: WorkerEnd) -> None:
        self.connection = connection
        self.engine: Engine | None = None
        self._cpu_began = process_time()
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        # What follows is guarded by `_changed`.
        #: the epoch that the parent has entered and that is not begun; the last run that the parent has left
        self._entered: tuple[Any, ...] | None = None
        self._left = 0
        #: one for each chunk that may be sent: the block to write it to. And blocks that were asked for
        self._credits: deque[int | None] = deque()
        self._granted: deque[int | None] = deque()
        #: bytes of the chunks that were sent and not read yet, and what they may take
        self._unread: deque[int] = deque()
        self._allowed: int | None = None
        self._run: Run | None = None
        self._closed = False
        #: when counters were last sent
        self._told = 0.0
        #: the run that is read, and the last chunk that was asked for: of what run, and how many came before it
        self._number = 0
        self._asked = 0, -1
        #: chunks sent in this epoch, and where the last ones came from
        self._chunks = 0
        self._sent: deque[tuple[int, int, Any, Any]] = deque(maxlen=_REMEMBERED)
        #: losses after the last sample that was sent: they are sent with the next one
        self._late: list[Loss] = []
        #: why there is no engine
        self._broken: BaseException | None = None

    # ------------------------------------------------------------------ the thread that listens

    def listen(self) -> None:
        while True:
            message = self.connection.receive()
            kind, *said = message.head
            with self._changed:
                getattr(self, f"_on_{kind}")(message, *said)
                self._changed.notify_all()
            del message

    def _on_engine(self, message: Message, allowed: int | None, condemned: list[Any]) -> None:
        self._allowed = allowed
        try:
            flow, options, seed, memory = unpack(message.body.data, message.fds)
            if self.connection.desk is not None:
                # Processes have died before: do one thing after the other, and show what is in hand.
                self.connection.desk.take(1)
                options = replace(options, inline=True)
            self.engine = Engine(flow, options, seed, memory)
            self.engine.desk = self.connection.desk
            self.engine.condemned = {tuple(call): how for call, how in condemned}
            self.engine.asks = False
        except BaseException as exc:
            self._broken = exc

    def _on_credit(self, message: Message, grant: int | None) -> None:
        self._credits.append(grant)
        if self._unread:
            self._unread.popleft()  # for this one there is credit again

    def _on_grant(self, message: Message, grant: int | None) -> None:
        self._granted.append(grant)

    def _on_enter(
        self, message: Message, number: int, epoch: int, last_epoch: float, once: bool, edge: Any
    ) -> None:
        if self.engine is None:
            self._send(("failed", number, packed(self._broken or RuntimeError("no engine"))))
            return
        self.engine.last_epoch, self.engine.once = last_epoch, once
        self._entered = number, epoch, Start(None if edge is None else checked(edge, Edge))

    def _on_leave(self, message: Message, number: int, whole: bool) -> None:
        self._left = number
        run, self._run = self._run, None
        if run is not None and self.engine is not None:
            self.engine.leave(run, whole)

    def _on_asks(self, message: Message, number: int, chunks: int) -> None:
        self._asked = number, chunks
        if self.engine is not None and self._asked == (self._number, self._chunks):
            self.engine.ask(True)

    def _on_holding(self, message: Message, question: int) -> None:
        run = self._run
        told = "nothing yet" if run is None or self.engine is None else self.engine.holding(run)
        self._send(("answer", question, told))

    def _on_standing(self, message: Message, question: int, number: int, chunk: int, sample: int) -> None:
        for run, sent, origin, places in self._sent:
            if (run, sent) == (number, chunk) and self.engine is not None:
                self._send(("answer", question, plain_data(self.engine.standing(origin, places, sample))))
                return
        self._send(("answer", question, None))

    def _on_carrying(self, message: Message, question: int) -> None:
        self._send(("answer", question, {} if self.engine is None else plain_data(self.engine.carrying())))

    def _on_forget(self, message: Message, carried: dict[str, Any]) -> None:
        if self.engine is not None:
            self.engine.forget(checked(carried, dict[str, InputState]))

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self.engine is not None:
            self.engine.close(grace_s=0.2, quiet=True)

    # ------------------------------------------------------------------ the thread that reads

    def read(self) -> None:
        """Epoch after epoch, as they are entered."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._entered is not None)
                if self._closed or self._entered is None:
                    return
                entered, self._entered = self._entered, None
            number = entered[0]
            try:
                self._epoch(*entered)
            except Gone:
                return
            except BaseException as exc:
                self._send(("failed", number, packed(exc)))

    def _epoch(self, number: int, epoch: int, start: Start) -> None:
        assert self.engine is not None
        run = self.engine.enter(epoch, start)
        with self._changed:
            self._number, self._chunks = number, 0
            self.engine.ask(self._asked == (number, 0))  # it may have been asked for before it was begun
        if not self._goes_on_with(number, run):
            return
        self._late = []
        while self._has_credit(number):
            chunk = self.engine.read(run, None)
            if chunk is None:
                if self._left < number:
                    # The losses go along: were they sent before the end, a death between would repeat them.
                    self._send(("end", number, self._stats(), troubles(Chunk([], (), losses=self._late))))
                return
            if chunk.failure is not None and isinstance(chunk.failure.exception, CountVaried):
                position, chunk.failure = chunk.failure.exception.position, None
                run = self.engine.replan(run, position)
                if not self._goes_on_with(number, run):
                    return
            if not chunk.samples and chunk.failure is None and 0 < len(chunk.losses) < _MANY:
                self._late += chunk.losses
            elif not chunk.blank or self._late:
                self._send_chunk(number, epoch, chunk)
            del chunk

    def _goes_on_with(self, number: int, run: Run) -> bool:
        """Read this from now on, unless it has been left meanwhile."""
        with self._changed:
            if self._left < number:
                self._run = run
                return True
        assert self.engine is not None
        self.engine.leave(run)
        return False

    def _has_credit(self, number: int) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._left >= number or self._credits)
            return not self._closed and self._left < number

    def _has_room(self, number: int, nbytes: int) -> bool:
        """Wait until so much may be sent: at once if nothing else is on its way. False if nobody waits for it."""

        def may_be_sent() -> bool:
            return self._allowed is None or not self._unread or sum(self._unread) + nbytes <= self._allowed

        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._left >= number or may_be_sent())
            return not self._closed and self._left < number

    # ------------------------------------------------------------------ sending

    def _send_chunk(self, number: int, epoch: int, chunk: Chunk) -> None:
        assert self.engine is not None
        program = self.engine.lanes[self.engine.plan.root.number].program
        origin = chunk.origin
        if self._late:
            chunk = Chunk.join([Chunk([], (), None, self._late), chunk])
        chunk, layout = measured(chunk, program, epoch)
        if not self._has_room(number, layout.nbytes):
            return
        places, self._late = chunk.places, []
        if places and chunk.failure is None:
            # After a death the epoch continues after the last sample; later losses would be reported twice.
            self._late = [loss._replace(before=0) for loss in chunk.losses if loss.before == len(places)]
            chunk.losses = [loss for loss in chunk.losses if loss.before < len(places)]
        with self._changed:
            grant = self._credits.popleft()
            self._unread.append(layout.nbytes)
        cargo, body = self.connection.stow(chunk, layout, grant, self._ask)
        now = perf_counter()
        stats = edge = None
        if now - self._told > _STATS_S:
            self._told = now
            stats = self._stats()
        if places:
            edge = plain_data(self.engine.standing(origin, places, len(places) - 1))
        with self._changed:
            self._chunks += 1
            self.engine.ask(False)
            self._sent.append((number, self._chunks, origin, places))
        self._send(("chunk", number, cargo, stats, edge), body)

    def _stats(self) -> dict[str, float]:
        """The counters of all stages; what this process is on a CPU is work of the loader too."""
        assert self.engine is not None
        stats = self.engine.stage_stats()
        return stats | {"cpu_s": stats["cpu_s"] + process_time() - self._cpu_began}

    def _ask(self, nbytes: int) -> int | None:
        """Ask for a larger block."""
        self._send(("need", nbytes))
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._granted)
            if self._closed:
                raise Gone
            return self._granted.popleft()

    def _send(self, head: Any, body: Any = ()) -> None:
        with self._sending:
            self.connection.wire.send(head, body)
