"""from_iterable: a function that makes an iterable per epoch, or an iterable that can be iterated again."""

import threading
import time
from itertools import count, islice

import pytest
from tests.cases import for_each
from tests.helpers import any_layout, any_workers, few_layouts

import penstock as ps


def three():
    yield from range(3)


class Again:
    def __iter__(self):
        return iter(range(3))


class OldStyle:
    """Iterated by numbers, without a length."""

    def __getitem__(self, number):
        if number == 3:
            raise IndexError
        return number


class Both(Again):
    """Can be called and iterated."""

    def __call__(self):
        raise AssertionError("called")


@any_workers
@for_each(
    "factory",
    [
        three,
        lambda: [0, 1, 2],
        lambda: iter([0, 1, 2]),
        [0, 1, 2],
        range(3),
        {0: 1, 1: 1, 2: 1},
        Again(),
        OldStyle(),
        Both(),
    ],
)
def test_every_epoch_iterates_anew(layout, factory):
    pipeline = ps.from_iterable(factory).map(lambda x: x, **layout.place)
    assert layout.epochs(pipeline, 3) == [[0, 1, 2]] * 3


def test_a_class_is_a_function_that_makes_an_iterable():
    assert list(ps.from_iterable(Again)) == [0, 1, 2]

    class Reader:
        def __init__(self):
            self.number = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.number += 1
            if self.number > 3:
                raise StopIteration
            return self.number

    with ps.from_iterable(Reader).loader() as loader:
        assert [list(loader), list(loader)] == [[1, 2, 3]] * 2


@any_layout
def test_functions_behind_a_stream_keep_its_order(layout):
    pipeline = ps.from_iterable(lambda: range(500)).map(layout.fn(lambda x: x * 2), **layout.place)
    assert layout.run(pipeline) == list(range(0, 1000, 2))


@for_each("spent", [iter([1]), (x for x in [1]), map(str, [1])])
def test_what_can_be_iterated_only_once_is_refused_with_the_remedy(spent):
    with pytest.raises(ps.PlanError, match=r"only once.*pass the function that makes it"):
        ps.from_iterable(spent)


@few_layouts
def test_a_function_that_gives_the_same_generator_twice_is_an_error_that_says_so(layout):
    generator = three()
    with ps.from_iterable(lambda: generator).loader(**layout.loader) as loader:
        assert list(loader) == [0, 1, 2]
        with pytest.raises(ps.PlanError, match="the same generator again"):
            list(loader)


@for_each("bad", [5, None, 1.5, object()])
def test_what_cannot_be_iterated_is_refused(bad):
    with pytest.raises(ps.PlanError, match="from_iterable needs"):
        ps.from_iterable(bad)


@few_layouts
def test_a_function_that_makes_no_iterable_is_refused_by_its_name(layout):
    def five():
        return 5

    with pytest.raises(ps.PlanError, match=r"\(five at test_iterable.py:\d+\) must return an iterable"):
        layout.run(ps.from_iterable(five))


def test_an_asynchronous_iterable_is_refused_with_the_remedy():
    async def numbers():
        yield 1

    with pytest.raises(ps.PlanError, match="asynchronous"):
        list(ps.from_iterable(numbers()))


@few_layouts
def test_an_asynchronous_generator_function_is_refused_clearly(layout):
    async def numbers():
        yield 1

    with pytest.raises((ps.PlanError, TypeError), match=r"async"):
        layout.run(ps.from_iterable(numbers))


@any_workers
def test_only_a_bounded_number_is_pulled_ahead(layout):
    pulled = 0

    def endless():
        nonlocal pulled
        for number in count():
            pulled += 1
            yield number

    def slow(number):
        time.sleep(0.006)  # longer than a ticket is to take, so that each is one sample
        return number

    with ps.from_iterable(endless).map(slow, **layout.place).loader(**layout.loader) as loader:
        assert list(islice(iter(loader), 10)) == list(range(10))
    assert pulled < 200


def test_nothing_is_pulled_before_the_first_sample_is_asked_for():
    def never():
        raise AssertionError("opened")

    pipeline = ps.from_iterable(never).map(str, workers=2).batch(3)
    with pipeline.loader():
        pass


@for_each("workers", [1, 2, 7])
def test_a_record_is_passed_on_before_the_source_gives_the_next(workers):
    """The source gives a record only after the one before it has been delivered."""
    delivered = threading.Semaphore(1)

    def lockstep():
        for number in range(20):
            if not delivered.acquire(timeout=60):
                raise TimeoutError(f"record {number - 1} was not delivered")
            yield number

    with ps.from_iterable(lockstep).map(lambda x: x, workers=workers).loader(epochs=1) as loader:
        for number, sample in enumerate(loader):
            assert sample == number
            delivered.release()


@few_layouts
def test_the_generator_is_closed_when_the_reader_stops(layout):
    closed = []

    def endless():
        try:
            yield from count()
        finally:
            closed.append(1)

    with ps.from_iterable(endless).map(lambda x: x, **layout.place).loader(**layout.loader) as loader:
        assert next(iter(loader)) == 0
    assert closed == [1]


def test_its_length_is_known_if_the_iterable_has_one():
    assert len(ps.from_iterable([1, 2, 3])) == 3
    assert len(ps.from_iterable([1, 2, 3]).batch(2)) == 2
    for factory in (three, Again()):
        with pytest.raises(ps.LengthUnknown, match="from_iterable"):
            len(ps.from_iterable(factory))


def test_two_loaders_of_one_stream_are_independent():
    pipeline = ps.from_iterable(three)
    with pipeline.loader() as one, pipeline.loader() as other:
        assert list(zip(one, other, strict=True)) == [(0, 0), (1, 1), (2, 2)]
