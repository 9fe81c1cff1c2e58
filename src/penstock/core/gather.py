"""Where the tickets of a stage come from that has other stages before it. Pure.

Chunks of those wait in queues, in the order of delivery. A joint takes samples out of the queues and passes some
on; without a joint they pass as they come. After every step it is remembered where the joint and its inputs
stand, so that the stream can be told to stand after any of its outputs.

A lost sample travels in its place: before the output that the next sample after it goes into. If the joint waits
for that next sample, the loss is passed on at once, since nothing else can come before it.

When the stream is resumed, the joint's inputs first make again what the joint kept, and what outputs that are still
owed were made of. Those outputs are put together from that and passed on, the joint is restored, and goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from penstock.core.budget import Budget
from penstock.core.inlets import Inlet
from penstock.core.queue import Queue
from penstock.core.redo import BEGINNING, Redo, Start, Want, given, opened_in
from penstock.errors import PenstockError, PlanError, StateMismatch
from penstock.ops.op import LOST, Absent, Ingredient, Joint
from penstock.program.chunk import Chunk, ErrorRecord, Failure, Loss, Ticket
from penstock.program.failure import take_note
from penstock.provenance import Place, input_of, key_of, steps_from
from penstock.resume.cursor import Cursor, FromParts, FromRedo, Given, Held, Mark, saved_edge
from penstock.resume.schema import Front, InputState

__all__ = ["Feeder", "JoinedInlet", "Upstream"]

#: outputs of one step at the most: those of them that are still owed are named one by one in a state
_STEP = 256
#: so many losses without a sample behind them pass even if samples before them still wait
_MANY = 32
#: steps in which a joint does nothing, once all its inputs have ended; `epoch()` makes up to 200
_IDLE_STEPS = 1000


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
        self.upstream = upstream
        #: where the upstream was started, until something of it is taken
        self.begun: Start = BEGINNING
        #: earlier passes of the upstream, to make again what was wanted of them
        self._passes: list[tuple[int, Start]] = []
        #: what was wanted of the pass that runs, and has not come
        self._awaited: dict[Hashable, _Seekers] = {}
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

    def begin(self, passes: list[tuple[int, Start]], sought: dict[int, list[_Sought]]) -> None:
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
            for want in sought.wants:
                self._awaited.setdefault(key_of(want.place), _Seekers()).add(sought)
        redo = start.redo()
        self._redo_keys = {key_of(place) for place in redo.places}
        self._owed_keys = {*redo.held, *map(key_of, opened_in(start.front))}
        self.settled = not self._awaited and not self._passes
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
                self.ended = True
                self.settled = True
            return Chunk([], ())
        if not self.settled:
            chunk = self._sought_out(chunk)
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
        chunk.losses = losses
        chunk.keep(keep)
        return chunk

    def _give(self, place: Place, sample: Any, loss: Loss | None) -> bool:
        """Give a sample to whoever wanted it. True if somebody did."""
        depths = range(self.depth + 1) if loss is not None else (self.depth,)
        for depth in depths:
            of = input_of(place, depth)
            key = key_of(of)
            if key in self._redo_keys:
                seekers = self._awaited.get(key)
                steps = steps_from(place, depth)
                given = seekers is not None and seekers.give(of, steps, place, sample, loss)
                # What is lost behind all that was wanted of an input concerns nobody, unless more of that is owed.
                return given or (loss is not None and key not in self._owed_keys)
        # What comes after all that is made again: nothing more of that will come.
        self.settled = not self._passes
        return False


def _unchanged(loss: Loss) -> Loss:
    return loss


class _Sought:
    """Samples that are to be made again for one purpose: all that `wants` names."""

    def __init__(self, wants: Sequence[Want], number: int = 0) -> None:
        self.wants = wants
        #: the input of the joint
        self.input = number
        self.found: list[tuple[Any, Place]] = []
        self.losses: list[Loss] = []

    def take(self, of: Place, steps: tuple[int, ...], place: Place, sample: Any, loss: Loss | None) -> bool:
        key = key_of(of)
        if not any(key_of(want.place) == key and want.holds(steps) for want in self.wants):
            return False
        if loss is not None and self.found and all(want.first and want.first == want.last for want in self.wants):
            return False  # the one sample that was wanted came before the input failed
        if loss is None:
            self.found.append((sample, place))
        else:
            self.losses.append(loss)
        return True


class _Seekers:
    """Those who want something that is made of one input."""

    def __init__(self) -> None:
        self._all: list[_Sought] = []

    def add(self, one: _Sought) -> None:
        if one not in self._all:
            self._all.append(one)

    def give(self, of: Place, steps: tuple[int, ...], place: Place, sample: Any, loss: Loss | None) -> bool:
        taken = [one.take(of, steps, place, sample, loss) for one in self._all]
        return any(taken)


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
        owed = self.places[(number if self.samples is None else self.samples[number]) + 1 :]
        if self.after.joint.approximate:
            return Cursor(self.after._replace(owed=len(owed)))
        return Cursor(self.after, tuple(map(Held, owed)))


class JoinedInlet(Inlet):
    """Chunks of other stages, through a joint. Without one, samples pass as they come."""

    pumps = True

    def __init__(
        self,
        epoch: int,
        joint: Joint | None,
        queues: list[Feeder],
        budget: Budget | None = None,
        *,
        key: str = "",
        names: tuple[str, ...] = (),
        label: str = "",
        singly: bool = False,
        depth: int = 0,
        edge_depth: int | None = None,
    ) -> None:
        #: whose joint it is, in words
        self._label = label
        #: one output a step, so that a state never owes single outputs
        self._singly = singly
        self.budget = budget or Budget(None)
        #: bytes of the samples that wait here
        self.held_bytes = 0
        self.epoch = epoch
        self.joint = joint
        self.queues = queues
        self.failure = None
        #: ops of the stage that make several samples of one, and ops since the source or joint that do
        self._depth = depth
        self._edge_depth = depth if edge_depth is None else edge_depth
        self._passed = Queue()
        for number, queue in enumerate(queues):
            queue.on = partial(self._on, number=number)
        self._finished = False
        #: what a state calls the joint, and what a composite calls its parts
        self._key = key
        self._names = names
        self._eager = joint is not None and joint.eager
        #: how many samples are lacking for what comes next, with none on their way; and does anybody wait for it
        self.lack: Callable[[], tuple[int, bool]] = lambda: (0, False)
        #: steps in which nothing happened, since all inputs have ended, and how many samples waited then
        self._idle_steps = self._left = 0
        #: what is made again before the joint goes on; whether it goes on from a state
        self._again: _Again | None = None
        self._resumed = False

    # ------------------------------------------------------------------ being resumed

    def resume(self, start: Start) -> None:
        """Go on where a state was saved."""
        joint, front = self.joint, start.front
        assert joint is not None
        self._resumed = True
        self._again = _Again(self, joint, start.redo(), front)
        self._again.begin(start.only_wanted)

    # ------------------------------------------------------------------ moving

    def available(self, most: int) -> int:
        return min(self._passed.alike, most)

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
        if self.joint is None:
            return self._pass_on()
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
        size = self.joint.per_output if self.joint is not None else 1
        return max(1, min(most, _STEP // max(size, 1)))

    def _pass(self, samples: list[Any], places: Sequence[Place]) -> bool:
        """Pass on what a step has made, and what was lost among what it took. False if there was neither."""
        joint = self.joint
        assert joint is not None
        losses: list[Loss] = []
        for number, queue in enumerate(self.queues):
            for loss in (*queue.behind, *(self._on(loss, number) for loss in queue.passed)):
                losses.append(loss._replace(before=joint.output_of(number, loss.before, len(samples))))
        made, numbers = places, None
        if joint.takes_losses and any(type(one) is Absent for one in samples):
            numbers = [number for number, one in enumerate(samples) if type(one) is not Absent]
            samples, places, losses = _without_absent(samples, places, losses)
        if not samples and not losses:
            return False
        if len(self.queues) > 1:
            losses.sort(key=lambda loss: loss.before)
        lot = _Step(made, self.standing(), numbers) if samples else None
        self._passed.add(samples, places, losses, lot)
        return True

    def _on(self, loss: Loss, number: int) -> Loss:
        """A loss as it stands behind the joint."""
        joint, queue = self.joint, self.queues[number]
        assert joint is not None
        coarse = len(steps_from(loss.place, queue.depth)) < queue.depth if queue.depth else False
        place = joint.passed_on(loss.place, number, queue.epoch)
        return loss._replace(place=place, hard=loss.hard or coarse or joint.groups)

    def _get_more(self, joint: Joint, lacking: Sequence[int]) -> bool:
        moved = not joint.takes_losses and self._pass_losses(joint.next_taken(lacking))
        for number in lacking:
            queue = self.queues[number]
            if queue.failure is not None:
                self.failure = queue.failure
                self._finished = True
                return True
            moved = self._fill(queue) or moved
        for queue in self.queues:  # no generator: Ctrl-C inside one could not be raised
            if not queue.ended:
                self._idle_steps = 0
                return moved
        return self._goes_on()

    def _breaks(self, exc: Exception) -> bool:
        """The joint has failed: the stream ends here, behind what it has passed on."""
        take_note(exc, f"in the joint of {self._label}")
        self.failure = Failure(exc)
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
        self._passed.add([], (), losses)
        return bool(losses)

    def standing(self) -> _Standing:
        """The joint as it stands now."""
        joint = self.joint
        assert joint is not None
        inputs = tuple(
            (queue.epoch, None if queue.last is not None else queue.cursor(), queue.last, queue.taken, queue.note)
            for queue in self.queues
        )
        return _Standing(self._key, type(joint), joint.save(), inputs, self._names)

    def _redo_step(self, again: _Again) -> bool:
        """Wait for what is made again; then put together what is owed, restore the joint, and go on."""
        moved = False
        for queue in self.queues:
            while not queue.settled and queue.failure is None and self._fill(queue):
                moved = True
        for queue in self.queues:
            if queue.failure is not None and not queue.settled:
                self.failure = queue.failure
                self._finished = True
                return True
        if not all(queue.settled for queue in self.queues):
            return moved
        self._again = None
        try:
            again.finish(self._passed)
        except Exception as exc:
            self.failure = Failure(self._explained(exc))
            self._finished = True
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
        if joint is None or not self._eager or self._finished or self._again is not None:
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
        if joint is None or self._finished:
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
        self._passed.add([], (), [loss._replace(before=0, hard=True) for loss in (*queue.passed, *queue.leading())])
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
        hoards, allowed = self.joint.hoards if self.joint is not None else "", self.budget.allowed
        if not hoards or allowed is None or self.held_bytes <= allowed or self._here <= 1:
            return False
        exc = PlanError(
            f"{hoards} holds {self.held_bytes:,} bytes after {self._here} samples, more than memory={allowed:,}; "
            "make it smaller, or allow more"
        )
        self.failure = Failure(exc)
        self._finished = True
        return True

    @property
    def lacks(self) -> str:
        return self.joint.lacks if self.joint is not None else ""

    def needs(self, upstream: Any) -> int:
        """How many samples of one upstream are lacking for the next ticket; none if others are."""
        if self._passed.count or self._finished:
            return 0
        for number, queue in enumerate(self.queues):
            if getattr(queue.upstream, "stage_run", None) is upstream:
                if self.joint is None:
                    return 1
                return self.joint.needs(self.queues) if number in self.joint.lacking(self.queues) else 0
        return 0

    def _pass_on(self) -> bool:
        (queue,) = self.queues
        chunk = queue.upstream.pop()
        if chunk is None:
            was, queue.ended = queue.ended, queue.upstream.over
            self._finished = queue.ended
            return queue.ended and not was
        self._count_in(chunk)
        self._passed.add_chunk(chunk)
        if chunk.failure is not None:
            self.failure = chunk.failure
            self._finished = True
        return True

    def _fill(self, queue: Feeder) -> bool:
        chunk = queue.fill()
        if chunk is None:
            return False
        self._count_in(chunk)
        return True

    def _count_in(self, chunk: Chunk) -> None:
        self.held_bytes += chunk.nbytes
        self.budget.take(chunk.nbytes)

    @property
    def _here(self) -> int:
        """How many samples wait here."""
        kept = self.joint.kept if self.joint is not None else 0
        return self._passed.count + kept + sum(queue.count for queue in self.queues)

    # ------------------------------------------------------------------ tickets

    def cut(self, count: int) -> Ticket:
        nbytes = 0 if self._eager else self.held_bytes * count // self._here
        self.held_bytes -= nbytes
        passed = self._passed
        passed.begin_step()
        samples, places = passed.take(count)
        origin = FromParts(places, passed.came, self._depth, self._edge_depth)
        return Ticket(
            self.epoch,
            samples=samples,
            places=places,
            losses=passed.passed,
            nbytes=nbytes,
            origin=origin,
            redo=passed.redone,
        )

    @property
    def burdened(self) -> bool:
        return self._passed.lost > 0 and not self._passed.count

    def unburden(self) -> Ticket:
        return Ticket(self.epoch, samples=[], losses=self._passed.leading())

    @property
    def has_tail(self) -> bool:
        return self.failure is not None or self._passed.lost > 0

    def tail(self) -> Ticket:
        ticket = Ticket(self.epoch, samples=[], failure=self.failure, losses=self._passed.leading())
        self.failure = None
        return ticket

    @property
    def sample_bytes(self) -> int:
        here = self._here
        return self.held_bytes // here if here else 0

    @property
    def fills(self) -> bool:
        return not self._finished

    @property
    def ended(self) -> bool:
        return self._finished and not self._passed.count

    def release(self) -> None:
        self.budget.give_back(self.held_bytes)
        self.held_bytes = 0


class _Again:
    """What a joint makes again when it is resumed, before it goes on."""

    def __init__(self, inlet: JoinedInlet, joint: Joint, redo: Redo, front: Front | None) -> None:
        self.front: Mark = given(front)
        self.only_wanted = False
        self._joint = joint
        self._queues = inlet.queues
        self._on = inlet._on
        self._names = inlet._names
        self._epoch = inlet.epoch
        self._saved = front
        self._redo = redo
        #: the owed outputs, each with what its members are made again as
        self._outputs: list[tuple[Place, list[_Sought]]] = []
        self._held: list[_Sought] = []

    def begin(self, only_wanted: bool) -> None:
        """Start the inputs, each with what is wanted of it."""
        self.only_wanted = only_wanted
        saved = [] if self._saved is None else self._saved.inputs
        if saved and not self._names and len(saved) != len(self._queues):
            raise StateMismatch(
                f"the state is damaged: it has {len(saved)} inputs where there are {len(self._queues)}"
            )
        by_name = {one.name: one for one in saved if one is not None and one.name is not None}
        states: list[InputState | None] = [
            by_name.get(self._names[number]) if self._names else (saved[number] if number < len(saved) else None)
            for number in range(len(self._queues))
        ]
        for queue, state in zip(self._queues, states, strict=True):
            queue.epoch = self._epoch if state is None else state.epoch
            queue.note = None if state is None else state.note
        sought: list[dict[int, list[_Sought]]] = [{} for _ in self._queues]

        def seek(part: Ingredient) -> _Sought:
            queue = self._queues[part.input]
            want = (
                Want(part.place, part.first, part.last)
                if part.whole_input
                else Want.sample(part.place, queue.depth)
            )
            epoch = queue.epoch if part.epoch is None else part.epoch
            sought[part.input].setdefault(epoch, []).append(found := _Sought([want], part.input))
            return found

        for place in self._redo.places:
            self._outputs.append((place, [seek(part) for part in self._joint.ingredients(place)]))
        if self._saved is not None and not only_wanted:
            self._held = [seek(part) for part in self._joint.held(self._saved.own, self._queues)]
        for number, queue in enumerate(self._queues):
            self._start(queue, states[number], sought[number], only_wanted)

    def _start(
        self, queue: Feeder, state: InputState | None, sought: dict[int, list[_Sought]], only_wanted: bool
    ) -> None:
        """Start one input: passes of which only something is wanted, and then the one that goes on."""
        now = None if state is None or only_wanted else state.epoch
        passes = []
        for epoch in sorted(sought):
            if epoch != now:
                wants = [want for one in sought[epoch] for want in one.wants]
                passes.append((epoch, Start(None, wants, only_wanted=True)))
        if now is not None and state is not None:
            wants = [want for one in sought.get(now, ()) for want in one.wants]
            passes.append((now, Start(state.edge, wants)))
        elif not self._joint.opens_inputs and not only_wanted:
            passes.append((self._epoch, BEGINNING))
        if passes:
            queue.begin(passes, sought)
        else:
            queue.clear()
            queue.epoch = -1
        queue.taken = 0 if state is None else state.taken

    def finish(self, passed: Queue) -> None:
        """All that was wanted has come: put together the owed outputs, and restore the joint."""
        samples: list[Any] = []
        places: list[Place] = []
        losses: list[Loss] = []
        told: set[int] = set()
        for place, parts in self._outputs:
            found = [one.found[0][0] if one.found else LOST for one in parts]
            gone = all(one is LOST for one in found)
            for one in parts:
                # An input that fails after it has made the sample: that was reported with what comes next.
                new = [] if one.found else [loss for loss in one.losses if id(loss.record) not in told]
                losses += [
                    self._on(loss, one.input)._replace(before=len(samples), told=loss.told or not gone)
                    for loss in new
                ]
                told.update(id(loss.record) for loss in new)
            made = LOST if gone else self._joint.remake(place, found)
            partly = self._redo.wanted.get(key_of(place)) or self._redo.held.get(key_of(place), Held(0)).after
            if made is LOST or (partly and any(one is LOST for one in found) and len(found) > 1):
                if made is not LOST or not any(one.losses for one in parts):
                    losses.append(_vanished(len(samples), place))
                continue
            samples.append(made)
            places.append(place)
        passed.add(samples, places, losses, _RedoLot(FromRedo(self.front, self._redo.owed, 0), places), redo=True)
        if self._saved is not None and not self.only_wanted:
            self._joint.restore(self._saved.own, self._held)
            for one in self._held:
                more = [loss for loss in one.losses if id(loss.record) not in told]
                passed.add([], (), [loss._replace(before=0, hard=True, told=True) for loss in more])
                told.update(id(loss.record) for loss in more)


class _RedoLot(NamedTuple):
    """Owed outputs that were put together again."""

    origin: FromRedo
    places: Sequence[Place]

    def cursor_at(self, number: int) -> Cursor:
        return self.origin.cursor(self.places[number])


def _vanished(before: int, place: Place) -> Loss:
    """A sample that was there when the state was saved and is not made again, or of which something is missing.

    What had been delivered of a group before cannot be told from the rest if one of its samples is missing.
    """
    exc = PenstockError(
        "this sample, or a sample of this group, was there when the state was saved, and is not made any more; "
        "functions must return the same for the same sample"
    )
    return Loss(before, ErrorRecord("resume", -1, 0, exc, place), place, hard=True)


def _without_absent(
    samples: list[Any], places: Sequence[Place], losses: list[Loss]
) -> tuple[list[Any], list[Place], list[Loss]]:
    """Outputs of a joint without the lost samples among them, which become losses in their place."""
    out: list[Any] = []
    kept: list[Place] = []
    found: list[Loss] = list(losses)
    for sample, place in zip(samples, places, strict=True):
        if type(sample) is Absent:
            found.append(sample.loss._replace(before=len(out)))
        else:
            out.append(sample)
            kept.append(place)
    return out, kept, found
