"""One pass over a flow: a thread that makes batches in order, and a window of those it has made.

The thread makes a batch only while `allow` says that somebody has credit for it. Batches are encoded once, by this
thread; large arrays are not copied. What is in the window is sent, again and to several clients if need be, until
the server drops it. Numbers here are those of the flow: 0, 1, 2 … without gaps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

from penstock.core.loader import Loader
from penstock.errors import PenstockError, StateMismatch
from penstock.memory.network import layout_of
from penstock.service.flows import Flows
from penstock.service.seals import Seals

#: how often the state of the pipeline is sent along
_STATE_S = 0.02
#: a longer state is not sent; the pass is then begun anew where a client cannot be served from the window
_STATE_BYTES = 60_000


class Item:
    """A batch that was made: its frames, and where the pipeline stands after it."""

    __slots__ = ("frames", "header", "nbytes", "number", "state")

    def __init__(self, number: int, batch: Any, state: bytes) -> None:
        layout = layout_of(batch, in_frames=True)
        self.number = number
        self.header = layout.header
        self.frames = layout.frames()
        self.nbytes = len(self.header) + sum(frame.nbytes for frame in self.frames)
        self.state = state


class Run:
    """Batches of one flow in one epoch, from number `first` on.

    `at` and `state` are where the pipeline can go on: all before number `at` was made already. Without a state it
    begins at the first batch, and what comes before `first` is made and dropped.
    """

    def __init__(
        self,
        flows: Flows,
        epoch: int,
        part: tuple[int, int],
        first: int,
        resume: tuple[int, bytes],
        wake: Callable[[], None],
        owner: bytes = b"",
    ) -> None:
        self.epoch = epoch
        self.part = part
        #: the first number in the window, and the next to be made
        self.first = self.made = first
        #: how many batches the flow has, once that is known
        self.total: int | None = None
        self.failure: BaseException | None = None
        #: the only client that may read it, since the state that it went on from may be made up; empty: all
        self.owner = owner
        #: its failure is in the log
        self.logged = False
        #: since when nobody has read it
        self.unused: float | None = None
        self._start = first
        #: bytes put into the window, by the thread, and taken out of it, by the server
        self._put = self._dropped = 0
        self._items: dict[int, Item] = {}
        self._flows = flows
        self._resume = resume if resume[0] <= first else (0, b"")
        self._wake = wake
        self._until = 0
        #: the server has looked for a batch that was not made yet, and is to be woken for the next
        self._awaited = True
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name=f"penstock-serve-epoch-{epoch}", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ what the server's thread calls

    def item(self, number: int) -> Item | None:
        """The batch, if it is in the window. If it is not, the server is woken for the next batch that is made."""
        item = self._items.get(number)
        if item is None:
            self._awaited = True
            item = self._items.get(number)  # it may have been made in between
        return item

    def allow(self, until: int) -> None:
        """Batches before number `until` may be made."""
        if until > self._until:
            with self._changed:
                self._until = until
                self._changed.notify()

    def drop(self, number: int) -> None:
        """Nobody needs this batch any more."""
        item = self._items.pop(number, None)
        if item is not None:
            self._dropped += item.nbytes

    @property
    def nbytes(self) -> int:
        """Bytes in the window."""
        return self._put - self._dropped

    def trim(self, count: int, nbytes: int) -> None:
        """Keep the last `count` batches, and no more than so many bytes, but always the last."""
        while self.first < self.made - 1 and (self.made - self.first > count or self.nbytes > nbytes):
            self.drop(self.first)
            self.first += 1

    def close(self) -> None:
        """Make no more. Does not wait."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end; whether it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # ------------------------------------------------------------------ the thread

    def _work(self) -> None:
        loader: Loader[Any] | None = None
        sound = False
        try:
            loader = self._flows.borrow(*self.part)
            self._make(loader)
            sound = True
        except BaseException as exc:
            if not self._closing:
                self.failure = exc
        finally:
            if loader is not None:
                self._flows.give_back(loader, *self.part, sound and not self.owner)
            self._wake()

    def _make(self, loader: Loader[Any]) -> None:
        number = self._position(loader)
        if self.total is not None:
            return
        batches = iter(loader)
        stated = 0.0
        try:
            while self._may_make(number):
                try:
                    batch = next(batches)
                except StopIteration:
                    self.total = number
                    return
                if loader.epoch != self.epoch:  # what was resumed had nothing left
                    self.total = number
                    return
                number += 1
                if number <= self._start:
                    continue
                state = b""
                if monotonic() - stated > _STATE_S:
                    state, stated = self._state_of(loader, number), monotonic()
                item = Item(number - 1, batch, state)
                del batch
                self._items[number - 1] = item
                self._put += item.nbytes
                self.made = number
                if self._awaited:
                    self._awaited = False
                    self._wake()
        finally:
            batches.close()  # type: ignore[attr-defined]

    def _position(self, loader: Loader[Any]) -> int:
        """Bring the loader to where the run begins; the number of its next batch."""
        at, state = self._resume
        if state:
            try:
                loader.load_state_dict(Seals.state_in(state))
            except (ValueError, RecursionError) as exc:
                raise StateMismatch(f"the state that a client has sent is damaged: {exc}") from None
            if loader.epoch == self.epoch:
                return at
            if loader.epoch == self.epoch + 1 and not loader.batch_index:
                self.total = at
                return at
        loader.set_epoch(self.epoch + 1)  # so that a position that was loaded is left
        loader.set_epoch(self.epoch)
        return 0

    def _may_make(self, number: int) -> bool:
        """Wait until the next batch is wanted; False if none is any more."""
        with self._changed:
            while number >= self._until and number >= self.made and not self._closing:
                self._changed.wait()
            return not self._closing

    def _state_of(self, loader: Loader[Any], number: int) -> bytes:
        """Where the pipeline stands before batch `number`. What was made of a made-up state is never sealed."""
        try:
            place = None if self.owner else (self.epoch, self.part, number)
            said = self._flows.seals.sealed(loader.state_dict(), place)
        except PenstockError:
            return b""
        return said if len(said) <= _STATE_BYTES else b""
