"""From a position of the epoch to an index of the source."""

import numpy as np
from tests.cases import for_each
from tests.runtime.helpers import plan_of

import penstock as ps
from penstock.program.program import Program


def reading_of(pipeline, seed=0):
    return Program(plan_of(pipeline).stages[0], seed).reading


def all_indices(pipeline, epoch=0, seed=0):
    reading = reading_of(pipeline, seed)
    return list(reading.indices(epoch, range(reading.length)))


N = 2000
SOURCE = ps.from_sequence(range(N))
ORDERED = {
    "plain": SOURCE,
    "shuffled": SOURCE.shuffle(),
    "shuffled twice": SOURCE.shuffle().shuffle(),
    "repeated": SOURCE.shuffle().repeat(3),
    "cut": SOURCE.skip(3).take(100).shuffle(),
    "repeated, then shuffled": SOURCE.take(50).repeat(4).shuffle(),
    "virtual epochs": SOURCE.shuffle().epoch(700),
}


@for_each("name", ORDERED)
def test_any_stretch_of_the_order_is_the_same_as_in_the_whole(name):
    reading = reading_of(ORDERED[name])
    for epoch in (0, 1, 5):
        whole = list(reading.indices(epoch, range(reading.length)))
        for first, last in ((0, 1), (7, 40), (33, 34), (reading.length - 3, reading.length)):
            assert list(reading.indices(epoch, range(first, last))) == whole[first:last]


@for_each("name", ORDERED)
def test_one_index_and_any_positions_agree_with_the_whole(name):
    reading = reading_of(ORDERED[name])
    whole = np.asarray(reading.indices(2, range(reading.length)))
    positions = np.array([5, 0, 17, reading.length - 1, 5])
    assert reading.trace(2, positions).tolist() == whole[positions].tolist()
    assert [reading.index(2, int(p)) for p in positions] == whole[positions].tolist()


@for_each("name", ORDERED)
def test_what_is_computed_is_what_is_delivered(name):
    with ORDERED[name].loader(seed=3) as loader:
        for epoch in range(2):
            assert list(loader) == all_indices(ORDERED[name], epoch, seed=3)


def test_a_shuffle_has_every_sample_once_in_an_order_that_changes_with_epoch_and_seed():
    orders = [all_indices(SOURCE.shuffle(), epoch, seed) for epoch in range(3) for seed in range(3)]
    assert all(sorted(order) == list(range(N)) for order in orders)
    assert len({tuple(order) for order in orders}) == 9


def test_every_pass_of_a_repeat_has_an_order_of_its_own():
    order = all_indices(SOURCE.shuffle().repeat(3))
    passes = [order[start : start + N] for start in range(0, 3 * N, N)]
    assert all(sorted(one) == list(range(N)) for one in passes)
    assert len({tuple(one) for one in passes}) == 3


def test_virtual_epochs_join_to_whole_passes():
    pipeline = ps.from_sequence(range(10)).shuffle().epoch(4)
    order = [index for epoch in range(5) for index in all_indices(pipeline, epoch)]
    assert sorted(order[:10]) == list(range(10))
    assert sorted(order[10:]) == list(range(10))


@for_each("n", [16_383, 16_384, 16_385, 40_000])
def test_stretches_across_blocks_are_the_same_as_in_the_whole(n):
    reading = reading_of(ps.from_sequence(range(n)).shuffle())
    whole = reading.trace(0, np.arange(n))
    assert sorted(whole.tolist()) == list(range(n))
    for first, last in ((0, n), (16_380, min(16_390, n)), (n - 5, n)):
        assert np.asarray(reading.indices(0, range(first, last))).tolist() == whole[first:last].tolist()


def test_nothing_grows_with_the_positions_asked_for():
    reading = reading_of(ps.from_sequence(range(10**9)).shuffle())
    for position in range(0, 10**9, 10**8):
        reading.index(0, position)
    assert sum(block.nbytes for block in reading._blocks.values()) < 2**20
