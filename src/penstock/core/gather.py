"""Where the tickets of a stage come from that has other stages before it. Pure.

Chunks of those wait in queues, in the order of delivery. A joint takes samples out of the queues and passes some
on. After every step it is remembered where the joint and its inputs
stand, so that the stream can be told to stand after any of its outputs.

A lost sample travels in its place: before the output that the next sample after it goes into. If the joint waits
for that next sample, the loss is passed on at once, since nothing else can come before it.

When the stream is resumed, the joint's inputs first make again what the joint kept, and what outputs that are still
owed were made of. Those outputs are put together from that and passed on, the joint is restored, and goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from penstock.core.budget import Budget
from penstock.core.feeder import Feeder
from penstock.core.queue import Queue
from penstock.core.queued import QueuedInlet
from penstock.core.redo import Start
from penstock.core.remake import Remake
from penstock.errors import PenstockError, PlanError, StateMismatch
from penstock.ops.joint import Absent, Joint
from penstock.program.chunk import Failure, Loss
from penstock.program.failure import take_note
from penstock.provenance import Place
from penstock.resume.cursor import BehindLoss, Cursor, Held, saved_edge
from penstock.resume.schema import Front, InputState

#: outputs of one step at the most: those of them that are still owed are named one by one in a state
_STEP = 256
#: groups of consecutive positions at the most: each is named by two numbers
_ROW = 64
#: so many losses without a sample behind them pass even if samples before them still wait
_MANY = 32
#: steps in which a joint does nothing, once all its inputs have ended; `epoch()` makes up to 200
_IDLE_STEPS = 1000


class _Standing(NamedTuple):
    """A joint between two steps."""

    key: str
    #: the joint's class and not the joint, which may keep samples
    joint: type[Joint]
    own: Any
    inputs: tuple[tuple[int, Cursor | None, tuple[Any, int] | None, int, Any], ...]
    names: tuple[str, ...]
    #: outputs made before that have not been taken
    owed: int = 0

    def saved(self) -> Front:
        inputs: list[InputState | None] = []
        for number, (epoch, begun, last, taken, note) in enumerate(self.inputs):
            if epoch < 0:
                inputs.append(None)
                continue
            cursor = begun if last is None else last[0].cursor_at(last[1])
            name = self.names[number] if self.names else None
            inputs.append(InputState(epoch, saved_edge(cursor), taken, name, note))
        return Front(joint=self.key, own=self.joint.plain(self.own, self.owed), inputs=inputs)


class _Step(NamedTuple):
    """The outputs of one step of a joint, those that are lost included, and where the joint stood after it."""

    places: Sequence[Place]
    after: _Standing
    #: which of them are samples; None if all are
    samples: Sequence[int] | None = None

    def cursor_at(self, number: int) -> Cursor:
        return self.cursor_before((number if self.samples is None else self.samples[number]) + 1)

    def lost_before(self, number: int) -> BehindLoss:
        """The origin of what was lost right before output `number`."""
        return BehindLoss(partial(self.cursor_before, number))

    def cursor_before(self, number: int) -> Cursor:
        """Where the stream stands before output `number`."""
        owed = self.places[number:]
        if self.after.joint.approximate:
            return Cursor(self.after._replace(owed=len(owed)))
        return Cursor(self.after, tuple(map(Held, owed)))


class JoinedInlet(QueuedInlet):
    """Chunks of other stages, through a joint."""

    def __init__(
        self,
        epoch: int,
        joint: Joint,
        queues: list[Feeder],
        budget: Budget,
        *,
        key: str = "",
        names: tuple[str, ...] = (),
        label: str = "",
        singly: bool = False,
        depth: int = 0,
    ) -> None:
        super().__init__(epoch, budget, depth=depth, edge_depth=depth)
        #: whose joint it is, in words
        self._label = label
        #: one output a step, so that a state never owes single outputs
        self._singly = singly
        self.joint = joint
        self.queues = queues
        for number, queue in enumerate(queues):
            queue.on = partial(self._on, number=number)
        #: what a state calls the joint, and what a composite calls its parts
        self._key = key
        self._names = names
        self._eager = joint.eager
        #: how many samples are lacking for what comes next, with none on their way; and does anybody wait for it
        self.lack: Callable[[], tuple[int, bool]] = lambda: (0, False)
        #: steps in which nothing happened, since all inputs have ended, and how many samples waited then
        self._idle_steps = self._left = 0
        #: what is made again before the joint goes on; whether it goes on from a state
        self._again: Remake | None = None
        self._resumed = False

    @property
    def upstreams(self) -> list[Any]:
        return [queue.upstream for queue in self.queues]

    # ------------------------------------------------------------------ being resumed

    def resume(self, start: Start) -> None:
        """Go on where a state was saved."""
        self._resumed = True
        self._again = Remake(self, self.joint, start.redo(), start.front)
        self._again.begin(start.only_wanted)

    # ------------------------------------------------------------------ moving

    def pump(self, most: int) -> None:
        if not self._eager:
            self._move(most)
            return
        while self._again is not None and not self._finished and self._step(most):
            pass
        if self._again is None:
            self._absorb()

    def draw(self, most: int) -> None:
        if self._again is None:
            self._move(most)

    def _move(self, most: int) -> None:
        """Run the joint until so many samples have passed it, or it waits for more."""
        passed = self._passed
        while passed.count < most and not self._finished and self._step(most - passed.count):
            pass

    def _step(self, most: int) -> bool:
        """Move samples towards the stage; False when nothing moved."""
        if self._again is not None:
            return self._redo_step(self._again)
        if self._eager:
            self._absorb()
            if self._finished:
                return True
        for queue in self.queues:
            queue.begin_step()
        try:
            samples, places = self.joint.step(self.queues, self._most(most))
            self._finished = self.joint.ended
            if len(places) != len(samples):
                raise PenstockError(
                    f"the joint of {self._label} has returned {len(samples)} samples and {len(places)} places; "
                    "every sample has one"
                )
            moved = self._pass(samples, places)
            if self._finished:
                self._pass_losses(self.joint.drained(self.queues), every=True)
            lacking = () if moved or self._finished or self._eager else self.joint.lacking(self.queues)
        except Exception as exc:
            return self._breaks(self._explained(exc))
        except SystemExit as exc:
            take_note(exc, f"in the joint of {self._label}")
            raise
        if moved or self._finished or self._eager:
            return moved or self._finished
        if self._overflows():
            return True
        return self._get_more(self.joint, lacking)

    def _most(self, most: int) -> int:
        """How many outputs a step may make: what of them is owed in the middle is named in a state.

        What was lost among the samples that a step takes is not: so it stands before the only output of its step.
        """
        if self._singly:
            return 1
        for queue in self.queues:
            if queue.lost:
                return 1
        joint = self.joint
        in_row = min(self.queues[0].in_row // joint.group_size, _ROW) if joint.group_size else 0
        return max(1, min(most, max(_STEP // max(joint.per_output, 1), in_row)))

    def _pass(self, samples: list[Any], places: Sequence[Place]) -> bool:
        """Pass on what a step has made, and what was lost among what it took. False if there was neither."""
        joint = self.joint
        losses: list[Loss] = []
        for number, queue in enumerate(self.queues):
            for loss in (*queue.behind, *(self._on(loss, number) for loss in queue.passed)):
                losses.append(loss._replace(before=joint.output_of(number, loss.before, len(samples))))
        if not samples and not losses:
            return False
        step = _Step(places, self.standing())
        losses = [loss._replace(origin=step.lost_before(loss.before)) for loss in losses]
        if joint.takes_losses and any(type(one) is Absent for one in samples):
            kept = [number for number, one in enumerate(samples) if type(one) is not Absent]
            samples, places, losses = self._without_absent(samples, step, losses)
            step = step._replace(samples=kept)
        if len(self.queues) > 1:
            losses.sort(key=lambda loss: loss.before)
        self._passed.add(samples, places, losses, step)
        return True

    def _without_absent(
        self, samples: list[Any], step: _Step, losses: list[Loss]
    ) -> tuple[list[Any], list[Place], list[Loss]]:
        """Outputs of the joint without the lost samples among them, which become losses in their place."""
        out: list[Any] = []
        kept: list[Place] = []
        for number, (sample, place) in enumerate(zip(samples, step.places, strict=True)):
            if type(sample) is Absent:
                losses.append(
                    self._on(sample.loss, 0)._replace(before=len(out), origin=step.lost_before(number + 1))
                )
            else:
                out.append(sample)
                kept.append(place)
        return out, kept, losses

    def _on(self, loss: Loss, number: int, epoch: int | None = None) -> Loss:
        """A loss as it stands behind the joint; `epoch` is that of the upstream, if not the one that runs."""
        joint, queue = self.joint, self.queues[number]
        coarse = loss.steps < queue.depth
        place = joint.passed_on(loss.place, number, queue.epoch if epoch is None else epoch)
        return loss._replace(place=place, hard=loss.hard or coarse or joint.groups, steps=0, origin=None)

    def _get_more(self, joint: Joint, lacking: Sequence[int]) -> bool:
        moved = not joint.takes_losses and self._pass_losses(joint.next_taken(lacking))
        for number in lacking:
            queue = self.queues[number]
            if queue.failure is not None:
                return self._ends(queue.failure)
            moved = self._fill(queue) or moved
        for queue in self.queues:  # no generator: Ctrl-C inside one could not be raised
            if not queue.ended:
                self._idle_steps = 0
                return moved
        return self._goes_on()

    def _breaks(self, exc: Exception) -> bool:
        """The joint has failed: the stream ends here, behind what it has passed on."""
        take_note(exc, f"in the joint of {self._label}")
        return self._ends(Failure(exc))

    def _ends(self, failure: Failure) -> bool:
        self.failure = failure
        self._finished = True
        return True

    def _goes_on(self) -> bool:
        """All inputs have ended, and the joint has made nothing and not ended: it gets a few more steps."""
        left = sum(queue.count for queue in self.queues)
        self._idle_steps = self._idle_steps + 1 if left == self._left else 0
        self._left = left
        if self._idle_steps > _IDLE_STEPS:
            return self._breaks(
                PenstockError(
                    f"the joint of {self._label} does not end: all its inputs have ended, and in {_IDLE_STEPS} "
                    f"steps it has taken none of the {left} samples that wait, passed none on, and not set `ended`"
                )
            )
        return True

    def _pass_losses(self, numbers: Sequence[int], every: bool = False) -> bool:
        """Pass on what was lost and leads a queue that the joint waits for, or trails one that has ended."""
        losses: list[Loss] = []
        for number in numbers:
            queue = self.queues[number]
            found = queue.leading() if queue.lost else []
            if not every and queue.lost and queue.trailing >= _MANY:
                found += queue.shed()
            losses += [self._on(loss, number)._replace(before=0) for loss in found]
        if losses:
            origin = _Step((), self.standing()).lost_before(0)
            self._passed.add([], (), [loss._replace(origin=origin) for loss in losses])
        return bool(losses)

    def standing(self) -> _Standing:
        """The joint as it stands now."""
        joint = self.joint
        inputs = tuple(
            (queue.epoch, None if queue.last is not None else queue.cursor(), queue.last, queue.taken, queue.note)
            for queue in self.queues
        )
        return _Standing(self._key, type(joint), joint.save(), inputs, self._names)

    def _redo_step(self, again: Remake) -> bool:
        """Wait for what is made again; then put together what is owed, restore the joint, and go on."""
        moved = False
        try:
            for queue in self.queues:
                while not queue.settled and queue.failure is None and self._fill(queue):
                    moved = True
        except Exception as exc:  # another pass of the input begins where the state says
            return self._ends(Failure(self._explained(exc)))
        for queue in self.queues:
            if queue.failure is not None and not queue.settled:
                return self._ends(queue.failure)
        if not all(queue.settled for queue in self.queues):
            return moved
        self._again = None
        try:
            again.finish(self._passed)
        except Exception as exc:
            return self._ends(Failure(self._explained(exc)))
        if again.only_wanted:
            self._finished = True
        return True

    def _explained(self, exc: Exception) -> Exception:
        """What a joint has raised: no function of the user runs in it, so after a resume the state is at fault."""
        if not self._resumed or isinstance(exc, PenstockError):
            return exc
        return StateMismatch(f"the state is damaged: {exc!r}").with_traceback(exc.__traceback__)

    def drawable(self) -> bool:
        joint = self.joint
        if not self._eager or self._finished or self._again is not None:
            return False
        self._tell_need(joint)
        return joint.drawable()

    def _tell_need(self, joint: Joint) -> None:
        """Tell the joint how much is lacking for the training loop, and whether that waits."""
        lacked, joint.hungry = self.lack()
        joint.lacked = max(0, lacked - self._passed.count)

    def _absorb(self) -> None:
        """Let the joint take in what has come, whether it passes anything on or not."""
        joint = self.joint
        if self._finished:
            return
        (queue,) = self.queues
        self._tell_need(joint)
        queue.begin_step()
        try:
            while joint.absorb(self.queues) and self._fill(queue):
                pass
        except Exception as exc:
            take_note(exc, f"in the joint of {self._label}")
            queue.failure = Failure(exc)
        lost = [*queue.passed, *queue.leading()]
        self._passed.add([], (), [loss._replace(before=0, hard=True, origin=None) for loss in lost])
        queue.passed = []
        if self.budget.bounded:
            self._weigh(joint.kept + queue.count, queue)
        if queue.failure is not None:
            # Told once: the next epoch goes on with the next pass of the upstream.
            self.failure, queue.failure = queue.failure, None
            self._finished = True
        else:
            self._overflows()

    def _weigh(self, count: int, queue: Queue) -> None:
        """Count what is here as so many samples of the usual weight: whatever is drawn stays here too."""
        self.budget.give_back(self.held_bytes)
        self.held_bytes = count * queue.come_bytes // max(queue.come, 1)
        self.budget.take(self.held_bytes)

    def _overflows(self) -> bool:
        """Whether the joint must hold more than there is room for: then the stream ends here."""
        hoards, allowed = self.joint.hoards, self.budget.allowed
        if not hoards or allowed is None or self.held_bytes <= allowed or self._here <= 1:
            return False
        exc = PlanError(
            f"{hoards} holds {self.held_bytes:,} bytes after {self._here} samples, more than memory={allowed:,}; "
            "make it smaller, or allow more"
        )
        return self._ends(Failure(exc))

    @property
    def lacks(self) -> str:
        return self.joint.lacks

    def needs(self, upstream: Any) -> int:
        """How many samples of one upstream are lacking for the next ticket; none if others are."""
        if self._passed.count or self._finished:
            return 0
        for number, queue in enumerate(self.queues):
            if getattr(queue.upstream, "stage_run", None) is upstream:
                return self.joint.needs(self.queues) if number in self.joint.lacking(self.queues) else 0
        return 0

    def _fill(self, queue: Feeder) -> bool:
        chunk = queue.fill()
        if chunk is None:
            return False
        self._count_in(chunk)
        return True

    @property
    def _here(self) -> int:
        """How many samples wait here."""
        return self._passed.count + self.joint.kept + sum(queue.count for queue in self.queues)

    def _weight(self, count: int) -> int:
        return 0 if self._eager else super()._weight(count)  # whatever is drawn stays here too
