"""Memory of arrays that is used again."""

import gc

import numpy as np
import pytest
from tests.cases import for_each
from tests.helpers import in_threads

import penstock as ps
from penstock.memory.recycle import Recycler

SHAPE, DTYPE = (256, 1024), np.dtype("uint8")


def address(array):
    return array.ctypes.data


def test_memory_is_used_again_when_the_array_has_died():
    recycler = Recycler()
    first = recycler.empty(SHAPE, DTYPE)
    where = address(first)
    del first
    assert address(recycler.empty(SHAPE, DTYPE)) == where


@for_each("look", [lambda a: a[3], lambda a: a[:, 1][2:], lambda a: memoryview(a), lambda a: a.T.view("int8")])
def test_memory_is_not_used_again_while_a_view_lives(look):
    recycler = Recycler()
    first = recycler.empty(SHAPE, DTYPE)
    first[...] = 7
    view, where = look(first), address(first)
    del first
    gc.collect()
    other = recycler.empty(SHAPE, DTYPE)
    other[...] = 9
    assert address(other) != where
    assert np.all(np.asarray(view) == 7)


def test_a_torch_tensor_keeps_the_memory_of_its_array():
    torch = pytest.importorskip("torch")
    recycler = Recycler()
    first = recycler.empty(SHAPE, DTYPE)
    first[...] = 7
    tensor = torch.from_numpy(first)
    del first
    recycler.empty(SHAPE, DTYPE)[...] = 9
    assert bool((tensor == 7).all())


@for_each("shape, dtype", [((0, 3), "f4"), ((), "i8"), ((10,), "u1"), ((200, 100), "f8"), ((9, 5000), "M8[s]")])
def test_arrays_are_writable_and_of_the_shape_and_type_asked_for(shape, dtype):
    array = Recycler().empty(shape, np.dtype(dtype))
    assert array.shape == shape
    assert array.dtype == np.dtype(dtype)
    assert array.flags.writeable


def test_threads_never_share_memory():
    recycler, wrong = Recycler(), []

    def use(mark):
        for _ in range(300):
            array = recycler.empty(SHAPE, DTYPE)
            array[::64] = mark
            if not np.all(array[::64] == mark):
                wrong.append(mark)

    in_threads(use, 4)
    assert not wrong


@for_each("shuffled", [False, True])
def test_batches_that_are_kept_keep_their_values(shuffled):
    x = np.arange(4000 * 100, dtype=np.int64).reshape(4000, 100)
    data = ps.from_arrays(x).shuffle() if shuffled else ps.from_arrays(x)
    with data.batch(100).loader(epochs=3) as loader:
        kept = [list(batches) for _, batches in loader.epochs(3)]
    for batches in kept:
        rows = np.concatenate(batches)
        assert np.array_equal(rows[np.argsort(rows[:, 0])], x)


def test_what_is_kept_is_bounded_over_all_shapes():
    recycler = Recycler()
    for rows in range(1, 200):
        arrays = [recycler.empty((rows, 64 * 1024), DTYPE) for _ in range(4)]
        del arrays
    kept = sum(raw.nbytes for some in recycler._free.values() for raw, _ in some)
    assert kept <= 64 * 1024 * 1024
    assert kept == recycler._bytes
