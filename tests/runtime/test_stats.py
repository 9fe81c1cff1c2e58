"""stats(): all names of the contract, as numbers that add up."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

import pytest
from tests.cases import for_each
from tests.runtime.helpers import LAYOUTS, Gate, await_event, begin_with, placed
from tests.runtime.process_helpers import await_true

import penstock as ps

LOADER_KEYS = {"samples", "batches", "epoch", "running_s", "wait_s", "wait_share", "errors", "stuck"}
LOADER_KEYS |= {"startup_s", "open_s", "cpu_s", "lock_tries", "lock_held", "lock_wait_s", "deaths"}
TIMES = ("working_s", "waiting_input_s", "waiting_room_s")
STAGE_KEYS = {*TIMES, "cpu_s", "loop_s", "reading_s", "occupancy", "samples", "workers"}
STAGE_KEYS |= {
    "fill",
    "waiting_memory_s",
    "timed_s",
    "timed_bytes",
    "timed_busy_s",
    "timed_delay_s",
    "timed_library_s",
}


def double(sample):
    return 2 * sample


def stage(stats, label):
    return {
        key.removeprefix(f"stage.{label}."): value
        for key, value in stats.items()
        if key.startswith(f"stage.{label}.")
    }


@for_each("layout", LAYOUTS)
def test_all_keys_exist_before_during_and_after_a_run(layout):
    data = ps.from_sequence(range(50)).map(double, **placed(layout))
    loader = data.loader(epochs=1)
    for moment in ("before", "during", "after", "closed"):
        if moment == "during":
            batches = iter(loader)
            next(batches)
        elif moment == "after":
            list(batches)
        elif moment == "closed":
            loader.close()
        stats = loader.stats()
        assert set(stats) >= LOADER_KEYS, moment
        ops = {key for key in stage(stats, "double") if key.startswith("op.")}  # once a ticket has been timed
        assert set(stage(stats, "double")) - ops == STAGE_KEYS, moment
        assert all(type(value) in (int, float) and math.isfinite(value) for value in stats.values()), moment


def _twice(sample):
    return [sample, sample]


def _twice_in_turn(sample):
    yield from (sample, sample)


@for_each("fn", [_twice, _twice_in_turn])
def test_a_function_that_makes_several_samples_is_timed_with_all_of_its_outputs(fn):
    with ps.from_sequence(range(50)).flat_map(fn, workers=1, name="twice").loader() as loader:
        list(loader)
        found = stage(loader.stats(), "twice")
    assert found["op.twice.calls"] >= 1
    assert 0 < found["op.twice.timed_s"] <= found["timed_s"]


def test_what_coroutines_compute_is_counted_for_their_one_thread():
    async def compute(sample):
        return sum(range(20_000)) + sample

    with ps.from_sequence(range(200)).map(compute, workers=4).loader() as loader:
        list(loader)
        found = stage(loader.stats(), "compute")
    assert 0 < found["cpu_s"] <= found["loop_s"] <= found["working_s"]


@for_each("layout", LAYOUTS)
def test_samples_and_batches_are_counted(layout):
    data = ps.from_sequence(range(50)).map(double, **placed(layout)).batch(8, collate=list)
    with data.loader(epochs=2) as loader:
        list(loader)
        stats = loader.stats()
        assert (stats["samples"], stats["batches"], stats["epoch"]) == (50, 7, 0)
        list(loader)
        stats = loader.stats()
        assert (stats["samples"], stats["batches"], stats["epoch"]) == (100, 14, 1)


def test_samples_are_counted_as_they_are_handed_over_not_as_they_are_made():
    with ps.from_sequence(range(1000)).map(double, workers=2).loader(epochs=1) as loader:
        for number, _ in enumerate(loader, 1):
            assert loader.batch_index == number
            assert loader.stats()["batches"] >= number


def test_a_stage_counts_the_samples_that_leave_it():
    data = ps.from_sequence(range(60)).map(double, workers=2).filter(lambda x: x % 4 == 0, workers=1, name="even")
    with data.loader(epochs=1) as loader:
        assert len(list(loader)) == 30
        stats = loader.stats()
        assert stats["stage.double.samples"] == 60
        assert stats["stage.even.samples"] == 30
        assert stats["stage.double.workers"] == 2


@for_each("workers", [1, 3])
def test_working_and_waiting_add_up_to_workers_times_time(workers):
    gate = Gate(0)
    began = perf_counter()
    loader = ps.from_sequence(range(200)).map(gate, workers=workers).loader(epochs=1)
    made = perf_counter()
    loader.start()
    gate.await_reached(0)
    threading.Event().wait(0.2)
    gate.release()
    list(loader)
    first = perf_counter()
    one = stage(loader.stats(), "Gate")
    last = perf_counter()
    loader.close()
    total = one["working_s"] + one["waiting_input_s"] + one["waiting_room_s"]
    assert workers * (first - made) * 0.95 <= total <= workers * (last - began) * 1.001
    assert one["working_s"] >= 0.19


def test_a_stage_in_a_call_is_working():
    gate = Gate(0)
    with ps.from_sequence([0]).map(gate, workers=1).loader(epochs=1) as loader:
        loader.start()
        gate.await_reached(0)
        before = stage(loader.stats(), "Gate")
        threading.Event().wait(0.05)
        after = stage(loader.stats(), "Gate")
        gate.release()
        assert after["working_s"] - before["working_s"] >= 0.045
        assert after["waiting_input_s"] == before["waiting_input_s"]


def await_growth(loader, label, key):
    """Before long the workers of a stage do nothing but this: no other time of theirs grows."""

    def only_this_grows():
        before = stage(loader.stats(), label)
        threading.Event().wait(0.02)
        after = stage(loader.stats(), label)
        return all((after[name] > before[name]) == (name == key) for name in TIMES)

    await_true(only_this_grows, f"nothing but {key}")


def test_a_full_stage_waits_for_room():
    full = threading.Event()

    def last(sample):
        if sample == 1:
            full.set()
        return sample

    with ps.from_sequence(range(10**6)).map(last, workers=1).prefetch(2).loader().start() as loader:
        await_event(full, "the second sample")
        await_growth(loader, "last", "waiting_room_s")


def test_a_starved_stage_waits_for_input():
    gate = Gate(1)
    data = ps.from_sequence(range(3)).map(gate, workers=1).map(double, workers=1)
    with data.loader(epochs=1) as loader:
        batches = iter(loader)
        assert next(batches) == 0
        gate.await_reached(1)
        await_growth(loader, "double", "waiting_input_s")
        gate.release()
        assert list(batches) == [2, 4]


def test_the_wait_of_the_training_loop_is_counted():
    def slow(sample):
        threading.Event().wait(0.02)
        return sample

    with ps.from_sequence(range(5)).map(slow, workers=1).loader(epochs=1) as loader:
        list(loader)
        stats = loader.stats()
    assert stats["startup_s"] >= 0.02
    assert stats["wait_s"] >= 0.05
    assert 0.5 < stats["wait_share"] <= 1


@pytest.mark.parametrize("options", [{"workers": 1}, {"inline": True}, {"isolate": True}], ids=str)
def test_start_up_counts_by_itself_and_wait_share_is_that_of_the_diagnosis(options):
    """The first call takes long, as the start of processes does, and all others no time."""

    def slow_at_first(sample):
        threading.Event().wait(0 if sample else 0.2)
        return sample

    with ps.from_sequence(range(30)).map(slow_at_first).prefetch(30).loader(**options) as loader:
        assert loader.stats()["startup_s"] == 0
        for _ in loader:
            threading.Event().wait(0.002)
        before = loader.stats()
        list(loader)  # the same call again, in the middle of the run
    stats = loader.stats()
    assert stats["startup_s"] == before["startup_s"] >= 0.2
    assert before["wait_s"] <= before["running_s"]
    assert before["running_s"] >= 29 * 0.002
    assert stats["wait_share"] == stats["wait_s"] / stats["running_s"]
    assert loader.diagnose().wait_share == stats["wait_share"]
    assert loader.diagnose().seconds == stats["running_s"]


def test_start_up_is_told_while_it_lasts():
    gate = Gate(0)
    with (
        ps.from_sequence(range(3)).map(gate, workers=1).loader(epochs=1) as loader,
        ThreadPoolExecutor() as reader,
    ):
        read = reader.submit(list, loader)
        gate.await_reached(0)
        first = loader.stats()["startup_s"]
        stats = loader.stats()
        gate.release()
        assert read.result() == [0, 1, 2]
    assert stats["startup_s"] > first
    assert stats["wait_s"] == stats["running_s"] == stats["wait_share"] == 0


def test_a_training_loop_that_is_the_bottleneck_does_not_wait():
    with ps.from_sequence(range(10)).map(double, workers=2).prefetch(10).loader(epochs=1).start() as loader:
        await_true(lambda: loader.stats()["stage.double.samples"] == 10, "all samples")
        for _ in loader:
            threading.Event().wait(0.02)
        stats = loader.stats()
    assert stats["wait_share"] < 0.3


def test_inline_work_is_wait_of_the_training_loop():
    """Whoever makes the samples itself waits for data all the while."""

    def slow(sample):
        threading.Event().wait(0.02)
        return sample

    with ps.from_sequence(range(5)).map(slow).loader(inline=True) as loader:
        list(loader)
        stats = loader.stats()
    assert stats["wait_s"] >= 0.08
    assert stats["startup_s"] >= 0.02
    assert stats["wait_share"] > 0.5


def test_occupancy_is_high_when_nobody_reads_and_low_when_the_reader_waits():
    full = threading.Event()

    def tell(sample):
        if sample == 3:
            full.set()
        return sample

    with ps.from_sequence(range(100)).map(tell, workers=1).prefetch(4).loader(epochs=1) as loader:
        loader.start()
        await_event(full, "a full buffer")
        await_true(lambda: loader.stats()["stage.tell.occupancy"] > 0.7, "a high occupancy")
    gate = Gate(0)
    with ps.from_sequence([0]).map(gate, workers=1).loader(epochs=1) as loader:
        loader.start()
        gate.await_reached(0)
        await_true(lambda: loader.stats()["stage.Gate.occupancy"] < 0.1, "a low occupancy")
        gate.release()


def test_stats_can_be_read_while_other_threads_work():
    with ps.from_sequence(range(20_000)).map(double, workers=4).loader(epochs=1) as loader:
        last = 0
        for _ in loader:
            if loader.batch_index % 500 == 0:
                samples = loader.stats()["samples"]
                assert samples >= last
                last = samples


def test_stats_of_two_stages_of_one_function_are_kept_apart():
    data = ps.from_sequence(range(10)).map(double, workers=1).map(double, workers=2)
    with data.loader(epochs=1) as loader:
        list(loader)
        workers = sorted(value for key, value in loader.stats().items() if key.endswith(".workers"))
    assert workers == [1, 2]


def test_what_was_read_and_not_handed_over_is_not_counted_when_an_epoch_is_left(monkeypatch):
    begin_with(monkeypatch, 20)
    with ps.from_sequence(range(100)).map(double, workers=1).loader() as loader:
        kept = iter(loader)
        assert [next(kept) for _ in range(3)] == [0, 2, 4]
        with pytest.warns(RuntimeWarning, match="new iteration"):
            again = iter(loader)
        assert loader.stats()["samples"] == 3
        assert [next(again) for _ in range(2)] == [0, 2]
        assert loader.stats()["samples"] == 5
        del kept
        assert loader.stats()["samples"] == 5
    assert loader.stats()["samples"] == loader.stats()["batches"] == 5


def test_a_diagnosis_counts_what_came_after_the_first_batch():
    # Ready before it is read, so that the first chunk has several batches.
    with ps.from_sequence(range(40)).batch(4).loader() as loader:
        assert len(list(loader)) == 10
        assert loader.diagnose().samples == 36
        assert loader.stats()["samples"] == 40
