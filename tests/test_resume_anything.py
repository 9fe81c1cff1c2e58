"""Guarantee 2: state saved behind any batch continues with exactly the samples that were not delivered.

Hypothesis makes pipelines of all ops over sources of every kind. Each is saved behind every batch on one
layout and gone on with on another, once and again and again; see `penstock.testing.check_resume`.
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.cases import for_each
from tests.random_examples import SEED, examples
from tests.same_stream_functions import (
    drawing,
    failing,
    keep,
    leaving_out,
    looking,
    number,
    several,
    telling,
    total,
)

import penstock as ps
from penstock.errors import PlanError
from penstock.pipeline import Pipeline
from penstock.sources.source import StreamSource
from penstock.testing import check_resume
from penstock.testing.layouts import Layout, assert_same_stream, fitting

# ---------------------------------------------------------------------- sources


class Shards(StreamSource):
    """A stream in parts of these sizes."""

    verb = "shards"

    def __init__(self, *sizes):
        self.sizes = sizes

    def shards(self):
        return range(len(self.sizes))

    def open(self, shard, skip):
        first = sum(self.sizes[:shard])
        return iter(range(first + skip, first + self.sizes[shard]))


def sequence(n):
    return ps.from_sequence(range(n))


def arrays(n):
    return ps.from_arrays(np.arange(n))


def iterable(n):
    return ps.from_iterable(range(n))


def shards(n):
    return Pipeline(Shards(n // 3, 0, n // 2, n - n // 3 - n // 2))


# ---------------------------------------------------------------------- ops


@dataclass(frozen=True)
class Step:
    """One op, in words and as a function from pipeline to pipeline; `loose` ones do not keep the order."""

    text: str
    add: Callable[[Any], Any]
    loose: bool = False
    #: goes by the number of samples, or by who comes first
    strict: bool = False

    def __repr__(self):
        return self.text


@dataclass(frozen=True)
class Chain:
    """A pipeline, and the words that make it."""

    text: str
    pipeline: Any
    loose: bool = False

    def __repr__(self):
        return self.text

    def _repr_pretty_(self, printer, cycle):
        printer.text(self.text)


def row(sample):
    return {"x": np.arange(total(sample) % 7 + 1) + total(sample) % 100}


def lazily(sample):
    for at in range(total(sample) % 4):
        yield total(sample) + 10 * at


def drawn(sample, rng):
    return rng.random() < 0.7


def resampled(pipeline):
    length = len(pipeline)
    return pipeline.resample(np.arange(length) % 3 + 0.5, n=length)


def balanced(pipeline):
    length = len(pipeline)
    return pipeline.resample(balance=np.arange(length) % 3, replace=False)


#: where an op runs: with the one before it, or with workers of its own
PLACES: list[tuple[str, dict[str, Any]]] = [("", {}), ("", {}), (", workers=2", {"workers": 2})]


def ordered_steps(size: int, place: tuple[str, dict[str, Any]]) -> list[Step]:
    words, at = place
    return [
        Step(f".map(number{words})", lambda p: p.map(number, **at)),
        Step(f".map(drawing, rng{words})", lambda p: p.map(drawing, rng=True, **at)),
        Step(f".map(telling, info{words})", lambda p: p.map(telling, info=True, **at), strict=True),
        Step(f".filter(keep{words})", lambda p: p.filter(keep, **at)),
        Step(f".filter(drawn, rng{words})", lambda p: p.filter(drawn, rng=True, **at)),
        Step(f".flat_map(several{words})", lambda p: p.flat_map(several, **at)),
        Step(f".flat_map(lazily{words})", lambda p: p.flat_map(lazily, **at)),
        Step(f".map(leaving_out{words})", lambda p: p.map(leaving_out, **at)),
        Step(f".map(failing, skip{words})", lambda p: p.map(failing, on_error="skip", **at)),
        Step(f".tap(looking{words})", lambda p: p.tap(looking, **at)),
        Step(f".flat_map(lazily, interleave={size}{words})", lambda p: p.flat_map(lazily, interleave=size, **at)),
        Step(f".prefetch({size})", lambda p: p.prefetch(size)),
        Step(f".batch({size}).unbatch()", lambda p: p.batch(size, collate=list).unbatch()),
        Step(f".shuffle(window={size})", lambda p: p.shuffle(window=size)),
        Step(f".batch({size})", lambda p: p.batch(size, collate=list)),
        Step(f".bucket(size={size})", lambda p: p.map(row).bucket("x", [2, 4], size=size)),
        Step(f".pack({size + 2})", lambda p: p.map(row).pack(size + 2, key="x")),
    ]


def strict_steps(size: int, place: tuple[str, dict[str, Any]]) -> list[Step]:
    return [
        Step(f".map(number).batch({size}, plain)", lambda p: p.map(number).batch(size), strict=True),
        Step(f".batch({size}, drop)", lambda p: p.batch(size, drop_last=True, collate=list), strict=True),
        Step(f".pack({size + 2}, fit)", lambda p: p.map(row).pack(size + 2, key="x", how="fit", long="truncate")),
        Step(f".shuffle(window={3 * size})", lambda p: p.shuffle(window=3 * size)),
        Step(f".take({2 * size})", lambda p: p.take(2 * size), strict=True),
        Step(f".skip({size})", lambda p: p.skip(size), strict=True),
        Step(f".repeat({size % 3})", lambda p: p.repeat(size % 3)),
        Step(f".repeat().take({4 * size})", lambda p: p.repeat().take(4 * size), strict=True),
        Step(f".epoch({2 * size})", lambda p: p.epoch(2 * size), strict=True),
        Step(".cache()", lambda p: p.cache(), strict=True),
        Step(".shuffle()", lambda p: p.shuffle()),
        Step(".resample(weights)", resampled),
        Step(".resample(balance)", balanced),
    ]


def loose_steps(size: int, place: tuple[str, dict[str, Any]]) -> list[Step]:
    workers = 2 + size % 2
    loose: dict[str, Any] = {"ordered": False, "workers": workers}
    return [
        Step(f".map(number, loose {workers})", lambda p: p.map(number, **loose), loose=True),
        Step(f".filter(keep, loose {workers})", lambda p: p.filter(keep, **loose), loose=True),
        Step(f".flat_map(lazily, loose {workers})", lambda p: p.flat_map(lazily, **loose), loose=True),
        Step(f".map(leaving_out, loose {workers})", lambda p: p.map(leaving_out, **loose), loose=True),
    ]


def steps(*, loose: bool, strict: bool):
    def choices(drawn):
        size, place = drawn
        found = ordered_steps(size, place) + strict_steps(size, place)
        if not strict:
            found = [step for step in ordered_steps(size, place) if not step.strict]
        return st.sampled_from(found + (2 * loose_steps(size, place) if loose else []))

    return st.tuples(st.integers(1, 5), st.sampled_from(PLACES)).flatmap(choices)


GROUPED = tuple(f".batch({size})" for size in range(1, 6))


@st.composite
def chains(draw, longest=5, join=True, loose=False):
    """A chain; with `loose`, one with an op that does not keep the order, behind which nothing counts."""
    verb = draw(st.sampled_from(["", "", "", "zip", "concat", "first", "all", "cycle"])) if join else ""
    if verb:
        parts = draw(st.lists(chains(longest=2, join=draw(st.integers(0, 9)) == 0), min_size=1, max_size=3))
        words = ", ".join(map(repr, parts))
        pipelines = [part.pipeline for part in parts]
        if verb in ("zip", "concat"):
            chain = Chain(f"{verb}({words})", getattr(ps, verb)(*pipelines))
        else:
            mixed = {name: (one, weight) for name, weight, one in zip("abc", (1, 2, 3), pipelines, strict=False)}
            assume(verb != "cycle" or ".epoch(" not in words)
            chain = Chain(f"mix({verb}, {words})", ps.mix(mixed, stop=verb))
    else:
        make = draw(st.sampled_from([sequence, arrays, iterable, shards]))
        n = draw(st.integers(0, 14))
        chain = Chain(f"{make.__name__}({n})", make(n))
    is_loose = False
    for _ in range(draw(st.integers(1 if loose else 0, longest))):
        if is_loose and chain.text.endswith(GROUPED):
            break  # who is in a batch with whom is anybody's guess
        step = draw(steps(loose=loose, strict=not is_loose))
        # Passes of passes without a number have numbers that are too large.
        assume(".repeat()" not in step.text or ".repeat()" not in chain.text)
        try:
            made = step.add(chain.pipeline)
        except (PlanError, TypeError, ps.PenstockError):
            assume(False)
        is_loose |= step.loose
        chain = Chain(chain.text + step.text, made, is_loose)
    assume(is_loose or not loose)
    return chain


def arguments(layout: Layout, pipeline: Any) -> dict[str, Any]:
    """`layout` as arguments of a loader."""
    if layout.on == "inline":
        return {"inline": True}
    return {"workers": layout.workers, "memory": fitting(pipeline, layout.memory), "timeout_s": 60}


LAYOUTS = [
    Layout("inline"),
    Layout("thread", 1),
    Layout("thread", 2),
    Layout("thread", 3),
    Layout("thread", 2, memory=1),
]


def runs(pipeline: Any) -> bool:
    """Whether the pipeline can be run at all: some combinations are refused, most of them when planned."""
    try:
        with pipeline.loader(seed=3, inline=True) as loader:
            for _ in range(3):  # a resume behind the last of two epochs begins the third
                if sum(1 for _ in loader) > 400:
                    return False
    except PlanError:
        return False
    except ValueError as exc:  # rows of different lengths, say, do not make an array
        return "bad" in str(exc)
    return True


#: behind each n-th batch only, with another n per example, in `make test`; behind every batch in random runs
EVERY = st.integers(3, 6) if SEED is None else st.just(1)


@examples(8, shrink=False)
@given(chains(), st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS), EVERY)
def test_any_pipeline_is_resumed_exactly_behind_every_batch(chain, saved_on, restored_on, every):
    check_chain(chain, saved_on, restored_on, every)


def check_chain(chain, saved_on, restored_on, every=1):
    pipeline = chain.pipeline
    assume(runs(pipeline))
    try:
        check_resume(
            pipeline,
            seed=3,
            every=every,
            saved_on=arguments(saved_on, pipeline),
            restored_on=arguments(restored_on, pipeline),
        )
    except AssertionError as exc:
        raise AssertionError(f"{chain!r}, saved {saved_on}, restored {restored_on}: {exc}") from None


@examples(10, shrink=False)
@given(chains())
def test_any_pipeline_gives_the_same_stream_on_every_layout(chain):
    check_same(chain)


def check_same(chain):
    pipeline = chain.pipeline
    assume(runs(pipeline))
    first, *others = [*LAYOUTS, Layout("thread", 3, order=1), Layout("thread", 2, keep=2)]
    expected = first.run(pipeline, seed=3)
    for layout in others:
        assert_same_stream(expected, layout.run(pipeline, seed=3), f"{chain!r} {layout}")


#: pipelines that have gone wrong
KNOWN: dict[str, Any] = {
    "skips before a window, in a stage before the last": lambda: (
        sequence(20).map(leaving_out, workers=2).map(number, workers=3).shuffle(window=5)
    ),
    "several of several, unordered": lambda: (
        sequence(12).flat_map(lazily, workers=2, ordered=False).flat_map(lazily, workers=2, ordered=False)
    ),
    "what alternates, alternates again": lambda: (
        sequence(10).flat_map(lazily, interleave=3).flat_map(lazily, interleave=2)
    ),
    "what alternates is held in buckets": lambda: (
        iterable(9).flat_map(lazily, interleave=4).map(row).bucket("x", [2, 4], size=5)
    ),
    "an unordered map before a window": lambda: (
        sequence(20).map(number, workers=3, ordered=False).shuffle(window=4)
    ),
    "batches of one, taken apart": lambda: arrays(8).map(number).batch(1).flat_map(lazily, workers=2),
    "residents in a part of a stream that is not open yet": lambda: (
        shards(7).flat_map(lazily).map(row).pack(6, key="x", how="fit", long="truncate")
    ),
    "losses at the end of a pass": lambda: ps.mix(
        {"a": (shards(10).map(failing, on_error="skip"), 1), "b": (arrays(4).map(failing, on_error="skip"), 2)},
        stop="cycle",
    ),
    "losses in what goes on from epoch to epoch": lambda: (
        iterable(9).map(leaving_out).batch(2, collate=list).unbatch().shuffle(window=1).epoch(4)
    ),
    "a cache made again from its start": lambda: (
        ps.concat(iterable(6).batch(2).map(row).pack(5, key="x"), sequence(6).flat_map(lazily))
        .flat_map(several)
        .cache()
    ),
}


@for_each("name", KNOWN)
def test_what_has_gone_wrong_does_not_again(name):
    check_resume(KNOWN[name](), seed=3, every=5, saved_on={"workers": 2}, restored_on={"inline": True})


@pytest.mark.soak
@for_each("name", KNOWN)
@for_each("restored_on", [{"workers": 1}, {"workers": 3}, {"inline": True}])
def test_what_has_gone_wrong_does_not_again_after_any_batch_on_any_layout(name, restored_on):
    check_resume(KNOWN[name](), seed=3, saved_on={"workers": 2}, restored_on=restored_on | {})


PROCESSES = {"on": "process", "workers": 2}
ISOLATED = {"isolate": True}
HARD = ["skips before a window, in a stage before the last", "losses at the end of a pass"]


@pytest.mark.usefixtures("warm_processes")
@for_each("name, on", [(HARD[0], PROCESSES), (HARD[1], ISOLATED)])
def test_processes_resume_what_threads_have_saved_and_the_other_way_round(name, on):
    check_resume(KNOWN[name](), seed=3, every=8, saved_on=on)
    check_resume(KNOWN[name](), seed=3, every=8, restored_on=on)


@pytest.mark.soak
@pytest.mark.usefixtures("warm_processes")
@for_each("name", HARD)
@for_each("on", [PROCESSES, ISOLATED])
def test_processes_resume_anywhere_what_threads_have_saved_and_the_other_way_round(name, on):
    check_resume(KNOWN[name](), seed=3, saved_on=on)
    check_resume(KNOWN[name](), seed=3, restored_on=on)


# ---------------------------------------------------------------------- ops that do not keep the order


def leaves(batch: Any) -> list[Any]:
    """The numbers in a batch, however they are grouped."""
    if isinstance(batch, dict):
        return [leaf for value in batch.values() for leaf in leaves(value)]
    if isinstance(batch, (list, tuple)):
        return [leaf for one in batch for leaf in leaves(one)]
    return batch.ravel().tolist() if isinstance(batch, np.ndarray) else [int(batch)]


@examples(6, shrink=False)
@given(chains(loose=True), st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS))
def test_where_the_order_is_not_kept_nothing_is_lost_or_doubled_by_a_resume(chain, saved_on, restored_on):
    check_loose(chain, saved_on, restored_on)


def check_loose(chain, saved_on, restored_on):
    pipeline = chain.pipeline
    assume(runs(pipeline))
    want = Counter()
    with pipeline.loader(seed=3, inline=True) as loader:
        for batch in loader:
            want.update(leaves(batch))
    delivered = Counter()
    state = None
    for _ in range(500):
        on = restored_on if state is not None else saved_on
        with pipeline.loader(seed=3, state=state, **arguments(on, pipeline)) as loader:
            for count, batch in enumerate(loader, 1):
                if loader.epoch:
                    break
                delivered.update(leaves(batch))
                if count == 3:
                    break
            text = json.dumps(loader.state_dict())
            assert len(text) < 10_000
            state = json.loads(text)
            if loader.epoch or state["epoch"]:
                break
    missing, extra = dict(want - delivered), dict(delivered - want)
    assert (missing, extra) == ({}, {}), f"{chain!r}, {saved_on}, {restored_on}: missing {missing}, extra {extra}"
