"""from_sequence: anything with a length and []."""

import array
from collections import UserList, deque
from itertools import product

import numpy as np
import pytest
from tests.cases import for_each
from tests.helpers import FEW_THREADS, TWO_PROCESSES, any_workers, few_layouts, few_threads, until_error

import penstock as ps


class Dataset:
    """A map-style data set."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, number):
        assert type(number) is int
        if not 0 <= number < self.n:
            raise IndexError(number)
        return number * 10


class Fetched(Dataset):
    """The same, that prefers to be asked for several at once."""

    def __init__(self, n, short=0):
        super().__init__(n)
        self.asked = []
        self.short = short

    def __getitems__(self, numbers):
        assert isinstance(numbers, list)
        assert all(type(number) is int for number in numbers)
        self.asked.append(numbers)
        return [self[number] for number in numbers][self.short :]


SEQUENCES = {
    "list": [0, 10, 20],
    "tuple": (0, 10, 20),
    "range": range(0, 30, 10),
    "str": "abc",
    "bytes": b"abc",
    "bytearray": bytearray(b"abc"),
    "memoryview": memoryview(b"abc"),
    "array.array": array.array("i", [0, 10, 20]),
    "ndarray": np.array([0, 10, 20]),
    "deque": deque([0, 10, 20]),
    "UserList": UserList([0, 10, 20]),
    "dataset": Dataset(3),
    "getitems": Fetched(3),
}


@for_each(
    "kind, layout",
    [*product(SEQUENCES, FEW_THREADS), *product(["ndarray", "memoryview", "dataset"], [TWO_PROCESSES])],
)
def test_every_sequence_gives_its_items(layout, kind):
    data = SEQUENCES[kind]
    expected = [data[number] for number in range(len(data))]
    assert layout.epochs(ps.from_sequence(data).map(lambda x: x, **layout.place), 2) == [expected] * 2
    assert sorted(layout.run(ps.from_sequence(data).shuffle())) == sorted(expected)
    assert layout.run(ps.from_sequence(data, indices=[2, 0, -1])) == [data[2], data[0], data[2]]
    assert len(ps.from_sequence(data)) == 3


@few_threads
def test_getitems_is_used_where_there_is_one(layout):
    data = Fetched(100)
    assert layout.run(ps.from_sequence(data).map(lambda x: x, **layout.place).batch(10, collate=sum)) == [
        sum(range(start * 10, start * 10 + 100, 10)) for start in range(0, 100, 10)
    ]
    assert sorted(number for numbers in data.asked for number in numbers)[-1] == 99
    assert len(data.asked) < 100


@few_threads
def test_a_torch_data_set_is_a_sequence(layout):
    data = pytest.importorskip("torch.utils.data")
    torch = pytest.importorskip("torch")
    x = torch.arange(20).reshape(10, 2)
    dataset = data.TensorDataset(x, torch.arange(10))
    subset = data.Subset(dataset, [7, 1, 3])
    assert [int(y) for _, y in layout.run(ps.from_sequence(subset))] == [7, 1, 3]
    for batch, y in layout.run(ps.from_sequence(dataset).shuffle().batch(4)):
        assert (batch[:, 0] == 2 * y).all()


@few_layouts
@for_each("short", [1, -1])
def test_getitems_that_gives_a_wrong_number_is_an_error(layout, short):
    class Wrong(Fetched):
        def __getitems__(self, numbers):
            found = super().__getitems__(numbers)
            return found[1:] if short == 1 else [*found, 0]

    with pytest.raises(IndexError, match="for 1 indices"):
        layout.run(ps.from_sequence(Wrong(20)).map(lambda x: x, **layout.place))


@few_layouts
def test_getitems_that_fails_fails_at_the_sample_that_is_bad(layout):
    class Bad(Fetched):
        def __getitems__(self, numbers):
            if 13 in numbers:
                raise OSError("13")
            return super().__getitems__(numbers)

    with ps.from_sequence(Bad(50)).map(lambda x: x, **layout.place).loader(**layout.loader) as loader:
        seen, error = until_error(loader, OSError)
    assert seen == list(range(0, 130, 10))
    assert any("sample 13" in note for note in error.__notes__)


@any_workers
def test_with_index_pairs_every_sample_with_its_number(layout):
    assert layout.run(ps.from_sequence("abc", with_index=True)) == [(0, "a"), (1, "b"), (2, "c")]
    pipeline = ps.from_sequence("abcdef", with_index=True, indices=[5, 1, -2]).shuffle()
    assert sorted(layout.run(pipeline)) == [(1, "b"), (4, "e"), (5, "f")]


@for_each("bad", [[3], [0, -4], [1.0], [[0]], ["a"]])
def test_indices_that_are_none_are_refused_by_name(bad):
    with pytest.raises(ps.PlanError, match="from_sequence"):
        ps.from_sequence("abc", indices=bad)


def test_an_index_outside_is_named_with_the_length():
    with pytest.raises(ps.PlanError, match="index 3 is outside a source of 3 samples"):
        ps.from_sequence("abc", indices=[0, 3])


@for_each(
    "bad, said",
    [
        (iter([1]), "from_iterable"),
        ((x for x in "ab"), "from_iterable"),
        (5, "len"),
        (np.ma.masked_array([1, 2], mask=[0, 1]), "mask"),
        (None, "len"),
        ({1: 2}, "items"),
        ({1, 2}, "from_iterable|number"),
    ],
)
def test_what_is_no_sequence_is_refused_with_the_remedy(bad, said):
    with pytest.raises(ps.PlanError, match=said):
        ps.from_sequence(bad)


def test_a_list_that_grows_later_is_longer_in_the_next_run():
    data = [1, 2]
    pipeline = ps.from_sequence(data)
    assert list(pipeline) == [1, 2]
    data.append(3)
    assert list(pipeline) == [1, 2, 3]
    assert len(pipeline) == 3
