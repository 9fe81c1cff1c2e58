"""An input of a joint: the samples of one upstream, waiting in the order of delivery. Pure.

When the stream is resumed, the upstream first makes again what the joint had kept. A `Feeder` gives those samples
to whoever seeks them (`Sought`), and lets everything else wait for the joint.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol

from penstock.core.queue import Queue
from penstock.core.redo import BEGINNING, Start, Want, opened_in
from penstock.ops.joint import LOST
from penstock.program.chunk import Chunk, Loss
from penstock.provenance import Place, covers, input_of, key_of, steps_from
from penstock.resume.cursor import Cursor, Given


class Upstream(Protocol):
    """What an input of a joint is filled from."""

    def pop(self) -> Chunk | None:
        """The next chunk in the order of delivery, if it is there."""

    @property
    def over(self) -> bool:
        """No chunk will come any more."""

    def start(self, epoch: int, start: Start) -> None:
        """Begin, or begin again, as epoch `epoch`."""


class Feeder(Queue):
    """An input of a joint: a queue, and what it is filled from."""

    def __init__(self, upstream: Upstream, **known: Any) -> None:
        super().__init__(**known)
        #: whether the upstream keeps the order
        self._keeps_order = self.ordered
        self.upstream = upstream
        #: where the upstream was started, until something of it is taken
        self.begun: Start = BEGINNING
        #: earlier passes of the upstream, to make again what was wanted of them
        self._passes: list[tuple[int, Start]] = []
        #: what was wanted of the pass that runs, and has not come
        self._awaited: dict[Hashable, list[Sought]] = {}
        #: nothing that was wanted is on its way any more
        self.settled = True
        #: a loss as it stands behind the joint; those of a pass that has ended in the step that runs
        self.on: Callable[[Loss], Loss] = _unchanged
        self.behind: list[Loss] = []

    def begin_step(self) -> None:
        super().begin_step()
        self.behind = []

    # ------------------------------------------------------------------ starting

    def renew(self, epoch: int) -> None:
        if epoch <= self.epoch:
            self.taken = 0
        # What was lost in the pass that is over stands behind the last sample taken of it.
        behind = [*self.behind, *map(self.on, self.passed)]
        behind += [self.on(loss._replace(before=self._stepped)) for loss in self.leading()]
        stepped = self._stepped
        self.begin([(epoch, BEGINNING)], {})
        self.behind, self._stepped = behind, stepped

    def begin(self, passes: list[tuple[int, Start]], sought: dict[int, list[Sought]]) -> None:
        """Start the upstream, for each of these passes one after the other; the last is the one to go on with."""
        self.clear()
        self._passes = list(passes)
        self._sought = sought
        self.settled = False
        self._next_pass()

    def _next_pass(self) -> None:
        epoch, start = self._passes.pop(0)
        self.epoch = epoch
        self.begun = start
        self._awaited = {}
        for sought in self._sought.pop(epoch, ()):
            self._awaited.setdefault(key_of(sought.want.place), []).append(sought)
        redo = start.redo()
        self._redo_keys = {key_of(place) for place in redo.places}
        self._owed_keys = {*redo.held, *map(key_of, opened_in(start.front))}
        self.settled = not self._awaited and not self._passes
        # What several ranks had begun may come from its middle on, anywhere among the first samples.
        self.ordered = self._keeps_order and all(one.after is None for one in start.held[1:])
        self.upstream.start(epoch, start)

    def cursor(self) -> Cursor | None:
        """Where the upstream stands; None if nothing has been taken of it since its beginning."""
        if self.last is not None:
            lot, number = self.last
            return lot.cursor_at(number)
        edge = self.begun.edge
        return None if edge is None else Cursor(Given(edge.front), tuple(self.begun.held))

    # ------------------------------------------------------------------ filling

    def fill(self) -> Chunk | None:
        """Take in the next chunk of the upstream, or that it has ended; None if nothing has changed."""
        chunk = self.upstream.pop()
        if chunk is None:
            if not self.upstream.over or self.ended:
                return None
            if self._passes:
                self._next_pass()
            else:
                # As in a run without a stop, what was lost behind the last sample passes before the end is known.
                self.ended = self.settled or not self.lost
                self.settled = True
            return Chunk([], ())
        if not self.settled:
            # What comes after all that is made again: nothing more of that will come.
            settled = not chunk.redo and len(chunk.samples) > 0 and not self._passes
            chunk = self._sought_out(chunk)
            self.settled = settled
        self.add_chunk(chunk)
        self.failure = chunk.failure
        self.come += len(chunk.samples)
        self.come_bytes += chunk.nbytes
        return chunk

    def _sought_out(self, chunk: Chunk) -> Chunk:
        """`chunk` without what the joint had wanted to be made again, which is given to it."""
        keep = []
        for sample, place in zip(chunk.samples, chunk.places, strict=True):
            keep.append(not self._give(place, sample, None))
        losses = [loss for loss in chunk.losses if not self._give(loss.place, LOST, loss)]
        chunk.losses = [loss for loss in losses if not (chunk.redo and self._give_cover(loss))]
        chunk.keep(keep)
        return chunk

    def _give(self, place: Place, sample: Any, loss: Loss | None) -> bool:
        """Give a sample to whoever wanted it. True if somebody did."""
        depths = range(self.depth + 1) if loss is not None else (self.depth,)
        for depth in depths:
            key = key_of(input_of(place, depth))
            if key in self._redo_keys:
                steps = steps_from(place, depth)
                given = sum(one.take(steps, place, sample, loss) for one in self._awaited.get(key, ())) > 0
                # What is lost behind all that was wanted of an input concerns nobody, unless more of that is owed.
                return given or (loss is not None and key not in self._owed_keys)
        return False  # it comes after all that is made again, or is a loss that has passed a joint

    def _give_cover(self, loss: Loss) -> bool:
        """Give a loss that has passed a joint to those who want what would have been made of its sample."""
        return sum(one.lose(loss) for seekers in self._awaited.values() for one in seekers) > 0


def _unchanged(loss: Loss) -> Loss:
    return loss


class Sought:
    """What is to be made again of one input, for one purpose."""

    def __init__(self, want: Want, number: int, epoch: int) -> None:
        self.want = want
        #: the input of the joint, and its epoch
        self.input = number
        self.epoch = epoch
        self.found: list[tuple[Any, Place]] = []
        self._made: list[tuple[int, ...]] = []
        self.losses: list[Loss] = []

    def take(self, steps: tuple[int, ...], place: Place, sample: Any, loss: Loss | None) -> bool:
        """Take a sample that was made of the input, or its loss, if that is meant."""
        if not self.want.holds(steps):
            return False
        if loss is None:
            self.found.append((sample, place))
            self._made.append(steps)
        elif self.want.met(steps, self._made):
            return False
        else:
            self.losses.append(loss)
        return True

    def lose(self, loss: Loss) -> bool:
        """Take note of the loss if it covers what is wanted; True if it does."""
        covered = not self.found and covers(loss.place, self.want.place)
        if covered:
            self.losses.append(loss)
        return covered
