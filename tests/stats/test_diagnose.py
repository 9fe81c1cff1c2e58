"""The verdict, from counters made up for each case."""

import json
from typing import NamedTuple

import pytest
from tests.cases import for_each

import penstock as ps
from penstock.stats.diagnose import LOOP, diagnose
from penstock.stats.facts import Limits
from penstock.stats.facts import StageFacts as Facts
from penstock.stats.history import Snapshot

#: seconds of every made-up run
RUN_S = 10.0


def counters(samples=1000, wait=0.5, cores=0.5, lock_ms=0.0, batch=10, **more):
    return {
        "samples": samples,
        "batches": samples // batch,
        "running_s": RUN_S,
        "wait_s": wait * RUN_S,
        "open_s": RUN_S,
        "cpu_s": cores * RUN_S,
        "lock_tries": 20,
        "lock_wait_s": 20 * lock_ms / 1000,
        **more,
    }


def stage(label, working, workers=2, room=0.0, made=100, cpu=0.0, reading=0.0):
    """The counters of a stage whose workers were at work this share of the time."""
    slots_s = workers * RUN_S
    start = f"stage.{label}."
    return {
        f"{start}working_s": working * slots_s,
        f"{start}waiting_room_s": room * slots_s,
        f"{start}waiting_input_s": (1 - working - room) * slots_s,
        f"{start}samples": made,
        f"{start}workers": workers,
        f"{start}cpu_s": cpu * working * slots_s,
        f"{start}reading_s": reading * RUN_S,
    }


def verdict(parts, stats, cores=8, **allowed):
    return diagnose(parts, Snapshot(0.0, {}), Snapshot(RUN_S, stats), Limits(cores, **allowed))


def test_a_loop_that_hardly_waits_limits_itself():
    found = verdict([Facts("load")], counters(wait=0.02) | stage("load", 0.4, room=0.6))
    assert found.limiting == LOOP
    assert found.expected_gain == 1.0
    assert "nothing" in found.advice
    assert found.wait_share == pytest.approx(0.02)


def test_threads_that_hold_the_lock_slow_down_a_loop_that_does_not_wait():
    stats = counters(wait=0.01, cores=1.0, lock_ms=5.0, batch=4) | stage("tokenise", 0.25, 4, 0.75, cpu=0.95)
    found = verdict([Facts("tokenise")], stats, cores=2)
    assert found.limiting == "tokenise"
    assert "5.0 ms" in found.advice
    assert found.expected_gain == pytest.approx(2.0, rel=0.05)


def test_a_lock_that_costs_a_fed_loop_next_to_nothing_is_not_worth_a_word():
    # 1.3 ms for each of ten batches a second.
    stats = counters(wait=0.01, cores=1.4, lock_ms=1.3) | stage("decode", 0.7, room=0.3, cpu=0.95)
    assert verdict([Facts("decode")], stats, cores=2).limiting == LOOP


def test_a_lock_is_not_blamed_where_cores_are_what_is_lacking():
    stats = counters(wait=0.4, cores=1.95, lock_ms=1.3) | stage("decode", 0.99, cpu=0.95)
    assert "All 2 cores are in use" in verdict([Facts("decode")], stats, cores=2).advice


@for_each("wait", [0.01, 0.04])
def test_threads_that_hold_the_lock_are_named_where_there_are_no_cores_for_processes(wait):
    # Another program has one of two cores, so processes would gain nothing; the loop is not to blame for that.
    busy = {"machine_s": RUN_S, "machine_busy_s": 2.0 * RUN_S}
    stats = counters(wait=wait, cores=1.0, lock_ms=5.0, batch=4, **busy)
    found = verdict([Facts("tokenise")], stats | stage("tokenise", 0.99, cpu=0.5), cores=2)
    assert (found.limiting, found.expected_gain) == ("tokenise", 1.0)
    assert "hold the interpreter lock" in found.advice
    assert "Other programs keep 1.0 of the 2 cores busy" in found.advice
    assert "on=" not in found.advice


class Starved(NamedTuple):
    """What was counted of a run, in seconds."""

    batches: int
    running_s: float
    wait_s: float
    cpu_s: float
    lock_tries: int
    lock_wait_s: float
    #: at work, waiting for room, on a CPU
    stage: tuple[float, float, float]
    #: all of the tickets that were timed; on a CPU or waiting for one; the latter alone
    timed: tuple[float, float, float]


#: runs of pure Python in two threads beside two busy programs, as they were counted: the loop seems to be fed, or
#: not, but it waits for the lock, which threads hold while they wait for a CPU
STARVED = [
    Starved(60, 1.519, 0.060, 0.402, 3, 0.0402, (2.742, 0.296, 0.313), (0.428, 0.328, 0.255)),
    Starved(35, 1.623, 0.303, 0.250, 2, 0.0263, (2.833, 0.415, 0.222), (1.007, 0.855, 0.786)),
    Starved(103, 1.608, 0.230, 0.525, 4, 0.0470, (2.828, 0.388, 0.361), (0.272, 0.224, 0.179)),
]


@for_each("run", STARVED)
def test_threads_that_hold_the_lock_while_they_wait_for_a_cpu_are_named(run):
    working_s, room_s, cpu_s = run.stage
    timed_s, busy_s, delay_s = run.timed
    stats = {
        "samples": 8 * run.batches,
        "batches": run.batches,
        "running_s": run.running_s,
        "wait_s": run.wait_s,
        "open_s": run.running_s,
        "cpu_s": run.cpu_s,
        "lock_tries": run.lock_tries,
        "lock_wait_s": run.lock_wait_s,
        "machine_s": 1.7,
        "machine_busy_s": 3.4,
        "stage.python.working_s": working_s,
        "stage.python.waiting_room_s": room_s,
        "stage.python.cpu_s": cpu_s,
        "stage.python.samples": run.batches,
        "stage.python.workers": 2,
        "stage.python.timed_s": timed_s,
        "stage.python.timed_busy_s": busy_s,
        "stage.python.timed_delay_s": delay_s,
    }
    found = verdict([Facts("python")], stats, cores=2)
    assert found.limiting == "python"
    assert "hold the interpreter lock" in found.advice


#: the same where the run gets all CPU time that it wants: tries, those that found the lock held, and what they took
FED = [(17, 4, 0.0068), (18, 8, 0.0063), (24, 3, 0.0059), (25, 5, 0.0085)]


@for_each("tries, held, wait_s", FED)
def test_threads_that_hold_the_lock_in_few_of_the_tries_are_named(tries, held, wait_s):
    lock = {"lock_tries": tries, "lock_held": held, "lock_wait_s": wait_s}
    stats = counters(samples=4000, wait=0.01, cores=0.9, batch=1) | stage("python", 0.5, room=0.5, cpu=0.8)
    found = verdict([Facts("python")], stats | lock, cores=2)
    assert found.limiting == "python"
    assert found.expected_gain == pytest.approx(2.0, rel=0.2)


@for_each("tries, held, wait_s", [(17, 1, 0.0059), (17, 2, 0.0072), (60, 3, 0.0090)])
def test_tries_that_something_else_held_up_are_no_held_lock(tries, held, wait_s):
    lock = {"lock_tries": tries, "lock_held": held, "lock_wait_s": wait_s}
    stats = counters(samples=4000, wait=0.01, cores=0.9, batch=1) | stage("sort", 0.5, room=0.5, cpu=0.8)
    assert verdict([Facts("sort")], stats | lock, cores=2).limiting == LOOP


def test_a_stage_that_sleeps_does_not_hold_the_lock_however_long_it_waits_for_a_cpu():
    stats = counters(wait=0.5, cores=0.9, lock_ms=5.0) | stage("download", 0.99, cpu=0.02) | busy_neighbours(2.0)
    delays = {
        "stage.download.timed_s": 1.0,
        "stage.download.timed_busy_s": 0.75,
        "stage.download.timed_delay_s": 0.73,
    }
    assert "lock" not in verdict([Facts("download")], stats | delays, cores=2).advice


def test_a_lock_that_the_loop_itself_holds_is_not_blamed_on_a_stage():
    stats = counters(wait=0.01, cores=1.0, lock_ms=5.0) | stage("load", 0.05, room=0.95, cpu=0.9)
    assert verdict([Facts("load")], stats).limiting == LOOP


def test_the_stage_without_time_to_spare_limits():
    parts = [Facts("download", site=1), Facts("decode", site=2)]
    found = verdict(parts, counters() | stage("download", 0.3, room=0.7, made=1000) | stage("decode", 0.97))
    assert found.limiting == "decode"
    assert "its 2 workers are at work 97 % of the time" in found.advice
    assert "waits 50 % of its own" in found.advice


@for_each("other, gain, change", [(0.0, 2.0, "2 → 4"), (0.8, 1.2, "2 → 3")])
def test_the_gain_reaches_up_to_the_next_limit(other, gain, change):
    # The loop could take twice as much; the other stage 1 / 0.8 as much, or any.
    parts = [Facts("download", site=1), Facts("decode", site=2)]
    found = verdict(parts, counters() | stage("download", other) | stage("decode", 0.99))
    assert found.expected_gain == pytest.approx(gain, rel=0.05)
    assert f"{change} workers" in found.advice


def test_the_gain_reaches_up_to_the_cores_there_are():
    found = verdict([Facts("decode")], counters(cores=1.4) | stage("decode", 0.99), cores=2)
    assert found.expected_gain == pytest.approx(2 / 1.4)


def test_where_all_cores_are_in_use_workers_are_no_remedy():
    found = verdict([Facts("decode", kind="process")], counters(cores=1.95) | stage("decode", 0.99), cores=2)
    assert (found.limiting, found.expected_gain) == ("decode", 1.0)
    assert "All 2 cores are in use" in found.advice


def test_of_two_stages_equally_slow_both_are_named():
    parts = [Facts("download", site=1), Facts("decode", site=2)]
    found = verdict(parts, counters() | stage("download", 0.97) | stage("decode", 0.99))
    assert found.limiting == "decode"
    assert "download is nearly as slow" in found.advice


def test_threads_that_wait_for_the_interpreter_lock_should_be_processes():
    stats = counters(wait=0.8, cores=1.0, lock_ms=5.0) | stage("tokenise", 0.99, workers=4, cpu=0.25)
    found = verdict([Facts("tokenise")], stats, cores=4)
    assert found.limiting == "tokenise"
    assert 'on="process", workers=4' in found.advice
    assert found.expected_gain == pytest.approx(4.0, rel=0.05)


def test_processes_do_not_wait_for_that_lock():
    stats = counters(wait=0.8, lock_ms=5.0) | stage("tokenise", 0.99, workers=4, cpu=0.25)
    assert 'on="process"' not in verdict([Facts("tokenise", kind="process")], stats).advice


def test_a_stream_is_read_by_one_worker_at_a_time():
    stats = counters() | stage("lambda", 0.26, workers=4, reading=0.98)
    found = verdict([Facts("lambda", stream="from_iterable(rows)")], stats)
    assert found.limiting == "lambda"
    assert "from_iterable(rows) limits" in found.advice
    assert found.expected_gain == 1.0


def test_workers_gain_no_more_than_the_stream_that_they_read_gives():
    part = Facts("decode", stream="from_iterable(rows)", ordered=False)
    found = verdict([part], counters() | stage("decode", 0.99, workers=2, reading=0.5))
    assert "2 → 4 workers" in found.advice
    assert found.expected_gain == pytest.approx(2.0, rel=0.05)


@for_each("working", [0.99, 0.9])
def test_of_a_stream_and_its_workers_about_as_slow_the_stream_is_named(working):
    found = verdict(
        [Facts("decode", stream="from_iterable(rows)")], counters() | stage("decode", working, reading=0.96)
    )
    assert "from_iterable(rows) limits" in found.advice


def test_a_stream_whose_readers_wait_for_a_cpu_in_turn_is_named_though_it_is_read_only_half_of_the_time():
    # The next reader waits for a CPU before it reads on; nobody ever waits for room.
    stats = counters(wait=0.8) | stage("clean", 0.3, workers=4, reading=0.5)
    found = verdict([Facts("clean", stream="from_iterable(rows)")], stats)
    assert found.advice.startswith("from_iterable(rows) limits: a stream is read by one worker at a time")
    # Where they wait for room, reading on is not what is missing.
    stats = counters(wait=0.8) | stage("clean", 0.3, workers=4, reading=0.5, room=0.3)
    assert "not for lack of workers" in verdict([Facts("clean", stream="from_iterable(rows)")], stats).advice


def test_coroutines_that_compute_share_one_thread():
    stats = counters(wait=0.9, cores=1.0) | stage("fetch", 1.0, workers=16) | {"stage.fetch.loop_s": 0.97 * RUN_S}
    found = verdict([Facts("fetch", kind="async")], stats, cores=4)
    assert found.limiting == "fetch"
    assert "its coroutines share one thread, which computes 97 % of the time" in found.advice
    assert 'map() of its own, with on="process", workers=4: up to 4 times as much' in found.advice
    assert "16 →" not in found.advice
    assert 'on="process"' not in verdict([Facts("fetch", kind="async")], stats, cores=4, gil=False).advice


def test_coroutines_that_share_a_thread_limit_together():
    stats = counters() | stage("fetch", 1.0, workers=8) | stage("parse", 1.0, workers=8)
    loops = {"stage.fetch.loop_s": 0.6 * RUN_S, "stage.parse.loop_s": 0.38 * RUN_S}
    parts = [Facts("fetch", kind="async", site_workers=16), Facts("parse", kind="async", site_workers=16)]
    assert "share one thread, which computes 98 %" in verdict(parts, stats | loops).advice


def test_coroutines_that_wait_get_more_of_them():
    stats = counters() | stage("fetch", 1.0, workers=4) | {"stage.fetch.loop_s": 0.05 * RUN_S}
    assert "4 → 8 workers" in verdict([Facts("fetch", kind="async")], stats).advice


def test_coroutines_that_hold_the_lock_are_named_though_the_loop_seems_to_be_fed():
    loop = {"stage.acpu.loop_s": 0.9 * RUN_S}
    stats = counters(wait=0.03, cores=1.0, lock_ms=3.0, batch=4) | stage("acpu", 0.8, 8, 0.2, cpu=0.14) | loop
    found = verdict([Facts("acpu", kind="async")], stats, cores=2)
    assert found.limiting == "acpu"
    assert "its coroutines hold the interpreter lock" in found.advice
    assert "Move what computes into a map() of its own" in found.advice


def test_whoever_is_always_at_work_lacks_workers_however_little_has_been_delivered():
    # 14 samples made, 10 of them delivered: the others are ready.
    found = verdict([Facts("fetch")], counters(samples=10, batch=1) | stage("fetch", 0.7, made=14))
    assert "not for lack of workers" in found.advice
    found = verdict([Facts("fetch")], counters(samples=10, batch=1) | stage("fetch", 1.0, made=14))
    assert "2 → 4 workers" in found.advice


def test_a_data_server_that_limits_is_asked_why_on_its_own_machine():
    stats = counters() | stage("augment", 0.26, workers=4, reading=0.98)
    found = verdict([Facts("augment", stream="connect(tcp://10.0.0.7:5557)")], stats)
    assert found.limiting == "augment"
    assert found.advice.startswith("connect(tcp://10.0.0.7:5557) limits: batches come at 102/s")
    assert "penstock serve --report-s 10" in found.advice
    assert "PENSTOCK_DASHBOARD=1" in found.advice
    assert "map()" not in found.advice


def test_a_data_server_that_a_reservoir_hides_is_asked_too():
    parts = [
        Facts("read", stream="connect(tcp://a:1)", reservoir="r", feeder="read", site=1),
        Facts("batch", site=2),
    ]
    stats = counters(wait=0.01, **{"r.draws": 1000, "r.fresh_share": 0.5})
    found = verdict(parts, stats | stage("read", 0.9, reading=0.9, made=500) | stage("batch", 0.1))
    assert "penstock serve --report-s 10" in found.advice


def test_work_in_the_loops_own_thread_should_have_a_worker():
    # Half of the time each: a worker of its own makes it twice as fast.
    found = verdict([Facts("decode", kind="inline")], counters() | stage("decode", 0.5, workers=1))
    assert found.limiting == "decode"
    assert "workers=1" in found.advice
    assert found.expected_gain == pytest.approx(2.0)


def test_uneven_work_needs_room_and_not_workers():
    part = Facts("decode", last_op="batch(10)", ready=8)
    found = verdict([part], counters() | stage("decode", 0.3, workers=4, room=0.7))
    assert found.limiting == "decode"
    assert "prefetch(16) after batch(10)" in found.advice
    assert "ordered=False" in found.advice
    assert found.expected_gain == pytest.approx(2.0)


def op(label, name, share, p50=0.001, p99=0.001, longest=0.001, tail=0.0):
    """What was found of an op whose tickets took 10 s in all."""
    start = f"stage.{label}.op.{name}."
    return {
        f"stage.{label}.timed_s": 10.0,
        f"{start}timed_s": 10.0 * share,
        f"{start}calls": 100,
        f"{start}p50_s": p50,
        f"{start}p95_s": p99,
        f"{start}p99_s": p99,
        f"{start}longest_s": longest,
        f"{start}tail_share": tail,
    }


def test_calls_that_take_much_longer_than_others_are_named_and_bridged():
    part = Facts("decode", last_op="batch(10)", ready=8, ops=("decode",))
    stats = counters() | stage("decode", 0.3, workers=4, room=0.7)
    found = verdict([part], stats | op("decode", "decode", 0.9, p50=0.0005, p99=0.4, longest=0.9, tail=0.8))
    # The loop would take 20 batches in a second, so 18 in 0.9 s.
    assert "prefetch(19) after batch(10)" in found.advice
    assert "Half of the calls of decode take up to 0.5 ms, and 1 in 100 takes 400 ms or more" in found.advice


def test_the_tail_of_an_op_that_takes_next_to_no_time_is_not_blamed():
    part = Facts("decode+batch", last_op="batch(10)", ready=8, ops=("decode", "batch"))
    stats = counters() | stage("decode+batch", 0.3, workers=4, room=0.7)
    stats |= op("decode+batch", "decode", 0.9, p50=0.0005, p99=0.4, longest=0.9, tail=0.8)
    stats |= op("decode+batch", "batch", 0.05, p50=0.000005, p99=0.004, longest=0.004, tail=0.95)
    assert "Half of the calls of decode take up to 0.5 ms" in verdict([part], stats).advice


def test_ops_that_ride_together_are_told_apart():
    part = Facts("decode+augment", ops=("from_files", "decode", "augment"))
    stats = counters() | stage("decode+augment", 0.99) | op("decode+augment", "decode", 0.71, p99=0.02)
    found = verdict([part], stats | op("decode+augment", "augment", 0.22))
    assert found.limiting_op == "decode"
    assert "Of the stage's time, decode takes 71 %, augment takes 22 %." in found.advice
    assert [one.op for one in found.stages[0].ops] == ["decode", "augment"]
    assert [one.share for one in found.stages[0].ops] == pytest.approx([0.71, 0.22])
    (line,) = [line for line in str(found).splitlines() if line.strip().startswith("decode ")]
    assert "71 %   p50 1 ms, p95 20 ms, p99 20 ms" in line


def test_ops_have_no_share_in_time_between_timed_calls_in_which_no_cpu_was_free():
    # Beside two busy programs, pure Python in processes: of each second no CPU was free in 0.73.
    delays = {"stage.python+batch.timed_delay_s": 7.3}
    stats = counters() | stage("python+batch", 0.99) | op("python+batch", "python", 0.56) | delays
    stats |= op("python+batch", "batch", 0.01)
    found = verdict([Facts("python+batch", ops=("python", "batch"))], stats)
    assert [one.share for one in found.stages[0].ops] == pytest.approx([56 / 57, 1 / 57])


def test_the_one_op_that_takes_all_time_is_named_unless_the_stage_is_called_after_it():
    timed = op("decode+batch", "decode", 0.98)
    stats = counters() | stage("decode+batch", 0.99) | timed
    part = Facts("decode+batch", ops=("from_files", "decode", "batch"))
    assert "Of the stage's time, decode takes 98 %." in verdict([part], stats).advice
    stats = counters() | stage("decode", 0.99) | op("decode", "decode", 0.98)
    assert "Of the stage's time" not in verdict([Facts("decode", ops=("from_files", "decode"))], stats).advice


def test_an_op_without_a_share_worth_a_word_is_not_said_to_limit():
    stats = counters() | stage("fetch+batch", 0.99) | op("fetch+batch", "batch", 0.01)
    assert verdict([Facts("fetch+batch", ops=("fetch", "batch"))], stats).limiting_op == ""


def test_a_bound_on_memory_is_named_with_one_that_would_do():
    stats = counters() | stage("decode", 0.3, workers=4, room=0.7)
    stats["stage.decode.waiting_memory_s"] = 0.6 * 4 * RUN_S
    found = verdict([Facts("decode")], stats, memory=100_000_000)
    assert found.limiting == "decode"
    assert "loader(memory='100MB') limits" in found.advice
    assert "memory='240MB'" in found.advice
    assert found.expected_gain == pytest.approx(2.0)


def test_memory_that_waits_for_a_slow_stage_behind_it_is_not_blamed():
    parts = [Facts("decode", site=1), Facts("slow", site=2)]
    stats = counters() | stage("decode", 0.1, room=0.9) | stage("slow", 0.99)
    stats["stage.decode.waiting_memory_s"] = 0.9 * 2 * RUN_S
    assert verdict(parts, stats, memory=1000).limiting == "slow"


def test_a_cpu_quota_counts_as_cores():
    stats = counters(cores=1.95) | stage("decode", 0.99, cpu=0.98)
    found = verdict([Facts("decode", kind="process")], stats, cores=64, quota=2.0)
    assert found.expected_gain == 1.0
    assert "the 2 cores that the CPU quota of the cgroup allows are in use" in found.advice
    assert found.cores == 2.0


def test_a_quota_that_makes_the_run_wait_is_named_however_little_it_gets():
    # On a busy machine less than the quota is used, and still the quota stops it again and again.
    stats = counters(cores=0.3) | stage("decode", 0.99, cpu=0.2) | {"quota_periods": 100, "quota_throttled": 60}
    found = verdict([Facts("decode", kind="process")], stats, cores=64, quota=0.5)
    assert found.expected_gain == 1.0
    assert "CPU quota" in found.advice


def test_a_quota_bounds_processes_that_are_advised():
    stats = counters(wait=0.8, cores=1.0, lock_ms=5.0) | stage("tokenise", 0.99, workers=8, cpu=0.125)
    found = verdict([Facts("tokenise")], stats, cores=64, quota=2.0)
    assert 'on="process", workers=2' in found.advice
    assert found.expected_gain == pytest.approx(2.0, rel=0.05)


def busy_neighbours(cores):
    return {"machine_s": RUN_S, "machine_busy_s": cores * RUN_S}


def test_cores_that_other_programs_take_are_not_promised():
    stats = counters(cores=1.0) | stage("decode", 0.99, workers=1, cpu=0.99)
    assert verdict([Facts("decode", kind="process")], stats, cores=4).expected_gain == pytest.approx(2.0)
    found = verdict([Facts("decode", kind="process")], stats | busy_neighbours(3.8), cores=4)
    assert found.others == pytest.approx(2.8)
    assert found.cores == pytest.approx(2.0)  # the system shares fairly
    found = verdict([Facts("decode", kind="process")], stats | busy_neighbours(1.95), cores=2)
    assert found.expected_gain == 1.0
    assert "Other programs keep 0.9 of the 2 cores busy" in found.advice
    assert "other programs kept 0.9 cores busy" in str(found)


def test_sleeping_work_gains_on_a_busy_machine_too():
    stats = counters(cores=0.05) | stage("download", 0.99, workers=1)
    assert verdict([Facts("download")], stats | busy_neighbours(2.0), cores=2).expected_gain > 1.8


def test_work_that_sleeps_and_waits_for_a_cpu_when_it_wakes_does_not_compute():
    stats = counters(cores=0.05) | stage("download", 0.99, workers=2) | busy_neighbours(2.0)
    delays = {
        "stage.download.timed_s": 1.0,
        "stage.download.timed_busy_s": 0.75,
        "stage.download.timed_delay_s": 0.74,
    }
    found = verdict([Facts("download")], stats | delays, cores=2)
    assert "2 → 4 workers" in found.advice
    assert found.expected_gain > 1.8


@for_each("workers", [1, 2, 3, 4, 7])
def test_no_more_workers_than_cores_are_advised_for_what_computes(workers):
    # Four fifths on a CPU: by the time that cores are used alone, there would be room for more.
    stats = counters(wait=0.95, cores=0.8 * workers) | stage("decode", 0.99, workers=workers, cpu=0.8)
    found = verdict([Facts("decode", kind="process")], stats, cores=4)
    if workers < 4:
        assert f"{workers} → 4 workers" in found.advice
        assert found.expected_gain == pytest.approx(4 / workers)
    else:
        assert found.expected_gain == 1.0
        assert "more would not help" in found.advice or "more workers would not help" in found.advice


@for_each("workers", [1, 2])
def test_workers_that_compute_are_compared_with_the_cores_that_others_leave(workers):
    stats = counters(cores=0.4) | stage("decode", 0.99, workers=workers, cpu=0.4 / workers) | busy_neighbours(2.0)
    delays = {"stage.decode.timed_s": 1.0, "stage.decode.timed_busy_s": 0.97, "stage.decode.timed_delay_s": 0.6}
    found = verdict([Facts("decode", kind="process")], stats | delays, cores=2)
    assert "there are no cores for more workers (1 for it, as other programs keep 1.6 busy)" in found.advice
    assert ("take from other programs" in found.advice) is (workers < 2)
    assert ("would not help" in found.advice) is (workers == 2)
    found = verdict([Facts("decode", kind="process")], stats | delays, cores=2, quota=0.5)
    assert "would not help" in found.advice  # nobody has what a quota does not allow
    assert found.expected_gain == 1.0


def test_what_computes_is_known_on_a_busy_machine_too():
    # Other programs take half of the time that the two workers would need.
    stats = counters(cores=1.0) | stage("decode", 0.99, workers=2, cpu=0.5) | busy_neighbours(2.0)
    delays = {"stage.decode.timed_s": 1.0, "stage.decode.timed_busy_s": 0.97, "stage.decode.timed_delay_s": 0.48}
    found = verdict([Facts("decode", kind="process")], stats | delays, cores=2)
    assert found.expected_gain == 1.0
    assert "→" not in found.advice
    assert "Its workers wait 48 % of their time for a CPU." in found.advice
    assert found.stages[0].delayed == pytest.approx(0.48)


@for_each("cpu_s", [0.17, 0.25])
def test_what_computes_is_known_where_it_hardly_gets_a_cpu(cpu_s):
    # Of each second no CPU was free in 0.7: of the other 0.3, the lock and the system took a part.
    timed = {"sort.timed_s": 1.0, "sort.timed_busy_s": 0.7 + cpu_s, "sort.timed_delay_s": 0.7}
    busy = {"machine_s": RUN_S, "machine_busy_s": 2.0 * RUN_S}
    stats = counters(cores=0.3, **busy) | stage("sort", 0.99, workers=1, cpu=cpu_s)
    found = verdict([Facts("sort")], stats | {f"stage.{key}": value for key, value in timed.items()}, cores=2)
    assert "more workers would gain only what they take from other programs" in found.advice
    assert "4 workers" not in found.advice


@for_each("before, timed_s, delay_s", [(True, 0.1, 0.08), (False, 0.1, 0.1), (False, 0.1, 0.12)])
def test_what_computes_is_known_by_few_tickets(before, timed_s, delay_s):
    # The only one that was timed began before the first batch came, or did nothing but wait for a CPU.
    start = "stage.decode.timed"
    timed = {f"{start}_s": timed_s, f"{start}_busy_s": timed_s, f"{start}_delay_s": delay_s}
    stats = counters(cores=0.3) | stage("decode", 0.99, workers=2, cpu=0.15) | busy_neighbours(2.0) | timed
    began = Snapshot(0.0, timed if before else {})
    found = diagnose([Facts("decode", kind="process")], began, Snapshot(RUN_S, stats), Limits(2))
    assert "would not help" in found.advice
    assert found.expected_gain == 1.0


def test_a_copy_of_memory_does_not_get_more_workers():
    stats = counters(cores=1.0) | stage("from_arrays", 0.99, workers=1, cpu=0.95)
    copying = {"stage.from_arrays.timed_s": 1.0, "stage.from_arrays.timed_bytes": 3e9}
    found = verdict([Facts("from_arrays", kind="process")], stats | copying)
    assert found.expected_gain == 1.0
    assert "3.0 GB/s" in found.advice
    assert "→" not in found.advice
    computing = copying | {"stage.from_arrays.timed_bytes": 3e8}
    assert "1 → 2 workers" in verdict([Facts("from_arrays", kind="process")], stats | computing).advice


def test_threads_of_libraries_inside_workers_are_found():
    stats = counters(cores=3.9) | stage("blur", 0.99, workers=2, cpu=1.95)
    found = verdict([Facts("blur", kind="process")], stats, cores=4)
    assert found.expected_gain == 1.0
    assert "All 4 cores are in use" in found.advice
    assert "keeps 1.9 cores busy" in found.advice or "keeps 2.0 cores busy" in found.advice
    assert "cv2.setNumThreads(0)" in found.advice


def test_threads_of_libraries_are_found_where_all_of_them_together_get_one_core():
    timed = {"stage.blur.timed_s": 1.0, "stage.blur.timed_busy_s": 1.0, "stage.blur.timed_library_s": 0.5}
    stats = counters(cores=2.0) | stage("blur", 0.99, workers=2, cpu=1.0)
    found = verdict([Facts("blur", kind="process")], stats | timed, cores=2)
    assert "computes in several threads at once" in found.advice
    assert "cv2.setNumThreads(0)" in found.advice
    assert "several threads" not in verdict([Facts("blur", kind="process")], stats, cores=2).advice


def test_without_an_interpreter_lock_nobody_waits_for_it():
    stats = counters(wait=0.8, cores=1.0, lock_ms=5.0) | stage("tokenise", 0.99, workers=4, cpu=0.25)
    found = verdict([Facts("tokenise")], stats, cores=4, gil=False)
    assert "lock" not in found.advice
    assert "process" not in found.advice
    inline = verdict(
        [Facts("decode", kind="inline")], counters() | stage("decode", 0.5, workers=1, cpu=0.99), gil=False
    )
    assert "process" not in inline.advice


def test_samples_that_fail_are_told():
    found = verdict([Facts("load")], counters(errors=500) | stage("load", 0.99))
    assert "33 % of the samples fail and are left out" in found.advice
    assert "fail" not in verdict([Facts("load")], counters(errors=5) | stage("load", 0.99)).advice


def test_the_slowest_rank_speaks_for_all():
    quick = verdict([Facts("decode")], counters(wait=0.1) | stage("decode", 0.5))
    slow = verdict([Facts("download")], counters(wait=0.6) | stage("download", 0.99))
    found = ps.Diagnosis.merge([quick, json.loads(json.dumps(slow.to_dict())), quick])
    assert found.limiting == "download"
    assert found.wait_share == pytest.approx(0.6)
    assert found.samples_per_s == pytest.approx(300)
    assert found.samples == 3000
    assert [one.wait_share for one in found.ranks] == pytest.approx([0.1, 0.6, 0.1])
    assert "Rank 1 of 3 waits longest, 60 % of its time" in found.advice
    assert slow.advice in found.advice
    assert ps.Diagnosis.merge([found.to_dict()]).ranks[0].limiting == "download"
    assert ps.Diagnosis.merge([slow, slow]).advice.startswith("All 2 ranks wait about as long")
    assert "There:" not in ps.Diagnosis.merge([slow, slow]).advice
    assert ps.Diagnosis.merge([slow]).advice == slow.advice


def test_every_rank_has_a_line_in_the_report_and_of_many_those_that_wait_longest():
    quick = verdict([Facts("decode")], counters(wait=0.1) | stage("decode", 0.5))
    slow = verdict([Facts("download")], counters(wait=0.6) | stage("download", 0.99))
    report = str(ps.Diagnosis.merge([quick, slow])).splitlines()
    assert report[-3].split() == ["waits", "gets", "could", "take", "limited", "by"]
    assert report[-2].split() == ["rank", "0", "10", "%", "100/s", "111/s", quick.limiting]
    assert report[-1].split() == ["rank", "1", "60", "%", "100/s", "250/s", "download"]
    report = str(ps.Diagnosis.merge([quick] * 19 + [slow])).splitlines()
    assert report[-2].startswith("  rank 19")
    assert report[-1] == "  and 4 ranks that wait less"
    assert "rank" not in str(ps.Diagnosis.merge([slow]))


def test_no_ranks_cannot_be_merged():
    with pytest.raises(ps.PlanError, match="at least one rank"):
        ps.Diagnosis.merge([])


@for_each("wrong", [[1], [{}], {"stages": []}, [{"stages": 3}]])
def test_what_is_no_list_of_diagnoses_cannot_be_merged(wrong):
    with pytest.raises(ps.PlanError, match="takes a list with the diagnosis of each rank"):
        ps.Diagnosis.merge(wrong)


def test_an_inline_stage_that_takes_next_to_no_time_is_not_blamed():
    parts = [Facts("slow", site=1), Facts("quick", site=2, kind="inline")]
    found = verdict(parts, counters() | stage("slow", 0.99, workers=1) | stage("quick", 0.01, workers=1))
    assert found.limiting == "slow"


def test_inline_work_that_computes_needs_a_process():
    found = verdict([Facts("decode", kind="inline")], counters() | stage("decode", 0.5, workers=1, cpu=0.99))
    assert 'on="process", workers=1' in found.advice


def test_a_pool_that_is_busy_with_others_is_told():
    found = verdict([Facts("decode", pooled=True)], counters() | stage("decode", 0.3, workers=4, room=0.1))
    assert "busy with others" in found.advice


def test_pauses_between_epochs_change_nothing():
    stats = counters(cores=1.95) | stage("decode", 0.99)
    paused = stats | {"open_s": 3 * RUN_S, "stage.decode.waiting_room_s": 2 * 2 * RUN_S}
    for found in (
        verdict([Facts("decode")], stats, cores=2),
        verdict([Facts("decode")], paused, cores=2),
    ):
        assert "All 2 cores are in use" in found.advice
        assert found.stages[0].working == pytest.approx(0.99, abs=0.01)


def test_a_stream_behind_a_reservoir_is_named():
    parts = [
        Facts("load", site=1, reservoir="reservoir", feeder="load", stream="rows"),
        Facts("batch", site=2),
    ]
    stats = counters(wait=0.01) | stage("load", 0.99, workers=1, made=500, reading=0.98) | stage("batch", 0.01)
    found = verdict(parts, stats | reservoir(1000, 0.5))
    assert "rows is read by one worker at a time" in found.advice


def test_workers_that_are_shared_grow_for_all_of_their_stages():
    parts = [Facts("one", site=1, site_workers=2), Facts("two", site=1, site_workers=2)]
    found = verdict(parts, counters(wait=0.9) | stage("one", 0.5) | stage("two", 0.49))
    assert found.expected_gain == pytest.approx(4.0)


def test_stages_that_share_workers_limit_together():
    parts = [Facts("decode", site=1, site_workers=4), Facts("batch", site=1, site_workers=4)]
    stats = counters() | stage("decode", 0.6, workers=4) | stage("batch", 0.39, workers=4)
    found = verdict(parts, stats)
    assert found.limiting == "decode"
    assert "its 4 workers, shared with batch, are at work 99 %" in found.advice
    assert "4 → 8 workers" in found.advice


def reservoir(draws, fresh_share):
    return {"reservoir.draws": draws, "reservoir.fresh_share": fresh_share}


RESERVED = [Facts("decode", site=1, reservoir="reservoir", feeder="decode"), Facts("batch", site=2)]


def test_a_reservoir_that_hides_a_slow_stage_is_told_with_what_it_costs():
    stats = counters(wait=0.01) | stage("decode", 0.99, workers=1, made=500) | stage("batch", 0.01)
    found = verdict(RESERVED, stats | reservoir(1000, 0.5))
    assert (found.limiting, found.expected_gain) == (LOOP, 1.0)
    assert found.reuse == 2.0
    assert "hides decode, which makes 50.5/s where the loop takes 100/s" in found.advice
    assert "served 2.0 times on average" in found.advice
    assert "With 2 workers instead of 1, each sample would be served once." in found.advice
    assert "2.0 times" in str(found)


def test_a_reservoir_that_serves_everything_once_hides_nothing():
    stats = counters(wait=0.01) | stage("decode", 0.7, made=1100) | stage("batch", 0.01)
    found = verdict(RESERVED, stats | reservoir(1000, 1.0))
    assert "reservoir" not in found.advice
    assert found.reuse == 1.0


def test_a_reservoir_that_got_nothing_new_is_no_division_by_zero():
    stats = counters(wait=0.01) | stage("decode", 1.0, made=0) | stage("batch", 0.01)
    found = verdict(RESERVED, stats | reservoir(1000, 0.0))
    assert found.reuse == 1000
    assert "hides decode" in found.advice


def test_with_max_reuse_the_stage_before_a_reservoir_can_limit():
    stats = counters(wait=0.5) | stage("decode", 0.99, workers=1, made=500) | stage("batch", 0.01)
    found = verdict(RESERVED, stats | reservoir(1000, 0.5))
    assert found.limiting == "decode"
    assert found.expected_gain == pytest.approx(2.0, rel=0.05)


def test_before_anything_is_read_there_is_nothing_to_say():
    found = verdict([Facts("load")], {})
    assert found.limiting == LOOP
    assert "Nothing has been read yet" in found.advice
    assert found.wait_share == 0.0
    str(found)


def test_only_what_was_counted_in_between_matters():
    before = counters(wait=0.9) | stage("decode", 0.99)
    after = {key: 2 * value for key, value in before.items()} | {"stage.decode.workers": 2}
    after["wait_s"] = before["wait_s"] + 0.01
    found = diagnose([Facts("decode")], Snapshot(0.0, before), Snapshot(RUN_S, after), Limits(8))
    assert found.limiting == LOOP
    assert found.samples == 1000


def test_capacity_is_what_the_workers_would_make_if_they_never_waited():
    (row,) = verdict([Facts("decode")], counters() | stage("decode", 0.5)).stages
    assert row.capacity == pytest.approx(200)
    assert (row.working, row.waiting_input, row.waiting_room) == pytest.approx((0.5, 0.5, 0.0))
    assert (row.workers, row.on) == (2, "thread")


def test_the_report_has_a_row_for_every_stage_and_marks_the_limit():
    parts = [Facts("download", site=1), Facts("decode", site=2, kind="process")]
    found = verdict(parts, counters() | stage("download", 0.3, room=0.7) | stage("decode", 0.97))
    lines = str(found).splitlines()
    assert lines[0] == found.advice
    (marked,) = [line for line in lines if line.startswith(">")]
    assert "decode" in marked
    assert "2 process" in marked
    assert any(line.strip().startswith("training loop") for line in lines)
    assert lines[-1] == "1000 samples in 10 s, 100/s"


def test_it_is_plain_data_too():
    found = verdict([Facts("load")], counters(wait=1.0) | stage("load", 0.0)).to_dict()
    assert found["limiting"] == "load"
    assert found["stages"][0]["capacity"] is None
    assert found["expected_gain"] == 4
    assert found["loop_capacity"] is None
