import threading

import pytest
from tests.cases import for_each

import penstock as ps
from penstock.core.workers import LOCK
from penstock.executors.parking import LockSpot, new_spot
from penstock.testing.interleaving import Deadlock, interleave


def double(x):
    return 2 * x


def odd(x):
    return x % 2


PIPELINE = ps.from_sequence(range(60)).map(double, workers=3).filter(odd, workers=2, name="none").batch(4)


def in_thread(body, name="a worker"):
    """A thread as an executor starts it: the spot first, then the thread."""
    spot = new_spot(name)

    def run():
        try:
            spot.turn()
            body(spot)
        finally:
            spot.leave()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return spot, thread


def trace_of(seed):
    with interleave(seed) as order:
        list(PIPELINE)
    return order.trace


@for_each("seed", range(5))
def test_the_same_seed_gives_the_same_trace(seed):
    assert trace_of(seed) == trace_of(seed)


def test_other_seeds_give_other_traces():
    assert len({tuple(trace_of(seed)) for seed in range(8)}) == 8


def test_only_one_thread_runs_at_a_time():
    running = []

    def alone(x):
        running.append(x)
        assert len(running) == 1
        running.pop()
        return x

    with interleave(0):
        assert list(ps.from_sequence(range(50)).map(alone, workers=4)) == list(range(50))


def test_an_unpark_before_the_park_is_not_lost():
    passed = []
    with interleave(0) as order:
        spot, thread = in_thread(lambda own: passed.append(own.park()))
        spot.unpark()
        thread.join()
    assert passed == [True]
    assert "worker 1" in order.trace


def test_a_timeout_passes_only_when_nobody_else_can_run():
    events = []

    def other(own):
        for step in range(5):
            own.turn()
            events.append(step)

    with interleave(0):
        _, thread = in_thread(other)
        assert not new_spot("reader").park(0.01)
        events.append("timeout")
        thread.join()
    assert events == [0, 1, 2, 3, 4, "timeout"]


def test_a_deadlock_is_raised_in_the_reader_and_says_who_waits_where():
    with interleave(0, patience_s=0.1):
        spot, thread = in_thread(lambda own: own.park(), name="penstock-thread-9.1")
        with pytest.raises(Deadlock) as caught:
            new_spot("reader").park()
        spot.unpark()
        thread.join()
    text = str(caught.value)
    assert "reader waits for an unpark at" in text
    assert "worker 1 (penstock-thread-9.1) waits for an unpark at" in text
    assert text.count(__file__) == 2


def test_two_threads_that_wait_for_each_others_end_are_a_deadlock():
    with interleave(0, patience_s=0.1):
        spot, thread = in_thread(lambda own: own.park())
        with pytest.raises(Deadlock, match="reader waits for the end of worker 1"):
            thread.join()
        spot.unpark()
        thread.join()


def test_a_thread_that_is_not_penstocks_may_wake_one_that_is_and_is_not_blocked():
    with interleave(0):
        spot = new_spot("reader")
        timer = threading.Timer(0.05, spot.unpark)
        timer.start()
        assert spot.park()
        timer.join()


def test_a_users_own_thread_reads_a_loader_unscheduled():
    read = []
    with interleave(0), ps.Threads(2) as pool:
        reader = threading.Thread(target=lambda: read.extend(ps.from_sequence(range(30)).map(double, on=pool)))
        reader.start()
        assert list(ps.from_sequence(range(30)).map(double, on=pool)) == [2 * x for x in range(30)]
        while reader.is_alive():
            new_spot("reader").park(0.01)
    reader.join()
    assert read == [2 * x for x in range(30)]


def test_coroutines_run_beside_the_interleaving():
    async def fetch(x):
        return x + 1

    pipeline = ps.from_sequence(range(40)).map(double, workers=2).map(fetch, workers=3).map(double, workers=2)
    with interleave(0):
        assert list(pipeline) == [2 * (2 * x + 1) for x in range(40)]


def test_giving_up_a_turn_under_the_lock_is_an_error():
    with interleave(0), LOCK, pytest.raises(AssertionError, match="holds penstock's lock"):
        new_spot("reader").turn()


def test_threads_that_still_wait_are_let_go_when_the_block_ends():
    with interleave(0):
        spot, thread = in_thread(lambda own: own.park())
        new_spot("reader").turn()
    spot.unpark()
    thread.join(60)
    assert not thread.is_alive()


def test_a_loader_made_inside_the_block_goes_on_behind_it():
    with interleave(1):
        loader = ps.from_sequence(range(50)).map(double, workers=2).loader()
        first = list(loader)
    with loader:
        assert list(loader) == first


def test_behind_the_block_spots_are_plain_again():
    with interleave(0):
        pass
    assert type(new_spot("reader")) is LockSpot


def test_a_second_interleaving_inside_the_first_is_refused():
    with interleave(0), pytest.raises(RuntimeError, match="open already"), interleave(1):
        pass
