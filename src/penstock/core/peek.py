"""Single samples at once, without workers: for a look, and to make one sample again."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np

from penstock.checks import whole_number
from penstock.core.engine import Engine
from penstock.core.loader import Loader
from penstock.errors import PlanError
from penstock.lazy import named
from penstock.ops.op import Effect
from penstock.plan.plan import Stage
from penstock.plan.rules import Options
from penstock.plan.world import ALONE, dealt
from penstock.program.chunk import Chunk
from penstock.program.program import Program
from penstock.program.task import Bench, Post, Task
from penstock.sources.source import Flow

_BLOCK = 1 << 20


class Samples(list[Any]):
    """What `Pipeline.peek` gives: a list, which a notebook shows as a table, with its images."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        made: str = named("penstock.showing.show:show")(list(self))._repr_html_()
        return made


def peek(flow: Flow, n: int, index: int | None, epoch: int, seed: int, every_op: bool) -> list[Any]:
    """See `Pipeline.peek`."""
    n = whole_number(n, "peek(n)")
    if index is None and not every_op:
        loader: Loader[Any] = Loader(flow, seed=seed, inline=True, epochs=epoch + 1, world=ALONE)
        with loader:
            loader.set_epoch(epoch)
            return Samples(islice(iter(loader), n))
    flow = dealt(flow, ALONE)
    engine = Engine(flow, Options(inline=True, wary=True), seed, memory=None)
    try:
        stage = engine.plan.stages[0]
        program = engine.lanes[stage.number].program
        if program.reading is None or flow.source is not program.reading.source:
            raise PlanError("peek(index=) and peek(every_op=) need a source that can be indexed")
        return Samples(_Peeking(engine, stage, program, epoch).samples(n, index, every_op))
    finally:
        engine.close()


class _Peeking:
    """Runs the first stage of a pipeline on chosen positions."""

    def __init__(self, engine: Engine, stage: Stage, program: Program, epoch: int) -> None:
        self.stage = stage
        self.program = program
        bench = Bench()
        bench.bind(stage.steps)
        post = Post(engine.seed, bench, program, engine.pause, engine.bridge.run, engine.reader.heed, inline=True)
        self.task = Task(post, epoch, "reader")

    def samples(self, n: int, index: int | None, every_op: bool) -> list[Any]:
        reading = self.program.reading
        assert reading is not None
        if index is not None:
            positions = [self._position(index)]
        else:
            length = reading.length
            positions = list(range(n if not isinstance(length, int) else min(n, length)))
        out: list[Any] = []
        for position in positions:
            trail = self._trail(position)
            out += [trail] if every_op else trail[-1][1]
        return (
            [[(label, value) for label, values in trail for value in values] for trail in out] if every_op else out
        )

    def _trail(self, position: int) -> list[tuple[str, list[Any]]]:
        """The sample after the source and after every op."""
        chunk = self.program.read_one(position, self.task)
        assert self.program.reading is not None
        trail = [(self.program.reading.source.label, list(chunk.samples))]
        for number, step in enumerate(self.stage.steps):
            # What a cache would keep is drawn for the sample, whatever the epoch.
            self.task.for_cache = number < (self.stage.cache_step or 0)
            _raise(chunk)
            if step.op.effect is Effect.REGROUPS or step.added:
                break
            if step.op.effect is Effect.PASSES:
                continue
            chunk = Chunk.join(list(self.program.through_one(step, chunk, self.task)))
            trail.append((step.op.label, list(chunk.samples)))
        _raise(chunk)
        return trail

    def _position(self, index: int) -> int:
        """Where in the epoch the sample with this number in its source stands first."""
        reading = self.program.reading
        assert reading is not None
        length = reading.length
        stop = length if isinstance(length, int) else len(reading.source)
        for start in range(0, stop, _BLOCK):
            traced = reading.trace(self.task.epoch, np.arange(start, min(start + _BLOCK, stop)))
            block = np.asarray(reading.source.numbers(traced))
            found = np.flatnonzero(block == index)
            if found.size:
                return start + int(found[0])
        raise PlanError(f"no sample with index {index} in epoch {self.task.epoch} ({stop} samples)")


def _raise(chunk: Chunk) -> None:
    if chunk.failure is not None:
        raise chunk.failure.exception
