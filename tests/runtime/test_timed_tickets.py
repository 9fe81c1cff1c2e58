"""Tickets whose calls are timed deliver what others deliver, whatever fails in them, and count all calls."""

import asyncio

import pytest
from tests.cases import for_each

import penstock as ps
from penstock.stats import counters


@pytest.fixture
def every_ticket(monkeypatch):
    """All tickets are timed, in threads: due at once again."""
    monkeypatch.setattr(counters, "EVERY_S", -1e9)
    monkeypatch.setattr(counters, "_MEASURE_S", -1e9)


def double(x):
    return 2 * x


def fails_at_times(x):
    if x % 7 == 0:
        raise ValueError(x)
    return x + 1


async def double_async(x):
    await asyncio.sleep(0)
    return 2 * x


@for_each("options", [{"workers": 1}, {"workers": 3}, {"on": "inline"}])
def test_the_stream_is_the_same(every_ticket, options):
    data = ps.from_sequence(range(500)).map(double, **options).map(str).batch(50, collate=list)
    assert [text for batch in data for text in batch] == [str(2 * x) for x in range(500)]


def test_calls_that_are_not_timed_are_counted(every_ticket):
    with ps.from_sequence(range(5000)).map(double, workers=1).map(abs).loader(epochs=1) as loader:
        assert sum(loader) == sum(range(0, 10_000, 2))
        stats = loader.stats()
    # A ticket that is paused is timed up to its first pause.
    assert 16 < stats["stage.double+abs.op.double.calls"] == stats["stage.double+abs.op.abs.calls"] <= 5000
    assert 16 < stats["stage.double+abs.op.from_sequence.calls"] <= 5000
    assert stats["stage.double+abs.op.double.timed_s"] > 0


@for_each("workers", [1, 3])
def test_samples_that_fail_are_skipped_as_ever(every_ticket, workers):
    data = ps.from_sequence(range(300)).map(double, workers=workers).map(fails_at_times, on_error="skip").map(str)
    expected = [str(2 * x + 1) for x in range(300) if x % 7]
    with data.loader() as loader:
        assert list(loader) == expected
        assert len(loader.errors()) == 43
        assert {record.op for record in loader.errors()} == {"map(fails_at_times)"}


def test_the_exception_is_the_users_and_names_the_op(every_ticket):
    data = ps.from_sequence(range(1, 300)).map(double, workers=1).map(fails_at_times)
    with pytest.raises(ValueError, match="14") as caught:
        list(data)
    assert "map(fails_at_times)" in caught.value.__notes__[0]
    assert "sample 6" in caught.value.__notes__[0]


def test_coroutines_too(every_ticket):
    data = ps.from_sequence(range(300)).map(double_async, workers=4).map(double_async, name="again")
    with data.loader(epochs=1) as loader:
        assert list(loader) == [4 * x for x in range(300)]
        assert 0 < loader.stats()["stage.double_async+again.op.again.calls"] <= 300
