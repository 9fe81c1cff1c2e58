"""A plan: the stages of a pipeline, as frozen values that can be printed and sent.

A stage is a run of ops in one place. Its samples come from its feed: an indexed source read in
some order (`Indexed`), a stream (`Streamed`), or other stages brought together by a joint
(`Joined`). So a plan is a tree, and its root is the last stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.executors.executor import Pool
from penstock.ops.joint import Joint, Length
from penstock.ops.op import Effect, Op, Order, joint_of
from penstock.sources.source import Composite, IndexedSource, StreamSource


@dataclass(frozen=True, slots=True)
class Step:
    """An op in its pipeline: its number, and the key that its random choices hang on."""

    op: Op[Any, Any]
    number: int
    #: the op's title and, from the second of that title on, its occurrence
    key: str
    #: the user did not write it: it came with the op behind it, or the plan has put it there
    added: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """A place where stages run. Stages with the same site share its workers."""

    number: int
    kind: str
    workers: int
    pool: Pool | None = None
    #: the loader finds the number of workers while it runs; `workers` is the most there may be
    auto: bool = False

    def __str__(self) -> str:
        if self.kind == "inline":
            return "in the reader's thread"
        what = {"thread": "thread", "async": "coroutine", "process": "process"}.get(
            self.kind, f"{self.kind} worker"
        )
        many = "es" if what.endswith("s") else "s"
        text = f"{self.workers} {what}{many if self.workers > 1 else ''}"
        if self.auto:
            return f"1 to {text}, found while it runs"
        return f"{text} of a shared pool" if self.pool is not None else text


@dataclass(frozen=True, slots=True)
class Indexed:
    """Positions of an epoch, each read on its own. `orders` lead from the position to the index."""

    source: IndexedSource
    orders: tuple[tuple[Order, Step], ...] = ()
    #: positions are dealt to ranks
    dealt: Step | None = None
    children: tuple[Stage, ...] = ()

    @property
    def portion(self) -> Any:
        """How positions are dealt to ranks; None if they are not."""
        joint = None if self.dealt is None else joint_of(self.dealt.op)
        return None if joint is None else joint.portion


@dataclass(frozen=True, slots=True)
class Streamed:
    """A source that is read forward, by one worker at a time."""

    source: StreamSource
    #: the op that says in which order its parts are opened
    ordered_by: Step | None = None
    children: tuple[Stage, ...] = ()


@dataclass(frozen=True, slots=True)
class Joined:
    """Other stages, in the order of delivery: through an op's joint, a composite's, or as they come."""

    children: tuple[Stage, ...]
    step: Step | None = None
    composite: Composite | None = None
    #: the composite's place in the plan, for its own memory
    key: str = ""
    #: what the composite calls its parts
    names: tuple[str, ...] = ()
    #: how many samples reach the op's joint in an epoch, if that is known
    length: Length = None


Feed = Indexed | Streamed | Joined


def straight_before(feed: Feed) -> Stage | None:
    """The stage whose samples a feed passes on as they are, without a joint; None if there is none."""
    if isinstance(feed, Joined) and feed.step is None and feed.composite is None:
        return feed.children[0]
    return None


def chain_before(feed: Feed) -> list[Stage] | None:
    """The stages between a feed and the indexed source of its samples; None if a joint or a stream is there."""
    chain: list[Stage] = []
    while not isinstance(feed, Indexed):
        before = straight_before(feed)
        if before is None or before.interleave > 1:
            return None
        chain.append(before)
        feed = before.feed
    return chain


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """A run of ops in one place, fused into one program."""

    number: int
    label: str
    feed: Feed
    steps: tuple[Step, ...]
    site: Site
    #: the most calls at once; at most the site's workers
    workers: int
    ordered: bool
    #: samples that go in per unit of work: the batch size where the worker makes the batches
    unit: int = 1
    #: of a stage that reads an indexed source: the batch op, by its segment, where workers of this stage or of one
    #: straight behind it make the batches
    batched: str = ""
    #: how many tickets take turns, one output at a time
    interleave: int = 1
    #: finished chunks kept ready, and if set, finished samples
    bound_tickets: int = 2
    bound_samples: int | None = None
    #: samples in the making count in that bound
    strict: bool = False
    #: the batch is one read of the source
    block_read: bool = False
    #: the batch relies on no sample being skipped; if one is, the plan is made again without
    hopeful: bool = False
    #: which step keeps what has gone before it, sample by sample
    cache_step: int | None = None
    #: an op behind it gathers what it makes, in any order
    gathered: bool = False
    #: what it belongs to, whatever the layout: the joint (or source) that its samples come from, by op or part
    segment: str = ""
    reasons: tuple[str, ...] = ()

    def batched_later(self, segment: str) -> Stage:
        """The same, where workers of a stage straight behind it make the batches."""
        before = straight_before(self.feed)
        if before is None:
            return replace(self, batched=segment)
        return replace(self, feed=Joined((before.batched_later(segment),)))

    @property
    def expands(self) -> int:
        """How many of its ops make several samples of one."""
        return sum(step.op.effect is Effect.EXPANDS for step in self.steps)

    @property
    def groups(self) -> bool:
        """Whether its workers make the batches, of samples that no joint has put together."""
        return self.joint_op is None and any(step.op.effect is Effect.REGROUPS for step in self.steps)

    @property
    def depth(self) -> int:
        """The same for all ops since the source or joint that its samples come from."""
        before = straight_before(self.feed)
        return self.expands + (0 if before is None else before.depth)

    @property
    def in_order(self) -> bool:
        """Whether samples leave it in the order in which they left that source or joint."""
        before = straight_before(self.feed)
        return self.ordered and self.interleave == 1 and (before is None or before.in_order)

    @property
    def joint_op(self) -> Op[Any, Any] | None:
        """The op whose joint brings it its samples, if there is one."""
        return self.feed.step.op if isinstance(self.feed, Joined) and self.feed.step is not None else None

    @property
    def joint(self) -> Joint | None:
        """A joint of that op, which is never run, to read its attributes."""
        return None if self.joint_op is None else joint_of(self.joint_op)

    @property
    def draws(self) -> bool:
        """Whether it draws from samples that an op is there to have at hand."""
        return self.joint is not None and self.joint.eager

    @property
    def at_hand(self) -> bool:
        """Its samples are in memory: those of the source, or of an op before it that is there to have some."""
        feed = self.feed
        if isinstance(feed, Indexed):
            return feed.source.instant
        if not isinstance(feed, Joined) or feed.composite is not None:
            return False
        if self.draws:
            return True
        (stage,) = feed.children
        return stage.at_hand and stage.site is self.site and not isinstance(stage.feed, Indexed)

    def walk(self) -> Iterator[Stage]:
        """This stage and all before it, the first one first."""
        for child in self.feed.children:
            yield from child.walk()
        yield self

    def to_dict(self) -> dict[str, Any]:
        """The stage as plain data."""
        return {
            "stage": self.number,
            "label": self.label,
            "source": None if isinstance(self.feed, Joined) else self.feed.source.label,
            "inputs": [child.number for child in self.feed.children],
            "joint": self._joint_label(),
            "ops": [{"op": step.op.label, "at": step.op.where} for step in self.all_steps()],
            "on": self.site.kind,
            "workers": self.workers,
            "ordered": self.ordered,
            "bound": {"tickets": self.bound_tickets, "samples": self.bound_samples},
            "reasons": list(self.reasons),
        }

    def all_steps(self) -> list[Step]:
        """Every op of the stage, those that only change the order included."""
        orders = [step for _, step in self.feed.orders] if isinstance(self.feed, Indexed) else []
        if isinstance(self.feed, Indexed) and self.feed.dealt is not None:
            orders.append(self.feed.dealt)
        joint = [self.feed.step] if isinstance(self.feed, Joined) and self.feed.step is not None else []
        steps = {step.number: step for step in [*orders, *joint, *self.steps]}
        return [steps[number] for number in sorted(steps)]

    def _joint_label(self) -> str | None:
        if not isinstance(self.feed, Joined):
            return None
        if self.feed.composite is not None:
            return self.feed.composite.label
        return self.feed.step.op.label if self.feed.step is not None else "in order"


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """All stages of a pipeline."""

    root: Stage
    length: Length
    notes: tuple[str, ...] = field(default=())

    @property
    def stages(self) -> list[Stage]:
        """All stages, sources first."""
        return list(self.root.walk())

    @property
    def draws(self) -> bool:
        """Whether a stage draws from samples that an op is there to have at hand."""
        return any(stage.draws for stage in self.stages)

    @property
    def carries(self) -> bool:
        """Whether a joint continues from epoch to epoch."""
        return any(stage.joint is not None and stage.joint.carries for stage in self.stages)

    def keeps_epoch(self, stage: Stage) -> bool:
        """Whether an op behind `stage` keeps what comes through it: always the same epoch, whichever runs."""
        behind = (one for one in self.stages if one is not stage and any(stage is each for each in one.walk()))
        return any(one.joint is not None and one.joint.remembers for one in behind)

    @property
    def in_step(self) -> bool:
        """Whether ranks deliver in step, so that the state of one of them is that of all."""
        return any(
            isinstance(stage.feed, Indexed) and stage.feed.dealt is not None and stage.feed.portion.keeps
            for stage in self.stages
        )

    @property
    def approximate(self) -> Op[Any, Any] | None:
        """An op whose outputs depend on who is faster, if there is one."""
        return next((one.joint_op for one in self.stages if one.joint is not None and one.joint.approximate), None)

    def source_length(self, portion: Any) -> Length:
        """How many positions are dealt to all ranks in an epoch."""
        feed = self.stages[0].feed
        if not isinstance(feed, Indexed):
            return 0
        length: Length = len(feed.source)
        for order, _ in feed.orders:
            length = order.length(int(length or 0))
        return 0 if length is None else (portion.stop(length) if portion is not None else length)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data, for JSON."""
        length = self.length
        return {
            "length": length if isinstance(length, int) or length is None else "endless",
            "stages": [stage.to_dict() for stage in self.stages],
            "notes": list(self.notes),
        }
