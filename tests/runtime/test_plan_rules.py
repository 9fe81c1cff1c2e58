"""Place, fuse, bound: which stages a pipeline becomes."""

import numpy as np
import pytest
from tests.cases import for_each
from tests.runtime.helpers import plan_of

import penstock as ps


def f(sample):
    return sample


def g(sample):
    return sample


async def fetch(sample):
    return sample


class Slow:
    """A data set whose reads may block."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index


POOL = ps.Threads(4)
S = ps.from_sequence([1, 2, 3, 4])
SLOW = ps.from_sequence(Slow())
STREAM = ps.from_iterable(lambda: iter([1, 2, 3, 4]))
ARRAYS = ps.from_arrays(np.arange(4))


def stages(pipeline, **options):
    """(kind, calls at once, ops) of every stage."""
    return [
        (stage.site.kind, stage.workers, [step.op.title for step in stage.all_steps()])
        for stage in plan_of(pipeline, **options).stages
    ]


PLACED = {
    "nothing placed: one background thread": (S.map(f).map(g), [("thread", 1, ["f", "g"])]),
    "the source rides with the first placed op": (S.map(f, workers=3), [("thread", 3, ["f"])]),
    "what stands before the first placed op rides with it": (
        S.map(f).map(g, workers=3),
        [("thread", 3, ["f", "g"])],
    ),
    "an op without a placement rides with the one before": (
        S.map(f, workers=3).map(g),
        [("thread", 3, ["f", "g"])],
    ),
    "a placement of its own is a stage of its own": (
        S.map(f, workers=2).map(g, workers=2),
        [("thread", 2, ["f"]), ("thread", 2, ["g"])],
    ),
    "inline is a place too": (S.map(f, on="inline"), [("inline", 1, ["f"])]),
    "inline before threads": (
        S.map(f, on="inline").map(g, workers=2),
        [("inline", 1, ["f"]), ("thread", 2, ["g"])],
    ),
    "a source in memory rides on an event loop": (S.map(fetch, workers=8), [("async", 8, ["fetch"])]),
    "a source that may block never rides on an event loop": (
        SLOW.map(fetch, workers=8),
        [("thread", 1, []), ("async", 8, ["fetch"])],
    ),
    "a stream never rides on an event loop": (
        STREAM.map(fetch, workers=8),
        [("thread", 1, []), ("async", 8, ["fetch"])],
    ),
    "a plain function before an async def keeps off its loop": (
        S.map(f).map(fetch, workers=8),
        [("thread", 1, ["f"]), ("async", 8, ["fetch"])],
    ),
    "a plain function after an async def opens a one-thread stage": (
        S.map(fetch, workers=8).map(f),
        [("async", 8, ["fetch"]), ("thread", 1, ["f"])],
    ),
    "plain functions after it share that thread": (
        S.map(fetch, workers=8).map(f).map(g),
        [("async", 8, ["fetch"]), ("thread", 1, ["f", "g"])],
    ),
    "a batch is copied off the loop": (
        S.map(fetch, workers=8).batch(2),
        [("async", 8, ["fetch"]), ("thread", 1, ["batch"])],
    ),
    "an async def after threads gets a loop": (
        S.map(f, workers=2).map(fetch, workers=8),
        [("thread", 2, ["f"]), ("async", 8, ["fetch"])],
    ),
    "an async def rides with an async def": (
        S.map(fetch, workers=8).map(fetch, name="again"),
        [("async", 8, ["fetch", "again"])],
    ),
    "two ops on one pool are fused": (S.map(f, on=POOL).map(g, on=POOL), [("thread", 4, ["f", "g"])]),
    "an op rides on a pool": (S.map(f, on=POOL).map(g), [("thread", 4, ["f", "g"])]),
    "workers are a cap in a pool": (S.map(f, on=POOL, workers=2), [("thread", 2, ["f"])]),
    "a cap is never above the pool": (S.map(f, on=POOL, workers=9), [("thread", 4, ["f"])]),
    "other caps in one pool are other stages": (
        S.map(f, on=POOL, workers=2).map(g, on=POOL, workers=3),
        [("thread", 2, ["f"]), ("thread", 3, ["g"])],
    ),
    "back on the pool after a detour": (
        S.map(f, on=POOL).map(fetch, workers=8).map(g, on=POOL),
        [("thread", 4, ["f"]), ("async", 8, ["fetch"]), ("thread", 4, ["g"])],
    ),
}


@for_each("case", PLACED)
def test_stages_are_placed_and_fused(case):
    pipeline, expected = PLACED[case]
    assert stages(pipeline) == expected


def test_an_async_def_without_workers_runs_on_a_loop_and_never_on_a_thread():
    for pipeline in (S.map(fetch), S.map(f).map(fetch), S.map(f, workers=2).map(fetch)):
        kinds = {title: kind for kind, _, titles in stages(pipeline) for title in titles}
        assert kinds["fetch"] == "async"


def test_stages_of_one_pool_share_its_site():
    plan = plan_of(S.map(f, on=POOL, workers=2).map(g, on=POOL, workers=3))
    first, second = plan.stages
    assert first.site is second.site
    assert first.site.pool is POOL


def test_where_the_number_is_found_later_the_plan_has_the_most():
    assert stages(S.map(f, workers="auto")) == [("thread", 256, ["f"])]
    assert plan_of(S.map(f, workers="auto")).stages[0].site.auto


@for_each(
    "options, pipeline, expected",
    [
        ({"inline": True}, S.map(f, workers=4).map(g, workers=2), [("inline", 1, ["f", "g"])]),
        ({"inline": True}, SLOW.map(fetch, workers=4).map(g), [("inline", 1, ["fetch", "g"])]),
        ({"workers": 5}, S.map(f), [("thread", 5, ["f"])]),
        ({"on": "thread", "workers": 5}, S.map(f), [("thread", 5, ["f"])]),
        ({"on": POOL}, S.map(f), [("thread", 4, ["f"])]),
        ({"on": POOL}, S.map(f, workers=2), [("thread", 2, ["f"])]),
        ({"on": "inline"}, S.map(f), [("inline", 1, ["f"])]),
    ],
)
def test_the_loader_places_what_is_unplaced_only(options, pipeline, expected):
    assert stages(pipeline, **options) == expected


JOINED_BY = {
    "filter": S.filter(f).batch(2),
    "flat_map": S.flat_map(f).batch(2),
    "skip": S.map(f, on_error="skip").batch(2),
    "retry then skip": S.map(f, on_error=ps.Retry()).batch(2),
    "unordered": S.map(f, workers=2, ordered=False).batch(2),
    "stream": STREAM.map(f).batch(2),
    "batch of batches": S.batch(2).batch(3),
}


@for_each("case", JOINED_BY)
def test_batches_are_cut_in_the_order_of_delivery_where_the_count_may_vary(case):
    *_, last = plan_of(JOINED_BY[case]).stages
    assert len(plan_of(JOINED_BY[case]).stages) == 2
    assert (last.unit, last.hopeful) == (1, False)


@for_each(
    "pipeline, hopeful",
    [
        (S.batch(2), False),
        (S.map(f).batch(2), True),
        (S.map(f, workers=3).batch(2), True),
        (S.shuffle().map(f).batch(2).map(g), True),
        (S.map(f, on_error=ps.Retry(then="raise")).batch(2), True),
    ],
)
def test_batches_are_made_where_the_samples_are_if_the_count_is_kept(pipeline, hopeful):
    (stage,) = plan_of(pipeline).stages
    assert stage.unit == 2
    assert stage.hopeful == hopeful


def test_a_hopeful_batch_is_given_up_by_a_wary_plan():
    (stage,) = plan_of(S.map(f).batch(2)).stages
    assert stage.hopeful
    assert [stage.unit for stage in plan_of(S.map(f).batch(2), wary=True).stages] == [1, 1]


def test_a_batch_whose_later_ops_count_is_not_hopeful():
    assert not any(stage.hopeful for stage in plan_of(S.map(f).batch(2).take(3)).stages)
    assert not any(stage.hopeful for stage in plan_of(ps.zip(S.map(f).batch(2), S)).stages)


def test_a_batch_whose_later_ops_do_not_keep_the_order_is_not_hopeful():
    for later in (S.map(f).batch(2).map(f, ordered=False), S.map(f).batch(2).map(f, ordered=False, workers=3)):
        assert not any(stage.hopeful for stage in plan_of(later).stages)


def test_a_batch_of_real_arrays_is_one_read_unless_a_function_sees_the_rows():
    assert plan_of(ARRAYS.batch(2)).root.block_read
    assert plan_of(ARRAYS.shuffle().batch(2)).root.block_read
    assert not plan_of(ARRAYS.map(f).batch(2)).root.block_read
    assert not plan_of(ARRAYS.batch(2, collate=list)).root.block_read
    assert not plan_of(S.batch(2)).root.block_read


@for_each("pipeline", [S.shuffle().map(f), S.map(f).shuffle(), S.shuffle().repeat(2), S.skip(1).take(2)])
def test_ops_that_only_change_the_order_cost_no_stage(pipeline):
    assert len(plan_of(pipeline).stages) == 1


@for_each(
    "pipeline, culprit",
    [
        (S.filter(f).shuffle(), r"filter\(f\)"),
        (S.flat_map(f).shuffle(), r"flat_map\(f\)"),
        (S.map(f, on_error="skip").shuffle(), r"map\(f\)"),
        (STREAM.shuffle(), "stream"),
    ],
)
def test_a_global_shuffle_where_nothing_can_be_indexed_names_the_cause_and_the_remedy(pipeline, culprit):
    with pytest.raises(ps.PlanError, match=culprit) as caught:
        plan_of(pipeline)
    assert "window" in str(caught.value)


@for_each("pipeline", [S.filter(f).shuffle(), STREAM.shuffle()])
def test_what_cannot_run_says_so_when_the_loader_is_made(pipeline):
    with pytest.raises(ps.PlanError):
        pipeline.loader()


def bounds(pipeline):
    return [(stage.bound_tickets, stage.bound_samples) for stage in plan_of(pipeline).stages]


def test_every_stage_keeps_two_tickets_per_worker():
    assert bounds(S.map(f)) == [(2, None)]
    assert bounds(S.map(f, workers=5).map(g, workers=3)) == [(10, None), (6, None)]
    assert bounds(S.map(f, on=POOL, workers=2)) == [(4, None)]


def test_prefetch_bounds_the_samples_of_its_stage():
    assert [samples for _, samples in bounds(S.map(f, workers=5).prefetch(7).map(g, workers=2))] == [7, None]
    assert [samples for _, samples in bounds(S.map(f).batch(2).prefetch(7))] == [7]


def test_a_stage_that_alternates_keeps_a_ticket_of_each_input():
    ((tickets, _),) = bounds(S.flat_map(f, interleave=9))
    assert tickets >= 9


def test_global_generators_on_several_threads_are_refused():
    with pytest.raises(ps.PlanError, match="rng='global'"):
        plan_of(S.map(f, workers=2, rng="global"))
    with pytest.raises(ps.PlanError, match="rng='global'"):
        plan_of(S.map(f, rng="global"), workers=2)
    with pytest.raises(ps.PlanError, match="rng='global'"):
        plan_of(S.map(g, workers=3).map(f, rng="global"))
    assert stages(S.map(f, rng="global")) == [("thread", 1, ["f"])]


@for_each("workers", [-1, True, 1.5, "many"])
def test_what_is_no_number_of_workers_is_refused_where_it_is_written(workers):
    with pytest.raises(ps.PlanError, match="workers"):
        S.map(f, workers=workers)
    with pytest.raises(ps.PlanError, match="workers"):
        S.loader(workers=workers)
    with pytest.raises(ps.PlanError, match="workers"):
        ps.Threads(workers)


def test_an_unknown_place_is_refused_with_those_there_are():
    with pytest.raises(ps.PlanError, match=r"'nowhere'.*thread"):
        plan_of(S.map(f, on="nowhere"))
    with pytest.raises(ps.PlanError, match="on="):
        S.map(f, on=3)


def test_an_async_def_on_threads_is_refused():
    with pytest.raises(ps.PlanError, match="async def"):
        S.map(fetch, on="thread")
    with pytest.raises(ps.PlanError, match="async def"):
        S.map(fetch, on=POOL)


def test_every_label_is_its_own_and_names_the_users_function():
    plan = plan_of(S.map(f, workers=1).map(f, workers=2).map(f, workers=3))
    labels = [stage.label for stage in plan.stages]
    assert len(set(labels)) == 3
    assert all("f" in label for label in labels)


def test_every_stage_of_a_longer_plan_says_why_it_is_one():
    plan = plan_of(S.map(f, workers=2).map(fetch, workers=4).map(g).filter(f).batch(2))
    assert all(stage.reasons for stage in plan.stages[1:])


def test_an_op_that_depends_on_a_lost_order_is_noted():
    assert any("batch" in note for note in plan_of(S.map(f, workers=2, ordered=False).batch(2)).notes)
    assert not plan_of(S.map(f, workers=2).batch(2)).notes
