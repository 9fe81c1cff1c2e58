"""The life of a worker process: it gets programs and tickets, and answers with chunks.

It does one thing after the other, in one thread. What it has in hand is on its desk, where the parent can
see it. It ends when the socket does.
"""

from __future__ import annotations

import socket
import time
import weakref
from collections import deque
from collections.abc import Iterator
from functools import partial
from queue import SimpleQueue
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from penstock import system
from penstock.core.workers import HERE
from penstock.executors import newborn
from penstock.memory.codec import decode, layout_of
from penstock.memory.parcel import unpack
from penstock.program.bridge import Bridge
from penstock.program.chunk import Chunk, ErrorRecord, Failure, Ticket
from penstock.program.desk import Desk
from penstock.program.failure import broken, take_note
from penstock.program.program import Program, through
from penstock.program.sizing import PAUSE_REMOTE_S
from penstock.program.task import Bench, Post, Task
from penstock.remote.cargo import measured, stowed, without_largest
from penstock.remote.portable import CarriedSource, CarriedStore
from penstock.remote.preload import after_fork, become_worker, preloaded
from penstock.remote.wire import Gone, Message, Reply, Request
from penstock.remote.worker_end import WorkerEnd
from penstock.stats.calls import EVERY_S, Timing
from penstock.stats.watch import NOTHING, ProcessWatch, Watch
from penstock.trees import nbytes


def serve(sock: socket.socket, name: str) -> None:
    """Serve the parent at the other end of `sock` until it closes."""
    HERE.nested = True
    system.worker_name = name
    become_worker()
    after_fork()
    serving = _Serving(WorkerEnd(sock), name)
    try:
        serving.run()
    except Gone:
        serving.close()


class _Open:
    """A ticket that has been begun."""

    def __init__(self, request: Request, task: Task, chunks: Iterator[Chunk], carried: dict[str, Any]) -> None:
        self.request = request
        self.task = task
        self.program = task.program
        self.chunks = chunks
        self.grant = request.grant
        self._carried = carried

    def clear(self) -> None:
        """Let go of all that came with it."""
        self.chunks, self._carried = iter(()), {}
        self.enter()

    def enter(self) -> None:
        """What came with this ticket is what its program finds."""
        reading = self.program.reading
        if reading is not None and isinstance(reading.source, CarriedSource):
            reading.source.samples = self._carried.get("read", {})
        if isinstance(self.program.store, CarriedStore):
            self.program.store.held = self._carried.get("held", {})


class _Serving:
    def __init__(self, connection: WorkerEnd, name: str) -> None:
        self.connection = connection
        self.name = name
        #: programs, or why one could not be unpacked
        self.posts: dict[int, Post | BaseException] = {}
        #: what is kept for each loader, as long as one of its programs is here
        self.benches: weakref.WeakValueDictionary[int, Bench] = weakref.WeakValueDictionary()
        self.bridge = Bridge()
        #: tickets that were begun and are not done
        self.open: dict[int, _Open] = {}
        #: blocks that came with a ticket and that nothing looks at any more
        self.returned: SimpleQueue[tuple[int, int]] = SimpleQueue()
        #: messages that came while another was waited for
        self.waiting: deque[Message] = deque()

    @property
    def desk(self) -> Desk:
        """Where the parent sees what is in hand. It is the first thing that comes."""
        assert self.connection.desk is not None
        return self.connection.desk

    def run(self) -> None:
        while True:
            message = self.waiting.popleft() if self.waiting else self.connection.receive()
            kind, *said = message.head
            getattr(self, f"_on_{kind}")(message, *said)
            del message

    def close(self) -> None:
        """End the user's generators."""
        for ticket in list(self.open):
            self._forget(ticket)
        self.bridge.close()

    # ------------------------------------------------------------------ what the parent says

    def _on_program(self, message: Message, number: int, loader: int, token: int) -> None:
        try:
            # Without a body it is one that the template has loaded.
            body = message.body.data
            program: Program = unpack(body, message.fds) if body.nbytes else preloaded.pop(token)
        except BaseException as exc:
            take_note(exc, f"while worker {self.name} unpacked what it is to run")
            self.posts[number] = exc
            return
        bench = self.benches.setdefault(loader, Bench())
        self.posts[number] = Post(
            program.seed, bench, program, _pause, self.bridge.run, self.desk.heed, desk=self.desk
        )

    def _on_run(self, message: Message, *request: Any) -> None:
        self._begin(Request(*request), message)

    def _on_go(self, message: Message, before: int, ticket: int, grant: int | None) -> None:
        opened = self.open.pop(before)
        opened.request = opened.request._replace(ticket=ticket)
        opened.grant = grant
        self.desk.take(ticket)
        self._advance(opened, ProcessWatch())

    def _on_forget(self, message: Message, tickets: list[int], programs: list[int]) -> None:
        for ticket in tickets:
            self._forget(ticket)
        for number in programs:
            self.posts.pop(number, None)

    def _forget(self, ticket: int) -> None:
        opened = self.open.pop(ticket, None)
        close = getattr(opened.chunks, "close", None) if opened is not None else None
        if close is not None:
            try:
                close()
            except Exception:
                return  # a generator of the user's that does not end well; nobody waits for it

    # ------------------------------------------------------------------ running a ticket

    def _begin(self, request: Request, message: Message) -> None:
        self.desk.take(request.ticket)
        watch = ProcessWatch()
        post = self.posts[request.program]
        if isinstance(post, BaseException):
            self._refuse(request, post)
            return
        program = post.program
        ticket = Ticket(request.epoch, request.first, request.last, request.step)
        task = Task(post, request.epoch, self.name)
        task.timeouts, task.condemned = request.timeouts, request.condemned
        if watch.began >= post.time_due:
            post.time_due = watch.began + EVERY_S
            task.timing = Timing(time.process_time)
        try:
            carried = self._carried(request, program, message)
            if request.places is not None:
                ticket.samples, ticket.places = carried.pop("samples"), request.places
            post.bench.bind(program.steps)
            if request.probe:
                opened = _Open(request, task, iter(()), carried)
                opened.enter()
                _probe(program, ticket, task)
            else:
                opened = _Open(request, task, _chunks(program, ticket, task), carried)
        except BaseException as exc:
            failed = broken(program.stage, ticket, request.epoch, exc)
            carried = {}
            opened = _Open(request, task, iter([failed]), carried)
        del carried, ticket
        self._advance(opened, watch)

    def _refuse(self, request: Request, exc: BaseException) -> None:
        """Answer a ticket of a program that is not here."""
        record = ErrorRecord("start of a worker", request.first, request.epoch, exc, request.first)
        chunk = Chunk([], (), Failure(exc, record))
        reply = Reply(request.ticket, True, *NOTHING, stowed(chunk, layout_of([]), None), [], None)
        self.connection.wire.send(("chunk", *reply))
        self.desk.take(0)

    def _carried(self, request: Request, program: Program, message: Message) -> dict[str, Any]:
        """What came along: the samples themselves, what was read for the source, what a cache holds."""
        if request.header is None:
            return {}
        if request.block is None:
            memory = message.body
        else:
            memory = self.connection.blocks.array(request.block, request.ticket, self.returned)
        carried: dict[str, Any] = decode(request.header, memory.data)
        if "read" in carried:
            assert program.reading is not None
            positions = range(request.first, request.last, request.step)
            indices = program.reading.indices(request.epoch, positions)
            carried["read"] = dict(zip(map(int, indices), carried["read"], strict=True))
        return carried

    def _advance(self, opened: _Open, watch: Watch) -> None:
        """Go on with a ticket until it is done or has run long enough, and answer."""
        ticket = opened.request.ticket
        opened.enter()
        chunk, done = self._made(opened, watch)
        opened.task.rest()
        if opened.task.timing is not None:
            opened.task.timing.end()
        if not self.desk.wanted(ticket):
            chunk, done = Chunk([], ()), True
        if done:
            self._forget(ticket)
        else:
            self.open[ticket] = opened
        self._answer(opened, chunk, done, watch)

    def _made(self, opened: _Open, watch: Watch) -> tuple[Chunk, bool]:
        """What comes of a ticket until it is time to hand in, and whether that is all."""
        request = opened.request
        parts: list[Chunk] = []
        made = 0
        try:
            for chunk in opened.chunks:
                parts.append(chunk)
                if chunk.final or chunk.failure is not None:
                    return Chunk.join(parts), True
                made += sum(map(nbytes, chunk.samples)) if request.portion else 0
                enough = watch.elapsed_s > PAUSE_REMOTE_S or 0 < request.portion <= made
                if enough or not self.desk.wanted(request.ticket):
                    whole = Chunk.join(parts)
                    if whole is not chunk:
                        _let_go(chunk)
                    return whole, False
        except BaseException as exc:
            ticket = Ticket(request.epoch, request.first, request.last, request.step)
            parts.append(broken(opened.program.stage, ticket, request.epoch, exc))
        return (Chunk.join(parts) if parts else Chunk([], ())), True

    # ------------------------------------------------------------------ answering

    def _answer(self, opened: _Open, chunk: Chunk, done: bool, watch: Watch) -> None:
        while True:
            try:
                self._send_chunk(opened, chunk, done, watch)
                _let_go(chunk)
                return
            except Gone:
                raise
            except Exception as exc:
                # No memory to send it all: what comes before the largest sample, and then the error.
                chunk, done = without_largest(chunk, opened.program, opened.request.epoch, exc), True

    def _send_chunk(self, opened: _Open, chunk: Chunk, done: bool, watch: Watch) -> None:
        request = opened.request
        chunk, layout = measured(chunk, opened.program, request.epoch)
        done = done or chunk.failure is not None
        kept = _kept(opened.program)
        cargo, body = self.connection.stow(
            chunk, layout, opened.grant, partial(self._ask, request.ticket), tightly=request.portion > 0
        )
        if done:
            # What came with the ticket goes back with its answer, unless the user's function has kept it.
            opened.clear()
        del chunk, layout
        returned = []
        while not self.returned.empty():
            returned.append(self.returned.get_nowait())
        timing, opened.task.timing = opened.task.timing, None
        timed = None if timing is None else timing.plain
        newborn.flush()  # what the user's functions print is seen at once, and not lost if they are killed
        # What was spent contains the time it took to write.
        self.connection.wire.send(
            ("chunk", *Reply(request.ticket, done, *watch.spent, cargo, returned, kept, timed)), body
        )
        self.desk.take(0)

    def _ask(self, ticket: int, nbytes: int) -> int | None:
        """Ask for another block to write to than the one that came with the ticket."""
        self.connection.wire.send(("need", ticket, nbytes))
        while True:
            message = self.connection.receive()
            if message.head[0] == "grant":
                number: int | None = message.head[1]
                return number
            self.waiting.append(message)


def _let_go(chunk: Chunk) -> None:
    """What is in it has been sent, or is in another; but the generator of a paused ticket still holds the chunk."""
    chunk.samples = []


def _chunks(program: Program, ticket: Ticket, task: Task) -> Iterator[Chunk]:
    units = -(-ticket.count // program.stage.unit)
    if program.simple and units == 1:
        yield program.whole(ticket, task)
    else:
        yield from program.chunks(ticket, task)


def _probe(program: Program, ticket: Ticket, task: Task) -> None:
    """Run the samples of a ticket one at a time, and keep nothing: either this process lives, or it does not."""
    for number in range(ticket.count):
        if ticket.samples is None:
            chunk = program.read_one(ticket.positions[number], task)
        else:
            chunk = Chunk(ticket.samples[number : number + 1], ticket.places[number : number + 1])
        for _ in through(program, program.probeable, chunk, task):
            pass


def _kept(program: Program) -> bytes | None:
    """What was made for a cache since the last answer."""
    made = program.store.taken() if isinstance(program.store, CarriedStore) else []
    if not made:
        return None
    try:
        data: bytes = cloudpickle.dumps(made)
    except Exception:
        data = cloudpickle.dumps([one for one in made if _picklable(one)])
    return data


def _picklable(value: Any) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True


def _pause(seconds: float) -> bool:
    time.sleep(seconds)
    return True
