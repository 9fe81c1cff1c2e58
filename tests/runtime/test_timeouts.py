"""Calls and batches that do not come in time."""

import asyncio
import threading
import warnings
from time import perf_counter

import pytest
from tests.cases import for_each
from tests.runtime.helpers import SOON_S, Clock, await_event, in_thread, until_error

import penstock as ps
from penstock.core import reader

#: long for a call that only returns its sample, short for a test
SHORT_S = 0.5


class Stuck:
    """A function that does not return for some samples until it is released."""

    def __init__(self, *bad):
        self.bad = bad
        self.released = threading.Event()
        self.lock = threading.Lock()
        self.calls = []

    def __call__(self, sample):
        with self.lock:
            self.calls.append(sample)
        if sample in self.bad:
            self.released.wait(SOON_S)
        return sample


@pytest.fixture
def stuck():
    made = []

    def make(*bad):
        made.append(Stuck(*bad))
        return made[-1]

    yield make
    for one in made:
        one.released.set()


def released(loader, *functions):
    """Let the calls that are stuck return, then close."""
    for function in functions:
        function.released.set()
    loader.close()


SOURCES = {
    "indexed": lambda n: ps.from_sequence(range(n)),
    "stream": lambda n: ps.from_iterable(lambda: iter(range(n))),
}
every_source = pytest.mark.parametrize("source", SOURCES)


@every_source
@pytest.mark.parametrize("workers", [1, 3])
def test_a_call_past_its_timeout_fails_at_its_place(stuck, source, workers):
    function = stuck(7)
    loader = SOURCES[source](20).map(function, workers=workers, timeout_s=SHORT_S).loader(epochs=1)
    got, exc = in_thread(lambda: until_error(loader))
    released(loader, function)
    assert got == list(range(7))
    assert isinstance(exc, ps.StageTimeout)
    assert isinstance(exc, TimeoutError)
    assert "map(Stuck)" in str(exc)
    assert any("sample 7" in note for note in exc.__notes__)


@every_source
@pytest.mark.parametrize("workers", [1, 3])
def test_a_call_past_its_timeout_can_be_skipped(stuck, source, workers):
    function = stuck(7)
    data = SOURCES[source](20).map(function, workers=workers, timeout_s=SHORT_S, on_error="skip")
    loader = data.loader(epochs=1)
    got = in_thread(lambda: list(loader))
    stats, errors = loader.stats(), loader.errors()
    released(loader, function)
    assert got == [sample for sample in range(20) if sample != 7]
    assert stats["stuck"] == 1
    assert [(record.index, type(record.exception)) for record in errors] == [(7, ps.StageTimeout)]


def test_each_stuck_call_is_counted_and_replaced(stuck):
    function = stuck(2, 5, 9)
    loader = (
        ps.from_sequence(range(12)).map(function, workers=1, timeout_s=SHORT_S, on_error="skip").loader(epochs=1)
    )
    got = in_thread(lambda: list(loader))
    stats = loader.stats()
    released(loader, function)
    assert got == [0, 1, 3, 4, 6, 7, 8, 10, 11]
    assert stats["stuck"] == 3
    assert stats["errors"] == 3


def test_what_was_delivered_before_a_timeout_is_not_delivered_twice(stuck):
    function = stuck(50)
    loader = (
        ps.from_sequence(range(200)).map(function, workers=2, timeout_s=SHORT_S, on_error="skip").loader(epochs=1)
    )
    got = in_thread(lambda: list(loader))
    released(loader, function)
    assert got == [sample for sample in range(200) if sample != 50]


def test_a_call_that_begins_after_the_late_one_has_returned_is_not_blamed(monkeypatch):
    """The reader sees that the call of sample 0 is late; before it acts, that call returns and the next begins."""
    ahead_s = [10 * SOON_S]
    monkeypatch.setattr(reader, "perf_counter", lambda: perf_counter() + ahead_s[0])
    go_on, next_began, acted = threading.Event(), threading.Event(), threading.Event()

    def staged(sample):
        if sample == 0:
            await_event(go_on)
        if sample == 1:
            next_began.set()
            await_event(acted)
        return sample

    give_up = reader.Reader._give_up

    def late(*args):
        go_on.set()
        await_event(next_began, "the call of sample 1")
        ahead_s[0] = 0.0
        give_up(*args)
        acted.set()

    monkeypatch.setattr(reader.Reader, "_give_up", late)
    # One ticket, since the worker makes the batch.
    data = ps.from_sequence(range(3)).map(staged, workers=1, timeout_s=3 * SOON_S).batch(3, collate=list)
    with data.loader(epochs=1) as loader:
        assert list(loader) == [[0, 1, 2]]
        assert loader.stats()["stuck"] == 0


def test_a_call_that_begins_while_the_reader_waits_is_timed_too(stuck):
    go_on = threading.Event()
    function = stuck(0)

    def first(sample):
        go_on.wait(SOON_S)
        return sample

    data = (
        ps.from_sequence([0, 1]).map(first, workers=1).map(function, workers=1, timeout_s=SHORT_S, on_error="skip")
    )
    loader = data.loader(epochs=1)
    opener = threading.Timer(0.2, go_on.set)  # the reader is most likely parked by then
    opener.start()
    got = in_thread(lambda: list(loader))
    opener.join()
    released(loader, function)
    assert got == [1]


def test_a_retry_after_a_timeout_is_timed_too(stuck):
    function = stuck(1)
    data = ps.from_sequence(range(4)).map(
        function, workers=1, timeout_s=SHORT_S, on_error=ps.Retry(2, 0, then="skip")
    )
    loader = data.loader(epochs=1)
    got = in_thread(lambda: list(loader))
    released(loader, function)
    assert got == [0, 2, 3]


def test_a_retry_after_an_error_is_timed_too(stuck):
    function = stuck(1)
    failed = []

    def first_fails(sample):
        if sample == 1 and not failed:
            failed.append(sample)
            raise OSError("busy")
        return function(sample)

    data = ps.from_sequence(range(4)).map(first_fails, workers=1, timeout_s=SHORT_S, on_error=ps.Retry(1, 0))
    loader = data.loader(epochs=1)
    got = in_thread(lambda: list(loader))
    released(loader, function)
    assert got == [0, 2, 3]


def test_the_next_epoch_runs_although_a_call_of_the_last_is_still_stuck(stuck):
    function = stuck(3)
    loader = (
        ps.from_sequence(range(6)).map(function, workers=1, timeout_s=SHORT_S, on_error="skip").loader(epochs=2)
    )
    epochs = in_thread(lambda: [list(loader), list(loader)])
    released(loader, function)
    assert epochs == [[0, 1, 2, 4, 5]] * 2
    assert loader.stats()["stuck"] == 2


def test_the_late_result_of_a_stuck_call_goes_nowhere(stuck):
    function = stuck(0)
    loader = ps.from_sequence(range(3)).map(function, workers=1, timeout_s=SHORT_S, on_error="skip").loader()
    batches = iter(loader)
    first = in_thread(lambda: next(batches))
    function.released.set()
    assert [first, *batches] == [1, 2]
    assert list(loader) == [0, 1, 2]
    loader.close()


def test_calls_in_time_are_not_touched(stuck):
    function = stuck()
    with ps.from_sequence(range(500)).map(function, workers=4, timeout_s=SOON_S).loader() as loader:
        for _ in range(3):
            assert list(loader) == list(range(500))
        assert loader.stats()["stuck"] == 0


def test_close_warns_of_an_abandoned_call_with_its_stack(stuck):
    function = stuck(0)
    loader = (
        ps.from_sequence(range(3)).map(function, workers=1, timeout_s=SHORT_S, on_error="skip").loader(epochs=1)
    )
    assert in_thread(lambda: list(loader)) == [1, 2]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader.close()
    assert [str(warning.message) for warning in caught if "test_timeouts.py" in str(warning.message)]


def test_a_timeout_in_a_stage_that_makes_batches(stuck):
    function = stuck(5)
    data = ps.from_sequence(range(12)).map(function, workers=2, timeout_s=SHORT_S, on_error="skip")
    loader = data.batch(3, collate=list).loader(epochs=1)
    got = in_thread(lambda: list(loader))
    released(loader, function)
    assert got == [[0, 1, 2], [3, 4, 6], [7, 8, 9], [10, 11]]


# ---------------------------------------------------------------------- async


async def forever(sample):
    if sample == 7:
        await asyncio.Event().wait()
    return sample


@every_source
@for_each("workers", [1, 4])
def test_an_async_call_past_its_timeout_is_cancelled_and_fails_at_its_place(source, workers):
    data = SOURCES[source](20).map(forever, workers=workers, timeout_s=SHORT_S)
    got, exc = in_thread(lambda: until_error(data))
    assert got == list(range(7))
    assert isinstance(exc, ps.StageTimeout)


def test_an_async_call_past_its_timeout_can_be_skipped_and_leaves_nothing_stuck():
    data = ps.from_sequence(range(20)).map(forever, workers=4, timeout_s=SHORT_S, on_error="skip")
    with data.loader(epochs=1) as loader:
        assert in_thread(lambda: list(loader)) == [sample for sample in range(20) if sample != 7]
        assert loader.stats()["stuck"] == 0
        assert [record.index for record in loader.errors()] == [7]


def test_a_timeout_error_of_the_users_own_is_the_users_own():
    async def refused(sample):
        raise TimeoutError("theirs")

    _, exc = until_error(ps.from_sequence([1]).map(refused, workers=1, timeout_s=SOON_S))
    assert type(exc) is TimeoutError
    assert str(exc) == "theirs"


# ---------------------------------------------------------------------- loader(timeout_s=)


def test_a_batch_that_does_not_come_names_op_sample_and_worker(stuck):
    function = stuck(4)
    loader = ps.from_sequence(range(10)).map(function, workers=2).loader(timeout_s=SHORT_S, epochs=1)
    got, exc = in_thread(lambda: until_error(loader))
    released(loader, function)
    assert got == list(range(len(got)))
    assert isinstance(exc, ps.StageTimeout)
    for part in ("map(Stuck)", "sample 4", "worker"):
        assert part in str(exc)


def test_a_batch_held_up_by_an_early_stage_names_that_stage(stuck):
    function = stuck(4)
    data = ps.from_sequence(range(10)).map(function, workers=1).map(lambda x: x, workers=2).batch(2, collate=list)
    loader = data.loader(timeout_s=SHORT_S, epochs=1)
    got, exc = in_thread(lambda: until_error(loader))
    released(loader, function)
    assert got == [[0, 1], [2, 3]][: len(got)]
    assert "map(Stuck)" in str(exc)
    assert "sample 4" in str(exc)


def test_a_batch_held_up_by_an_async_def_names_it_and_the_sample():
    with ps.from_sequence(range(10)).map(forever, workers=2).loader(timeout_s=SHORT_S, epochs=1) as loader:
        got, exc = in_thread(lambda: until_error(loader))
    assert got == list(range(len(got)))
    assert "map(forever)" in str(exc)
    assert "sample 7" in str(exc)


def test_a_batch_held_up_by_a_source_names_it(stuck):
    release = threading.Event()

    def records():
        yield 0
        release.wait(SOON_S)

    loader = ps.from_iterable(records).map(lambda x: x, workers=2).loader(timeout_s=SHORT_S, epochs=1)
    got, exc = in_thread(lambda: until_error(loader))
    release.set()
    loader.close()
    assert got == [0]
    assert isinstance(exc, ps.StageTimeout)
    assert "from_iterable(records" in str(exc)


def test_a_batch_held_up_by_a_read_names_source_and_sample(stuck):
    release = threading.Event()

    class Slow:
        def __len__(self):
            return 10

        def __getitem__(self, index):
            if index == 3:
                release.wait(SOON_S)
            return index

    loader = ps.from_sequence(Slow()).map(lambda x: x, workers=1).loader(timeout_s=SHORT_S, epochs=1)
    got, exc = in_thread(lambda: until_error(loader))
    release.set()
    loader.close()
    assert got == list(range(len(got)))
    assert "from_sequence(Slow" in str(exc)
    assert "sample 3" in str(exc)


def test_a_source_that_blocks_delivers_what_it_has_given():
    """A record does not wait for the next one."""
    release = threading.Event()

    def records():
        yield from range(3)
        release.wait(SOON_S)
        yield 3

    with ps.from_iterable(records).map(lambda x: x, workers=2).loader() as loader:
        batches = iter(loader)
        assert in_thread(lambda: [next(batches) for _ in range(3)]) == [0, 1, 2]
        release.set()
        assert list(batches) == [3]


def test_a_batch_in_time_is_not_touched_and_the_time_begins_anew_for_each():
    data = ps.from_sequence(range(100)).map(lambda x: x, workers=2)
    with data.loader(timeout_s=SOON_S) as loader:
        assert list(loader) == list(range(100))


def test_time_the_training_loop_takes_does_not_count(monkeypatch):
    clock = Clock(monkeypatch, reader)
    data = ps.from_sequence(range(3)).map(lambda x: x, workers=1)
    with data.loader(timeout_s=SOON_S) as loader:
        got = []
        for sample in loader:
            got.append(sample)
            clock.ahead_s += 2 * SOON_S
    assert got == [0, 1, 2]


@for_each("timeout_s", [0, -1])
def test_a_timeout_that_is_not_positive_is_refused(timeout_s):
    with pytest.raises(ps.PlanError, match="timeout_s"):
        ps.from_sequence([1]).loader(timeout_s=timeout_s)
    with pytest.raises(ps.PlanError, match="timeout_s"):
        ps.from_sequence([1]).map(str, timeout_s=timeout_s)
