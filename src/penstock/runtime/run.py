"""One epoch at work: the stages of a plan, set up for it. Pure bookkeeping, under the lock."""

from __future__ import annotations

from typing import Any

from penstock.ops.op import Joint, Key
from penstock.plan.plan import Indexed, Joined, Stage, Streamed
from penstock.runtime.chunk import Chunk
from penstock.runtime.inlets import Inlet, JoinedInlet, PositionInlet, Queue, StreamInlet
from penstock.runtime.stage_run import StageRun

__all__ = ["Run"]


class Run:
    """The stages of one epoch. `engine` is the loader's engine, which has the lanes and the seed."""

    def __init__(self, engine: Any, epoch: int, start: int = 0) -> None:
        self.engine = engine
        self.epoch = epoch
        #: where the source begins, once it is opened: only a pipeline without parts begins elsewhere than at 0
        self._start = start
        #: this is the epoch being read, not one begun early
        self.current = False
        self.ended = False
        #: looking for a ticket has brought samples or stages to light, so it is worth looking again
        self.revealed = False
        self._by_crew: dict[Any, list[StageRun]] = {}
        self.root = self._opened(engine.plan.root, epoch)

    def _opened(self, stage: Stage, epoch: int) -> StageRun:
        """A stage and all before it, ready for `epoch`."""
        feed = stage.feed
        lane = self.engine.lanes[stage.number]
        branches: list[_Branch] = []
        inlet: Inlet
        if isinstance(feed, Indexed):
            start, self._start = self._start, 0
            inlet = PositionInlet(epoch, lane.program.reading.length, start, stage.unit)
        elif isinstance(feed, Streamed):
            inlet = StreamInlet(feed.source, epoch)
        else:
            queues = self._queues(feed)
            branches = [queue.upstream for queue in queues]  # type: ignore[misc]
            joint = self._joint(feed, epoch)
            if joint is None or not joint.opens_inputs:
                for queue in queues:
                    queue.renew(epoch)
            inlet = JoinedInlet(epoch, joint, queues, self.engine.budget)
        return StageRun(self, lane, inlet, lambda: [b.stage_run for b in branches if b.stage_run is not None])

    def _queues(self, feed: Joined) -> list[Queue]:
        carries = feed.step is not None and feed.step.op.carries
        kept: list[Queue] | None = self.engine.carried.get(feed.step.number) if carries and feed.step else None
        if kept is not None:
            for queue in kept:
                queue.upstream.adopt(self)  # type: ignore[union-attr]
            return kept
        queues = [Queue(_Branch(self, child)) for child in feed.children]
        if carries and feed.step is not None:
            self.engine.carried[feed.step.number] = queues
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


class _Branch:
    """An upstream of a joint: a stage that can be started again."""

    def __init__(self, run: Run, stage: Stage) -> None:
        self.run = run
        self.stage = stage
        self.stage_run: StageRun | None = None

    def start(self, epoch: int) -> None:
        if self.stage_run is not None:
            self.run.engine.garbage += self.run.engine.cancelled(self.stage_run)
        self.stage_run = self.run._opened(self.stage, epoch)
        self.run.changed()

    def adopt(self, run: Run) -> None:
        """Belong to another epoch from now on, and go on where it stands."""
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
