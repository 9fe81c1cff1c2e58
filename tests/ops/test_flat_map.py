"""flat_map: several samples, or none, from one; lazily, and alternating if so wanted."""

from collections import Counter
from itertools import count, islice

import pytest
from tests.cases import for_each
from tests.helpers import INLINE, any_layout, any_threads, any_workers, few_layouts, few_threads, until_error

import penstock as ps


def spread(x):
    return [(x, i) for i in range(x % 4)]


def generated(x):
    yield from spread(x)


SPREAD = [pair for x in range(60) for pair in spread(x)]


def alternated(streams, width):
    """The reference: one sample of each of `width` streams in turn; the next takes the turn of one that ends."""
    rest = iter(streams)
    turns = list(islice(rest, width))
    turn = 0
    while turns:
        try:
            yield next(turns[turn])
            turn += 1
        except StopIteration:
            fresh = next(rest, None)
            turns[turn : turn + 1] = [] if fresh is None else [fresh]
        turn = turn % len(turns) if turns else 0


@any_layout
@pytest.mark.parametrize("fn", [spread, generated])
def test_the_outputs_of_every_sample_come_in_order(layout, fn):
    if layout.asynchronous and fn is generated:
        pytest.skip("an async def returns its outputs; asynchronous generators have a test of their own")
    pipeline = ps.from_sequence(range(60)).flat_map(layout.fn(fn), **layout.place)
    assert layout.run(pipeline) == SPREAD


@for_each("loader", [{}, {"inline": True}])
@for_each("workers", [1, 5])
def test_an_asynchronous_generator_is_a_function_too(loader, workers):
    async def fetched(x):
        for pair in spread(x):
            yield pair

    with ps.from_sequence(range(60)).flat_map(fetched, workers=workers).loader(**loader) as it:
        assert list(it) == SPREAD


@any_workers
def test_fan_out_from_20_to_100(layout):
    pipeline = ps.from_sequence(range(20)).flat_map(lambda x: range(5 * x, 5 * x + 5), **layout.place)
    assert layout.run(pipeline) == list(range(100))


@for_each("outputs", [[1, 2], (1, 2), range(1, 3), {1: "a", 2: "b"}, iter([1, 2])])
def test_any_iterable_will_do(outputs):
    assert list(ps.from_sequence([0]).flat_map(lambda x: outputs)) == [1, 2]


@few_layouts
def test_a_result_that_is_no_iterable_is_a_type_error(layout):
    pipeline = ps.from_sequence([1, 2]).flat_map(lambda x: 5, **layout.place)
    with pytest.raises(TypeError, match="not iterable") as caught:
        layout.run(pipeline)
    assert any("flat_map" in note for note in caught.value.__notes__)


@few_threads
def test_a_generator_of_a_million_is_not_materialised(layout):
    made = 0

    def million(x):
        nonlocal made
        for number in range(1_000_000):
            made += 1
            yield number

    with ps.from_sequence([0]).flat_map(million, **layout.place).loader(**layout.loader) as loader:
        first = list(islice(iter(loader), 100))
    assert first == list(range(100))
    assert made < 200_000


@few_layouts
def test_an_endless_generator_ends_with_take(layout):
    pipeline = ps.from_sequence([5]).flat_map(count, **layout.place).take(1000)
    assert layout.run(pipeline) == list(range(5, 1005))


@few_threads
def test_generators_are_closed_when_the_reader_stops(layout):
    opened, closed = [], []

    def shard(x):
        opened.append(x)
        try:
            yield from count()
        finally:
            closed.append(x)

    with ps.from_sequence(range(3)).flat_map(shard, **layout.place).loader(**layout.loader) as loader:
        assert list(islice(iter(loader), 5)) == [0, 1, 2, 3, 4]
    assert sorted(closed) == sorted(opened)


@any_workers
def test_with_a_key_every_output_is_the_sample_with_that_field_replaced(layout):
    pipeline = ps.from_sequence([{"x": 2, "y": "a"}, {"x": 0, "y": "b"}, {"x": 1, "y": "c"}]).flat_map(
        range, key="x", **layout.place
    )
    assert layout.run(pipeline) == [{"x": 0, "y": "a"}, {"x": 1, "y": "a"}, {"x": 0, "y": "c"}]


@any_workers
def test_star_and_info_reach_the_function(layout):
    pipeline = ps.from_sequence([(1, 2), (3, 1)]).flat_map(
        lambda a, n, info: [(a, info.index)] * n, star=True, info=True, **layout.place
    )
    assert layout.run(pipeline) == [(1, 0), (1, 0), (3, 1)]


@any_workers
def test_nested_flat_maps_keep_the_order(layout):
    pipeline = ps.from_sequence(range(10)).flat_map(generated, **layout.place).flat_map(lambda p: [p] * 2)
    assert layout.run(pipeline) == [pair for pair in SPREAD if pair[0] < 10 for _ in range(2)]


@any_workers
def test_batches_behind_it_are_cut_in_the_order_of_delivery(layout):
    pipeline = ps.from_sequence(range(60)).flat_map(generated, **layout.place).batch(7, collate=list)
    assert layout.run(pipeline) == [SPREAD[start : start + 7] for start in range(0, len(SPREAD), 7)]


def test_unordered_flat_map_gives_the_same_multiset():
    assert Counter(ps.from_sequence(range(60)).flat_map(generated, workers=4, ordered=False)) == Counter(SPREAD)


# ---------------------------------------------------------------------- interleave


@any_workers
@for_each("width", [1, 2, 3, 5, 100])
def test_interleaved_outputs_alternate_as_in_the_reference(layout, width):
    pipeline = ps.from_sequence(range(30)).flat_map(generated, interleave=width, **layout.place)
    expected = list(alternated(map(generated, range(30)), width))
    assert layout.epochs(pipeline, 2) == [expected, expected]


@any_threads
def test_asynchronous_outputs_alternate_too(layout):
    async def fetched(x):
        return spread(x)

    pipeline = ps.from_sequence(range(30)).flat_map(fetched, interleave=3, **layout.place)
    assert layout.run(pipeline) == list(alternated(map(generated, range(30)), 3))


@any_workers
def test_streams_alternate_too(layout):
    pipeline = ps.from_iterable(lambda: range(30)).flat_map(generated, interleave=4, **layout.place)
    assert layout.run(pipeline) == list(alternated(map(generated, range(30)), 4))


@any_workers
def test_a_filter_behind_it_sees_the_alternated_order(layout):
    pipeline = (
        ps.from_sequence(range(30)).flat_map(generated, interleave=3, **layout.place).filter(lambda p: sum(p) % 2)
    )
    assert layout.run(pipeline) == [p for p in alternated(map(generated, range(30)), 3) if sum(p) % 2]


@any_workers
def test_a_skip_behind_it_does_not_change_the_order_of_the_others(layout):
    def some(pair):
        if sum(pair) % 2:
            raise ps.Skip
        return pair

    pipeline = ps.from_sequence(range(30)).flat_map(generated, interleave=3, **layout.place).map(some)
    assert layout.run(pipeline) == [p for p in alternated(map(generated, range(30)), 3) if sum(p) % 2 == 0]


@any_workers
def test_a_flat_map_behind_it_keeps_its_own_outputs_together(layout):
    pipeline = (
        ps.from_sequence(range(12))
        .flat_map(generated, interleave=3, **layout.place)
        .flat_map(lambda p: [(*p, 0), (*p, 1)])
    )
    expected = [(*p, i) for p in alternated(map(generated, range(12)), 3) for i in (0, 1)]
    assert layout.run(pipeline) == expected


@any_workers
def test_inputs_that_a_filter_dropped_do_not_take_a_turn(layout):
    pipeline = ps.from_sequence(range(40)).filter(lambda x: x % 3, **layout.place).flat_map(generated, interleave=3)
    assert layout.run(pipeline) == list(alternated((generated(x) for x in range(40) if x % 3), 3))


@few_layouts
def test_two_interleaved_flat_maps_alternate_one_after_the_other(layout):
    pipeline = (
        ps.from_sequence(range(8))
        .flat_map(generated, interleave=2, **layout.place)
        .flat_map(lambda p: [(*p, i) for i in range(2)], interleave=3)
    )
    inner = alternated(map(generated, range(8)), 2)
    assert layout.run(pipeline) == list(alternated((iter([(*p, 0), (*p, 1)]) for p in inner), 3))


@few_layouts
def test_endless_inputs_alternate(layout):
    pipeline = ps.from_sequence([0, 100, 200]).flat_map(count, interleave=2, **layout.place).take(6)
    assert layout.run(pipeline) == [0, 100, 1, 101, 2, 102]


@for_each("width", [0, -1, True, 1.5, "two"])
def test_a_width_that_is_no_count_is_refused(width):
    with pytest.raises(ps.PlanError, match="interleave"):
        ps.from_sequence([1]).flat_map(range, interleave=width)


# ---------------------------------------------------------------------- failures


@any_workers
def test_a_failure_in_the_middle_of_a_generator_comes_at_its_place(layout):
    def broken(x):
        yield from spread(x)
        if x == 17:
            raise ValueError("torn")
        yield x

    with ps.from_sequence(range(60)).flat_map(broken, **layout.place).loader(**layout.loader) as loader:
        seen, error = until_error(loader, ValueError)
    assert seen == [s for x in range(17) for s in [*spread(x), x]] + spread(17)
    assert any("flat_map(broken)" in note and "sample 17" in note for note in error.__notes__)


@any_layout
def test_a_call_that_fails_at_once_comes_at_its_place(layout):
    def broken(x):
        if x == 41:
            raise ValueError
        return spread(x)

    pipeline = ps.from_sequence(range(60)).flat_map(layout.fn(broken), **layout.place)
    with pipeline.loader(**layout.loader) as loader:
        seen, _ = until_error(loader, ValueError)
    assert seen == [pair for x in range(41) for pair in spread(x)]


@for_each("size", [1, 5, 64])
def test_a_call_that_fails_among_many_loses_none_before_it(size):
    def broken(x):
        if x == size - 1:
            raise ValueError
        return [x, x]

    seen, _ = until_error(iter(ps.from_sequence([list(range(size))]).unbatch().flat_map(broken)), ValueError)
    assert seen == [x for x in range(size - 1) for _ in range(2)]


@any_workers
def test_a_generator_that_fails_is_left_there_when_failures_are_skipped(layout):
    def torn(x):
        yield x
        if x % 2:
            raise ValueError
        yield -x

    pipeline = ps.from_sequence(range(10)).flat_map(torn, on_error="skip", **layout.place)
    with pipeline.loader(**layout.loader) as loader:
        assert list(loader) == [s for x in range(10) for s in ([x] if x % 2 else [x, -x])]
        assert [record.index for record in loader.errors()] == [1, 3, 5, 7, 9]


@any_workers
def test_a_retry_in_the_middle_goes_on_behind_what_has_been_delivered(layout):
    tries = Counter()

    def flaky(x):
        tries[x] += 1
        yield (x, "first")
        if tries[x] < 3:
            raise TimeoutError
        yield (x, "second")

    pipeline = ps.from_sequence(range(10)).flat_map(flaky, on_error=ps.Retry(2, 0), **layout.place)
    with pipeline.loader(epochs=1, **layout.loader) as loader:
        assert list(loader) == [(x, word) for x in range(10) for word in ("first", "second")]
        assert loader.errors() == []


def test_an_asynchronous_generator_is_retried_in_the_same_way():
    tries = Counter()

    async def flaky(x):
        tries[x] += 1
        yield (x, "first")
        if tries[x] < 3:
            raise TimeoutError
        yield (x, "second")

    pipeline = ps.from_sequence(range(10)).flat_map(flaky, on_error=ps.Retry(2, 0), workers=2)
    assert list(pipeline) == [(x, word) for x in range(10) for word in ("first", "second")]


@any_workers
def test_skip_inside_a_generator_ends_that_generator(layout):
    def some(x):
        yield x
        raise ps.Skip("enough")

    with ps.from_sequence(range(5)).flat_map(some, **layout.place).loader(**layout.loader) as loader:
        assert list(loader) == [0, 1, 2, 3, 4]
        assert [record.exception.why for record in loader.errors()] == ["enough"] * 5


@any_workers
def test_a_failure_among_alternating_inputs_comes_at_its_turn(layout):
    def torn(x):
        yield (x, 0)
        yield (x, 1)
        if x == 0:
            raise ValueError
        yield (x, 2)

    pipeline = ps.from_sequence(range(4)).flat_map(torn, interleave=2, **layout.place)
    with pipeline.loader(**layout.loader) as loader:
        seen, _ = until_error(loader, ValueError)
    assert seen == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_the_length_is_not_known():
    with pytest.raises(ps.LengthUnknown, match="flat_map"):
        len(ps.from_sequence([1]).flat_map(range))
    assert INLINE.run(ps.from_sequence([]).flat_map(range)) == []


@pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])
def test_a_call_that_fails_when_it_is_tried_again_is_skipped(asynchronous):
    calls = []

    def outputs(sample):
        yield sample
        raise ValueError("in the middle")

    def fails_otherwise(sample):
        if sample != 2:
            return [sample]
        calls.append(sample)
        if len(calls) > 1:
            raise ValueError("at the call")
        return outputs(sample)

    async def awaited(sample):
        return fails_otherwise(sample)

    function = awaited if asynchronous else fails_otherwise
    data = ps.from_sequence(range(4)).flat_map(function, workers=1, on_error=ps.Retry(2, 0, then="skip"))
    with data.loader(epochs=1) as loader:
        assert list(loader) == [0, 1, 2, 3]
        assert [(record.index, str(record.exception)) for record in loader.errors()] == [(2, "at the call")]
    assert len(calls) == 3
