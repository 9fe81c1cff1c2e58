"""bucket: batches of about the same length, each sample in one of them, never more than the budget."""

import pickle
from bisect import bisect_left

import numpy as np
import pytest
from hypothesis import strategies as st
from tests.cases import for_each
from tests.helpers import INLINE, any_workers, few_layouts, plain, until_error

import penstock as ps
from penstock import ops
from penstock.testing import Layout, check_op

#: lengths that come in no order
LENGTHS = [(7 * number * number + 3) % 23 for number in range(120)]


def document(number):
    return {"ids": np.arange(LENGTHS[number], dtype="int32"), "number": number}


def documents(layout):
    return ps.from_sequence(range(len(LENGTHS))).map(document, **layout.place)


# ---------------------------------------------------------------------- which samples make a batch


def test_a_measure_up_to_a_bound_belongs_to_its_bin_and_a_larger_one_to_the_next():
    samples = [[0] * n for n in (4, 5, 8, 9, 0, 100)]
    batches = list(ps.from_sequence(samples).bucket(len, [4, 8], size=2, pad=1))
    assert [(batch == 0).sum(axis=1).tolist() for batch in batches] == [[5, 8], [4, 0], [9, 100]]


def test_a_batch_leaves_when_it_is_full_and_the_rests_leave_in_the_order_of_the_bins():
    samples = [9, 1, 5, 2, 5, 9, 3]
    batches = list(ps.from_sequence(samples).bucket(lambda x: x, [3, 6], size=[3, 2, 4]))
    assert plain(batches) == [[5, 5], [1, 2, 3], [9, 9]]
    batches = list(ps.from_sequence([9, 5, 1]).bucket(lambda x: x, [3, 6], size=2))
    assert plain(batches) == [[1], [5], [9]]


def test_without_bounds_there_is_one_bin():
    assert plain(list(ps.from_sequence([5, 1, 9]).bucket(lambda x: x, [], size=2))) == [[5, 1], [9]]


def test_size_1_passes_every_sample_on_at_once():
    assert plain(list(ps.from_sequence([5, 1, 9]).bucket(lambda x: x, [3], size=1, budget=9))) == [[5], [1], [9]]


def test_a_batch_leaves_when_the_next_sample_would_exceed_the_budget():
    samples = [[1] * n for n in (2, 3, 3, 2, 5, 1)]
    batches = list(ps.from_sequence(samples).bucket(len, [], size=10, budget=9))
    # 3 rows of 3 are 9; a fourth would be 12. 5 with 2 would be 10, and 5 with 1 too.
    assert [batch.shape for batch in batches] == [(3, 3), (1, 2), (1, 5), (1, 1)]


@for_each("by", ["ids", lambda sample: len(sample["ids"]), lambda sample: np.int32(len(sample["ids"]))])
def test_by_is_a_field_whose_length_counts_or_a_function(by):
    batches = list(documents(INLINE).bucket(by, [5, 10, 15], size=8))
    for batch in batches:
        lengths = batch["ids_length"]
        assert len({bisect_left([5, 10, 15], length) for length in lengths}) == 1
        assert batch["ids"].shape == (len(lengths), lengths.max())
        assert [LENGTHS[number] for number in batch["number"]] == lengths.tolist()
    assert sorted(number for batch in batches for number in batch["number"]) == list(range(120))


def test_by_may_be_a_number_in_a_tuple_and_a_function_of_each_worker():
    samples = [("a", [1]), ("b", [1, 2]), ("c", [3])]
    expected = [(["a", "c"], [[1], [3]]), (["b"], [[1, 2]])]
    pipeline = ps.from_sequence(samples)
    assert plain(list(pipeline.bucket(1, [1], size=2))) == expected
    by = ps.per_worker(lambda: lambda sample: len(sample[1]))
    assert plain(list(pipeline.bucket(by, [1], size=2))) == expected


# ---------------------------------------------------------------------- what a batch looks like


def test_fields_are_padded_as_by_batch_and_lengths_come_beside_them():
    samples = [{"x": np.ones((n, 2), "float32"), "y": [n] * 2, "z": n, "s": "s" * n} for n in (1, 3)]
    (bucketed,) = ps.from_sequence(samples).bucket("x", [5], size=2)
    (batched,) = ps.from_sequence(samples).batch(2, pad=0)
    assert plain(bucketed) == plain(batched)
    assert bucketed["x"].shape == (2, 3, 2)
    assert bucketed["x"].dtype == "float32"
    assert bucketed["x_length"].tolist() == [1, 3]
    assert bucketed["y"].tolist() == [[1, 1], [3, 3]]
    assert bucketed["z"].tolist() == [1, 3]
    assert bucketed["s"] == ["s", "sss"]


def test_pad_is_a_value_or_a_value_by_field_or_nothing():
    samples = [{"x": [1] * n, "y": [2.5] * n} for n in (1, 2)]
    (batch,) = ps.from_sequence(samples).bucket("x", [5], size=2, pad={"x": -1, "y": 9})
    assert plain(batch)["x"] == [[1, -1], [1, 1]]
    assert plain(batch)["y"] == [[2.5, 9], [2.5, 2.5]]
    with pytest.raises(ps.RaggedBatch, match=r"field 'x': \(1,\) then \(2,\) at sample 1"):
        list(ps.from_sequence(samples).bucket("x", [5], size=2, pad=None))


@few_layouts
def test_a_ragged_batch_names_the_sample_by_its_number_in_the_source(layout):
    pipeline = (
        ps.from_sequence(range(20))
        .shuffle()
        .map(lambda x: {"x": [0] * x, "y": [0] * (1 + (x == 13))}, **layout.place)
    )
    with pytest.raises(ps.RaggedBatch, match=r"field 'y': .* at sample \d+"):
        layout.run(pipeline.bucket("x", [5, 10], size=5, pad={"x": 0}))


@few_layouts
def test_batches_are_writable_and_the_users_own(layout):
    rows = np.zeros((20, 3))
    for batch in layout.run(ps.from_arrays(rows).bucket(len, [2, 4], size=4)):
        batch += 1
    assert not rows.any()


# ---------------------------------------------------------------------- the same everywhere


def functions_of_everything(layout):
    source = documents(layout)
    return [
        source.bucket("ids", [5, 10, 15], size=8),
        source.bucket("ids", [5, 10, 15], size=[16, 8, 4, 2], budget=60),
        source.shuffle().bucket("ids", [8], size=7, pad=-1).shuffle(window=4),
        source.filter(lambda s: s["number"] % 3).bucket("ids", [8], size=7).map(lambda b: b["number"] * 2),
        source.bucket(lambda s: s["number"] / 2, [10.5, 30], size=9).unbatch().batch(5, pad=0),
    ]


@few_layouts
@for_each("which", range(5))
def test_the_stream_is_the_same_for_any_layout(layout, which):
    run, bare = functions_of_everything(layout)[which], functions_of_everything(INLINE)[which]
    assert plain(layout.epochs(run, 2)) == plain(INLINE.epochs(bare, 2))


def test_it_is_an_op_as_any_other():
    samples = [[1] * (number % 9) for number in range(25)]
    check_op(
        ops.Bucket(len, [3, 6], size=4),
        samples,
        layouts=[Layout("thread", 3, order=1), Layout("thread", 2, memory=1)],
    )
    check_op(ops.Bucket(len, [3, 6], size=[8, 4, 2], budget=20), samples)


@few_layouts
def test_every_epoch_has_all_samples_and_keeps_none_for_the_next(layout):
    pipeline = documents(layout).shuffle().bucket("ids", [5, 10], size=7)
    for epoch in layout.epochs(pipeline, 3):
        assert sorted(number for batch in epoch for number in batch["number"]) == list(range(120))


@few_layouts
@for_each("source", [ps.from_sequence([]), ps.from_iterable(list)])
def test_nothing_comes_of_nothing(layout, source):
    assert layout.epochs(source.bucket(len, [3], size=2), 2) == [[], []]


@few_layouts
def test_bucket_behind_repeat_and_in_a_concat(layout):
    once = documents(layout).take(10).bucket("ids", [5], size=4)
    assert len(layout.run(ps.concat(once, once))) == 2 * len(layout.run(once))
    twice = documents(layout).take(10).repeat(2).bucket("ids", [5], size=4)
    numbers = sorted(number for batch in layout.run(twice) for number in batch["number"])
    assert numbers == sorted([*range(10)] * 2)


@few_layouts
def test_draws_behind_it_differ_from_batch_to_batch(layout):
    pipeline = documents(layout).bucket("ids", [5, 10], size=7).map(lambda batch, rng: rng.random(), rng=True)
    drawn = layout.run(pipeline)
    assert len(set(drawn)) == len(drawn)
    assert drawn == INLINE.run(pipeline)


def test_a_stream_with_torch_tensors():
    torch = pytest.importorskip("torch")
    samples = [{"x": torch.ones(n)} for n in (3, 1, 2)]
    batches = list(ps.from_sequence(samples).bucket("x", [2], size=2))
    assert [plain(batch["x"]) for batch in batches] == [[[1, 0], [1, 1]], [[1, 1, 1]]]
    by = list(ps.from_sequence(samples).bucket(lambda s: s["x"].sum(), [2], size=2))
    assert plain(by) == plain(batches)


# ---------------------------------------------------------------------- the joint alone

lengths_of_samples = st.lists(st.integers(0, 12), max_size=60)


# ---------------------------------------------------------------------- what fails


@any_workers
def test_a_function_that_fails_is_the_users_error_at_its_place(layout):
    def by(sample):
        if sample["number"] == 50:
            raise LookupError("fifty")
        return sample["number"]

    with documents(layout).bucket(by, [1000], size=10).loader(**layout.loader) as loader:
        seen, error = until_error(loader, LookupError)
    assert len(seen) == 5
    assert any("bucket(by=by) at test_bucket.py" in note and "sample 50" in note for note in error.__notes__)


@few_layouts
def test_a_function_that_skips_leaves_the_sample_out_and_is_told(layout):
    def by(sample):
        if sample["number"] == 3:
            raise ps.Skip("three")
        return 1

    with documents(layout).take(5).bucket(by, [2], size=10).loader(**layout.loader) as loader:
        (batch,) = loader
        assert batch["number"].tolist() == [0, 1, 2, 4]
        assert [str(record) for record in loader.errors()] == ["bucket(by=by), sample 3, epoch 0: Skip('three')"]


@few_layouts
def test_a_sample_beyond_the_budget_is_an_error_that_names_both(layout):
    pipeline = documents(layout).bucket("ids", [5], size=10, budget=21)
    with pytest.raises(ValueError, match=r"measures 22 does not fit into budget=21, even alone; allow more"):
        layout.run(pipeline)


@for_each(
    "by, said",
    [
        ("number", r"'number'\): the field is int, which has no length; .*by=lambda"),
        (lambda sample: "long", "must give a number, got 'long'"),
        (lambda sample: None, "must give a number, got None"),
        (lambda sample: float("nan"), "must give a number, got nan"),
        (lambda sample: np.arange(3), "must give a number"),
        (lambda sample: True, "must give a number, got True"),
    ],
)
def test_what_is_no_measure_is_a_type_error_that_says_so(by, said):
    with pytest.raises(TypeError, match=said):
        list(documents(INLINE).bucket(by, [5], size=2))


def test_a_field_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(KeyError) as caught:
        list(documents(INLINE).bucket("words", [5], size=2))
    assert any("'ids', 'number'" in note for note in caught.value.__notes__)


# ---------------------------------------------------------------------- refusals


@for_each(
    "arguments, said",
    [
        ({"bounds": [4, 2]}, "must ascend, got 2 after 4"),
        ({"bounds": [4, 4]}, "must ascend, got 4 after 4"),
        ({"bounds": 4}, "ascending order, such as"),
        ({"bounds": "48"}, "ascending order, such as"),
        ({"bounds": [4, None]}, "got None among them"),
        ({"bounds": [4, float("nan")]}, "got nan among them"),
        ({"bounds": [[4]]}, "among them"),
        ({"size": 0}, "at least 1, got 0"),
        ({"size": -1}, "at least 1, got -1"),
        ({"size": True}, "got True"),
        ({"size": 2.5}, "got 2.5"),
        ({"size": "2"}, "got '2'"),
        ({"size": [2, 2, 2]}, "3 numbers for 2 bins; 1 bounds make 2 bins"),
        ({"size": []}, "0 numbers for 2 bins"),
        ({"size": [2, 0]}, "at least 1, got 0"),
        ({"budget": 0}, "positive number, got 0"),
        ({"budget": -3}, "positive number, got -3"),
        ({"budget": "big"}, "positive number, got 'big'"),
        ({"budget": float("nan")}, "positive number"),
        ({"by": None}, "name of a field, or a function"),
        ({"by": True}, "name of a field, or a function"),
        ({"by": ["x"]}, "name of a field, or a function"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_where_they_are_written(arguments, said):
    given = {"by": "x", "bounds": [4], "size": 2, **arguments}
    with pytest.raises(ps.PlanError, match="bucket") as caught:
        ps.from_sequence([]).bucket(given.pop("by"), given.pop("bounds"), **given)
    assert said in str(caught.value)


def test_an_async_function_is_refused():
    async def by(sample):
        return 1

    with pytest.raises(ps.PlanError, match="async def"):
        ps.from_sequence([]).bucket(by, [4], size=2)


def test_numbers_of_numpy_will_do():
    pipeline = ps.from_sequence([[1], [1] * 5]).bucket(len, np.array([2, 4]), size=np.int64(2), budget=np.int32(9))
    assert pipeline.ops[-1] == ops.Bucket(len, [2, 4], size=2, budget=9)
    assert len(list(pipeline)) == 2
    assert ops.Bucket(len, (2,), size=np.array([1, 2])).size == (1, 2)


# ---------------------------------------------------------------------- as a value


def test_the_length_is_not_known_before_the_run():
    with pytest.raises(ps.LengthUnknown):
        len(ps.from_sequence([[1]]).bucket(len, [2], size=2))
    assert len(ps.from_sequence([]).bucket(len, [2], size=2)) == 0


def test_the_pipeline_shows_what_was_written_and_explain_where_it_is_measured():
    pipeline = ps.from_sequence([[1]]).bucket(len, [2, 4], size=2, budget=10)
    assert repr(pipeline) == "from_sequence(list of 1).bucket(len, [2, 4], size=2, budget=10)"
    assert "bucket(by=len)" in str(pipeline.explain())
    assert repr(ps.from_sequence([]).bucket("x", range(9), size=2)).endswith(".bucket('x', 9 bounds, size=2)")


def test_it_is_a_value():
    one, same = (ps.from_sequence([]).apply(ops.Bucket("x", [2], size=[1, 2])) for _ in range(2))
    assert one.ops == same.ops
    assert hash(one.ops[-1]) == hash(same.ops[-1])
    assert pickle.loads(pickle.dumps(one.ops)) == one.ops
