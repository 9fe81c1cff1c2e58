"""Records: samples as bytes, of which no changed one is ever taken for a sample."""

import numpy as np
import pytest
from tests.cases import for_each

import penstock as ps
from penstock.disk.record import SAMPLES, header_at, packed, raw, samples_in
from penstock.memory.network import layout_of


def read(record, number=7):
    return samples_in(memoryview(record).toreadonly(), number)


@for_each("size", [0, 100, 20_000])
def test_every_byte_of_a_record_is_covered(size):
    record = packed(7, [{"x": np.arange(size, dtype="uint8")}], None)
    assert read(record) is not None
    for at in range(0, len(record), 1 if size < 1000 else 37):
        for flip in (1, 0x80):
            record[at] ^= flip
            assert read(record) is None, at
            record[at] ^= flip
    assert read(record) is not None


def test_a_record_of_another_number_or_of_half_its_length_is_none():
    record = packed(7, [1], None)
    assert read(record) == ([1], None)
    assert read(record, 8) is None
    assert read(record[:-64]) is None
    assert read(b"") is None


def test_pages_in_another_order_are_noticed():
    record = packed(7, [np.arange(4096)], None)
    at = len(record) - 8192
    record[at : at + 4096], record[at + 4096 :] = record[at + 4096 :], record[at : at + 4096]
    assert read(record) is None


@for_each("tree", [[None], [1, 2, 3], {"a": 1}, [[[1]], []], [["x"], [1]], [[[1, "a"]], [1]], [None, (1,)]])
def test_what_somebody_else_has_written_is_none_unless_it_is_samples(tree):
    assert read(raw(SAMPLES, 7, layout_of(tree).header)) is None


def test_bytes_that_are_no_msgpack_are_none():
    record = raw(SAMPLES, 7, b"\x02\xc1junk")
    assert header_at(record) is not None
    assert read(record) is None


def test_tensors_are_kept_as_tensors(tmp_path):
    torch = pytest.importorskip("torch")
    pipeline = ps.from_sequence([3]).map(lambda x: torch.full((40_000,), x, dtype=torch.bfloat16)).cache(tmp_path)
    for _ in range(3):
        (sample,) = list(pipeline)
        assert sample.dtype is torch.bfloat16
        assert bool((sample == 3).all())
        sample.zero_()  # a tensor cannot be closed to writing, so it must be a copy
