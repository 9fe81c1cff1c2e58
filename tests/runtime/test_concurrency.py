"""N workers run N calls at once and never N + 1; order is kept, or not, as asked."""

import asyncio
import itertools
import threading
import time

from tests.cases import for_each
from tests.runtime.helpers import SOON_S, Gate, Peak, await_event

import penstock as ps

WORKERS = [1, 2, 4, 7]


class Meeting:
    """A function whose first calls wait until all workers are inside one, and which counts those inside."""

    def __init__(self, workers, first=None):
        self.inside = Peak()
        self.first = workers if first is None else first
        self.barrier = threading.Barrier(workers)

    def __call__(self, sample):
        with self.inside:
            if sample < self.first:
                self.barrier.wait(SOON_S / 4)
            return sample


class AsyncMeeting:
    """The same for coroutines."""

    def __init__(self, workers):
        self.inside = Peak()
        self.workers = workers
        self.came = 0
        self.all_here = None

    async def __call__(self, sample):
        with self.inside:
            if sample < self.workers:
                self.all_here = self.all_here or asyncio.Event()
                self.came += 1
                if self.came == self.workers:
                    self.all_here.set()
                await asyncio.wait_for(self.all_here.wait(), SOON_S)
            await asyncio.sleep(0)
            return sample


SOURCES = {
    "indexed": lambda n: ps.from_sequence(range(n)),
    "stream": lambda n: ps.from_iterable(lambda: iter(range(n))),
}
every_source = for_each("source", SOURCES)


@every_source
@for_each("workers", WORKERS)
def test_n_threads_overlap_n_calls_and_never_more(source, workers):
    meeting = Meeting(workers)
    data = SOURCES[source](100).map(meeting, workers=workers)
    assert list(data) == list(range(100))
    assert meeting.inside.most == workers


@every_source
@for_each("workers", WORKERS)
def test_n_coroutines_overlap_n_calls_and_never_more(source, workers):
    meeting = AsyncMeeting(workers)
    data = SOURCES[source](100).map(meeting, workers=workers, on="async")
    assert list(data) == list(range(100))
    assert meeting.inside.most == workers


@every_source
@for_each("workers", [2, 4])
def test_n_workers_of_a_pool_overlap_n_calls(source, workers):
    meeting = Meeting(workers)
    with ps.Threads(workers) as pool:
        assert list(SOURCES[source](50).map(meeting, on=pool)) == list(range(50))
    assert meeting.inside.most == workers


@for_each("workers", [2, 4])
def test_two_stages_overlap_each_other_too(workers):
    """A call of the second stage waits for one of the first that comes later."""
    later = threading.Event()

    def first(sample):
        if sample == 1:
            later.set()
        return sample

    def second(sample):
        if sample == 0:
            await_event(later, "a call of the first stage")
        return sample

    data = ps.from_sequence(range(10)).map(first, workers=workers).map(second, workers=workers)
    assert list(data) == list(range(10))


@for_each("workers", [2, 4])
def test_never_more_than_n_with_retries(workers):
    meeting, tries = Meeting(workers), itertools.count()

    def shaky(sample):
        value = meeting(sample)
        if next(tries) % 3 == 0:
            raise OSError("busy")
        return value

    # A retry of an early sample would wait at the barrier again, alone.
    meeting.first = 0
    data = ps.from_sequence(range(60)).map(shaky, workers=workers, on_error=ps.Retry(50, 0))
    assert list(data) == list(range(60))
    assert meeting.inside.most <= workers
    assert meeting.inside.calls > 60


@for_each("workers", [2, 4])
def test_never_more_than_n_when_the_next_epoch_is_begun_early(workers):
    meeting = Meeting(workers, first=0)
    with ps.from_sequence(range(9)).map(meeting, workers=workers).loader() as loader:
        for _ in range(50):
            assert list(loader) == list(range(9))
    assert meeting.inside.most <= workers


class Opened(list):
    """Numbers, of which those above 2000 can be read once it is `open`."""

    def __init__(self, numbers):
        super().__init__(numbers)
        self.open = threading.Event()

    def __getitem__(self, number):
        if number > 2000:
            self.open.wait(SOON_S)
        return super().__getitem__(number)


@for_each("workers", [2, 3])
def test_after_a_timeout_n_calls_overlap_again_and_never_more(workers):
    release, met, inside = threading.Event(), threading.Event(), Peak()
    numbers = Opened(range(6000))

    def stuck_once(sample):
        if sample == 0:
            release.wait(SOON_S)
            return sample
        with inside:
            if inside.inside == workers and sample > 2000:
                met.set()
            elif sample > 2000:
                met.wait(SOON_S)
        return sample

    data = ps.from_sequence(numbers).map(stuck_once, workers=workers, timeout_s=2, on_error="skip")
    with data.loader(epochs=1) as loader:
        got = []
        for sample in loader:
            numbers.open.set()  # the stuck call was given up, or nothing would have come
            got.append(sample)
        release.set()
    assert got == list(range(1, 6000))
    assert inside.most == workers


def filled(loader, stage, samples):
    """Wait until a stage has made so many samples."""
    while loader.stats()[f"stage.{stage}.samples"] < samples:
        threading.Event().wait(0.001)


def test_a_stage_that_stood_still_for_want_of_room_goes_on_when_the_next_one_takes():
    """All workers of the second stage meet, though the first had stopped at its bound before they came."""
    held, met = Gate("held"), threading.Barrier(4)
    arrived = threading.Barrier(5)

    def hold(sample):
        arrived.wait(SOON_S)
        return held("held")

    def meet(sample):
        if sample < 4:
            met.wait(SOON_S / 4)
        return sample

    with ps.Threads(4) as pool:
        busy = ps.from_sequence(range(4)).map(hold, on=pool).loader(epochs=1).start()
        arrived.wait(SOON_S)
        data = ps.from_sequence(range(20)).map(lambda x: x, workers=1, name="first").map(meet, on=pool)
        with busy, data.loader(epochs=1).start() as loader:
            filled(loader, "first", 2)
            held.release()
            assert list(loader) == list(range(20))


@for_each("workers", [2, 4])
def test_calls_that_wait_for_each_other_meet_up_to_the_last(workers):
    """No worker is left with several samples while another has none, where the end is known."""
    barrier = threading.Barrier(workers)

    def meet(sample):
        barrier.wait(SOON_S / 8)
        return sample

    n = 30 * workers
    assert list(ps.from_sequence(range(n)).map(meet, workers=workers)) == list(range(n))


@every_source
def test_calls_overlap_in_an_epoch_of_few_samples_after_many_fast_ones(source):
    meeting = Meeting(4)
    meet = threading.Event()

    def fast_then_slow(sample):
        return meeting(sample) if meet.is_set() else sample

    with SOURCES[source](4).map(fast_then_slow, workers=4).loader(epochs=201) as loader:
        for _ in range(199):
            assert list(loader) == [0, 1, 2, 3]
        loader.set_epoch(500)  # nothing of it has been begun
        meet.set()
        assert list(loader) == [0, 1, 2, 3]


# ---------------------------------------------------------------------- order


def reversed_order(n):
    """A function in which each call waits for that of the next sample."""
    done = [threading.Event() for _ in range(n + 1)]
    done[n].set()

    def backwards(sample):
        await_event(done[sample + 1], f"sample {sample + 1}")
        done[sample].set()
        return sample

    return backwards


@every_source
@for_each("n", [2, 4, 8])
def test_the_order_is_kept_when_later_samples_finish_first(source, n):
    assert list(SOURCES[source](n).map(reversed_order(n), workers=n)) == list(range(n))


def test_the_order_is_kept_when_coroutines_finish_backwards():
    async def backwards(sample):
        for _ in range(3 * (20 - sample)):
            await asyncio.sleep(0)
        return sample

    assert list(ps.from_sequence(range(20)).map(backwards, workers=20)) == list(range(20))


@every_source
def test_the_order_is_kept_through_filters_and_batches(source):
    backwards = reversed_order(4)
    data = SOURCES[source](4).map(backwards, workers=4).filter(lambda x: x != 1).batch(2, collate=list)
    assert list(data) == [[0, 2], [3]]


@every_source
def test_unordered_delivers_in_the_order_of_completion(source):
    gate = Gate(0)
    with SOURCES[source](6).map(gate, workers=2, ordered=False).loader(epochs=1) as loader:
        batches = iter(loader)
        first = [next(batches) for _ in range(5)]
        gate.release()
        assert sorted(first) == [1, 2, 3, 4, 5]
        assert list(batches) == [0]


def test_unordered_coroutines_deliver_in_the_order_of_completion():
    hold = []

    async def fetch(sample):
        if sample == 0:
            hold.append(asyncio.Event())
            await asyncio.wait_for(hold[0].wait(), SOON_S)
        elif sample == 9:
            hold[0].set()
        return sample

    got = list(ps.from_sequence(range(10)).map(fetch, workers=2, ordered=False))
    assert sorted(got) == list(range(10))
    assert got.index(0) >= 8


@every_source
@for_each("workers", [1, 2, 8])
def test_unordered_loses_and_repeats_nothing(source, workers):
    data = SOURCES[source](500).map(lambda x: x, workers=workers, ordered=False)
    with data.loader() as loader:
        for _ in range(5):
            assert sorted(loader) == list(range(500))


@every_source
@for_each("n", [0, 1, 2, 3])
def test_fewer_samples_than_workers(source, n):
    with SOURCES[source](n).map(lambda x: x, workers=8).loader() as loader:
        for _ in range(20):
            assert list(loader) == list(range(n))


@every_source
def test_a_slow_first_sample_loses_no_other(source):
    gate = Gate(0)
    with SOURCES[source](300).map(gate, workers=4).loader(epochs=1) as loader:
        loader.start()
        gate.await_reached(0)
        gate.release()
        assert list(loader) == list(range(300))


@every_source
def test_a_slow_sample_stops_only_itself(source):
    """The other workers go on up to the bound while one sample is slow."""
    gate = Gate(2)
    beyond = threading.Event()

    def slow_at_two(sample):
        if sample > 3:
            beyond.set()
        return gate(sample)

    with SOURCES[source](100).map(slow_at_two, workers=3).loader(epochs=1) as loader:
        loader.start()
        gate.await_reached(2)
        await_event(beyond, "a sample after the slow one")
        gate.release()
        assert list(loader) == list(range(100))


@for_each("workers", [1, 2, 5])
@for_each("source", SOURCES)
def test_batches_are_the_same_for_any_number_of_workers(source, workers):
    data = SOURCES[source](85).map(lambda x: x, workers=workers).batch(10, collate=list)
    assert list(data) == [list(range(start, min(start + 10, 85))) for start in range(0, 85, 10)]


def test_one_worker_is_one_caller():
    threads = set()
    data = ps.from_sequence(range(200)).map(lambda x: threads.add(threading.get_ident()), workers=1)
    with data.loader() as loader:
        for _ in range(5):
            list(loader)
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_inline_calls_are_made_by_the_reader():
    threads = set()
    with (
        ps.from_sequence(range(20))
        .map(lambda x: threads.add(threading.get_ident()), workers=4)
        .loader(inline=True) as loader
    ):
        list(loader)
    assert threads == {threading.get_ident()}


def test_inline_makes_nothing_before_it_is_asked_for():
    calls = []
    with ps.from_sequence(range(100)).map(lambda x: calls.append(x) or x).loader(inline=True) as loader:
        batches = iter(loader)
        assert calls == []
        assert next(batches) == 0
        assert len(calls) < 20


def test_coroutines_that_await_nothing_let_others_have_their_turn():
    async def computes(sample):
        time.sleep(0.005)
        return sample

    with ps.from_sequence(range(10**9)).map(computes, workers=3).loader() as loader:
        assert [sample for sample, _ in zip(loader, range(30), strict=False)] == list(range(30))
