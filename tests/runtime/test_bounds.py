"""Nothing is unbounded: how much is made ahead of a reader that does not read."""

import itertools
import threading
import weakref

import numpy as np
import pytest
from tests.cases import for_each
from tests.runtime.helpers import SOON_S, await_event

import penstock as ps
from penstock.program.sizing import Sizer

SETTLE_S = 0.05


class Made:
    """Counts calls, and tells when there have been none for a moment."""

    def __init__(self):
        self.lock = threading.Lock()
        self.count = 0
        self.changed = threading.Event()

    def __call__(self, sample):
        with self.lock:
            self.count += 1
        self.changed.set()
        return sample

    def settled(self):
        """The number of calls, once there have been none for a moment; a bound that holds never fails."""
        await_event(self.changed, "the first call")
        while self.changed.wait(SETTLE_S):
            self.changed.clear()
        return self.count


SOURCES = {
    "indexed": lambda: ps.from_sequence(range(10**6)),
    "stream": lambda: ps.from_iterable(lambda: itertools.count()),
}
every_source = for_each("source", SOURCES)


@pytest.fixture
def tickets_of_one(monkeypatch):
    """Every ticket is one sample, or one batch where the worker makes these."""
    monkeypatch.setattr(Sizer, "record", lambda *_: None)


@every_source
def test_without_a_reader_two_tickets_of_one_worker_are_made(source):
    made = Made()
    with SOURCES[source]().map(made, workers=1).loader().start() as loader:
        # The first ticket is one sample and each at most twice the one before, so two of them are few.
        assert 1 <= made.settled() <= 3
        assert loader.stats()["batches"] == 0


@pytest.mark.usefixtures("tickets_of_one")
@every_source
@for_each("ready", [1, 5, 64])
def test_no_ticket_is_begun_while_as_many_batches_wait_as_prefetch_says(source, ready):
    made = Made()
    with SOURCES[source]().map(made, workers=1).prefetch(ready).loader().start() as loader:
        assert made.settled() == ready + 1  # one ticket per worker comes on top
        batches = iter(loader)
        for _ in range(10):
            next(batches)
        assert made.settled() <= 10 + ready + 2


@pytest.mark.usefixtures("tickets_of_one")
@every_source
def test_prefetch_counts_batches_after_a_batch(source):
    made = Made()
    data = (
        SOURCES[source]().filter(lambda x: True).map(made, workers=1).prefetch(8).batch(4, collate=list).prefetch(3)
    )
    with data.loader().start():
        # three batches and one more ready, 8 samples and one more for them, and those taken for the next batch
        assert 3 * 4 <= made.settled() <= 4 * 4 + 9 + 4


@pytest.mark.usefixtures("tickets_of_one")
@every_source
def test_a_reader_that_stops_stops_the_pipeline(source):
    made = Made()
    with SOURCES[source]().map(made, workers=1).prefetch(8).loader() as loader:
        batches = iter(loader)
        for _ in range(1000):
            next(batches)
        assert made.settled() <= 1000 + 8 + 2


def test_every_stage_is_bounded_by_itself():
    first, second = Made(), Made()
    data = SOURCES["indexed"]().map(first, workers=1).prefetch(4).map(second, workers=1).prefetch(3)
    with pytest.MonkeyPatch.context() as patch, data.loader() as loader:
        patch.setattr(Sizer, "record", lambda *_: None)
        loader.start()
        assert second.settled() <= 3 + 1
        # 4 behind the second stage, 5 ready for it, and one that it has taken for its next ticket
        assert first.settled() <= 4 + 5 + 1


@pytest.mark.usefixtures("tickets_of_one")
@for_each("workers", [1, 4])
def test_what_waits_for_a_late_call_is_bounded_in_bytes(workers):
    made, release = Made(), threading.Event()
    size = 8 << 20

    def slow_first(sample):
        if sample == 0:
            release.wait(SOON_S)
        made(sample)
        return np.empty(size, "uint8")  # never touched, so it takes no memory

    with SOURCES["indexed"]().map(slow_first, workers=workers + 1).loader() as loader:
        loader.start()
        batches = iter(loader)
        # The last few were begun before the size of the first was known.
        most = made.settled()
        release.set()
        assert most <= 256 * 2**20 // size + 3 * (workers + 1)
        assert len(list(itertools.islice(batches, 100))) == 100


def test_an_early_epoch_stays_within_the_same_bound():
    made = Made()
    with ps.from_sequence(range(10)).map(made, workers=2).prefetch(6).loader() as loader:
        assert list(loader) == list(range(10))
        assert made.settled() <= 10 + 6


def test_a_function_that_yields_a_million_samples_stays_within_bounds():
    made = Made()

    def many(sample):
        for number in range(10**6):
            yield made(number)

    with ps.from_sequence(range(4)).flat_map(many, workers=2).prefetch(10).loader() as loader:
        loader.start()
        # A call is cut only after a millisecond of work, so the bound is in chunks here.
        assert made.settled() < 10**5
        assert list(itertools.islice(loader, 5)) == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("tickets_of_one")
def test_a_window_shuffle_holds_no_more_than_its_window():
    made = Made()
    data = (
        SOURCES["stream"]()
        .map(made, workers=1)
        .prefetch(4)
        .shuffle(window=50)
        .map(lambda x: x, workers=1)
        .prefetch(4)
    )
    with data.loader().start() as loader:
        assert made.settled() <= 50 + 4 + 4 + 50
        assert sorted(itertools.islice(loader, 50)) == list(range(50))


# ---------------------------------------------------------------------- memory=


def sized(low=1_000, high=5_000_000, n=60, seed=0):
    """Samples of very different sizes."""
    rng = np.random.default_rng(seed)
    return np.exp(rng.uniform(np.log(low), np.log(high), n)).astype(int).tolist()


def blank(nbytes):
    return np.zeros(nbytes, dtype=np.uint8)


class Held:
    """Bytes of samples that are alive, as their own finalizers count them."""

    def __init__(self):
        self.lock = threading.RLock()
        self.now = self.most = 0

    def sample(self, nbytes):
        array = np.zeros(nbytes, dtype=np.uint8)
        with self.lock:
            self.now += nbytes
            self.most = max(self.most, self.now)
        weakref.finalize(array, self._gone, nbytes)
        return array

    def _gone(self, nbytes):
        with self.lock:
            self.now -= nbytes


@for_each("ordered", [True, False])
@for_each("workers", [1, 2, 4])
@for_each("memory", [1_000_000, 10_000_000, 30_000_000])
def test_the_byte_bound_holds_with_samples_from_a_kilobyte_to_megabytes(workers, memory, ordered):
    sizes, held = sized(), Held()
    data = ps.from_sequence(sizes).map(held.sample, workers=workers, ordered=ordered)
    with data.loader(memory=memory, epochs=1) as loader:
        got = []
        for sample in loader:
            got.append(len(sample))
            del sample
    assert sorted(got) == sorted(sizes)
    assert got == sizes or not ordered
    # the bound, one chunk per worker, and what the reader has in hand
    assert held.most <= memory + (workers + 1) * max(sizes)


@for_each("workers", [1, 3])
def test_the_byte_bound_holds_without_a_reader(workers):
    made, held = Made(), Held()
    data = ps.from_sequence([100_000] * 10_000).map(lambda n: made(held.sample(n)), workers=workers).prefetch(5000)
    with data.loader(memory="2MB").start():
        made.settled()
        assert held.most <= 2_000_000 + workers * 100_000


@for_each("workers", [1, 2])
def test_the_byte_bound_covers_stages_of_different_sizes(workers):
    held = Held()

    def grown(sample):
        return held.sample(100 * len(sample))

    def shrunk(sample):
        return held.sample(max(len(sample) // 1000, 1))

    data = (
        ps.from_sequence(sized(1_000, 20_000, 200))
        .map(held.sample, workers=workers)
        .map(grown, workers=workers)
        .map(shrunk, workers=workers)
    )
    with data.loader(memory="5MB", epochs=1) as loader:
        assert sum(1 for _ in loader) == 200
    # a worker holds its input and its output at once
    assert held.most <= 5_000_000 + 3 * workers * (2_000_000 + 20_000) + 2_000_000


def test_the_byte_bound_holds_with_batches_cut_in_the_order_of_delivery():
    held = Held()
    data = (
        ps.from_sequence([100_000] * 400)
        .map(held.sample, workers=2)
        .filter(lambda array: True)
        .batch(8, collate=lambda group: held.sample(sum(map(len, group))))
    )
    with data.loader(memory="3MB", epochs=1) as loader:
        assert sum(1 for _ in loader) == 50
    assert held.most <= 3_000_000 + 2 * 2 * 800_000 + 2 * 800_000


@for_each("pipeline", ["one stage", "two stages", "batch", "async", "inline"])
def test_a_bound_smaller_than_any_sample_slows_the_stream_and_never_stops_it(pipeline):
    async def fetch(sample):
        return sample

    source = ps.from_sequence([200_000] * 30)
    data = {
        "one stage": source.map(blank, workers=4),
        "two stages": source.map(blank, workers=4).map(lambda x: x, workers=4),
        "batch": source.map(blank, workers=2).filter(len).batch(3).map(lambda x: x, workers=2),
        "async": source.map(blank, workers=2).map(fetch, workers=4),
        "inline": source.map(blank, on="inline"),
    }[pipeline]
    with data.loader(memory="1kB") as loader:
        for _ in range(3):
            assert sum(array.nbytes for array in loader) == 30 * 200_000


def test_everything_is_given_back_at_the_end_of_an_epoch_and_at_a_break():
    data = ps.from_sequence([50_000] * 40).map(blank, workers=3)
    with data.loader(memory="300kB", epochs=30) as loader:
        for number in range(30):
            for taken, _ in enumerate(loader):
                if number % 3 == 0 and taken == 5:
                    break
        budget = loader._engine.budget
    # Only now have all workers handed in what they had begun before a break.
    assert budget.used == 0
    assert 0 < budget.peak <= 300_000 + 3 * 50_000


@for_each("memory", ["much", 0, -5, True, "0GB"])
def test_what_is_no_amount_of_memory_is_refused(memory):
    with pytest.raises(ps.PlanError, match="memory="):
        ps.from_sequence([1]).loader(memory=memory)
