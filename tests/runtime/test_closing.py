"""Whatever a loader is doing, it can be ended, and nothing stays behind."""

import asyncio
import gc
import itertools
import threading
import time
import warnings
import weakref

import pytest
from tests.cases import for_each
from tests.runtime.helpers import LAYOUTS, Gate, Peak, await_event, begin_with, in_thread, placed

import penstock as ps
from penstock.testing.leaks import leaks_since, snapshot


def identity(sample):
    return sample


async def fetch(sample):
    return sample


LONG = ps.from_sequence(range(10_000))
ENDLESS = ps.from_iterable(lambda: itertools.count())
every_layout = for_each("layout", LAYOUTS)
#: where the workers are the loader's own, and end with it
every_own_layout = for_each("layout", [layout for layout in LAYOUTS if layout != "pool"])


def assert_nothing_left(before):
    assert leaks_since(before) == []


@every_layout
def test_closing_many_times_is_closing_once(layout):
    loader = LONG.map(identity, **placed(layout)).loader()
    next(iter(loader))
    for _ in range(3):
        loader.close()


def test_a_loader_that_never_ran_can_be_closed():
    loader = LONG.map(identity, workers=2).loader()
    loader.close()
    loader.close()


def test_several_threads_may_close_at_once():
    loader = LONG.map(identity, workers=2).loader()
    next(iter(loader))
    barrier = threading.Barrier(4)
    threads = [threading.Thread(target=lambda: (barrier.wait(), loader.close())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@every_own_layout
def test_the_context_manager_closes(layout):
    before = snapshot()
    with LONG.map(identity, **placed(layout)).loader() as loader:
        next(iter(loader))
    assert_nothing_left(before)


@every_layout
def test_use_after_close_is_an_error_that_says_so(layout):
    loader = LONG.map(identity, **placed(layout)).loader()
    loader.close()
    for use in (
        lambda: next(iter(loader)),
        loader.start,
        lambda: list(loader.epochs(1)),
        lambda: next(loader.steps(1)),
    ):
        with pytest.raises(ps.PenstockError, match="closed"):
            use()


@every_layout
def test_an_iteration_whose_loader_was_closed_ends_or_says_so(layout):
    loader = LONG.map(identity, **placed(layout)).loader()
    batches = iter(loader)
    next(batches)
    loader.close()
    try:
        assert list(batches) == []
    except ps.PenstockError as exc:
        assert "closed" in str(exc)  # noqa: PT017


def test_stats_and_errors_can_be_read_after_close():
    with ps.from_sequence(range(3)).map(identity, workers=2).loader(epochs=1) as loader:
        list(loader)
    assert loader.stats()["samples"] == 3
    assert loader.errors() == []
    assert "closed" in repr(loader)


@for_each("place", [{}, {"on": "inline"}, {"workers": 1}, {"workers": 4}])
def test_an_infinite_source_can_be_closed(place):
    before = snapshot()
    with ENDLESS.map(identity, **place).batch(4, collate=list).loader() as loader:
        assert next(iter(loader)) == [0, 1, 2, 3]
    assert_nothing_left(before)


def test_an_endless_repeat_can_be_closed():
    with ps.from_sequence(range(3)).repeat().map(identity, workers=2).loader() as loader:
        assert list(itertools.islice(loader, 7)) == [0, 1, 2, 0, 1, 2, 0]


@for_each("pipeline", [LONG, ENDLESS])
@for_each("place", [{"workers": 3}, {"workers": 8, "on": "async"}])
def test_close_with_full_buffers_and_no_reader(pipeline, place):
    before = snapshot()
    full = threading.Event()
    made = itertools.count(1)

    def count():
        if next(made) >= 2 * place["workers"]:
            full.set()

    async def slowly(sample):
        count()
        return sample

    def plainly(sample):
        count()
        return sample

    fn = slowly if place.get("on") == "async" else plainly
    with pipeline.map(fn, **place).loader() as loader:
        loader.start()
        await_event(full, "a full buffer")
    assert_nothing_left(before)


def test_close_from_another_thread_wakes_a_reader_that_waits():
    gate = Gate(1)
    loader = ps.from_sequence(range(3)).map(gate, workers=1).loader()
    batches = iter(loader)
    assert next(batches) == 0

    def closed_meanwhile():
        gate.await_reached(1)
        closing = threading.Thread(target=loader.close)
        closing.start()
        try:
            return list(batches)
        except ps.PenstockError as exc:
            return str(exc)
        finally:
            gate.release()
            closing.join()

    outcome = in_thread(closed_meanwhile)
    assert outcome == [] or "closed" in outcome


def test_close_waits_for_calls_in_hand():
    gate = Gate(0)
    inside = Peak()

    def slowly(sample):
        with inside:
            return gate(sample)

    loader = ps.from_sequence(range(3)).map(slowly, workers=1).loader()
    loader.start()
    gate.await_reached(0)
    threading.Timer(0.05, gate.release).start()
    loader.close()
    assert inside.inside == 0


def test_calls_that_do_not_return_are_waited_for_together_not_one_after_the_other():
    release = threading.Event()
    inside = threading.Barrier(9)

    def stuck(sample):
        inside.wait(60)
        release.wait(60)
        return sample

    loader = ps.from_sequence(range(100)).map(stuck, workers=8).loader()
    loader.start()
    inside.wait(60)
    timer = threading.Timer(10, release.set)
    timer.start()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader.close()
    given_up_before_release = not release.is_set()
    release.set()
    timer.cancel()
    timer.join()
    assert given_up_before_release
    assert len(caught) == 8


def test_no_call_is_begun_after_close():
    calls = []
    with LONG.map(lambda s: calls.append(s) or s, workers=4).loader() as loader:
        next(iter(loader))
    before = len(calls)
    gc.collect()
    assert len(calls) == before


def test_close_warns_of_a_call_that_does_not_return_and_shows_where_it_stands():
    gate = Gate(0)
    loader = ps.from_sequence(range(3)).map(gate, workers=1).loader()
    loader.start()
    gate.await_reached(0)
    try:
        with pytest.warns(RuntimeWarning, match="await_event"):
            loader._engine.close(grace_s=0.1)
    finally:
        gate.release()


# ---------------------------------------------------------------------- the source is closed too


@for_each("workers", [1, 4])
def test_breaking_off_closes_the_generator_of_the_source(workers):
    closed = threading.Event()

    def records():
        try:
            yield from range(10_000)
        finally:
            closed.set()

    with ps.from_iterable(records).map(identity, workers=workers).loader() as loader:
        for _ in loader:
            break
        await_event(closed, "the end of the source")


def test_closing_the_loader_closes_the_generator_of_the_source():
    closed = threading.Event()

    def records():
        try:
            yield from itertools.count()
        finally:
            closed.set()

    loader = ps.from_iterable(records).map(identity, workers=2).loader()
    next(iter(loader))
    loader.close()
    gc.collect()
    await_event(closed, "the end of the source")


# ---------------------------------------------------------------------- garbage collection


@every_layout
def test_a_loader_nobody_holds_is_collected_with_its_workers(layout):
    before = snapshot()
    loader = LONG.map(identity, **placed(layout)).loader()
    batches = iter(loader)
    next(batches)
    alive = weakref.ref(loader)
    del loader, batches
    gc.collect()
    assert alive() is None
    assert_nothing_left(before)


def test_a_started_loader_nobody_holds_is_collected():
    before = snapshot()
    LONG.map(identity, workers=4).loader().start()
    gc.collect()
    assert_nothing_left(before)


@every_layout
def test_an_abandoned_iterator_of_a_pipeline_is_collected_with_its_workers(layout):
    before = snapshot()
    batches = iter(LONG.map(identity, **placed(layout)))
    next(batches)
    del batches
    gc.collect()
    assert_nothing_left(before)


def test_an_abandoned_iterator_of_a_loader_leaves_the_loader_usable():
    with ps.from_sequence(range(5)).map(identity, workers=2).loader() as loader:
        next(iter(loader))
        gc.collect()
        assert list(loader) == [0, 1, 2, 3, 4]


def test_an_iterator_keeps_its_loader_alive():
    batches = iter(ps.from_sequence(range(100)).map(identity, workers=2).loader(epochs=1))
    gc.collect()
    assert list(batches) == list(range(100))


def test_a_loader_in_a_reference_cycle_is_collected():
    class Trainer:
        pass

    before = snapshot()
    trainer = Trainer()
    trainer.myself = trainer
    trainer.loader = LONG.map(identity, workers=2).loader()
    trainer.batches = iter(trainer.loader)
    next(trainer.batches)
    del trainer
    gc.collect()
    assert_nothing_left(before)


def begin_a_loader_that_its_own_function_holds():
    held = []

    def holds(sample):
        return sample, held

    held.append(LONG.map(holds, workers=2).loader())
    next(iter(held[0]))


def test_a_loader_held_by_its_own_function_is_collected():
    before = snapshot()
    begin_a_loader_that_its_own_function_holds()
    gc.collect()
    assert_nothing_left(before)


def failed_loader(close):
    """References to a loader whose epoch ended in an error, and to what the reader's frame held."""

    class Local:
        pass

    def bad(sample):
        raise ValueError(sample)

    local = Local()
    loader = LONG.map(bad, workers=2).loader()
    with pytest.raises(ValueError):
        list(loader)
    if close:
        loader.close()
    return weakref.ref(loader), weakref.ref(local)


@for_each("close", [True, False])
def test_a_loader_whose_epoch_failed_is_collected_with_all_its_frames(close):
    before = snapshot()
    loader, local = failed_loader(close)
    gc.collect()
    assert loader() is None
    assert local() is None
    assert_nothing_left(before)


def test_a_pool_is_collected_after_a_failure_on_it():
    def failed():
        pool = ps.Threads(2)
        with pytest.raises(ValueError):
            list(LONG.map(int, on=pool).map(lambda x: int("no number")))
        return weakref.ref(pool)

    before = snapshot()
    pool = failed()
    deadline = time.monotonic() + 60
    while pool() is not None and time.monotonic() < deadline:
        threading.Event().wait(0.01)  # a worker may still have its last ticket in hand
        gc.collect()
    assert pool() is None
    assert_nothing_left(before)


def test_delivered_samples_are_not_kept():
    class Sample:
        pass

    with ps.from_sequence(range(100)).map(lambda _: Sample(), workers=2).loader(epochs=1) as loader:
        seen = []
        for sample in loader:
            seen.append(weakref.ref(sample))
            del sample
        gc.collect()
        assert sum(ref() is not None for ref in seen) == 0


@pytest.mark.parametrize("first", [1, 50])
def test_samples_of_an_epoch_that_was_broken_off_are_let_go(first, monkeypatch):
    class Sample:
        pass

    made = []

    def make(_):
        sample = Sample()
        made.append(weakref.ref(sample))
        return sample

    begin_with(monkeypatch, first)
    with ps.from_sequence(range(1000)).map(make, workers=2).loader(epochs=1) as loader:
        for _ in loader:
            break
        assert loader.stats()["samples"] == 1
    del _
    gc.collect()
    assert sum(ref() is not None for ref in made) == 0
    assert loader.stats()["samples"] == 1


# ---------------------------------------------------------------------- the training loop fails


@every_own_layout
def test_an_exception_in_the_training_loop_leaves_nothing_behind(layout):
    before = snapshot()
    with pytest.raises(ZeroDivisionError), LONG.map(identity, **placed(layout)).loader() as loader:
        for _ in loader:
            raise ZeroDivisionError
    assert_nothing_left(before)


def train_badly(pipeline):
    for sample in pipeline:
        raise ZeroDivisionError(sample)


@every_layout
def test_an_exception_in_a_loop_over_the_pipeline_leaves_nothing_behind(layout):
    before = snapshot()
    with pytest.raises(ZeroDivisionError):
        train_badly(LONG.map(identity, **placed(layout)))
    gc.collect()
    assert_nothing_left(before)


def test_the_loader_goes_on_after_an_exception_in_the_training_loop():
    with ps.from_sequence(range(5)).map(identity, workers=2).loader() as loader:
        with pytest.raises(ZeroDivisionError):
            for _ in loader:
                raise ZeroDivisionError
        assert list(loader) == [0, 1, 2, 3, 4]


def test_a_kept_traceback_does_not_stop_close():
    kept = []
    loader = LONG.map(identity, workers=2).loader()
    try:
        for _ in loader:
            raise ZeroDivisionError
    except ZeroDivisionError as exc:
        kept.append(exc)
    before = snapshot()
    loader.close()
    assert_nothing_left(before)


# ---------------------------------------------------------------------- async


def test_a_call_that_awaits_for_ever_does_not_hold_up_close():
    waiting = threading.Event()

    async def forever(sample):
        waiting.set()
        await asyncio.Event().wait()

    before = snapshot()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # close may say which call did not end
        loader = ps.from_sequence(range(3)).map(forever, workers=2).loader()
        loader.start()
        await_event(waiting, "the call")
        loader.close()
    assert_nothing_left(before)


def test_closing_an_async_stage_cancels_calls_in_hand():
    waiting, cancelled = threading.Event(), threading.Event()

    async def forever(sample):
        waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    loader = ps.from_sequence(range(3)).map(forever, workers=2).loader()
    loader.start()
    await_event(waiting, "the call")
    loader.close()
    assert cancelled.is_set()


def test_breaking_off_ends_the_epoch_for_an_async_stage_too():
    with ps.from_sequence(range(50)).map(fetch, workers=4).loader() as loader:
        for _ in loader:
            break
        assert list(loader) == list(range(50))
