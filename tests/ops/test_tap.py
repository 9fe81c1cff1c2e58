"""tap: look at samples on their way."""

from tests.cases import for_each
from tests.helpers import any_layout, any_layout_here, until_error

import penstock as ps


@any_layout_here
def test_tap_calls_the_function_and_passes_the_sample_on(layout):
    seen = []
    pipeline = ps.from_sequence(range(100)).tap(layout.fn(lambda x: seen.append(x)), **layout.place)
    assert layout.run(pipeline) == list(range(100))
    assert sorted(seen) == list(range(100))


@any_layout_here
@for_each("sample, key", [({"x": 1, "y": 2}, "x"), ((1, 2), 0)])
def test_with_a_key_the_function_sees_the_field_and_the_sample_passes_whole(layout, sample, key):
    seen = []
    pipeline = ps.from_sequence([sample]).tap(layout.fn(lambda x: seen.append(x)), key=key, **layout.place)
    assert layout.run(pipeline) == [sample]
    assert seen == [1]


@any_layout_here
def test_star_and_info_reach_the_function(layout):
    seen = []
    fn = layout.fn(lambda a, b, info: seen.append((a, b, info.index)))
    assert layout.run(ps.from_sequence([(1, 2)]).tap(fn, star=True, info=True, **layout.place)) == [(1, 2)]
    assert seen == [(1, 2, 0)]


def test_the_generator_of_a_tap_is_its_own():
    drawn = []
    pipeline = ps.from_sequence(range(9)).tap(lambda x, rng: drawn.append(rng.random()), rng=True)
    assert list(pipeline) == list(range(9))
    assert len(set(drawn)) == 9


@any_layout
def test_a_failure_comes_at_its_place(layout):
    pipeline = ps.from_sequence(range(20)).tap(layout.fn(lambda x: 1 // (x - 9)), **layout.place)
    with pipeline.loader(**layout.loader) as loader:
        assert until_error(loader, ZeroDivisionError)[0] == list(range(9))


@any_layout
def test_a_failing_sample_may_be_skipped(layout):
    pipeline = ps.from_sequence(range(20)).tap(layout.fn(lambda x: 1 // (x - 9)), on_error="skip", **layout.place)
    assert layout.run(pipeline) == [x for x in range(20) if x != 9]


def test_a_tap_keeps_the_length():
    assert len(ps.from_sequence(range(20)).tap(print)) == 20
