"""A pool: workers that several pipelines share."""

import gc
import pickle
import threading
import weakref

import pytest
from tests.cases import for_each
from tests.runtime.helpers import Gate, in_thread

import penstock as ps
from penstock.testing.leaks import leaks_since, snapshot


def thread_of(sample):
    return threading.current_thread().name


def threads_of(pipeline):
    return set(pipeline)


def test_a_pool_starts_nothing_until_it_is_needed():
    before = snapshot()
    pool = ps.Threads(4)
    loader = ps.from_sequence(range(3)).map(str, on=pool).loader()
    assert leaks_since(before, grace_s=0) == []
    loader.close()
    pool.close()


def test_pipelines_share_the_threads_of_a_pool():
    with ps.Threads(1) as pool:
        one = threads_of(ps.from_sequence(range(50)).map(thread_of, on=pool))
        other = threads_of(ps.from_sequence(range(50)).map(thread_of, on=pool))
    assert one == other
    assert len(one) == 1


def test_a_pool_stays_warm_when_a_loader_closes():
    with ps.Threads(1) as pool:
        data = ps.from_sequence(range(3)).map(thread_of, on=pool)
        with data.loader() as loader:
            first = set(loader)
        with data.loader() as loader:
            assert set(loader) == first


def test_closing_a_pool_ends_its_workers():
    before = snapshot()
    pool = ps.Threads(3)
    list(ps.from_sequence(range(50)).map(str, on=pool))
    pool.close()
    assert leaks_since(before) == []
    pool.close()


def test_the_context_manager_closes_the_pool():
    before = snapshot()
    with ps.Threads(3) as pool:
        assert list(ps.from_sequence(range(50)).map(str, on=pool)) == [str(x) for x in range(50)]
    assert leaks_since(before) == []


def test_a_pool_nobody_holds_is_collected_with_its_workers():
    before = snapshot()
    pool = ps.Threads(3)
    list(ps.from_sequence(range(50)).map(str, on=pool))
    alive = weakref.ref(pool)
    del pool
    gc.collect()
    assert alive() is None
    assert leaks_since(before) == []


def test_a_pipeline_keeps_its_pool_alive():
    data = ps.from_sequence(range(5)).map(str, on=ps.Threads(2))
    gc.collect()
    assert list(data) == ["0", "1", "2", "3", "4"]
    gc.collect()
    assert list(data) == ["0", "1", "2", "3", "4"]


def test_a_closed_pool_starts_again_for_a_new_loader():
    before = snapshot()
    pool = ps.Threads(2)
    data = ps.from_sequence(range(5)).map(str, on=pool)
    for _ in range(3):
        assert list(data) == ["0", "1", "2", "3", "4"]
        pool.close()
    assert leaks_since(before) == []


def closed_under_its_reader():
    pool = ps.Threads(2)
    loader = ps.from_sequence(range(100_000)).map(str, on=pool).loader()
    batches = iter(loader)
    next(batches)
    pool.close()
    try:
        return sum(1 for _ in batches)
    except ps.PenstockError as exc:
        return str(exc)
    finally:
        loader.close()


def test_a_pool_closed_under_its_reader_ends_the_epoch_with_an_error_and_never_hangs():
    outcome = in_thread(closed_under_its_reader)
    assert isinstance(outcome, str), f"{outcome} samples, then a silent end"
    assert "closed" in outcome


def started_on_a_closed_pool():
    pool = ps.Threads(2)
    loader = ps.from_sequence(range(10)).map(str, on=pool).loader()
    pool.close()
    try:
        return list(loader)
    except ps.PenstockError as exc:
        return str(exc)
    finally:
        loader.close()
        pool.close()


def test_a_loader_whose_pool_was_closed_before_it_began_runs_or_says_so():
    outcome = in_thread(started_on_a_closed_pool)
    assert outcome == [str(x) for x in range(10)] or "closed" in outcome


def test_a_loader_whose_pool_was_closed_between_epochs_runs_or_says_so():
    def between():
        pool = ps.Threads(2)
        loader = ps.from_sequence(range(10)).map(str, on=pool).loader(epochs=2)
        list(loader)
        pool.close()
        try:
            return list(loader)
        except ps.PenstockError as exc:
            return str(exc)
        finally:
            loader.close()
            pool.close()

    outcome = in_thread(between)
    assert outcome == [str(x) for x in range(10)] or "closed" in outcome


def test_a_pool_pickles_as_its_description():
    pool = ps.Threads(3)
    list(ps.from_sequence(range(5)).map(str, on=pool))
    copy = pickle.loads(pickle.dumps(pool))
    assert type(copy) is ps.Threads
    assert copy.workers == 3
    assert copy is not pool
    assert list(ps.from_sequence(range(3)).map(str, on=copy)) == ["0", "1", "2"]
    copy.close()
    pool.close()


def test_two_ops_on_one_pool_still_share_it_after_pickling():
    pool = ps.Threads(2)
    data = ps.from_sequence(range(3)).map(str, on=pool).map(int, on=pool)
    copy = pickle.loads(pickle.dumps(data))
    assert copy.ops[0].on is copy.ops[1].on
    assert list(copy) == [0, 1, 2]


def test_pools_are_compared_by_identity():
    one, other = ps.Threads(2), ps.Threads(2)
    assert one == one
    assert one != other
    assert len({one, other}) == 2


@for_each("workers", [0, -3, "many", 2.5, True, None])
def test_what_is_no_number_of_workers_is_refused(workers):
    with pytest.raises(ps.PlanError, match="workers"):
        ps.Threads(workers)


def test_a_cap_holds_within_a_pool():
    gate = Gate(0)
    with ps.Threads(4) as pool:
        data = ps.from_sequence(range(20)).map(gate, on=pool, workers=1)
        with data.loader(epochs=1) as loader:
            loader.start()
            gate.await_reached(0)
            assert loader.stats()["stage.Gate.workers"] == 1
            gate.release()
            assert list(loader) == list(range(20))


def test_close_of_a_loader_leaves_the_work_of_others_on_the_pool():
    with ps.Threads(2) as pool:
        data = ps.from_sequence(range(500)).map(lambda x: x, on=pool)
        with data.loader(epochs=1) as kept:
            batches = iter(kept)
            first = next(batches)
            for _ in range(5):
                with data.loader() as other:
                    next(iter(other))
            assert [first, *batches] == list(range(500))
