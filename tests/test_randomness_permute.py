"""The order of a shuffle: each place once, all orders alike, and the same on every machine for ever."""

import itertools
import json
import math

import numpy as np
import pytest
from tests.cases import for_each
from tests.golden import make
from tests.helpers import BACKGROUND, INLINE, few_layouts
from tests.random_examples import TIMES

import penstock as ps
from penstock.randomness import Draws, derive, permute

GOLDEN = json.loads(make.FILE.read_text(encoding="utf-8"))


def order(n, key):
    return permute(np.arange(n), n, key)


# ---------------------------------------------------------------------- each place once


def test_every_n_up_to_2100_gives_a_bijection():
    # Up to 2048 by a sorted table, above by the network.
    for n in range(1, 2101):
        assert np.array_equal(np.sort(order(n, derive("bijection", n))), np.arange(n)), n


@for_each("n", [2209, 2210, 4095, 4096, 4097, 9973, 65_535, 65_536, 65_537, 2**18 + 1])
@for_each("key", [0, 1, 2**128 - 1, derive("x")])
def test_larger_n_give_a_bijection_whatever_the_key(n, key):
    # n around squares and oblongs: the rectangle that holds them has none, one or a whole column to spare.
    assert np.array_equal(np.sort(order(n, key)), np.arange(n))


@pytest.mark.soak
@for_each("n", [2**24, 2**24 + 1])
def test_where_the_hash_gets_finer_both_sides_are_bijections(n):
    seen = np.zeros(n, dtype=bool)
    seen[order(n, derive("finer"))] = True
    assert seen.all()


@for_each("n", [2**24, 2**24 + 1, 10**9, 2**31 - 1, 2**32 - 1, 2**32, 2**32 + 1, 2**33, 2**53 + 1, 2**62])
def test_positions_of_a_huge_n_do_not_collide(n):
    rng = np.random.default_rng(0)
    gap = (n - 200_000) // 100_000
    spread = 100_000 + np.arange(100_000) * gap + rng.integers(0, min(gap, 1000), 100_000)
    positions = np.concatenate([np.arange(100_000), spread, n - 1 - np.arange(100)])
    assert (np.diff(np.sort(positions)) > 0).all()
    places = np.sort(permute(positions, n, derive("huge", n)))
    assert places.dtype == np.int64
    assert places[0] >= 0
    assert places[-1] < n
    assert (np.diff(places) > 0).all()


# ---------------------------------------------------------------------- how it is asked for does not matter


@for_each("n", [2, 300, 2048, 2049, 3000, 10**6, 2**24 + 1, 10**9, 2**32 - 1, 2**33])
def test_a_position_goes_where_it_goes_in_any_company(n):
    rng = np.random.default_rng(n)
    positions = rng.integers(0, n, 70_000)
    key = derive("company", n)
    whole = permute(positions, n, key)
    for count in (1, 7, 8, 9, 1000, 32_768, 32_769):
        assert permute(positions[:count], n, key).tolist() == whole[:count].tolist()
    alone = [int(permute(positions[i : i + 1], n, key)[0]) for i in range(300)]
    assert alone == whole[:300].tolist()
    assert permute(positions[::-3], n, key).tolist() == whole[::-3].tolist()


@for_each("n", [1, 7, 3000, 10**9])
def test_no_position_gives_no_place(n):
    assert permute(np.arange(0), n, 1).tolist() == []


@for_each("n", [300, 5000, 2**33])
@for_each("count", [4, 300])
def test_positions_are_left_as_they_were_and_places_are_the_callers_own(n, count):
    positions = np.arange(count)
    positions.flags.writeable = False
    places = permute(positions, n, 1)
    before = places.tolist()
    places[:] = -1
    assert permute(positions, n, 1).tolist() == before


# ---------------------------------------------------------------------- all orders alike


def deviations(counts):
    """How many standard deviations the chi-square statistic of `counts` is above what chance gives."""
    counts = np.asarray(counts, dtype=float)
    expected, freedom = counts.sum() / counts.size, counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))


#: chance goes so far once in a million times or more seldom; keys are fixed, so a test passes always or never
FAR = 6


def keys(count, *name):
    return (derive("uniform", *name, number) for number in range(count))


@pytest.mark.fuzz
@for_each("n", [2, 3, 4, 5, 6])
def test_all_orders_of_a_few_samples_come_equally_often(n):
    number_of = {one: number for number, one in enumerate(itertools.permutations(range(n)))}
    found = [number_of[tuple(order(n, key).tolist())] for key in keys(2_500 * TIMES, n)]
    assert abs(deviations(np.bincount(found, minlength=len(number_of)))) < FAR


@pytest.mark.fuzz
@for_each("n", [7, 100])
def test_every_sample_comes_to_every_place_equally_often(n):
    counts = np.zeros((n, n))
    for key in keys(2_000 * TIMES, n):
        counts[np.arange(n), order(n, key)] += 1
    assert abs(deviations(counts)) < FAR


@for_each("n", [10_000, 65_536, 10**8, 1_908_816_100, 10**9, 2**33])
def test_any_sample_of_many_comes_to_every_place_equally_often(n):
    # The exact place in a hundred bins, and what is left of it: coarse and fine structure.
    positions = np.array([0, 1, n // 3, n // 2, n - 1])
    columns = math.isqrt(n - 1) + 1
    places = np.array([permute(positions, n, key) for key in keys(700, n)])
    for one in places.T:
        assert deviations(np.bincount(one * 100 // n, minlength=100)) < FAR
        assert deviations(np.bincount(one % 97, minlength=97)) < FAR
        assert deviations(np.bincount(one // columns % 2, minlength=2)) < FAR


@pytest.mark.fuzz
@for_each("n", [7, 100])
def test_every_pair_of_samples_follows_one_another_equally_often(n):
    counts = np.zeros((n, n))
    for key in keys(2_000 * TIMES, "pair", n):
        one = order(n, key)
        np.add.at(counts, (one[:-1], one[1:]), 1)
    assert not counts.diagonal().any()
    assert abs(deviations(counts[~np.eye(n, dtype=bool)])) < FAR


@pytest.mark.fuzz
@for_each("n", [272, 2048, 2070, 10_000, 10**6, 10**9])
@for_each("apart", ["next", "a row apart"])
def test_places_of_a_pair_of_positions_are_independent(n, apart):
    # A row apart is where a network is weakest: the first of its rounds treats both alike.
    columns = math.isqrt(n - 1) + 1
    step = 1 if apart == "next" else (n - 1) // columns + 1
    bins = 16
    counts = np.zeros((bins, bins))
    starts = np.arange(0, 40) * (n - step - 1) // 40
    for key in keys(200 * TIMES, "independent", n):
        one, other = permute(starts, n, key) * bins // n, permute(starts + step, n, key) * bins // n
        np.add.at(counts, (one, other), 1)
    # A small n has no room for the second in the place of the first, which shows on the diagonal alone.
    expected = np.full((bins, bins), 1 / bins**2)
    if n < 10_000:
        size = np.bincount(np.arange(n) * bins // n, minlength=bins)
        expected = (np.outer(size, size) - np.diag(size)) / (n * (n - 1))
    statistic = ((counts - counts.sum() * expected) ** 2 / (counts.sum() * expected)).sum()
    assert (statistic - (bins**2 - 1)) / math.sqrt(2 * (bins**2 - 1)) < FAR


@pytest.mark.parametrize("n", [10_000, 10**6])
def test_one_long_order_has_no_more_structure_than_chance(n):
    one = order(n, derive("long", n))
    steps = np.diff(one)
    assert np.abs(steps).mean() == pytest.approx(n / 3, rel=0.02)
    assert np.count_nonzero(steps == 1) < 12
    assert np.count_nonzero(one == np.arange(n)) < 12
    # Rising runs of a random order are 2 long on average.
    assert np.mean(steps < 0) == pytest.approx(0.5, abs=3 / math.sqrt(n))


@pytest.mark.fuzz
@for_each("n", [100, 2048, 2070, 10_000, 250_000])
@for_each("apart", ["next", "a row", "two rows", "a row and one"])
def test_what_lies_between_two_places_of_one_order_is_as_random_as_chance(n, apart):
    # A network of three or four rounds fails this a row apart, one of five does not: there is one to spare.
    columns = math.isqrt(n - 1) + 1
    rows = (n - 1) // columns + 1
    step = {"next": 1, "a row": rows, "two rows": 2 * rows, "a row and one": rows + 1}[apart]
    count = 16 * TIMES
    total = 0.0
    for key in keys(count, "between", n):
        one = order(n, key)
        between = (one[step:] - one[:-step]) % n
        total += deviations(np.bincount(between, minlength=n)[1:])
    assert abs(total) / math.sqrt(count) < FAR


@for_each("columns", [43_690, 52_428])
def test_the_shift_of_a_large_square_has_no_preferred_steps(columns):
    # 16 bits scaled to 43690 columns give every second shift twice as often as the others. Three such shifts
    # left a wave in how far samples move, which the spectrum of the moves shows.
    n, positions = columns * columns, np.arange(500_000)
    wave = np.zeros(columns // 2)
    for key in keys(3, "wave", columns):
        moved = (permute(positions, n, key) // columns - positions // columns) % columns
        wave = wave + np.fft.rfft(np.bincount(moved, minlength=columns))[1 : columns // 2 + 1]
    # Of so many waves the highest is about sqrt(log(count)) by chance; it was above 14.
    assert np.abs(wave).max() / math.sqrt(3 * len(positions)) < 5


def test_orders_of_different_keys_have_nothing_in_common():
    n = 5000
    orders = [order(n, derive(seed, epoch)) for seed in range(6) for epoch in range(6)]
    for one, other in itertools.combinations(orders, 2):
        assert np.count_nonzero(one == other) < 12  # one on average


@for_each("bit", [0, 31, 32, 63, 64, 127])
def test_one_bit_of_the_key_changes_everything_above_the_table(bit):
    assert np.count_nonzero(order(5000, 7) == order(5000, 7 ^ 1 << bit)) < 12


# ---------------------------------------------------------------------- the same for ever


def test_the_golden_file_is_what_its_script_makes():
    assert json.loads(json.dumps(make.golden())) == GOLDEN


@for_each("parts, key", GOLDEN["derive"])
def test_keys_are_golden(parts, key):
    assert hex(derive(*parts)) == key


@for_each("case", GOLDEN["permute"])
def test_orders_are_golden(case):
    first, n, key = case["first"], case["n"], int(case["key"], 16)
    assert permute(np.arange(len(first)), n, key).tolist() == first
    assert permute(np.arange(min(n, 500)), n, key)[: len(first)].tolist() == first
    assert [int(permute(np.array([i]), n, key)[0]) for i in range(len(first))] == first


def name_of(case):
    return "-".join(str(case[part]) for part in ("n", "window", "seed", "epoch") if part in case)


@for_each("case", GOLDEN["shuffle"])
def test_shuffles_of_a_loader_are_golden(case):
    first = case["first"]
    with ps.from_sequence(range(case["n"])).shuffle().loader(seed=case["seed"]) as loader:
        loader.set_epoch(case["epoch"])
        assert list(itertools.islice(loader, len(first))) == first


@for_each("case", GOLDEN["window"])
def test_window_shuffles_of_a_loader_are_golden(case):
    with ps.from_iterable(lambda: range(case["n"])).shuffle(case["window"]).loader(seed=case["seed"]) as loader:
        loader.set_epoch(case["epoch"])
        assert make.ends(list(loader)) == case["ends"]


@for_each("case", GOLDEN["raw_draws"])
def test_raw_draws_are_golden(case):
    # What numpy makes of the words is for numpy to say; the words are ours.
    rng = Draws().at(int(case["key"], 16), case["position"], case["sub"])
    assert rng.bit_generator.random_raw(len(case["words"])).tolist() == case["words"]


@for_each("case", GOLDEN["rng"])
def test_words_of_each_samples_generator_are_golden(case):
    def words(x, rng):
        return rng.bit_generator.random_raw(2).tolist()

    pipeline = ps.from_sequence(range(len(case["words"]))).map(words, rng=True, name="op")
    with pipeline.loader(seed=case["seed"]) as loader:
        loader.set_epoch(case["epoch"])
        assert list(loader) == case["words"]


# ---------------------------------------------------------------------- through a loader


@few_layouts
@for_each("n", [7, 100, 3000])
def test_seed_0_epoch_1_is_not_seed_1_epoch_0(layout, n):
    pipeline = ps.from_sequence(range(n)).shuffle()
    zero, one = layout.epochs(pipeline, 2, seed=0), layout.epochs(pipeline, 2, seed=1)
    assert len({tuple(epoch) for epoch in zero + one}) == 4


def test_epochs_and_seeds_side_by_side_have_nothing_in_common():
    n = 3000
    pipeline = ps.from_sequence(range(n)).shuffle()
    orders = [np.array(epoch) for seed in range(4) for epoch in BACKGROUND.epochs(pipeline, 4, seed)]
    for one, other in itertools.combinations(orders, 2):
        assert np.count_nonzero(one == other) < 12


def test_a_hundred_million_samples_are_shuffled_without_being_listed():
    pipeline = ps.from_sequence(range(10**8)).shuffle()
    with pipeline.loader() as loader:
        assert len(loader) == 10**8
        first = list(itertools.islice(loader, 20_000))
    assert first == permute(np.arange(20_000), 10**8, derive("shuffle", 0, 0, "shuffle")).tolist()


def test_a_shuffle_over_chosen_samples_permutes_those():
    chosen = list(range(0, 9000, 3))
    samples = INLINE.run(ps.from_sequence(range(9000), indices=chosen).shuffle())
    assert samples != chosen
    assert sorted(samples) == chosen


# ---------------------------------------------------------------------- keys


@for_each(
    "one, other",
    [
        ((0, 1), (1, 0)),
        ((1, 1), (11,)),
        (("1",), (1,)),
        (("a", "b"), ("ab",)),
        (("a", "b"), ("a\x1fsb",)),
        (("a\x1f", "b"), ("a", "\x1fb")),
        (("a\x1f",), ("a\x1f\x1f",)),
        (("a", ""), ("a",)),
        ((), ("",)),
        ((-1,), (1,)),
    ],
)
def test_parts_of_a_key_are_kept_apart_whatever_is_in_them(one, other):
    assert derive(*one) != derive(*other)


def test_a_part_may_be_any_text():
    assert 0 <= derive("\ud800", "\0", "語" * 1000) < 2**128
