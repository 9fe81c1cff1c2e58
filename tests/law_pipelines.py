"""Random pipelines in plain data, for tests/test_laws.py.

A *design* is plain data: it can be printed, and built into a pipeline as often as a test likes. It has every op but
`reservoir`, whose states are approximate. `law_functions` has what its ops call.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tests.law_functions import (
    Failing,
    FailingAtFirst,
    FailingByDraw,
    FailingCoroutine,
    Kept,
    Late,
    LateCoroutine,
    Several,
    Shards,
    Tagged,
    Tokens,
    as_array,
    as_list,
    atoms,
    chance,
    rarely_long,
    same,
)

import penstock as ps
from penstock.pipeline import Pipeline

# ---------------------------------------------------------------------- designs


@dataclass(frozen=True)
class Step:
    """An op of a design."""

    kind: str
    number: int
    size: int = 0
    rate: float = 0.0
    how: str = ""
    flag: bool = False
    #: `workers=` and `ordered=`
    workers: int | None = None
    ordered: bool = True

    def __str__(self) -> str:
        said = [self.kind]
        said += [f"{name}={value}" for name in ("size", "how", "flag") if (value := getattr(self, name))]
        said += [f"fails {self.rate:.0%}"] if self.rate else []
        said += [f"workers={self.workers}"] if self.workers else []
        said += ["unordered"] if not self.ordered else []
        return f"{' '.join(said)} #{self.number}"


@dataclass(frozen=True)
class Design:
    """A tree: a source or several designs put together, and the ops behind that."""

    kind: str
    number: int
    n: int = 0
    parts: tuple[Design, ...] = ()
    steps: tuple[Step, ...] = ()
    flag: str = ""

    def __str__(self) -> str:
        head = f"{self.kind}{self.flag and ' ' + self.flag}"
        inside = f"({self.n})" if not self.parts else "(" + "; ".join(map(str, self.parts)) + ")"
        return " | ".join([f"{head}{inside} #{self.number}", *map(str, self.steps)])

    def walk(self) -> list[Design]:
        return [self, *(one for part in self.parts for one in part.walk())]

    def without_caches(self) -> Design:
        """What is served from a cache in a second pass would have the atoms of the first."""
        steps = tuple(step for step in self.steps if step.kind != "cache")
        return replace(self, steps=steps, parts=tuple(part.without_caches() for part in self.parts))

    @property
    def all_steps(self) -> list[Step]:
        return [step for one in self.walk() for step in one.steps]

    def has(self, *kinds: str) -> bool:
        return bool({one.kind for one in self.walk()} | {step.kind for step in self.all_steps}) and any(
            kind in {one.kind for one in self.walk()} | {step.kind for step in self.all_steps} for kind in kinds
        )

    @property
    def ordered(self) -> bool:
        return all(step.ordered for step in self.all_steps)

    @property
    def late(self) -> bool:
        """Calls of it are late: then any call may be, on a busy machine."""
        return any(step.how == "late" for step in self.all_steps)


SOURCES = ["sequence", "arrays", "iterable", "shards"]
GROUPS = ("batch", "bucket", "pack")
#: for how long a call may take where some never return
LATE_S = 0.1


class Draw:
    """Draws a design."""

    def __init__(self, seed: Any, sharded: bool = False, steps: int = 4) -> None:
        self.rng = random.Random(repr(seed))
        self.numbers = 0
        self.sharded = sharded
        self.most = steps
        self.rate = self.rng.choice([0.0, 0.1, 0.1, 0.3])
        self.loose = self.rng.random() < 0.25

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def design(self, depth: int | None = None, ways: int = 4, single: bool = True) -> Design:
        """`ways`: how many more ops may make several of one; `single`: it is run through once."""
        rng = self.rng
        depth = rng.choice([0, 0, 0, 1, 1, 2]) if depth is None else depth
        number = self.number()
        if depth == 0 or self.sharded:
            kinds = SOURCES[:2] if self.sharded else SOURCES
            design = Design(
                rng.choice(kinds), number, rng.choice([0, 1, *[5] * 3, *[12] * 6, *[20] * 5, *[30] * 3])
            )
            left = ways
        else:
            kind = rng.choice(["mix first", "mix all", "mix cycle", "zip", "concat", "concat"])
            inner = min(2, ways)
            parts = tuple(
                self.design(depth - 1, inner, single and kind != "mix cycle") for _ in range(rng.randint(1, 3))
            )
            design, left = Design(kind, number, parts=parts), ways - inner
        flag = "shuffled" if design.kind in SOURCES[:2] and rng.random() < 0.5 else ""
        steps: list[Step] = []
        if design.kind in SOURCES and rng.random() < 0.1:
            flag += " cached"
        if self.sharded:
            flag += " sharded"
        for _ in range(rng.randint(0 if depth or design.parts else 1, self.most)):
            step = self.step(left, single, steps)
            left -= step.kind in ("flat_map", "interleave", "pack", "pack fit")
            steps.append(step)
        design = replace(design, steps=tuple(steps), flag=flag.strip())
        return design.without_caches() if any(step.kind in ("repeat", "epoch") for step in steps) else design

    def step(self, ways: int, single: bool, before: list[Step]) -> Step:
        rng = self.rng
        kinds = ["map", "map", "map", "filter", "window", "window", "batch", "bucket", "rebatch", "rebatch", "take"]
        kinds += ["skip", "prefetch"]
        if ways > 0:
            kinds += ["flat_map", "flat_map", "interleave", "pack", "pack fit"]
        if not self.sharded:
            kinds += ["repeat", "epoch"]
        if single and not self.sharded:
            kinds += ["cache"]
        kind = rng.choice(kinds)
        step = Step(kind, self.number(), size=rng.randint(1, 6))
        if rng.random() < 0.4:
            step = replace(step, workers=rng.choice([1, 2, 3]))
        if kind in ("map", "flat_map", "interleave", "rebatch"):
            step = replace(
                step,
                rate=rng.choice([0.0, self.rate, self.rate]),
                how=rng.choice(["skip", "skip", "Retry", "Skip"]),
            )
        if kind in ("map", "filter", "flat_map") and self.loose and rng.random() < 0.5:
            step = replace(step, ordered=False, workers=rng.choice([2, 3]))
        if kind == "repeat":
            step = replace(step, size=rng.randint(1, 3))
        if kind in ("window", "take"):
            step = replace(step, size=rng.choice([1, 2, 5, 9, 20]))
        if kind in ("pack", "pack fit"):
            step = replace(step, size=rng.choice([3, 8, 13]))
        return replace(step, flag=rng.random() < 0.4)


#: how many of the pipelines are `chained`
_CHAINED = 0.08


def drawn(seed: Any, sharded: bool = False) -> Design:
    """The random pipeline of a seed."""
    rng = random.Random(f"chained {seed!r}")
    return varied(chained(rng, sharded) if rng.random() < _CHAINED else Draw(seed, sharded).design(), seed)


def chained(rng: random.Random, sharded: bool) -> Design:
    """Stages that lead straight from an indexed source to a batch, which the last of them makes."""
    draw = Draw(rng.random(), sharded, steps=2)
    flag = rng.choice(["", "shuffled", "shuffled", "cached"]) + (" sharded" if sharded else "")
    design = Design(rng.choice(SOURCES[:2]), draw.number(), rng.choice([1, 7, 12, 20, 20, 30]), flag=flag.strip())
    rate = rng.choice([0.0, 0.05, 0.05, 0.2])
    steps: list[Step] = []
    for workers in rng.sample([1, 2, 3], rng.choice([2, 2, 3])):
        how = rng.choice(["Skip"] * 5 + ["skip"])
        steps.append(Step("map", draw.number(), rate=rng.choice([0.0, rate]), how=how, workers=workers))
        if rng.random() < 0.3:
            steps.append(Step("prefetch", draw.number(), size=rng.randint(1, 6)))
    kind = rng.choice(["batch", "batch", "rebatch"])
    steps.append(Step(kind, draw.number(), size=rng.randint(2, 6), flag=rng.random() < 0.3))
    steps += [draw.step(1, True, steps) for _ in range(rng.choice([0, 0, 1, 2]))]
    return replace(design, steps=tuple(steps))


#: what becomes of some maps: the same, with another op, with another kind of function or with another failure
_MAPS = ["map"] * 6 + ["tap", "coroutine", "draws", "at first"]
_LATE = 0.04


def varied(design: Design, seed: Any) -> Design:
    """`design` with rarer ops, functions and failures in some places."""
    rng = random.Random(f"varied {seed!r}")
    late = rng.random() < _LATE
    numbers = [step.number for step in design.all_steps if step.kind == "map" and step.ordered]
    chosen = rng.choice(numbers) if late and numbers else None

    def step(one: Step) -> Step:
        if one.number == chosen:
            return replace(one, how="late", rate=0.06, workers=one.workers or 2)
        if one.kind == "filter" and rng.random() < 0.3:
            return replace(one, how="skip", rate=0.1)
        kind = rng.choice(_MAPS) if one.kind == "map" else ""
        if kind in ("tap", "coroutine"):
            return replace(one, kind=kind)
        return replace(one, how=kind) if kind in ("draws", "at first") else one

    def tree(one: Design) -> Design:
        flag = one.flag
        if one.kind in SOURCES[:2] and rng.random() < 0.1:
            flag += " drawn"
        if rng.random() < 0.5:
            flag = flag.replace("cached", "stored")
        parts = tuple(map(tree, one.parts))
        return replace(one, parts=parts, steps=tuple(map(step, one.steps)), flag=flag.strip())

    return tree(design)


# ---------------------------------------------------------------------- building


@dataclass
class Build:
    """Makes a pipeline of a design. With another `salt` other samples fail; without `failing`, none."""

    salt: Any = 0
    failing: bool = True
    rank: int = 0
    world: int = 1
    #: where caches keep samples
    folder: str = ""

    def __call__(self, design: Design) -> Pipeline[Any]:
        parts = [self(one) for one in design.parts]
        pipeline: Any = self._feed(design, parts)
        for number, step in enumerate(design.steps):
            last = number == len(design.steps) - 1
            pipeline = self._step(pipeline, step, last)
        return pipeline

    def _feed(self, design: Design, parts: list[Any]) -> Any:
        kind, n = design.kind, design.n
        if kind.startswith("mix"):
            named = {name: (part, weight) for name, weight, part in zip("abc", (1, 2, 3), parts, strict=False)}
            return ps.mix(named, stop=kind.split()[1]).map(atoms)  # type: ignore[arg-type]
        if kind in ("zip", "concat"):
            return getattr(ps, kind)(*parts).map(atoms)
        source: Any
        if kind == "sequence":
            source = ps.from_sequence(range(n))
        elif kind == "arrays":
            source = ps.from_arrays(np.arange(n))
        elif kind == "iterable":
            source = ps.from_iterable(range(n))
        else:
            source = Pipeline(Shards(n // 3, 0, n // 2, n - n // 3 - n // 2))
        if "drawn" in design.flag:
            source = source.resample([1 + chance("weight", number) for number in range(n)], replace=False)
        if "shuffled" in design.flag:
            source = source.shuffle()
        if "sharded" in design.flag:
            source = source.shard(self.rank, self.world, equal=False)
        if "cached" in design.flag or "stored" in design.flag:
            indexed = kind in SOURCES[:2] and "sharded" not in design.flag
            source = source.map(same).cache((indexed and "stored" in design.flag and self.folder) or None)
        return source.map(Tagged(design.number), info=True)

    def _step(self, p: Any, step: Step, last: bool) -> Any:
        at: dict[str, Any] = {} if step.workers is None else {"workers": step.workers}
        if not step.ordered:
            at["ordered"] = False
        rate, number, size = step.rate if self.failing else 0.0, step.number, step.size
        errors: dict[str, Any] = {}
        if rate and step.how in ("skip", "draws", "late"):
            errors["on_error"] = "skip"
        if rate and step.how in ("Retry", "at first"):
            errors["on_error"] = ps.Retry(2, backoff_s=0, then="skip")
        kind = step.kind
        if kind in ("map", "tap", "coroutine"):
            return self._call(p, step, rate, {**at, **errors})
        failing = Failing(number, rate, step.how, self.salt)
        if kind == "filter":
            return p.filter(Kept(number, rate, self.salt), **at, **errors)
        if kind in ("flat_map", "interleave"):
            if rate and step.how == "Skip":
                errors["on_error"] = "skip"
            more = {"interleave": size} if kind == "interleave" else {}
            several = Several(number, rate, step.how, step.flag, self.salt)
            if kind == "flat_map" and number % 6 == 2 and not step.flag:
                return p.map(several, **at, **errors).unbatch()  # these samples had no place before their batch
            return p.flat_map(several, **more, **at, **errors)
        if kind == "window":
            return p.shuffle(window=size)
        if kind == "rebatch":
            grouped = p.batch(size, collate=as_list)
            return (grouped.map(failing, **at, **errors) if step.flag else grouped).unbatch()
        if kind == "batch":
            made = p.batch(size, collate=as_list, drop_last=step.flag)
        elif kind == "bucket":
            by = rarely_long if step.flag else "x"
            made = p.map(as_array).bucket(by, [1, 2] if not step.flag else [0, 1], size=size)
        elif kind in ("pack", "pack fit"):
            how = "fit" if kind == "pack fit" else "concat"
            made = p.map(Tokens(number)).pack(size, key="x", how=how)
        else:
            argument = {
                "take": (size,),
                "skip": (size,),
                "repeat": (size,),
                "epoch": (4 * size,),
                "cache": (),
                "prefetch": (size,),
            }
            return getattr(p, kind)(*argument[kind])
        return made if last else made.map(atoms, **at)

    def _call(self, p: Any, step: Step, rate: float, at: dict[str, Any]) -> Any:
        """An op that passes on every sample for which its function does not fail."""
        given = step.number, rate, step.how, self.salt
        if step.how == "late":
            return p.map((LateCoroutine if step.flag else Late)(*given), info=True, timeout_s=LATE_S, **at)
        if step.how == "draws":
            return p.map(FailingByDraw(*given), rng=True, **at)
        if step.kind == "coroutine":
            return p.map(FailingCoroutine(*given), **at)
        function = FailingAtFirst(*given) if step.how == "at first" else Failing(*given)
        return p.tap(function, **at) if step.kind == "tap" else p.map(function, **at)
