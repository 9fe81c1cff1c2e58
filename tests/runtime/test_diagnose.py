"""diagnose(), over real runs whose bottleneck is known."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import wraps

import numpy as np
import pytest
from tests.cases import for_each

import penstock as ps
from penstock.machine import usable_cpus

# They tell how a run spent its time, which depends on what else the machine does. Here is what holds on a busy
# machine too; numbers, and what follows from small differences between them, are for the soak, on a quiet one.
pytestmark = pytest.mark.alone

RUN_S = 0.8
TRIES = 3


def measured(test):
    """A test of what was measured: another program may have had the machine for a moment, but not thrice."""

    @wraps(test)
    def tried(*args, **kwargs):
        for left in reversed(range(TRIES)):
            try:
                test(*args, **kwargs)
                return
            except AssertionError:
                if not left:
                    raise

    return tried


def sleepy(x):
    time.sleep(0.004)
    return x


def pythonic(x):
    count = 0
    while count < 20_000:
        count += 1
    return x


def read(loader, step_s, run_s=RUN_S):
    """A training loop of so many seconds from its first batch on."""
    began = None
    for _ in loader:
        began = began or time.perf_counter()
        time.sleep(step_s)
        if time.perf_counter() - began > run_s:
            return


def diagnosis(pipeline, step_s, run_s=RUN_S, **options):
    with pipeline.loader(**options) as loader:
        read(loader, step_s, run_s)
        return loader.diagnose()


NUMBERS = ps.from_sequence(range(1_000_000))


@for_each("options", [{}, {"isolate": True}])
@measured
def test_a_slow_function_is_named_with_the_gain_of_more_workers(options):
    # Steps that take no time: all there is to do is to wait, on a busy machine too.
    found = diagnosis(NUMBERS.map(sleepy, workers=2).batch(4), 0, **options)
    assert "sleepy" in found.limiting
    assert found.wait_share > 0.6
    assert "workers" in found.advice


@pytest.mark.soak
@measured
def test_the_capacity_of_a_stage_is_that_of_its_function():
    (stage,) = diagnosis(NUMBERS.map(sleepy, workers=2).batch(4), 0.002).stages
    assert stage.working > 0.9
    assert stage.capacity == pytest.approx(2 / 0.004, rel=0.3)


@pytest.mark.soak
@measured
def test_the_gain_it_tells_comes_true():
    def run(workers):
        return diagnosis(NUMBERS.map(sleepy, workers=workers).batch(4), 0.004)

    before = run(1)
    assert "1 → 4 workers" in before.advice
    after = run(4)
    assert after.samples_per_s / before.samples_per_s == pytest.approx(before.expected_gain, rel=0.2)


@measured
def test_a_loop_that_is_fed_limits_itself():
    found = diagnosis(NUMBERS.map(sleepy, workers=4).batch(2), 0.02)
    assert found.limiting == "training loop"
    assert found.expected_gain == 1.0
    assert found.wait_share < 0.05


@measured
def test_of_two_stages_the_slower_one_limits():
    data = NUMBERS.map(lambda x: x, workers=1, name="quick").map(sleepy, workers=2, on="process")
    found = diagnosis(data.batch(4), 0.001)
    assert "sleepy" in found.limiting
    quick = found.stages[0]
    assert "quick" in quick.label
    assert quick.waiting_room > 0.8


@pytest.mark.soak
@for_each("workers", [1, 4])
@measured
def test_threads_that_hold_the_interpreter_lock_are_found(workers):
    found = diagnosis(NUMBERS.map(pythonic, workers=workers).batch(8), 0.0002, run_s=2.0)  # four tries of the lock
    assert "pythonic" in found.limiting
    assert 'on="process"' in found.advice


@measured
def test_a_stream_that_is_slow_to_read_is_found():
    def rows():
        for number in range(1_000_000):
            time.sleep(0.002)
            yield number

    found = diagnosis(ps.from_iterable(rows).map(lambda x: x, workers=4).batch(4), 0.001)
    assert "rows" in found.advice
    assert "one worker at a time" in found.advice


@measured
def test_work_in_the_loops_own_thread_is_found():
    found = diagnosis(NUMBERS.map(sleepy).batch(2), 0.008, inline=True)
    assert "sleepy" in found.limiting
    assert "own thread" in found.advice
    assert found.expected_gain == pytest.approx(2.0, rel=0.2)


@pytest.mark.soak
@measured
def test_samples_that_take_unequally_long_call_for_room():
    def uneven(x):
        time.sleep(0.08 if x % 40 == 0 else 0.0005)
        return x

    found = diagnosis(NUMBERS.map(uneven, workers=4).batch(4), 0.006)
    assert "uneven" in found.limiting
    assert "prefetch(" in found.advice
    assert "calls of uneven" in found.advice


@pytest.mark.soak
@measured
def test_coroutines_have_a_capacity_too():
    async def fetch(x):
        await asyncio.sleep(0.01)
        return x

    found = diagnosis(NUMBERS.map(fetch, workers=8).batch(4), 0.001)
    assert "fetch" in found.limiting
    assert found.stages[0].capacity == pytest.approx(8 / 0.01, rel=0.3)


@pytest.mark.soak
@measured
def test_a_reservoir_that_hides_a_slow_function_is_told():
    data = NUMBERS.map(sleepy, workers=1).reservoir(200, min_fill=20).batch(4)
    found = diagnosis(data, 0.008)
    assert found.limiting == "training loop"
    assert found.reuse == pytest.approx(2.0, rel=0.3)
    assert "reservoir hides sleepy" in found.advice
    assert "With 2 workers instead of 1" in found.advice


@measured
def test_a_reservoir_whose_upstream_keeps_up_hides_nothing():
    found = diagnosis(NUMBERS.map(sleepy, workers=4).reservoir(200, min_fill=20).batch(4), 0.02)
    assert "reservoir" not in found.advice
    assert found.reuse == pytest.approx(1.0, abs=0.02)


def sleepier(x):
    time.sleep(0.012)
    return x


@for_each("on", ["thread", "process", "async"])
@measured
def test_of_ops_that_ride_together_the_slow_one_is_named(on):
    async def slow(x):
        await asyncio.sleep(0.012)
        return x

    async def quick(x):
        await asyncio.sleep(0.004)
        return x

    if on == "async":
        data = NUMBERS.map(slow, workers=2, name="sleepier").map(quick, name="sleepy")
    else:
        data = NUMBERS.map(sleepier, on=on, workers=2).map(sleepy)
    found = diagnosis(data.batch(2), 0)
    assert found.limiting_op == "sleepier"
    shares = {op.op: op.share for stage in found.stages for op in stage.ops}
    assert shares["sleepier"] > shares["sleepy"] > 0
    slow = next(op for op in found.stages[0].ops if op.op == "sleepier")
    assert 0.01 < slow.p50_s <= slow.p95_s <= slow.p99_s <= slow.longest_s


@measured
def test_a_bound_on_memory_that_limits_is_named():
    def heavy(x):
        time.sleep(0.01)
        return np.zeros(1_000_000, np.uint8)

    found = diagnosis(NUMBERS.map(heavy, workers=8).batch(2), 0, memory="5MB")
    assert "loader(memory='5MB') limits" in found.advice
    assert "heavy" in found.limiting
    assert found.expected_gain > 1.2
    assert "memory" not in diagnosis(NUMBERS.map(heavy, workers=2).batch(2), 0, memory="500MB").advice


@measured
def test_what_computes_gets_no_more_workers_than_cores():
    found = diagnosis(NUMBERS.map(pythonic, workers=usable_cpus(), on="process").batch(8), 0)
    assert "pythonic" in found.limiting
    assert "→" not in found.advice
    assert found.expected_gain < 1.1


@measured
def test_threads_that_a_library_starts_in_a_process_count():
    def threaded(x):
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(np.sort, np.ones((2, 200_000))))  # which lets go of the interpreter lock
        return x

    data = NUMBERS.map(threaded, on="process", workers=1).batch(2)
    with data.loader() as loader:
        read(loader, 0)
        stats = loader.stats()
    # Nobody computes in the worker's own thread, which waits for the others; on busy cores they get little of one.
    assert stats["stage.threaded+batch.cpu_s"] > 0.05 * stats["stage.threaded+batch.working_s"]


@measured
def test_a_wait_that_is_under_way_counts():
    go_on = threading.Event()

    def stalls(x):
        if x == 8:
            go_on.wait(10)
        return x

    with NUMBERS.map(stalls, workers=1).batch(4).loader() as loader, ThreadPoolExecutor() as reader:
        reading = reader.submit(lambda: [batch for batch, _ in zip(loader, range(4), strict=False)])
        time.sleep(0.5)
        found = loader.diagnose()
        go_on.set()
        assert len(reading.result()) == 4
    assert "stalls" in found.limiting
    assert found.wait_share > 0.9


@measured
def test_the_last_seconds_may_tell_something_else():
    def slow_at_first(x):
        time.sleep(0.01 if x < 150 else 0.0)
        return x

    with NUMBERS.map(slow_at_first, workers=2).batch(4).loader() as loader:
        read(loader, 0.004, run_s=2.0)
        assert "slow_at_first" in loader.diagnose().limiting
        assert loader.diagnose(last_s=0.5).limiting == "training loop"


def test_it_can_be_asked_before_during_and_after():
    loader = NUMBERS.map(sleepy, workers=2).batch(2).loader()
    assert "Nothing has been read yet" in loader.diagnose().advice
    batches = iter(loader)
    while loader.stats()["wait_share"] < 0.5:  # what was ready when the reader came is taken without a wait
        next(batches)
    during = loader.diagnose()
    assert "sleepy" in during.limiting
    loader.close()
    time.sleep(0.05)
    after = loader.diagnose()
    assert after.limiting == during.limiting
    assert after == loader.diagnose()
    assert "sleepy" in str(after)


def test_seconds_must_be_some():
    with ps.from_sequence(range(3)).loader() as loader, pytest.raises(ps.PlanError, match="last_s"):
        loader.diagnose(last_s=0)
