"""Guarantee 1: the stream depends on the pipeline and the seed, on nothing else.

Hypothesis makes pipelines of all ops. Each is run inline, on threads, on coroutines, on processes
and on threads and processes mixed, with several numbers of workers and memory bounds, over two
epochs; and, unless it is random, compared with a model of the same pipeline in plain Python generators.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.cases import for_each
from tests.random_examples import examples, some_of
from tests.same_stream_functions import (
    drawing,
    ending,
    failing,
    keep,
    leaving_out,
    looking,
    number,
    one_by_one,
    several,
    telling,
    total,
)

import penstock as ps
from penstock.testing.layouts import fitting
from penstock.testing.same import assert_same

EPOCHS = 2

pytestmark = pytest.mark.usefixtures("warm_processes")


# ---------------------------------------------------------------------- ops: how to build, what to expect

Stream = Callable[[int], Iterator[Any]]


@dataclass(frozen=True)
class Layout:
    on: str = "inline"
    workers: int = 1
    memory: Any = None

    def placed(self, fn: Any, own: bool) -> dict[str, Any]:
        """Arguments of an op that is called, and the function as this layout wants it."""
        name = fn.__name__
        if own and (self.on == "process" or (self.on == "mixed" and len(name) % 2)):
            return {"fn": fn, "name": name, "on": "process", "workers": self.workers}
        if self.on != "async":
            return {"fn": fn, "name": name, "workers": self.workers if own and self.on != "inline" else None}

        async def coroutine(*args):
            result = fn(*args)
            return list(result) if isinstance(result, Iterator) else result

        return {"fn": coroutine, "name": name, "workers": self.workers if own else None}


@dataclass(frozen=True)
class Step:
    """One op of a chain: `build` adds it to a pipeline, `model` is what it does to a stream."""

    text: str
    build: Callable[[Any, Layout], Any]
    model: Callable[[Stream], Stream] | None
    kind: Any
    traits: frozenset[str] = frozenset()

    def __repr__(self):
        return self.text


def each(change: Callable[[Iterator[Any]], Iterator[Any]]) -> Callable[[Stream], Stream]:
    return lambda upstream: lambda epoch: change(upstream(epoch))


def called(verb, fn, own, kind, model, *traits, **options):
    def build(pipeline, layout):
        return getattr(pipeline, verb)(**layout.placed(fn, own), **options)

    words = "".join(f", {name}={value!r}" for name, value in options.items())
    return Step(
        f".{verb}({fn.__name__}{', own' if own else ''}{words})",
        build,
        model and each(model),
        kind,
        frozenset(traits),
    )


def simple(verb, *args, model, kind, traits=(), **options):
    words = ", ".join([*map(str, args), *(f"{name}={value}" for name, value in options.items())])
    return Step(
        f".{verb}({words})",
        lambda pipeline, layout: getattr(pipeline, verb)(*args, **options),
        model,
        kind,
        frozenset(traits),
    )


def in_batches(size, drop_last, make):
    def batches(samples):
        samples = iter(samples)
        while group := list(islice(samples, size)):
            if len(group) == size or not drop_last:
                yield make(group)

    return batches


def alternating(fn, width):
    """The outputs of `width` inputs in turn; an input that has ended makes room for the next."""

    def raising(exc):
        raise exc
        yield

    def inputs(samples):
        try:
            for sample in samples:
                yield iter(fn(sample))
        except KeyError as exc:
            yield raising(exc)  # has a turn like any other input

    def outputs(samples):
        waiting, at = inputs(samples), 0
        turns = list(islice(waiting, width))
        while turns:
            at %= len(turns)
            try:
                yield next(turns[at])
                at += 1
            except StopIteration:
                following = next(waiting, None)
                turns[at : at + 1] = [] if following is None else [following]

    return outputs


def repeated(times):
    def model(upstream):
        def stream(epoch):
            for turn in range(times):
                yield from upstream(epoch * times + turn)

        return stream

    return model


def endless(upstream):
    """Only ever behind take(): passes are far from those of other epochs, and all alike."""

    def stream(epoch):
        while True:
            some = False
            for sample in upstream(epoch):
                some = True
                yield sample
            if not some:
                return

    return stream


def stretches(n):
    def model(upstream):
        def for_ever():
            turn = 0
            while some := list(upstream(turn)):
                yield from some
                turn += 1

        return lambda epoch: islice(for_ever(), epoch * n, (epoch + 1) * n)

    return model


def without(bad, then=number):
    return lambda samples: (then(sample) for sample in samples if total(sample) % 5 != bad)


@st.composite
def steps(draw, kind, used, first):
    """A step that fits behind samples of `kind`, after steps with the traits `used`."""
    own = draw(st.booleans())
    small = draw(st.integers(0, 7))
    size = draw(st.integers(1, 5))
    choices = {
        "map": lambda: called("map", number, own, "int", lambda s: map(number, s)),
        "filter": lambda: called("filter", keep, own, kind, lambda s: filter(keep, s), "varies"),
        "flat_map": lambda: called(
            "flat_map", several, own, "int", lambda s: (y for x in s for y in several(x)), "varies"
        ),
        "generator": lambda: called(
            "flat_map", one_by_one, own, "int", lambda s: (y for x in s for y in several(x)), "varies"
        ),
        "interleave": lambda: called(
            "flat_map", one_by_one, own, "int", alternating(several, size), "varies", interleave=size
        ),
        "skip_on_purpose": lambda: called("map", leaving_out, own, "int", without(2), "loses"),
        "skip_on_error": lambda: called("map", failing, own, "int", without(3), "loses", on_error="skip"),
        "tap": lambda: called("tap", looking, own, kind, lambda s: s),
        "rng": lambda: called("map", drawing, own, "int", None, "random", rng=True),
        "info": lambda: called("map", telling, own, ("row", 4), None, "random", info=True),
        "lists": lambda: simple(
            "batch", size, drop_last=own, collate=list, kind=("list", kind), traits={"groups"},
            model=each(in_batches(size, own, list)),
        ),
        "take": lambda: simple("take", small, model=each(lambda s: islice(s, small)), kind=kind, traits={"cuts"}),
        "skip": lambda: simple("skip", small, model=each(lambda s: islice(s, small, None)), kind=kind),
        "prefetch": lambda: simple("prefetch", size, model=lambda upstream: upstream, kind=kind),
        "window": lambda: simple("shuffle", window=size, model=None, kind=kind, traits={"random"}),
    }  # fmt: skip
    if kind == "int":
        choices["arrays"] = lambda: simple(
            "batch", size, drop_last=own, kind=("array", "int"), traits={"groups"},
            model=each(in_batches(size, own, np.array)),
        )  # fmt: skip
    if isinstance(kind, tuple) and kind[0] in ("list", "array"):
        choices["unbatch"] = lambda: simple(
            "unbatch", model=each(lambda s: (y for x in s for y in x)), kind=kind[1], traits={"varies"}
        )
    if "repeats" not in used:
        choices["repeat"] = lambda: simple(
            "repeat", size - 1, model=repeated(size - 1), kind=kind, traits={"repeats"}
        )
    if not used & {"repeats", "carries"}:  # the passes of an endless repeat are far from those of other epochs
        choices["endless"] = lambda: Step(
            f".repeat().take({small})",
            lambda pipeline, layout: pipeline.repeat().take(small),
            lambda upstream: each(lambda s: islice(s, small))(endless(upstream)),
            kind,
            frozenset({"repeats", "cuts"}),
        )
    if "carries" not in used and "ends" not in used:
        # What a cache keeps of epochs that differ is its own affair; see the tests of cache.
        choices["cache"] = lambda: simple("cache", model=lambda upstream: upstream, kind=kind, traits={"keeps"})
    if not used & {"carries", "ends", "apart"}:  # a part of another is read from its beginning in every epoch
        choices["epoch"] = lambda: simple("epoch", small + 1, model=stretches(small + 1), kind=kind,
                                          traits={"carries", "cuts"})  # fmt: skip
    if not used & {"keeps", "carries", "zips"}:
        choices["end"] = lambda: called("map", ending, own, "int", lambda s: map(ending, s), "ends", "cuts")
    if first:
        choices["shuffle"] = lambda: simple("shuffle", model=None, kind=kind, traits={"random"})
    return choices[draw(st.sampled_from(sorted(choices)))]()


@dataclass(frozen=True)
class Chain:
    """A source and steps: a description from which both the pipeline and its model are made."""

    text: str
    source: Callable[[Layout], Any]
    origin: Stream | None
    kind: Any
    steps: tuple[Step, ...] = ()
    traits: frozenset[str] = frozenset()

    def then(self, step):
        return Chain(self.text, self.source, self.origin, step.kind, (*self.steps, step), self.traits | step.traits)

    def build(self, layout):
        pipeline = self.source(layout)
        for step in self.steps:
            pipeline = step.build(pipeline, layout)
        return pipeline

    @property
    def model(self):
        stream = self.origin
        for step in self.steps:
            stream = step.model(stream) if stream is not None and step.model is not None else None
        return stream

    @property
    def asks(self):
        """Whether a function asks for its epoch or draws."""
        return "telling" in repr(self) or "drawing" in repr(self)

    def __repr__(self):
        return self.text + "".join(map(repr, self.steps))

    def _repr_pretty_(self, printer, cycle):
        printer.text(repr(self))  # Hypothesis would print the fields


@st.composite
def sources(draw):
    n = draw(st.integers(0, 25))
    numbers = np.arange(n)
    return draw(
        st.sampled_from(
            [
                Chain(f"from_sequence({n})", lambda _: ps.from_sequence(range(n)), lambda _: iter(range(n)), "int"),
                Chain(f"from_arrays({n})", lambda _: ps.from_arrays(numbers), lambda _: iter(range(n)), "int"),
                Chain(
                    f"from_arrays({n}, dict)",
                    lambda _: ps.from_arrays({"x": numbers, "y": numbers[::-1]}),
                    lambda _: ({"x": x, "y": n - 1 - x} for x in range(n)),
                    "dict",
                ),
                Chain(
                    f"from_iterable({n})", lambda _: ps.from_iterable(range(n)), lambda _: iter(range(n)), "int",
                    traits=frozenset({"joins"}),
                ),
            ]
        )
    )  # fmt: skip


def joined(verb, parts):
    models = [part.model for part in parts]
    known = all(model is not None for model in models)
    if verb == "zip":
        origin = (lambda epoch: zip(*(model(epoch) for model in models), strict=False)) if known else None
    else:
        origin = (lambda epoch: (x for model in models for x in model(epoch))) if known else None
    kinds = {part.kind for part in parts}
    traits = frozenset().union(
        *(part.traits for part in parts), {"joins"}, {"zips", "cuts"} if verb == "zip" else ()
    )
    return Chain(
        f"{verb}({', '.join(map(repr, parts))})",
        lambda layout: getattr(ps, verb)(*(part.build(layout) for part in parts)),
        origin,
        ("row", len(parts)) if verb == "zip" else (kinds.pop() if len(kinds) == 1 else "any"),
        traits=traits,
    )


@st.composite
def chains(draw, longest=5, join=True):
    verb = draw(st.sampled_from(["", "", "", "zip", "concat"])) if join else ""
    if verb:
        chain = joined(verb, draw(st.lists(chains(longest=2, join=False), min_size=1, max_size=3)))
        assume("ends" not in chain.traits or verb != "zip")
    else:
        chain = draw(sources())
    apart = frozenset() if join else {"apart"}
    for _ in range(draw(st.integers(0, longest))):
        first = not chain.steps and "joins" not in chain.traits
        chain = chain.then(draw(steps(chain.kind, chain.traits | apart, first)))
    return chain


# ---------------------------------------------------------------------- running


def run(pipeline, layout, seed=3, cuts=(None,) * EPOCHS):
    """The epochs, each with the type of the exception that ended it, and the samples told as lost.

    `cuts` are how many samples are read of each epoch before it is broken off.
    """
    placement = {"inline": True} if layout.on == "inline" else {"workers": layout.workers}
    if layout.on == "process":
        placement["on"] = "process"
    epochs = []
    with pipeline.loader(seed=seed, memory=fitting(pipeline, layout.memory), timeout_s=60, **placement) as loader:
        for cut in cuts:
            samples = []
            try:
                for sample in islice(loader, cut):
                    samples.append(sample)
            except KeyError as exc:
                samples.append(repr(exc))
            epochs.append(samples)
        lost = sorted((record.epoch, record.op, record.index, repr(record.exception)) for record in loader.errors())
    return epochs, lost


def plain(sample):
    if isinstance(sample, dict):
        return {name: plain(value) for name, value in sample.items()}
    if isinstance(sample, (list, tuple)):
        return type(sample)(map(plain, sample))
    return sample.tolist() if isinstance(sample, (np.ndarray, np.generic)) else sample


def modelled(chain):
    epochs = []
    for epoch in range(EPOCHS):
        samples = []
        try:
            for sample in chain.model(epoch):
                samples.append(plain(sample))
        except KeyError as exc:
            samples.append(repr(exc))
        epochs.append(samples)
    return epochs


LAYOUTS = [
    *(Layout("thread", workers, memory) for workers in (1, 2, 7) for memory in (None, 1)),
    *(Layout("async", workers, memory) for workers, memory in [(1, None), (2, 1), (7, None)]),
    *(Layout(on, 3, "1GB") for on in ("thread", "async")),
]
PROCESS_LAYOUTS = [
    Layout("process", 1),
    Layout("process", 2),
    Layout("process", 3, 1),
    Layout("mixed", 1, 1),
    Layout("mixed", 2),
]


@examples(12, shrink=False)
@given(chains(), some_of(LAYOUTS, 4))
def test_every_layout_gives_the_same_stream(chain, layouts):
    check_layouts(chain, layouts)


@examples(8, shrink=False)
@given(chains(), some_of(PROCESS_LAYOUTS, 2))
def test_processes_give_the_same_stream(chain, layouts):
    check_layouts(chain, layouts)


def check_layouts(chain, layouts):
    expected, lost = run(chain.build(Layout()), Layout())
    for layout in layouts:
        if layout.on == "async" and "keeps" in chain.traits and chain.asks:
            continue  # behind an async def a cache keeps whole epochs, not samples that belong to none
        epochs, also_lost = run(chain.build(layout), layout)
        for number_, (before, after) in enumerate(zip(expected, epochs, strict=True)):
            assert_same(before, after, f"{chain!r} {layout}, epoch {number_}")
        if not chain.traits & {"cuts", "keeps"}:  # what a cache serves again has lost nothing
            assert lost == also_lost, layout


@examples(8, shrink=False)
@given(
    chains(),
    st.lists(st.sampled_from([None, None, 0, 1, 3]), min_size=3, max_size=4),
    some_of([LAYOUTS[3], LAYOUTS[8], *PROCESS_LAYOUTS[1::2]], 2),
)
def test_epochs_that_are_broken_off_give_the_same_everywhere(chain, cuts, layouts):
    expected, _ = run(chain.build(Layout()), Layout(), cuts=cuts)
    for layout in layouts:
        epochs, _ = run(chain.build(layout), layout, cuts=cuts)
        for number_, (before, after) in enumerate(zip(expected, epochs, strict=True)):
            assert_same(before, after, f"{chain!r} {layout}, cut at {cuts}, epoch {number_}")


@examples(30, shrink=False)
@given(chains(), st.sampled_from([Layout(), *LAYOUTS, *PROCESS_LAYOUTS]))
def test_the_stream_is_that_of_plain_python(chain, layout):
    assume(chain.model is not None)
    epochs, _ = run(chain.build(layout), layout)
    assert [[plain(sample) for sample in samples] for samples in epochs] == modelled(chain)


@examples(10, shrink=False)
@given(chains(), st.integers(0, 1000))
def test_a_sample_is_shuffled_and_drawn_for_anew_in_every_epoch_and_equally_in_every_run(chain, seed):
    assume("random" in chain.traits)
    first, _ = run(chain.build(Layout()), Layout(), seed)
    again, _ = run(chain.build(Layout()), Layout("thread", 2), seed)
    for before, after in zip(first, again, strict=True):
        assert_same(before, after, repr(chain))


@for_each("layout", [*LAYOUTS[::3], *PROCESS_LAYOUTS[1::2]])
def test_a_global_shuffle_gives_every_sample_once_in_the_same_order_everywhere(layout):
    def build(one):
        return ps.from_sequence(range(500)).shuffle().map(**one.placed(number, own=True))

    (expected, _), (found, _) = run(build(Layout()), Layout()), run(build(layout), layout)
    assert expected == found
    assert expected[0] != expected[1]
    assert sorted(expected[0]) == sorted(expected[1]) == sorted(map(number, range(500)))
