"""Parts of a source: split() gives pipelines that share no sample and leave none out, over any indexed source."""

from collections import Counter
from itertools import chain

import cloudpickle
import numpy as np
import pytest
from tests.cases import for_each
from tests.helpers import INLINE, few_layouts, plain

import penstock as ps
from penstock.sources.sequence import SequenceSource
from penstock.sources.source import IndexedSource
from penstock.sources.subset import Subset
from penstock.testing import check_source


class Squares(IndexedSource):
    """A source of somebody else's, of which nothing is known but the contract."""

    verb = "squares"

    def __len__(self):
        return 50

    def read(self, indices):
        return [int(index) ** 2 for index in indices]


SOURCES = {
    "sequence": lambda: ps.from_sequence([number**2 for number in range(50)]),
    "subset": lambda: ps.from_sequence([number**2 for number in range(99, -1, -1)], indices=range(99, 49, -1)),
    "array": lambda: ps.from_arrays(np.arange(50) ** 2),
    "dict": lambda: ps.from_arrays({"x": np.arange(50) ** 2}).map(lambda row: row["x"]),
    "lists": lambda: ps.from_arrays([number**2 for number in range(50)]),
    "own": lambda: ps.Pipeline(Squares()),
}


def numbers(samples):
    return sorted(int(sample) for sample in samples)


@few_layouts
@for_each("name", SOURCES)
def test_parts_are_disjoint_and_complete_over_any_indexed_source(layout, name):
    parts = SOURCES[name]().split([0.6, 0.3, 0.1], seed=1)
    assert [len(part) for part in parts] == [30, 15, 5]
    samples = [layout.run(part) for part in parts]
    assert [len(part) for part in samples] == [30, 15, 5]
    assert numbers(chain(*samples)) == [number**2 for number in range(50)]


@few_layouts
def test_batches_of_a_part_are_the_same_for_any_layout(layout):
    x = np.arange(200).reshape(100, 2)
    part, _ = ps.from_arrays({"x": x, "y": x[:, 0]}).shuffle().batch(7).split([0.5, 0.5])
    for batch in layout.run(part):
        assert (batch["x"][:, 0] == batch["y"]).all()
    assert plain(layout.epochs(part, 2)) == plain(INLINE.epochs(part, 2))


@for_each("name", [name for name in SOURCES if name != "dict"])
def test_a_part_is_a_source_like_any_other(name):
    _, rest = SOURCES[name]().split([0.5, 0.5])
    check_source(rest)


@for_each("name", ["array", "own"])
def test_an_empty_part_is_empty(name):
    _, none = SOURCES[name]().split([1, 0])
    assert len(none) == 0
    assert list(none.shuffle().batch(3)) == []


def test_the_ops_of_the_pipeline_are_kept():
    whole = ps.from_sequence(range(20)).map(str).batch(3, collate=list)
    parts = whole.split([0.5, 0.5])
    assert all(part.ops == whole.ops for part in parts)
    assert sorted(chain(*parts[0], *parts[1]), key=int) == list(map(str, range(20)))


def test_a_batch_of_a_part_is_still_one_read():
    part, _ = ps.from_arrays(np.arange(100)).batch(10).split([0.8, 0.2])
    assert "as one read of the source" in str(part.explain())


def test_labels_divide_every_class():
    labels = [0] * 40 + [1] * 10
    train, check = ps.from_sequence(labels).split([0.8, 0.2], labels=labels)
    assert Counter(train) == {0: 32, 1: 8}
    assert Counter(check) == {0: 8, 1: 2}


def test_a_seed_divides_alike_and_another_does_not():
    pipeline = ps.from_sequence(range(100))
    same = [list(pipeline.split([0.5, 0.5], seed=seed)[0]) for seed in (3, 3, 4)]
    assert same[0] == same[1] != same[2]


def test_a_part_of_a_part_is_a_part_of_the_whole():
    whole = ps.from_sequence(range(20))
    a, b = whole.split([0.5, 0.5])
    c, d = a.split([0.5, 0.5])
    assert sorted([*b, *c, *d]) == list(range(20))
    assert c.source.whole is whole.source
    assert repr(c) == "from_sequence(range of 20).split(5 of 20)"


def test_samples_keep_their_numbers():
    train, check = ps.from_sequence("abcdefghij", indices=[9, 8, 7, 6, 5, 4], with_index=True).split([0.5, 0.5])
    assert dict([*train, *check]) == dict(enumerate("efghij", 4))
    part = ps.from_sequence("abcdefghij", indices=range(5, 10)).split([0.6, 0.4])[1]
    assert [part.peek(index=index) for index in part.map(lambda _, info: info.index, info=True)] == [
        [letter] for letter in part
    ]


@few_layouts
def test_an_error_names_the_sample_by_its_number_in_the_whole(layout):
    def read(x):
        raise ValueError("broken")

    (_, part) = ps.from_sequence(range(100, 200)).map(read, on_error="skip", **layout.place).split([0.97, 0.03])
    with part.loader(**layout.loader) as loader:
        assert list(loader) == []
        assert sorted(record.index for record in loader.errors()) == sorted(
            number - 100 for number in ps.Pipeline(part.source)
        )


def test_a_long_list_still_stays_in_the_parent():
    part, _ = ps.from_sequence([bytes(1000) for _ in range(2000)]).map(len).split([0.9, 0.1])
    assert part.source.stays
    with part.loader(on="process", workers=2) as loader:
        assert sum(loader) == 1_800_000


def test_a_subset_survives_pickling_and_says_what_the_whole_says():
    whole = SequenceSource(np.arange(10))
    part = cloudpickle.loads(cloudpickle.dumps(Subset(whole, [7, -1])))
    assert list(part.read(range(2))) == [7, 9]
    assert part.heap_bytes == whole.heap_bytes
    assert part.bare().numbers(range(2)).tolist() == [7, 9]
    assert part.bare().label == part.label


@for_each("wrong", [[10], [-11], [0.5], [[1]], None])
def test_what_is_no_index_of_the_whole_is_refused(wrong):
    with pytest.raises(ps.PlanError, match="from_sequence"):
        Subset(SequenceSource(range(10)), wrong)


# ---------------------------------------------------------------------- refusals


def test_a_stream_is_not_split_and_the_message_says_what_to_do():
    with pytest.raises(ps.PlanError, match=r"stream, .* from_sequence\(\), or .* filter\(\)"):
        ps.from_iterable(lambda: range(5)).split([0.5, 0.5])


@for_each("join", [ps.zip, ps.concat])
def test_pipelines_put_together_are_not_split_but_their_parts_are(join):
    a, b = ps.from_sequence(range(10)), ps.from_sequence(range(10, 20))
    with pytest.raises(ps.PlanError, match="split the pipelines that it is made of, with the same seed"):
        join(a, b).split([0.5, 0.5])
    parts = [join(*both) for both in zip(a.split([0.5, 0.5]), b.split([0.5, 0.5]), strict=True)]
    assert sorted([*parts[0], *parts[1]]) == sorted(join(a, b))


def test_fractions_seeds_and_labels_are_checked():
    pipeline = ps.from_sequence(range(10))
    for arguments in ({"fractions": [0.5]}, {"fractions": [0.5, 0.5], "seed": -1}):
        with pytest.raises(ps.PlanError, match="split"):
            pipeline.split(**arguments)
    with pytest.raises(ps.PlanError, match="9 labels for 10 samples"):
        pipeline.split([0.5, 0.5], labels="a" * 9)
