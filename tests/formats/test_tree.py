"""Sample trees as bytes and back, exactly, without pickle."""

import collections
import pickle

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.cases import for_each
from tests.random_examples import examples

from penstock.errors import NotCarried
from penstock.formats.fields import decoder_of, restored, written
from penstock.formats.npy import npy_array, npy_bytes
from penstock.formats.tree import from_json, from_msgpack, to_json, to_msgpack
from penstock.testing.same import assert_same

TREES = [
    {"x": np.arange(6, dtype="int16").reshape(2, 3), "y": 3, "s": "größe", "b": b"\x00\xff", "n": None},
    {"nested": {"a": [1, 2.5, (True, None)], "z": np.float32(1.5)}, "empty": {}, "list": []},
    {"nan": float("nan"), "inf": [float("-inf")], "zero": -0.0, "big": 2**64 - 1, "bigger": -(2**70)},
    {"complex": 1 - 2j, "half": "a\ud800b", "keys": {1: "a", b"k": "b", None: 2.0, "$array": 3}},
    {"a.b": b"dots", "x.npy": b"not an array", "a/b": b"slash", "a%2Fb": b"%", "new\nline": "x", "Upper": 1, "": 2},
    {"_0": 1}, {"__sample__": 1}, {1: 2}, {"\ud800": 1},
    (np.zeros((2, 2), "uint8"), 7), (), (1,), [1, 2], "text", b"bytes", 5, 2.5, True, None, np.int8(3), {},
    np.zeros((), "float64"), np.zeros((0, 3)), np.array(["a", "bc"]), np.array([b"x"]),
    np.array(["2020-01-01"], "datetime64[D]"), np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.zeros(2, [("a", "<i4"), ("b", ">f8")]), np.arange(3, dtype=">u2"), {"memmap": np.arange(3)[::-1]},
]  # fmt: skip

ENCODINGS = {
    "members": lambda tree: restored(written(tree)),
    "msgpack": lambda tree: from_msgpack(to_msgpack(tree)),
    "json": lambda tree: from_json(to_json(tree)),
}


@for_each("name, tree", [(name, tree) for name in ENCODINGS for tree in TREES])
def test_a_tree_comes_back_as_it_was(name, tree):
    back = ENCODINGS[name](tree)
    assert_same([tree], [back], name)
    assert kinds(back) == kinds(tree)


def kinds(tree):
    """The type of every node, with dtypes."""
    if isinstance(tree, dict):
        return {key: kinds(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [type(tree), *map(kinds, tree)]
    return type(tree), getattr(tree, "dtype", None), getattr(tree, "shape", None)


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.complex_numbers(),
    hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0, min_side=0, max_side=3)),
)  # fmt: skip
RANDOM = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=10,
)


@examples(25)
@given(tree=RANDOM)
def test_any_tree_comes_back_as_it_was(tree):
    for name, through in ENCODINGS.items():
        assert_same([tree], [through(tree)], name)


Point = collections.namedtuple("Point", "x y")


@for_each("value", [object(), {1, 2}, np.array([None]), bytearray(b"x"), Point(1, 2), range(3), len])
def test_what_cannot_be_written_is_refused_by_the_name_of_its_field(value):
    for encode in (written, to_msgpack, to_json):
        with pytest.raises(NotCarried, match=r"field 'a(\.b)?' is a .*map\(\)"):
            encode({"a": {"b": value}} if encode is not written else {"a": value})


def test_another_reader_of_messagepack_sees_numbers_strings_and_npy_files():
    data = msgspec.msgpack.decode(to_msgpack({"x": np.arange(3), "n": 1}))
    assert data["n"] == 1
    assert npy_array(bytes(data["x"].data)).tolist() == [0, 1, 2]


def test_arrays_are_what_numpy_itself_saves(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(6, dtype=">i4").reshape(2, 3))
    data = (tmp_path / "a.npy").read_bytes()
    assert npy_bytes(npy_array(data)) == data


@for_each("cut", range(0, 140, 7))
def test_an_array_that_is_cut_short_is_refused(cut):
    data = npy_bytes(np.arange(2))
    with pytest.raises(ValueError):
        npy_array(data[:cut])


def test_an_array_of_pickled_objects_is_never_unpickled(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="never unpickled"):
        npy_array((tmp_path / "a.npy").read_bytes())


@for_each(
    "data", [b"", b"\xc1", b"\x81", b"\xd9\xff", b"\xc7\x01\x09a", to_msgpack(np.arange(3))[:-1], b"\x91" * 5000]
)
def test_damaged_messagepack_is_a_value_error(data):
    with pytest.raises(ValueError):
        from_msgpack(data)


@for_each(
    "data", [b"", b"{", b'{"$array":"x"}', b'{"$tuple":3}', b'{"$dict":[1]}', b"[" * 5000, b'{"$integer":[]}']
)
def test_damaged_json_is_a_value_error(data):
    with pytest.raises(ValueError):
        from_json(data)


def test_pickles_stay_bytes():
    assert decoder_of("pkl") is decoder_of("pyd") is decoder_of("pickle") is None
    data = pickle.dumps(1)
    assert restored(written({"pkl": data})) == {"pkl": data}
