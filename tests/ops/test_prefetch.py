"""prefetch: how much is kept ready."""

import pytest
from tests.cases import for_each
from tests.helpers import any_workers

import penstock as ps


@any_workers
@for_each("n", [1, 3, 100])
def test_prefetch_changes_nothing_in_the_stream(layout, n):
    pipeline = ps.from_sequence(range(100)).map(lambda x: x * 2, **layout.place).prefetch(n)
    assert layout.epochs(pipeline, 2) == [list(range(0, 200, 2))] * 2
    batches = ps.from_iterable(lambda: range(100)).map(lambda x: x, **layout.place).batch(7).prefetch(n)
    assert [b.tolist()[0] for b in layout.run(batches)] == list(range(0, 100, 7))


@for_each("n", [1, 4, 16])
@for_each("workers", [1, 4])
def test_never_more_than_so_many_are_made_ahead(n, workers):
    made = []

    def work(x):
        made.append(x)
        return x

    with ps.from_sequence(range(2000)).map(work, workers=workers).prefetch(n).loader(epochs=1) as loader:
        for number, _ in enumerate(loader):
            # n wait in the stage and up to n are in the reader's hand; one more is always begun.
            assert len(made) - number <= 2 * n + 1


def test_a_batch_counts_as_one():
    made = []
    pipeline = ps.from_sequence(range(2000)).map(lambda x: made.append(x) or x, workers=2).batch(10).prefetch(3)
    with pipeline.loader(epochs=1) as loader:
        for number, _ in enumerate(loader):
            assert len(made) - 10 * number <= 10 * (2 * 3 + 1)


@for_each("n", [0, -1, True, 1.5, None])
def test_what_is_no_count_is_refused(n):
    with pytest.raises(ps.PlanError, match="prefetch"):
        ps.from_sequence([1]).prefetch(n)


def test_prefetch_keeps_the_length():
    assert len(ps.from_sequence(range(10)).prefetch(3)) == 10
