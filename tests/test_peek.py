"""peek: samples at once, in the calling thread."""

import threading
from itertools import count

import pytest
from tests.cases import for_each
from tests.helpers import INLINE, plain

import penstock as ps


def times_ten(x):
    return x * 10


def draw(x, rng):
    return x, rng.random()


def test_peek_gives_the_first_samples_of_the_stream():
    pipeline = ps.from_sequence(range(50)).shuffle().map(draw, rng=True, workers=4).filter(lambda s: s[0] % 2)
    assert pipeline.peek() == INLINE.run(pipeline)[:1]
    assert pipeline.peek(5) == INLINE.run(pipeline)[:5]
    assert pipeline.peek(0) == []
    assert len(pipeline.peek(99)) == 25


def test_peek_gives_those_of_the_epoch_asked_for():
    pipeline = ps.from_sequence(range(50)).shuffle().map(draw, rng=True, workers=4)
    assert [pipeline.peek(50, epoch=epoch) for epoch in range(3)] == INLINE.epochs(pipeline, 3)


def test_peek_runs_in_the_calling_thread_and_makes_no_more_than_it_must():
    threads, calls = set(), []

    def spy(x):
        threads.add(threading.get_ident())
        calls.append(x)
        return x

    assert ps.from_sequence(range(10_000)).map(spy, workers=4).peek(2) == [0, 1]
    assert threads == {threading.get_ident()}
    assert len(calls) < 100


def test_peek_shows_batches_and_reads_streams():
    assert plain(ps.from_sequence(range(9)).batch(4).peek(2)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert ps.from_iterable(count).map(times_ten).peek(3) == [0, 10, 20]
    assert ps.zip(ps.from_sequence("ab"), ps.from_sequence([1, 2])).peek(2) == [("a", 1), ("b", 2)]


def test_peek_runs_coroutines():
    async def fetch(x):
        return x + 1

    assert ps.from_sequence([1, 2]).map(fetch, workers=5).peek(2) == [2, 3]
    assert ps.from_sequence([1, 2]).map(fetch, workers=5).peek(index=1) == [3]


def test_an_index_gives_that_sample_as_its_epoch_would_make_it():
    pipeline = ps.from_sequence(range(100, 150)).shuffle().map(draw, rng=True, workers=3)
    for epoch, samples in enumerate(INLINE.epochs(pipeline, 2)):
        by_value = {x: (x, value) for x, value in samples}
        for index in (0, 17, 49):
            assert pipeline.peek(index=index, epoch=epoch) == [by_value[100 + index]]


def test_an_index_stops_at_the_first_op_that_needs_other_samples():
    assert ps.from_sequence(range(9)).map(times_ten).batch(4).map(sum).peek(index=5) == [50]


def test_an_index_gives_nothing_or_several_where_ops_say_so():
    assert ps.from_sequence(range(9)).filter(lambda x: x != 5).peek(index=5) == []
    assert ps.from_sequence(range(9)).flat_map(lambda x: [x, -x]).map(times_ten).peek(index=5) == [50, -50]


def test_an_index_of_a_failing_sample_raises_its_error():
    pipeline = ps.from_sequence(range(9)).map(lambda x: 1 / (x - 5))
    with pytest.raises(ZeroDivisionError) as caught:
        pipeline.peek(index=5)
    assert any("sample 5" in note for note in caught.value.__notes__)
    assert pipeline.peek(index=6) == [1.0]


@for_each("index", [9, -1, 1000])
def test_an_index_that_is_not_there_is_refused(index):
    with pytest.raises(ps.PlanError, match=f"index {index}"):
        ps.from_sequence(range(9)).shuffle().peek(index=index)


@for_each(
    "pipeline",
    [
        ps.from_iterable(lambda: [1]),
        ps.zip(ps.from_sequence([1]), ps.from_sequence([2])),
        ps.concat(ps.from_sequence([1])),
    ],
)
def test_an_index_needs_a_source_that_can_be_indexed(pipeline):
    with pytest.raises(ps.PlanError, match="indexed"):
        pipeline.peek(index=0)


def test_every_op_shows_the_sample_on_its_way():
    pipeline = ps.from_sequence([1, 2]).map(times_ten, workers=2).filter(bool).map(str, name="text")
    first, second = pipeline.peek(2, every_op=True)
    assert first == [
        ("from_sequence(list of 2)", 1),
        ("map(times_ten)", 10),
        ("filter(bool)", 10),
        ("map(text)", "10"),
    ]
    assert [sample for _, sample in second] == [2, 20, 20, "20"]


def test_every_op_of_one_index():
    (trail,) = ps.from_sequence(range(9)).map(times_ten).peek(index=4, every_op=True)
    assert trail == [("from_sequence(range of 9)", 4), ("map(times_ten)", 40)]


@for_each("n", [-1, True, 1.5, "one"])
def test_what_is_no_count_is_refused(n):
    with pytest.raises(ps.PlanError, match="peek"):
        ps.from_sequence([1]).peek(n)
