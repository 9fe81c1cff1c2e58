"""Where the tickets of a stage come from that has other stages before it. Pure.

Chunks of those wait in queues, in the order of delivery. A joint takes samples out of the queues
and passes some on; without a joint they pass as they come. Between two steps the joint is recorded,
so that the stream can be resumed at any sample that comes of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Protocol

from penstock.errors import PenstockError, PlanError
from penstock.ops.op import LOST, Joint, Length
from penstock.provenance import Place, joined
from penstock.runtime.again import Again, Sieve
from penstock.runtime.budget import Budget
from penstock.runtime.chunk import Chunk, ErrorRecord, Failure, Ticket
from penstock.runtime.failure import take_note
from penstock.runtime.inlets import Inlet
from penstock.runtime.marks import Came, Cuts, Given, Mark, Record, Trace, place_from

__all__ = ["JoinedInlet", "Queue", "Upstream"]


#: so many losses without a sample behind them are told at once, so that a limit of errors is heeded
_MANY = 32
#: steps in which a joint does nothing, once all its inputs have ended; `epoch()` makes up to 200
_IDLE_STEPS = 1000
#: before the first part: the number of its first sample, places, where they came from
_NO_PART: tuple[int, Sequence[Place], Any] = (0, (), None)


class Upstream(Protocol):
    """What a joint's input is filled from."""

    def pop(self) -> Chunk | None:
        """The next chunk in the order of delivery, if it is there."""

    @property
    def over(self) -> bool:
        """No chunk will come any more."""

    def start(self, epoch: int, saved: dict[str, Any] | None = None) -> None:
        """Begin, or begin again, as epoch `epoch`; where that was saved, if it was."""


class Queue:
    """Samples in the order of delivery, with their places: an `Input` of a joint."""

    def __init__(
        self, upstream: Upstream | None = None, *, segment: str = "", keeps: bool = False, length: Length = None
    ) -> None:
        self.upstream = upstream
        self.length = length
        self.note: Any = None
        #: samples that have come in all, and what they weigh
        self.come = self.come_bytes = 0
        #: the segment whose samples wait here
        self.segment = segment
        self.count = 0
        self.ended = False
        self.epoch = -1
        self.taken = 0
        self.failure: Failure | None = None
        #: behind the last sample taken
        self.mark: Mark | Given = Given(None)
        #: where the samples taken last came from
        self.came: list[Came] = []
        #: what was lost upstream, and how many samples came before it
        self.lost: deque[tuple[int, ErrorRecord]] = deque()
        #: so many of the next samples were there before a resume: one that fails now leaves a gap
        self.replaying = 0
        #: gaps behind the mark
        self._gaps = 0
        #: samples, places, where they came from, and the number of the first there
        self._parts: deque[tuple[list[Any], Sequence[Place], Any, int]] = deque()
        #: where the first part begins, as far as it has not been taken
        self._first = 0
        #: numbers, places and origins of what was taken and may still be kept by the joint
        self._history: deque[tuple[int, Sequence[Place], Any]] | None = deque() if keeps else None

    def add(self, samples: list[Any], places: Sequence[Place], origin: Any = None, number: int = 0) -> None:
        if samples:
            self._parts.append((samples, places, origin, number))
            self.count += len(samples)

    def take(self, most: int) -> tuple[list[Any], Sequence[Place]]:
        self.came = []
        if most <= 0 or not self.count:
            return [], ()
        taken: list[tuple[list[Any], Sequence[Place]]] = []
        left = most
        while left and self._parts:
            samples, places, origin, number = self._parts[0]
            first, stop = self._first, min(self._first + left, len(samples))
            self.came.append((most - left, origin, number + first))
            left -= stop - first
            if stop == len(samples):
                self._parts.popleft()
                self._first = 0
            else:
                self._first = stop
            whole = first == 0 and stop == len(samples)
            taken.append((samples, places) if whole else (samples[first:stop], places[first:stop]))
            if self._history is not None:
                self._history.append((self.taken + most - left - (stop - first), taken[-1][1], origin))
            if origin is not None:
                self._mark(origin, *taken[-1])
        self.count -= most - left
        self.taken += most - left
        if len(taken) == 1:
            return taken[0]
        return list(chain.from_iterable(part[0] for part in taken)), joined([part[1] for part in taken])

    def fill(self, chunk: Chunk) -> None:
        """A chunk of the upstream. What it lost is remembered, and leaves gaps where samples were before."""
        samples, places, origin = chunk.samples, chunk.places, chunk.trace
        if chunk.losses:
            first = self.taken + self.count
            ranked = [(self._rank(one, chunk), one) for one in chunk.losses]
            for rank, one in sorted(ranked, key=lambda one: one[0]):
                at = rank + len(samples) - len(chunk.samples)
                # What was lost further up left its gap there.
                if one.segment == self.segment and at < self.replaying and not one.known:
                    samples = [*samples[:at], LOST, *samples[at:]]
                    places = [*places[:at], one.place, *places[at:]]
                self.lost.append((first + at, one))
        self.replaying = max(0, self.replaying - len(samples))
        self.add(samples, places, origin)

    def _rank(self, lost: ErrorRecord, chunk: Chunk) -> int:
        """How many of the samples of a chunk come before what was lost."""
        if chunk.trace is None or lost.within != self.segment:
            return 0
        return chunk.trace.rank(lost, chunk.places)

    def _mark(self, origin: Any, samples: list[Any], places: Sequence[Place]) -> None:
        """These were taken. Gaps at their end are behind the mark: what was lost there will be read again."""
        real = len(samples)
        while real and samples[real - 1] is LOST:
            real -= 1
        if real:
            self.mark = Mark(origin, places[real - 1])
            self._gaps = len(samples) - real
        else:
            self._gaps += len(samples)

    def lost_before(self) -> list[ErrorRecord]:
        """What was lost between the mark at that time and the samples taken since this was asked last.

        Whoever has taken the last samples of all knows that there are no more, so to that belongs what was lost
        behind them. What is behind the mark is part of every answer, until the mark has passed it.
        """
        out = []
        to_the_end = self.ended and not self.count
        while self.lost and (to_the_end or self.lost[0][0] < self.taken):
            out.append(self.lost.popleft())
        self.lost.extendleft(one for one in reversed(out) if self._is_behind_mark(*one))
        return [one for _, one in out]

    def _is_behind_mark(self, number: int, lost: ErrorRecord) -> bool:
        """Whether what was lost would be read again, if this input were resumed at its mark."""
        if number >= self.taken - self._gaps:
            return True
        if lost.at is None or lost.within != self.segment or not isinstance(self.mark, Mark):
            return False
        # Where outputs alternate, an input may be known to be lost long before its turn would have come.
        return lost.at[0] >= self.mark.origin.after(self.mark.place).next

    def marks(self, numbers: Sequence[int]) -> tuple[Mark, ...]:
        """Marks of samples that were taken earlier, in ascending order; those before them will not be asked for."""
        history = self._history
        assert history is not None
        low = numbers[0] if numbers else self.taken
        while history and history[0][0] + len(history[0][1]) <= low:
            history.popleft()
        out = []
        parts = iter(history)
        first, places, origin = _NO_PART
        for number in numbers:
            while number >= first + len(places):
                first, places, origin = next(parts)
            out.append(Mark(origin, places[number - first]))
        return tuple(out)

    def renew(self, epoch: int, saved: dict[str, Any] | None = None) -> None:
        assert self.upstream is not None
        if epoch <= self.epoch:
            self.taken = 0
            self.lost.clear()
        self._parts.clear()
        self._first = 0
        self.count = 0
        self.ended = False
        self.failure = None
        self.mark = Given(saved)
        self._gaps = 0
        self.epoch = epoch
        self.upstream.start(epoch, saved)


class JoinedInlet(Inlet):
    """Chunks of other stages, through a joint. Without one, samples pass as they come."""

    def __init__(
        self,
        epoch: int,
        joint: Joint | None,
        queues: list[Queue],
        budget: Budget | None = None,
        *,
        key: str = "",
        names: tuple[str, ...] = (),
        singly: bool = False,
        again: Again | None = None,
        label: str = "",
    ) -> None:
        #: whose joint it is, in words
        self._label = label
        self.budget = budget or Budget(None)
        #: bytes of the samples that wait here
        self.held_bytes = 0
        self.epoch = epoch
        self.joint = joint
        self.queues = queues
        self.failure = None
        self.losses = []
        self._passed = Queue()
        self._finished = False
        #: the segment that begins here, and what a composite calls its parts
        self._key = key
        self._names = names
        #: one output a step, so that the stream can be resumed behind every one without making any again
        self._singly = singly
        self._again = again
        #: how many outputs the joint has made
        self._made = 0
        #: what was lost among the samples that these were made of, and the same as it is told further on
        self._due: dict[int, tuple[ErrorRecord, ErrorRecord]] = {}
        self._keeps = joint is not None and joint.keeps
        self._eager = joint is not None and joint.eager
        #: how many samples are lacking for what comes next, with none on their way; and does anybody wait for it
        self.lack: Callable[[], tuple[int, bool]] = lambda: (0, False)
        #: steps in which nothing happened, since all inputs have ended, and how many samples waited then
        self._idle_steps = self._left = 0
        self._record: Record | None = None
        if again is not None and joint is not None:
            self._record = self._recorded()
            self._record.lost = [
                (segment, turn, place_from(at)) for segment, turn, at in again.feed.get("lost", ())
            ]

    def available(self, most: int) -> int:
        while self._passed.count < most and not self._finished and self._step(most - self._passed.count):
            pass
        return min(self._passed.count, most)

    def _step(self, most: int) -> bool:
        """Move samples towards the stage; False when nothing moved."""
        if self.joint is None:
            return self._pass_on()
        if self._eager:
            self.refresh()
            if self._finished:
                return True
        try:
            record = self._record = self._record or self._recorded()
            whole = not self._singly or self._even(self.joint)
            samples, places = self.joint.step(self.queues, most if whole else 1)
            self._finished = self.joint.ended
            if samples:
                count = record.outputs = len(samples)
                if len(places) != count:
                    raise PenstockError(
                        f"the joint of {self._label} has returned {count} samples and {len(places)} places; "
                        "every sample has one"
                    )
                if self._singly and count > 1:
                    record.cuts = Cuts(self.joint.even, self.queues[0].came, places)
                self._made += count
                self._pass(samples, places, record)
                record.next = self._record = self._recorded()
            lacking = () if samples or self._finished or self._eager else self.joint.lacking(self.queues)
        except Exception as exc:
            return self._breaks(exc)
        except SystemExit as exc:
            take_note(exc, f"in the joint of {self._label}")
            raise
        if samples:
            for queue in self.queues:
                if queue.lost:
                    self._depend(record, queue.lost_before())
        if samples or self._finished or self._eager:
            return bool(samples) or self._finished
        if self._overflows():
            return True
        moved = False
        for number in lacking:
            queue = self.queues[number]
            if queue.failure is not None:
                self.failure = queue.failure
                self._finished = True
                return True
            moved = self._fill(queue) or moved
        for queue in self.queues:
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

    def _depend(self, record: Record, lost: list[ErrorRecord]) -> None:
        """What a step has made depends on these losses, and they are to be told with its first output."""
        for one in lost:
            record.lost.append((one.segment, one.turn, one.place))
            numbered = replace(one, at=(record.first, ()), within=self._key)
            self._due.setdefault(id(one), (one, numbered))

    def _even(self, joint: Joint) -> bool:
        """Whether several outputs of one step can be told apart afterwards, by how many samples each is made of."""
        queue = self.queues[0]
        return joint.even > 0 and self._again is None and not queue.ended and not queue.lost

    def _recorded(self) -> Record:
        """The joint as it stands now."""
        joint, queues = self.joint, self.queues
        assert joint is not None
        return Record(
            self._key,
            joint.save(),
            tuple([queue.mark for queue in queues]),
            tuple([queue.taken for queue in queues]),
            tuple([queue.epoch for queue in queues]),
            queues[0].marks(joint.held) if self._keeps else (),
            self._made,
            names=self._names,
            again=self._again,
        )

    def _pass(self, samples: list[Any], places: Sequence[Place], record: Record) -> None:
        """Pass on what a step has made, unless it was delivered before a resume."""
        again = self._again
        if again is None:
            self._passed.add(samples, places, record)
            return
        for run in again.runs(range(record.first, record.first + len(samples))):
            for number in run:
                at = number - record.first
                sample = _without_gaps(samples[at])
                if sample is not LOST:
                    self._passed.add([sample], places[at : at + 1], record, at)

    def glance(self, most: int) -> int:
        if self.joint is None or not self._eager or self._finished:
            return self.available(most)
        self.refresh()
        return min(self._passed.count, most) or int(self._finished or self.joint.drawable())

    def refresh(self) -> None:
        joint = self.joint
        if joint is None or not self._eager or self._finished:
            return
        (queue,) = self.queues
        lacked, joint.hungry = self.lack()
        joint.lacked = max(0, lacked - self._passed.count)
        try:
            while joint.absorb(self.queues) and self._fill(queue):
                pass
        except Exception as exc:
            take_note(exc, f"in the joint of {self._label}")
            queue.failure = Failure(exc)
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
        upstream = queue.upstream
        assert upstream is not None
        chunk = upstream.pop()
        if chunk is None:
            was, queue.ended = queue.ended, upstream.over
            self._finished = queue.ended
            return queue.ended and not was
        self._count_in(chunk)
        self._passed.add(chunk.samples, chunk.places, chunk.trace)
        if chunk.failure is not None:
            self.failure = chunk.failure
            self._finished = True
        return True

    def _fill(self, queue: Queue) -> bool:
        upstream = queue.upstream
        assert upstream is not None
        chunk = upstream.pop()
        if chunk is None:
            was, queue.ended = queue.ended, upstream.over
            return queue.ended and not was
        self._count_in(chunk)
        queue.fill(chunk)
        queue.failure = chunk.failure
        queue.come += len(chunk.samples)
        queue.come_bytes += chunk.nbytes
        return True

    def _count_in(self, chunk: Chunk) -> None:
        self.held_bytes += chunk.nbytes
        self.budget.take(chunk.nbytes)
        self.losses += chunk.losses

    @property
    def _here(self) -> int:
        """How many samples wait here."""
        kept = self.joint.kept if (self._keeps or self._eager) and self.joint is not None else 0
        return self._passed.count + kept + sum(queue.count for queue in self.queues)

    def cut(self, count: int) -> Ticket:
        nbytes = 0 if self._eager else self.held_bytes * count // self._here
        self.held_bytes -= nbytes
        samples, places = self._passed.take(count)
        trace = Trace(places, self._passed.came, self._sieves(places))
        losses = self._losses_before(places, trace) if self.losses else []
        return Ticket(self.epoch, samples=samples, places=places, losses=losses, nbytes=nbytes, trace=trace)

    def _sieves(self, places: Sequence[Place]) -> tuple[Sieve, ...]:
        """What of the next samples has been delivered before a resume."""
        came = self._passed.came
        if self.joint is None:
            return tuple([sieve for _, origin, _ in came if origin is not None for sieve in origin.sieves])
        if self._again is None:
            return ()
        out: tuple[Sieve, ...] = ()
        for number, (offset, record, at) in enumerate(came):
            stop = came[number + 1][0] if number + 1 < len(came) else len(places)
            out += self._again.sieves(record.first + at, places[offset:stop])
        return out

    def _losses_before(self, places: Sequence[Place], trace: Trace) -> list[ErrorRecord]:
        """What was lost before the last of some samples, or among the samples that it was chosen from.

        What was lost behind it waits for its own turn. Nothing may be told later than what depends on it: the
        next joint saves what it was told, and where it is resumed, nothing else is known to be lost.
        """
        if self.joint is None:
            one, segment = trace.locate(places[-1]), self.queues[0].segment
            told: list[ErrorRecord] = []
            left: list[ErrorRecord] = []
            for record in self.losses:
                later = record.at is not None and record.within == segment and record.at > (one.number, one.way)
                (left if later else told).append(record)
            self.losses = left
            return told
        if self._eager:
            told, self.losses = self.losses, []
            return told
        offset, record, at = self._passed.came[-1]
        last = (record.first + at + len(places) - 1 - offset, ())
        due = {key: numbered for key, (_, numbered) in self._due.items() if numbered.at and numbered.at <= last}
        told = [due[id(one)] for one in self.losses if id(one) in due]
        self.losses = [one for one in self.losses if id(one) not in due]
        for key in due:
            del self._due[key]
        return told

    @property
    def burdened(self) -> bool:
        return len(self.losses) >= _MANY

    def unburden(self) -> Ticket:
        told = self.losses if self.joint is None or self._eager else list(map(self._missed, self.losses))
        self.losses = []
        self._due.clear()
        return Ticket(self.epoch, samples=[], losses=told)

    def _missed(self, lost: ErrorRecord) -> ErrorRecord:
        """What was lost, as it is told further on: the next output will be the first that it is missing for."""
        _, numbered = self._due.get(id(lost), (lost, None))
        return numbered or replace(lost, at=(self._made, ()), within=self._key)

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


def _without_gaps(sample: Any) -> Any:
    """A group without the samples that are lost; anything else as it is."""
    if type(sample) is list and any(one is LOST for one in sample):
        return [one for one in sample if one is not LOST] or LOST
    return sample
