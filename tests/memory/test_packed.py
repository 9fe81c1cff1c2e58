"""A packed list does what a list does, in less memory. Everything is compared with the list it was made of."""

import copy
import json
import os
import pickle
import random
from operator import add, eq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.random_examples import examples

from penstock.memory.packed import PackedList, pack_list, worth_packing
from penstock.memory.parcel import pack, unpack

PAIRS = [(f"/data/train/n{number:08d}.jpg", number % 1000) for number in range(20_000)]


def there(value):
    parcel = pack(value, "the program")
    return parcel, unpack(parcel.data, [os.dup(block.fd) for block in parcel.blocks])


def packed(items):
    ends, data = pack_list(items)
    return PackedList(ends.view(np.uint8), data)


atoms = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.complex_numbers(), st.text(), st.binary()
)
plain = st.recursive(atoms, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6)


def alike(one, other):
    """Equal, of the same types, NaN too."""
    return repr(one) == repr(other)


@examples(40)
@given(st.lists(plain, max_size=12), st.data())
def test_items_and_slices_are_those_of_the_list(items, data):
    made = packed(items)
    assert len(made) == len(items)
    assert alike([*made], items)
    assert alike([*reversed(made)], items[::-1])
    index = data.draw(st.integers(-15, 15))
    if -len(items) <= index < len(items):
        assert alike(made[index], items[index])
        assert alike(made[np.int64(index)], items[index])
    else:
        with pytest.raises(IndexError):
            made[index]
    part = data.draw(st.slices(12))
    assert alike(made[part], items[part])
    assert type(made[part]) is list


ITEMS = [("b", 2), ("a", 1), ("c", 3), ("a", 1)]


def matched(value):
    match value:
        case [first, *_, last]:
            return first, last
    return None


READS = {
    "repr": repr,
    "bool": bool,
    "is a list": lambda x: isinstance(x, list),
    "list": list,
    "tuple": tuple,
    "sorted": sorted,
    "max": max,
    "unpacked": lambda x: [*x],
    "zipped": lambda x: list(zip(x, x, strict=True)),
    "in": lambda x: [("a", 1) in x, ("z", 0) in x],
    "index": lambda x: x.index(("c", 3)),
    "count": lambda x: x.count(("a", 1)),
    "copy": lambda x: x.copy(),
    "copied": copy.copy,
    "deep": copy.deepcopy,
    "added": lambda x: (add(x, [1]), add([1], x), add(x, x)),
    "times": lambda x: (x * 2, 2 * x),
    "equal": lambda x: (x == ITEMS, eq(ITEMS, x), x != ITEMS, x == x, x == tuple(ITEMS), x == 3),
    "order": lambda x: (x < [("z", 0)], x > [("z", 0)], x <= ITEMS, x >= ITEMS),
    "array": lambda x: np.array(x).tolist(),
    "object array": lambda x: np.array(x, dtype=object).shape,
    "joined": lambda x: "".join(name for name, _ in x),
    "extended": lambda x: [0, *x],
    "chosen": lambda x: random.Random(3).choice(x),
    "sampled": lambda x: random.Random(3).sample(x, 2),
    "pickled": lambda x: pickle.loads(pickle.dumps(x)),
    "matched": lambda x: matched(x),
    "dict": dict,
}
WRITES = {
    "append": lambda x: x.append(1),
    "extend": lambda x: x.extend([1, 2]),
    "insert": lambda x: x.insert(1, "new"),
    "remove": lambda x: x.remove(("a", 1)),
    "pop": lambda x: x.pop(),
    "clear": lambda x: x.clear(),
    "sort": lambda x: x.sort(key=lambda item: item[1], reverse=True),
    "reverse": lambda x: x.reverse(),
    "shuffle": lambda x: random.Random(5).shuffle(x),
    "set": lambda x: x.__setitem__(0, "new"),
    "set slice": lambda x: x.__setitem__(slice(1, 3), ["new"]),
    "delete": lambda x: x.__delitem__(0),
    "add in place": lambda x: x.__iadd__([7]) and None,
    "times in place": lambda x: x.__imul__(2) and None,
}


@pytest.mark.parametrize("what", READS)
def test_what_reads_gives_what_a_list_gives(what):
    made = packed(ITEMS)
    assert repr(READS[what](made)) == repr(READS[what](list(ITEMS)))
    assert made.memory is not None, "it has become a real list"


@pytest.mark.parametrize("what", WRITES)
def test_what_writes_changes_it_as_a_list_in_this_process(what):
    made, real = packed(ITEMS), list(ITEMS)
    assert WRITES[what](made) == WRITES[what](real)
    assert list(made) == real == made
    assert len(made) == len(real)


def test_what_wants_a_real_list_is_told_that_it_is_none():
    with pytest.raises(TypeError):
        json.dumps(packed(ITEMS))
    with pytest.raises(TypeError):
        hash(packed(ITEMS))


def test_a_list_that_grows_while_it_is_iterated_is_iterated_to_its_new_end():
    made = packed([1, 2, 3])
    seen = []
    for item in made:
        seen.append(item)
        if len(made) < 5:
            made.append(9)
    assert seen == [1, 2, 3, 9, 9]


# ---------------------------------------------------------------------- in a parcel


class Paths:
    def __init__(self, items):
        self.items = self.again = items


def test_a_long_list_of_plain_values_is_shared_and_met_twice_is_one():
    parcel, paths = there({"held": [Paths(PAIRS)], "beside": PAIRS})
    held = paths["held"][0]
    assert parcel.nbytes < 2000
    assert parcel.shared_bytes > 500_000
    assert held.items is held.again is paths["beside"]
    assert held.items == PAIRS
    assert type(held.items) is PackedList


def test_packed_again_it_stays_packed_unless_it_was_changed():
    _, once = there(PAIRS)
    parcel, twice = there({"x": once})
    assert (parcel.nbytes < 2000, type(twice["x"]), twice["x"] == PAIRS) == (True, PackedList, True)
    once.append(None)
    assert there({"x": once})[1]["x"] == [*PAIRS, None]


@pytest.mark.parametrize(
    "items",
    [
        PAIRS[:1000],
        [{"n": number} for number in range(50_000)],
        [[number] for number in range(50_000)],
        [*PAIRS, [1]],
        [*PAIRS, ("a", ("b", ["c"]))],
        [*PAIRS, np.float64(1.5)],
        [*PAIRS, type("Name", (str,), {})("a")],
        [*PAIRS, frozenset()],
    ],
    ids=["short", "dicts", "lists", "a list", "a list in a tuple", "numpy", "subclass", "set"],
)
def test_other_lists_are_sent_as_they_are(items):
    assert not worth_packing(items, 1_000_000)


def test_tuples_in_tuples_are_plain():
    items = [(number, (str(number), (None, 1.5, (b"x" * 40,)))) for number in range(20_000)]
    assert worth_packing(items, 1_000_000)
    assert there(items)[1] == items
