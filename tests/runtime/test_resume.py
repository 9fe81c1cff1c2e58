"""Saving and going on: when it may be asked for, what is refused, what becomes of samples that fail."""

import json
import random

import numpy as np
import pytest
from tests.cases import for_each
from tests.helpers import plain

import penstock as ps
from penstock.errors import PenstockError
from penstock.testing import check_resume


def odd(x):
    return x % 2


def several(x):
    return [10 * x + at for at in range(x % 4)]


def through_json(state):
    text = json.dumps(state)
    assert len(text) < 10_000
    return json.loads(text)


def saved_behind(pipeline, count, **arguments):
    """The first `count` batches, and the state behind them."""
    with pipeline.loader(**arguments) as loader:
        batches = [plain(batch) for _, batch in zip(range(count), loader, strict=False)] if count else []
        return batches, through_json(loader.state_dict())


def rest(pipeline, state, **arguments):
    """What is left of the epoch of `state`."""
    with pipeline.loader(state=state, **arguments) as loader:
        return [plain(batch) for batch in loader]


NUMBERS = ps.from_sequence(range(10))
PAIRS = NUMBERS.batch(2)


# ---------------------------------------------------------------------- when it may be asked for


def test_a_state_before_the_first_batch_is_the_start():
    with PAIRS.loader() as loader:
        state = through_json(loader.state_dict())
    assert rest(PAIRS, state) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


def test_a_state_after_a_break_is_where_the_loop_was_left():
    with PAIRS.loader() as loader:
        for _ in loader:
            break
        state = through_json(loader.state_dict())
    assert rest(PAIRS, state) == [[2, 3], [4, 5], [6, 7], [8, 9]]


@for_each("ended", [False, True])
def test_a_state_after_the_last_batch_is_the_start_of_the_next_epoch(ended):
    with PAIRS.shuffle(window=2).loader(seed=1) as loader:
        batches = iter(loader)
        for _ in range(5):
            next(batches)
        if ended:
            assert next(batches, None) is None
        state = through_json(loader.state_dict())
        following = [plain(batch) for batch in loader]
    with PAIRS.shuffle(window=2).loader(seed=1, state=state) as loader:
        assert [plain(batch) for batch in loader] == following
        assert loader.epoch == 1


def test_a_state_between_two_epochs_is_the_start_of_the_second():
    with NUMBERS.shuffle().loader(seed=2) as loader:
        epochs = [list(loader), list(loader)]
        loader.set_epoch(1)
        state = through_json(loader.state_dict())
    assert rest(NUMBERS.shuffle(), state, seed=2) == epochs[1]


def test_the_epoch_that_was_loaded_keeps_its_place_and_any_other_begins_anew():
    _, state = saved_behind(NUMBERS, 4)
    with NUMBERS.loader(state=state) as loader:
        loader.set_epoch(0)
        assert list(loader) == [4, 5, 6, 7, 8, 9]
    with NUMBERS.loader(state=state) as loader:
        loader.set_epoch(3)
        assert list(loader) == list(range(10))
        assert loader.epoch == 3


def test_a_state_can_be_loaded_twice_and_into_a_loader_that_runs():
    _, early = saved_behind(NUMBERS, 2)
    _, late = saved_behind(NUMBERS, 8)
    with NUMBERS.loader() as loader:
        batches = iter(loader)
        assert next(batches) == 0
        loader.load_state_dict(early)
        loader.load_state_dict(late)
        assert next(batches, None) is None
        assert list(loader) == [8, 9]
        loader.load_state_dict(early)
        assert list(loader) == [2, 3, 4, 5, 6, 7, 8, 9]
        assert loader.epoch == 0


def test_what_is_saved_again_at_once_is_what_was_loaded():
    _, state = saved_behind(NUMBERS.flat_map(several).shuffle(window=4), 7)
    with NUMBERS.flat_map(several).shuffle(window=4).loader(state=state) as loader:
        assert through_json(loader.state_dict()) == state
        iter(loader)
        assert through_json(loader.state_dict()) == state


def test_a_loader_that_was_started_early_goes_on_from_its_state():
    _, state = saved_behind(PAIRS, 3)
    with PAIRS.loader(state=state).start() as loader:
        assert [plain(batch) for batch in loader] == [[6, 7], [8, 9]]


def test_numbers_of_steps_and_epochs_go_on():
    with PAIRS.loader() as loader:
        for step, _ in loader.steps(7):
            assert loader.batch_index == step % 5 + 1
        state = through_json(loader.state_dict())
    with PAIRS.loader(state=state) as loader:
        assert (loader.epoch, loader.batch_index) == (1, 2)
        assert [(step, plain(batch)) for step, batch in loader.steps(4)] == [
            (7, [4, 5]), (8, [6, 7]), (9, [8, 9]), (10, [0, 1])
        ]  # fmt: skip
    with PAIRS.loader(state=state) as loader:
        assert [(epoch, len(list(batches))) for epoch, batches in loader.epochs(2)] == [(1, 3), (2, 5)]


@for_each("behind", range(8))
def test_a_state_of_some_batches_ago_is_the_one_that_was_saved_then(behind):
    pipeline = NUMBERS.filter(odd).flat_map(several).shuffle(window=3)
    states = []
    with pipeline.loader(seed=4, inline=True) as loader:
        states.append(loader.state_dict())
        for _ in loader:
            states.append(loader.state_dict())
        for _ in zip(range(2), loader, strict=False):
            states.append(loader.state_dict())
        assert loader.state_dict(behind=behind) == states[-1 - behind] or behind == 2  # the end of an epoch
        first, second = (
            rest(pipeline, one, seed=4) for one in (loader.state_dict(behind=behind), states[-1 - behind])
        )
        assert first == second


def test_a_state_from_before_the_first_batch_is_an_error():
    with NUMBERS.loader() as loader:
        next(iter(loader))
        with pytest.raises(PenstockError, match="handed over 1 batches"):
            loader.state_dict(behind=2)


def test_a_closed_loader_still_says_where_it_stood():
    loader = PAIRS.loader()
    batches = iter(loader)
    next(batches)
    loader.close()
    assert rest(PAIRS, through_json(loader.state_dict())) == [[2, 3], [4, 5], [6, 7], [8, 9]]


# ---------------------------------------------------------------------- what is refused


@for_each(
    "other, message",
    [
        (NUMBERS.map(abs).batch(2), r"op 1 was batch\(size=2\), and is map\(fn=abs\)"),
        (NUMBERS.batch(3), r"op 1 was batch\(size=2\), and is batch\(size=3\)"),
        (ps.from_sequence(range(11)).batch(2), "its source was .*10 samples, and is .*11 samples"),
        (PAIRS.map(abs), r"this has map\(fn=abs\) behind op 1"),
        (NUMBERS, r"it had batch\(size=2\) behind op 0"),
    ],
)
def test_a_state_of_another_pipeline_is_refused_by_naming_the_difference(other, message):
    _, state = saved_behind(PAIRS, 1)
    with pytest.raises(ps.StateMismatch, match=message):
        other.loader(state=state)


@for_each("saved_with", [True, False])
def test_another_order_of_an_op_behind_a_flat_map_is_refused_by_saying_so(saved_with):
    def numbers(ordered):
        return ps.from_sequence(range(9)).flat_map(several).map(abs, workers=2, ordered=ordered)

    with numbers(saved_with).loader() as loader:
        next(iter(loader))
        state = loader.state_dict()
    said = f"saved with ordered={saved_with} for an op behind a flat_map\\(\\), .* ordered={not saved_with} there"
    with numbers(not saved_with).loader(state=state) as loader, pytest.raises(ps.StateMismatch, match=said):
        next(iter(loader))


def test_a_state_of_another_seed_or_version_is_refused():
    _, state = saved_behind(PAIRS, 1, seed=3)
    with pytest.raises(ps.StateMismatch, match="seed=3, and this loader has seed=0"):
        PAIRS.loader(state=state)
    with pytest.raises(ps.StateMismatch, match="version 99"):
        PAIRS.loader(seed=3, state=state | {"version": 99})


@for_each("garbage", [{}, 7, "state", {"version": 1}, {"version": 1, "pipeline": None, "seed": 0}])
def test_garbage_is_refused(garbage):
    with pytest.raises(ps.StateMismatch):
        PAIRS.loader(state=garbage)


def test_a_refused_state_leaves_the_loader_as_it_was():
    with PAIRS.loader() as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(ps.StateMismatch):
            loader.load_state_dict({"version": 99})
        assert next(batches).tolist() == [2, 3]


def test_a_changed_pipeline_is_gone_on_with_if_asked_to():
    _, state = saved_behind(NUMBERS.map(abs), 4)
    state = ps.edit_state(state, pipeline=None)
    assert rest(NUMBERS.map(str), state) == ["4", "5", "6", "7", "8", "9"]


# ---------------------------------------------------------------------- everywhere


MANY = ps.from_sequence(range(30)).shuffle().filter(odd).flat_map(several).shuffle(window=5).batch(4, collate=list)


ARGUMENTS = [
    {"memory": 10_000, "workers": 2},
    {"timeout_s": 20},
    {"inline": True},
    {"workers": 5},
    {"max_errors": 3},
]


@for_each("arguments", ARGUMENTS)
def test_any_loader_goes_on_from_a_state_of_any_other(arguments):
    check_resume(MANY, every=7, saved_on=arguments, restored_on={"workers": 2})
    check_resume(MANY, every=7, saved_on={"workers": 2}, restored_on=arguments)


@pytest.mark.soak
@for_each("arguments", ARGUMENTS)
def test_any_loader_goes_on_from_a_state_of_any_other_after_any_batch(arguments):
    check_resume(MANY, saved_on=arguments, restored_on={"workers": 2})
    check_resume(MANY, saved_on={"workers": 2}, restored_on=arguments)


def test_coroutines_go_on():
    async def fetched(x):
        return x + 1

    check_resume(
        ps.from_iterable(range(12)).map(fetched, workers=4).filter(odd).batch(2), restored_on={"workers": 2}
    )


def test_shared_pools_go_on():
    pool = ps.Threads(3)
    one = NUMBERS.map(several, on=pool).shuffle(window=3)
    check_resume(one.flat_map(iter, on=pool, workers=2), saved_on={"on": pool}, restored_on={"on": pool})


@pytest.mark.usefixtures("warm_processes")
def test_processes_go_on():
    arguments = {"on": "process", "workers": 2}
    check_resume(MANY, every=8, saved_on=arguments, restored_on={"workers": 2})
    check_resume(MANY, every=8, restored_on=arguments)


@pytest.mark.usefixtures("warm_processes")
def test_an_isolated_loader_goes_on():
    check_resume(MANY, every=8, saved_on={"isolate": True})
    check_resume(MANY, every=8, restored_on={"isolate": True})


def test_another_process_goes_on():
    check_resume(MANY, every=6, fresh_process=True)


# ---------------------------------------------------------------------- samples that fail


class Moody:
    """Fails for some samples, as long as it is told to."""

    def __init__(self, *bad, error=ps.Skip):
        self.bad = set(bad)
        self.error = error

    def __call__(self, x):
        if x in self.bad:
            raise self.error("moody")
        return x


def chained(pipeline, change, size=1, **arguments):
    """All batches of an epoch, each `size` of a loader of its own; `change` is called before every resume."""
    state, batches, records = None, [], []
    while True:
        with pipeline.loader(state=state, **arguments) as loader:
            for batch in loader:
                if loader.epoch:
                    break
                batches.append(plain(batch))
                if loader.batch_index % size == 0:
                    break
            state = through_json(loader.state_dict())
            records += loader.errors()
            if loader.epoch or state["epoch"]:
                return batches, records
        change()


@for_each("workers", [None, 3])
def test_a_sample_that_failed_before_a_save_and_was_told_does_not_come_back(workers):
    """It is lost in the chunk that the saved batch is in."""
    moody = Moody(3)
    pipeline = NUMBERS.map(moody, workers=workers).map(abs)
    with pipeline.loader(inline=workers is None) as loader:
        batches = iter(loader)
        assert [next(batches) for _ in range(3)] == [0, 1, 2]
        told = [record.index for record in loader.errors()]
        state = through_json(loader.state_dict())
    moody.bad.clear()
    assert rest(pipeline, state) == [x for x in range(3, 10) if x not in told]


def test_samples_lost_in_a_window_are_not_tried_again_inside_its_block():
    moody = Moody(2, 6, error=ValueError)
    pipeline = NUMBERS.map(moody, on_error="skip").shuffle(window=4)
    want, _ = chained(pipeline, lambda: None)
    assert sorted(want) == [0, 1, 3, 4, 5, 7, 8, 9]
    with pipeline.loader() as loader:
        batches = iter(loader)
        got = [next(batches) for _ in range(2)]
        state = through_json(loader.state_dict())
    moody.bad.discard(2)
    assert got + rest(pipeline, state) == want


@for_each("count", range(1, 8))
def test_a_sample_that_fails_only_when_its_block_is_made_again_is_lost_and_nothing_else(count):
    moody = Moody()
    pipeline = NUMBERS.map(moody, on_error="skip").shuffle(window=4)
    want = list(pipeline)
    with pipeline.loader() as loader:
        batches = iter(loader)
        got = [next(batches) for _ in range(count)]
        state = through_json(loader.state_dict())
    moody.bad.add(want[count])
    with pipeline.loader(state=state) as loader:
        left = list(loader)
        # Behind a whole block there is nothing to be made again: the next one is made without it.
        assert left == want[count + 1 :] or (count % 4 == 0 and sorted(left) == sorted(want[count + 1 :]))
        assert [record.index for record in loader.errors()] == [want[count]]
    moody.bad = {want[count - 1]}
    assert got + rest(pipeline, state) == want


def test_a_resident_of_a_bucket_that_fails_when_it_is_read_again_is_simply_missing():
    moody = Moody()
    pipeline = (
        NUMBERS.map(moody, on_error="skip").map(lambda x: {"x": np.full(x % 3 + 1, x)}).bucket("x", [1, 2], size=3)
    )
    with pipeline.loader() as loader:
        first = next(iter(loader))["x"].tolist()
        state = through_json(loader.state_dict())
    assert first == [[0], [3], [6]]
    moody.bad.add(4)
    left = [int(x) for batch in rest(pipeline, state) for row in batch["x"] for x in set(row) - {0}]
    assert sorted(left) == [1, 2, 5, 7, 8, 9]


def test_a_sample_skipped_in_a_batch_that_a_worker_made_stays_lost():
    moody = Moody(4)
    pipeline = ps.from_sequence(range(14)).map(moody, workers=2).batch(3)
    batches, records = chained(pipeline, moody.bad.clear)
    assert batches[0] == [0, 1, 2]
    flat = [x for batch in batches for x in batch]
    assert sorted(flat) == [x for x in range(14) if x not in {record.index for record in records}]


@for_each("size, workers", [(1, 3), (2, 1), (3, 3)])
def test_skips_in_batches_that_workers_make_are_resumed_exactly(size, workers):
    pipeline = ps.from_sequence(range(20)).shuffle().map(Moody(4, 5, 11), workers=workers).batch(size)
    check_resume(pipeline, every=4 - size)


def test_a_retry_that_succeeds_is_resumed_like_any_sample():
    failed = set()

    def flaky(x):
        if x % 3 == 0 and x not in failed:
            failed.add(x)
            raise OSError("later")
        return x

    pipeline = NUMBERS.map(flaky, on_error=ps.Retry(2)).shuffle(window=3).batch(2)
    check_resume(pipeline)


def test_the_limit_of_errors_counts_from_the_resume_on():
    pipeline = ps.from_sequence(range(20)).map(Moody(1, 2, 3, 12, 13, 14, error=ValueError), on_error="skip")
    _, state = saved_behind(pipeline, 6, max_errors=3)
    assert rest(pipeline, state, max_errors=3) == [9, 10, 11, 15, 16, 17, 18, 19]


def test_an_epoch_that_ended_in_an_error_is_gone_on_with_from_its_last_batch():
    moody = Moody(5, error=KeyError)
    pipeline = NUMBERS.map(moody).batch(2)
    with pipeline.loader() as loader:
        with pytest.raises(KeyError):
            list(loader)
        state = through_json(loader.state_dict())
    moody.bad.clear()
    assert rest(pipeline, state) == [[4, 5], [6, 7], [8, 9]]


# ---------------------------------------------------------------------- large windows and many residents


def test_a_window_of_10_000_after_filter_and_flat_map_fits_into_a_small_state():
    n = 12_000
    pipeline = (
        ps.from_arrays(np.arange(n))
        .filter(lambda x: x % 7)
        .flat_map(lambda x: (x,) * int(x % 2 + 1))
        .shuffle(window=10_000)
        .batch(1000)
    )
    with pipeline.loader() as loader:
        batches, states = [], []
        for batch in loader:
            batches.append(batch)
            states.append(loader.state_dict())
    for at in random.Random(3).sample(range(len(batches)), 1):
        with pipeline.loader(state=through_json(states[at]), workers=2) as loader:
            for batch, want in zip(loader, batches[at + 1 : at + 4], strict=False):
                assert batch.tolist() == want.tolist()


def test_ten_buckets_of_64_fit_into_a_small_state():
    def made(x):
        return {"x": np.full(int(x) * 7919 % 100 + 1, x)}

    pipeline = ps.from_arrays(np.arange(3_000)).shuffle().map(made).bucket("x", range(10, 100, 10), size=64)
    with pipeline.loader(seed=2) as loader:
        batches, states = [], []
        for batch in loader:
            batches.append(batch["x"])
            states.append(json.dumps(loader.state_dict()))
    assert max(map(len, states)) < 10_000
    for at in random.Random(3).sample(range(len(batches)), 4):
        with pipeline.loader(seed=2, state=json.loads(states[at])) as loader:
            for batch, want in zip(loader, batches[at + 1 : at + 6], strict=False):
                assert batch["x"].tolist() == want.tolist()
