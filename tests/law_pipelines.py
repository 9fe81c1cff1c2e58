"""Random pipelines in plain data, for tests/test_laws.py. Worker processes import this file.

A *design* is plain data: it can be printed, and built into a pipeline as often as a test likes. Every sample is
a tuple of *atoms*. An atom is a number that names a sample of a source in one of its passes, and the way from
there: the sub-index of every op that made several of one. Whatever an op makes of samples, their atoms are still
in it, so what was delivered is known exactly. Exceptions name the atoms of the sample that failed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

import numpy as np

import penstock as ps
from penstock.pipeline import Pipeline
from penstock.sources.source import StreamSource

# ---------------------------------------------------------------------- atoms

#: sub-indices of an atom, three bits each; one more than the sub-index, so that a way has no zero
_DIGITS = 5


def atom(source: int, epoch: int, value: int) -> int:
    return ((epoch << 16) | (source << 8) | value) << (3 * _DIGITS)


def further(one: int, sub: int) -> int:
    """The atom of output `sub` that was made of `one`."""
    way = one & ((1 << 3 * _DIGITS) - 1)
    return (one - way) | (way << 3) | (sub + 1)


def ancestors(one: int) -> list[int]:
    """The atom itself, and all that it was made of."""
    way = one & ((1 << 3 * _DIGITS) - 1)
    base, out = one - way, [one]
    while way:
        way >>= 3
        out.append(base | way)
    return out


def atoms(sample: Any) -> tuple[int, ...]:
    """The atoms of whatever was delivered."""
    if isinstance(sample, dict):
        return atoms(sample["x"])
    if isinstance(sample, (list, tuple)):
        return tuple(one for item in sample for one in atoms(item))
    return tuple(int(one) for one in np.ravel(sample) if one)


def chance(*what: Any) -> float:
    return crc32(repr(what).encode()) / 2**32


# ---------------------------------------------------------------------- functions of the user's

#: what filters have left out in this process
DROPPED: list[int] = []


@dataclass(frozen=True)
class Tagged:
    """Makes an atom of a record."""

    source: int

    def __call__(self, record: Any, info: Any) -> tuple[int, ...]:
        return (atom(self.source, info.epoch, int(record)),)


@dataclass(frozen=True)
class Failing:
    """Passes samples on and fails for some: always for the same ones, or with `salt` for others in every run."""

    op: int
    rate: float
    how: str
    salt: Any = 0

    def __call__(self, sample: Any) -> Any:
        if chance("fails", self.op, atoms(sample), self.salt) < self.rate:
            raise ps.Skip(repr(atoms(sample))) if self.how == "Skip" else ValueError(atoms(sample))
        return sample


@dataclass(frozen=True)
class Kept:
    """A filter; every process keeps a list of what it has left out."""

    op: int

    def __call__(self, sample: Any) -> bool:
        keep = chance("kept", self.op, atoms(sample)) < 0.75
        if not keep:
            DROPPED.extend(atoms(sample))
        return keep


@dataclass(frozen=True)
class Several:
    """None to three samples of one. How many depends on each atom, so that groups make no difference."""

    op: int
    rate: float = 0.0
    how: str = ""
    lazy: bool = False
    salt: Any = 0

    def _outputs(self, sample: Any) -> list[Any]:
        counts = {one: int(4 * chance("several", self.op, one)) for one in atoms(sample)}
        subs = range(max(counts.values(), default=0))
        return [tuple(further(one, sub) for one, count in counts.items() if count > sub) for sub in subs]

    def __call__(self, sample: Any) -> Any:
        found = self._outputs(sample)
        fails = chance("fails", self.op, atoms(sample), self.salt) < self.rate
        if not self.lazy:
            if fails:
                raise ValueError(atoms(sample))
            return found
        return self._one_by_one(sample, found, fails)

    def _one_by_one(self, sample: Any, found: list[Any], fails: bool) -> Any:
        stop = int(chance("stops", self.op, atoms(sample)) * (len(found) + 1))
        for number, one in enumerate(found):
            if fails and number == stop:
                raise ValueError(atoms(sample))
            yield one
        if fails and stop >= len(found):
            raise ValueError(atoms(sample))


@dataclass(frozen=True)
class Tokens:
    """The atoms as an array, each in one to three pieces: for pack."""

    op: int

    def __call__(self, sample: Any) -> dict[str, Any]:
        pieces = [further(one, sub) for one in atoms(sample) for sub in range(1 + int(3 * chance(self.op, one)))]
        return {"x": np.array(pieces, np.int64)}


def as_array(sample: Any) -> dict[str, Any]:
    return {"x": np.array(atoms(sample), np.int64)}


def rarely_long(sample: dict[str, Any]) -> int:
    return 9 if chance("rare", atoms(sample)) < 0.03 else len(sample["x"]) % 2


def same(sample: Any) -> Any:
    return sample


def as_list(batch: list[Any]) -> list[Any]:
    return list(batch)


class Shards(StreamSource):
    """A stream in parts of these sizes."""

    verb = "shards"

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes

    def shards(self) -> Any:
        return range(len(self.sizes))

    def open(self, shard: int, skip: int) -> Any:
        first = sum(self.sizes[:shard])
        return iter(range(first + skip, first + self.sizes[shard]))


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


SOURCES = ["sequence", "arrays", "iterable", "shards"]
GROUPS = ("batch", "bucket", "pack")
#: ops after which it depends on counts or on who comes first what is delivered
COUNTING = ("take", "skip", "epoch", "zip", "mix first", "mix cycle")


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


# ---------------------------------------------------------------------- building


@dataclass
class Build:
    """Makes a pipeline of a design. With another `salt` other samples fail; without `failing`, none."""

    salt: Any = 0
    failing: bool = True
    rank: int = 0
    world: int = 1
    _last: Any = field(default=None, repr=False)

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
        if "shuffled" in design.flag:
            source = source.shuffle()
        if "sharded" in design.flag:
            source = source.shard(self.rank, self.world, equal=False)
        if "cached" in design.flag:
            source = source.map(same).cache()
        return source.map(Tagged(design.number), info=True)

    def _step(self, p: Any, step: Step, last: bool) -> Any:
        at: dict[str, Any] = {} if step.workers is None else {"workers": step.workers}
        if not step.ordered:
            at["ordered"] = False
        rate, number, size = step.rate if self.failing else 0.0, step.number, step.size
        errors: dict[str, Any] = {}
        if rate and step.how == "skip":
            errors["on_error"] = "skip"
        if rate and step.how == "Retry":
            errors["on_error"] = ps.Retry(2, backoff_s=0, then="skip")
        failing = Failing(number, rate, step.how, self.salt)
        kind = step.kind
        if kind == "map":
            return p.map(failing, **at, **errors)
        if kind == "filter":
            return p.filter(Kept(number), **at)
        if kind in ("flat_map", "interleave"):
            if rate and step.how == "Skip":
                errors["on_error"] = "skip"
            more = {"interleave": size} if kind == "interleave" else {}
            return p.flat_map(Several(number, rate, step.how, step.flag, self.salt), **more, **at, **errors)
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


__all__ = ["DROPPED", "Build", "Design", "Draw", "Step", "ancestors", "atom", "atoms"]
