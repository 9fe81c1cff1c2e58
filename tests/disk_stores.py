"""Stores of samples in a folder, for tests and for the processes that tests start."""

# Processes that are killed import this file: it must stay cheap to import.

import numpy as np

from penstock.disk.store import DiskStore

KEY = "a" * 24


def store_in(path, key=KEY, size=1000, max_bytes=None):
    """A store that finds what is in the folder now."""
    store = DiskStore(str(path), max_bytes, "cache('x')")
    store.locate(key, size, {})
    return store


def sample_of(number, size=300):
    """What is kept under a number."""
    return {"x": np.full(size, number % 251, "uint8"), "number": number}


def put(store, *numbers, size=300):
    """Keep these samples."""
    for number in numbers:
        store.put(number, [sample_of(number, size)], [number])


def holds(store, number, size=300):
    """Whether the store has the sample; it never has another one in its place."""
    found = store.get(number)
    if found is None:
        return False
    (sample,), places = found
    expected = sample_of(number, size)
    assert places == [0]
    assert sample.keys() == expected.keys()
    assert sample["number"] == number
    assert np.array_equal(sample["x"], expected["x"])
    return True
