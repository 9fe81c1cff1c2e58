"""batch: what is stacked, what is kept in a list, what is refused, and where batches are cut."""

import dataclasses
from collections import namedtuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import for_each
from tests.helpers import INLINE, any_workers, few_layouts, plain, until_error
from tests.random_examples import examples

import penstock as ps
from penstock.trees import numbers_stacked, stacked

Point = namedtuple("Point", "x y")


@dataclasses.dataclass(frozen=True)
class Record:
    x: int
    y: str


def one_batch(samples, **arguments):
    (batch,) = ps.from_sequence(samples).batch(len(samples), **arguments)
    return batch


# ---------------------------------------------------------------------- where batches are cut


@any_workers
def test_85_by_10_are_nine_batches_the_last_of_5(layout):
    pipeline = ps.from_sequence(range(85)).map(lambda x: x, **layout.place).batch(10)
    batches = plain(layout.run(pipeline))
    assert batches == [list(range(start, min(start + 10, 85))) for start in range(0, 85, 10)]
    assert len(batches) == len(pipeline) == 9


@any_workers
def test_drop_last_leaves_the_short_batch_out(layout):
    for source in (ps.from_sequence(range(85)), ps.from_iterable(lambda: range(85)), ps.from_arrays(np.arange(85))):
        pipeline = source.map(lambda x: x, **layout.place).batch(10, drop_last=True)
        assert [len(batch) for batch in layout.run(pipeline)] == [10] * 8
    assert [len(batch) for batch in layout.run(ps.from_arrays(np.arange(85)).batch(10, drop_last=True))] == [10] * 8


@any_workers
def test_drop_last_keeps_a_last_batch_that_is_full(layout):
    pipeline = ps.from_sequence(range(20)).map(lambda x: x, **layout.place).batch(10, drop_last=True)
    assert [len(batch) for batch in layout.run(pipeline)] == [10, 10]


@any_workers
def test_a_batch_larger_than_the_source_holds_all_of_it(layout):
    pipeline = ps.from_sequence(range(3)).map(lambda x: x, **layout.place)
    assert plain(layout.run(pipeline.batch(1000))) == [[0, 1, 2]]
    assert layout.run(pipeline.batch(1000, drop_last=True)) == []


@any_workers
def test_no_sample_crosses_the_end_of_an_epoch(layout):
    for source in (ps.from_sequence(range(7)), ps.from_iterable(lambda: range(7))):
        pipeline = source.map(lambda x: x, **layout.place).batch(3)
        assert plain(layout.epochs(pipeline, 3)) == [[[0, 1, 2], [3, 4, 5], [6]]] * 3


@any_workers
def test_batches_of_batches(layout):
    pipeline = ps.from_sequence(range(10)).map(lambda x: x, **layout.place).batch(2).batch(2)
    assert plain(layout.run(pipeline)) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9]]]


@any_workers
def test_batches_over_ops_that_vary_the_count_are_the_same_for_any_layout(layout):
    def run(one):
        pipeline = (
            ps.from_sequence(range(200))
            .shuffle()
            .filter(lambda x: x % 3, **one.place)
            .flat_map(lambda x: [x] * (x % 4))
            .batch(16)
        )
        return plain(one.epochs(pipeline, 2))

    assert run(layout) == run(INLINE)


@few_layouts
def test_a_mean_over_batches_is_exact_with_a_short_last_batch(layout):
    batches = layout.run(ps.from_sequence([float(x) for x in range(85)]).map(lambda x: x, **layout.place).batch(10))
    assert sum(batch.sum() for batch in batches) / sum(map(len, batches)) == 42.0


def test_a_batch_of_one_keeps_the_axis():
    assert one_batch([5]).shape == (1,)
    assert one_batch([np.zeros((2, 3))]).shape == (1, 2, 3)


# ---------------------------------------------------------------------- what is stacked


@for_each(
    "samples, dtype",
    [
        ([True, False], "bool"),
        ([1, 2], "int64"),
        ([2**40, 1], "int64"),
        ([-(2**63), 2**63 - 1], "int64"),
        ([1.5, 2.0], "float64"),
        ([1, 2.5], "float64"),
        ([1j, 2], "complex128"),
        ([np.uint8(1), np.uint8(255)], "uint8"),
        ([np.float32(1), np.float32(2)], "float32"),
        ([np.float16(1), np.float16(2)], "float16"),
        ([np.bool_(True), np.bool_(False)], "bool"),
        ([np.int32(1), np.int32(2)], "int32"),
        ([np.datetime64("2024-01-01"), np.datetime64("2024-01-02")], "datetime64[D]"),
        ([np.zeros(3, "uint8"), np.ones(3, "uint8")], "uint8"),
        ([np.zeros((2, 2), "float32"), np.ones((2, 2), "float32")], "float32"),
        ([np.zeros(3, bool), np.ones(3, bool)], "bool"),
        ([[1, 2], [3, 4]], "int64"),
        ([[True, False], [True, True]], "bool"),
        ([[[1.5], [2.5]], [[3.5], [4.5]]], "float64"),
    ],
)
def test_the_dtype_is_kept(samples, dtype):
    batch = one_batch(samples)
    assert isinstance(batch, np.ndarray)
    assert batch.dtype == dtype
    assert batch.shape == (len(samples), *np.shape(samples[0]))
    assert plain(batch) == plain(list(samples))


@for_each("samples", [[2**70, 1], [2**63, -1], [-(2**64), 0], [[2**70], [1]]])
def test_integers_beyond_64_bits_stay_exact_in_a_list(samples):
    batch = one_batch(samples)
    assert isinstance(batch, list)
    assert batch == samples


@for_each("samples", [[[2**63 + 1], [1]], [[2**53 + 1], [2**63]], [2**63 + 1, 1]])
def test_integers_are_never_rounded(samples):
    assert plain(one_batch(samples)) == samples


@for_each(
    "samples",
    [
        ["a", "bc"],
        [b"a", b"bc"],
        [None, None],
        [None, "a"],
        [{1}, {2}],
        [object, int],
        ["a", 1],
        [range(2), range(2)],
    ],
)
def test_strings_bytes_none_and_objects_go_into_a_list(samples):
    batch = one_batch(samples)
    assert type(batch) is list
    assert batch == samples


def test_nested_samples_are_batched_field_by_field():
    samples = [{"x": i, "in": (i, {"s": str(i)}), "p": Point(i, "y"), "r": Record(i, "r")} for i in range(3)]
    batch = one_batch(samples)
    assert list(batch) == ["x", "in", "p", "r"]
    assert batch["x"].tolist() == [0, 1, 2]
    numbers, inner = batch["in"]
    assert (numbers.tolist(), inner) == ([0, 1, 2], {"s": ["0", "1", "2"]})
    assert type(batch["p"]) is Point
    assert (batch["p"].x.tolist(), batch["p"].y) == ([0, 1, 2], ["y"] * 3)
    assert type(batch["r"]) is Record
    assert (batch["r"].x.tolist(), batch["r"].y) == ([0, 1, 2], ["r"] * 3)


def test_tuples_stay_tuples_and_fields_may_stand_in_any_order():
    assert type(one_batch([(1, "a"), (2, "b")])) is tuple
    assert plain(one_batch([{"x": 1, "y": 2}, {"y": 4, "x": 3}])) == {"x": [1, 3], "y": [2, 4]}


def test_torch_tensors_are_stacked_into_a_tensor():
    torch = pytest.importorskip("torch")
    batch = one_batch([{"x": torch.full((2,), i, dtype=torch.uint8), "y": torch.tensor(i)} for i in range(3)])
    assert (type(batch["x"]), batch["x"].dtype, batch["x"].shape) == (torch.Tensor, torch.uint8, (3, 2))
    assert (type(batch["y"]), batch["y"].tolist()) == (torch.Tensor, [0, 1, 2])
    for name in ("bfloat16", "float8_e5m2", "uint16", "bool", "complex64"):
        dtype = getattr(torch, name)
        assert one_batch([torch.zeros(2, dtype=dtype)] * 3).dtype == dtype
    assert one_batch([torch.zeros(2, dtype=torch.int32), torch.zeros(2)]).dtype == torch.float32
    assert [row.tolist() for row in ps.from_sequence([torch.arange(2)] * 3).batch(2).unbatch()] == [[0, 1]] * 3


def test_tensors_that_do_not_fit_together_are_an_error_that_names_field_and_sample():
    torch = pytest.importorskip("torch")
    for samples, said in (
        ([torch.zeros(2), torch.zeros(3)], r"field 'x': \(2,\) then \(3,\) at sample 1; use batch\(pad=0\)"),
        ([torch.zeros(2), np.zeros(2)], "field 'x': Tensor then ndarray at sample 1; make them alike"),
        ([np.zeros(2), torch.zeros(2)], "field 'x': ndarray then Tensor at sample 1"),
        ([torch.zeros(2), None], "field 'x': Tensor then NoneType at sample 1"),
        (
            [torch.zeros(2), torch.zeros(2, requires_grad=True)],
            "'x': the tensor of sample 1 requires grad",
        ),
        ([torch.zeros(2, requires_grad=True) * 2], "the tensor of sample 0 requires grad"),
    ):
        with pytest.raises(ps.RaggedBatch, match=said):
            one_batch([{"x": sample} for sample in samples])


@pytest.mark.parametrize(
    ("values", "gap"),
    [
        ([1, None], 1),
        ([None, 1.5], 0),
        ([np.zeros(2), None], 1),
        ([[1, 2], [1, None]], 1),
        ([[1, 2], None], 1),
        ([None, {"z": 1}], 0),
        ([np.float32(1), np.float32(2), None], 2),
    ],
    ids=str,
)
def test_one_none_among_numbers_is_an_error_that_names_field_and_sample(values, gap):
    with pytest.raises(ps.RaggedBatch, match=rf"field 'y': None at sample {gap}, where .*filter\(\)"):
        one_batch([{"x": 0, "y": value} for value in values])


@few_layouts
def test_none_is_named_by_its_number_in_the_source(layout):
    def row(x):
        return {"y": None if x == 17 else x}

    with pytest.raises(ps.RaggedBatch, match="field 'y': None at sample 17,"):
        layout.run(ps.from_sequence(range(30)).shuffle().map(row, **layout.place).batch(30))
    for columns in ({"y": [1, None, 3]}, {"y": np.array([1, None, 3], object)}):
        with pytest.raises(ps.RaggedBatch, match="field 'y': None at sample 1,"):
            layout.run(ps.from_arrays(columns).batch(3))


def test_masked_samples_are_refused_by_name():
    masked = np.ma.masked_array(np.arange(3.0), mask=[0, 1, 0])
    for value in (masked, np.ma.masked):
        with pytest.raises(ps.RaggedBatch, match=r"field 'x': sample 1 is a masked array.*filled"):
            one_batch([{"x": np.zeros(3)}, {"x": value}])
    (batch,) = ps.from_sequence([masked, masked]).map(lambda x: x.filled(-1)).batch(2)
    assert batch.tolist() == [[0, -1, 2], [0, -1, 2]]


def test_structures_that_have_no_common_type_are_refused():
    one, other = np.zeros(1, [("x", "i4")])[0], np.zeros(1, [("y", "i4")])[0]
    with pytest.raises(ps.RaggedBatch, match=r"then .*'y'.* at sample 1"):
        one_batch([one, other])


@any_workers
def test_batches_are_writable_and_the_users_own(layout):
    rows = np.zeros((20, 3))
    for source in (
        ps.from_arrays(rows),
        ps.from_arrays(rows).map(lambda r: r, **layout.place),
        ps.from_sequence(rows),
    ):
        for batch in layout.run(source.batch(4)):
            batch += 1
    for batch in layout.run(ps.from_sequence(list(rows)).map(lambda r: r, **layout.place).batch(1)):
        batch += 1
    assert not rows.any()


# ---------------------------------------------------------------------- ragged samples


def wav(number):
    return {"wav": np.zeros(15873 if number == 812 else 16000, "int8")}


@any_workers
@for_each("size", [5, 16, 100])
def test_ragged_samples_are_an_error_that_says_which_and_what_to_do(layout, size):
    pipeline = ps.from_sequence(range(600, 900)).map(wav, **layout.place).batch(size)
    with pytest.raises(ps.RaggedBatch) as caught:
        layout.run(pipeline)
    said = "field 'wav': (16000,) then (15873,) at sample 212; use batch(pad=0), bucket() or collate=list"
    assert str(caught.value) == said


def test_the_message_of_the_contract_word_for_word():
    with pytest.raises(ps.RaggedBatch) as caught:
        list(ps.from_sequence(range(1000)).map(wav).batch(8))
    assert str(caught.value) == (
        "field 'wav': (16000,) then (15873,) at sample 812; use batch(pad=0), bucket() or collate=list"
    )


@any_workers
def test_good_batches_come_before_the_ragged_one(layout):
    pipeline = ps.from_sequence(range(30)).map(lambda x: np.zeros(2 if x != 17 else 3), **layout.place).batch(5)
    with pipeline.loader(**layout.loader) as loader:
        seen, error = until_error(loader, ps.RaggedBatch)
    assert len(seen) == 3
    assert str(error).startswith("(2,) then (3,) at sample 17;")


@few_layouts
def test_the_sample_is_named_by_its_number_in_the_source(layout):
    pipeline = ps.from_sequence(range(30)).shuffle().map(lambda x: [0] * (2 if x != 17 else 3), **layout.place)
    with pytest.raises(ps.RaggedBatch, match=r"\(2,\) then \(3,\) at sample 17;"):
        layout.run(pipeline.batch(30))


@for_each(
    "samples",
    [
        [{"a": {"b": [1, 2]}}, {"a": {"b": [1]}}],
        [{"a": {"b": np.zeros(2)}}, {"a": {"b": np.zeros((2, 2))}}],
        [{"a": {"b": 1}}, {"a": {"b": np.zeros(2)}}],
    ],
)
def test_nested_fields_are_named_by_their_path(samples):
    with pytest.raises(ps.RaggedBatch, match=r"field 'a\.b'"):
        one_batch(samples)


@for_each(
    "samples",
    [[{"x": 1}, {"y": 1}], [{"x": 1}, {"x": 1, "y": 2}], [(1, 2), (1, 2, 3)], [{"x": 1}, 5]],
)
def test_samples_with_other_fields_are_an_error_that_says_which(samples):
    with pytest.raises(ps.RaggedBatch, match="sample 1"):
        one_batch(samples)


def test_an_empty_list_among_lists_of_numbers_is_ragged():
    with pytest.raises(ps.RaggedBatch, match=r"\(2,\) then \(0,\) at sample 1"):
        one_batch([{"ids": [1, 2]}, {"ids": []}])


def test_a_list_that_is_ragged_in_itself_is_refused_by_name():
    with pytest.raises(ps.RaggedBatch, match="ids"):
        one_batch([{"ids": [[1, 2], [3]]}, {"ids": [[1, 2], [3]]}])


# ---------------------------------------------------------------------- pad


def test_pad_fills_up_to_the_largest_and_gives_the_lengths():
    batch = one_batch([{"x": np.arange(n, dtype="uint8"), "y": n} for n in (2, 0, 3)], pad=9)
    assert batch["x"].tolist() == [[0, 1, 9], [9, 9, 9], [0, 1, 2]]
    assert batch["x"].dtype == "uint8"
    assert batch["x_length"].tolist() == [2, 0, 3]
    assert batch["y"].tolist() == [2, 0, 3]
    assert set(batch) == {"x", "x_length", "y"}


def test_pad_works_on_lists_of_numbers_and_keeps_them_integers():
    batch = one_batch([{"ids": [1, 2]}, {"ids": []}, {"ids": [3]}], pad=0)
    assert batch["ids"].tolist() == [[1, 2], [0, 0], [3, 0]]
    assert batch["ids"].dtype == "int64"
    assert batch["ids_length"].tolist() == [2, 0, 1]


def test_pad_works_on_torch_tensors():
    torch = pytest.importorskip("torch")
    batch = one_batch([{"x": torch.ones(n, dtype=torch.bfloat16)} for n in (1, 3)], pad=0)
    assert batch["x"].tolist() == [[1, 0, 0], [1, 1, 1]]
    assert batch["x_length"].tolist() == [1, 3]
    assert (batch["x"].dtype, batch["x_length"].dtype) == (torch.bfloat16, torch.int64)


def test_pad_works_in_several_dimensions():
    batch = one_batch([{"x": np.ones((1, 3))}, {"x": np.ones((2, 2))}], pad=-1)
    assert batch["x"].tolist() == [[[1, 1, 1], [-1, -1, -1]], [[1, 1, -1], [1, 1, -1]]]
    assert batch["x_length"].tolist() == [1, 2]


def test_pad_works_on_bare_arrays_and_in_tuples():
    assert plain(one_batch([np.ones(1), np.ones(2)], pad=0)) == [[1, 0], [1, 1]]
    assert plain(one_batch([(1, [1]), (2, [1, 2])], pad=0)) == ([1, 2], [[1, 0], [1, 2]])


def test_pad_reaches_nested_fields():
    batch = one_batch([{"a": {"b": [1]}}, {"a": {"b": [1, 2]}}], pad=0)
    assert plain(batch) == {"a": {"b": [[1, 0], [1, 2]], "b_length": [1, 2]}}


def test_pad_by_field_pads_those_fields_only():
    samples = [{"x": [1] * n, "y": [2] * n, "z": [7, 7]} for n in (1, 2)]
    batch = one_batch(samples, pad={"x": 0, "y": -1})
    assert plain(batch) == {
        "x": [[1, 0], [1, 1]],
        "x_length": [1, 2],
        "y": [[2, -1], [2, 2]],
        "y_length": [1, 2],
        "z": [[7, 7], [7, 7]],
    }


def test_a_ragged_field_that_is_not_padded_is_still_named_with_its_sample():
    with pytest.raises(ps.RaggedBatch, match=r"field 'y': \(2,\) then \(3,\) at sample 17;"):
        list(
            ps.from_sequence(range(20))
            .map(lambda i: {"x": [i], "y": [0] * (3 if i == 17 else 2)})
            .batch(5, pad={"x": 0})
        )


@any_workers
def test_padding_is_the_same_for_any_layout(layout):
    pipeline = ps.from_sequence(range(50)).map(lambda x: {"x": np.arange(x % 7)}, **layout.place).batch(8, pad=-1)
    for batch in layout.run(pipeline):
        lengths = batch["x_length"]
        assert batch["x"].shape == (len(lengths), lengths.max())
        assert ((batch["x"] >= 0).sum(axis=1) == lengths).all()


# ---------------------------------------------------------------------- collate


@any_workers
def test_collate_makes_the_batch_from_the_list_of_samples(layout):
    pipeline = ps.from_sequence(range(7)).map(lambda x: x, **layout.place)
    assert layout.run(pipeline.batch(3, collate=list)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert layout.run(pipeline.batch(3, collate=sum)) == [3, 12, 6]
    assert layout.run(pipeline.batch(3, collate=sum, drop_last=True)) == [3, 12]


@any_workers
def test_a_collate_that_fails_is_the_users_error_at_its_place(layout):
    def bad(samples):
        if 5 in samples:
            raise LookupError("five")
        return sum(samples)

    with (
        ps.from_sequence(range(9))
        .map(lambda x: x, **layout.place)
        .batch(2, collate=bad)
        .loader(**layout.loader) as it
    ):
        seen, error = until_error(it, LookupError)
    assert seen == [1, 5]
    assert any("bad" in note for note in error.__notes__)


@few_layouts
def test_a_collate_that_skips_drops_the_batch(layout):
    def some(samples):
        if 4 in samples:
            raise ps.Skip
        return sum(samples)

    pipeline = ps.from_sequence(range(9)).map(lambda x: x, **layout.place).batch(2, collate=some)
    assert layout.run(pipeline) == [1, 5, 13, 8]


def test_collate_over_arrays_gets_rows():
    (batch,) = ps.from_arrays(np.arange(3), np.arange(3) * 2).batch(3, collate=list)
    assert plain(batch) == [(0, 0), (1, 2), (2, 4)]


# ---------------------------------------------------------------------- refusals


@for_each("size, said", [(0, "at least 1"), (-3, "at least 1"), (True, "number"), (2.5, "number"), ("x", "number")])
def test_a_size_that_is_no_count_is_refused(size, said):
    with pytest.raises(ps.PlanError, match=said):
        ps.from_sequence([1]).batch(size)


def test_a_collate_that_is_no_function_and_collate_with_pad_are_refused():
    with pytest.raises(ps.PlanError, match="function"):
        ps.from_sequence([1]).batch(2, collate=5)
    with pytest.raises(ps.PlanError, match="leave one out"):
        ps.from_sequence([1]).batch(2, collate=list, pad=0)


def test_a_numpy_size_will_do():
    assert plain(list(ps.from_sequence(range(3)).batch(np.int64(2)))) == [[0, 1], [2]]


@examples(200)
@given(
    st.one_of(
        st.lists(st.sampled_from([0, 1, -5, 2**40, 1.5, True]), min_size=1),
        st.lists(st.sampled_from([0, 2**63, 2**70, False, np.int32(3), np.uint64(7), np.float32(0.5), "a", None])),
    ),
    st.integers(1, 4),
)
def test_numbers_stacked_together_are_what_each_batch_would_be(samples, size):
    together = numbers_stacked(samples, size)
    if together is not None:
        apart = [stacked(samples[start : start + size], str) for start in range(0, len(samples), size)]
        assert [(batch.dtype, batch.tolist()) for batch in together] == [(one.dtype, one.tolist()) for one in apart]
        assert all(batch.flags.owndata and batch.flags.writeable for batch in together)


def test_batches_of_numbers_are_cut_together_in_a_ticket_whose_calls_are_timed_too(monkeypatch):
    monkeypatch.setattr("penstock.program.program.applied", None)  # a call and an array for each batch
    with ps.from_sequence(range(6)).map(int).batch(2).loader(inline=True) as loader:
        assert plain(list(loader)) == [[0, 1], [2, 3], [4, 5]]
        assert loader.stats()["stage.int+batch.op.batch.calls"] > 0
