"""pack: full rows, from which every document can be read again."""

import dataclasses
import pickle
from functools import cache

import numpy as np
import pytest
from tests.cases import for_each
from tests.helpers import BACKGROUND, FOUR, INLINE, TWO_PROCESSES, few_layouts, plain, until_error, with_layouts

import penstock as ps
from penstock import ops
from penstock.ops.op import Key
from penstock.ops.residents import Measured
from penstock.ops.rows import OPEN_ROWS
from penstock.provenance import Piece
from penstock.testing import Layout, check_op

#: lengths that come in no order, some longer than the rows below
LENGTHS = [(7 * number * number + 3) % 23 for number in range(120)]
HOWS = ["concat", "fit"]


def document(number):
    return {"ids": [number + 1] * LENGTHS[number], "number": number}


def documents(layout):
    return ps.from_sequence(range(len(LENGTHS))).map(document, **layout.place)


def lists(samples):
    return ps.from_sequence([{"ids": ids} for ids in samples])


def packed(samples, length, **arguments):
    return list(lists(samples).pack(length, key="ids", **arguments))


def segments(row, key="ids"):
    """The documents of a row, in their order; checks that segments and positions are numbered as they must be."""
    segment, position = row["segment"], row["position"]
    used = int((segment > 0).sum())
    assert not segment[used:].any()
    assert not position[used:].any()
    assert not row[key][used:].any()
    parts = np.split(np.arange(used), np.flatnonzero(np.diff(segment[:used])) + 1) if used else []
    for number, part in enumerate(parts):
        assert (segment[part] == number + 1).all()
        assert position[part].tolist() == list(range(len(part)))
    return [row[key][part].tolist() for part in parts]


# ---------------------------------------------------------------------- concat


def test_documents_are_cut_where_the_row_is_full_and_the_last_row_is_padded():
    rows = packed([[1, 1, 1], [2, 2, 2], [3], [4] * 6], 5)
    assert [row["ids"].tolist() for row in rows] == [[1, 1, 1, 2, 2], [2, 3, 4, 4, 4], [4, 4, 4, 0, 0]]
    assert [row["segment"].tolist() for row in rows] == [[1, 1, 1, 2, 2], [1, 2, 3, 3, 3], [1, 1, 1, 0, 0]]
    assert [row["position"].tolist() for row in rows] == [[0, 1, 2, 0, 1], [0, 0, 0, 1, 2], [0, 1, 2, 0, 0]]
    assert {row["ids"].dtype for row in rows} == {np.dtype("int64")}


def test_eos_stands_behind_every_document_and_is_part_of_it():
    rows = packed([[1, 1], [2], [], [3, 3]], 4, eos=9)
    assert [row["ids"].tolist() for row in rows] == [[1, 1, 9, 2], [9, 9, 3, 3], [9, 0, 0, 0]]
    assert [row["segment"].tolist() for row in rows] == [[1, 1, 1, 2], [1, 2, 3, 3], [1, 0, 0, 0]]


def test_a_document_of_many_rows_and_one_that_ends_with_its_row():
    rows = packed([[1] * 10, [2] * 2], 3)
    assert [segments(row) for row in rows] == [[[1] * 3]] * 3 + [[[1], [2, 2]]]


# ---------------------------------------------------------------------- fit


def test_a_document_goes_into_the_first_row_with_room_and_a_full_row_leaves():
    rows = packed([[1] * 3, [2] * 4, [3], [4] * 2, [5], [6]], 5, how="fit")
    assert [segments(row) for row in rows] == [[[1] * 3, [3], [5]], [[2] * 4, [6]], [[4] * 2]]


def test_rows_that_are_not_full_leave_at_the_end_in_the_order_in_which_they_were_opened():
    rows = packed([[1] * 4, [2] * 3, [3] * 4], 5, how="fit")
    assert [segments(row) for row in rows] == [[[1] * 4], [[2] * 3], [[3] * 4]]


def test_the_fullest_row_leaves_when_one_too_many_would_be_open():
    sizes = [60 + number % 7 for number in range(OPEN_ROWS)]
    samples = [[number + 1] * size for number, size in enumerate(sizes)]
    rows = packed([*samples, [99] * 70], 100, how="fit")
    assert segments(rows[0]) == [samples[sizes.index(66)]]  # of equals, the first
    assert segments(rows[-1]) == [[99] * 70]
    assert len(rows) == OPEN_ROWS + 1


# ---------------------------------------------------------------------- long documents


@for_each("how", HOWS)
@for_each("eos", [None, 9])
def test_split_loses_nothing(how, eos):
    rows = packed([[1] * 11, [2], [3] * 4], 4, how=how, eos=eos)
    flat = [token for row in rows for part in segments(row) for token in part]
    assert [flat.count(token) for token in (1, 2, 3)] == [11, 1, 4]
    assert flat.count(9) == (3 if eos else 0)


def test_fit_splits_a_long_document_into_whole_rows_and_fits_in_the_rest():
    rows = packed([[1] * 2, [2] * 10, [3]], 4, how="fit")
    assert [segments(row) for row in rows] == [[[2] * 4], [[2] * 4], [[1] * 2, [2] * 2], [[3]]]


@for_each("how", HOWS)
def test_truncate_keeps_the_beginning_and_the_eos(how):
    assert [segments(row) for row in packed([[1, 2, 3, 4, 5]], 3, how=how, long="truncate")] == [[[1, 2, 3]]]
    assert [segments(row) for row in packed([[1, 2, 3]], 3, how=how, long="truncate", eos=9)] == [[[1, 2, 9]]]
    assert [segments(row) for row in packed([[1, 2, 3]], 1, how=how, long="truncate", eos=9)] == [[[9]]]
    assert [segments(row) for row in packed([[1, 2]], 3, how=how, long="truncate", eos=9)] == [[[1, 2, 9]]]


@few_layouts
@for_each("how", HOWS)
def test_drop_leaves_long_documents_out_and_tells_which(layout, how):
    with documents(layout).pack(20, key="ids", how=how, long="drop").loader(**layout.loader) as loader:
        seen = {token for row in loader for part in segments(row) for token in part}
        told = {record.index for record in loader.errors()}
        first = str(loader.errors()[0])
    assert seen == {number + 1 for number, length in enumerate(LENGTHS) if 0 < length <= 20}
    assert told == {number for number, length in enumerate(LENGTHS) if length > 20}
    assert "pack(key='ids')" in first
    assert "is 22 long, a row of pack() 20" in first


@few_layouts
def test_raise_names_the_lengths_and_the_remedy(layout):
    pipeline = documents(layout).pack(20, key="ids", long="raise")
    with pytest.raises(
        ValueError, match=r"field 'ids' is 22 long, a row of pack\(\) 20; use long='split', "
    ) as caught:
        layout.run(pipeline)
    assert any("pack(key='ids')" in note for note in caught.value.__notes__)
    with pytest.raises(ValueError, match=r"is 4 long with its eos, a row of pack\(\) 3"):
        packed([[1] * 3], 3, eos=0, long="raise")


@for_each("how", HOWS)
def test_a_document_with_nothing_in_it_takes_no_room(how):
    assert [segments(row) for row in packed([[], [1], [], [2], []], 2, how=how)] == [[[1], [2]]]
    assert packed([[], []], 2, how=how) == []


# ---------------------------------------------------------------------- what can be packed


@for_each("how", HOWS)
@for_each("dtype", ["uint8", "int32", "float32", "bool", "complex64"])
def test_the_dtype_is_kept(how, dtype):
    rows = packed([np.ones(3, dtype), np.ones(2, dtype)], 4, how=how)
    assert {row["ids"].dtype for row in rows} == {np.dtype(dtype)}


def test_rows_of_features_are_packed_along_their_first_axis():
    rows = packed([np.full((3, 2), 1.5), np.full((2, 2), 2.5)], 4, eos=-1)
    assert rows[0]["ids"].tolist() == [[1.5, 1.5], [1.5, 1.5], [1.5, 1.5], [-1, -1]]
    assert rows[1]["ids"].tolist() == [[2.5, 2.5], [2.5, 2.5], [-1, -1], [0, 0]]
    assert rows[1]["segment"].tolist() == [1, 1, 1, 0]


def test_torch_tensors_named_tuples_and_dataclasses_are_packed_too():
    torch = pytest.importorskip("torch")
    assert packed([torch.ones(2, dtype=torch.int32)], 3)[0]["ids"].tolist() == [1, 1, 0]

    @dataclasses.dataclass
    class Sample:
        ids: list
        name: str

    (row,) = ps.from_sequence([Sample([1, 2], "a")]).pack(3, key="ids")
    assert row["ids"].tolist() == [1, 2, 0]
    (row,) = ps.from_sequence([("a", [1, 2])]).pack(3, key=1)
    assert row[1].tolist() == [1, 2, 0]


def test_other_fields_are_left_behind():
    (row,) = ps.from_sequence([{"ids": [1], "name": "a", "image": np.zeros(9)}]).pack(3, key="ids")
    assert list(row) == ["ids", "segment", "position"]


def test_an_empty_list_does_not_change_the_dtype_of_its_row():
    rows = packed([[], [1], np.zeros(0, "int64")], 4, eos=0)
    assert rows[0]["ids"].dtype == "int64"


@few_layouts
def test_rows_are_writable_and_the_users_own(layout):
    data = np.ones((20, 3))
    for row in layout.run(ps.from_arrays({"x": data}).pack(4, key="x")):
        row["x"] += 1
    assert (data == 1).all()


@for_each(
    "value, said",
    [
        ("text", "needs numbers, got str"),
        (b"data", "needs numbers, got bytes"),
        (["a"], "needs numbers, got list"),
        ([[1, 2], [3]], "needs numbers, got list"),
        ([2**70], "needs numbers, got list"),
        (None, "needs numbers, got NoneType"),
        (5, "a list or an array, got the single number 5"),
        (np.array(["2024-01-01"], "M8[D]"), "needs numbers, got ndarray"),
    ],
)
def test_what_cannot_be_packed_is_a_type_error_that_says_so(value, said):
    with pytest.raises(TypeError, match=said):
        packed([value], 4)


def test_an_eos_that_the_dtype_cannot_hold_is_an_error():
    for dtype, eos in [
        ("uint8", 256),
        ("uint8", -1),
        ("int64", 0.5),
        ("bool", 2),
        ("float16", 50257),
        ("int64", 2**70),
    ]:
        with pytest.raises(ValueError, match=f"eos={eos} cannot be written as {dtype}"):
            packed([np.ones(2, dtype)], 4, eos=eos)
    assert packed([np.ones(1, "uint8")], 2, eos=255)[0]["ids"].tolist() == [1, 255]
    assert packed([np.ones(1)], 2, eos=-1)[0]["ids"].tolist() == [1, -1]


@few_layouts
def test_documents_that_do_not_fit_into_one_array_name_the_sample(layout):
    samples = [np.zeros((2, 3)), np.zeros((2, 3)), np.zeros((2, 4))]
    with pytest.raises(ps.RaggedBatch, match=r"field 'ids': .* at sample 2; only the first axis"):
        layout.run(lists(samples).pack(10, key="ids"))
    with pytest.raises(ps.RaggedBatch, match="int64, uint64"):
        layout.run(lists([np.zeros(2, "int64"), np.zeros(2, "uint64")]).pack(10, key="ids"))


# ---------------------------------------------------------------------- the same everywhere


def pipelines(layout):
    source = documents(layout)
    return [
        source.pack(16, key="ids"),
        source.pack(16, key="ids", eos=0).batch(3),
        source.shuffle().pack(24, key="ids", how="fit", long="raise").shuffle(window=3),
        source.filter(lambda s: s["number"] % 3)
        .pack(10, key="ids", how="fit", eos=0)
        .map(lambda r: r["ids"].sum()),
        source.pack(5, key="ids", how="fit", long="drop").map(lambda row, rng: rng.random(), rng=True),
        source.pack(5, key="ids").map(lambda row, rng: rng.random(), rng=True),
        source.pack(5, key="ids").unbatch().batch(7),
    ]


@cache
def inline(which):
    return plain(INLINE.epochs(pipelines(INLINE)[which], 2))


@with_layouts(BACKGROUND, FOUR, TWO_PROCESSES)
@for_each("which", range(7))
def test_the_stream_is_the_same_for_any_layout(layout, which):
    assert plain(layout.epochs(pipelines(layout)[which], 2)) == inline(which)


@few_layouts
@for_each("how", HOWS)
def test_draws_behind_it_differ_from_row_to_row_even_of_one_document(layout, how):
    pipeline = lists([[1] * 50, [2] * 7]).pack(5, key="ids", how=how).map(lambda row, rng: rng.random(), rng=True)
    drawn = layout.run(pipeline)
    assert len(drawn) == len(set(drawn)) == 12
    assert drawn == INLINE.run(pipeline)


def test_it_is_an_op_as_any_other():
    samples = [{"ids": [number] * (number % 9)} for number in range(25)]
    check_op(ops.Pack(7, key="ids"), samples, layouts=[Layout("thread", 3, order=1), Layout("thread", 2, memory=1)])
    check_op(ops.Pack(7, key="ids", how="fit", eos=1, long="drop"), samples)


@few_layouts
@for_each("how", HOWS)
def test_nothing_comes_of_nothing(layout, how):
    for source in (ps.from_sequence([]), ps.from_iterable(list)):
        assert layout.epochs(source.pack(4, key="x", how=how), 2) == [[], []]


@few_layouts
@for_each("how", HOWS)
def test_an_error_comes_after_the_rows_that_were_full_before_it(layout, how):
    def bad(sample):
        if sample["number"] == 60:
            raise LookupError("sixty")
        return sample

    pipeline = documents(layout).map(bad).pack(8, key="ids", how=how)
    with pipeline.loader(**layout.loader) as loader:
        seen, _ = until_error(loader, LookupError)
    whole = INLINE.run(documents(INLINE).pack(8, key="ids", how=how))
    assert 10 < len(seen) < len(whole)
    assert plain(seen) == plain(whole[: len(seen)])


# ---------------------------------------------------------------------- the joint alone


def tokens(sizes, eos):
    return [Measured(size + eos, np.full(size, number + 1)) for number, size in enumerate(sizes)]


def read_again(run, sizes, eos):
    """The documents, put together from the pieces of all rows by the places of these."""
    found = {}
    for row, places in zip(run.groups, run.places, strict=True):
        for (piece, ends), place in zip(row, places, strict=True):
            number, start = place if isinstance(place, tuple) else (place, 0)
            assert (piece == number + 1).all()
            found.setdefault(number, {})[start] = (len(piece), ends)
    for number, size in enumerate(sizes):
        at = 0
        pieces = sorted(found.pop(number, {}).items())
        assert bool(pieces) == (size + eos > 0)
        for start, (length, ends) in pieces:
            assert start == at
            at += length + ends
            assert ends == (eos and at == size + 1)
        assert at == size + eos
    assert not found


# ---------------------------------------------------------------------- refusals


@for_each(
    "arguments, said",
    [
        ({"length": 0}, "at least 1, got 0"),
        ({"length": -4}, "at least 1, got -4"),
        ({"length": True}, "got True"),
        ({"length": 2.5}, "got 2.5"),
        ({"length": None}, "got None"),
        ({"key": None}, "name of a field, got None"),
        ({"key": True}, "name of a field, got True"),
        ({"key": "segment"}, "two fields of that name"),
        ({"key": "position"}, "two fields of that name"),
        ({"how": "best"}, "'concat' or 'fit', got 'best'"),
        ({"long": "keep"}, "'raise', got 'keep'"),
        ({"eos": "end"}, "number, got 'end'"),
        ({"eos": True}, "number, got True"),
        ({"eos": [1]}, "number, got [1]"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_where_they_are_written(arguments, said):
    given = {"length": 4, "key": "x", **arguments}
    with pytest.raises(ps.PlanError, match="pack") as caught:
        ps.from_sequence([]).pack(given.pop("length"), **given)
    assert said in str(caught.value)


def test_a_field_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(KeyError) as caught:
        list(documents(INLINE).pack(4, key="words"))
    assert any("'ids', 'number'" in note for note in caught.value.__notes__)


# ---------------------------------------------------------------------- as a value


def test_the_length_is_not_known_before_the_run_and_the_rows_is():
    pipeline = lists([[1]]).pack(4, key="ids")
    with pytest.raises(ps.LengthUnknown):
        len(pipeline)
    assert len(ps.from_sequence([]).pack(4, key="ids")) == 0
    assert pipeline.ops[-1].length == 4


def test_the_pipeline_shows_what_was_written_and_explain_where_it_is_measured():
    pipeline = ps.from_sequence([]).pack(4, key="ids", how="fit")
    assert repr(pipeline) == "from_sequence(list of 0).pack(4, key='ids', how='fit')"
    assert "pack(key='ids')" in str(pipeline.explain())


def test_it_is_a_value():
    one, same = (ps.from_sequence([]).apply(ops.Pack(np.int64(4), key="x", eos=np.int32(1))) for _ in range(2))
    assert one.ops == same.ops
    assert hash(one.ops[-1]) == hash(same.ops[-1])
    assert pickle.loads(pickle.dumps(one.ops)) == one.ops
    assert "length=4" in repr(one.ops[-1])
    assert dataclasses.replace(one.ops[-1], length=5).length == 5


def test_a_document_that_comes_back_shorter_after_a_resume_is_cut_as_it_then_is():
    joint = ops.Pack(3, key="ids").joint(Key(0, ""), 0, {})
    ((tokens, eos_follows),) = joint.remake([Piece(0, 3, 6)], [Measured(4, np.arange(4))])
    assert (tokens.tolist(), eos_follows) == ([3], False)
    assert joint.remake([Piece(0, 6, 9)], [Measured(4, np.arange(4))]) is ops.LOST
