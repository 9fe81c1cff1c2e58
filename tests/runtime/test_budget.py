"""The bound in bytes, as numbers."""

import random

import pytest
from tests.cases import for_each

import penstock as ps
from penstock.core.budget import Budget, Estimate, parse_bytes


@for_each(
    "amount, expected",
    [
        (None, None),
        (1, 1),
        (123456, 123456),
        ("1", 1),
        ("10b", 10),
        ("2kB", 2_000),
        ("2 KB", 2_000),
        ("2KiB", 2_048),
        ("1.5MB", 1_500_000),
        ("512MiB", 512 * 2**20),
        ("2GB", 2 * 10**9),
        ("2g", 2 * 10**9),
        ("1TiB", 2**40),
        (" 3 mb ", 3_000_000),
    ],
)
def test_sizes_are_read_as_people_write_them(amount, expected):
    assert parse_bytes(amount) == expected


@for_each("amount", [0, -1, True, False, "", "GB", "2XB", "two", "-2GB", "0GB", [1], "1 2GB", "nan"])
def test_what_is_no_size_is_refused_with_the_value(amount):
    with pytest.raises(ps.PlanError, match="memory=") as caught:
        parse_bytes(amount)
    assert repr(amount) in str(caught.value)


def test_without_a_bound_everything_is_admitted():
    budget = Budget(None)
    budget.take(10**15)
    assert not budget.bounded
    assert budget.admits(10**15)


def test_a_bound_admits_up_to_its_last_byte():
    budget = Budget(100)
    budget.take(60)
    assert budget.bounded
    assert budget.admits(40)
    assert not budget.admits(41)


def test_the_peak_remembers_what_was_used_at_most():
    budget = Budget(100)
    budget.take(70)
    budget.give_back(50)
    budget.take(30)
    assert (budget.used, budget.peak) == (50, 70)


def test_what_is_taken_only_when_admitted_never_exceeds_the_bound():
    for seed in range(20):
        rng = random.Random(seed)
        budget, held = Budget(1000), []
        for _ in range(500):
            size = rng.randrange(400)
            if rng.random() < 0.6 and budget.admits(size):
                budget.take(size)
                held.append(size)
            elif held:
                budget.give_back(held.pop(rng.randrange(len(held))))
            assert budget.used == sum(held)
        assert budget.peak <= 1000


def test_an_estimate_is_the_largest_of_the_recent_chunks():
    estimate = Estimate()
    assert estimate.nbytes == 0
    for size in (10, 500, 20):
        estimate.add(size)
    assert estimate.nbytes == 500


def test_an_estimate_forgets_one_large_chunk_in_time():
    estimate = Estimate()
    estimate.add(10**6)
    for _ in range(100):
        estimate.add(10)
    assert estimate.nbytes == 10


def test_an_estimate_remembers_the_largest_of_all_and_whether_the_last_were_alike():
    estimate = Estimate()
    assert not estimate.alike
    for nbytes in (1000, 600, 900):
        estimate.add(nbytes)
    assert estimate.alike
    estimate.add(400)
    assert not estimate.alike
    for _ in range(20):
        estimate.add(10)
    assert (estimate.nbytes, estimate.largest, estimate.alike) == (10, 1000, True)


def test_idle_blocks_may_take_what_neither_samples_nor_blocks_that_are_out_take():
    budget = Budget(100)
    assert (budget.spare(0), budget.spare(70), budget.spare(170)) == (100, 30, 0)
    budget.take(80)
    assert (budget.spare(0), budget.spare(70), budget.spare(90)) == (20, 20, 10)
    budget.take(80)
    assert budget.spare(0) == 0
