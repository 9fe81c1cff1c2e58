"""Samples die with their last reference: a worker leaves no cycles in which they wait for the garbage collector.

One batch of images is 10 MB, and the collector may come by only after a hundred of them.
"""

import gc
import weakref

import numpy as np
import pytest
from tests.cases import for_each
from tests.helpers import BACKGROUND, INLINE, with_layouts

import penstock as ps
from penstock.program.sizing import Sizer


class Alive:
    """Makes arrays, and tells how many of those made before in the same process are alive."""

    def __init__(self):
        self.made = []

    def __call__(self, x):
        gc.disable()  # in this process, whichever it is
        self.made = [one for one in self.made if one() is not None]
        array = np.full(50, x)
        self.made.append(weakref.ref(array))
        return {"x": array, "alive": len(self.made)}


@pytest.fixture(autouse=True)
def _collected():
    gc.collect()
    yield
    gc.enable()


def same(sample):
    return sample


def same_if_any(sample, extra):
    return sample


WAYS = {
    "map": lambda data: data.map(same),
    "map with a generator": lambda data: data.map(same_if_any, rng=True),
    "map with info": lambda data: data.map(same_if_any, info=True),
    "map that may be tried again": lambda data: data.map(same, on_error=ps.Retry(2, 0)),
    "map in time": lambda data: data.map(same, timeout_s=30),
    "filter": lambda data: data.filter(bool),
    "flat_map": lambda data: data.flat_map(lambda sample: [sample]),
    "flat_map of a generator": lambda data: data.flat_map(lambda sample: (yield sample)),
    "tap": lambda data: data.tap(bool),
    "batch": lambda data: data.batch(4),
    "batch with pad": lambda data: data.batch(4, pad=0),
    "batch with collate": lambda data: data.batch(4, collate=list),
    "batch and unbatch": lambda data: data.batch(4).unbatch(),
    "filter and batch": lambda data: data.filter(bool).batch(4),
    "window": lambda data: data.shuffle(window=5),
    "take": lambda data: data.take(150),
}


# With several workers, what waits for a late one may be much: see the bounds.
@with_layouts(INLINE, BACKGROUND)
@for_each("way", WAYS)
def test_samples_die_without_the_garbage_collector(layout, way):
    data = WAYS[way](ps.from_sequence(range(150)).map(Alive(), **layout.place).prefetch(1)).prefetch(1)
    most = 0
    with pytest.MonkeyPatch.context() as patch, data.loader(epochs=1, **layout.loader) as loader:
        patch.setattr(Sizer, "record", lambda *_: None)  # every ticket is one sample
        for sample in loader:
            found = sample[-1] if isinstance(sample, list) else sample
            most = max(most, int(np.max(found["alive"])))
            del sample, found
    assert most <= 60  # a few tickets of a few samples each, and not all that ever were
