"""What a plan needs to run: a lane for every stage, a crew for every place, and what is to be known of them all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.core.closing import close_at_exit_again
from penstock.core.lane import Lane
from penstock.core.workers import Crew, crew_for
from penstock.executors.executor import Executor
from penstock.lazy import named
from penstock.plan.plan import Indexed, Joined, Plan, Stage
from penstock.plan.rules import Options, make_plan
from penstock.program.program import Program

if TYPE_CHECKING:
    from penstock.memory.block import Blocks


#: With a bound on memory a block counts as a whole. A large part of it may be left unused all the same: otherwise
#: samples of many sizes would each need new memory, whose page faults cost more than room for one sample less.
_FILLED_WHERE_BOUNDED = 0.25


@dataclass(frozen=True, slots=True)
class Setup:
    """A plan, its lanes by stage and its crews by site."""

    options: Options
    plan: Plan
    lanes: dict[int, Lane]
    crews: dict[int, Crew]
    #: some of it is run by the reader itself
    inline: bool
    #: the reader has work of its own, even where it is nobody's worker
    reader_works: bool
    #: calls have a time limit
    timed: bool
    #: samples are drawn from what is there to have some at hand
    draws: bool
    #: the next epoch may be begun before this one is over
    forks: bool

    @staticmethod
    def of(engine: Any, options: Options) -> Setup:
        """The setup of an engine's pipeline. What the user wrote is pickled here, so never under the lock."""
        plan = make_plan(engine.flow, options)
        crews, lanes = dict(engine.crews), dict[int, Lane]()
        for stage in plan.stages:
            crew = crews.get(stage.site.number)
            if crew is None:
                crew = crews[stage.site.number] = crew_for(stage.site, _loop_of)
            lanes[stage.number] = _lane(engine, stage, crew, lanes)
        inline = any(crew.executor.inline for crew in crews.values())
        return Setup(
            options,
            plan,
            lanes,
            crews,
            inline=inline,
            reader_works=inline or any(lane.helpable for lane in lanes.values()),
            timed=any(step.op.timeout_s is not None for stage in plan.stages for step in stage.steps),
            draws=plan.draws,
            forks=not plan.carries and all(isinstance(stage.feed, (Indexed, Joined)) for stage in plan.stages),
        )


def _lane(engine: Any, stage: Stage, crew: Crew, lanes: dict[int, Lane]) -> Lane:
    store = None
    if stage.cache_step is not None:
        step = stage.steps[stage.cache_step]
        store = engine.stores.setdefault(step.number, step.op.memo().store())
    program = Program(stage, engine.seed, one_by_one=engine.budget.bounded, store=store)
    if isinstance(stage.feed, Joined) and stage.feed.composite is None:
        program.upstream = lanes[stage.feed.children[0].number].program
    lane = Lane(stage, program, crew, engine.budget, engine.number)
    if lane.remote:
        lane.parcel = named(crew.executor.packs)(program)
        lane.blocks = _own_blocks(engine)
        crew.executor.expect(lane.parcel)
    return lane


def _own_blocks(engine: Any) -> Blocks:
    """The shared memory of the loader, made when its first worker processes are."""
    if engine.blocks is None:
        from penstock.executors.processes import default_blocks

        bounded = engine.budget.bounded
        engine.blocks = default_blocks(engine.budget.spare, _FILLED_WHERE_BOUNDED) if bounded else default_blocks()
    blocks: Blocks = engine.blocks
    return blocks


def _loop_of(executor: Executor) -> Any:
    """What a worker of `executor` runs."""
    loop = named(
        executor.loop or ("penstock.core.work:work_async" if executor.asynchronous else "penstock.core.work:work")
    )
    if executor.remote:
        close_at_exit_again()
    return loop
