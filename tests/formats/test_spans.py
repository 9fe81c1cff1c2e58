"""Pieces of a file in few reads."""

import numpy as np
from tests.cases import for_each
from tests.random_examples import seeds

from penstock import storage
from penstock.formats.spans import read_pieces


class _Counting:
    """A real file that notes what is read of it."""

    def __init__(self, path):
        self._file = storage.file(str(path))
        self.path = self._file.path
        self.reads = []

    def read_at(self, offset, length):
        self.reads.append((offset, length))
        return self._file.read_at(offset, length)

    def read_many(self, offsets, lengths):
        self.reads += zip(offsets, lengths, strict=True)
        return self._file.read_many(offsets, lengths)


def _pieces(file, spans):
    at, sizes = np.array(spans, dtype=np.int64).reshape(-1, 2).T
    return read_pieces(file, at, sizes)


def test_any_pieces_come_as_they_lie_in_the_file(tmp_path):
    data = np.random.default_rng(0).bytes(200_000)
    (tmp_path / "a").write_bytes(data)
    file = storage.file(str(tmp_path / "a"))
    for seed in seeds(40):
        rng = np.random.default_rng(seed)
        sizes = rng.choice([0, 1, 10, 700, 9_000, 40_000], rng.integers(0, 30))
        at = rng.integers(0, len(data) - 40_000, len(sizes))
        if rng.random() < 0.5:
            at.sort()
        assert read_pieces(file, at, sizes) == [data[a : a + n] for a, n in zip(at, sizes, strict=True)]


@for_each(
    "spans, reads",
    [
        ([], 0),
        ([(0, 0)], 1),
        ([(n * 600, 100) for n in range(50)], 1),  # neighbours
        ([(49 * 600, 100), (0, 100)], 2),  # backwards
        ([(0, 100), (0, 100)], 2),  # the same piece twice
        ([(0, 50_000), (50_600, 1), (60_000, 50_000)], 3),  # large ones would be copied twice
        ([(n * 600, 100) for n in range(50)] + [(100_000, 50_000)], 2),
        ([(0, 50_000)] + [(100_000 + n * 600, 100) for n in range(50)], 2),
    ],
)
def test_small_neighbours_come_in_one_read_and_large_pieces_alone(tmp_path, spans, reads):
    data = np.random.default_rng(0).bytes(200_000)
    (tmp_path / "a").write_bytes(data)
    file = _Counting(tmp_path / "a")
    assert _pieces(file, spans) == [data[at : at + size] for at, size in spans]
    assert len(file.reads) == reads
