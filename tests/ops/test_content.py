"""What a reservoir holds: what is drawn, what is replaced, and how often."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from tests.random_examples import examples

from penstock.ops.content import Content


def filled(n, size=None, *, max_reuse=None, per_pass=None, key=0):
    content = Content(size or n, max_reuse, key)
    content.per_pass = per_pass
    assert all(content.offer(number, number, 0) for number in range(n))
    return content


def drawn(content, n, reuse=True):
    found = (content.draw(reuse) for _ in range(n))
    return [one.sample for one in found if one is not None]


def test_draws_are_uniform():
    counts = Counter()
    for key in range(4000):
        counts[filled(8, key=key * 7919).draw(reuse=False).sample] += 1
    assert all(abs(count - 500) < 100 for count in counts.values()), counts


def test_every_order_of_three_is_drawn():
    orders = Counter(tuple(drawn(filled(3, key=key * 7919), 3)) for key in range(1200))
    assert len(orders) == 6
    assert min(orders.values()) > 150


def test_what_was_never_served_comes_first():
    content = filled(6)
    assert sorted(drawn(content, 6, reuse=False)) == list(range(6))
    assert content.draw(reuse=False) is None
    assert content.offer(6, 6, 0)
    assert drawn(content, 1) == [6]


def test_nothing_is_drawn_again_before_half_of_the_others():
    content = filled(20)
    seen = drawn(content, 400)
    for at in range(10, len(seen)):
        assert seen[at] not in seen[at - 10 : at]
    assert set(Counter(seen).values()) == {20}


def test_the_oldest_that_was_served_is_replaced():
    content = filled(4)
    first = drawn(content, 2)
    assert content.offer("new", "new", 0)
    assert content.offer("newer", "newer", 0)
    assert not content.offer("late", "late", 0)
    assert len(content) == 4
    assert not set(first) & set(drawn(content, 100))


def test_a_later_copy_takes_the_place_of_the_older_one():
    content = filled(3, size=10, per_pass=3)
    assert not content.offer("again", 0, 1)  # 0 was not served yet
    drawn(content, 3)
    assert content.offer("again", 0, 1)
    assert len(content) == 3
    assert sorted(map(str, drawn(content, 3))) == ["1", "2", "again"]


def test_a_sample_that_comes_no_more_is_left_out():
    content = filled(3, size=10, per_pass=3)
    drawn(content, 3)
    assert content.offer("a", 0, 1)
    assert content.offer("b", 1, 1)
    content.passed(1)
    assert len(content) == 2
    assert set(drawn(content, 8)) == {"a", "b"}


def test_copies_that_cannot_be_told_apart_replace_those_of_the_pass_before():
    content = Content(10, None, 0)
    content.per_pass = 3
    assert all(content.offer(f"old{number}", None, 0) for number in range(3))
    assert not content.offer("new0", None, 1)
    drawn(content, 3)
    assert all(content.offer(f"new{number}", None, 1) for number in range(3))
    assert sorted(drawn(content, 3)) == ["new0", "new1", "new2"]


def test_what_must_be_rested_is_not_served_at_once():
    content = filled(8, max_reuse=2)
    first = drawn(content, 12)  # 8 once and 4 twice: the other 4 rest
    assert content.draw(reuse=True, rested=True) is None
    assert content.offer("new", "new", 0)
    assert [content.draw(reuse=True, rested=True).sample for _ in range(2)] == ["new", first[4]]
    assert not content.has_one(reuse=True, rested=True)
    assert content.has_one(reuse=True)
    assert len(drawn(content, 100)) == 3  # of five that rest, one has made room for the new one


@examples(150)
@given(
    size=st.integers(1, 9),
    n=st.integers(1, 14),
    max_reuse=st.none() | st.integers(1, 3),
    moves=st.lists(st.sampled_from(["arrive", "draw", "reuse"]), max_size=150),
    key=st.integers(0, 2**64),
    told_apart=st.booleans(),
)
def test_whatever_happens(size, n, max_reuse, moves, key, told_apart):
    """Passes of `n` samples arrive; nothing is lost, nothing is served too often, the bound is kept."""
    content = Content(size, max_reuse, key)
    content.per_pass = n
    arrived = 0
    served = Counter()
    for move in moves:
        if move == "arrive":
            number, item = divmod(arrived, n)
            if content.offer((number, item), item if told_apart else None, number):
                arrived += 1
                if arrived % n == 0:
                    content.passed(number)
            continue
        expected = content.has_one(reuse=move == "reuse")
        one = content.draw(reuse=move == "reuse")
        assert (one is not None) is expected
        if one is not None:
            served[one.sample] += 1
            assert move == "reuse" or served[one.sample] == 1
            assert one.served == served[one.sample]
        assert len(content) <= min(size, n)
        if told_apart:
            assert len({held.sample[1] for held in content._all}) == len(content)
    assert max(served.values(), default=0) <= (max_reuse or len(moves))
    kept = {held.sample for held in content._all}
    everything = {divmod(number, n) for number in range(arrived)}
    assert everything - kept <= set(served), "a sample was replaced that had not been served"
    assert content.unserved == len(kept - set(served))
    assert content.first_draws == len(served)
    assert len(content._replaceable) <= 2 * min(size, n) + 65
    stats = content.stats()
    assert stats["fill"] == len(kept)
    assert stats["reuse_max"] == max(served.values(), default=0)


@examples(40)
@given(n=st.integers(1, 12), ahead=st.integers(0, 12), key=st.integers(0, 2**64))
def test_where_a_pass_fits_every_sample_comes_once_in_a_round(n, ahead, key):
    """However far the upstream is: some samples of each round are new copies, the others old ones."""
    content = filled(n, size=n + 3, per_pass=n, key=key)
    number, item = 1, 0
    for _ in range(8):
        assert sorted(drawn(content, n)) == list(range(n))
        for _ in range(ahead):
            if not content.offer(item, item, number):
                break
            item += 1
            if item == n:
                content.passed(number)
                number, item = number + 1, 0
