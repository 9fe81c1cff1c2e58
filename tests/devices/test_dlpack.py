"""DLPack both ways: other libraries look at our batches, and we at their samples, in the same memory."""

import numpy as np
import pytest

import penstock as ps

#: bytes of a batch that comes in memory which is used again
LARGE = 200_000


class Foreign:
    """An array of a library that penstock does not know: all it has is DLPack."""

    def __init__(self, values):
        self.values = values

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


def batches(n):
    return ps.from_sequence(range(4 * n)).map(lambda x: np.full(LARGE // 8, x)).batch(4)


def check_taken(from_dlpack, shared=True):
    """What a library has taken stays intact while other batches pass through memory that is used again."""
    with batches(100).loader(epochs=1) as loader:
        kept = []
        for number, batch in enumerate(loader):
            taken = from_dlpack(batch)
            assert np.shares_memory(np.from_dlpack(taken), batch) or not shared
            if number % 10 == 0:
                kept.append(taken)
            del batch, taken
    first = [np.from_dlpack(one)[:, -1].tolist() for one in kept]
    assert first == [list(range(4 * n, 4 * n + 4)) for n in range(0, 100, 10)]


def test_numpy_takes_a_batch_without_a_copy():
    check_taken(np.from_dlpack)


def test_torch_takes_a_batch_without_a_copy():
    torch = pytest.importorskip("torch")
    check_taken(torch.from_dlpack)


@pytest.mark.integrations
def test_jax_takes_a_batch():
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        check_taken(jax.dlpack.from_dlpack, shared=False)  # JAX copies memory that is not aligned as it likes


def test_samples_of_an_unknown_library_become_arrays_without_a_copy():
    values = np.arange(6.0)
    ((moved, name),) = ps.from_iterable([(Foreign(values), "a")]).to("numpy")
    assert np.shares_memory(moved, values)
    assert (moved.tolist(), name) == ([0, 1, 2, 3, 4, 5], "a")


def test_samples_of_an_unknown_library_become_tensors_without_a_copy():
    torch = pytest.importorskip("torch")
    values = np.arange(6.0)
    (moved,) = ps.from_iterable([{"x": Foreign(values)}]).to("cpu")
    assert type(moved["x"]) is torch.Tensor
    assert moved["x"].data_ptr() == values.ctypes.data
    assert moved["x"].tolist() == values.tolist()


@pytest.mark.integrations
def test_samples_of_an_unknown_library_become_arrays_of_jax():
    jax = pytest.importorskip("jax")
    (moved,) = ps.from_iterable([Foreign(np.arange(6, dtype=np.float32))]).to("jax")
    assert isinstance(moved, jax.Array)
    assert moved.tolist() == [0, 1, 2, 3, 4, 5]
