"""One epoch at work: the stages of a plan, set up for it. Pure bookkeeping, under the lock."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

from penstock.core.feeder import Feeder
from penstock.core.gather import JoinedInlet
from penstock.core.inlets import Inlet, Part, PositionInlet
from penstock.core.queued import StraightInlet
from penstock.core.redo import BEGINNING, Resumed, Start, turns_key
from penstock.core.stage import StageRun
from penstock.core.stream import StreamInlet
from penstock.errors import StateMismatch
from penstock.ops.joint import Joint
from penstock.ops.op import Key
from penstock.places import places_from
from penstock.plan.plan import Indexed, Joined, Plan, Stage, Step, Streamed
from penstock.program.chunk import Chunk
from penstock.program.reading import Identify, Noted, Reading
from penstock.provenance import Place, root, single, way
from penstock.resume.cursor import Held
from penstock.resume.schema import Edge, Front, InputState


class Run:
    """The stages of one epoch. `engine` is the loader's engine, which has the lanes and the seed.

    `start` is where the epoch begins.
    """

    def __init__(self, engine: Any, epoch: int, start: Start = BEGINNING) -> None:
        self.engine = engine
        self.epoch = epoch
        self.start = start
        #: this is the epoch being read, not one begun early
        self.current = False
        self.ended = False
        self.by_crew: dict[Any, list[StageRun]] = {}
        self._sources: list[StageRun] = []
        self.root = self._opened(engine.plan.root, epoch, start)

    def _opened(self, stage: Stage, epoch: int, start: Start, last: bool = True) -> StageRun:
        """A stage and all before it, ready for `epoch`.

        It is the `last` before a joint or the reader, or another follows that takes samples as they come.
        """
        resumed = None
        if start:
            resumed, start = _resumed(stage, start, last)
        feed = stage.feed
        lane = self.engine.lanes[stage.number]
        branches: list[_Branch] = []
        inlet: Inlet
        if not isinstance(feed, Joined):
            _check_joint(start.front, stage.batched or None)
        if isinstance(feed, Indexed):
            inlet = _positions(stage, epoch, lane.program.reading.length, start)
        elif isinstance(feed, Streamed):
            order = partial(self._shard_order, feed.ordered_by, epoch)
            inline = lane.crew is not None and lane.crew.executor.inline
            inlet = StreamInlet(feed.source, epoch, start, order, stage.expands, self.engine.seed, inline)
        else:
            joint = self._joint(feed, epoch)
            inlet = (
                self._straight(stage, feed, epoch, start)
                if joint is None
                else self._joined(stage, feed, epoch, joint, start)
            )
            branches = inlet.upstreams
        stage_run = StageRun(
            self, lane, inlet, lambda: [b.stage_run for b in branches if b.stage_run is not None], resumed
        )
        for branch in branches:
            branch.feeds(stage_run)
        if isinstance(inlet, JoinedInlet):
            inlet.lack = lambda: stage_run.run.lack_of(stage_run)
        stage_run.refill()
        return stage_run

    def _straight(self, stage: Stage, feed: Joined, epoch: int, start: Start) -> StraightInlet:
        """Samples of the stage before. The edge goes on from there, and so does what is saved of it."""
        branch = _Branch(self, feed.children[0], last=False)
        branch.start(epoch, start)
        budget = self.engine.budget
        return StraightInlet(epoch, branch, budget, unit=stage.unit, depth=stage.expands, edge_depth=stage.depth)

    def _joined(self, stage: Stage, feed: Joined, epoch: int, joint: Joint, start: Start) -> JoinedInlet:
        if joint.eager:
            joint.final = self.epoch >= self.engine.last_epoch
            joint.identify = self._identities(feed.children[0])
        queues = self._queues(stage, feed, joint)
        inlet = JoinedInlet(
            epoch,
            joint,
            queues,
            self.engine.budget,
            key=stage.segment,
            names=feed.names,
            label=_joint_label(feed),
            singly=self.engine.plan.in_step,
            depth=stage.expands,
        )
        if start:
            front = start.front
            _check_joint(front, stage.segment)
            inlet.resume(start)
        elif not joint.opens_inputs:
            for queue in queues:
                queue.renew(epoch)
        return inlet

    def _shard_order(self, step: Step | None, epoch: int, count: int) -> Sequence[int] | None:
        """In which order so many parts of a stream are opened."""
        joint = None if step is None else self._joint_of(step, epoch)
        return None if joint is None else joint.shard_order(count)

    def _queues(self, stage: Stage, feed: Joined, joint: Joint) -> list[Feeder]:
        carries = feed.step is not None and joint.carries
        carries = carries and not self.engine.plan.keeps_epoch(stage)
        kept: list[Feeder] | None = self.engine.carried.get(stage.segment) if carries else None
        if kept is not None:
            for queue in kept:
                queue.upstream.adopt(self)  # type: ignore[attr-defined]
            return kept
        queues = [
            Feeder(
                _Branch(self, child),
                length=feed.length,
                depth=child.depth,
                ordered=child.in_order,
            )
            for child in feed.children
        ]
        if carries:
            self.engine.carried[stage.segment] = queues
            saved: InputState | None = self.engine.carried_before.pop(stage.segment, None)
            if saved is not None:
                (queue,) = queues
                queue.begin([(saved.epoch, Start(saved.edge))], {})
                queue.taken = saved.taken
                queue.note = saved.note
        return queues

    def _joint(self, feed: Joined, epoch: int) -> Joint | None:
        engine = self.engine
        if feed.composite is not None:
            memo = engine.memos.of(feed.composite, feed.key)
            return feed.composite.joint(Key(engine.seed, feed.key), epoch, memo)
        return None if feed.step is None else self._joint_of(feed.step, epoch)

    def _joint_of(self, step: Step, epoch: int) -> Joint | None:
        memo = self.engine.memos.of(step.op, step.number)
        return step.op.joint(Key(self.engine.seed, step.key), epoch, memo)

    def _identities(self, stage: Stage) -> Identify | None:
        """What tells the samples of a stage apart, whatever the epoch; None if nothing does."""
        last = self.engine.lanes[stage.number]
        while isinstance(stage.feed, Joined):
            if stage.feed.composite is not None:
                return None
            (stage,) = stage.feed.children
        if isinstance(stage.feed, Streamed):
            return None if stage.feed.ordered_by is not None else _records
        reading: Reading = self.engine.lanes[stage.number].program.reading
        if reading.calls_user:
            last.identities = last.identities or Noted(reading.identities)
            return last.identities  # type: ignore[no-any-return]
        return reading.identities

    def lack_of(self, stage_run: StageRun) -> tuple[int, bool]:
        """How many samples of a stage are lacking for the next batch, with none on their way; does anybody wait?"""
        hungry = self.engine.reader.hungry
        # Who does everything alone makes new samples before it falls back on old ones.
        if not self.current or (self.engine.inline and not hungry):
            return 0, False
        # One more than the next: who prepares it may be late, if all cores are busy.
        return self.root.lack_of(stage_run, ready=1), hungry

    def stage_runs(self, crew: Any) -> list[StageRun]:
        """The stages that run on `crew`, downstream first."""
        found = self.by_crew.get(crew)
        if found is None:
            found = [one for one in self.root.walk() if one.lane.crew is crew]
            self.by_crew[crew] = found
        return found

    @property
    def sourced_out(self) -> bool:
        """All that the sources have for this epoch has been given out as tickets."""
        if not self._sources:
            self._sources = [one for one in self.root.walk() if not one.children()]
        source, *others = self._sources
        return source.inlet.ended and all(one.inlet.ended for one in others)

    def changed(self) -> None:
        """A stage was started again: what was known of the stages is out of date."""
        self.by_crew.clear()
        self._sources = []

    def cancel(self) -> list[Any]:
        """End the epoch. Returns what is to be let go of outside the lock."""
        self.ended = True
        self.current = False
        return self.root.cancel()


def _joint_label(feed: Joined) -> str:
    if feed.composite is not None:
        return feed.composite.label
    return feed.step.op.full_label if feed.step is not None else "nothing"


def _records(epoch: int, places: Sequence[Place]) -> Sequence[Hashable]:
    """Of a stream: the number of the record, and the way from there; None for groups."""
    return [(root(place), way(place)) if single(place) else None for place in places]


def begun_at(stage: Stage, epoch: int, position: int) -> Edge:
    """What is saved of an epoch of which all before `position` of its source has been delivered."""
    feed = stage.feed
    if not isinstance(feed, Joined):
        front = Front(at=position)
        if stage.batched:
            front = Front(joint=stage.batched, inputs=[InputState(epoch, Edge(front))])
        return Edge(front)
    inner = begun_at(feed.children[0], epoch, position)
    if feed.step is None:
        return inner
    return Edge(Front(joint=stage.segment, inputs=[InputState(epoch, inner)]))


def first_owed(edge: Edge | None) -> int | None:
    """The position that the first of what is owed before the front of `edge` began with; None if nothing is."""
    while edge is not None:
        if held := edge.held():
            return root(held[0][0])
        edge = _inner(edge)
    return None


def fits_plan(plan: Plan, edge: Edge) -> bool:
    """Whether workers can go on making batches themselves: only if all that is owed of these are whole batches."""
    return _fits(plan.root, edge)


def _fits(stage: Stage, edge: Edge | None) -> bool:
    if edge is not None and stage.interleave > 1:
        edge = _inner(edge)
    if edge is None:
        return True
    feed = stage.feed
    if isinstance(feed, Joined):
        if feed.step is None and feed.composite is None:
            return _fits(feed.children[0], edge)
        by_name = {one.name: one.edge for one in edge.front.inputs if one is not None}
        edges = [None if one is None else one.edge for one in edge.front.inputs]
        if feed.names:
            edges = [by_name.get(name) for name in feed.names]
        return all(_fits(child, one) for child, one in zip(feed.children, edges, strict=False))
    if not stage.batched:
        return True
    inner = _inner(edge)
    if inner is not None and inner.owed is not None:
        return False
    if not stage.groups:
        return not edge.held()  # the stages behind would not know where one of these batches ends
    return all(isinstance(place, range) and len(place) <= stage.unit for place, _ in edge.held())


def _inner(edge: Edge) -> Edge | None:
    """The edge that leads to the joint that `edge` begins at, if it has one input."""
    first = edge.front.inputs[0] if edge.front.inputs else None
    return None if first is None else first.edge


def _resumed(stage: Stage, start: Start, last: bool) -> tuple[Resumed | None, Start]:
    """What a stage leaves out of what it makes again, and where its inlet begins."""
    if stage.interleave == 1:
        return (Resumed(start.redo(), stage.depth) if last else None), start
    # What is saved of a stage whose outputs alternate says which of its inputs were open.
    front = start.front
    if front is None:
        start = Start(start.edge, start.wanted, start.only_wanted, ())
        return Resumed(start.redo(), stage.depth), start
    own = front.own
    _check_joint(front, turns_key(stage.segment))
    if not isinstance(own, dict) or len(front.inputs) != 1:
        raise StateMismatch("the state is damaged: its turns make no sense")
    places, after, slots = places_from(own["open"]), own["after"], own["slots"]
    if (
        not 0 < len(slots) <= stage.interleave
        or [number for number in slots if number != -1] != list(range(len(places)))
        or not all(way is None or _is_way(way) for way in after)
    ):
        raise StateMismatch("the state is damaged: its turns make no sense")
    opened = [Held(place, None if way is None else tuple(way)) for place, way in zip(places, after, strict=True)]
    inner = front.inputs[0]
    start = Start(None if inner is None else inner.edge, start.wanted, start.only_wanted, opened)
    return Resumed(start.redo(), stage.depth, opened, slots), start


def _check_joint(front: Front | None, here: str | None) -> None:
    """Refuse what anything else has saved in the place of the joint `here`, or of a source if that is None."""
    if front is None or front.joint == here:
        return
    saved, now = (name is not None and name.endswith("-line") for name in (front.joint, here))
    if saved != now:
        raise StateMismatch(
            f"the state was saved with ordered={not saved} for an op behind a flat_map(), and this pipeline has "
            f"ordered={not now} there, which names samples in another way; use the ordered= that it was saved with"
        )
    raise StateMismatch(
        f"the state is of {_joint_named(front.joint)} where this pipeline has {_joint_named(here)}; load it with "
        "the pipeline that it was saved with"
    )


def _joint_named(name: str | None) -> str:
    return "a source" if name is None else f"the joint {name!r}"


def _is_way(way: Any) -> bool:
    """Whether these can be sub-indices."""
    return isinstance(way, (list, tuple)) and bool(way) and all(type(step) is int and step >= 0 for step in way)


def _positions(stage: Stage, epoch: int, length: Any, start: Start) -> PositionInlet:
    """The positions of an indexed source that are to come."""
    feed = stage.feed
    assert isinstance(feed, Indexed)
    part = None
    if feed.dealt is not None:
        portion = feed.portion
        front = start.front
        if stage.batched and front is not None and front.inputs and front.inputs[0] is not None:
            front = None if front.inputs[0].edge is None else front.inputs[0].edge.front
        base = (front.at or 0) if front is not None and portion.keeps else 0
        part = Part(portion, base)
    return PositionInlet(
        epoch, length, stage.unit, batched=stage.batched, start=start, part=part, depth=stage.expands
    )


class _Branch:
    """An upstream of a joint: a stage that can be started again."""

    def __init__(self, run: Run, stage: Stage, last: bool = True) -> None:
        self.run = run
        self.stage = stage
        self.last = last
        self.stage_run: StageRun | None = None
        self._parent: StageRun | None = None

    def feeds(self, parent: StageRun) -> None:
        """What it makes goes to `parent` from now on."""
        self._parent = parent
        if self.stage_run is not None:
            self.stage_run.parent = parent

    def start(self, epoch: int, start: Start) -> None:
        if self.stage_run is not None:
            self.run.engine.garbage += self.run.engine.cancelled(self.stage_run)
        self.stage_run = self.run._opened(self.stage, epoch, start, self.last)
        self.stage_run.parent = self._parent
        self.run.changed()

    def close(self) -> list[Any]:
        """End it. Returns what is to be let go of outside the lock."""
        stage_run, self.stage_run = self.stage_run, None
        return [] if stage_run is None else stage_run.cancel()

    def adopt(self, run: Run) -> None:
        """Belong to another epoch from now on, and go on where it stands."""
        self.run = run
        if self.stage_run is not None:
            for one in self.stage_run.walk():
                one.run = run
                for branch in one.inlet.upstreams:
                    branch.run = run

    def pop(self) -> Chunk | None:
        if self.stage_run is None:
            return None
        chunk = self.stage_run.pop()
        if chunk is not None:
            self.stage_run.refill()
        return chunk

    @property
    def over(self) -> bool:
        return self.stage_run is not None and self.stage_run.over
