"""Chains of ops made up at random give what a few lines of plain Python give, in every layout and every epoch."""

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st
from tests.random_examples import examples

import penstock as ps


class Step:
    """An op, and what it does to a list."""

    def __init__(self, text, add, model):
        self.text, self.add, self.model = text, add, model

    def __repr__(self):
        return self.text


def spread(x):
    return [x] * (hash(x) % 3)


def spread_lazily(x):
    yield from spread(x)


def skip_some(x):
    if hash(x) % 5 == 0:
        raise ps.Skip
    return x


def fail_some(x):
    if hash(x) % 4 == 0:
        raise ValueError
    return x


def alternated(streams, width):
    rest = iter(streams)
    turns, turn, out = list(islice(rest, width)), 0, []
    while turns:
        turn %= len(turns)
        try:
            out.append(next(turns[turn]))
            turn += 1
        except StopIteration:
            fresh = next(rest, None)
            turns[turn : turn + 1] = [] if fresh is None else [fresh]
    return out


def cut(samples, size, drop_last=False):
    groups = [tuple(samples[start : start + size]) for start in range(0, len(samples), size)]
    return [group for group in groups if len(group) == size or not drop_last]


places = st.sampled_from([{}, {}, {}, {"workers": 1}, {"workers": 3}, {"on": "inline"}])
small = st.integers(1, 5)


def same(samples):
    return samples


@st.composite
def steps(draw):
    place, n = draw(places), draw(small)
    options = [
        Step(f"map({place})", lambda p: p.map(lambda x: (x,), **place), lambda s: [(x,) for x in s]),
        Step(f"tap({place})", lambda p: p.tap(hash, **place), same),
        Step(f"skip_some({place})", lambda p: p.map(skip_some, **place), lambda s: [x for x in s if hash(x) % 5]),
        Step(
            f"fail_some({place})",
            lambda p: p.map(fail_some, on_error="skip", **place),
            lambda s: [x for x in s if hash(x) % 4],
        ),
        Step(
            f"filter({place})",
            lambda p: p.filter(lambda x: hash(x) % 3, **place),
            lambda s: [x for x in s if hash(x) % 3],
        ),
        Step(
            f"flat_map({place})", lambda p: p.flat_map(spread, **place), lambda s: [y for x in s for y in spread(x)]
        ),
        Step(
            f"interleave({n}, {place})",
            lambda p: p.flat_map(spread_lazily, interleave=n, **place),
            lambda s: alternated(map(spread_lazily, s), n),
        ),
        Step(f"batch({n})", lambda p: p.batch(n, collate=tuple), lambda s: cut(s, n)),
        Step(f"batch({n}, drop)", lambda p: p.batch(n, collate=tuple, drop_last=True), lambda s: cut(s, n, True)),
        Step(
            f"batch({n}).unbatch",
            lambda p: p.map(lambda x: (x,)).batch(n, collate=list).flat_map(list),
            lambda s: [(x,) for x in s],
        ),
        Step(f"take({3 * n})", lambda p: p.take(3 * n), lambda s: s[: 3 * n]),
        Step(f"skip({n})", lambda p: p.skip(n), lambda s: s[n:]),
        Step(f"repeat({n % 3})", lambda p: p.repeat(n % 3), lambda s: s * (n % 3)),
        Step("cache", lambda p: p.cache(), same),
        Step(f"prefetch({n})", lambda p: p.prefetch(n), same),
        Step("window 1", lambda p: p.shuffle(window=1), same),
    ]
    return draw(st.sampled_from(options))


sources = st.sampled_from(["sequence", "iterable", "zip", "concat"])
loaders = st.sampled_from([{"inline": True}, {}, {"workers": 2}, {"workers": 5}, {"memory": 1000, "workers": 2}])


def source_of(kind, n):
    if kind == "zip":
        return ps.zip(ps.from_sequence(range(n)).map(abs, workers=2), ps.from_iterable(lambda: range(n + 2))).map(
            lambda s: s[0]
        )
    if kind == "concat":
        return ps.concat(ps.from_sequence(range(n // 2)), ps.from_iterable(lambda: range(n // 2, n)))
    return ps.from_sequence(range(n)) if kind == "sequence" else ps.from_iterable(lambda: range(n))


@examples(30)
@given(
    kind=sources, n=st.sampled_from([0, 1, 7, 40]), chain=st.lists(steps(), min_size=1, max_size=6), loader=loaders
)
def test_a_chain_of_ops_gives_what_plain_python_gives(kind, n, chain, loader):
    pipeline, expected = source_of(kind, n), list(range(n))
    for step in chain:
        pipeline, expected = step.add(pipeline), step.model(expected)
    with pipeline.loader(epochs=3, **loader) as running:
        for _ in range(3):
            assert list(running) == expected


@st.composite
def random_steps(draw):
    place, n = draw(places), draw(small)
    options = [
        Step(f"draw({place})", lambda p: p.map(lambda x, rng: (x, rng.random()), rng=True, **place), same),
        Step(
            f"info({place})",
            lambda p: p.map(lambda x, info: (x, info.index, info.rng.random()), info=True, **place),
            same,
        ),
        Step(f"choose({place})", lambda p: p.filter(lambda x, rng: rng.random() < 0.7, rng=True, **place), same),
        Step(
            f"spread({place}, {n})",
            lambda p: p.flat_map(
                lambda x, rng: ((x, rng.random()) for _ in range(2)), rng=True, interleave=n, **place
            ),
            same,
        ),
        Step(f"window({n})", lambda p: p.shuffle(window=2 * n), same),
        Step(f"batch({n})", lambda p: p.batch(n, collate=tuple), same),
        Step(f"skip_some({place})", lambda p: p.map(skip_some, **place), same),
        Step(f"take({3 * n})", lambda p: p.take(3 * n), same),
        Step("repeat(2)", lambda p: p.repeat(2), same),
        Step(f"epoch({3 * n})", lambda p: p.epoch(3 * n), same),
        Step("cache", lambda p: p.cache(), same),
    ]
    return draw(st.sampled_from(options))


@examples(12)
@given(
    kind=sources,
    chain=st.lists(random_steps(), min_size=1, max_size=6),
    one=loaders,
    other=loaders,
    shuffled=st.booleans(),
)
def test_a_chain_of_random_ops_gives_the_same_for_any_two_layouts(kind, chain, one, other, shuffled):
    pipeline = source_of(kind, 30)
    if shuffled and kind == "sequence":
        pipeline = pipeline.shuffle()
    for step in chain:
        pipeline = step.add(pipeline)
    epochs = []
    for arguments in (one, other):
        with pipeline.loader(seed=5, epochs=3, **arguments) as loader:
            epochs.append([list(samples) for _, samples in loader.epochs(3)])
    assert epochs[0] == epochs[1]
