"""turns: exact shares after every turn, without a pattern."""

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.cases import for_each
from tests.random_examples import examples

from penstock.errors import StateMismatch
from penstock.randomness import derive
from penstock.turns import Shares, Turns, whole_weights

weights = st.lists(
    st.one_of(
        st.integers(1, 5),
        st.integers(1, 10**6),
        st.floats(1e-3, 1e3, allow_nan=False),
        st.sampled_from([1, 1, 1, 1.009, 1e-9, 1e9]),
    ),
    min_size=1,
    max_size=12,
)


def made(weights, key=0):
    return Turns(
        whole_weights([Fraction(str(w)) for w in weights]), [derive(str(i)) for i in range(len(weights))], key
    )


def sequence(turns, count):
    return [turns.advance() for _ in range(count)]


@examples(30)
@given(weights, st.integers(0, 2**128 - 1), st.integers(1, 300))
@example([1, 1.009], 0, 300)
@example([0.5] + [0.005] * 11, 0, 300)
def test_after_every_turn_each_has_had_its_share_rounded_down_or_up(weights, key, count):
    exact = [Fraction(str(w)) for w in weights]
    total = sum(exact)
    had = [0] * len(exact)
    for k, number in enumerate(sequence(made(weights, key), count), start=1):
        had[number] += 1
        for weight, one in zip(exact, had, strict=True):
            assert abs(one - weight * k / total) < 1


@for_each("weights", [[1, 1], [1, 2, 3], [7, 3], [1] * 10, [1, 1.25]])
def test_a_whole_round_is_exact(weights):
    whole = whole_weights([Fraction(str(w)) for w in weights])
    turns = made(weights)
    for _ in range(5):
        had = sequence(turns, sum(whole))
        assert [had.count(number) for number in range(len(whole))] == whole


def test_one_part_in_a_thousand_more_is_not_lost():
    had = sequence(made([1, 1.009]), 2009)
    assert (had.count(0), had.count(1)) == (1000, 1009)


def test_weights_of_any_size_are_exact():
    turns = made([1e-300, 1e300, 1])
    assert set(sequence(turns, 200)) == {1} or turns.drawn[1] == 199
    assert whole_weights([Fraction("1e-3"), Fraction(2)]) == [1, 2000]


@for_each("weights", [[1, 1], [0.7, 0.3], [1, 1.009], [1, 1, 1, 1], [0.5, 0.25, 0.25]])
@for_each("step", [2, 3, 4, 8, 10])
def test_what_is_taken_at_regular_steps_is_mixed_too(weights, step):
    had = sequence(made(weights), 4_000)
    for offset in range(step):
        part = had[offset::step]
        for number, weight in enumerate(weights):
            share = weight / sum(weights)
            # Not exactly: where a round is as long as the step, the bound itself favours some moments.
            assert share / 2 < part.count(number) / len(part) < share * 2


def test_equal_shares_come_in_rounds_of_random_order():
    had = sequence(made([1] * 6), 600)
    rounds = [tuple(had[at : at + 6]) for at in range(0, 600, 6)]
    assert all(sorted(one) == list(range(6)) for one in rounds)
    assert len(set(rounds)) > 60


def test_every_key_has_an_order_of_its_own():
    assert len({tuple(sequence(made([2, 1, 1], key), 60)) for key in range(20)}) == 20


def test_the_order_does_not_depend_on_how_participants_are_numbered():
    salts = [derive(name) for name in "abcd"]
    there = sequence(Turns([1, 2, 2, 5], salts, 3), 100)
    back = sequence(Turns([5, 2, 2, 1], salts[::-1], 3), 100)
    assert there == [3 - number for number in back]


def test_peeking_changes_nothing():
    one, other = made([3, 1, 1]), made([3, 1, 1])
    for _ in range(50):
        one.peek()
        assert one.peek() == other.advance() == one.advance()


@examples(40)
@given(weights, st.integers(0, 60), st.booleans())
def test_it_goes_on_from_what_was_drawn_and_planned(weights, count, peeked):
    turns = made(weights)
    sequence(turns, count)
    if peeked:
        turns.peek()
    again = Turns(turns.weights, [derive(str(i)) for i in range(len(weights))], 0, turns.drawn, turns.planned)
    assert sequence(again, 60) == sequence(turns, 60)


# ---------------------------------------------------------------------- shares by name


def shares(**weights):
    return Shares(list(weights), [Fraction(str(w)) for w in weights.values()], key=1)


def names(one, count):
    return [one.names[number] for number in one.draw(count, lambda number: count)]


@for_each("running", [[0, 1, 2], [0, 2]])
def test_shares_go_on_as_saved(running):
    for count in range(40):
        one, other = shares(a=1, b=2, c=3), shares(a=1, b=2, c=3)
        names(one, 7)
        one.begin(running)
        names(one, count)
        assert other.restore(one.save(), running)
        assert other.save() == one.save()
        assert names(other, 40) == names(one, 40)
        assert other.drawn == one.drawn


def test_the_order_in_which_they_are_named_does_not_matter():
    one, other = shares(a=1, b=2), shares(b=4, a=2)
    names(one, 10)
    assert other.restore(one.save(), [0, 1])
    assert names(other, 50) == names(one, 50)


@for_each("changed", [{"a": 9, "b": 1}, {"a": 1, "c": 1}, {"a": 1, "b": 1, "c": 2}, {"b": 1}])
def test_other_names_or_weights_count_from_where_they_begin(changed):
    one, other = shares(a=1, b=1), shares(**changed)
    names(one, 1000)
    assert not other.restore(one.save(), range(len(changed)))
    assert other.next == 1000
    had = names(other, 50)
    for name, weight in changed.items():
        assert abs(had.count(name) - 50 * weight / sum(changed.values())) < 1
        assert other.drawn[other.names.index(name)] == had.count(name) + (500 if name in "ab" else 0)


def test_a_new_beginning_has_an_order_of_its_own():
    one = shares(a=1, b=1)
    parts = []
    for _ in range(5):
        one.begin([0, 1])
        parts.append(tuple(names(one, 40)))
    assert all(left != right for left, right in pairwise(parts))


@for_each("field", ["next", "drawn", "began", "since"])
@for_each("wrong", [1.5, True, -1, "1", None])
def test_what_was_saved_and_is_no_number_of_draws_is_refused(field, wrong):
    def fresh():
        return Shares(["a", "b"], [Fraction(1), Fraction(2)], key=3)

    shares = fresh()
    shares.draw(7, available=lambda number: 5)
    shares.begin(shares.running)
    shares.draw(4, available=lambda number: 5)
    saved = shares.save()
    fresh().restore(saved, [0, 1])
    saved[field] = {**saved[field], "a": wrong} if isinstance(saved[field], dict) else wrong
    with pytest.raises(StateMismatch):
        fresh().restore(saved, [0, 1])


@for_each("field", ["next", "began", "drawn"])
def test_draws_that_the_weights_cannot_give_are_refused(field):
    shares = Shares(["a", "b"], [Fraction(1), Fraction(2)], key=3)
    shares.draw(7, available=lambda number: 5)
    saved = shares.save()
    saved[field] = {"a": 2, "b": 1 << 30} if field == "drawn" else 1 << 30
    with pytest.raises(StateMismatch, match="weights cannot give"):
        Shares(["a", "b"], [Fraction(1), Fraction(2)], key=3).restore(saved, [0, 1])
