"""What becomes of a sample whose call fails: raised at its place, skipped, tried again."""

import threading
from collections import Counter

import pytest
from tests.cases import for_each
from tests.helpers import any_layout, any_layout_here, few_layouts, until_error

import penstock as ps


def bad_seven(x):
    if x % 10 == 7:
        raise ValueError(f"bad {x}")
    return x


def skip_seven(x):
    if x % 10 == 7:
        raise ps.Skip(f"not {x}")
    return x


GOOD = [x for x in range(100) if x % 10 != 7]


@any_layout
def test_good_samples_come_first_then_the_error_at_its_place(layout):
    pipeline = ps.from_sequence(range(10, 100)).map(layout.fn(bad_seven), **layout.place)
    with pipeline.loader(**layout.loader) as loader:
        seen, error = until_error(loader, ValueError)
        assert seen == list(range(10, 17))
        assert str(error) == "bad 17"
        (record,) = loader.errors()
        assert (record.index, record.epoch, record.exception) == (7, 0, error)


@any_layout
def test_the_error_carries_one_note_with_op_line_sample_and_worker(layout):
    pipeline = ps.from_sequence(range(10)).map(layout.fn(bad_seven), **layout.place)
    with pytest.raises(ValueError) as caught:
        layout.run(pipeline)
    (note,) = caught.value.__notes__
    assert "map(bad_seven)" in note
    assert ".py:" in note
    assert "sample 7" in note
    assert "worker" in note


@any_layout
def test_a_failing_sample_is_skipped_and_counted(layout):
    pipeline = ps.from_sequence(range(100)).map(layout.fn(bad_seven), on_error="skip", **layout.place)
    with pipeline.loader(**layout.loader) as loader:
        assert list(loader) == GOOD
        records = loader.errors()
        assert [record.index for record in records] == list(range(7, 100, 10))
        assert all(isinstance(record.exception, ValueError) for record in records)
        assert {record.op for record in records} == {"map(bad_seven)"}
        assert loader.stats()["errors"] == 10


@any_layout
@for_each("on_error", ["raise", "skip", ps.Retry(3, 0, then="raise")])
def test_skip_drops_the_sample_whatever_on_error_says(layout, on_error):
    pipeline = ps.from_sequence(range(100)).map(layout.fn(skip_seven), on_error=on_error, **layout.place)
    with pipeline.loader(**layout.loader) as loader:
        assert list(loader) == GOOD
        assert [record.exception.why for record in loader.errors()] == [f"not {x}" for x in range(7, 100, 10)]


@any_layout
def test_fifty_epochs_with_one_failing_sample_give_the_other_nineteen_each(layout):
    pipeline = ps.from_sequence(range(20)).map(
        layout.fn(lambda x: 1 // (x - 3) and x), on_error="skip", **layout.place
    )
    expected = [x if 1 // (x - 3) else 0 for x in range(20) if x != 3]
    assert layout.epochs(pipeline, 50) == [expected] * 50


@any_layout_here
def test_a_retry_that_succeeds_leaves_no_trace(layout):
    calls = Counter()

    def flaky(x):
        calls[x] += 1
        if x % 3 == 0 and calls[x] < 3:
            raise TimeoutError("busy")
        return x

    pipeline = ps.from_sequence(range(30)).map(layout.fn(flaky), on_error=ps.Retry(2, 0), **layout.place)
    with pipeline.loader(epochs=1, **layout.loader) as loader:
        assert list(loader) == list(range(30))
        assert loader.errors() == []
    assert calls == {x: 3 if x % 3 == 0 else 1 for x in range(30)}


@any_layout_here
def test_after_the_last_retry_the_sample_is_skipped(layout):
    calls = Counter()

    def failing(x):
        calls[x] += 1
        return bad_seven(x)

    pipeline = ps.from_sequence(range(20)).map(layout.fn(failing), on_error=ps.Retry(3, 0), **layout.place)
    with pipeline.loader(epochs=1, **layout.loader) as loader:
        assert list(loader) == [x for x in range(20) if x % 10 != 7]
        assert [record.index for record in loader.errors()] == [7, 17]
    assert calls[7] == 4


@any_layout
def test_after_the_last_retry_the_error_is_raised_if_so_wanted(layout):
    pipeline = ps.from_sequence(range(20)).map(
        layout.fn(bad_seven), on_error=ps.Retry(2, 0, then="raise"), **layout.place
    )
    with pipeline.loader(**layout.loader) as loader:
        seen, error = until_error(loader, ValueError)
    assert seen == list(range(7))
    assert str(error) == "bad 7"


@for_each("arguments", [{"times": 0}, {"times": True}, {"backoff_s": -1}, {"then": "give up"}])
def test_a_retry_that_makes_no_sense_is_refused(arguments):
    with pytest.raises(ps.PlanError, match="Retry"):
        ps.Retry(**arguments)


@few_layouts
def test_a_skip_inside_a_worker_made_batch_leaves_no_hole(layout):
    pipeline = ps.from_sequence(range(100)).map(skip_seven, **layout.place).batch(10)
    batches = [batch.tolist() for batch in layout.run(pipeline)]
    assert batches == [GOOD[start : start + 10] for start in range(0, 90, 10)]


@few_layouts
def test_a_skip_in_a_later_epoch_leaves_no_hole_either(layout):
    def odd_epochs_lose_five(x, info):
        if info.epoch % 2 and x == 5:
            raise ps.Skip
        return x

    pipeline = ps.from_sequence(range(12)).map(odd_epochs_lose_five, info=True, **layout.place).batch(4)
    batches = [[b.tolist() for b in epoch] for epoch in layout.epochs(pipeline, 3)]
    whole = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert batches == [whole, [[0, 1, 2, 3], [4, 6, 7, 8], [9, 10, 11]], whole]


@few_layouts
def test_an_error_behind_a_batch_comes_after_the_whole_batches_before_it(layout):
    pipeline = ps.from_sequence(range(100)).map(lambda x: bad_seven(x) if x > 20 else x, **layout.place).batch(5)
    with pipeline.loader(**layout.loader) as loader:
        seen, _ = until_error(loader, ValueError)
    assert [batch.tolist() for batch in seen] == [list(range(s, s + 5)) for s in range(0, 25, 5)]


@few_layouts
def test_a_loader_goes_on_with_the_next_epoch_after_an_error(layout):
    def bad_in_the_first(x, info):
        if info.epoch == 0 and x == 3:
            raise ValueError
        return x

    with (
        ps.from_sequence(range(6))
        .map(bad_in_the_first, info=True, **layout.place)
        .loader(**layout.loader) as loader
    ):
        seen, _ = until_error(loader, ValueError)
        assert seen == [0, 1, 2]
        assert list(loader) == list(range(6))


def test_two_loaders_of_one_pipeline_do_not_share_their_errors():
    pipeline = ps.from_sequence(range(20)).map(bad_seven, on_error="skip", workers=2)
    with pipeline.loader() as one, pipeline.loader() as other:
        list(one)
        assert len(one.errors()) == 2
        assert other.errors() == []


def test_an_error_in_a_second_stage_names_the_number_in_the_source():
    pipeline = (
        ps.from_sequence(range(50)).shuffle().map(lambda x: x, workers=2).map(bad_seven, workers=2, on_error="skip")
    )
    with pipeline.loader() as loader:
        list(loader)
        assert sorted(record.index for record in loader.errors()) == [7, 17, 27, 37, 47]


def test_samples_after_the_failing_one_are_not_delivered_by_any_worker():
    seen, _ = until_error(iter(ps.from_sequence(range(1000)).map(bad_seven, workers=7)), ValueError)
    assert seen == list(range(7))


def test_unordered_failures_end_the_run_too():
    seen, _ = until_error(iter(ps.from_sequence(range(100)).map(bad_seven, workers=3, ordered=False)), ValueError)
    assert 7 not in seen
    assert len(set(seen)) == len(seen)


def test_a_retry_waits_no_longer_once_the_loader_closes():
    waiting = threading.Event()

    def failing(x):
        waiting.set()
        raise ValueError

    loader = ps.from_sequence(range(3)).map(failing, workers=1, on_error=ps.Retry(5, backoff_s=1000)).loader()
    loader.start()
    assert waiting.wait(60)
    loader.close()
