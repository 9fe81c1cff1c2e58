"""Which ticket is runnable, and what becomes of it: one stage without threads."""

import random
from types import SimpleNamespace

from tests.cases import for_each
from tests.runtime.helpers import plan_of

import penstock as ps
from penstock.runtime.budget import Budget
from penstock.runtime.chunk import Chunk, Failure
from penstock.runtime.inlets import PositionInlet, Pulled, StreamInlet
from penstock.runtime.joined import JoinedInlet, Queue
from penstock.runtime.program import Program
from penstock.runtime.stage_run import Lane, Pull, StageRun


def f(sample):
    return sample


def lane_of(pipeline, memory=None):
    stage = plan_of(pipeline).root
    return Lane(stage, Program(stage, 0), None, Budget(memory), lambda: 0.0)


def opened(pipeline, n=1000, memory=None, current=True, inlet=None):
    """A stage at the beginning of an epoch of `n` positions."""
    lane = lane_of(pipeline, memory)
    run = SimpleNamespace(current=current, revealed=False, lost=())
    return StageRun(run, lane, inlet or PositionInlet(0, n, lane.stage.unit), list)


def mapped(workers=2, **arguments):
    return ps.from_sequence(range(1000)).map(f, workers=workers, **arguments)


def taken(stage):
    """All tickets that may be issued now."""
    jobs = []
    while stage.runnable():
        jobs.append(stage.take())
    return jobs


def finish(stage, job, size=1, nbytes=0, failure=None, done=True):
    samples = list(range(job.ticket.first, job.ticket.first + size))
    stage.put(job, Chunk(samples, samples, failure, nbytes=nbytes), done)


def popped(stage):
    return [sample for chunk in iter(stage.pop, None) for sample in chunk.samples]


@for_each("workers", [1, 2, 5])
def test_never_more_tickets_are_out_than_workers(workers):
    stage = opened(mapped(workers))
    assert len(taken(stage)) == workers


def test_a_ticket_comes_free_when_one_is_handed_in():
    stage = opened(mapped(2))
    first, _ = taken(stage)
    finish(stage, first)
    assert len(taken(stage)) == 1


@for_each("workers", [1, 3])
def test_without_a_reader_two_tickets_per_worker_are_made_and_no_more(workers):
    stage = opened(mapped(workers))
    made = 0
    while jobs := taken(stage):
        for job in jobs:
            finish(stage, job)
            made += 1
    assert made == 2 * workers
    assert stage.lane.held == 2 * workers


def test_taking_a_chunk_makes_room_for_one_ticket():
    stage = opened(mapped(1))
    while jobs := taken(stage):
        finish(stage, jobs[0])
    assert stage.pop() is not None
    assert len(taken(stage)) == 1


def test_prefetch_bounds_samples_made_and_in_the_making():
    stage = opened(mapped(4).prefetch(3))
    jobs = taken(stage)
    assert sum(job.ticket.count for job in jobs) <= 3
    while jobs:
        for job in jobs:
            finish(stage, job, job.ticket.count)
        jobs = taken(stage)
    assert stage.lane.held_samples == 3


def test_the_head_of_line_is_admitted_though_everything_is_full():
    stage = opened(mapped(2))
    first, second = taken(stage)
    for _ in range(10):  # later tickets fill the room while the first is still out
        finish(stage, second)
        following = taken(stage)
        if not following:
            break
        (second,) = following
    assert not stage.runnable()
    finish(stage, first, size=0)  # a ticket without a sample: now its successors can leave
    assert popped(stage)
    assert stage.runnable()


def test_a_ticket_that_was_paused_goes_on_as_head_though_there_is_no_room():
    stage = opened(mapped(2))
    head, other = taken(stage)
    while other is not None:
        finish(stage, other)
        other = next(iter(taken(stage)), None)
    finish(stage, head, done=False)
    assert popped(stage) == [0]
    assert stage.runnable()
    assert stage.take() is head


def test_the_memory_bound_admits_the_head_and_nothing_else():
    stage = opened(mapped(4), memory=100)
    first = taken(stage)
    finish(stage, first[0], nbytes=1000)  # the estimate now is far above the bound
    for job in first[1:]:
        finish(stage, job, nbytes=1000)
    assert taken(stage) == []
    popped(stage)
    assert len(taken(stage)) == 1  # the stream waits for it


def test_without_being_read_an_epoch_has_no_head_and_stays_within_the_bound():
    stage = opened(mapped(2), memory=100, current=False)
    stage.lane.estimate.add(1000)
    assert taken(stage) == []
    stage.run.current = True
    assert len(taken(stage)) == 1


def test_a_ticket_waits_in_a_process_only_if_the_largest_chunk_so_far_has_room():
    stage = opened(mapped(2), memory=100)
    first, second = taken(stage)
    assert stage.take_ahead() is None  # nobody knows what the first ones take
    finish(stage, first, nbytes=40)
    popped(stage)
    for _ in range(20):
        stage.lane.estimate.add(1)
    third = stage.take()
    assert stage.take_ahead() is not None
    stage.needs(second, 65)
    assert stage.take_ahead() is None
    assert (second.reserved, third.reserved) == (65, 1)


def test_what_a_chunk_is_found_to_need_is_reserved_before_it_is_handed_in():
    stage = opened(mapped(2), memory=100)
    job, other = taken(stage)
    stage.needs(job, 90)
    stage.needs(job, 50)  # less than it has already
    assert stage.lane.budget.used == job.reserved == 90
    finish(stage, job, nbytes=90)
    finish(stage, other)
    assert stage.lane.budget.used == 90
    popped(stage)
    assert stage.lane.budget.used == 0
    cancelled = stage.take()
    stage.cancel()
    stage.needs(cancelled, 50)
    finish(stage, cancelled)
    assert stage.lane.budget.used == 0


def test_what_is_reserved_and_held_returns_to_nothing_and_the_bound_holds():
    for seed in range(30):
        rng = random.Random(seed)
        stage = opened(mapped(3, ordered=bool(seed % 2)), n=60, memory=5000)
        budget, out, got, largest = stage.lane.budget, [], [], 1000
        while not stage.over:
            out += taken(stage)
            if out and rng.random() < 0.7:
                job = out.pop(rng.randrange(len(out)))
                finish(stage, job, job.ticket.count, nbytes=rng.randrange(largest))
            else:
                got += popped(stage)
            assert budget.used <= 5000 + 3 * largest
            assert len(out) <= 3
        assert sorted(got) == list(range(60))
        assert (budget.used, stage.lane.held, stage.lane.open, stage.lane.in_flight) == (0, 0, 0, 0)


def test_the_order_is_kept_however_workers_finish():
    for seed in range(30):
        rng = random.Random(seed)
        stage = opened(mapped(4), n=50)
        out, got = [], []
        while not stage.over:
            out += taken(stage)
            if out:
                job = out.pop(rng.randrange(len(out)))
                finish(stage, job, job.ticket.count)
            if rng.random() < 0.5:
                got += popped(stage)
        assert got == list(range(50))


def test_a_failure_at_its_place_ends_the_stage():
    stage = opened(mapped(2))
    first, second = taken(stage)
    finish(stage, second, size=0, failure=Failure(ValueError("bad")))
    assert not stage.over
    finish(stage, first)
    assert popped(stage) == [0]
    assert not stage.runnable()
    assert stage.over


def test_an_empty_source_is_over_at_once():
    stage = opened(mapped(2), n=0)
    assert not stage.runnable()
    assert stage.over
    assert stage.sourced_out


def test_a_stage_is_over_only_when_its_last_chunk_has_been_taken():
    stage = opened(mapped(1), n=1)
    (job,) = taken(stage)
    assert stage.sourced_out
    assert not stage.over
    finish(stage, job)
    assert not stage.over
    assert popped(stage) == [0]
    assert stage.over


def test_cancelling_gives_everything_back_and_late_chunks_change_nothing():
    stage = opened(mapped(3), memory=10_000)
    first, second, late = taken(stage)
    finish(stage, first, nbytes=100)
    finish(stage, second, nbytes=100, done=False)
    garbage = stage.cancel()
    assert garbage
    assert stage.cancel() == []
    assert not stage.runnable()
    finish(stage, late, nbytes=100)
    lane = stage.lane
    assert (lane.held, lane.held_samples, lane.open, lane.expected, lane.in_flight) == (0, 0, 0, 0, 0)
    assert lane.budget.used == 0
    assert stage.over


def test_a_ticket_given_up_is_begun_again_without_what_it_had_handed_in():
    stage = opened(mapped(1))
    (job,) = taken(stage)
    stage.again(job)
    assert stage.runnable()
    anew = stage.take()
    assert anew is not job
    assert (anew.number, anew.ticket, anew.progress) == (job.number, job.ticket, job.progress)


def test_a_stage_without_input_is_not_blocked_for_want_of_room():
    upstream = SimpleNamespace(pop=lambda: None, over=False)
    inlet = JoinedInlet(0, None, [Queue(upstream)], Budget(None))
    stage = opened(mapped(2), inlet=inlet)
    assert not stage.runnable()
    assert not stage.lane.counters.blocked
    assert not stage.over


def test_a_full_stage_is_blocked_for_want_of_room():
    stage = opened(mapped(1))
    while jobs := taken(stage):
        finish(stage, jobs[0])
    assert stage.lane.counters.blocked


def test_input_is_not_taken_from_upstream_without_room():
    chunks = [Chunk([n], [n]) for n in range(100)]
    upstream = SimpleNamespace(pop=lambda: chunks.pop(0) if chunks else None, over=False)
    stage = opened(mapped(1), inlet=JoinedInlet(0, None, [Queue(upstream)], Budget(None)))
    while jobs := taken(stage):
        stage.put(jobs[0], Chunk(jobs[0].ticket.samples, jobs[0].ticket.places), True)
    left = len(chunks)
    assert not stage.runnable()
    assert len(chunks) == left >= 90


def stream(records):
    return opened(
        ps.from_iterable(lambda: records).map(f, workers=2),
        inlet=StreamInlet(ps.from_iterable(lambda: iter(records)).source, 0),
    )


def test_a_stream_is_pulled_by_one_worker_at_a_time():
    stage = stream([1, 2, 3])
    (pull,) = taken(stage)
    assert isinstance(pull, Pull)
    stage.pulled(Pulled(records=[1, 2]))
    assert stage.runnable()
    assert not isinstance(stage.take(), Pull)


def test_a_stream_that_has_ended_is_over_once_its_records_are_out():
    stage = stream([1])
    taken(stage)
    stage.pulled(Pulled(records=[1], last=True))
    (job,) = taken(stage)
    assert not stage.over
    stage.put(job, Chunk(job.ticket.samples, job.ticket.places), True)
    assert popped(stage) == [1]
    assert stage.over


def test_a_stream_that_fails_tells_it_after_its_good_records():
    stage = stream([1])
    taken(stage)
    failure = Failure(ValueError("bad"))
    stage.pulled(Pulled(records=[1], last=True, failure=failure))
    job, tail = taken(stage)
    assert job.ticket.samples == [1]
    assert job.ticket.failure is None
    assert tail.ticket.failure is failure
    assert job.number < tail.number
