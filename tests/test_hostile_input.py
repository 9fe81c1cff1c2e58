"""What nobody should write, and somebody will: it ends with a clear error, or works; it never hangs."""

import asyncio
import dataclasses
import threading

import numpy as np
import pytest
from tests.cases import for_each
from tests.helpers import ASYNC, BACKGROUND, FOUR, INLINE, any_layout, any_workers, few_layouts, until_error

import penstock as ps

# ---------------------------------------------------------------------- samples


@any_layout
@for_each(
    "source",
    [ps.from_sequence([]), ps.from_iterable(list), ps.from_arrays(np.zeros((0, 3))), ps.fake(((2,), "uint8"), 0)],
)
def test_an_empty_source_ends_cleanly(layout, source):
    fn = layout.fn(lambda x: x)
    assert layout.epochs(source, 3) == [[], [], []]
    assert layout.epochs(source.map(fn, **layout.place).batch(3), 3) == [[], [], []]
    assert layout.epochs(source.filter(fn, **layout.place).shuffle(window=3).repeat(2), 2) == [[], []]
    assert layout.epochs(source.flat_map(fn, **layout.place).take(3).skip(1), 2) == [[], []]
    assert layout.epochs(source.map(fn, **layout.place).cache().unbatch(), 2) == [[], []]


@any_layout
def test_none_is_a_sample_like_any_other(layout):
    fn = layout.fn(lambda x: x)
    nothing = [None] * 20
    assert layout.run(ps.from_sequence(nothing).map(fn, **layout.place)) == nothing
    assert layout.run(ps.from_iterable(lambda: nothing).map(fn, **layout.place).shuffle(window=7)) == nothing
    assert layout.run(ps.from_sequence(nothing).map(fn, **layout.place).cache().batch(20)) == [nothing]
    assert layout.run(ps.from_sequence([1, 2]).flat_map(layout.fn(lambda x: [None]), **layout.place)) == [
        None,
        None,
    ]


@any_workers
@for_each("sample", [StopIteration(), ps.Skip("as a value"), ValueError, (), {}, "", NotImplemented, ...])
def test_odd_values_are_samples_like_any_other(layout, sample):
    pipeline = ps.from_sequence([sample] * 3).map(lambda x: x, **layout.place).batch(2, collate=list)
    # Exceptions are equal only to themselves, and to no copy that comes from another process.
    same = repr if layout.processes else list
    assert same(layout.run(pipeline)) == same([[sample, sample], [sample]])


class Touchy:
    """Cannot be compared, has no truth and no length."""

    def __eq__(self, other):
        raise TypeError("not comparable")

    def __bool__(self):
        raise TypeError("neither true nor false")

    def __len__(self):
        raise TypeError("no length")

    __hash__ = None


@any_workers
def test_samples_are_never_compared_or_asked_for_their_truth(layout):
    pipeline = ps.from_sequence([Touchy() for _ in range(9)]).map(lambda x: x, **layout.place)
    for made in (
        pipeline,
        pipeline.shuffle(window=4),
        pipeline.cache(),
        pipeline.flat_map(lambda x: [x]),
        pipeline.repeat(1),
    ):
        assert len(layout.run(made)) == 9
    assert len(layout.run(pipeline.batch(4))) == 3


# ---------------------------------------------------------------------- workers and places


@for_each("workers", [1, 64])
@for_each("n", [0, 1, 3, 200])
def test_one_worker_and_64_give_the_same(workers, n):
    assert list(ps.from_sequence(range(n)).map(str, workers=workers).batch(7, collate=list).unbatch()) == list(
        map(str, range(n))
    )


@for_each("workers", [-1, "many", True, False, 2.5, [4]])
def test_workers_that_are_no_number_are_refused_where_they_are_written(workers):
    with pytest.raises(ps.PlanError, match="workers"):
        ps.from_sequence([1]).map(str, workers=workers)
    with pytest.raises(ps.PlanError, match=r"workers|Threads"):
        ps.Threads(workers)


@for_each("workers", [-1, "many", True])
@for_each("place", [{}, {"workers": 2}])
def test_workers_of_the_loader_that_are_no_number_are_refused(workers, place):
    with pytest.raises(ps.PlanError, match="workers"):
        ps.from_sequence([1]).map(str, **place).loader(workers=workers)


@for_each("on", ["thraed", "", 5, ps.Threads, ["thread"]])
def test_a_place_that_does_not_exist_is_refused(on):
    with pytest.raises(ps.PlanError):
        list(ps.from_sequence([1]).map(str, on=on))
    with pytest.raises(ps.PlanError):
        list(ps.from_sequence([1]).map(str).loader(on=on))


def test_a_pool_of_auto_size_works():
    assert list(ps.from_sequence(range(20)).map(str, workers="auto")) == list(map(str, range(20)))
    with ps.Threads("auto") as pool:
        assert list(ps.from_sequence(range(20)).map(str, on=pool)) == list(map(str, range(20)))


# ---------------------------------------------------------------------- functions


@any_layout
@for_each("fn", [lambda: 0, lambda a, b: 0, lambda *, key: 0])
def test_wrong_arity_is_a_type_error_that_arrives(layout, fn):
    pipeline = ps.from_sequence(range(50)).map(layout.fn(fn), **layout.place)
    with pytest.raises(TypeError) as caught:
        layout.run(pipeline)
    assert any("sample 0" in note for note in caught.value.__notes__)


@any_workers
@for_each("arguments", [{"rng": True}, {"info": True}, {"star": True}])
def test_arguments_the_function_does_not_take_are_a_type_error(layout, arguments):
    for op in ("map", "filter", "flat_map", "tap"):
        with pytest.raises(TypeError):
            layout.run(getattr(ps.from_sequence([1, 2]), op)(lambda x: [x], **arguments, **layout.place))


@for_each("fn", [5, None, "str", object(), b"abc", {1, 2}])
@for_each("op", ["map", "filter", "flat_map", "tap"])
def test_what_cannot_be_called_is_refused_where_it_is_written(op, fn):
    with pytest.raises(ps.PlanError, match="function"):
        getattr(ps.from_sequence([1]), op)(fn)


@any_layout
@for_each("bad", [0, 7, 49])
def test_a_function_that_raises_stop_iteration_is_an_error_not_the_end(layout, bad):
    def stops(x):
        if x == bad:
            raise StopIteration
        return x

    with ps.from_sequence(range(50)).map(layout.fn(stops), **layout.place).loader(**layout.loader) as loader:
        seen, _ = until_error(loader, RuntimeError)
    assert seen == list(range(bad))


@any_layout
def test_a_function_that_raises_stop_iteration_may_be_skipped(layout):
    def stops(x):
        if x % 5 == 0:
            raise StopIteration
        return x

    pipeline = ps.from_sequence(range(50)).map(layout.fn(stops), on_error="skip", **layout.place)
    assert layout.run(pipeline) == [x for x in range(50) if x % 5]


@few_layouts
@for_each("op", ["filter", "flat_map", "tap"])
def test_stop_iteration_in_other_ops_is_an_error_too(layout, op):
    def stops(x):
        if x == 7:
            raise StopIteration
        return [x]

    with getattr(ps.from_sequence(range(20)), op)(stops, **layout.place).loader(**layout.loader) as loader:
        assert len(until_error(loader, RuntimeError)[0]) == 7


@few_layouts
def test_stop_iteration_in_collate_and_in_a_factory_is_an_error(layout):
    def stops(*_):
        raise StopIteration

    with pytest.raises(RuntimeError):
        layout.run(ps.from_sequence([1, 2]).map(lambda x: x, **layout.place).batch(2, collate=stops))
    with pytest.raises(RuntimeError):
        layout.run(ps.from_sequence([1, 2]).map(ps.per_worker(stops), **layout.place))


# ---------------------------------------------------------------------- exceptions


class OwnError(Exception):
    """Cannot be made again from its args."""

    def __init__(self, path, *, code):
        super().__init__(f"{path} failed with {code}")
        self.path, self.code = path, code


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    """Takes no notes: nothing can be set on it."""

    code: int


class SlottedError(Exception):
    __slots__ = ("code",)

    def __init__(self, code):
        self.code = code

    def __repr__(self):
        raise RuntimeError("no repr")

    __str__ = __repr__


def raising(make):
    def fn(x):
        if x == 13:
            raise make()
        return x

    return fn


@any_layout
@for_each(
    "make, kind",
    [
        (lambda: OwnError("a.jpg", code=7), OwnError),
        (lambda: FrozenError(7), FrozenError),
        (lambda: SlottedError(7), SlottedError),
        (lambda: SystemExit(7), SystemExit),
        (lambda: KeyboardInterrupt(7), KeyboardInterrupt),
        (lambda: GeneratorExit(7), GeneratorExit),
        (lambda: ExceptionGroup("several", [OwnError("a", code=7), ValueError()]), ExceptionGroup),
        (lambda: BaseExceptionGroup("several", [SystemExit(7)]), BaseExceptionGroup),
        (lambda: MemoryError(7), MemoryError),
        (lambda: ps.PlanError("7"), ps.PlanError),
        (lambda: TimeoutError(7), TimeoutError),
        (lambda: ps.StageTimeout("7"), ps.StageTimeout),
    ],
)
def test_the_users_exception_is_the_users_exception(layout, make, kind):
    pipeline = ps.from_sequence(range(50)).map(layout.fn(raising(make)), **layout.place)
    with pipeline.loader(**layout.loader) as loader:
        seen, error = until_error(loader, kind)
    if kind is KeyboardInterrupt and layout is INLINE:
        assert seen == list(range(len(seen)))  # as Ctrl-C would, it stops the reader at once
    else:
        assert seen == list(range(13))
    assert type(error) is kind
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert "fn" in frames


@any_layout
@for_each("make", [lambda: OwnError("a", code=1), lambda: FrozenError(1), lambda: SlottedError(1)])
def test_odd_exceptions_are_skipped_and_recorded_like_others(layout, make):
    pipeline = ps.from_sequence(range(20)).map(layout.fn(raising(make)), on_error="skip", **layout.place)
    with pipeline.loader(epochs=1, **layout.loader) as loader:
        assert list(loader) == [x for x in range(20) if x != 13]
        (record,) = loader.errors()
        assert type(record.exception) is type(make())


@any_layout
@for_each("kind", [SystemExit, KeyboardInterrupt])
@for_each("on_error", ["skip", ps.Retry(3, 0)])
def test_an_exit_is_never_skipped_or_tried_again(layout, kind, on_error, tmp_path):
    def leave(x):
        with open(tmp_path / "calls", "a") as file:
            file.write("called ")
        raise kind

    pipeline = ps.from_sequence([1]).map(layout.fn(leave), on_error=on_error, **layout.place)
    with pytest.raises(kind), pipeline.loader(epochs=1, **layout.loader) as loader:
        list(loader)
    assert (tmp_path / "calls").read_text() == "called "
    (tmp_path / "calls").unlink()


@for_each("layout", [INLINE, BACKGROUND, ASYNC])
def test_a_coroutine_that_was_cancelled_inside_is_an_error_not_a_hang(layout):
    async def cancelled(x):
        if x == 3:
            raise asyncio.CancelledError
        return x

    with ps.from_sequence(range(9)).map(cancelled, **layout.place).loader(**layout.loader) as loader:
        seen, _ = until_error(loader, asyncio.CancelledError)
    assert seen == [0, 1, 2]


@few_layouts
def test_one_exception_object_raised_for_many_samples_is_no_problem(layout):
    same = ValueError("always this one")

    def bad(x):
        raise same

    pipeline = ps.from_sequence(range(30)).map(bad, on_error="skip", **layout.place)
    with pipeline.loader(epochs=1, **layout.loader) as loader:
        assert list(loader) == []
        assert len(loader.errors()) == 30


def test_an_op_that_always_raises_does_not_end_normally():
    with pytest.raises(ZeroDivisionError):
        list(ps.from_sequence(range(100)).map(lambda x: x / 0, workers=4, ordered=False))


# ---------------------------------------------------------------------- sources


class Stream:
    """Gives `n` records and fails at one of them."""

    def __init__(self, n, bad, make):
        self.n, self.bad, self.make = n, bad, make

    def __iter__(self):
        for number in range(self.n):
            if number == self.bad:
                raise self.make()
            yield number
        if self.bad == self.n:
            raise self.make()


class Rows(Stream):
    """The same by number."""

    def __len__(self):
        return self.n

    def __getitem__(self, number):
        if number == self.bad:
            raise self.make()
        return number


@any_layout
@for_each("bad", [0, 5, 29])
@for_each("make", [lambda: OwnError("disk", code=5), lambda: OSError("disk")])
def test_a_source_that_fails_gives_what_came_before_then_its_error(layout, bad, make):
    for source in (ps.from_iterable(Stream(30, bad, make)), ps.from_sequence(Rows(30, bad, make))):
        with source.map(layout.fn(lambda x: x), **layout.place).loader(**layout.loader) as loader:
            seen, error = until_error(loader, type(make()))
        assert seen == list(range(bad))
        assert any(f"sample {bad}" in note for note in error.__notes__)


@any_layout
@for_each("kind", [SystemExit, KeyboardInterrupt])
def test_an_exit_in_a_source_arrives(layout, kind):
    for source in (ps.from_iterable(Stream(30, 19, kind)), ps.from_sequence(Rows(30, 19, kind))):
        with source.map(layout.fn(lambda x: x), **layout.place).loader(**layout.loader) as loader:
            seen, _ = until_error(loader, kind)
        assert seen == list(range(len(seen)))


@any_workers
def test_a_stream_that_fails_behind_its_last_record_is_no_silent_end(layout):
    with ps.from_iterable(Stream(5, 5, OSError)).map(str, **layout.place).loader(**layout.loader) as loader:
        assert until_error(loader, OSError)[0] == list("01234")


@any_workers
def test_a_factory_that_fails_is_an_error_in_every_epoch(layout):
    def no_disk():
        raise OSError("no disk")

    with ps.from_iterable(no_disk).map(str, **layout.place).loader(**layout.loader) as loader:
        for _ in range(3):
            assert until_error(loader, OSError)[0] == []


def test_a_constructor_that_fails_does_so_where_it_is_called():
    class NoDisk:
        def __len__(self):
            raise OSError("no disk")

        def __getitem__(self, number):
            return number

    with pytest.raises(OSError, match="no disk"):
        ps.from_sequence(NoDisk())


@few_layouts
def test_a_source_may_skip_samples_of_its_own(layout):
    source = ps.from_sequence(Rows(10, 4, lambda: ps.Skip("empty file")))
    with source.map(lambda x: x, **layout.place).loader(epochs=1, **layout.loader) as loader:
        assert list(loader) == [x for x in range(10) if x != 4]
        assert [record.index for record in loader.errors()] == [4]
    assert [b.tolist() for b in layout.run(source.batch(3))] == [[0, 1, 2], [3, 5, 6], [7, 8, 9]]


class Lying:
    """Says it has `told` samples, and has `real`."""

    def __init__(self, told, real):
        self.told, self.items = told, list(range(real))

    def __len__(self):
        return self.told

    def __getitem__(self, number):
        return self.items[number]


@any_workers
def test_a_source_with_less_than_its_len_is_an_index_error_at_that_place(layout):
    with ps.from_sequence(Lying(10, 7)).map(lambda x: x, **layout.place).loader(**layout.loader) as loader:
        assert until_error(loader, IndexError)[0] == list(range(7))


@any_workers
def test_a_source_with_more_than_its_len_gives_as_many_as_it_said(layout):
    assert layout.run(ps.from_sequence(Lying(5, 7)).map(lambda x: x, **layout.place)) == list(range(5))


@few_layouts
def test_an_iterable_whose_len_lies_gives_what_it_has(layout):
    class LyingStream(Lying):
        def __iter__(self):
            return iter(self.items)

    assert layout.run(ps.from_iterable(LyingStream(10, 7))) == list(range(7))
    assert layout.run(ps.from_iterable(LyingStream(5, 7))) == list(range(7))


def test_reading_a_pipeline_inside_a_function_of_another_works():
    inner = ps.from_sequence(range(3)).map(lambda x: x + 1)
    assert list(ps.from_sequence(range(10)).map(lambda x: sum(inner) + x, workers=2)) == [6 + x for x in range(10)]


def test_functions_of_a_hundred_stages_do_not_hang():
    pipeline = ps.from_sequence(range(20))
    for _ in range(100):
        pipeline = pipeline.map(lambda x: x + 1)
    assert list(pipeline) == [x + 100 for x in range(20)]
    with ps.Threads(2) as pool:
        pipeline = ps.from_sequence(range(20))
        for _ in range(20):
            pipeline = pipeline.map(lambda x: x + 1, on=pool).shuffle(window=1)
        assert list(pipeline) == [x + 20 for x in range(20)]


def test_the_number_of_calls_at_once_never_exceeds_the_workers():
    lock, now, most = threading.Lock(), 0, 0

    def count(x):
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        with lock:
            now -= 1
        return x

    assert FOUR.run(ps.from_sequence(range(500)).map(count, workers=3)) == list(range(500))
    assert most <= 3


@pytest.mark.parametrize("workers", [2, 4])
def test_n_workers_really_overlap_n_calls(workers):
    together = threading.Barrier(workers, timeout=60)
    assert (
        list(ps.from_sequence(range(workers)).map(lambda x: together.wait() >= 0, workers=workers))
        == [True] * workers
    )
