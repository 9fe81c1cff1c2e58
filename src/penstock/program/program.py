"""A program turns a ticket into chunks: it reads, calls the ops in turn, batches.

Ops work on a whole chunk at a time, one after the other, so that a sample costs little more than
the calls of its functions. A ticket's chunks are made by a generator: whoever runs it may stop
after any of them and go on later, which is how a function that yields a million samples stays
within bounds, and how a ticket that turns out slow is cut short.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import takewhile
from time import perf_counter
from typing import Any

import numpy as np

from penstock.errors import NotCarried, Skip, WorkerDied
from penstock.lazy import named
from penstock.ops.op import Effect, Key, Op, joint_of
from penstock.plan.plan import Indexed, Stage, Step
from penstock.program.calls import Calls, wrong_count
from penstock.program.chunk import Chunk, CountVaried, ErrorRecord, Failure, Loss, Ticket, sample_label, with_losses
from penstock.program.desk import READING
from penstock.program.expand import expanded
from penstock.program.failure import add_note
from penstock.program.fused import FusedMaps
from penstock.program.parts import Part, parted, parts_for
from penstock.program.reading import Reading
from penstock.program.remembered import Made, failed_at, lost_by_position, made_by_position, put_together
from penstock.program.task import Task, call_key
from penstock.provenance import Place, origin, root
from penstock.trees import numbers_stacked

#: a ticket is run in so many slices, so that one that turns out slow can be cut short
_SLICES = 2


class Program:
    """What the workers of one stage run. Shared by all of them; what is a worker's own is in its bench."""

    def __init__(self, stage: Stage, seed: int, *, one_by_one: bool = False, store: Any = None) -> None:
        self.stage = stage
        self.seed = seed
        self.steps = stage.steps
        cached = stage.cache_step
        #: what is done to samples once they are read, or out of the cache
        self.parts = parted(stage.steps if cached is None else stage.steps[cached + 1 :])
        self._parts_before_cache = parted(() if cached is None else stage.steps[:cached])
        #: slices of one unit, where the bytes of a chunk are bounded
        self.one_by_one = one_by_one
        self.store = store
        self._uncached = stage.cache_step is None
        #: makes no more samples than it gets, so one chunk goes in and one comes out
        self.simple = not stage.block_read and all(step.op.effect is not Effect.EXPANDS for step in stage.steps)
        self.reading: Reading | None = None
        #: what read the samples in an earlier stage, to name them by their number there
        self.upstream: Program | None = None
        if isinstance(stage.feed, Indexed):
            orders = [(order, Key(seed, step.key)) for order, step in stage.feed.orders]
            self.reading = Reading(stage.feed.source, orders)
        #: batches are stacked and no more, so those of plain numbers can be cut out of one array
        regroups = (joint_of(step.op) for step in stage.steps if step.op.effect is Effect.REGROUPS)
        self._stacks_numbers = any(joint is not None and joint.one_read for joint in regroups)
        self._locate_store()

    def index_of(self, epoch: int, place: Place) -> int:
        """The number in its source of the sample at `place`."""
        if self.reading is None and self.upstream is not None:
            return self.upstream.index_of(epoch, place)
        epoch, position = origin(place, epoch)
        return position if self.reading is None else self.reading.index(epoch, position)

    def name_of(self, epoch: int, place: Place) -> str:
        """What its source calls the sample at `place`; nothing if it has no name for it."""
        if self.reading is None:
            return "" if self.upstream is None else self.upstream.name_of(epoch, place)
        return self.reading.name(*origin(place, epoch))

    def epoch_of(self, step: Step, epoch: int, place: Place) -> int:
        """The epoch that `step` is in at `place`: passes of a repeat behind it count as epochs."""
        if self.reading is None and self.upstream is not None:
            return self.upstream.epoch_of(step, epoch, place)
        feed = self.stage.feed
        if self.reading is None or not isinstance(feed, Indexed):
            return epoch
        before = sum(one.number < step.number for _, one in feed.orders)
        return epoch if before == len(feed.orders) else self.reading.epoch_behind(before, epoch, root(place))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.stage, self.seed, self.one_by_one, self.store, self.upstream)

    @cached_property
    def probeable(self) -> tuple[Step, ...]:
        """The steps that can be run on one sample alone."""
        alone = takewhile(lambda step: step.op.effect is not Effect.REGROUPS, self.steps)
        return tuple(step for step in alone if step.op.effect is not Effect.PASSES)

    # ------------------------------------------------------------------ the walk of a ticket

    def whole(self, ticket: Ticket, task: Task) -> Chunk:
        """The one chunk of a ticket of one unit, for a program that is `simple`."""
        chunk = self.begun(ticket, task)
        plain = task.timing is None and not task.timeouts and not task.condemned
        for part in self.parts if plain else parts_for(self.parts, task):
            if type(part) is FusedMaps:
                chunk = part.run(chunk, task)
            else:
                chunk = self.after(part, chunk, task)
        if type(chunk.samples) is not list:
            chunk.samples = list(chunk.samples)
        chunk.final = True
        return chunk

    def begun(self, ticket: Ticket, task: Task) -> Chunk:
        """All samples of a ticket, as they come into the stage."""
        if ticket.samples is not None:
            return Chunk(ticket.samples, ticket.places)
        return self._read(range(ticket.first, ticket.last, ticket.step), task)

    def after(self, part: Part, chunk: Chunk, task: Task) -> Chunk:
        """`chunk` after a part that makes no more samples than it gets."""
        if isinstance(part, FusedMaps):
            return part.run(chunk, task)
        if part.op.effect is Effect.REGROUPS:
            return self.regrouped(part, chunk, task)
        return applied(part, chunk, task)

    def chunks(self, ticket: Ticket, task: Task) -> Iterator[Chunk]:
        """The chunks of one ticket, in order. The last may end in a failure."""
        if ticket.failure is not None:
            yield Chunk([], (), ticket.failure)
        if self.stage.block_read:
            yield from through(self, self.parts[1:], self._blocks(ticket, task), task)
            return
        for chunk in self.slices(ticket, task):
            yield from through(self, self.parts, chunk, task)
            if chunk.failure is not None:
                return

    def read_one(self, position: int, task: Task) -> Chunk:
        """The sample at one position, straight from the source."""
        return self._read_places(range(position, position + 1), task)

    def through_one(self, step: Step, chunk: Chunk, task: Task) -> Iterator[Chunk]:
        """`chunk` through one step alone."""
        if step.op.effect is Effect.EXPANDS:
            return self.expanded(step, chunk, task)
        return iter([applied(step, chunk, task)])

    # ------------------------------------------------------------------ reading

    def slices(self, ticket: Ticket, task: Task) -> Iterator[Chunk]:
        unit = self.stage.unit
        units = -(-ticket.count // unit)
        size = unit * (1 if self.one_by_one else max(1, -(-units // _SLICES)))
        if ticket.samples is not None:
            for start in range(0, ticket.count, size):
                stop = start + size
                yield Chunk(ticket.samples[start:stop], ticket.places[start:stop], final=stop >= ticket.count)
            return
        positions = ticket.positions
        for start in range(0, len(positions), size):
            chunk = self._read(positions[start : start + size], task)
            chunk.final = start + size >= len(positions)
            yield chunk

    def _read(self, positions: range, task: Task) -> Chunk:
        return self._read_places(positions, task) if self._uncached else self._remembered(positions, task)

    def _blocks(self, ticket: Ticket, task: Task) -> Chunk:
        """The batches of a ticket, each one read of the source."""
        reading, unit = self.reading, self.stage.unit
        assert reading is not None
        batches: list[Any] = []
        places: list[Place] = []
        positions = ticket.positions
        indices: Any = None
        for start in range(0, len(positions), unit):
            members = positions[start : start + unit]
            if len(members) < unit:
                kept, failure = _keeps(self.steps[0].op, len(members))
                if not kept:
                    return Chunk(batches, places, failure, final=True)
            task.begin(reading.source, members)
            try:
                if task.condemned:
                    _check_spared(members, task)
                if indices is None:
                    indices = reading.indices(task.epoch, positions)
                read, timing, own = reading.source.read_batch, task.timing, indices[start : start + unit]
                batches.append(read(own) if timing is None else timing.whole(READING, 1, read, own))
            except BaseException as exc:
                if task.goes_through(exc):
                    raise
                # Find the sample, and make what can be made of the others.
                rest = self._batched_singly(positions[start:], exc, task)
                made = Chunk.join([Chunk(batches, places), rest])
                made.final = True
                return made
            places.append(members)
        return Chunk(batches, places, final=True)

    def _batched_singly(self, places: range, exc: BaseException, task: Task) -> Chunk:
        """The rest of a ticket whose batch could not be read as one: sample by sample."""
        if not isinstance(exc, Exception):
            return self._unread(places[0], exc, task)
        chunk = self._read_places(places, task)
        if chunk.failure is None and not chunk.losses:
            # Single samples are fine, so it is the batch that is not.
            return self._unread(places[0], exc, task)
        return self.regrouped(self.steps[0], chunk, task)

    def _read_places(self, places: Sequence[int], task: Task) -> Chunk:
        """The samples at `places` of the epoch, straight from the source."""
        reading = self.reading
        assert reading is not None
        if type(places) is range:
            indices = reading.indices(task.epoch, places)
        else:
            indices = reading.trace(task.epoch, np.asarray(places, dtype=np.int64))
        task.begin(reading.source, places)
        try:
            if task.condemned:
                _check_spared(places, task)
            read, timing = reading.source.read, task.timing
            samples = read(indices) if timing is None else timing.whole(READING, len(places), read, indices)
            if len(samples) != len(places):
                raise IndexError(f"the source gave {len(samples)} samples for {len(places)} indices")
            return Chunk(samples, places)
        except BaseException as exc:
            if task.goes_through(exc):
                raise
            if len(places) > 1 and isinstance(exc, Exception):
                return self._read_singly(places, task)
            return self._unread(places[0], exc, task)

    def _read_singly(self, places: Sequence[int], task: Task) -> Chunk:
        """One of several samples cannot be read: find it, and keep those before it."""
        parts: list[Chunk] = []
        for number in range(len(places)):
            parts.append(self._read_places(places[number : number + 1], task))
            if parts[-1].failure is not None:
                break
        return Chunk.join(parts)

    def _unread(self, place: Place, exc: BaseException, task: Task) -> Chunk:
        assert self.reading is not None
        label = self.reading.source.label
        index, name = task.index_of(place), self.name_of(task.epoch, place)
        record = ErrorRecord(label, index, task.epoch, exc, place, name)
        if isinstance(exc, Skip):
            return Chunk([], (), None, [Loss.of(0, record)])
        add_note(exc, label, "", sample_label(index, name), task.worker_name)
        return Chunk([], (), Failure(exc, record))

    # ------------------------------------------------------------------ caching

    def _locate_store(self) -> None:
        """Tell a store in a folder what its samples depend on. In a worker process it has been told before."""
        locate = getattr(self.store, "locate", None)
        if locate is not None and self.stage.cache_step is not None and self.reading is not None:
            key = named("penstock.program.cache_key:cache_key")
            name, about = key(self.stage, self.seed, getattr(self.steps[self.stage.cache_step].op, "version", None))
            locate(name, len(self.reading.source), about)

    def _remembered(self, places: range, task: Task) -> Chunk:
        """The samples that reach the cache: kept ones from the store, the others made now."""
        assert self.reading is not None
        # By the position in the source, as in `_kept`.
        indices = dict(zip(places, map(int, self.reading.indices(task.epoch, places)), strict=True))
        kept = self._found(indices)
        missing = [place for place in places if place not in kept]
        if missing and self.store.refresh():
            kept |= self._found({place: indices[place] for place in missing})
            missing = [place for place in missing if place not in kept]
        lost: dict[int, list[Loss]] = {}
        failure = None
        if missing:
            chunk = self._made(missing, task)
            lost = lost_by_position(chunk)
            kept.update(self._kept(missing, chunk, lost, task))
            failure = chunk.failure
        return put_together(places, kept, lost, failure)

    def _found(self, indices: dict[int, int]) -> dict[int, Made]:
        """What the store has of the samples at some places, given by their positions in the source."""
        get = self.store.get
        return {place: found for place, index in indices.items() if (found := get(index)) is not None}

    def _made(self, places: list[int], task: Task) -> Chunk:
        """Read and run what stands before the cache."""
        parts = []
        task.for_cache = True
        try:
            for part in through(self, self._parts_before_cache, self._read_places(places, task), task):
                parts.append(part)
                if part.failure is not None:
                    break
        finally:
            task.for_cache = False
        return Chunk.join(parts) if parts else Chunk([], ())

    def _kept(self, places: list[int], chunk: Chunk, lost: dict[int, list[Loss]], task: Task) -> dict[int, Made]:
        """What the store keeps of a chunk that was made for it."""
        assert self.reading is not None
        stop = failed_at(chunk.failure)
        out = {}
        for place, (samples, own) in made_by_position(places, chunk).items():
            if place == stop:
                out[place] = (samples, own)
                break
            # What was lost this time may come the next time, so it is not kept as "nothing".
            index = int(self.reading.indices(task.epoch, range(place, place + 1))[0])
            try:
                keep = samples if place in lost else self.store.put(index, samples, own)
            except NotCarried as exc:
                chunk.failure = self._not_kept(place, exc, task)
                break
            out[place] = (keep, own)
        return out

    def _not_kept(self, place: int, exc: Exception, task: Task) -> Failure:
        """A sample of a kind that the store cannot keep."""
        assert self.stage.cache_step is not None
        label = self.steps[self.stage.cache_step].op.label
        index, name = task.index_of(place), self.name_of(task.epoch, place)
        add_note(exc, label, "", sample_label(index, name), task.worker_name)
        return Failure(exc, ErrorRecord(label, index, task.epoch, exc, place, name))

    # ------------------------------------------------------------------ regrouping and expanding

    def regrouped(self, step: Step, chunk: Chunk, task: Task) -> Chunk:
        """Groups of samples become one sample each."""
        if self.stage.unit == 1 and not isinstance(self.stage.feed, Indexed):
            return applied(step, chunk, task)  # a joint has cut the groups
        size = self.stage.unit
        if chunk.losses:
            # A skipped sample would leave a hole in its batch. The plan had relied on there being none.
            return Chunk([], (), Failure(CountVaried(_first_place(chunk, task))))
        samples, places, failure = chunk.samples, chunk.places, chunk.failure
        if rest := len(samples) % size:
            # It is the last of the epoch, or the one that the failed sample would have been in.
            kept, failure = (False, failure) if failure is not None else _keeps(step.op, rest)
            if not kept:
                samples, places = samples[:-rest], places[:-rest]
        starts = range(0, len(samples), size)
        members: list[Place] = [places[start : start + size] for start in starts]
        if self._stacks_numbers and not task.wary:
            began = perf_counter()
            batches = numbers_stacked(samples, size)
            if batches is not None:
                if task.timing is not None:
                    task.timing.since(began, step.number, len(batches))
                return Chunk(batches, members, failure, final=chunk.final)
        groups = Chunk([samples[start : start + size] for start in starts], members, failure, final=chunk.final)
        return applied(step, groups, task)

    def expanded(self, step: Step, chunk: Chunk, task: Task) -> Iterator[Chunk]:
        """The outputs of every sample in turn, in parts of about a millisecond."""
        calls = Calls(task, step, chunk.samples, chunk.places)
        if task.timing is None:
            return expanded(calls, called(calls), chunk, self.one_by_one)
        run = task.timing.outputs(step.number, len(chunk.samples)).run
        return expanded(calls, run(called, calls), chunk, self.one_by_one, run)


def through(program: Program, parts: Sequence[Part], chunk: Chunk, task: Task) -> Iterator[Chunk]:
    """`chunk` through some parts of a program."""
    parts = parts_for(parts, task)
    for number, part in enumerate(parts):
        if not isinstance(part, FusedMaps) and part.op.effect is Effect.EXPANDS:
            for piece in program.expanded(part, chunk, task):
                yield from through(program, parts[number + 1 :], piece, task)
            return
        chunk = program.after(part, chunk, task)
    if not chunk.blank:
        if type(chunk.samples) is not list:
            chunk.samples = list(chunk.samples)
        try:
            yield chunk
        finally:
            del chunk  # an exception of the user's may keep this frame


def applied(step: Step, chunk: Chunk, task: Task) -> Chunk:
    """`chunk` after an op that keeps or selects its samples."""
    if not chunk.samples:
        return chunk
    calls = Calls(task, step, chunk.samples, chunk.places)
    try:
        out = called(calls)
    except BaseException as exc:
        if task.goes_through(exc):
            raise
        if len(chunk.samples) > 1 and isinstance(exc, Exception):
            return _applied_singly(step, chunk, task)
        calls.dispose(0, exc, skip=isinstance(exc, Skip))
        out = []
    finally:
        calls.over()
    return finished(step, chunk, calls, out)


def called(calls: Calls) -> Any:
    """What the op's `run` returns, with coroutines run to their end."""
    op = calls.step.op
    desk = calls.task.post.desk
    if desk is not None and calls.places:
        desk.at(calls.step.number, calls.epoch, calls.places[0])
    samples = calls.samples if type(calls.samples) is list else list(calls.samples)
    if op.asynchronous:
        return calls.task.post.run_coroutine(op.run_async(samples, calls))
    timing = calls.task.timing
    if timing is not None and op.effect is not Effect.EXPANDS:
        return timing.whole(calls.step.number, len(samples), op.run, samples, calls)
    return op.run(samples, calls)


def _applied_singly(step: Step, chunk: Chunk, task: Task) -> Chunk:
    """The op failed as a whole on several samples: find the one, and keep those before it."""
    parts: list[Chunk] = [Chunk([], (), None, chunk.losses)]
    for number, sample in enumerate(chunk.samples):
        parts.append(applied(step, Chunk([sample], chunk.places[number : number + 1]), task))
        if parts[-1].failure is not None:
            break
    else:
        parts.append(Chunk([], (), chunk.failure, final=chunk.final))
    return Chunk.join(parts)


def finished(step: Step, chunk: Chunk, calls: Calls, out: Any) -> Chunk:
    """The chunk that an op has made of `chunk`."""
    kept = step.op.effect is Effect.KEEPS and not calls.lost and calls.failure is None
    if kept and type(out) is list and len(out) == len(chunk.places):
        chunk.samples = out
        return chunk
    places = calls.surviving(chunk.places)
    failure = calls.failure or chunk.failure
    if len(out) != len(places):
        raise wrong_count(step.op, len(out), len(places))
    losses = with_losses(chunk.losses, calls.lost, calls.losses, calls.stop)
    if step.op.effect is Effect.SELECTS:
        selected = Chunk(calls.surviving(chunk.samples), places, failure, losses, final=chunk.final)
        selected.keep(out)
        return selected
    return Chunk(out if type(out) is list else list(out), places, failure, losses, final=chunk.final)


def _keeps(op: Op[Any, Any], count: int) -> tuple[bool, Failure | None]:
    """Whether a last group of `count` samples is passed on, or what it ends the epoch in."""
    try:
        joint = joint_of(op)
        return joint is None or joint.keeps_group(count), None
    except Exception as exc:
        return False, Failure(exc)


def _rebuilt(stage: Stage, seed: int, one_by_one: bool, store: Any, upstream: Program | None) -> Program:
    program = Program(stage, seed, one_by_one=one_by_one, store=store)
    program.upstream = upstream
    return program


def _check_spared(places: Sequence[Place], task: Task) -> None:
    """Refuse to read what has killed its worker."""
    for place in places:
        why = task.condemned.get(call_key(READING, place))
        if why is not None:
            raise WorkerDied(why)


def _first_place(chunk: Chunk, task: Task) -> int:
    starts = [root(loss.place) for loss in chunk.losses]
    starts += [root(chunk.places[0])] if chunk.places else []
    return min(starts)
