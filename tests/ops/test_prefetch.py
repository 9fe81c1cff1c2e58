"""prefetch: how much is kept ready."""

import pytest
from tests.cases import for_each
from tests.helpers import any_workers

import penstock as ps
from penstock.program.sizing import Sizer


@any_workers
@for_each("n", [1, 3, 100])
def test_prefetch_changes_nothing_in_the_stream(layout, n):
    pipeline = ps.from_sequence(range(100)).map(lambda x: x * 2, **layout.place).prefetch(n)
    assert layout.epochs(pipeline, 2) == [list(range(0, 200, 2))] * 2
    batches = ps.from_iterable(lambda: range(100)).map(lambda x: x, **layout.place).batch(7).prefetch(n)
    assert [b.tolist()[0] for b in layout.run(batches)] == list(range(0, 100, 7))


def made_ahead(pipeline, made, size):
    """How many samples were made beyond those that were read, at the most, where every ticket is one unit."""
    with pytest.MonkeyPatch.context() as patch, pipeline.loader(epochs=1) as loader:
        patch.setattr(Sizer, "record", lambda *_: None)
        return max(len(made) - size * number for number, _ in enumerate(loader))


@for_each("n", [1, 4, 16])
def test_no_more_than_so_many_finished_ones_wait_beside_what_is_in_the_making(n):
    made = []
    pipeline = ps.from_sequence(range(500)).map(lambda x: made.append(x) or x, workers=1).prefetch(n)
    # The one that was just read, those that wait, one ticket on top, one in the hands of the worker.
    assert made_ahead(pipeline, made, 1) <= 1 + n + 1 + 1


def test_a_batch_counts_as_one():
    made = []
    pipeline = ps.from_sequence(range(2000)).map(lambda x: made.append(x) or x, workers=1).batch(10).prefetch(3)
    assert made_ahead(pipeline, made, 10) <= 10 * (1 + 3 + 1 + 1)


@for_each("n", [0, -1, True, 1.5, None])
def test_what_is_no_count_is_refused(n):
    with pytest.raises(ps.PlanError, match="prefetch"):
        ps.from_sequence([1]).prefetch(n)


def test_prefetch_keeps_the_length():
    assert len(ps.from_sequence(range(10)).prefetch(3)) == 10
