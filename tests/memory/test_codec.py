"""Samples that cross between our own processes."""

import dataclasses
import gc
import mmap
import subprocess
import sys
import tracemalloc
import typing
import weakref

import numpy as np
import pytest
from tests.cases import for_each

from penstock.errors import NotCarried
from penstock.memory.codec import decode, layout_of
from penstock.testing import difference


class Point(typing.NamedTuple):
    x: object
    y: object = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    a: object
    b: object = 2


def crossed(tree):
    """`tree` written into a memory and decoded from there."""
    layout = layout_of(tree)
    memory = bytearray(b"\xff" * (layout.nbytes + 10))
    layout.write(memory)
    return decode(layout.header, memory)


def shared(tree):
    layout = layout_of(tree)
    memory = mmap.mmap(-1, max(layout.nbytes, 1))
    layout.write(memory)
    return layout.header, memory


TREES = [
    None,
    {"a": 1, (2, None): 1.5, "s": "ü" * 5000, "b": b"b" * 100_000, "c": bytearray(200_000), "d": {1, 2}},
    [np.arange(6).reshape(2, 3), np.zeros((0, 3)), np.array(5), np.float32(1), np.datetime64("2020-01-01")],
    [np.zeros(3, [("a", "i4"), ("b", "f8", (2,))]), np.array(["a", "bc"]), np.arange(3, dtype=">i4")],
    [np.array([{}, None], object), np.arange(10)[::3], np.asfortranarray(np.arange(6).reshape(2, 3))],
    [Point(1, np.arange(3)), Slotted([np.ones(2)]), [list(range(5000))] * 2],
]


@for_each("tree", TREES)
def test_samples_arrive_as_they_were(tree):
    assert difference(crossed(tree), tree) is None


def test_axes_keep_their_order_in_memory():
    for axes in ((0, 3, 1, 2), (3, 2, 1, 0), (1, 0, 2, 3)):
        for dtype in ("u1", "i4,f8"):
            array = np.zeros((2, 1, 4, 3), dtype).transpose(axes)
            found = crossed(array)
            assert difference(found, array) is None
            assert found.transpose(np.argsort(axes)).flags.c_contiguous


def test_a_memmap_arrives_as_an_array(tmp_path):
    for dtype in ("u1", "i4,f8"):
        found = crossed(np.memmap(tmp_path / "file", dtype, "w+", shape=(3, 4)))
        assert (type(found), found.shape, found.dtype) == (np.ndarray, (3, 4), np.dtype(dtype))


def test_arrays_are_aligned_writable_views_of_the_memory_however_they_were():
    frozen = np.arange(5, dtype="u1")
    frozen.flags.writeable = False
    header, memory = shared({"x": frozen, "y": [np.ones((2, 2)).T[1:], np.zeros(3, "i4,f8")]})
    tree = decode(header, memory)
    for view in (tree["x"], *tree["y"]):
        assert view.ctypes.data % 64 == 0
        assert view.flags.aligned
        view[...] = 0
    again = decode(header, memory)
    assert not again["x"].any()
    assert not again["y"][0].any()


@for_each(
    "look", [lambda a: a[3:], lambda a: a.reshape(2, 5).T[1:], lambda a: memoryview(a), lambda a: a.view("u1")]
)
def test_the_memory_lives_until_the_last_view_has_died(look):
    layout = layout_of({"x": np.arange(10), "y": np.arange(3)})
    memory, ended = np.zeros(layout.nbytes, np.uint8), []
    layout.write(memory)
    weakref.finalize(memory, ended.append, 1)
    tree = decode(layout.header, memory)
    del memory
    view = look(tree["x"])
    y = tree["y"]
    del tree
    gc.collect()
    assert not ended
    del y
    assert not ended
    del view
    assert ended == [1]


def test_samples_without_arrays_keep_no_memory():
    header, memory = shared({"s": "a" * 5000, "b": b"b" * 5000, "n": list(range(5000)), "e": 1})
    tree = decode(header, memory)
    memory.close()
    assert tree["s"] == "a" * 5000


def test_measuring_and_decoding_copy_nothing_large_but_bytes():
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


def test_a_memory_that_is_too_small_is_not_written():
    layout = layout_of([np.arange(10), np.arange(10)])
    memory = bytearray(layout.nbytes - 1)
    with pytest.raises(ValueError, match=f"need {layout.nbytes} bytes"):
        layout.write(memory)
    assert not any(memory)


def test_the_header_of_a_batch_is_small():
    layout = layout_of([{"x": np.zeros((64, 1000)), "names": ["name" * 10] * 64}])
    assert len(layout.header) < 600


# ---------------------------------------------------------------------- tensors


def test_tensors_arrive_as_tensors_of_the_memory():
    torch = pytest.importorskip("torch")
    tensors = [torch.arange(6).reshape(2, 3).T, torch.ones(2, dtype=torch.bfloat16), torch.zeros(0, 3)]
    header, memory = shared(tensors)
    for one, other in zip(decode(header, memory), tensors, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
        one[...] = 7
    assert (decode(header, memory)[0] == 7).all()
    assert crossed(torch.ones(3, requires_grad=True)).requires_grad


def test_tensors_keep_their_memory_format():
    torch = pytest.importorskip("torch")
    for dtype in (torch.uint8, torch.bfloat16):
        images = torch.arange(48).reshape(1, 3, 4, 4).to(dtype, memory_format=torch.channels_last)
        found = crossed(images)
        assert torch.equal(found, images)
        assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_a_nested_tensor_arrives_as_it_was():
    torch = pytest.importorskip("torch")
    parts = crossed(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])).unbind()
    assert [part.tolist() for part in parts] == [[1, 1], [1, 1, 1]]


def test_a_tensor_with_a_history_is_refused_with_a_way_out():
    torch = pytest.importorskip("torch")
    with pytest.raises(NotCarried, match=r"call \.detach\(\)"):
        layout_of([torch.ones(3, requires_grad=True) * 2])


# ---------------------------------------------------------------------- classes without a name

MAIN = """
import dataclasses, subprocess, sys
import cloudpickle
from penstock.memory.codec import decode, layout_of

@dataclasses.dataclass
class Mine:
    x: int
    def method(self): return self.x

method = Mine.method
def make(): return [Mine(1), Mine(2)]

child = subprocess.run([sys.executable, "-c", sys.argv[1]], input=cloudpickle.dumps(make), stdout=subprocess.PIPE)
back = decode(child.stdout, b"")
assert [type(one) for one in back] == [Mine, Mine] and back[1].method() == 2
assert Mine.method is method
print("same")
"""
CHILD = """
import pickle, sys
from penstock.memory.codec import layout_of
function = pickle.load(sys.stdin.buffer)
layout_of(function())
layout = layout_of(function())
assert not layout.nbytes
sys.stdout.buffer.write(layout.header)
"""


def test_an_object_of_a_class_of_main_comes_back_as_that_class_which_is_left_as_it_is():
    run = subprocess.run(
        [sys.executable, "-c", MAIN, CHILD], stdout=subprocess.PIPE, text=True, timeout=120, check=True
    )
    assert run.stdout == "same\n"


def test_a_local_class_that_the_other_process_has_never_seen_arrives():
    class Local:
        x = 5

    code = (
        "import sys; from penstock.memory.codec import decode\n"
        "print([one.x for one in decode(sys.stdin.buffer.read(), b'')])"
    )
    for _ in range(2):  # the second time, cloudpickle has a number for it
        header = layout_of([Local()]).header
        done = subprocess.run([sys.executable, "-c", code], input=header, stdout=subprocess.PIPE, check=True)
        assert done.stdout == b"[5]\n"
