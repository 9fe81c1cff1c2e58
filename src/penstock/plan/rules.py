"""From a pipeline to a plan: place, fuse, bound. Pure, and each rule says its reason.

0. **Positions** (`positions.py`): what only changes the order goes to the source.
1. **Place.** An op without a placement rides with the op before it, and the source with the first
   op that has one. Two exceptions: what blocks never rides on an event loop, and an ``async def``
   never rides on anything else.
2. **Fuse.** Ops in the same place become one stage, unless one of them needs its samples in the
   order of delivery. Ops that only change the order of an indexed source cost nothing: they are
   computed from the position by whoever reads it. A batch is made where the samples are, as long
   as the count is kept before it.
3. **Bound.** Every stage keeps two finished tickets per worker ready, or as many batches as ``prefetch`` says.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from penstock.errors import PlanError
from penstock.executors import find_executor
from penstock.executors.executor import Placement, Pool, worker_count
from penstock.ops.joint import Joint, Length
from penstock.ops.op import Effect, Op, added, blocks, group_size, in_own_thread, is_eager, joint_of
from penstock.ops.renumber import Renumber
from penstock.plan.draft import Draft, batched_in_worker, begins_anew, remember, why_not_fused
from penstock.plan.lengths import flow_length, lengths
from penstock.plan.plan import (
    Feed,
    Indexed,
    Joined,
    Plan,
    Site,
    Stage,
    Step,
    Streamed,
    chain_before,
)
from penstock.plan.positions import Positions, on_positions
from penstock.plan.reasons import how_dealt, how_drawn, how_read
from penstock.sources.source import Composite, Flow, IndexedSource, StreamSource

#: tickets per worker before an op that gathers: it takes in several at a time, which costs as much as one
_GATHERED = 8


@dataclass(frozen=True, slots=True)
class Options:
    """What the loader says about placement."""

    on: str | Pool | None = None
    workers: int | str | None = None
    inline: bool = False
    #: CPUs that stages with workers="auto" may use; None for all that this process may use
    cpus: float | None = None
    #: what names the pipeline, if it is a part of another
    path: str = ""
    #: a function skipped a sample although the plan had relied on the count: rely on it no longer
    wary: bool = False


def make_plan(flow: Flow, options: Options) -> Plan:
    """The plan for `flow`."""
    maker = _Maker(options)
    root = maker.stages(flow, path=options.path)
    return Plan(root, flow_length(flow), (*maker.notes, *maker.placement_notes()))


class _Maker:
    """Makes the stages of one plan, and numbers them."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.notes: list[str] = []
        self.count = 0
        self.labels: Counter[str] = Counter()
        self.steps = 0
        self.sites = 0
        self.pooled: dict[int, Site] = {}
        #: the thread that does what is not worth a journey to another process
        self.here: tuple[Site, int] | None = None
        #: the site whose one thread draws from the global generators
        self.drawing: Site | None = None
        #: how many samples reach each op, by its number, where an op goes by that
        self.lengths: dict[int, Length] = {}
        #: nothing further on depends on the order of the stage that is being made
        self.loose = False
        #: ops that say themselves where they run
        self.own: list[str] = []
        #: no op does, so the loader decides
        self.default = False

    def stages(self, flow: Flow, default: tuple[Site, int] | None = None, path: str = "") -> Stage:
        """The last stage of `flow`, with all others below it.

        A part of another pipeline has a default place, and a `path` that names it.
        """
        top = default is None
        steps = self._numbered(flow.ops, path)
        decoupled = [number for number, step in enumerate(steps) if is_eager(step.op)]
        if decoupled:
            self.lengths.update(zip([step.number for step in steps], lengths(flow), strict=False))
        sites = self._placed(flow, steps, default)
        children = []
        if isinstance(flow.source, Composite):
            children = [self.stages(part, sites[0], f"{path}{name}/") for name, part in flow.source.parts]
        positions = on_positions(flow, steps)
        draft = self._opening(flow, steps, positions, sites[0], children, path)
        for number, step in enumerate(steps):
            if step in positions:
                continue
            if step is positions.cache:
                remember(draft, step)
                continue
            # By the op's number, without those that have no say in what is delivered.
            segment = f"{path}{sum(one.op.delivery.ready is None for one in steps[:number])}"
            until = next((other for other in decoupled if other >= number), None)
            self.loose = until is not None and _keeps_order(steps[number:until])
            if begins_anew(draft, step.op):
                draft = self._renumbered(draft, step, sites[number + 1], f"{segment}-line")
            if (joint := joint_of(step.op)) is not None:
                draft = self._with_joint(draft, step, joint, sites[number + 1], steps[number + 1 :], top, segment)
            else:
                draft = self._added(draft, step, sites[number + 1])
        self.loose = False
        return self._finished(draft)

    def _numbered(self, ops: tuple[Op[Any, Any], ...], path: str) -> list[Step]:
        """The ops with their keys. Those of a part hang on its name, and so not on what other parts there are."""
        steps = []
        titles: Counter[str] = Counter()
        unwritten = added(ops)
        for number, op in enumerate(ops):
            titles[op.title] += 1
            seen = titles[op.title]
            key = f"{path}{op.title}" if seen == 1 else f"{path}{op.title}#{seen}"
            steps.append(Step(op, self.steps, key, number in unwritten))
            self.steps += 1
        return steps

    # ------------------------------------------------------------------ place

    def _placed(self, flow: Flow, steps: list[Step], default: tuple[Site, int] | None) -> list[tuple[Site, int]]:
        """The site, and the cap within it, of the source and of every op."""
        if self.options.inline:
            site = self._site(Placement("inline"))
            return [site] * (len(steps) + 1)
        first = next((number for number, step in enumerate(steps) if step.op.placement is not None), None)
        self.own += [step.op.label for step in steps if step.op.placement is not None]
        if first is not None:
            here = self._own_site(steps[first].op)
        elif default is not None:
            here = default
        else:
            asked = Placement.of(self.options.on, self.options.workers, "loader()")
            here = self._site(asked or Placement("thread", 1))
            self.default = asked is None
        opened = here
        leading = steps[: len(steps) if first is None else first]
        if not _rides(here[0], not flow.source.instant or any(blocks(step.op) for step in leading), False):
            here = self._site(Placement("thread", 1))
        placed = [here]
        for number, step in enumerate(steps):
            op = step.op
            if number == first:
                here = opened
            elif op.placement is not None:
                here = self._own_site(op)
            elif in_own_thread(op):
                here = self._site(Placement("thread", 1))
            elif not _rides(here[0], blocks(op), op.asynchronous):
                here = self._own_site(op) if op.asynchronous else self._site(Placement("thread", 1))
            if op.random == "global" and here[0].kind in ("thread", "async"):
                self._claim_globals(op, *here)
            placed.append(here)
        return placed

    def placement_notes(self) -> list[str]:
        """Where what the loader says has no effect, and where it would have one."""
        options = self.options
        asked = [f"{name}={value!r}" for name in ("on", "workers") if (value := getattr(options, name)) is not None]
        said = f"loader({', '.join(asked)})"
        if asked and options.inline:
            return [f"{said} has no effect: inline=True runs everything in the reader's thread"]
        if asked and self.own:
            return [
                f"{said} does not move {', '.join(self.own)}: an op that says where it runs keeps its place, "
                "and the others ride with it"
            ]
        if self.default and not self.own:
            return [
                "no op says where it runs, so one thread runs them; loader(on=, workers=) changes that, and "
                "loader.explain() shows it"
            ]
        return []

    def _claim_globals(self, op: Op[Any, Any], site: Site, workers: int) -> None:
        """Only one thread of a process may draw from its global generators."""
        if workers > 1 or self.drawing not in (None, site):
            raise PlanError(
                f"{op.label} draws from the global generators (rng='global'), which several threads of one "
                "process would share; use workers=1 for one such stage, or rng=True"
            )
        self.drawing = site

    def _own_site(self, op: Op[Any, Any]) -> tuple[Site, int]:
        return self._site(op.placement or Placement("async" if op.asynchronous else "thread"))

    def _site(self, placement: Placement) -> tuple[Site, int]:
        executor = find_executor(placement.kind)
        workers = None if placement.workers is None else worker_count(placement.workers)
        if placement.pool is not None:
            pool = placement.pool
            site = self.pooled.get(id(pool)) or self._new_site(placement.kind, pool.workers, pool)
            self.pooled[id(pool)] = site
            return site, min(workers or site.workers, site.workers)
        auto = placement.workers == "auto" and not executor.inline
        count = executor.most_workers if auto else workers or executor.default_workers
        return self._new_site(placement.kind, count, auto=auto), count

    def _new_site(self, kind: str, workers: int, pool: Pool | None = None, auto: bool = False) -> Site:
        self.sites += 1
        return Site(self.sites, kind, workers, pool, auto)

    # ------------------------------------------------------------------ fuse

    def _opening(
        self,
        flow: Flow,
        steps: list[Step],
        positions: Positions,
        place: tuple[Site, int],
        children: list[Stage],
        path: str,
    ) -> Draft:
        site, workers = place
        source = flow.source
        feed: Feed
        if isinstance(source, Composite):
            names = tuple(name for name, _ in source.parts)
            feed = Joined(tuple(children), None, source, f"{path}{source.verb}", names)
        elif isinstance(source, IndexedSource):
            orders = [(step.op.order(), step) for step in positions.orders]
            known = tuple((order, step) for order, step in orders if order is not None)
            feed = Indexed(source, known, positions.dealt)
        elif isinstance(source, StreamSource):
            feed = Streamed(source, _shards_ordered_by(steps))
        else:
            raise PlanError(f"{source!r} is neither an indexed nor a stream source")
        draft = Draft(feed, site, workers, f"{path}source")
        if isinstance(source, IndexedSource) and site.kind != "inline":
            draft.reasons += how_read(source, find_executor(site.kind).remote)
        if isinstance(feed, Indexed):
            for order, step in feed.orders:
                draft.reasons.append(f"{step.op.label} is computed from the position, {order.stores}")
        if isinstance(feed, Indexed) and feed.dealt is not None:
            draft.reasons.append(how_dealt(feed.portion))
        if isinstance(source, StreamSource):
            if find_executor(site.kind).remote:
                return self._opening_here(draft, place)
            draft.reasons.append("the stream is advanced by one worker at a time")
            if isinstance(feed, Streamed) and feed.ordered_by is not None:
                draft.reasons.append(
                    f"{feed.ordered_by.op.label} opens its parts, if several, in a new order each epoch"
                )
        return draft

    def _opening_here(self, draft: Draft, place: tuple[Site, int]) -> Draft:
        """A stream is read by a thread of this process; its samples travel to the others."""
        reading = Draft(draft.feed, *self._site(Placement("thread", 1)), draft.segment)
        reading.reasons.append("the stream is read here, by one thread, and not in the worker processes")
        after = Draft(Joined((self._finished(reading),)), *place, draft.segment)
        after.reasons.append("samples reach the worker processes through shared memory")
        return after

    def _renumbered(self, draft: Draft, step: Step, place: tuple[Site, int], segment: str) -> Draft:
        """A new segment: a resumed stream names its samples by new numbers."""
        stage = self._finished(draft)
        renumber = Step(Renumber(), self.steps, "renumber", added=True)
        self.steps += 1
        after = Draft(Joined((stage,), renumber), *place, segment)
        after.reasons.append(f"not fused with stage {stage.number}: {step.op.label} takes its samples one by one")
        return after

    def _added(self, draft: Draft, step: Step, place: tuple[Site, int]) -> Draft:
        op = step.op
        ready = op.delivery.ready
        if ready is None or op.effect is not Effect.PASSES:
            draft = self._with_step(draft, step, place)
        if ready is not None:
            draft.ready, draft.strict = ready, op.delivery.strict
        return draft

    def _with_joint(
        self,
        draft: Draft,
        step: Step,
        joint: Joint,
        place: tuple[Site, int],
        later: list[Step],
        top: bool,
        segment: str,
    ) -> Draft:
        op = step.op
        if joint.refused:
            raise PlanError(joint.refused)
        why = self._why_not_in_worker(draft, joint, place, later, top)
        if why is None:
            return batched_in_worker(draft, step, joint, segment)
        if joint.carries and not joint.eager and not top:
            raise PlanError(
                f"{op.label} goes on from one epoch of the loader to the next, but its pipeline is a part of "
                f"another, which begins it anew in every epoch; put {op.label} behind the mix(), zip() or "
                "concat(), or right behind a source that can be indexed"
            )
        stage = self._finished(draft, gathered=joint.eager)
        carrying = _carrying(stage)
        if carrying is not None and op.length(1) == math.inf:
            raise PlanError(
                f"{op.label} has no end, and {carrying.label} before it goes round by itself; leave {op.label} out"
            )
        length = self.lengths.get(step.number)
        after = Draft(Joined((stage,), step, length=length), *place, segment)
        if op.effect is Effect.REGROUPS:
            after.steps.append(step)
        if joint.eager:
            after.ahead = next((size for one in later if (size := group_size(one.op))), 1)
            after.reasons += how_drawn(op, length, stage)
            return after
        after.reasons.append(f"{op.label} needs the order of delivery: {why}")
        if (groups := _grouped(stage)) and (large := joint.large_state(groups)):
            after.reasons.append(large)
        if joint.wasted:
            after.reasons.append(joint.wasted)
        if not stage.ordered:
            self.notes.append(f"{op.label} depends on the order, which stage {stage.number} does not keep")
        return after

    def _why_not_in_worker(
        self, draft: Draft, joint: Joint, place: tuple[Site, int], later: list[Step], top: bool
    ) -> str | None:
        """Why a batch cannot be made by the worker that has its samples; None if it can."""
        if not joint.group_size:
            return "it counts samples as they are delivered"
        if draft.unit != 1:
            return "its samples are batches themselves"
        before = chain_before(draft.feed)
        if before is None:
            return "its samples do not come straight from an indexed source"
        steps = [step for stage in before for step in stage.steps] + draft.steps
        cached = [stage.steps[stage.cache_step] for stage in before if stage.cache_step is not None]
        for step in steps:
            if step.op.effect is not Effect.KEEPS and step is not draft.cached and step not in cached:
                return f"{step.op.label} varies the count"
            if step.op.may_skip:
                return f"{step.op.label} may skip samples"
        if not (draft.ordered and all(stage.in_order for stage in before)):
            return "a stage before it does not keep the order"
        if before and joint.group_size == 1:
            return "a batch of one is no work"
        if place[0] is not draft.site:
            return "it runs in another place"
        if self.options.wary:
            return "a sample has been skipped"
        if any(step.op.calls_user for step in steps):
            if not top:
                return "its pipeline is part of another, and a function may skip a sample"
            if any(joint_of(step.op) is not None for step in later):
                return "a later op counts what is delivered, and a function may skip a sample"
            if not all(step.op.delivery.ordered and step.op.delivery.interleave == 1 for step in later):
                return "a later op does not keep the order, and a function may skip a sample"
        return None

    def _with_step(self, draft: Draft, step: Step, place: tuple[Site, int]) -> Draft:
        op = step.op
        why = why_not_fused(draft, op, place)
        if why is not None:
            stage = self._finished(draft)
            draft = Draft(Joined((stage,)), *place, stage.segment)
            draft.reasons.append(f"not fused with stage {stage.number}: {why}")
        elif (draft.steps or op.placement is None) and op.label:
            draft.reasons.append(f"{op.label} rides along, without a hop")
        draft.steps.append(step)
        if op.moves is not None:
            draft.reasons += op.moves.remarks
        if op.delivery.interleave > 1:
            draft.interleave = op.delivery.interleave
            draft.reasons.append(f"the outputs of {draft.interleave} inputs alternate, one by one")
        return draft

    def _keep_here(self, draft: Draft) -> None:
        """Samples that have come back from other processes are not sent there again for nothing."""
        if any(step.op.calls_user for step in draft.steps):
            return
        self.here = self.here or self._site(Placement("thread", 1))
        draft.site, draft.workers = self.here
        draft.reasons.append("runs here, in a thread: its samples are here, and no function of yours is called")

    # ------------------------------------------------------------------ bound

    def _finished(self, draft: Draft, gathered: bool = False) -> Stage:
        self.count += 1
        if find_executor(draft.site.kind).remote and isinstance(draft.feed, Joined):
            self._keep_here(draft)
        label = "+".join(dict.fromkeys(step.op.title for step in draft.steps if step is not draft.cached))
        feed = draft.feed
        if not label and isinstance(feed, Joined):
            label = feed.step.op.title if feed.step is not None else getattr(feed.composite, "verb", "pass")
        elif not label and not isinstance(feed, Joined):
            label = feed.source.verb
        self.labels[label] += 1
        if self.labels[label] > 1:
            label = f"{label}#{self.labels[label]}"
        # Beside those in the making, one ticket waits in each worker process: what it costs to send one is hidden.
        per_worker = 3 if find_executor(draft.site.kind).remote else 2
        if gathered:
            per_worker = _GATHERED
        return Stage(
            number=self.count,
            label=label,
            feed=draft.feed,
            steps=tuple(draft.steps),
            site=draft.site,
            workers=draft.workers,
            ordered=draft.ordered and (draft.workers == 1 or draft.hopeful or not self.loose),
            unit=draft.unit,
            batched=draft.batched,
            interleave=draft.interleave,
            bound_tickets=max(per_worker * draft.workers, draft.interleave + 1),
            bound_samples=draft.ahead if draft.ready is None and not draft.steps else draft.ready,
            strict=draft.strict,
            block_read=draft.block_read,
            hopeful=draft.hopeful,
            cache_step=next((n for n, step in enumerate(draft.steps) if step is draft.cached), None),
            gathered=gathered,
            segment=draft.segment,
            reasons=tuple(draft.reasons),
        )


def _shards_ordered_by(steps: list[Step]) -> Step | None:
    """The op that says in which order the parts of a stream are opened: one that every sample reaches alone."""
    for step in steps:
        joint = joint_of(step.op)
        if joint is not None:
            return step if joint.orders_shards else None
        if step.op.effect is Effect.REGROUPS or step.op.delivery.interleave > 1:
            return None
    return None


def _grouped(stage: Stage) -> list[int]:
    """The largest sizes of the groups that leave `stage`, of the groups in them, and so on."""
    ops = [step.op for one in stage.walk() for step in one.all_steps()]
    shape = [op for op in ops if op.effect in (Effect.REGROUPS, Effect.EXPANDS)]
    if not shape or shape[-1].effect is Effect.EXPANDS:
        return []
    joints = [joint_of(op) for op in shape if op.effect is Effect.REGROUPS]
    return [0 if joint is None else joint.largest_group for joint in joints]


def _carrying(stage: Stage) -> Op[Any, Any] | None:
    """An op before the end of `stage` whose joint continues from epoch to epoch."""
    return next((one.joint_op for one in stage.walk() if one.joint is not None and one.joint.carries), None)


def _keeps_order(later: list[Step]) -> bool:
    """Whether none of the ops before one that takes samples in any order depends on theirs."""
    return not any(joint_of(step.op) is not None or step.op.delivery.interleave > 1 for step in later)


def _rides(site: Site, blocking: bool, asynchronous: bool) -> bool:
    """Whether an op without a placement may run at `site`."""
    if site.kind == "inline":
        return True
    return not blocking if find_executor(site.kind).asynchronous else not asynchronous
