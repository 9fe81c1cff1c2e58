"""One epoch at work: the stages of a plan, set up for it. Pure bookkeeping, under the lock."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from penstock.errors import StateMismatch
from penstock.ops.op import Effect, Joint, Key
from penstock.plan.plan import Indexed, Joined, Stage, Step, Streamed
from penstock.provenance import Place, root, single, way
from penstock.runtime.again import Again, Lost, Start
from penstock.runtime.chunk import Chunk
from penstock.runtime.inlets import Inlet, Part, PositionInlet, StreamInlet
from penstock.runtime.joined import JoinedInlet, Queue
from penstock.runtime.reading import Identify, Noted, Reading
from penstock.runtime.stage_run import StageRun

__all__ = ["Run", "begun_at"]

Saved = dict[str, Any] | None


class Run:
    """The stages of one epoch. `engine` is the loader's engine, which has the lanes and the seed.

    `start` is where the epoch begins.
    """

    def __init__(self, engine: Any, epoch: int, start: Start) -> None:
        self.engine = engine
        self.epoch = epoch
        #: this is the epoch being read, not one begun early
        self.current = False
        self.ended = False
        #: looking for a ticket has brought samples or stages to light, so it is worth looking again
        self.revealed = False
        #: what was lost before a resume, and is not tried again
        self.lost = Lost()
        self.lost.add(start.lost or [])
        #: what rank of what world goes on here, where that is not what the loader is
        self.part = start.part or {}
        self._by_crew: dict[Any, list[StageRun]] = {}
        self.root = self._opened(engine.plan.root, epoch, start.at)

    def _opened(self, stage: Stage, epoch: int, saved: Saved = None) -> StageRun:
        """A stage and all before it, ready for `epoch`."""
        feed = stage.feed
        lane = self.engine.lanes[stage.number]
        again = Again(saved) if saved is not None else None
        branches: list[_Branch] = []
        inlet: Inlet
        if isinstance(feed, Indexed):
            inlet = _positions(stage, epoch, lane.program.reading.length, again, self.part)
        elif isinstance(feed, Streamed):
            inlet = StreamInlet(feed.source, epoch, again, partial(self._shard_order, feed.ordered_by, epoch))
        else:
            joint = self._joint(feed, epoch)
            queues = self._queues(stage, feed, joint)
            branches = [queue.upstream for queue in queues]  # type: ignore[misc]
            inlet = self._joined(stage, feed, epoch, joint, queues, saved, again)
        stage_run = StageRun(
            self, lane, inlet, lambda: [b.stage_run for b in branches if b.stage_run is not None], again
        )
        if isinstance(inlet, JoinedInlet):
            inlet.lack = lambda: stage_run.run.lack_of(stage_run)
        return stage_run

    def _joined(
        self,
        stage: Stage,
        feed: Joined,
        epoch: int,
        joint: Joint | None,
        queues: list[Queue],
        saved: Saved,
        again: Again | None,
    ) -> JoinedInlet:
        if joint is not None and joint.eager:
            joint.final = self.epoch >= self.engine.last_epoch
            joint.identify = self._identities(feed.children[0])
        if joint is None:
            # The segment goes on from the stage before, and so does what is saved of it.
            queues[0].renew(epoch, saved)
            return JoinedInlet(epoch, None, queues, self.engine.budget)
        if again is not None and again.feed:
            joint.replays = again.next
            self._restore(stage, feed, joint, queues, again.feed)
        elif not joint.opens_inputs:
            for queue in queues:
                queue.renew(epoch)
        return JoinedInlet(
            epoch,
            joint,
            queues,
            self.engine.budget,
            key=stage.segment,
            names=feed.names,
            singly=feed.step is not None and feed.step.op.effect is Effect.REGROUPS,
            again=again,
            label=_joint_label(feed),
        )

    def _restore(
        self, stage: Stage, feed: Joined, joint: Joint, queues: list[Queue], saved: dict[str, Any]
    ) -> None:
        """Set up a joint and its inputs as they were."""
        if saved.get("joint") != stage.segment:
            raise StateMismatch(f"the state is of {saved.get('joint')!r} where this pipeline has {stage.segment!r}")
        self.lost.add(saved.get("lost", []))
        names = saved.get("names") or range(len(saved["inputs"]))
        inputs = dict(zip(names, saved["inputs"], strict=True))
        counts = dict(zip(names, saved["counts"], strict=True))
        taken = dict(zip(names, saved.get("taken") or [0] * len(counts), strict=True))
        for name, queue in zip(feed.names or range(len(queues)), queues, strict=True):
            at = inputs.get(name)
            if at is not None:
                queue.renew(at["epoch"], at["at"])
                queue.taken = counts[name]
                queue.replaying = taken[name]
            elif not joint.opens_inputs:
                queue.renew(self.epoch)
        joint.restore(saved.get("saved"))

    def _shard_order(self, step: Step | None, epoch: int, count: int) -> Sequence[int] | None:
        """In which order so many parts of a stream are opened."""
        return None if step is None else step.op.shard_order(count, Key(self.engine.seed, step.key), epoch)

    def _queues(self, stage: Stage, feed: Joined, joint: Joint | None) -> list[Queue]:
        carries = feed.step is not None and feed.step.op.carries
        kept: list[Queue] | None = self.engine.carried.get(stage.segment) if carries else None
        if kept is not None:
            for queue in kept:
                queue.upstream.adopt(self)  # type: ignore[union-attr]
            return kept
        keeps = joint is not None and joint.keeps
        queues = [
            Queue(_Branch(self, child), segment=child.segment, keeps=keeps, length=feed.length)
            for child in feed.children
        ]
        if carries:
            self.engine.carried[stage.segment] = queues
            saved = self.engine.carried_before.pop(stage.segment, None)
            if saved is not None:
                (queue,) = queues
                queue.renew(saved["epoch"], saved["at"])
                queue.taken = saved["count"]
                queue.note = saved.get("note")
        return queues

    def _joint(self, feed: Joined, epoch: int) -> Joint | None:
        engine = self.engine
        if feed.composite is not None:
            memo = engine.memos.setdefault(feed.key, {})
            return feed.composite.joint(Key(engine.seed, feed.key), epoch, memo)
        if feed.step is None:
            return None
        memo = engine.memos.setdefault(feed.step.number, {})
        return feed.step.op.joint(Key(engine.seed, feed.step.key), epoch, memo)

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
        found = self._by_crew.get(crew)
        if found is None:
            found = [one for one in self.root.walk() if one.lane.crew is crew]
            self._by_crew[crew] = found
        return found

    def changed(self) -> None:
        """A stage was started again: what was known of the stages is out of date."""
        self._by_crew.clear()
        self.revealed = True
        self.engine.reveals += 1

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


def begun_at(stage: Stage, epoch: int, position: int) -> dict[str, Any]:
    """What is saved of an epoch of which all before `position` of its source has been delivered."""
    feed = stage.feed
    if not isinstance(feed, Joined):
        return {"feed": {"position": position}}
    inner = begun_at(feed.children[0], epoch, position)
    if feed.step is None:
        return inner
    return {"feed": {"joint": stage.segment, "inputs": [{"epoch": epoch, "at": inner}], "counts": [0]}}


def _positions(stage: Stage, epoch: int, length: Any, again: Again | None, part: dict[str, Any]) -> PositionInlet:
    """The positions of an indexed source that are to come."""
    start = again.position if again is not None else 0
    grouped = any(step.op.effect is Effect.REGROUPS for step in stage.steps)
    if grouped and again is not None and again.feed:
        # What is saved is that of a batch behind a source, and here the worker makes the batches.
        (inner,) = again.feed["inputs"]
        start = Again(inner["at"]).position
    assert isinstance(stage.feed, Indexed)
    dealt = None
    if stage.feed.dealt is not None:
        deals = stage.feed.dealt.op.deals
        if part:
            deals = replace(deals, rank=part["rank"], world=part["world"])
        dealt = Part(deals, start if deals.keeps else part.get("base", 0), part.get("until"))
    batched = stage.segment if grouped else ""
    return PositionInlet(epoch, length, stage.unit, batched=batched, start=start, again=again, part=dealt)


class _Branch:
    """An upstream of a joint: a stage that can be started again."""

    def __init__(self, run: Run, stage: Stage) -> None:
        self.run = run
        self.stage = stage
        self.stage_run: StageRun | None = None

    def start(self, epoch: int, saved: Saved = None) -> None:
        if self.stage_run is not None:
            self.run.engine.garbage += self.run.engine.cancelled(self.stage_run)
        self.stage_run = self.run._opened(self.stage, epoch, saved)
        self.run.changed()

    def close(self) -> list[Any]:
        """End it. Returns what is to be let go of outside the lock."""
        stage_run, self.stage_run = self.stage_run, None
        return [] if stage_run is None else stage_run.cancel()

    def adopt(self, run: Run) -> None:
        """Belong to another epoch from now on, and go on where it stands."""
        run.lost.take_over(self.run.lost)
        self.run = run
        if self.stage_run is not None:
            for one in self.stage_run.walk():
                one.run = run
                for queue in getattr(one.inlet, "queues", ()):
                    queue.upstream.run = run

    def pop(self) -> Chunk | None:
        chunk = None if self.stage_run is None else self.stage_run.pop()
        self.run.engine.freed |= chunk is not None
        return chunk

    @property
    def over(self) -> bool:
        return self.stage_run is not None and self.stage_run.over
