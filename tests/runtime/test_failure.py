"""A sample that fails: what was good comes first, then the user's own exception at its place."""

import gc
import itertools
import threading
import traceback
import weakref

import pytest
from tests.cases import for_each
from tests.runtime.helpers import LAYOUTS, await_event, fail_at, placed, until_error

import penstock as ps

every_layout = for_each("layout", LAYOUTS)
SOURCES = {
    "indexed": lambda n: ps.from_sequence(range(n)),
    "stream": lambda n: ps.from_iterable(lambda: iter(range(n))),
}
every_source = for_each("source", SOURCES)


async def fetch_but_not_7(sample):
    if sample == 7:
        raise ValueError("bad 7")
    return sample


# ---------------------------------------------------------------------- at its place


@every_source
@every_layout
@for_each("bad", [0, 7, 39])
def test_good_samples_come_first_then_the_error(source, layout, bad):
    data = SOURCES[source](40).map(fail_at(bad), **placed(layout))
    with data.loader(epochs=1) as loader:
        got, exc = until_error(loader)
    assert got == list(range(bad))
    assert repr(exc) == f"ValueError('bad {bad}')"


@every_source
def test_good_samples_of_an_async_stage_come_first_too(source):
    got, exc = until_error(SOURCES[source](40).map(fetch_but_not_7, workers=8))
    assert got == list(range(7))
    assert repr(exc) == "ValueError('bad 7')"


@every_source
@every_layout
def test_whole_batches_before_the_failed_sample_come_first(source, layout):
    data = SOURCES[source](40).map(fail_at(17), **placed(layout)).batch(5, collate=list)
    got, exc = until_error(data)
    assert got == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11, 12, 13, 14]]
    assert repr(exc) == "ValueError('bad 17')"


@every_layout
def test_the_error_of_the_earlier_sample_wins_even_if_the_later_one_fails_first(layout):
    for _ in range(20):
        got, exc = until_error(ps.from_sequence(range(30)).map(fail_at(11, 12, 13, 20), **placed(layout)))
        assert got == list(range(11))
        assert repr(exc) == "ValueError('bad 11')"


def test_a_later_failure_waits_for_earlier_samples():
    failed = threading.Event()

    def first_waits(sample):
        if sample == 0:
            await_event(failed, "the failure")
        if sample == 1:
            failed.set()
            raise ValueError("bad 1")
        return sample

    got, exc = until_error(ps.from_sequence(range(5)).map(first_waits, workers=2))
    assert got == [0]
    assert repr(exc) == "ValueError('bad 1')"


@every_source
def test_an_error_of_an_early_stage_comes_through_all_later_ones(source):
    data = (
        SOURCES[source](40)
        .map(fail_at(9), workers=2)
        .map(lambda x: x, workers=3)
        .filter(lambda x: x % 2 == 0)
        .batch(2, collate=list)
        .map(lambda x: x, workers=2)
    )
    got, exc = until_error(data)
    assert got == [[0, 2], [4, 6]]
    assert repr(exc) == "ValueError('bad 9')"


def test_the_upstream_is_stopped_after_a_failure():
    calls = []
    data = ps.from_sequence(range(10**6)).map(lambda x: calls.append(x) or x, workers=1).map(fail_at(3), workers=1)
    with data.loader(epochs=1) as loader:
        until_error(loader)
        made = len(calls)
    assert made < 10**5


def test_a_failing_stream_is_closed():
    closed = threading.Event()

    def records():
        try:
            yield from itertools.count()
        finally:
            closed.set()

    with ps.from_iterable(records).map(fail_at(5), workers=2).loader() as loader:
        got, _ = until_error(loader)
        assert got == [0, 1, 2, 3, 4]
    await_event(closed, "the end of the source")


@every_layout
def test_after_a_failure_the_iterator_is_spent_and_the_next_epoch_begins(layout):
    once = [1]

    def fails_once(sample):
        if sample == 3 and once:
            once.clear()
            raise ValueError("bad 3")
        return sample

    with ps.from_sequence(range(6)).map(fails_once, **placed(layout)).loader(epochs=2) as loader:
        batches = iter(loader)
        assert until_error(batches)[0] == [0, 1, 2]
        assert list(batches) == []
        assert list(loader) == [0, 1, 2, 3, 4, 5]
        assert loader.epoch == 1


# ---------------------------------------------------------------------- the user's exception


class Odd(Exception):
    """An exception whose constructor wants more than a message."""

    def __init__(self, code, *, detail):
        super().__init__(code)
        self.code, self.detail = code, detail


THE_ONE = Odd(7, detail={"a": 1})


@every_layout
def test_the_exception_is_the_users_own_object(layout):
    error = Odd(7, detail={"a": 1})

    def bad(sample):
        raise error

    got, exc = until_error(ps.from_sequence([1]).map(bad, **placed(layout)))
    assert got == []
    assert exc is error


def deep(sample):
    return deeper(sample)


def deeper(sample):
    raise LookupError(f"no {sample}")


@for_each("layout", LAYOUTS)
def test_the_traceback_holds_the_users_frames(layout):
    _, exc = until_error(ps.from_sequence([3]).map(deep, **placed(layout)))
    names = [frame.name for frame in traceback.extract_tb(exc.__traceback__)]
    assert names[-2:] == ["deep", "deeper"]


@for_each("layout", LAYOUTS)
def test_one_note_names_op_line_sample_and_worker(layout):
    _, exc = until_error(ps.from_sequence(range(100, 120)).map(lambda x: x, **placed(layout)).map(deep_at_105))
    (note,) = exc.__notes__
    assert "map(deep_at_105)" in note
    assert f"test_failure.py:{deep_at_105.__code__.co_firstlineno}" in note
    assert "sample 5" in note
    assert "worker" in note


def deep_at_105(sample):
    return deep(sample) if sample == 105 else sample


def test_the_note_names_the_sample_by_its_number_in_the_source_under_shuffle():
    _, exc = until_error(ps.from_sequence(range(1000)).shuffle().map(fail_at(123), workers=2))
    assert any("sample 123" in note for note in exc.__notes__)


@every_layout
@for_each("error", [SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, StopAsyncIteration])
def test_unusual_exceptions_end_the_run_and_never_hang(layout, error):
    data = ps.from_sequence(range(6)).map(fail_at(3, error=error), **placed(layout))
    with data.loader(epochs=1) as loader:
        got, exc = until_error(loader)
    assert got == [0, 1, 2]
    assert isinstance(exc, error) or (
        error in (StopIteration, StopAsyncIteration) and isinstance(exc, RuntimeError)
    )


@for_each("error", [SystemExit, KeyboardInterrupt])
def test_what_is_no_exception_ends_the_run_although_errors_are_skipped(error):
    data = ps.from_sequence(range(6)).map(fail_at(3, error=error), workers=2, on_error="skip")
    got, exc = until_error(data)
    assert got == [0, 1, 2]
    assert isinstance(exc, error)


def test_a_group_of_exceptions_arrives_whole():
    group = ExceptionGroup("several", [ValueError(1), KeyError(2)])

    def bad(sample):
        raise group

    _, exc = until_error(ps.from_sequence([1]).map(bad, workers=2))
    assert exc is group


def test_a_cause_is_kept():
    def bad(sample):
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("outer") from inner

    _, exc = until_error(ps.from_sequence([1]).map(bad, workers=2))
    assert isinstance(exc.__cause__, KeyError)


def test_an_exception_without_room_for_notes_still_arrives():
    class Strict(Exception):
        def add_note(self, note):
            raise RuntimeError("no notes here")

    def bad(sample):
        raise Strict

    _, exc = until_error(ps.from_sequence([1]).map(bad, workers=2))
    assert isinstance(exc, Strict)


@every_layout
def test_the_same_exception_object_raised_many_times_does_not_grow(layout):
    error = ValueError("always the same")

    def bad(sample):
        raise error

    with ps.from_sequence(range(200)).map(bad, on_error="skip", **placed(layout)).loader(epochs=1) as loader:
        assert list(loader) == []
        assert len(loader.errors()) == 200


@for_each("layout", LAYOUTS)
def test_wrong_arity_fails_at_once(layout):
    got, exc = until_error(ps.from_sequence(range(5)).map(lambda: None, **placed(layout)))
    assert got == []
    assert isinstance(exc, TypeError)


# ---------------------------------------------------------------------- sources


def test_a_source_that_raises_in_its_factory():
    def records():
        raise OSError("no such bucket")

    got, exc = until_error(ps.from_iterable(records).map(lambda x: x, workers=2))
    assert got == []
    assert repr(exc) == "OSError('no such bucket')"


@for_each("good", [0, 1, 5, 100])
@every_layout
def test_a_stream_that_raises_after_its_good_records(good, layout):
    def records():
        yield from range(good)
        raise OSError("connection lost")

    with ps.from_iterable(records).map(lambda x: x, **placed(layout)).loader(epochs=1) as loader:
        got, exc = until_error(loader)
        assert got == list(range(good))
        assert repr(exc) == "OSError('connection lost')"
        (record,) = loader.errors()
        assert (record.index, record.epoch, record.exception) == (good, 0, exc)


class Torn:
    """A data set that cannot read some of its samples."""

    def __init__(self, n, *bad):
        self.n, self.bad = n, bad

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        if index in self.bad:
            raise OSError(f"torn {index}")
        return index


@every_layout
@for_each("bad", [0, 7, 29])
def test_an_indexed_source_that_cannot_read_a_sample(layout, bad):
    with ps.from_sequence(Torn(30, bad)).map(lambda x: x, **placed(layout)).loader(epochs=1) as loader:
        got, exc = until_error(loader)
        assert got == list(range(bad))
        assert repr(exc) == f"OSError('torn {bad}')"
        assert [record.index for record in loader.errors()] == [bad]


def test_a_source_whose_length_fails_says_so_when_the_loader_is_made_or_read():
    class Lost:
        def __len__(self):
            raise OSError("no index file")

        def __getitem__(self, index):
            return index

    def use():
        with ps.from_sequence(Lost()).loader() as loader:
            list(loader)

    with pytest.raises(OSError, match="no index file"):
        use()


def test_a_source_that_is_too_short_is_an_error_and_not_a_hang():
    class Short(list):
        def __len__(self):
            return 10

    got, exc = until_error(ps.from_sequence(Short([0, 1, 2])).map(lambda x: x, workers=2))
    assert got == [0, 1, 2]
    assert isinstance(exc, IndexError)


# ---------------------------------------------------------------------- initialisers


@for_each("layout", LAYOUTS)
def test_a_failing_initialiser_surfaces(layout):
    def make():
        raise OSError("no licence")

    with ps.from_sequence(range(5)).map(ps.per_worker(make), **placed(layout)).loader(epochs=1) as loader:
        got, exc = until_error(loader)
    assert got == []
    assert repr(exc) == "OSError('no licence')"
    assert any("make" in note for note in exc.__notes__)


def test_a_failing_initialiser_of_an_async_stage_surfaces():
    def make():
        raise OSError("no licence")

    got, exc = until_error(ps.from_sequence(range(5)).map(ps.per_worker(make), on="async"))
    assert got == []
    assert repr(exc) == "OSError('no licence')"


def test_an_initialiser_that_makes_no_function_says_so():
    got, exc = until_error(ps.from_sequence(range(5)).map(ps.per_worker(lambda: 3), workers=2))
    assert got == []
    assert isinstance(exc, ps.PlanError)


def test_an_initialiser_runs_once_per_worker_over_all_epochs():
    made = []

    def make():
        made.append(threading.get_ident())
        barrier.wait(60)
        return lambda sample: sample

    barrier = threading.Barrier(3)
    with ps.from_sequence(range(50)).map(ps.per_worker(make), workers=3).loader() as loader:
        for _ in range(10):
            assert list(loader) == list(range(50))
    assert len(made) == 3
    assert len(set(made)) == 3


@for_each("error", [ps.Skip, ValueError])
def test_what_was_skipped_keeps_no_other_sample_alive(error):
    """An exception keeps the frames it went through; those of the library hold all samples of the chunk."""
    alive = []

    class Sample:
        pass

    def every_second(x):
        if x % 2:
            raise error
        sample = Sample()
        alive.append(weakref.ref(sample))
        return sample

    pipeline = ps.from_sequence(range(50)).map(every_second, workers=2, on_error="skip")
    with pipeline.loader() as loader:
        for _ in range(30):
            for _ in loader:
                pass
        assert len(loader.errors()) == 750
        # The user's own frames are there, for whoever wants to look.
        assert {"every_second"} <= {
            frame.name for frame in traceback.extract_tb(loader.errors()[0].exception.__traceback__)
        }
        gc.collect()
        assert sum(one() is not None for one in alive) < 150


BEHIND = {
    "a batch": lambda data: data.batch(4),
    "a window": lambda data: data.shuffle(window=4),
    "two joints": lambda data: data.shuffle(window=4).batch(2),
    "a reservoir": lambda data: data.reservoir(10),
    "alternating outputs": lambda data: data.flat_map(lambda x: [x], interleave=3).batch(2),
    "another stage": lambda data: data.map(lambda x: x, workers=2).batch(4),
}


@for_each("source", ["indexed", "stream"])
@for_each("behind", BEHIND)
def test_where_everything_fails_the_limit_is_heeded_though_no_batch_is_ever_made(behind, source):
    calls = []

    def fails(x):
        calls.append(x)
        raise ValueError(x)

    endless = ps.from_sequence(range(10**9)) if source == "indexed" else ps.from_iterable(itertools.count)
    data = BEHIND[behind](endless.map(fails, on_error="skip"))
    with data.loader(max_errors=10, timeout_s=20) as loader:
        with pytest.raises(ps.TooManyErrors, match="11 samples failed"):
            next(iter(loader))
        assert [record.index for record in loader.errors()] == list(range(11))
    assert len(calls) < 20_000
