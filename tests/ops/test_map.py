"""map: what the function is given, and what becomes of what it returns."""

import dataclasses
import functools
import threading
from collections import Counter, defaultdict, namedtuple

import numpy as np
import pytest
from tests.cases import for_each
from tests.helpers import any_layout, any_workers, awaited, few_layouts, until_error

import penstock as ps

Point = namedtuple("Point", "x y")


@dataclasses.dataclass(frozen=True)
class Record:
    x: int
    y: str


def times_ten(x):
    return x * 10


@any_layout
def test_map_gives_the_results_in_the_order_of_the_samples(layout):
    pipeline = ps.from_sequence(range(500)).map(layout.fn(times_ten), **layout.place)
    assert layout.run(pipeline) == [x * 10 for x in range(500)]


@any_layout
def test_several_maps_are_applied_one_after_the_other(layout):
    pipeline = ps.from_sequence(range(100)).map(times_ten).map(layout.fn(str), **layout.place).map(len)
    assert layout.run(pipeline) == [len(str(x * 10)) for x in range(100)]


@for_each("workers", [1, 2, 7])
def test_stages_with_workers_of_their_own_keep_the_order(workers):
    pipeline = ps.from_sequence(range(300)).map(times_ten, workers=workers).map(str, workers=3).map(int, workers=2)
    assert list(pipeline) == [x * 10 for x in range(300)]


@for_each("workers", [1, 2, 7])
def test_unordered_map_gives_the_same_multiset(workers):
    pipeline = ps.from_sequence(range(500)).map(lambda x: x % 50, workers=workers, ordered=False)
    assert Counter(pipeline) == Counter(x % 50 for x in range(500))


@any_layout
@for_each(
    "sample, key, expected",
    [
        ({"x": 1, "y": "a"}, "x", {"x": 10, "y": "a"}),
        ((1, "a"), 0, (10, "a")),
        (("a", 1), -1, ("a", 10)),
        ([1, "a"], 0, [10, "a"]),
        (Point(1, "a"), "x", Point(10, "a")),
        (Point("a", 1), 1, Point("a", 10)),
        (Record(1, "a"), "x", Record(10, "a")),
    ],
)
def test_key_replaces_one_field_and_keeps_the_others(layout, sample, key, expected):
    (out,) = layout.run(ps.from_sequence([sample]).map(layout.fn(times_ten), key=key, **layout.place))
    assert out == expected
    assert type(out) is type(sample)


def test_key_leaves_the_sample_of_the_source_alone():
    data = [{"x": 1}, {"x": 2}]
    assert list(ps.from_sequence(data).map(times_ten, key="x")) == [{"x": 10}, {"x": 20}]
    assert data == [{"x": 1}, {"x": 2}]


@for_each(
    "sample, key, kind",
    [({"x": 1}, "z", KeyError), ((1,), 3, IndexError), (Point(1, 2), "z", AttributeError)],
)
def test_a_missing_field_is_an_error_that_lists_the_fields(sample, key, kind):
    with pytest.raises(kind) as caught:
        list(ps.from_sequence([sample]).map(times_ten, key=key))
    assert any(f"key={key!r}" in note for note in caught.value.__notes__)


@any_layout
def test_star_spreads_the_sample(layout):
    pipeline = ps.from_sequence([(1, 2), (3, 4)]).map(layout.fn(lambda a, b: a + b), star=True, **layout.place)
    assert layout.run(pipeline) == [3, 7]


@any_layout
def test_star_and_info_come_together(layout):
    fn = layout.fn(lambda a, b, info: (a + b, info.index))
    pipeline = ps.from_sequence([(1, 2), (3, 4)]).map(fn, star=True, info=True, **layout.place)
    assert layout.run(pipeline) == [(3, 0), (7, 1)]


@any_layout
def test_info_tells_the_epoch_and_the_number_in_the_source(layout):
    fn = layout.fn(lambda x, info: (x, info.index, info.epoch))
    pipeline = ps.from_sequence(range(100, 160)).shuffle().map(fn, info=True, **layout.place)
    for epoch, samples in enumerate(layout.epochs(pipeline, 3)):
        assert sorted(samples) == [(100 + i, i, epoch) for i in range(60)]


@for_each("place", [{}, {"workers": 3}, {"on": "inline"}])
def test_the_index_is_the_same_in_a_later_stage(place):
    pipeline = (
        ps.from_sequence(range(100, 160))
        .shuffle()
        .map(lambda x: x, workers=2)
        .map(lambda x, info: (x - 100, info.index), info=True, **place)
    )
    assert all(own == told for own, told in pipeline)


def test_the_index_in_a_stream_is_the_number_in_the_epoch():
    pipeline = ps.from_iterable(lambda: iter("abc")).map(lambda x, info: (info.index, x), info=True)
    with pipeline.loader() as loader:
        assert [list(loader), list(loader)] == [[(0, "a"), (1, "b"), (2, "c")]] * 2


def test_info_with_key_gives_the_field_and_the_info():
    pipeline = ps.from_sequence([{"x": 5}, {"x": 6}]).map(lambda x, info: x + info.index, key="x", info=True)
    assert list(pipeline) == [{"x": 5}, {"x": 7}]


@any_workers
def test_a_dict_in_place_of_the_function_looks_samples_up(layout):
    pipeline = ps.from_sequence("abba").map({"a": 1, "b": 2}, **layout.place)
    assert layout.run(pipeline) == [1, 2, 2, 1]


@for_each(
    "table",
    [["zero", "one", "two"], ("zero", "one", "two"), np.array(["zero", "one", "two"])],
)
def test_a_list_in_place_of_the_function_looks_samples_up(table):
    assert list(ps.from_sequence([2, 0, 1]).map(table)) == ["two", "zero", "one"]


def test_lookup_works_on_a_field_and_in_a_table_with_a_default():
    table = defaultdict(lambda: -1, cat=0)
    assert list(ps.from_sequence([{"y": "cat"}, {"y": "dog"}]).map(table, key="y")) == [{"y": 0}, {"y": -1}]


def test_a_sample_that_is_not_in_the_table_is_a_key_error():
    with pytest.raises(KeyError, match="dog"):
        list(ps.from_sequence(["dog"]).map({"cat": 0}))


@for_each("workers", [1, 2, 7])
def test_per_worker_calls_its_factory_once_per_worker(workers):
    made = []

    def factory():
        owner = threading.get_ident()
        made.append(owner)
        return lambda x: (x, threading.get_ident() == owner)

    pipeline = ps.from_sequence(range(200)).map(ps.per_worker(factory), workers=workers)
    with pipeline.loader() as loader:
        for _ in range(3):
            assert list(loader) == [(x, True) for x in range(200)]
    assert len(made) == len(set(made)) <= workers


def test_per_worker_stays_one_call_when_a_skip_changes_the_plan():
    made = []

    def factory():
        made.append(1)
        return without_seven

    with ps.from_sequence(range(20)).map(ps.per_worker(factory), workers=1).batch(5).loader() as loader:
        assert [len(batch) for batch in loader] == [5, 5, 5, 4]
    assert len(made) == 1


def without_seven(x):
    if x == 7:
        raise ps.Skip("seven")
    return x


def test_per_worker_inline_and_async_make_one_each():
    made = []

    def factory():
        made.append(1)
        return times_ten

    with ps.from_sequence(range(5)).map(ps.per_worker(factory)).loader(inline=True) as loader:
        assert list(loader) == list(loader) == [0, 10, 20, 30, 40]
    assert made == [1]


def test_a_factory_that_fails_ends_the_run_with_its_own_error():
    def factory():
        raise ConnectionError("no server")

    with pytest.raises(ConnectionError, match="no server"):
        list(ps.from_sequence(range(3)).map(ps.per_worker(factory), workers=2))


def test_a_factory_that_returns_no_function_is_refused():
    with pytest.raises(ps.PlanError, match="must return a function"):
        list(ps.from_sequence(range(3)).map(ps.per_worker(lambda: 5)))


def test_per_worker_outside_of_a_pipeline_says_so():
    with pytest.raises(TypeError, match="only inside a pipeline"):
        ps.per_worker(lambda: times_ten)(1)


@few_layouts
def test_partials_methods_and_callable_objects_are_functions(layout):
    class Adder:
        def __call__(self, x):
            return x + 1

        def method(self, x):
            return x + 2

    for fn in (functools.partial(max, 1), Adder(), Adder().method):
        assert layout.run(ps.from_sequence([1, 2]).map(fn, **layout.place)) == [fn(1), fn(2)]


def test_an_async_callable_object_is_awaited():
    class Fetch:
        async def __call__(self, x):
            return x + 1

    assert list(ps.from_sequence([1, 2]).map(Fetch(), workers=2)) == [2, 3]
    assert list(ps.from_sequence([1, 2]).map(functools.partial(awaited(max), 2))) == [2, 2]


def test_a_coroutine_function_made_by_a_decorator_is_awaited():
    def in_a_coroutine(fn):
        @functools.wraps(fn)
        async def call(x):
            return fn(x)

        return call

    assert list(ps.from_sequence([1, 2]).map(in_a_coroutine(times_ten), workers=2)) == [10, 20]


def test_a_plain_function_around_a_coroutine_function_is_not_awaited():
    async def fetch(x):
        return x

    @functools.wraps(fetch)
    def call(x):
        return x * 10

    assert list(ps.from_sequence([1, 2]).map(call, workers=2)) == [10, 20]


def test_an_async_map_runs_inline_too():
    assert ps.from_sequence([1, 2]).map(awaited(times_ten), workers=2).peek(2) == [10, 20]


def test_a_plain_function_on_async_is_refused():
    with pytest.raises((ps.PlanError, TypeError), match="async def"):
        list(ps.from_sequence([1, 2]).map(times_ten, on="async"))


@any_layout
def test_results_may_be_none_or_any_object(layout):
    fn = layout.fn(lambda x: None if x % 2 else {"x": x})
    assert layout.run(ps.from_sequence(range(4)).map(fn, **layout.place)) == [{"x": 0}, None, {"x": 2}, None]


def test_the_name_is_used_in_the_repr_in_notes_and_in_stats():
    pipeline = ps.from_sequence([0]).map(lambda x: 1 / x, name="invert")
    assert "map(invert)" in repr(pipeline)
    with pipeline.loader() as loader:
        _, error = until_error(loader, ZeroDivisionError)
        assert any("map(invert)" in note for note in error.__notes__)
        assert "stage.invert.samples" in loader.stats()


def test_a_call_past_its_timeout_is_treated_by_on_error():
    free = threading.Event()
    pipeline = ps.from_sequence(range(5)).map(
        lambda x: free.wait() if x == 2 else x, workers=1, timeout_s=0.5, on_error="skip"
    )
    with pipeline.loader(epochs=1) as loader:
        try:
            assert list(loader) == [0, 1, 3, 4]
            (record,) = loader.errors()
            assert record.index == 2
            assert isinstance(record.exception, ps.StageTimeout)
            assert loader.stats()["stuck"] == 1
        finally:
            free.set()


@for_each(
    "arguments, said",
    [
        ({"on_error": "ignore"}, "on_error"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": -1}, "timeout_s"),
        ({"rng": "both"}, "rng"),
        ({"rng": True, "info": True}, "info.rng"),
        ({"star": True, "key": "x"}, "one of them"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_where_they_are_written(arguments, said):
    with pytest.raises(ps.PlanError, match=said):
        ps.from_sequence([1]).map(times_ten, **arguments)
