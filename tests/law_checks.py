"""How the laws of tests/test_laws.py are checked for one random pipeline: `check_seed`."""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tests.law_functions import DROPPED, LATE, PER_PROCESS, RELEASED, ancestors, atoms
from tests.law_pipelines import GROUPS, Build, Design, Step, drawn
from tests.law_states import named_twice
from tests.random_examples import SEED as RANDOM
from tests.runtime.process_helpers import kill, workers

import penstock as ps
from penstock.errors import PlanError
from penstock.provenance import key_of
from penstock.resume.schema import opened
from penstock.testing.layouts import fitting

SEED = 3
#: batches of a pipeline at the most, and samples in them: longer ones are left out
LONGEST = 160
STATE_BYTES = 10_000
#: after how many batches between the first and the last a state is tried
PLACES = 4 if RANDOM is None else 8
#: how many loaders have workers, and how long one may take for a batch
THREADED = float(os.environ.get("PENSTOCK_THREADED", 0.5))
TIMEOUT_S = 20

Batches = list[tuple[int, tuple[int, ...]]]


# ---------------------------------------------------------------------- running


@dataclass
class Ran:
    """What one loader has delivered and reported, and the states after its batches."""

    batches: Batches = field(default_factory=list)
    reports: list[Any] = field(default_factory=list)
    states: list[Any] = field(default_factory=list)
    #: for each state, how many losses had been reported
    told: list[int] = field(default_factory=list)
    end: Exception | None = None
    #: all epochs have been read to their end
    over: bool = False
    last: Any = None

    @property
    def delivered(self) -> Counter[int]:
        return Counter(one for _, batch in self.batches for one in batch)

    @property
    def vague(self) -> bool:
        """Something is lost that does not say what it was."""
        return any(type(record.exception) is ps.PenstockError for record in self.reports)

    @property
    def lost(self) -> Counter[int]:
        """The atoms of samples that were reported."""
        return Counter(one for record in self.reports for one in lost_atoms(record))


def lost_atoms(record: Any) -> tuple[int, ...]:
    """The atoms of a sample that was reported."""
    exc = record.exception
    if isinstance(exc, ps.StageTimeout):
        return LATE[key_of(record.place), record.epoch]
    if isinstance(exc, ps.Skip):
        return atoms(json.loads(exc.why.replace("(", "[").replace(")", "]").replace(",]", "]")))
    return atoms(exc.args[0]) if isinstance(exc, ValueError) else ()


def told(record: Any) -> str:
    """A report, to be compared."""
    place = key_of(record.place)  # a group of consecutive positions is a range or a list
    return (
        f"{record.op} {record.index} {record.epoch} {place} {type(record.exception).__name__} {lost_atoms(record)}"
    )


def run(
    pipeline: Any,
    layout: dict[str, Any],
    *,
    state: Any = None,
    most: int | None = None,
    epochs: int = 1,
    kills: Sequence[int] = (),
    timeout_s: float = TIMEOUT_S,
    **more: Any,
) -> Ran:
    """Read `most` batches, or all of `epochs`; kill the processes after the batches with the numbers `kills`."""
    ran = Ran()
    layout = dict(layout)
    if "memory" in layout:
        layout["memory"] = fitting(pipeline, layout["memory"])
    RELEASED.clear()
    with ExitStack() as ended:
        loader = pipeline.loader(seed=SEED, epochs=epochs, timeout_s=timeout_s, **layout, **more)
        ended.enter_context(loader)
        ended.callback(RELEASED.set)
        if state is not None:
            loader.load_state_dict(state)
        try:
            ran.over = read(loader, ran, most, kills)
        except (ps.TooManyErrors, PlanError) as exc:
            ran.end = exc
        ran.reports = loader.errors()
        ran.last = through_json(loader.state_dict())
    return ran


def read(loader: Any, ran: Ran, most: int | None, kills: Sequence[int]) -> bool:
    """Read batches, and save after each of them. True if no epoch has more."""
    for epoch, batches in loader.epochs():
        for batch in batches:
            ran.batches.append((epoch, atoms(batch)))
            if not kills:  # no state can be had in the middle of a chunk whose process has died
                ran.states.append(through_json(loader.state_dict()))
                ran.told.append(len(loader.errors()))
            if len(ran.batches) == most or len(ran.batches) > LONGEST:
                return False
            if len(ran.batches) in kills:
                for pid in workers():
                    kill(pid)
    return True


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


INLINE: dict[str, Any] = {"inline": True}
LAYOUTS: list[dict[str, Any]] = [
    INLINE,
    {"workers": 1},
    {"workers": 2},
    {"workers": 4},
    {"workers": 2, "memory": 1},
]
PROCESSES: dict[str, Any] = {"on": "process", "workers": 2}
ISOLATED: dict[str, Any] = {"isolate": True}


class Broken(AssertionError):
    """A law, and what broke it."""


def law(number: int, holds: bool, *what: Any) -> None:
    if not holds:
        raise Broken(f"law {number}: " + " ".join(map(str, what)))


# ---------------------------------------------------------------------- the laws


@dataclass
class Case:
    """One random pipeline, and how it is run."""

    seed: Any
    #: layouts that start processes
    processes: Sequence[dict[str, Any]] = ()
    given: Design | None = None
    times: int | None = None
    places: int = PLACES
    sharded: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.rng = random.Random(f"case {self.seed}")
        self.design = self.given or drawn(self.seed, self.sharded)
        self.epochs = (
            self.times or 1 if self.given else 1 if self.design.has("cache") else self.rng.choice([1, 1, 2])
        )
        self.layouts = LAYOUTS
        if self.design.late:
            # In the reader's thread nobody looks at the time.
            self.layouts, self.processes = LAYOUTS[1:], ()
        self.folder = ""

    def layout(self) -> dict[str, Any]:
        if self.processes and self.rng.random() < 0.3:
            return self.rng.choice(self.processes)
        first = self.layouts[0]
        return self.rng.choice(self.layouts if self.rng.random() < THREADED else [first])

    def build(self, salt: Any = 0, failing: bool = True, **rank: int) -> Any:
        # What failed in other runs and not in this one must not be found in a cache.
        kind = "none" if not failing else "repeating" if salt == 0 else "changing"
        return Build(salt, failing, folder=self.folder and os.path.join(self.folder, kind), **rank)(self.design)

    def run(self, layout: dict[str, Any] | None = None, *, salt: Any = 0, failing: bool = True, **more: Any) -> Ran:
        return run(self.build(salt, failing), layout or self.layout(), epochs=self.epochs, **more)

    def check(self) -> bool:
        """Raises Broken if a law is; False if the pipeline cannot be run, or is too long."""
        with tempfile.TemporaryDirectory() as self.folder:
            return self._check()

    def _check(self) -> bool:
        try:
            whole = self.run(self.layouts[0])
        except PlanError:
            return False
        if isinstance(whole.end, PlanError) or not (whole.over and whole.batches):
            return False
        if sum(len(batch) for _, batch in whole.batches) > 4 * LONGEST:
            return False
        if self.design.ordered and not self.design.late:
            self.check_layouts(whole)
            self.check_exact(whole)
        self.check_states(whole)
        self.check_loose(whole)
        if ISOLATED in self.processes:
            self.check_deaths(whole)
        return True

    # ------------------------------------------------------------------ 1

    def check_layouts(self, whole: Ran) -> None:
        most = self.rng.randint(1, len(whole.reports)) if whole.reports else None
        limited = None if most is None else self.run(INLINE, max_errors=most)
        others = self.rng.sample(self.layouts[1:], 2 if THREADED else 0)
        for layout in [*others, *self.processes]:
            other = self.run(layout)
            law(
                1, other.batches == whole.batches, layout, "stream:", first_difference(whole.batches, other.batches)
            )
            want, got = [told(one) for one in whole.reports], [told(one) for one in other.reports]
            law(1, sorted(got) == sorted(want), layout, "reports:", first_difference(sorted(want), sorted(got)))
            if limited is not None:
                other = self.run(layout, max_errors=most)
                law(
                    1,
                    repr(other.end) == repr(limited.end),
                    layout,
                    f"max_errors={most}: {limited.end!r}, {other.end!r}",
                )
                law(
                    1,
                    other.batches == limited.batches,
                    layout,
                    f"max_errors={most}",
                    first_difference(limited.batches, other.batches),
                )

    # ------------------------------------------------------------------ 2

    def check_exact(self, whole: Ran) -> None:
        saved_on = self.layout()
        saved = self.run(saved_on)
        for number in self.some(len(saved.states)):
            state = saved.states[number - 1]
            restored_on = self.layout()
            rest = self.run(restored_on, state=state)
            what = f"saved after batch {number} on {saved_on}, restored on {restored_on}"
            self.compare_rest(whole, number, rest, saved.reports[: saved.told[number - 1]], what)
            if rest.states and self.rng.random() < 0.5:
                cut = self.rng.randint(1, len(rest.states))
                again = self.run(self.layout(), state=rest.states[cut - 1])
                before = saved.reports[: saved.told[number - 1]] + rest.reports[: rest.told[cut - 1]]
                self.compare_rest(whole, number + cut, again, before, f"{what}, and again after {cut} more")

    def some(self, count: int) -> list[int]:
        """After which of so many batches states are tried: all, or the first and the last and some between them."""
        between = range(2, count)
        few = between if count <= self.places + 2 else self.rng.sample(between, self.places)
        return sorted({1, count, *few})

    def compare_rest(self, whole: Ran, number: int, rest: Ran, before: list[Any], what: str) -> None:
        want = whole.batches[number:]
        law(2, rest.batches == want, what, first_difference(want, rest.batches))
        law(2, rest.over, what, "did not end", rest.end)
        expected = Counter(map(told, whole.reports))
        found = Counter(map(told, [*before, *rest.reports]))
        law(2, not expected - found, what, "not reported:", list(expected - found)[:3])
        law(
            2,
            not set(found) - set(expected),
            what,
            "reported, though not lost:",
            list(set(found) - set(expected))[:3],
        )
        if self.simple or not self.tells_again:
            law(2, not found - expected, what, "reported twice:", list(found - expected)[:3])

    @property
    def tells_again(self) -> bool:
        """A loss that covers several samples is reported again after a resume in the middle of them."""
        return self.design.has("flat_map", "interleave", "rebatch", *GROUPS, "pack fit", "zip")

    # ------------------------------------------------------------------ 3 and 4

    def check_loose(self, whole: Ran) -> None:
        for fresh in (False, True):
            DROPPED.clear()
            runs = self.chain(fresh, len(whole.batches))
            said = f"runs of {[len(one.batches) for one in runs]} batches"
            self.check_outcome(runs, f"failures {'change' if fresh else 'repeat'}, {said}:")

    def check_deaths(self, whole: Ran) -> None:
        """The process dies again and again, and other samples fail in the next one."""
        DROPPED.clear()
        count = len(whole.batches)
        kills = sorted(self.rng.sample(range(1, count + 1), min(count, 3)))
        ran = self.run(ISOLATED, salt=PER_PROCESS, kills=kills)
        self.check_outcome([ran], f"killed after batches {kills}, failures change:")

    def check_outcome(self, runs: Sequence[Ran], what: str) -> None:
        """Of runs that went on from each other's states: nothing comes twice, and nothing is missing."""
        delivered, lost = Counter[int](), Counter[int]()
        for one in runs:
            delivered += one.delivered
            lost += one.lost
        twice = [one for one, count in delivered.items() if count > 1]
        law(3, not twice, what, f"{len(twice)} delivered twice:", *map(hex, twice[:3]))
        if self.counts or any(one.vague for one in runs):
            return
        if not self.filters_unseen:
            known = set(delivered) | set(lost) | (set(DROPPED) if self.design.has("filter") else set())
            every = self.run(INLINE, failing=False).delivered
            missing = [one for one in every if known.isdisjoint(ancestors(one))]
            law(3, not missing, what, f"{len(missing)} neither delivered nor reported:", *map(hex, missing[:3]))
        if self.simple:
            both = [one for one, count in (delivered + lost).items() if count > 1]
            law(4, not both, what, f"{len(both)} delivered and reported, or reported twice:", *map(hex, both[:3]))

    @property
    def filters_unseen(self) -> bool:
        """Filters of other processes may leave out whole groups, and only these processes know which."""
        groups = self.design.has(*GROUPS, "pack fit", "rebatch", "zip")
        return bool(self.processes) and self.design.has("filter") and groups

    def chain(self, fresh: bool, count: int) -> list[Ran]:
        """Loaders that go on from each other's states."""
        runs: list[Ran] = []
        state = None
        for number in range(6):
            most = self.rng.randint(1, max(1, count // 2)) if number < 5 else None
            ran = self.run(self.layout(), salt=(self.seed, number) if fresh else 0, state=state, most=most)
            self.check_states(ran)
            if not ran.over and ran.states:
                ran.reports = ran.reports[: ran.told[-1]]
            runs.append(ran)
            if ran.over or ran.end is not None:
                break
            state = ran.states[-1]
        return runs

    @property
    def counts(self) -> bool:
        """What is delivered depends on how many came before: what is left out then is not reported."""
        drops = any(step.kind == "batch" and step.flag for step in self.design.all_steps)
        return drops or self.design.has("take", "skip", "epoch", "repeat", "zip", "mix first", "mix cycle")

    @property
    def simple(self) -> bool:
        """Every sample has one outcome: no op makes several of one, and only the last one makes groups."""
        *others, last = [*self.design.steps] or [Step("map", 0)]
        steps = [*others, *(step for part in self.design.parts for step in part.all_steps)]
        if last.kind not in ("batch", "bucket"):
            steps.append(last)
        return all(step.kind in ("map", "tap", "coroutine", "filter", "window", "prefetch") for step in steps)

    # ------------------------------------------------------------------ 5

    def check_states(self, ran: Ran) -> None:
        for number, state in enumerate(ran.states, 1):
            twice = named_twice(opened(state).at)
            law(5, not twice, f"the state after batch {number} names samples twice:", *twice[:3])
            size = len(json.dumps(state))
            small = size < STATE_BYTES or self.window_of_groups
            law(5, small, f"the state after batch {number} takes {size} bytes")

    @property
    def window_of_groups(self) -> bool:
        return self.design.has("window") and self.design.has(*GROUPS, "pack fit", "rebatch", "zip")


# ---------------------------------------------------------------------- ranks


class Worlds(Case):
    """A pipeline with a ``shard()``: law 3, and 4 where it holds, over ranks whose number changes."""

    sharded = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.epochs = 1
        #: states were resumed with another number of ranks
        self.moved = False

    def _check(self) -> bool:
        """As for any case; False, too, if no rank was resumed with another number of ranks."""
        for fresh in (False, True):
            DROPPED.clear()
            found = self.worlds(fresh)
            if found is None:
                return False
            runs, said = found
            self.check_outcome(runs, f"failures {'change' if fresh else 'repeat'}, {said}:")
        return self.moved

    def worlds(self, fresh: bool) -> tuple[list[Ran], str] | None:
        """The runs of all ranks of several worlds, each from the states of the one before; None if it cannot be."""
        states: Any = None
        said: list[str] = []
        runs: list[Ran] = []
        world = 0
        for number in range(4):
            world = self.rng.choice([one for one in range(1, 5) if one != world])
            most = self.rng.randint(1, 4) if number < 3 else None
            said.append(f"{world} ranks for {most} steps")
            salt = (self.seed, number) if fresh else 0
            now = [self.rank(salt, rank, world, states, most) for rank in range(world)]
            ranks = [one for one in now if one is not None and one.end is None]
            if len(ranks) < world:
                return None
            self.moved = self.moved or states is not None
            runs += ranks
            after = [one.last for one in ranks]
            if all(state["epoch"] for state in after):
                break
            states = after if any("rank" in state for state in after) else after[0]
        return runs, ", then ".join(said)

    def rank(self, salt: Any, rank: int, world: int, states: Any, most: int | None) -> Ran | None:
        """One rank; None if the pipeline, or the change of the number of ranks, is refused."""
        try:
            ran = run(self.build(salt, rank=rank, world=world), self.layout(), state=states, most=most)
        except PlanError:
            return None
        except ps.StateMismatch as exc:
            if "go on with as many ranks" in str(exc) or "in step" in str(exc):
                return None
            raise
        if not ran.over:
            ran.reports = ran.reports[: ran.told[-1]] if ran.states else []
        return ran


def first_difference(want: list[Any], got: list[Any]) -> str:
    for number, (one, other) in enumerate(zip(want, got, strict=False)):
        if one != other:
            return f"number {number} is {shown(other)} instead of {shown(one)}"
    longer = max(want, got, key=len)[min(len(want), len(got)) :]
    return f"{len(got)} instead of {len(want)}: {' '.join(map(shown, longer[:3]))}"


def shown(one: Any) -> str:
    if isinstance(one, tuple) and len(one) == 2 and isinstance(one[1], tuple):
        return f"{one[0]}: {' '.join(map(hex, one[1]))}"
    return str(one)


def check_case(seed: Any, processes: Sequence[dict[str, Any]] = (), kind: type[Case] = Case) -> bool:
    """Check one random pipeline; the message of a broken law says which pipeline it is."""
    case = kind(seed, processes)
    try:
        return case.check()
    except Broken as exc:
        raise Broken(f"seed {seed}, epochs={case.epochs}: {case.design}\n  {exc}") from None
    except Exception as exc:
        exc.add_note(f"seed {seed}, epochs={case.epochs}: {case.design}")
        raise


def kind_of(seed: int) -> type[Case]:
    """A third has ranks whose number changes."""
    return Worlds if seed % 3 == 2 else Case


def check_seed(seed: int) -> bool:
    """Check the pipeline of a seed: a tenth of them runs isolated too, and some in worker processes."""
    processes = [ISOLATED] * (seed % 10 == 1) + [PROCESSES] * (seed % 50 == 32)
    return check_case(seed, processes, kind_of(seed))
