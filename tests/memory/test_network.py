"""Samples for the network, and headers that somebody has tampered with."""

import collections
import contextlib
import dataclasses
import math
import mmap
import random
import subprocess
import sys
import typing

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.cases import for_each
from tests.random_examples import examples, seeds

from penstock.errors import BadHeader, CodecError, MissingExtra, NotCarried
from penstock.memory import network
from penstock.memory.network import decode, layout_of
from penstock.memory.scan import DOOR, Limits


class Point(typing.NamedTuple):
    x: object
    y: object = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    a: object
    b: object = 2


def written(tree):
    """The header of `tree`, and a memory with its leaves."""
    layout = layout_of(tree)
    memory = bytearray(b"\xff" * (layout.nbytes + 10))
    layout.write(memory)
    return layout.header, memory


def crossed(tree):
    return decode(*written(tree))


def alike(a, b):
    """Equal to the last bit, and of the same types all through."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return len(a) == len(b) and all(map(alike, a, b)) and all(map(alike, a.values(), b.values()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, float):
        return math.copysign(1, a) == math.copysign(1, b) and (a == b or (a != a and b != b))
    return bool(a == b)


# ---------------------------------------------------------------------- what is carried

text = st.text() | st.text().map(lambda s: s * 200)
plain = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | text
raw = st.binary(max_size=60) | st.binary(max_size=60).map(lambda b: b * 40)
dtypes = hnp.scalar_dtypes() | hnp.byte_string_dtypes() | hnp.unicode_string_dtypes()
arrays = dtypes.flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, min_side=0, max_side=4)))
scalars = arrays.filter(lambda a: a.size and a.dtype.kind not in "SU").map(lambda a: a.reshape(-1)[0])
leaves = plain | raw | arrays | scalars
keys = st.text() | st.integers(-(1 << 63), (1 << 64) - 1) | st.booleans() | st.none()
trees = st.recursive(
    leaves,
    lambda tree: (
        st.lists(tree, max_size=4)
        | st.lists(tree, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=4), tree, max_size=4)
        | st.dictionaries(keys, tree, max_size=3)
    ),
    max_leaves=12,
)


@examples(40)
@given(trees)
def test_samples_arrive_as_they_were(tree):
    assert alike(crossed(tree), tree)


def test_arrays_arrive_in_c_order_and_a_memmap_as_an_array(tmp_path):
    for array in (np.arange(6).reshape(2, 3).T, np.memmap(tmp_path / "file", "i4", "w+", shape=(3, 4))):
        found = crossed(array)
        assert alike(found, np.array(array, order="C"))
        assert found.flags.c_contiguous


def test_classes_are_plain_and_nothing_is_imported():
    assert crossed({"p": Point(1, [2]), "s": Slotted((3,))}) == {"p": (1, [2]), "s": {"a": (3,), "b": 2}}


def test_tensors_arrive_as_tensors_of_the_memory():
    torch = pytest.importorskip("torch")
    tensors = [torch.arange(6).reshape(2, 3).T, torch.ones(2, dtype=torch.bfloat16), torch.zeros(0, 3)]
    header, memory = written(tensors)
    for one, other in zip(decode(header, memory), tensors, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
        one[...] = 7
    assert (decode(header, memory)[0] == 7).all()
    copy = decode(header, bytes(memory))[0]
    assert (copy == 7).all()
    with pytest.raises(NotCarried, match=r"a torch\.Tensor cannot"):
        layout_of([torch.eye(3).to_sparse()])


@for_each(
    "tree, message",
    [
        ({1, 2}, "samples: a builtins.set cannot"),
        ({"x": [1, object()]}, r"samples\['x'\]\[1\]: a builtins.object cannot"),
        ([Slotted(lambda: 1)], r"samples\[0\]\['a'\]: a builtins.function"),
        (np.array([None]), "dtype object cannot"),
        ([2**70], "samples: "),
        (["\ud800"], "samples: "),
        ([np.zeros(2, "i4,f8")], r"samples\[0\]: values of dtype .* a dict of such arrays"),
    ],
)
def test_what_is_not_carried_is_named(tree, message):
    with pytest.raises(NotCarried, match=message):
        layout_of(tree)


def test_samples_inside_of_themselves_are_refused():
    tree = []
    tree.append(tree)
    with pytest.raises(NotCarried, match="nested deeper than 100"):
        layout_of(tree)


# ---------------------------------------------------------------------- memory


def test_arrays_are_aligned_writable_views_of_the_memory():
    header, memory = written({"x": np.arange(5, dtype="u1"), "y": [np.ones((2, 2))]})
    for view in (decode(header, memory)["x"], decode(header, memory)["y"][0]):
        assert view.flags.aligned
        view[...] = 0
    assert not decode(header, memory)["y"][0].any()
    assert not decode(header, bytes(memory))["x"].flags.writeable


def test_a_memory_that_is_too_small_is_not_written():
    layout = layout_of([np.arange(10), np.arange(10)])
    memory = bytearray(layout.nbytes - 1)
    with pytest.raises(ValueError, match=f"need {layout.nbytes} bytes"):
        layout.write(memory)
    assert not any(memory)


def test_a_fresh_process_decodes_from_a_file_without_importing_torch(tmp_path):
    layout = layout_of({"x": np.arange(1000), "name": "a", "list": [1.5, None]})
    with open(tmp_path / "memory", "w+b") as file:
        file.truncate(layout.nbytes)
        with mmap.mmap(file.fileno(), 0) as memory:
            layout.write(memory)
    (tmp_path / "header").write_bytes(layout.header)
    code = (
        "import mmap, sys; from penstock.memory.network import decode\n"
        "with open('memory', 'r+b') as file: memory = mmap.mmap(file.fileno(), 0)\n"
        "tree = decode(open('header', 'rb').read(), memory)\n"
        "print(tree['x'].sum(), tree['name'], tree['list'], 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[0] == "499500 a [1.5, None] False"


# ---------------------------------------------------------------------- headers of others


def forged(node):
    """A header with this content, whatever it is."""
    return bytes([network.VERSION]) + msgspec.msgpack.encode(node)


TUPLE, ARRAY, SCALAR, TENSOR = range(4)
MEMORY = bytes(range(256))


def ext(kind, *content):
    return msgspec.msgpack.Ext(kind, msgspec.msgpack.encode(content))


@for_each(
    "node, message",
    [
        (ext(ARRAY, "|u1", [257], 0), "end of the memory at 256"),
        (ext(ARRAY, "<f8", [1], 256), "end of the memory at 256"),
        (ext(ARRAY, "<f8", [2**61, 8], 0), "end of the memory"),
        (ext(ARRAY, "<f8", [2**32, 2**32], 0), "end of the memory"),
        (ext(ARRAY, "<f8", [1], 8), "multiple of 64"),
        (ext(ARRAY, "<f8", [1], -64), "damaged: Expected `int` >= 0"),
        (ext(ARRAY, "<f8", [-1], 0), "damaged: Expected `int` >= 0"),
        (ext(ARRAY, "<f8", [1] * 65, 0), "damaged: .*length <= 64"),
        (ext(ARRAY, "<f8", [0, 2**64 - 1], 0), "empty array of shape"),
        (ext(ARRAY, "<f8", [10**15, 0], 0), "empty array of shape"),
        (ext(ARRAY, "|V0", [2**64 - 1], 0), "empty array of shape"),
        (ext(ARRAY, "<f8", [1.5], 0), "damaged"),
        (ext(ARRAY, "|O", [1], 0), "dtype '|O'"),
        (ext(ARRAY, "f8,O", [1], 0), "not one of plain values"),
        (ext(ARRAY, "<M8[0s]", [1], 0), "not one of plain values"),
        (ext(ARRAY, "<i3", [1], 0), "damaged"),
        (ext(ARRAY, "x" * 10**6, [1], 0), "damaged: .*length <= 40"),
        ([ext(ARRAY, "|u1", [65], 0), ext(ARRAY, "|u1", [1], 64)], "between 65 and"),
        (ext(SCALAR, "<U1", [], 0), "scalar of shape"),
        (ext(SCALAR, "<f8", [2], 0), "scalar of shape"),
        (ext(TENSOR, "<float32", [65], 0), "end of the memory"),
        (ext(TENSOR, "<save", [1], 0), "tensor of '<save'"),
        (ext(99, 1), "kind 99"),
        (msgspec.msgpack.Ext(TUPLE, b"\xc0"), "damaged"),
    ],
)
def test_a_forged_header_is_a_clear_error(node, message):
    with pytest.raises(CodecError, match=message):
        decode(forged(node), MEMORY)


@for_each(
    "header, message",
    [
        (b"", "is empty"),
        (b"\x01\xc0", "version 1, and not of version 3"),
        (b"\x03", "truncated"),
        (b"\x03\xc0\xc0", "trailing"),
        (b"\x03\xdd\xff\xff\xff\xff", "damaged"),
        (b"\x03" + b"\x91" * 100_000, "damaged: maximum recursion depth"),
        (b"\x03\xa1\xff", "utf-8"),
    ],
)
def test_a_header_that_is_no_header_is_a_clear_error(header, message):
    with pytest.raises(BadHeader, match=message):
        decode(header, MEMORY)


def test_a_truncated_header_is_a_clear_error():
    header, memory = written({"x": np.arange(3), "y": [1, "a", b"b", {3: (1,)}]})
    for length in range(len(header)):
        with pytest.raises(BadHeader):
            decode(header[:length], memory)


def views_of(tree):
    """All arrays of a tree."""
    if isinstance(tree, np.ndarray):
        return [tree]
    if isinstance(tree, dict):
        tree = [*tree, *tree.values()]
    return [view for item in tree for view in views_of(item)] if isinstance(tree, (list, tuple)) else []


SEEDS = [
    {"image": np.arange(100, dtype="f4").reshape(10, 10), "label": [1, 2, 3], "name": "x", "big": "ü" * 600},
    [(np.arange(3), 1), b"a" * 1500, (), np.float32(1), np.str_("a")],
    {1: np.zeros(3), 5: np.zeros((0, 3), "M8[s]"), "n": [1.5] * 300},
]


@for_each("tree", SEEDS)
@for_each("seed", seeds(1))
@pytest.mark.fuzz
def test_a_damaged_header_gives_a_tree_inside_of_the_memory_or_a_clear_error(tree, seed):
    layout = layout_of(tree)
    memory = np.zeros(layout.nbytes, np.uint8)
    layout.write(memory)
    first, last = memory.ctypes.data, memory.ctypes.data + memory.nbytes
    draw = random.Random(seed)
    outcomes = collections.Counter()
    for _ in range(600):
        header = bytearray(layout.header)
        for _ in range(draw.choice((1, 1, 1, 2, 5))):
            at = draw.randrange(1, len(header))
            match draw.randrange(4):
                case 0:
                    header[at] ^= 1 << draw.randrange(8)
                case 1:
                    header[at] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
                case 2:
                    del header[at : at + draw.randrange(1, 4)]
                case 3:
                    header[at:at] = header[(begin := draw.randrange(len(header))) : begin + draw.randrange(9)]
            if len(header) < 2:
                break
        try:
            back = decode(header, memory)
        except CodecError:
            outcomes["error"] += 1
        else:
            for view in views_of(back):
                assert not view.nbytes or first <= view.ctypes.data <= last - view.nbytes
            outcomes["tree"] += 1
    assert outcomes["error"] > 100
    assert outcomes["tree"] > 0


@examples(60)
@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_bytes_give_a_tree_or_a_clear_error(header, memory):
    for data in (header, bytes([network.VERSION]) + header):
        with contextlib.suppress(CodecError, MissingExtra):
            decode(data, memory)


# ---------------------------------------------------------------------- the door: in frames, with limits

words = st.recursive(
    leaves,
    lambda tree: (
        st.lists(tree, max_size=4)
        | st.lists(tree, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=4), tree, max_size=4)
    ),
    max_leaves=12,
)
NARROW = Limits(header_bytes=2000, body_bytes=100_000, nodes=50, depth=4, dimensions=3, frames=3)


def through_the_door(tree, limits=DOOR):
    layout = layout_of(tree, in_frames=True)
    return decode(layout.header, [bytearray(one) for one in layout.frames()], limits)


@examples(40)
@given(words)
def test_samples_arrive_through_the_door_as_they_were(tree):
    assert alike(through_the_door(tree), tree)


def test_large_arrays_have_frames_of_their_own_without_a_copy():
    large, turned = np.arange(100_000), np.arange(20_000).reshape(100, 200).T
    tree = {"large": large, "small": np.arange(3), "turned": turned, "jpeg": b"j" * 40_000, "few": b"a" * 2000}
    layout = layout_of(tree, in_frames=True)
    small, first, *_ = frames = layout.frames()
    assert len(frames) == 4
    assert small.nbytes < 3000
    assert np.shares_memory(np.asarray(first), large)
    received = [bytearray(one) for one in frames]
    found = decode(layout.header, received, DOOR)
    assert alike(found, {**tree, "turned": np.ascontiguousarray(turned)})
    assert np.shares_memory(found["large"], np.frombuffer(received[1], np.uint8))
    assert found["large"].flags.writeable
    assert found["small"].flags.writeable


def test_the_door_carries_tuples_as_deep_as_lists():
    tree = 1
    for _ in range(DOOR.depth):
        tree = (tree,)
    assert through_the_door(tree) == tree
    with pytest.raises(NotCarried, match="nested deeper than 32"):
        layout_of((tree,), in_frames=True)


def test_the_door_carries_string_keys_only():
    with pytest.raises(NotCarried, match=r"samples\['a'\]: a dict with the key 3 cannot"):
        layout_of({"a": {3: 1}}, in_frames=True)


@for_each(
    "node, message",
    [
        ({3: 1}, "a key that is no string"),
        ([{"a": {b"b": 1}}], "a key that is no string"),
        ({2**61 - 1 << n: 0 for n in range(3)}, "a key that is no string"),
        (["a" * 3000], "the header has 30"),
        ([1] * 60, "more than the 50 values"),
        ([[[[[1]]]]], "nested deeper than 4"),
        (msgspec.msgpack.Ext(TUPLE, msgspec.msgpack.encode([[[[[1]]]]])), "nested deeper than 4"),
        (msgspec.msgpack.Ext(TUPLE, msgspec.msgpack.encode([]) + b"\xc0"), "trailing"),
        (msgspec.msgpack.Ext(TUPLE, msgspec.msgpack.encode({3: 1})), "a key that is no string"),
        (ext(ARRAY, "|u1", [1, 1, 1, 1], 0), "4 dimensions, and 3"),
        (ext(ARRAY, "|u1", [1], 5 << 48), "end of the memory at 0"),
        (ext(77, 1), "kind 77"),
    ],
)
def test_the_door_refuses_before_anything_is_made(node, message):
    with pytest.raises(BadHeader, match=message):
        decode(forged(node), [MEMORY], NARROW)


@for_each("frames", [[b"", b"", b"", b""], [bytes(100_001)]])
def test_the_door_refuses_more_body_than_its_limits(frames):
    with pytest.raises(BadHeader, match="are accepted"):
        decode(forged(1), frames, NARROW)


def test_lengths_that_are_not_there_are_refused_without_allocating():
    for head in (
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
    ):
        with pytest.raises(BadHeader):
            decode(bytes([network.VERSION]) + head, [], DOOR)


def test_the_door_imports_nothing_for_a_tensor(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with pytest.raises(CodecError, match="torch is not imported here"):
        decode(forged(ext(TENSOR, "<float32", [1], 0)), [MEMORY], DOOR)
    assert "torch" not in sys.modules


def test_tensors_of_the_other_byte_order_are_turned():
    torch = pytest.importorskip("torch")
    raw = np.arange(4, dtype=">f4").tobytes()
    assert torch.equal(decode(forged(ext(TENSOR, ">float32", [4], 0)), [raw], DOOR), torch.arange(4.0))


@for_each("tree", SEEDS[:2])
@for_each("seed", seeds(1))
@pytest.mark.fuzz
def test_the_door_survives_mutated_headers(tree, seed):
    layout = layout_of(tree, in_frames=True)
    frames = [bytearray(one) for one in layout.frames()]
    draw = random.Random(seed)
    errors = 0
    for _ in range(500):
        header = bytearray(layout.header)
        for _ in range(draw.choice((1, 1, 2, 5))):
            header[draw.randrange(1, len(header))] = draw.choice((0, 0x7F, 0x80, 0xC7, 0xDF, draw.randrange(256)))
        try:
            decode(header, frames, DOOR)
        except CodecError:
            errors += 1
    assert errors > 100
