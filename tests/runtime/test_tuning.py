"""workers="auto": the number of workers is found while the loader runs."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

import pytest
from tests.cases import for_each

import penstock as ps
from penstock.core.tuning import Seen, Tuner
from penstock.core.workers import LOCK
from penstock.stats.calls import Timing
from penstock.stats.counters import StageCounters

CPUS = 4.0


@dataclass
class Simulated:
    """A pipeline in which time is a number: stages that wait `waits_s` and compute `computes_s` per sample."""

    waits_s: list[float]
    computes_s: list[float] = field(default_factory=list)
    #: samples per second that the training loop takes at the most, and that one interpreter lock lets through
    wanted: float = 1e9
    locked: float = 1e9
    cpus: float = CPUS
    noise: float = 0.0

    def __post_init__(self) -> None:
        self.computes_s = self.computes_s or [0.0] * len(self.waits_s)
        self.random = random.Random(1)
        self.now = self.made = self.wait_s = 0.0
        self.busy_s = [0.0] * len(self.waits_s)
        self.cpu_s = [0.0] * len(self.waits_s)

    def rate(self, workers: list[int]) -> float:
        """What these workers make, if the loop takes it."""
        spent = [wait + compute for wait, compute in zip(self.waits_s, self.computes_s, strict=True)]
        by_stage = min(count / s for count, s in zip(workers, spent, strict=True))
        by_cpu = self.cpus / sum(self.computes_s) if any(self.computes_s) else 1e9
        return min(by_stage, by_cpu, self.locked)

    def pass_time(self, workers: list[int], seconds: float) -> Seen:
        rate = self.rate(workers) * (1 + self.noise * self.random.uniform(-1, 1))
        taken = min(rate, self.wanted)
        self.now += seconds
        self.made += taken * seconds
        self.wait_s += max(0.0, 1 - taken / self.wanted) * seconds
        for number, (wait, compute) in enumerate(zip(self.waits_s, self.computes_s, strict=True)):
            # Whoever waits for a CPU or for the lock is busy all the same.
            crowded = workers[number] if taken >= min(self.locked, 1e9) else taken * (wait + compute)
            self.busy_s[number] += min(crowded, workers[number]) * seconds
            self.cpu_s[number] += taken * compute * seconds
        computing = tuple(c / (w + c or 1.0) for w, c in zip(self.waits_s, self.computes_s, strict=True))
        return Seen(self.now, self.made, tuple(self.busy_s), computing, tuple(self.cpu_s), self.wait_s)


def tuned(
    simulated: Simulated | Crowded, seconds: float, tuner: Tuner | None = None
) -> tuple[Tuner, list[list[int]]]:
    """The tuner after so many simulated seconds, and every number of workers that it has chosen."""
    tuner = tuner or Tuner([256] * len(simulated.busy_s), CPUS)
    chosen = [list(tuner.workers)]
    end = simulated.now + seconds
    while simulated.now < end:
        if tuner.look(simulated.pass_time(tuner.workers, 1 / 16)):
            chosen.append(list(tuner.workers))
    return tuner, chosen


@for_each("noise", [0.0, 0.05])
def test_stages_that_wait_reach_nine_tenths_of_the_best_in_ten_seconds(noise):
    pipeline = Simulated([0.002, 0.04, 0.005, 0.001], locked=4000, noise=noise)

    tuner, chosen = tuned(pipeline, 10)

    assert pipeline.rate(tuner.workers) >= 0.9 * pipeline.rate([256] * 4)
    assert all(count <= 256 for workers in chosen for count in workers)


@for_each("cpus", [1.0, 2.0, 3.5, 8.0])
def test_stages_that_compute_stay_within_the_cpu_budget(cpus):
    pipeline = Simulated([0.0, 0.0], [0.004, 0.012], cpus=64)

    tuner = Tuner([256, 256], cpus)
    tuner, chosen = tuned(pipeline, 10, tuner)

    used = [sum(pipeline.computes_s) * pipeline.rate(workers) for workers in chosen]
    assert max(used) <= cpus * 1.01 or chosen == [[1, 1]]


def test_stages_that_compute_reach_the_budget():
    pipeline = Simulated([0.0], [0.01], cpus=8)

    tuner, _ = tuned(pipeline, 10, Tuner([256], 8.0))

    assert tuner.workers == [8]
    assert "8.0 of 8 CPUs" in tuner.settled


def test_where_one_lock_limits_few_workers_are_kept():
    pipeline = Simulated([0.001], locked=1000)

    tuner, _ = tuned(pipeline, 10)

    assert tuner.workers == [1]


def test_a_training_loop_that_does_not_wait_gets_no_more_workers():
    pipeline = Simulated([0.01], wanted=50)

    tuner, chosen = tuned(pipeline, 10)

    assert tuner.workers == [1]
    assert tuner.settled == "the training loop does not wait"
    assert chosen == [[1]]


def test_workers_that_are_not_needed_are_let_go():
    pipeline = Simulated([0.01], wanted=150)

    tuner, chosen = tuned(pipeline, 10)

    assert max(chosen)[0] > tuner.workers[0] >= 2
    assert pipeline.rate(tuner.workers) >= pipeline.wanted


def test_the_numbers_do_not_go_up_and_down():
    pipeline = Simulated([0.002, 0.03, 0.005], locked=3000, noise=0.1)

    tuner, _ = tuned(pipeline, 20)
    _, chosen = tuned(pipeline, 300, tuner)

    assert chosen == [tuner.workers]


def test_when_the_data_gets_slower_the_search_begins_anew():
    pipeline = Simulated([0.01], wanted=300)
    tuner, _ = tuned(pipeline, 10)

    pipeline.waits_s = [0.05]
    tuner, _ = tuned(pipeline, 20, tuner)

    assert pipeline.rate(tuner.workers) >= 0.95 * pipeline.wanted


def test_worker_processes_that_start_are_not_busy_with_samples():
    tuner = Tuner([256, 8], 2.0)
    for now in (0.0, 0.5, 1.0, 5.0):  # by its counters the second place computes all the time
        assert not tuner.look(Seen(now, 40, (0.1, now), (0.0, 1.0), (0.0, 0.0), now, starting=True))
    assert not tuner.look(Seen(6.0, 41, (0.1, 6.0), (0.0, 1.0), (0.0, 0.0), 6.0))  # it has just come

    assert not tuner.settled


def test_a_window_does_not_reach_from_before_the_first_batch_to_after_it():
    tuner = Tuner([256], CPUS)
    tuner.look(Seen(0.0, 0, (0.0,), (0.0,), (0.0,), 0.0, begun=False))

    # The loop has waited 0.49 s, which was start-up, and 0.01 s since then.
    assert not tuner.look(Seen(0.5, 40, (0.5,), (0.0,), (0.0,), 0.01))
    assert not tuner.settled


def test_a_pause_of_the_training_loop_says_nothing():
    pipeline = Simulated([0.01])
    tuner = Tuner([256], CPUS)
    tuner.look(pipeline.pass_time(tuner.workers, 0.1))

    assert not tuner.look(Seen(60.0, 11, (0.2,), (0.0,), (0.0,), 0.2))
    assert tuner.workers == [1]


# ---------------------------------------------------------------------- on a busy machine


@dataclass
class Crowded:
    """Stages that compute beside other programs: a fair scheduler gives all threads that want a CPU the same."""

    computes_s: list[float]
    neighbours: int
    cores: float = 2.0
    #: seconds until a ticket has been timed, so that waits for a CPU are told from sleep
    untimed_s: float = 0.0

    def __post_init__(self) -> None:
        self.now = self.made = self.wait_s = 0.0
        self.busy_s = [0.0] * len(self.computes_s)
        self.cpu_s = [0.0] * len(self.computes_s)

    def pass_time(self, workers: list[int], seconds: float) -> Seen:
        # All workers of the slowest stage want a CPU all the time, and others as far as they are needed.
        slowest = max(c / w for c, w in zip(self.computes_s, workers, strict=True))
        busy = [c / slowest for c in self.computes_s]
        speed = min(1.0, self.cores / (sum(busy) + self.neighbours))
        self.now += seconds
        self.made += speed / slowest * seconds
        self.wait_s += 0.9 * seconds
        self.cpu_s = [before + speed * one * seconds for before, one in zip(self.cpu_s, busy, strict=True)]
        self.busy_s = [before + one * seconds for before, one in zip(self.busy_s, busy, strict=True)]
        computing = (speed if self.now < self.untimed_s else 1.0,) * len(busy)
        return Seen(self.now, self.made, tuple(self.busy_s), computing, tuple(self.cpu_s), self.wait_s)


@for_each("untimed_s", [0.0, 0.4])
@for_each("neighbours", [0, 1, 2, 3, 6])
def test_a_stage_that_waits_for_a_cpu_gets_no_more_workers_than_there_are_cpus(neighbours, untimed_s):
    pipeline = Crowded([0.01], neighbours, untimed_s=untimed_s)

    tuner, chosen = tuned(pipeline, 10, Tuner([8], 2.0))

    assert tuner.workers == [2]
    assert untimed_s or chosen == [[1], [2]]


@for_each("neighbours", [0, 2, 6])
def test_stages_that_wait_for_a_cpu_share_the_budget(neighbours):
    pipeline = Crowded([0.002, 0.016, 0.006, 0.004], neighbours)

    tuner, chosen = tuned(pipeline, 10, Tuner([8] * 4, 2.0))

    assert chosen == [[1, 1, 1, 1]]
    assert ("of 2 CPUs and wait for" if neighbours else "use 1.8 of 2 CPUs") in tuner.settled


@for_each("neighbours", [0, 2, 6])
def test_all_cpus_of_the_machine_are_used_where_one_more_worker_is_needed_for_that(neighbours):
    pipeline = Crowded([0.002, 0.016, 0.006, 0.004], neighbours)

    tuner, chosen = tuned(pipeline, 6, Tuner([8] * 4, 2.0, whole=True))
    _, later = tuned(pipeline, 300, tuner)

    assert chosen == [[1, 1, 1, 1], [1, 2, 1, 1]]
    assert later == [[1, 2, 1, 1]]
    assert "of 2 CPUs" in tuner.settled


@for_each("neighbours", [0, 1, 6])
@for_each("cpus", [1.0, 2.0, 4.0])
def test_a_stage_that_uses_all_cpus_of_the_machine_gets_one_worker_for_each(neighbours, cpus):
    pipeline = Crowded([0.01], neighbours, cores=cpus)

    tuner, chosen = tuned(pipeline, 10, Tuner([16], cpus, whole=True))

    assert tuner.workers == max(chosen) == [cpus]


def test_one_more_worker_that_gains_nothing_is_let_go():
    # One worker each needs 1.75 CPUs, and the interpreter lock lets hardly more through than one worker makes.
    pipeline = Simulated([0.0] * 4, [0.002, 0.016, 0.006, 0.004], locked=63, cpus=2.0)

    tuner, chosen = tuned(pipeline, 10, Tuner([8] * 4, 2.0, whole=True))

    assert chosen == [[1, 1, 1, 1], [1, 2, 1, 1], [1, 1, 1, 1]]
    assert tuner.settled == "more workers made it no faster"


@for_each("worked_s, computing", [(0.01, 1.0), (0.002, 0.2), (0.011, 1.0)])
def test_a_worker_process_does_not_compute_while_its_ticket_is_on_the_way(worked_s, computing):
    counters = StageCounters(0.0)
    counters.advance(5.0, 0, 1, 0.0)  # the process starts, and the first ticket waits for it
    counters.measured(worked_s, worked_s)
    counters.worked(worked_s)
    for ticket in range(1, 20):
        counters.advance(5.0 + ticket * 0.01, 0, 1, 0.0)
        counters.measured(worked_s, worked_s)
        counters.worked(worked_s)

    assert counters.computing == pytest.approx(computing)


def test_time_that_a_stage_has_to_spare_and_waits_for_a_cpu_in_needs_no_more_cpus():
    tuner = Tuner([8, 8], 2.0, whole=True)
    tuner.look(Seen(0.0, 0, (0.0, 0.0), (0.0, 0.0), (0.0, 0.0), 0.0))

    # The first stage computes for a third of the time, and is at it for all of it: others have the CPU.
    for now in (1.0, 2.0):
        tuner.look(Seen(now, 500 * now, (now, now), (1.0, 1.0), (0.35 * now, now), 0.9 * now))

    assert tuner.workers == [1, 2]


def test_a_stage_that_sleeps_grows_beside_one_that_waits_for_a_cpu():
    tuner = Tuner([256, 8], 4.0)
    tuner.look(Seen(0.0, 0, (0.0, 0.0), (0.0, 0.0), (0.0, 0.0), 0.0))

    assert tuner.look(Seen(0.5, 50, (0.5, 0.1), (0.05, 1.0), (0.02, 0.04), 0.45))
    assert tuner.workers == [5, 1]


def test_cpus_that_stages_of_a_given_number_need_are_not_given_away():
    tuner = Tuner([8], 4.0)
    tuner.look(Seen(0.0, 0, (0.0, 0.0), (0.0, 0.0), (0.0, 0.0), 0.0))

    # All three workers wait for a CPU half of their time; two are those of a stage with `workers=2`.
    assert tuner.look(Seen(0.5, 50, (0.5, 1.0), (1.0, 1.0), (0.25, 0.5), 0.45)) is False
    assert tuner.settled == "the stages use 1.5 of 4 CPUs and wait for 1.5 more"


@for_each(
    "given, why", [((), "more workers made it no faster"), ((1.0,), "a stage whose number is given limits it")]
)
def test_a_stage_is_blamed_for_its_given_number_only_if_there_is_one(given, why):
    # The four workers of the place that is tuned have time to spare, and still the loop waits.
    tuner = Tuner([256], 4.0)
    tuner.workers = [4]
    nothing = (0.0,) * (1 + len(given))
    tuner.look(Seen(0.0, 0, nothing, nothing, nothing, 0.0))
    tuner.look(Seen(1.0, 50, (0.5, *given), nothing, nothing, 0.9))

    assert (tuner.workers, tuner.settled) == ([4], why)


def test_workers_that_were_asleep_and_now_compute_become_fewer():
    tuner = Tuner([256], 2.0)
    seen = Seen(0.0, 0, (0.0,), (0.0,), (0.0,), 0.0)
    tuner.look(seen)
    tuner.look(Seen(0.5, 50, (0.5,), (0.0,), (0.0,), 0.45))
    assert tuner.workers == [5]

    tuner.look(Seen(1.0, 50, (0.5,), (1.0,), (0.0,), 0.45))
    tuner.look(Seen(1.5, 250, (3.0,), (1.0,), (0.7,), 0.9))

    assert tuner.workers == [2]
    assert tuner.settled == "the stages use 1.4 of 2 CPUs and wait for 3.6 more"


@for_each("cpu_s, delay_s, computing", [(0.004, 0.006, 1.0), (0.0001, 0.006, 0.025), (0.004, 0.0, 0.4)])
def test_whoever_waits_for_a_cpu_neither_sleeps_nor_computes(cpu_s, delay_s, computing):
    counters = StageCounters(0.0)
    counters.measured(0.01, cpu_s)
    timing = Timing()
    timing.seconds, timing.busy_s, timing.delay_s = 0.01, cpu_s + delay_s, delay_s
    counters.timed(timing)

    assert counters.computing == pytest.approx(computing)


# ---------------------------------------------------------------------- in a loader


@pytest.mark.usefixtures("warm_processes")
def test_a_process_that_has_not_answered_is_starting():
    with ps.from_sequence(range(10**6)).map(abs, workers="auto", on="process").loader() as loader:
        samples = iter(loader)
        next(samples)
        tuning = loader._engine.tuning
        (crew,) = tuning._crews
        with LOCK:
            assert not tuning._seen(0.0).starting

            crew.workers[0].front.answered = False
            assert tuning._seen(0.0).starting


@pytest.mark.usefixtures("warm_processes")
def test_tickets_of_a_loader_are_on_the_way_to_a_process_for_a_part_of_the_time():
    with ps.from_sequence(range(400)).map(abs, workers=1, on="process").loader(inline=False) as loader:
        assert list(loader) == list(range(400))
        (counters,) = [lane.counters for lane in loader._engine.all_lanes if lane.remote]

        assert 0 < counters._worked_s < counters._held_s < counters.working_s


def rest(x: int) -> int:
    time.sleep(0.002)
    return x


async def rest_async(x: int) -> int:
    import asyncio

    await asyncio.sleep(0.002)
    return x


@pytest.mark.parametrize("fn", [rest, rest_async])
def test_a_loader_finds_more_workers_and_delivers_the_same_stream(fn):
    with ps.from_sequence(range(10**6)).map(fn, workers="auto", name="rest").loader() as loader:
        read = []
        for sample in loader:
            read.append(sample)
            if loader.stats()["stage.rest.workers"] > 1:
                break

        assert read == list(range(len(read)))
        assert 1 < loader.stats()["stage.rest.workers"] <= 256
        workers = int(loader.stats()["stage.rest.workers"])
        at = "# " + next(step.op.where for step in loader.explain().plan.stages[0].steps)
        assert (
            f'    .map({fn.__name__}, workers={workers}, name="rest")    {at}' in str(loader.explain()).splitlines()
        )


def test_workers_of_a_number_that_became_smaller_end():
    with ps.from_sequence(range(10**6)).map(rest, workers="auto", name="rest").loader() as loader:
        batches = iter(loader)
        for _ in range(20):
            next(batches)
        engine = loader._engine
        (crew,) = [crew for crew in engine.crews.values() if crew.auto]
        for size in (8, 2):
            for lane in engine.lanes.values():
                lane.resize(size)
            crew.resize(size)
            engine.tuning.due = float("inf")
            for _ in range(2000):
                next(batches)
                if len(crew.workers) == size:
                    break
            assert len(crew.workers) == size


@for_each(
    "pipeline, options, code",
    [
        (
            ps.from_sequence(range(4)).map(abs, workers="auto", on="process"),
            {},
            '.map(abs, workers=1, on="process")',
        ),
        (ps.from_sequence(range(4)).map(abs, name="first"), {"workers": "auto"}, ".loader(workers=1)"),
        (
            ps.from_sequence(range(4)).map(abs),
            {"workers": "auto", "on": "process"},
            '.loader(on="process", workers=1)',
        ),
    ],
)
def test_the_numbers_that_were_found_are_code_to_put_into_the_pipeline(pipeline, options, code):
    with pipeline.loader(**options) as loader:
        assert f"    {code}" in str(loader.explain()).splitlines()


def test_auto_is_explained_before_it_runs():
    plan = str(ps.from_sequence(range(4)).map(rest, workers="auto").explain())

    assert "1 to 256 threads, found while it runs, keeps up to 2 tickets per worker ready" in plan


def test_a_budget_must_be_positive():
    with pytest.raises(ps.PlanError, match=r"cpus=\) must be positive"):
        ps.from_sequence(range(4)).loader(cpus=0)


def test_a_cap_in_a_pool_is_one_per_cpu():
    from penstock.machine import usable_cpus

    with ps.Threads(64) as pool:
        plan = ps.from_sequence(range(4)).map(rest, on=pool, workers="auto").explain()

    assert plan.to_dict()["stages"][0]["workers"] == min(usable_cpus(), 64)
