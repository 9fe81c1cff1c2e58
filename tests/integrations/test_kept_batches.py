"""A batch that torch or JAX keeps stays as it was, while a thousand others go through the same memory."""

from contextlib import contextmanager

import numpy as np
import pytest

import penstock as ps

pytestmark = pytest.mark.integrations

BATCHES = 1101
KEPT = (3, 50, 100)
#: of a row; two are a batch of 64 KB, from which size on memory is used again
ROW = (8, 1024)


def row(number):
    return np.full(ROW, number // 2, np.float32)


@contextmanager
def threads():
    numbers = np.arange(2 * BATCHES, dtype=np.float32) // 2
    yield ps.from_arrays(np.repeat(numbers, 8 * 1024).reshape(-1, *ROW)).batch(2)


@contextmanager
def processes():
    yield ps.from_sequence(range(2 * BATCHES)).map(row, on="process", workers=2).batch(2)


@contextmanager
def data_server():
    with threads() as data, ps.serve(data, "tcp://127.0.0.1:0") as server:
        yield ps.connect(server.address)


def address(batch):
    if hasattr(batch, "data_ptr"):
        return batch.data_ptr()
    return batch.ctypes.data if isinstance(batch, np.ndarray) else batch.unsafe_buffer_pointer()


@pytest.mark.parametrize("made_by", [threads, processes, data_server])
@pytest.mark.parametrize(("device", "library"), [("cpu", "torch"), ("jax", "jax"), ("numpy", "numpy")])
def test_a_kept_batch_stays_as_it_was_while_a_thousand_others_pass(device, library, made_by):
    pytest.importorskip(library)
    kept, used = {}, set()
    with made_by() as data, data.to(device).loader(memory="8MB") as loader:
        for number, batch in enumerate(loader):
            used.add(address(batch))
            if number in KEPT:
                kept[number] = batch
        shared = loader.stats().get("memory.blocks_peak_bytes", 0)
    # Shared memory of processes is mapped at another address each time.
    again = 0 < shared < BATCHES * 64 * 1024 // 2 if made_by is processes else len(used) < BATCHES // 2
    assert again, "memory was not used again, so that this test shows nothing"
    assert set(kept) == set(KEPT)
    for number, batch in kept.items():
        assert np.asarray(batch).shape == (2, *ROW)
        assert (np.asarray(batch) == number).all()
