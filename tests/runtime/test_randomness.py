"""Random numbers that depend on what they are for."""

import numpy as np
import pytest
from tests.cases import for_each

import penstock as ps
from penstock.randomness import Draws, derive, permute


def order(n, key):
    return permute(np.arange(n), n, key)


def test_every_n_up_to_2000_gives_a_bijection():
    for n in range(1, 2001):
        assert np.array_equal(np.sort(order(n, key=n * 7919)), np.arange(n)), n


@for_each("n", [4095, 4096, 4097, 10_007, 65_536, 65_537, 200_000])
def test_larger_n_give_a_bijection_too(n):
    for key in (0, 1, derive("x")):
        assert np.bincount(order(n, key), minlength=n).tolist() == [1] * n


@for_each("n", [2**32 - 1, 2**32, 2**32 + 1, 10**12])
def test_huge_n_stay_in_range_without_a_repetition(n):
    positions = np.linspace(0, n - 1, 50_000, dtype=np.int64)
    places = permute(positions, n, derive("huge"))
    assert places.min() >= 0
    assert places.max() < n
    assert len(np.unique(places)) == len(np.unique(positions))


@for_each("n", [2, 5, 100, 256, 257, 1000, 5000])
def test_any_position_alone_goes_where_it_goes_with_all_others(n):
    key = derive("alone", n)
    whole = order(n, key)
    some = np.array([0, n - 1, n // 2, 0])
    assert permute(some, n, key).tolist() == whole[some].tolist()


def test_positions_are_left_as_they_were():
    positions = np.arange(300)
    permute(positions, 300, 1)
    assert positions.tolist() == list(range(300))


def chi_square(counts):
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


@for_each("n", [7, 50, 256, 257, 300])
def test_each_sample_comes_to_each_place_equally_often(n):
    rounds, position = 200 * n if n < 60 else 40 * n, n // 3
    at = np.array([position])
    counts = np.bincount(
        [int(permute(at, n, derive("uniform", r))[0]) for r in range(min(rounds, 5_000))], minlength=n
    )
    # The statistic has mean n - 1 and deviation sqrt(2(n - 1)); six deviations are one in 10^8 or rarer.
    assert chi_square(counts) < (n - 1) + 6 * np.sqrt(2 * (n - 1))


@for_each("n", [257, 1000, 20_000])
def test_neighbours_are_torn_apart(n):
    steps = np.diff(order(n, derive("gap")))
    assert np.mean(np.abs(steps)) == pytest.approx(n / 3, rel=0.15)
    assert np.mean(steps == 1) < 0.02


def test_pairs_of_places_are_uniform():
    n, bins = 1024, 8
    counts = np.zeros((bins, bins))
    for key in range(40):
        places = order(n, derive("pairs", key)) * bins // n
        np.add.at(counts, (places[:-1], places[1:]), 1)
    assert chi_square(counts) < 63 + 6 * np.sqrt(126)


def test_orders_of_different_keys_have_little_in_common():
    first, second = order(5000, derive(0, 1)), order(5000, derive(1, 0))
    assert np.mean(first == second) < 0.01


def test_parts_of_a_key_are_kept_apart():
    keys = [
        derive(0, 1),
        derive(1, 0),
        derive(1, 1),
        derive("1", 1),
        derive(11),
        derive("a", "b"),
        derive("ab"),
        derive(),
    ]
    assert len(set(keys)) == len(keys)
    assert all(0 <= key < 2**128 for key in keys)


GOLDEN = {
    10: [7, 0, 6, 9, 5, 1, 4, 2],
    256: [117, 208, 166, 123, 188, 100, 111, 56],
    257: [88, 111, 147, 236, 141, 51, 227, 200],
    1000: [49, 847, 40, 999, 967, 656, 829, 31],
    100_000: [79177, 33201, 63629, 22445, 46835, 65601, 42407, 31362],
    1_000_000: [343077, 693417, 90625, 904961, 652616, 608961, 635334, 156239],
    5_000_000_000: [
        1739624549, 1500367602, 4129293937, 3492393198, 3740604689, 1879825495, 3520482207, 4936804983,
    ],
}  # fmt: skip


@for_each("n", GOLDEN)
def test_the_order_is_the_same_in_every_version(n):
    assert permute(np.arange(8), n, derive("golden", n)).tolist() == GOLDEN[n]


def test_keys_are_the_same_in_every_version():
    assert derive(0, 1) == 0x532585576946DA3142A106C986D9CD90
    assert derive("shuffle", 1, 2, "x") == 0x23A13E3EF2EF82F9CC477429F642777


def test_raw_draws_are_the_same_in_every_version():
    raw = Draws().at(derive("golden"), 5, 2).bit_generator.random_raw(3)
    assert raw.tolist() == [3483921302035907956, 358547877484112024, 4299938872982790796]


def test_shuffles_are_the_same_in_every_version():
    whole, windowed = ps.from_sequence(range(12)).shuffle(), ps.from_sequence(range(12)).shuffle(5)
    with whole.loader(seed=1) as one, windowed.loader(seed=1) as other:
        assert list(one) == [6, 4, 1, 7, 5, 0, 11, 3, 9, 8, 10, 2]
        assert list(other) == [3, 0, 2, 4, 1, 8, 6, 5, 7, 9, 11, 10]


def test_draws_depend_on_key_position_and_sub_index_alone():
    one, other = Draws(), Draws()
    key = derive("op")
    seen = {}
    for position in (0, 1, 2**40):
        for sub in (0, 1, 7):
            seen[position, sub] = one.at(key, position, sub).random(4).tolist()
    other.at(key, 99).random(1000)
    for (position, sub), numbers in reversed(seen.items()):
        assert other.at(key, position, sub).random(4).tolist() == numbers
    assert len({tuple(numbers) for numbers in seen.values()}) == len(seen)
    assert other.at(derive("other op"), 0).random(4).tolist() != seen[0, 0]


def test_half_a_word_left_over_does_not_reach_the_next_sample():
    draws, key = Draws(), derive("half")
    clean = Draws().at(key, 5).integers(0, 2**16, 3, dtype=np.uint16).tolist()
    draws.at(key, 4).integers(0, 2**16, dtype=np.uint16)  # leaves a part of a word behind
    assert draws.at(key, 5).integers(0, 2**16, 3, dtype=np.uint16).tolist() == clean


def test_draws_of_many_samples_are_all_distinct_and_uniform():
    draws, key = Draws(), derive("many")
    numbers = np.array([draws.at(key, position).random() for position in range(10_000)])
    assert len(np.unique(numbers)) == 10_000
    assert chi_square(np.bincount((numbers * 20).astype(int), minlength=20)) < 19 + 6 * np.sqrt(38)
