"""Sample trees that cross to another process or machine, and headers that somebody has tampered with."""

import collections
import contextlib
import dataclasses
import gc
import math
import mmap
import pickle
import random
import subprocess
import sys
import tracemalloc
import typing
import weakref

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.cases import for_each
from tests.random_examples import examples, seeds

from penstock.errors import BadHeader, CodecError, MissingExtra, NotCarried, PenstockError
from penstock.memory import codec
from penstock.memory.codec import decode, encode, layout_of, root_of

PICKLE = (pickle.dumps, pickle.loads)


class Point(typing.NamedTuple):
    x: object
    y: object = 0


@dataclasses.dataclass
class Sample:
    image: object
    label: object = None

    def __post_init__(self):
        self.seen = True


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    a: object
    b: object = 2


class Outer:
    @dataclasses.dataclass
    class Inner:
        value: object


def crossed(tree, **options):
    """`tree` written into a memory and decoded from there."""
    layout = layout_of(tree, other=options.get("other"))
    memory = bytearray(b"\xff" * (layout.nbytes + 10))
    layout.write(memory)
    return decode(layout.header, memory, **options)


def alike(a, b):
    """Equal to the last bit, and of the same types all through."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (np.ndarray, np.generic)):
        if a.dtype.names:
            return a.dtype == b.dtype and a.shape == b.shape and all(alike(a[n], b[n]) for n in a.dtype.names)
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return len(a) == len(b) and all(map(alike, a, b)) and all(map(alike, a.values(), b.values()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(alike, a, b))
    if dataclasses.is_dataclass(a):
        names = [field.name for field in dataclasses.fields(a)]
        return all(alike(getattr(a, n), getattr(b, n)) for n in names)
    if isinstance(a, float):
        return math.copysign(1, a) == math.copysign(1, b) and (a == b or (a != a and b != b))
    if isinstance(a, complex):
        return alike(a.real, b.real) and alike(a.imag, b.imag)
    return bool(a == b)


# ---------------------------------------------------------------------- what is carried

text = st.text(st.characters(exclude_categories=())) | st.text().map(lambda s: s * 200)
plain = st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers() | text
raw = st.binary(max_size=60) | st.binary(max_size=60).map(lambda b: b * 40)
dtypes = (
    hnp.scalar_dtypes()
    | hnp.byte_string_dtypes()
    | hnp.unicode_string_dtypes()
    | hnp.nested_dtypes(max_itemsize=200)
).filter(lambda dtype: dtype.subdtype is None)
arrays = dtypes.flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, min_side=0, max_side=4)))
leaves = plain | raw | raw.map(bytearray) | arrays | arrays.filter(lambda a: a.size).map(lambda a: a.reshape(-1)[0])
keys = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda k: st.tuples(k, k), max_leaves=3)
trees = st.recursive(
    leaves,
    lambda tree: (
        st.lists(tree, max_size=4)
        | st.lists(tree, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=4), tree, max_size=4)
        | st.dictionaries(keys, tree, max_size=3)
        | st.builds(Point, tree, tree)
        | st.builds(Sample, tree, tree)
        | st.builds(Slotted, tree)
    ),
    max_leaves=12,
)


@examples(80)
@given(trees)
def test_a_tree_arrives_as_it_was(tree):
    assert alike(crossed(tree), tree)


@examples(30)
@given(trees)
def test_the_buffers_one_after_the_other_are_what_is_written(tree):
    layout = layout_of(tree)
    memory = bytearray(layout.nbytes)
    layout.write(memory)
    header, buffers = encode(tree)
    assert header == layout.header
    assert b"".join(buffers) == memory


@for_each(
    "tree",
    [
        np.arange(24).reshape(2, 3, 4),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1)[::-1, :, ::2],
        np.broadcast_to(np.float32(3), (5, 5)),
        np.arange(5, dtype=">i4"),
        np.array(3.5),
        np.zeros((0, 3), "f2"),
        np.array(["2020-01-01", "NaT"], "M8[ns]"),
        np.array([3, -4], "m8[25s]"),
        np.array(["ab", "", "ü"]),
        np.array([b"ab", b""]),
        np.array([b"ab"], "V2"),
        np.zeros(3, np.longdouble),
        np.zeros((2, 3), [("a", "i1"), ("b", ">f8", (2, 2)), ("c", [("d", "U3")])]),
        np.zeros(4, {"names": ["a", "b"], "formats": ["i4", "u1"], "offsets": [8, 1], "itemsize": 20}),
        np.zeros(3, [("a", "S0"), ("b", "i1")])["a"],
        np.zeros(3, []),
        np.zeros(3, [(("a title", "a"), "i4"), ("b", "U2")]),
        np.float16(0.5),
        np.bool_(True),
        np.datetime64("2020-01-01"),
        np.datetime64("NaT"),
        np.str_("a\0"),
        np.bytes_(b"\0"),
        np.void(b"abc"),
        np.zeros(1, "i4,f8")[0],
        2**64,
        -(2**63) - 1,
        [1 << 20_000],
        [1, 2, 2**70],
        [True, 1, 1.0, None, "a"],
        ["a", "\ud800"],
        {"\ud800": "\udfff", "b": ["\ud800" * 2000]},
        {None: 1, True: 2, (1, ("a", None)): 3, 2**80: 4, b"x": 5, 1.5: 6, np.int8(7): 7},
        [float("nan"), float("inf"), -0.0],
        complex("nan+infj"),
        bytearray(b"a" * 5000),
        "ü" * 3000,
        [[], (), {}, "", b"", None],
        [bytes(2000), b"b" * 3000],
        Point(1, Point(np.arange(3), [])),
        Outer.Inner(np.arange(3)),
    ],
)
def test_all_kinds_of_leaves_arrive_as_they_were(tree):
    assert alike(crossed(tree), tree)


def test_a_memmap_arrives_as_an_array(tmp_path):
    array = np.memmap(tmp_path / "x", "i4", "w+", shape=(5,))
    array[:] = range(5)
    assert alike(crossed(array), np.arange(5, dtype="i4"))


def test_arrays_arrive_in_c_order():
    assert crossed(np.asfortranarray(np.ones((3, 4)))).flags.c_contiguous


@for_each("values", [range(10_000), [i / 7 for i in range(5000)], map(str, range(5000))])
def test_a_long_list_of_plain_values_is_one_buffer(values):
    values = list(values)
    layout = layout_of({"x": values})
    assert len(layout.header) < 50
    assert crossed({"x": values}) == {"x": values}


def test_the_header_of_a_batch_is_small_and_the_same_for_every_batch():
    batches = [{"image": np.full((64, 32, 32), n), "label": np.full(64, n)} for n in range(3)]
    headers = {layout_of(batch).header for batch in batches}
    assert len(headers) == 1
    assert len(headers.pop()) < 100


def test_a_dataclass_is_rebuilt_without_calling_it_and_keeps_what_was_added():
    sample = Sample(np.arange(3))
    sample.seen = "by the test"
    assert crossed(sample).seen == "by the test"
    del sample.seen
    assert not hasattr(crossed(sample), "seen")


def test_a_structured_scalar_can_be_written_to():
    scalar = np.zeros(1, "i4,f8")[0]
    scalar = crossed(scalar)
    scalar["f0"] = 7
    assert scalar["f0"] == 7


# ---------------------------------------------------------------------- tensors


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def test_tensors_arrive_as_tensors_of_the_same_memory(torch):
    layout = layout_of({"x": torch.arange(6.0).reshape(2, 3).T, "y": torch.tensor(3)})
    memory = bytearray(layout.nbytes)
    layout.write(memory)
    tree = decode(layout.header, memory)
    assert torch.equal(tree["x"], torch.arange(6.0).reshape(2, 3).T)
    assert torch.equal(tree["y"], torch.tensor(3))
    tree["x"][0, 0] = 9
    assert np.frombuffer(memory, "f4")[0] == 9


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's own, of types on their way in and out
def test_every_dtype_of_torch_is_carried_or_refused(torch):
    carried = []
    for dtype in {value for value in vars(torch).values() if isinstance(value, torch.dtype)}:
        try:
            tensor = torch.empty((2, 4), dtype=dtype)
            tensor.view(torch.uint8).copy_(torch.arange(8 * dtype.itemsize).reshape(2, -1) % 2)
        except (RuntimeError, NotImplementedError, TypeError):
            continue  # torch itself makes no such tensor on the CPU
        try:
            back = crossed(tensor)
        except NotCarried:
            continue
        assert back.dtype is dtype
        assert torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))
        carried.append(dtype)
    assert {torch.bfloat16, torch.float16, torch.bool, torch.int64, torch.complex64} <= set(carried)


def test_tensors_with_gradient_conjugated_or_empty_arrive_as_values(torch):
    leaf = crossed(torch.ones(3, requires_grad=True))
    assert torch.equal(leaf, torch.ones(3))
    assert leaf.requires_grad
    assert leaf.is_leaf
    assert not crossed(torch.ones(3)).requires_grad
    conjugated = torch.tensor([1 + 2j]).conj()
    assert torch.equal(crossed(conjugated), conjugated)
    assert crossed(torch.empty(0, 3, dtype=torch.bfloat16)).shape == (0, 3)


def test_a_tensor_with_a_history_is_refused_with_a_way_out(torch):
    for other in (None, (lambda value: b"", lambda data: None)):
        with pytest.raises(NotCarried, match=r"field 'x': .*history.*\.detach\(\)"):
            layout_of({"x": torch.ones(3, requires_grad=True) * 2}, other=other)


def test_tensors_without_plain_values_are_refused(torch):
    for tensor in [torch.eye(3).to_sparse(), torch.empty(3, device="meta"), torch.nn.Parameter(torch.ones(2))]:
        with pytest.raises(NotCarried, match="field 'x'"):
            layout_of({"x": tensor})


def test_a_tensor_of_read_only_memory_is_a_copy(torch):
    header, buffers = encode(torch.arange(3))
    memory = b"".join(buffers)
    tensor = decode(header, memory)
    tensor[0] = 7
    assert memory[0] == 0
    assert torch.equal(decode(header, bytearray(memory), readonly=True), torch.arange(3))


def test_a_tensor_without_torch_is_a_clear_error(torch, monkeypatch):
    header, buffers = encode(torch.arange(3))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"penstock\[torch\]"):
        decode(header, b"".join(buffers))


# ---------------------------------------------------------------------- what is not carried


def local_class():
    @dataclasses.dataclass
    class Local:
        x: int

    return Local


Misnamed = collections.namedtuple("Elsewhere", "x")


@for_each(
    "tree, message",
    [
        ({1, 2}, "^a leaf of type set"),
        ({"x": [0, 1, 2, object()]}, r"^field 'x'\[3\]: a leaf of type object"),
        ({"x": {"y": {3: [{4}]}}}, r"^field 'x'\['y'\]\[3\]\[0\]: a leaf of type set"),
        ([0, Sample([Slotted(object())])], r"^field \[1\]\['image'\]\[0\]\['a'\]: a leaf of type object"),
        (Point(1, {2}), "^field 'y': a leaf of type set"),
        ({"x": np.array([{}])}, "^field 'x': an array of dtype object"),
        ({"x": np.zeros(2, [("a", "O")])}, "^field 'x': an array of dtype .*O"),
        ({"x": np.ma.masked_array([1], [True])}, "^field 'x': .*MaskedArray"),
        ({"x": np.rec.array([(1, 2)], "i4,f8")[0]}, "^field 'x': .*record"),
        ({"x": collections.OrderedDict()}, r"^field 'x': .*collections\.OrderedDict"),
        ({"x": local_class()(1)}, r"^field 'x': .*<locals>\.Local"),
        ({"x": Misnamed(1)}, "^field 'x': .*Elsewhere"),
        ({frozenset(): 1}, r"^field frozenset\(\): a leaf of type frozenset"),
    ],
)
def test_a_leaf_that_is_not_carried_is_named(tree, message):
    with pytest.raises(NotCarried, match=message) as caught:
        layout_of(tree)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, PenstockError)


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="numpy before 2.0")
def test_strings_of_varying_length_are_refused():
    with pytest.raises(NotCarried, match="StringDType"):
        layout_of(np.array(["a"], np.dtypes.StringDType()))


def test_an_attribute_whose_name_is_not_unicode_is_carried():
    sample = Sample(1)
    setattr(sample, "\ud800", "\ud800")
    assert getattr(crossed(sample), "\ud800") == "\ud800"


def test_other_carries_the_rest():
    tree = {"x": {1, 2}, "y": np.array([{}, None]), "z": collections.OrderedDict(a=list(range(1000))), "n": 1}
    back = crossed(tree, other=PICKLE)
    assert back["x"] == {1, 2}
    assert back["y"].tolist() == [{}, None]
    assert back["z"] == tree["z"]
    assert type(back["z"]) is collections.OrderedDict


def test_opaque_bytes_without_other_are_a_clear_error():
    for leaf in ({1}, set(range(2000))):
        header, buffers = encode([leaf], other=PICKLE)
        with pytest.raises(CodecError, match="other="):
            decode(header, b"".join(buffers))


def test_classes_that_the_reader_cannot_import_go_through_other():
    Slotted.__module__, Point.__module__ = "__main__", "__main__"
    try:
        header, _ = encode(Slotted(1))
        assert b"__main__:Slotted" in header  # by its name, if nothing is said
        for leaf in (Slotted(1), Point(1)):
            header, _ = encode(leaf, other=(lambda value: b"seen", lambda data: data), private={"__main__"})
            assert decode(header, other=(bytes, lambda data: data)) == b"seen"
            with pytest.raises(NotCarried, match="__main__"):
                encode(leaf, private={"__main__"})
    finally:
        Slotted.__module__ = Point.__module__ = __name__


def test_what_other_raises_is_raised():
    def fails(value):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        encode([object()], other=(fails, fails))
    header, _ = encode([object()], other=(lambda value: b"", fails))
    with pytest.raises(ZeroDivisionError):
        decode(header, other=(fails, fails))


def test_a_tree_inside_of_itself_is_refused():
    tree = []
    tree.append(tree)
    with pytest.raises(NotCarried, match="nested deeper than 100"):
        layout_of(tree)


def test_a_tree_of_the_greatest_depth_is_carried():
    tree = 1.5
    for _ in range(100):
        tree = (tree,)
    assert crossed(tree) == tree
    with pytest.raises(NotCarried, match="nested deeper"):
        layout_of((tree,))


# ---------------------------------------------------------------------- memory


def shared(tree):
    layout = layout_of(tree)
    memory = mmap.mmap(-1, max(layout.nbytes, 1))
    layout.write(memory)
    return layout.header, memory


def test_arrays_are_aligned_writable_views_of_one_root():
    header, memory = shared({"x": np.arange(5, dtype="u1"), "y": [np.ones((2, 2)), np.zeros(3, "i4,f8")]})
    tree = decode(header, memory)
    views = [tree["x"], *tree["y"]]
    assert len({id(view.base) for view in views}) == 1
    for view in views:
        assert view.ctypes.data % 64 == 0
        assert view.flags.aligned
        view[...] = 0
    again = decode(header, memory)
    assert not again["x"].any()
    assert not again["y"][0].any()


@for_each(
    "look", [lambda a: a[3:], lambda a: a.reshape(2, 5).T[1:], lambda a: memoryview(a), lambda a: a.view("u1")]
)
@for_each("over", ["mmap", "array", "array of an array", "root of a root"])
def test_a_finalizer_on_the_root_runs_when_the_last_view_has_died(look, over):
    header, memory = shared({"x": np.arange(10), "y": np.arange(3)})
    if over.startswith("array"):
        memory = np.frombuffer(memory[:], np.uint8).copy()
    if over == "array of an array":
        memory = memory[:]
    root = root_of(root_of(memory) if over.startswith("root") else memory)
    ended = []
    weakref.finalize(root, ended.append, 1)
    tree = decode(header, root)
    del root
    view = look(tree["x"])
    y = tree["y"]
    del tree
    gc.collect()
    assert not ended
    del y
    assert not ended
    del view
    assert ended == [1]


def test_a_finalizer_on_an_array_given_as_memory_runs_when_the_last_view_has_died():
    header, memory = shared([np.arange(10)])
    whole = np.frombuffer(memory[:], np.uint8).copy()
    part, ended = whole[:], []
    weakref.finalize(part, ended.append, 1)
    tree = decode(header, part)
    del part
    assert not ended
    tree.clear()
    assert ended == [1]


def test_a_tree_without_arrays_keeps_no_memory():
    header, memory = shared({"s": "a" * 5000, "b": b"b" * 5000, "n": list(range(5000)), "e": np.zeros(0)})
    root, ended = root_of(memory), []
    weakref.finalize(root, ended.append, 1)
    tree = decode(header, root)
    del root
    assert ended == [1]
    memory.close()
    assert tree["s"] == "a" * 5000


def test_a_tensor_keeps_the_memory(torch):
    header, memory = shared([torch.arange(10)])
    root, ended = root_of(memory), []
    weakref.finalize(root, ended.append, 1)
    tensor = decode(header, root)[0]
    del root
    gc.collect()
    assert not ended
    del tensor
    assert ended == [1]


def test_read_only_arrays_stay_so():
    header, memory = shared([np.arange(10)])
    for array in (decode(header, memory, readonly=True)[0], decode(header, memory[:])[0]):
        with pytest.raises(ValueError):
            array[0] = 1
        with pytest.raises(ValueError):
            array.flags.writeable = True


def test_a_memory_that_is_too_small_is_not_written():
    layout = layout_of([np.arange(10), np.arange(10)])
    memory = bytearray(layout.nbytes - 1)
    with pytest.raises(ValueError, match=f"need {layout.nbytes} bytes"):
        layout.write(memory)
    assert not any(memory)


def test_measuring_and_decoding_copy_no_large_leaf():
    tree = {"x": np.ones(4_000_000, "u1")[::2], "b": b"b" * 2_000_000}
    memory = bytearray(4_100_000)
    tracemalloc.start()
    try:
        layout = layout_of(tree)
        layout.write(memory)
        x = decode(layout.header, memory)["x"]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert x.all()
    assert peak < 2_500_000  # the bytes that were decoded


def test_a_fresh_process_decodes_from_a_file_without_importing_torch(tmp_path):
    tree = {"x": np.arange(1000), "name": "a", "list": [1.5, None]}
    layout = layout_of(tree)
    with open(tmp_path / "memory", "w+b") as file:
        file.truncate(layout.nbytes)
        with mmap.mmap(file.fileno(), 0) as memory:
            layout.write(memory)
    (tmp_path / "header").write_bytes(layout.header)
    code = (
        "import mmap, sys; from penstock.memory.codec import decode\n"
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
    return bytes([codec.VERSION]) + msgspec.msgpack.encode(node)


ARRAY, TENSOR, SCALAR, BLOB, SMALL, ITEMS, FIELDS = range(7)
MEMORY = bytes(range(256))


def nested(depth, wrap):
    node = None
    for _ in range(depth):
        node = wrap(node)
    return node


@for_each(
    "node, message",
    [
        ([ARRAY, "|u1", [257], 0], "end of the memory at 256"),
        ([ARRAY, "<f8", [1], 256], "end of the memory at 256"),
        ([ARRAY, "<f8", [1], 2**63], "end of the memory at 256"),
        ([ARRAY, "<f8", [2**61, 8], 0], "end of the memory"),
        ([ARRAY, "<f8", [2**32, 2**32], 0], "end of the memory"),
        ([ARRAY, "<f8", [2**64 - 1], 0], "end of the memory"),
        ([ARRAY, "<f8", [1], 8], "multiple of 64"),
        ([ARRAY, "<f8", [1], -64], "damaged: Expected `int` >= 0"),
        ([ARRAY, "<f8", [-1], 0], "damaged: Expected `int` >= 0"),
        ([ARRAY, "<f8", [1] * 65, 0], "damaged: .*length <= 64"),
        ([ARRAY, "<f8", [0, 2**64 - 1], 0], "cannot be made"),
        ([ARRAY, "<f8", [0, 2**62, 2**62], 0], "cannot be made"),
        ([ARRAY, "|V0", [2**64 - 1], 0], "cannot be made"),
        ([ARRAY, "<f8", [1.5], 0], "damaged"),
        ([ARRAY, "|O", [1], 0], "dtype '|O'"),
        ([ARRAY, "O", [1], 0], "not a dtype of plain values"),
        ([ARRAY, "f8,O", [1], 0], "not a dtype of plain values"),
        ([ARRAY, "<M8[0s]", [1], 0], "not a dtype of plain values"),
        ([ARRAY, "<i3", [1], 0], "dtype '<i3'"),
        ([ARRAY, "|S9999999999", [1], 0], "cannot be made"),
        ([ARRAY, "x" * 10**6, [1], 0], "too long"),
        ([ARRAY, '[[["a",0,"|O8",[],null]],8]', [1], 0], "not a dtype of plain values"),
        ([ARRAY, '[[["a",4,"<f8",[],null]],8]', [1], 0], "outside of the item"),
        ([ARRAY, '[[["a",2147483640,"<f8",[],null]],8]', [1], 0], "outside of the item"),
        ([ARRAY, '[[["a",0,"<f8",[65536,65536],null]],8]', [1], 0], "outside of the item"),
        ([ARRAY, '[[["a",-1,"<f8",[],null]],8]', [1], 0], ">= 0"),
        ([ARRAY, '[[["a",0,' * 400, [1], 0], "cannot be made"),
        ([ITEMS, "list", [[ARRAY, "|u1", [65], 0], [ARRAY, "|u1", [1], 64]]], "between 65 and"),
        ([SCALAR, "<f8", b"1234567"], "7 bytes for a scalar"),
        ([SCALAR, "<U1", b"\xff\xff\xff\xff"], "4 bytes for a scalar of dtype <U1"),
        ([BLOB, 0, 0, 257], "end of the memory"),
        ([BLOB, 0, 0, -1], ">= 0"),
        ([BLOB, 2, 192, 64], "cannot be read: 'utf-8'"),
        ([BLOB, 7, 0, 256], "cannot be read"),
        ([BLOB, 99, 0, 1], "kind 99"),
        ([SMALL, 2, b"\xff"], "cannot be read: 'utf-8'"),
        ([SMALL, 4, b"1234"], "cannot be read"),
        ([SMALL, 7, b"\xdd\xff\xff\xff\xff"], "cannot be read"),
        ([SMALL, 7, b"\x91\x91\x01"], "cannot be read"),
        ([SMALL, 8, b""], "other="),
        ([TENSOR, "float32", [65], 0], "end of the memory"),
        ([TENSOR, "save", [1], 0], "tensor of 'save'"),
        ([FIELDS, "dict", ["a"], []], "dict that cannot be made"),
        ([FIELDS, "dict", [[ITEMS, "list", []]], [1]], "dict that cannot be made: unhashable"),
        ([99, 1], "damaged"),
        ([], "damaged"),
        ({"a": 1}, "damaged"),
        (msgspec.msgpack.Ext(5, b""), "damaged"),
        (nested(101, lambda node: [ITEMS, "list", [node]]), "nested deeper than 100"),
        (nested(101, lambda node: [FIELDS, "dict", [node], [None]]), "nested deeper than 100"),
        (nested(101, lambda node: [FIELDS, "dict", ["a"], [node]]), "nested deeper than 100"),
    ],
)
def test_a_forged_header_is_a_clear_error(node, message):
    for classes in (False, True):
        with pytest.raises(CodecError, match=message):
            decode(forged(node), MEMORY, classes=classes)


@for_each(
    "header, message",
    [
        (b"", "is empty"),
        (b"\x02\xc0", "version 2, and not of version 1"),
        (b"\x01", "truncated"),
        (b"\x01\xc0\xc0", "trailing"),
        (b"\x01\xdd\xff\xff\xff\xff", "damaged"),
        (b"\x01\x93\x05\xa4list\xdd\xff\xff\xff\xff", "truncated"),
        (b"\x01" + b"\x93\x05\xa4list\x91" * 100_000, "damaged: maximum recursion depth"),
        (b"\x01\xa1\xff", "utf-8"),
    ],
)
def test_a_header_that_is_no_header_is_a_clear_error(header, message):
    with pytest.raises(BadHeader, match=message):
        decode(header, MEMORY)


def test_a_truncated_header_is_a_clear_error():
    header, buffers = encode({"x": np.arange(3), "y": [1, "a", b"b", {3: 1j}], "z": Point(1, 2)})
    for length in range(len(header)):
        with pytest.raises(BadHeader):
            decode(header[:length], b"".join(buffers))


def test_a_short_header_cannot_ask_for_the_same_memory_many_times():
    memory = bytes(10_000_000)
    header = forged([ITEMS, "list", [[BLOB, 0, 0, len(memory)]] * 10_000])
    tracemalloc.start()
    try:
        with pytest.raises(BadHeader):
            decode(header, memory)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20_000_000


def test_from_the_network_nothing_is_imported_and_classes_are_plain():
    tree = {"p": Point(1, np.arange(2)), "s": Slotted([1]), "d": Sample(1, 2)}
    header, buffers = encode(tree)
    back = decode(header, b"".join(buffers), classes=False)
    assert alike(back["p"], (1, np.arange(2)))
    assert back["s"] == {"a": [1], "b": 2}
    assert back["d"] == {"image": 1, "label": 2, "seen": True}
    assert "this" not in sys.modules
    assert decode(forged([ITEMS, "this:s", [1]]), classes=False) == (1,)
    assert decode(forged([FIELDS, "this:s", ["a"], [1]]), classes=False) == {"a": 1}
    assert "this" not in sys.modules


@for_each(
    "name, message",
    [
        ("nowhere.at_all:Point", "class nowhere.at_all:Point cannot be imported here: No module"),
        (f"{__name__}:Gone", f"{__name__}:Gone cannot be imported here"),
        (f"{__name__}:alike", "cannot be imported here"),
        ("", "cannot be imported here"),
        (":", "cannot be imported here"),
        (".a:b", "cannot be imported here"),
        ("os:system", "cannot be imported here"),
        ("subprocess:Popen", "subprocess:Popen is not a"),
        ("builtins:tuple", "builtins:tuple is not a"),
        (f"{__name__}:Sample.__init__", "cannot be imported here"),
    ],
)
def test_a_class_that_is_not_what_it_was_is_named(name, message):
    for node in ([ITEMS, name, [1, 2, 3]], [FIELDS, name, ["a"], [1]]):
        with pytest.raises(CodecError, match=message):
            decode(forged(node))


def test_a_field_that_a_class_has_lost_is_named():
    header, _ = encode(Slotted(1))
    with pytest.raises(CodecError, match="Slotted has no field 'z' here"):
        decode(header.replace(b"\xa1a", b"\xa1z"))
    header, _ = encode(Point(1))
    with pytest.raises(CodecError, match="not a named tuple with 3 fields"):
        decode(forged([ITEMS, f"{__name__}:Point", [1, 2, 3]]))


def views_of(tree):
    """All arrays of a tree."""
    if isinstance(tree, np.ndarray):
        return [tree]
    if isinstance(tree, dict):
        tree = [*tree, *tree.values()]
    return [view for item in tree for view in views_of(item)] if isinstance(tree, (list, tuple)) else []


SEEDS = [
    {"image": np.arange(100, dtype="f4").reshape(10, 10), "label": [1, 2, 3], "name": "x", "big": "ü" * 600},
    [Point(np.arange(3), 1j), Sample(b"a" * 1500), Slotted(bytearray(9)), 2**70, np.float32(1), np.str_("a")],
    {(1, None): np.zeros(3, [("a", "i4"), ("b", "f8", (2,))]), 5: np.zeros((0, 3), "M8[s]"), "n": [1.5] * 300},
]


@for_each("tree", SEEDS)
@for_each("classes", [False, True])
@for_each("seed", seeds(1))
@pytest.mark.fuzz
def test_a_damaged_header_gives_a_tree_inside_of_the_memory_or_a_clear_error(tree, classes, seed):
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
            back = decode(header, memory, classes=classes)
        except CodecError:
            outcomes["error"] += 1
        else:
            for view in views_of(back):
                assert not view.nbytes or first <= view.ctypes.data <= last - view.nbytes
            outcomes["tree"] += 1
    assert outcomes["error"] > 100
    assert outcomes["tree"] > 0


@examples(150)
@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_bytes_give_a_tree_or_a_clear_error(header, memory):
    for data in (header, bytes([codec.VERSION]) + header):
        with contextlib.suppress(CodecError, MissingExtra):
            decode(data, memory, classes=False)
