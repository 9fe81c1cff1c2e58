"""Whoever reads a loader: where it waits, what it waits for, and when it is itself a worker of another."""

from __future__ import annotations

from math import inf
from threading import get_ident

from penstock.core.workers import HERE, LOCK, Crew
from penstock.executors.parking import is_staged, new_spot

__all__ = ["Nested", "Reader"]


class Reader:
    """Whoever reads a loader: where it waits, and its name when it runs tickets itself."""

    def __init__(self) -> None:
        self.name = "reader"
        self.retired = False
        self.spot = new_spot("reader")
        self.turn = self.spot.turn
        self.staged = is_staged(self.spot)
        self.waiting = False
        #: it has nothing to read, and there is nothing to do that would bring it something
        self.hungry = False
        #: threads inside `read`: more than one while a new iteration takes over from an old one. Idents, and no
        #: count: a thread that was interrupted on its way out is right again when it comes next
        self.inside: set[int] = set()
        #: the crew whose worker reads, if it is one
        self.nested: Crew | None = None
        #: until when it waits at the latest; a nearer deadline must wake it
        self.until = -inf

    def heed(self, deadline: float) -> None:
        """A call has begun that must end by `deadline`."""
        if deadline < self.until:
            self.spot.unpark()

    def unpark(self) -> None:
        self.spot.unpark()

    def frame(self) -> None:
        return None

    def forgo(self) -> None:
        return None


class Nested:
    """Keeps count of the workers that wait for a pipeline inside a function of another.

    Such a worker may be the only one that could make the batch it waits for, so its reader runs
    tickets of its own loader: on its own crew when nobody is idle there, and on another crew when
    workers of that one wait in the same way. A crew whose workers all work will come to the ticket.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.crew: Crew | None = getattr(HERE, "crew", None)
        self.counted = False
        self._ident = get_ident()

    def __enter__(self) -> Nested:
        self.reader.nested = self.crew
        self.reader.inside.add(self._ident)
        return self

    def waits(self) -> None:
        """The worker has nothing to do but wait. Called under the lock."""
        crew = self.crew
        if crew is None or self.counted:
            return
        self.counted = True
        crew.reading += 1
        for client in crew.clients:
            client.wake_nested_reader()

    def works(self) -> None:
        if self.crew is not None and self.counted:
            with LOCK:
                self.counted = False
                self.crew.reading -= 1

    def __exit__(self, *exc: object) -> None:
        self.works()
        self.reader.hungry = False
        self.reader.inside.discard(self._ident)
        if self.reader.inside:
            self.reader.unpark()
