"""Ranks: together they deliver what one would, also when their number changes in the middle of an epoch.

Hypothesis makes pipelines with a ``shard()``, a sequence of worlds and how many steps each of them lasts.
"""

import json
from collections import Counter
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import for_each
from tests.random_examples import examples
from tests.same_stream_functions import failing, keep, leaving_out, number, several, total

import penstock as ps

SEED = 5


# ---------------------------------------------------------------------- running a world


@dataclass
class Ended:
    """What the ranks of one world have delivered, each a list of batches, and their states."""

    delivered: list[list[Any]]
    states: list[Any]

    @property
    def in_turn(self) -> list[Any]:
        """The batches of all ranks, rank by rank, step by step."""
        rounds = zip_longest(*self.delivered, fillvalue=None)
        return [batch for one in rounds for batch in one if batch is not None]


def run(make, world, state=None, steps=None, **arguments):
    """`world` ranks deliver so many steps, or all that is left of epoch 0."""
    ended = Ended([], [])
    for rank in range(world):
        with make(rank, world).loader(seed=SEED, **arguments) as loader:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
            saved, batches = loader.state_dict(), []
            for batch in loader if steps != 0 and not loader.epoch else ():
                if loader.epoch:
                    break  # nothing was left for this one, and it has gone on to the next epoch
                batches.append(leaves(batch))
                saved = loader.state_dict()
                if len(batches) == steps:
                    break
            else:
                saved = loader.state_dict() if not loader.epoch else saved
            ended.delivered.append(batches)
            text = json.dumps(saved)
            assert len(text) < 10_000
            ended.states.append(json.loads(text))
    return ended


def leaves(batch: Any) -> list[Any]:
    if isinstance(batch, dict):
        return [leaf for value in batch.values() for leaf in leaves(value)]
    if isinstance(batch, (list, tuple)):
        return [leaf for one in batch for leaf in leaves(one)]
    return batch.ravel().tolist() if isinstance(batch, np.ndarray) else [int(batch)]


def flat(batches):
    return [leaf for batch in batches for leaf in batch]


worlds = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), min_size=1, max_size=3)


# ---------------------------------------------------------------------- pipelines


def row(sample):
    return {"x": np.full(total(sample) % 5 + 1, total(sample))}


#: ops behind shard() that keep the count
KEEPING = {
    "nothing": lambda p: p,
    "batch 1": lambda p: p.batch(1),
    "batch 3": lambda p: p.batch(3),
    "map, batch 4": lambda p: p.map(number, workers=2).batch(4),
    "map": lambda p: p.map(number),
    "prefetch": lambda p: p.map(number).prefetch(2).batch(2),
}
#: ops behind shard() that do not
VARYING = {
    "filter": lambda p: p.filter(keep),
    "filter, batch": lambda p: p.filter(keep, workers=2).batch(3, collate=list),
    "flat_map": lambda p: p.flat_map(several),
    "flat_map, batch": lambda p: p.flat_map(several, workers=2).batch(3, collate=list),
    "skips": lambda p: p.map(failing, on_error="skip", workers=2),
    "window": lambda p: p.filter(keep).shuffle(window=4).batch(2, collate=list),
    "windows": lambda p: p.shuffle(window=3).flat_map(several).shuffle(window=5),
    "bucket": lambda p: p.map(row).bucket("x", [2, 3], size=3, pad=0).map(lambda batch: batch["x"]),
    "pack": lambda p: p.map(row).pack(4, key="x").map(lambda one: one["x"]),
    "unordered": lambda p: p.map(number, workers=3, ordered=False),
    "unordered flat_map": lambda p: p.flat_map(several, workers=3, ordered=False),
    "interleave": lambda p: p.flat_map(several, interleave=3),
}
SOURCES = {
    "sequence": lambda n: ps.from_sequence(range(n)),
    "shuffled": lambda n: ps.from_arrays(np.arange(n)).shuffle(),
    "taken": lambda n: ps.from_sequence(range(n + 5)).skip(2).take(n),
}


@examples(20)
@given(
    st.sampled_from(sorted(SOURCES)),
    st.sampled_from(sorted(KEEPING)),
    st.integers(0, 40),
    worlds,
    st.integers(1, 5),
)
def test_where_the_count_is_kept_any_worlds_deliver_one_stream_rank_by_rank(source, ops, n, before, last):
    check_keeping(source, ops, n, before, last)


def check_keeping(source, ops, n, before, last):
    def make(rank, world):
        return KEEPING[ops](SOURCES[source](n).shard(rank, world, equal=False))

    (expected,) = run(make, 1).delivered
    stream, state = [], None
    for world, steps in before:
        one = run(make, world, state, steps)
        stream += one.in_turn
        assert len({json.dumps(strip(state_)) for state_ in one.states}) == 1 or len(stream) == len(expected)
        state = one.states[0]
        if state["epoch"]:
            break
    if state is None or not state["epoch"]:
        stream += run(make, last, state).in_turn
    assert stream == expected, (source, ops, n, before, last)


def strip(state):
    """What must be the same on all ranks."""
    return {name: value for name, value in state.items() if name not in ("batch", "step")}


@examples(15)
@given(
    st.sampled_from(sorted(SOURCES)),
    st.sampled_from(sorted(VARYING)),
    st.integers(0, 40),
    worlds,
    st.integers(1, 5),
)
def test_where_it_is_not_kept_what_follows_is_exactly_what_remained(source, ops, n, before, last):
    check_varying(source, ops, n, before, last)


def check_varying(source, ops, n, before, last):
    def make(rank, world):
        return VARYING[ops](SOURCES[source](n).shard(rank, world))

    (all_,) = run(make, 1).delivered
    expected = Counter(flat(all_))
    delivered, state = Counter(), None
    for world, steps in before:
        one = run(make, world, state, steps)
        delivered.update(flat(one.in_turn))
        state = one.states
        if all(saved["epoch"] for saved in state):
            break
    else:
        delivered.update(flat(run(make, last, state).in_turn))
    if ops in ("bucket", "pack"):  # padding
        expected.pop(0, None), delivered.pop(0, None)
    missing, extra = dict(expected - delivered), dict(delivered - expected)
    assert (missing, extra) == ({}, {}), (source, ops, n, before, last, missing, extra)


# ---------------------------------------------------------------------- equal parts


NUMBERS = ps.from_sequence(range(23))


def parts(world, pipeline=NUMBERS, **arguments):
    return [[leaves(batch) for batch in pipeline.shard(rank, world, **arguments).batch(4)] for rank in range(world)]


def test_a_last_round_that_is_not_full_is_dropped_unless_told_otherwise():
    assert parts(2) == parts(2, equal="drop") == [[[0, 1, 2, 3], [8, 9, 10, 11]], [[4, 5, 6, 7], [12, 13, 14, 15]]]


def test_a_last_round_can_wrap_around_to_the_first_samples():
    first, second = parts(2, equal="wrap")
    assert len(first) == len(second) == 3
    assert sorted(flat(first + second)) == sorted([*range(23), 0])


def test_padded_samples_are_marked():
    first, second = parts(2, equal="pad")
    assert [batch[4:] for batch in first + second] == [[0] * 4] * 5 + [[0, 0, 0, 1]]


def test_uneven_parts_hold_each_sample_once():
    first, second, third = parts(3, equal=False)
    assert [len(flat(one)) for one in (first, second, third)] == [8, 8, 7]
    assert sorted(flat(first + second + third)) == list(range(23))


@for_each("equal", ["drop", "wrap", "pad", False])
@for_each("worlds", [(2, 4, 3), (1, 2), (3, 1), (5, 2)])
def test_equal_parts_stay_equal_when_the_number_of_ranks_changes(equal, worlds):
    def make(rank, world):
        return ps.from_sequence(range(61)).shuffle().shard(rank, world, equal=equal).batch(3)

    state, seen = None, []
    for number_, world in enumerate(worlds):
        last = number_ == len(worlds) - 1
        one = run(make, world, state, None if last else 2)
        if equal:
            assert len({len(batches) for batches in one.delivered}) == 1
        for batch in one.in_turn:
            marks = batch[3:] if equal == "pad" else [0] * len(batch)
            seen.append([x for x, padding in zip(batch, marks, strict=False) if not padding])
        state = one.states[-1]
    count = Counter(flat(seen))
    if equal == "drop":
        assert max(count.values()) == 1
        assert len(count) > 61 - 3 * worlds[-1]
    elif equal == "wrap":
        assert sorted(count) == list(range(61))
    else:
        assert count == Counter(range(61))


def test_a_world_larger_than_the_data_leaves_ranks_with_nothing():
    def make(rank, world):
        return ps.from_sequence(range(2)).shard(rank, world).filter(bool)

    one = run(make, 5)
    assert sorted(flat(one.in_turn)) == [1]
    assert parts(7, ps.from_sequence(range(3)), equal=False) == [[[0, 1, 2]], [], [], [], [], [], []]
    with pytest.raises(ps.PlanError, match="3 samples are not enough for 4 on each of 7 ranks"):
        parts(7, ps.from_sequence(range(3)))


def test_ranks_that_end_at_different_times_hand_over_what_is_left():
    def make(rank, world):
        return ps.from_sequence(range(12)).shard(rank, world).filter(lambda x: x % 3 == 0 or x > 8)

    one = run(make, 3, None, 3)
    assert [len(batches) for batches in one.delivered] == [3, 1, 1]
    left = run(make, 2, one.states)
    assert sorted(flat(one.in_turn) + flat(left.in_turn)) == [0, 3, 6, 9, 10, 11]


# ---------------------------------------------------------------------- as many steps on every rank


def test_all_ranks_make_as_many_steps_as_asked_for_and_go_on_after_a_resume():
    def make(rank, world):
        return NUMBERS.shard(rank, world, steps=9).filter(keep).batch(2, collate=list)

    whole = run(make, 2)
    assert [len(batches) for batches in whole.delivered] == [9, 9]
    some = run(make, 2, None, 4)
    for rank in range(2):
        with make(rank, 2).loader(seed=SEED, state=some.states[rank]) as loader:
            assert [leaves(batch) for batch in loader] == whole.delivered[rank][4:]
    with make(0, 3).loader(seed=SEED) as loader, pytest.raises(ps.StateMismatch, match="as many ranks as before"):
        loader.load_state_dict(some.states)


def test_a_rank_without_samples_cannot_have_steps():
    with pytest.raises(ps.PlanError, match="this rank has no samples at all"):
        list(ps.from_sequence(range(2)).shard(2, 3, steps=2).filter(bool))


# ---------------------------------------------------------------------- what is refused


def filtered(rank, world):
    return NUMBERS.shard(rank, world).filter(keep)


def test_the_state_of_another_rank_is_refused():
    states = run(filtered, 2, None, 2).states
    with pytest.raises(ps.StateMismatch, match="rank 1 of 2, and this loader has rank 0 of 2"):
        filtered(0, 2).loader(seed=SEED, state=states[1])
    with pytest.raises(ps.StateMismatch, match="rank 0 of 2, and this loader has rank 0 of 3"):
        filtered(0, 3).loader(seed=SEED, state=states[0])


@for_each("chosen", [(0,), (0, 0), (0, 1, 1), (0, 2)])
def test_an_incomplete_list_of_states_is_refused(chosen):
    states = run(filtered, 3, None, 2).states
    with pytest.raises(ps.StateMismatch, match="the states of all ranks are needed, each once"):
        filtered(0, 2).loader(seed=SEED).load_state_dict([states[rank] for rank in chosen])
    with pytest.raises(ps.StateMismatch, match="got none"):
        ps.merge_states([])


def test_ranks_in_step_that_stand_at_different_steps_are_refused():
    def make(rank, world):
        return NUMBERS.shard(rank, world).batch(2)

    with pytest.raises(ps.StateMismatch, match="save all at one step"):
        ps.merge_states([run(make, 2, None, 1).states[0], run(make, 2, None, 2).states[1]])


def test_a_world_and_no_shard_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(
        ps.PlanError, match=r"4 ranks would deliver all 23 samples, 69 of them repeated; add .shard\(\)"
    ):
        NUMBERS.loader()
    assert list(NUMBERS.shard()) == [1, 5, 9, 13, 17]
    assert list(NUMBERS.shard(world=1)) == list(range(23))


def test_another_number_of_ranks_needs_a_source_that_can_be_indexed():
    def make(rank, world):
        return ps.from_iterable(range(20)).shard(rank, world).filter(keep)

    states = run(make, 2, None, 2).states
    with pytest.raises(ps.StateMismatch, match="go on with as many ranks as before"):
        make(0, 3).loader(seed=SEED).load_state_dict(states)
    left = [flat(run(make, 2).delivered[rank][2:]) for rank in range(2)]
    for rank in range(2):
        with make(rank, 2).loader(seed=SEED, state=states[rank]) as loader:
            assert list(loader) == left[rank]


def test_a_skip_that_nobody_has_announced_is_refused_where_ranks_deliver_whole_batches_in_step():
    def make(rank, world, **arguments):
        return NUMBERS.shard(rank, world).map(leaving_out, **arguments).batch(3)

    with pytest.raises(ps.PlanError, match=r'say that it may: on_error="skip"'):
        list(make(0, 2))
    announced = [flat(leaves(batch) for batch in make(rank, 2, on_error="skip")) for rank in range(2)]
    assert sorted(flat(announced)) == sorted(number(x) for x in range(23) if x % 5 != 2)
