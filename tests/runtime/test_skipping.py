"""Samples that are left out: nothing is dropped silently, and there are limits."""

import itertools
import threading

import pytest
from tests.cases import for_each
from tests.runtime.helpers import LAYOUTS, fail_at, placed, until_error

import penstock as ps
from penstock.core.workers import LOCK

every_layout = for_each("layout", LAYOUTS)
SOURCES = {
    "indexed": lambda n: ps.from_sequence(range(n)),
    "stream": lambda n: ps.from_iterable(lambda: iter(range(n))),
}
every_source = for_each("source", SOURCES)


def but(n, *bad):
    return [sample for sample in range(n) if sample not in bad]


@every_source
@every_layout
def test_on_error_skip_leaves_the_sample_out_and_records_it(source, layout):
    data = SOURCES[source](30).map(fail_at(0, 7, 29), on_error="skip", **placed(layout))
    with data.loader(epochs=1) as loader:
        assert list(loader) == but(30, 0, 7, 29)
        records = loader.errors()
        assert loader.stats()["errors"] == 3
    assert [(r.op, r.index, r.epoch, str(r.exception)) for r in records] == [
        ("map(sometimes)", index, 0, f"bad {index}") for index in (0, 7, 29)
    ]


@every_layout
def test_the_index_is_the_number_in_the_source_under_shuffle_too(layout):
    data = ps.from_sequence(range(100, 200)).shuffle().map(fail_at(103, 150), on_error="skip", **placed(layout))
    with data.loader(seed=5, epochs=2) as loader:
        for _ in range(2):
            assert sorted(loader) == [sample for sample in range(100, 200) if sample not in (103, 150)]
        found = sorted((record.epoch, record.index) for record in loader.errors())
    assert found == [(0, 3), (0, 50), (1, 3), (1, 50)]


@every_layout
def test_raising_skip_drops_the_sample_on_purpose_whatever_on_error_says(layout):
    data = ps.from_sequence(range(10)).map(fail_at(4, error=ps.Skip), **placed(layout))
    with data.loader(epochs=1) as loader:
        assert list(loader) == but(10, 4)
        (record,) = loader.errors()
    assert (record.index, type(record.exception), record.exception.why) == (4, ps.Skip, "bad 4")


@every_layout
def test_a_skip_in_a_worker_that_makes_batches_loses_no_other_sample(layout):
    data = ps.from_sequence(range(40)).map(fail_at(13, error=ps.Skip), **placed(layout)).batch(4, collate=list)
    with data.loader(epochs=3) as loader:
        for _ in range(3):
            kept = but(40, 13)
            assert list(loader) == [kept[start : start + 4] for start in range(0, 39, 4)]
        assert [(record.epoch, record.index) for record in loader.errors()] == [(0, 13), (1, 13), (2, 13)]


@every_layout
def test_a_skip_before_batches_that_alternate_loses_no_other_sample(layout):
    data = ps.from_sequence(range(20)).map(fail_at(7, error=ps.Skip), **placed(layout)).batch(3)
    assert sorted(data.flat_map(list, interleave=2)) == but(20, 7)


@every_source
@every_layout
def test_batches_are_full_although_samples_are_skipped(source, layout):
    data = SOURCES[source](41).map(fail_at(*range(0, 41, 10)), on_error="skip", **placed(layout))
    kept = but(41, *range(0, 41, 10))
    assert list(data.batch(6, collate=list)) == [kept[start : start + 6] for start in range(0, 36, 6)]


def test_every_sample_may_fail():
    with ps.from_sequence(range(50)).map(fail_at(*range(50)), workers=3, on_error="skip").loader() as loader:
        assert list(loader) == []
        assert list(loader) == []
        assert [record.index for record in loader.errors()] == 2 * list(range(50))


def test_skips_of_several_ops_are_all_told_in_order():
    data = (
        ps.from_sequence(range(20))
        .map(fail_at(3), workers=2, on_error="skip", name="first")
        .map(fail_at(1, 5), workers=2, on_error="skip", name="second")
    )
    with data.loader(epochs=1) as loader:
        assert list(loader) == but(20, 1, 3, 5)
        assert {(record.op, record.index) for record in loader.errors()} == {
            ("map(first)", 3),
            ("map(second)", 1),
            ("map(second)", 5),
        }


@for_each("layout", ["background", "four threads"])
def test_fifty_epochs_with_a_failing_sample_give_nineteen_of_twenty_each(layout):
    data = ps.from_sequence(range(20)).map(fail_at(11), on_error="skip", **placed(layout))
    with data.loader(epochs=50) as loader:
        for number in range(50):
            assert list(loader) == but(20, 11)
            assert loader.stats()["errors"] == number + 1
        assert [record.epoch for record in loader.errors()] == list(range(50))


def test_errors_are_told_no_later_than_the_samples_after_them():
    with ps.from_sequence(range(100)).map(fail_at(10), workers=2, on_error="skip").loader(epochs=1) as loader:
        for sample in loader:
            assert len(loader.errors()) >= (sample > 10)


@every_layout
def test_an_error_that_ends_the_run_is_a_record_too(layout):
    with ps.from_sequence(range(10)).map(fail_at(6), **placed(layout)).loader(epochs=1) as loader:
        _, exc = until_error(loader)
        (record,) = loader.errors()
    assert (record.op, record.index, record.epoch) == ("map(sometimes)", 6, 0)
    assert record.exception is exc


def test_a_skipping_filter_flat_map_and_tap():
    source = ps.from_sequence(range(10))
    assert list(source.filter(fail_at(3), on_error="skip")) == but(10, 0, 3)
    assert list(source.flat_map(lambda x: [fail_at(3)(x)] * 2, on_error="skip")) == [
        x for x in but(10, 3) for _ in range(2)
    ]
    assert list(source.tap(fail_at(3), on_error="skip")) == but(10, 3)


# ---------------------------------------------------------------------- retries


class Shaky:
    """Fails the first so many calls for each of some samples."""

    def __init__(self, failures):
        self.left = dict(failures)
        self.calls = {}
        self.lock = threading.Lock()

    def __call__(self, sample):
        with self.lock:
            self.calls[sample] = self.calls.get(sample, 0) + 1
            if self.left.get(sample, 0) > 0:
                self.left[sample] -= 1
                raise OSError(f"busy {sample}")
        return sample


@every_source
@every_layout
def test_a_retry_calls_again_until_it_works(source, layout):
    shaky = Shaky({3: 1, 7: 2})
    with SOURCES[source](10).map(shaky, on_error=ps.Retry(2, 0), **placed(layout)).loader(epochs=1) as loader:
        assert list(loader) == list(range(10))
        assert loader.errors() == []
    assert shaky.calls == {sample: {3: 2, 7: 3}.get(sample, 1) for sample in range(10)}


@every_layout
@for_each("then", ["skip", "raise"])
def test_when_all_retries_have_failed_then_decides(layout, then):
    shaky = Shaky({5: 99})
    with (
        ps.from_sequence(range(8))
        .map(shaky, on_error=ps.Retry(3, 0, then=then), **placed(layout))
        .loader(epochs=1) as loader
    ):
        got, exc = until_error(loader)
        assert len(loader.errors()) == 1
    assert shaky.calls[5] == 4
    if then == "skip":
        assert (got, exc) == (but(8, 5), None)
    else:
        assert (got, repr(exc)) == (but(5), "OSError('busy 5')")


def test_retries_of_an_async_def():
    shaky = Shaky({3: 1, 5: 99})

    async def fetch(sample):
        return shaky(sample)

    with ps.from_sequence(range(8)).map(fetch, workers=3, on_error=ps.Retry(2, 0)).loader(epochs=1) as loader:
        assert list(loader) == but(8, 5)
        assert [record.index for record in loader.errors()] == [5]
    assert (shaky.calls[3], shaky.calls[5]) == (2, 3)


def test_a_retry_sees_the_same_random_numbers():
    seen = {}

    def draw(sample, rng):
        seen.setdefault(sample, []).append(rng.integers(10**9))
        if len(seen[sample]) < 3:
            raise OSError
        return sample

    list(ps.from_sequence(range(5)).map(draw, workers=2, rng=True, on_error=ps.Retry(5, 0)))
    assert all(len(draws) == 3 and len(set(draws)) == 1 for draws in seen.values())
    assert len({draws[0] for draws in seen.values()}) == 5


def test_an_exception_kept_through_retries_has_one_note():
    error = OSError("always")

    def bad(sample):
        raise error

    _, exc = until_error(ps.from_sequence([1]).map(bad, workers=1, on_error=ps.Retry(3, 0, then="raise")))
    assert exc is error
    assert len(exc.__notes__) == 1


def test_close_does_not_wait_for_a_long_backoff():
    called = threading.Event()

    def bad(sample):
        called.set()
        raise OSError

    loader = ps.from_sequence([1]).map(bad, workers=1, on_error=ps.Retry(3, backoff_s=3600)).loader()
    loader.start()
    assert called.wait(60)
    loader.close()  # warns, which is an error, if it had to wait in vain


def test_close_does_not_wait_for_a_long_backoff_of_an_async_def():
    called = threading.Event()

    async def bad(sample):
        called.set()
        raise OSError

    loader = ps.from_sequence([1]).map(bad, workers=1, on_error=ps.Retry(3, backoff_s=3600)).loader()
    loader.start()
    assert called.wait(60)
    loader.close()


# ---------------------------------------------------------------------- max_errors


def outcome(layout, n, bad, limit, batch=None):
    data = ps.from_sequence(range(n)).map(fail_at(*bad), on_error="skip", **placed(layout))
    if batch:
        data = data.batch(batch, collate=list)
    with data.loader(epochs=1, max_errors=limit) as loader:
        got, exc = until_error(loader)
        return got, type(exc), [record.index for record in loader.errors()]


@every_layout
@for_each("limit", [3, 5])
def test_up_to_the_count_nothing_happens(layout, limit):
    got, exc, errors = outcome(layout, 50, (10, 20, 30), limit)
    assert (got, exc, errors) == (but(50, 10, 20, 30), type(None), [10, 20, 30])


@every_layout
@for_each("limit", [0, 1, 2])
def test_above_the_count_the_run_ends_at_that_sample_on_every_layout(layout, limit):
    bad = (10, 20, 30)
    got, exc, errors = outcome(layout, 50, bad, limit)
    last = bad[limit]
    assert exc is ps.TooManyErrors
    assert got == [sample for sample in range(last) if sample not in bad]
    assert errors == list(bad[: limit + 1])


@every_layout
@for_each("share, too_many", [(0.05, True), (0.1, False), (0.2, False), (0.0, True)])
def test_a_share_is_judged_at_below_and_above(layout, share, too_many):
    bad = tuple(range(9, 400, 10))  # a tenth, and never more than a tenth so far
    got, exc, _ = outcome(layout, 400, bad, share)
    assert (exc is ps.TooManyErrors) == too_many
    if not too_many:
        assert got == but(400, *bad)


def test_a_share_ends_the_run_at_the_same_sample_on_every_layout():
    bad = tuple(range(150, 400, 3))
    outcomes = {layout: outcome(layout, 400, bad, 0.1) for layout in LAYOUTS}
    first = outcomes["inline"]
    assert first[1] is ps.TooManyErrors
    assert all(one == first for one in outcomes.values()), {k: (len(v[0]), len(v[2])) for k, v in outcomes.items()}


def outcomes_in_batches(limit):
    """What a run without a limit delivers, and what one with a limit does on each layout."""
    bad = tuple(range(150, 300, 7))
    whole, *_ = outcome("inline", 300, bad, None, batch=8)
    return whole, [outcome(layout, 300, bad, limit, batch=8) for layout in LAYOUTS]


@for_each("limit", [2, 0.02])
def test_with_batches_the_run_ends_too_and_what_came_before_is_right_on_every_layout(limit):
    whole, outcomes = outcomes_in_batches(limit)
    for got, kind, errors in outcomes:
        assert kind is ps.TooManyErrors
        assert got == whole[: len(got)]
        assert errors == list(range(150, 300, 7))[: len(errors)]


@for_each("limit", [2, 0.02])
def test_with_batches_the_run_ends_at_the_same_batch_on_every_layout(limit):
    _, outcomes = outcomes_in_batches(limit)
    assert all(one == outcomes[0] for one in outcomes)


def test_a_short_epoch_is_judged_at_its_end():
    got, exc, _ = outcome("one thread", 10, (2, 3), 0.1)
    assert got == but(10, 2, 3)
    assert exc is ps.TooManyErrors


def test_purposeful_skips_count_as_errors_told_by_errors():
    with ps.from_sequence(range(10)).map(fail_at(1, 2, error=ps.Skip), workers=2).loader(epochs=1) as loader:
        list(loader)
        assert loader.stats()["errors"] == len(loader.errors()) == 2


def test_errors_are_counted_over_epochs():
    with ps.from_sequence(range(10)).map(fail_at(4), workers=2, on_error="skip").loader(max_errors=3) as loader:
        for _ in range(3):
            assert list(loader) == but(10, 4)
        with pytest.raises(ps.TooManyErrors):
            list(loader)


def test_loaders_do_not_share_counters():
    data = ps.from_sequence(range(10)).map(fail_at(1, 2), workers=2, on_error="skip")
    with data.loader(max_errors=2, epochs=1) as one, data.loader(max_errors=2, epochs=1) as other:
        assert list(one) == list(other) == but(10, 1, 2)
        assert len(one.errors()) == len(other.errors()) == 2
        assert one.stats()["errors"] == other.stats()["errors"] == 2
        one.errors().clear()
        assert len(one.errors()) == 2


def test_too_many_errors_says_how_many_and_where_to_look():
    data = ps.from_sequence(range(10)).map(fail_at(1, 2), workers=2, on_error="skip")
    with data.loader(max_errors=1) as loader, pytest.raises(ps.TooManyErrors, match=r"2.*max_errors=1.*errors\(\)"):
        list(loader)


@pytest.mark.parametrize("count", [1500, pytest.param(12_000, marks=pytest.mark.soak)])
def test_many_errors_keep_their_count_although_records_are_bounded(count):
    endless = ps.from_iterable(lambda: itertools.count()).take(count)
    with endless.map(fail_at(*range(count)), workers=2, on_error="skip").loader() as loader:
        assert list(loader) == []
        assert loader.stats()["errors"] == count
        assert 1000 <= len(loader.errors()) <= min(count, 10_000)


class TakesTheLock:
    """A function that looks, when it is pickled, whether another thread could go on."""

    free = True

    def __call__(self, sample):
        if sample == 5:
            raise ps.Skip("no")
        return sample

    def __reduce__(self):
        taken = []
        thread = threading.Thread(target=lambda: taken.append(LOCK.acquire(timeout=0.2) and not LOCK.release()))
        thread.start()
        thread.join()
        TakesTheLock.free &= taken == [True]
        return TakesTheLock, ()


@pytest.mark.usefixtures("warm_processes")
def test_nothing_is_pickled_under_the_lock():
    TakesTheLock.free = True
    data = ps.from_sequence(range(9)).map(TakesTheLock(), on="process", workers=1).batch(3, collate=list)
    with data.loader() as loader:
        assert list(loader) == [[0, 1, 2], [3, 4, 6], [7, 8]]
    assert TakesTheLock.free
