"""What an epoch is: where it begins, what ends it, which one is next."""

import gc
import threading
import weakref
from itertools import islice

import pytest
from tests.cases import for_each
from tests.runtime.helpers import LAYOUTS, Gate, await_event, fail_at, placed

import penstock as ps

N = 20


def stamped(sample, info):
    """The sample with the epoch that made it."""
    return info.epoch, sample


def pipeline_on(layout, n=N):
    return ps.from_sequence(range(n)).map(stamped, info=True, **placed(layout))


def epoch_of(number, n=N):
    return [(number, sample) for sample in range(n)]


every_layout = for_each("layout", LAYOUTS)


@every_layout
def test_iterating_is_one_epoch_and_the_next_iteration_the_next(layout):
    with pipeline_on(layout).loader() as loader:
        assert [list(loader) for _ in range(4)] == [epoch_of(number) for number in range(4)]


@every_layout
def test_break_ends_the_epoch(layout):
    with pipeline_on(layout).loader() as loader:
        for taken, _ in enumerate(loader):
            if taken == 3:
                break
        assert list(loader) == epoch_of(1)


@every_layout
def test_a_new_iteration_ends_the_old_which_stays_exhausted(layout):
    with pipeline_on(layout).loader() as loader:
        old = iter(loader)
        next(old)
        with pytest.warns(RuntimeWarning, match=r"rest of epoch 0 after 1 batches.*loader\.steps") as told:
            new = iter(loader)
        assert told[0].filename == __file__
        assert next(new) == (1, 0)
        assert list(old) == []
        assert list(new) == epoch_of(1)[1:]
        assert list(old) == []


@every_layout
def test_an_iterator_kept_past_its_epoch_stays_exhausted(layout):
    with pipeline_on(layout).loader() as loader:
        old = iter(loader)
        assert list(old) == epoch_of(0)
        assert next(old, "nothing") == "nothing"
        assert list(loader) == epoch_of(1)
        assert next(old, "nothing") == "nothing"


@every_layout
def test_partial_iteration_by_zip_goes_on_in_the_same_epoch(layout):
    with pipeline_on(layout).loader() as loader:
        batches = iter(loader)
        assert [sample for _, sample in zip(range(5), batches, strict=False)] == epoch_of(0)[:5]
        rest = list(batches)
        # zip asks its arguments in turn, so it has taken nothing after its own end.
        assert rest == epoch_of(0)[5:]
        assert list(zip(range(3), loader, strict=False)) == list(enumerate(epoch_of(1)[:3]))
        assert list(loader) == epoch_of(2)


@every_layout
def test_no_sample_crosses_an_epoch_boundary(layout):
    with pipeline_on(layout, n=7).batch(4, collate=list).loader() as loader:
        for number in range(30):
            assert [len(batch) for batch in loader] == [4, 3]
            assert loader.epoch == number


@every_layout
def test_no_sample_crosses_when_epochs_are_broken_off_at_random(layout):
    with pipeline_on(layout).loader() as loader:
        for number in range(30):
            cut = number * 7 % (N + 1)
            assert list(islice(loader, cut)) == epoch_of(number)[:cut]


@for_each("pipeline", [ps.from_sequence([]), ps.from_iterable(list), ps.from_sequence([1]).filter(bool)])
@for_each("workers", [1, 4])
def test_an_empty_epoch_ends_at_once_and_the_next_begins(pipeline, workers):
    empty = pipeline.map(lambda sample: sample, workers=workers).filter(lambda sample: False).batch(2)
    with empty.loader() as loader:
        assert [list(loader) for _ in range(3)] == [[], [], []]
        assert loader.epoch == 2


@every_layout
def test_epoch_and_batch_index_say_where_the_loop_stands(layout):
    with pipeline_on(layout, n=3).loader() as loader:
        assert (loader.epoch, loader.batch_index) == (0, 0)
        seen = [(loader.epoch, loader.batch_index) for _ in range(2) for _ in loader]
        assert seen == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]


# ---------------------------------------------------------------------- set_epoch


@every_layout
def test_set_epoch_makes_the_next_iteration_that_epoch(layout):
    with pipeline_on(layout).loader() as loader:
        loader.set_epoch(7)
        assert list(loader) == epoch_of(7)
        assert list(loader) == epoch_of(8)
        loader.set_epoch(2)
        assert list(loader) == epoch_of(2)


def test_set_epoch_to_any_other_ends_the_iteration():
    with pipeline_on("four threads").loader() as loader:
        batches = iter(loader)
        next(batches)
        loader.set_epoch(5)
        assert list(batches) == []
        assert list(loader) == epoch_of(5)


def test_set_epoch_after_start_discards_what_was_begun():
    with pipeline_on("four threads").loader() as loader:
        loader.start()
        loader.set_epoch(3)
        assert list(loader) == epoch_of(3)


def test_set_epoch_to_the_one_begun_keeps_what_was_begun():
    calls = []
    with ps.from_sequence(range(4)).map(lambda s: calls.append(s) or s, workers=1).loader(epochs=1) as loader:
        loader.start()
        loader.set_epoch(0)
        assert list(loader) == [0, 1, 2, 3]
        assert calls == [0, 1, 2, 3]


def test_the_usual_loop_with_set_epoch_reads_every_epoch_once():
    with pipeline_on("four threads").loader() as loader:
        for number in range(5):
            loader.set_epoch(number)
            assert list(loader) == epoch_of(number)


@for_each("epoch", [-1, 1.0, True, None, "1"])
def test_set_epoch_refuses_what_is_no_epoch(epoch):
    with ps.from_sequence([1]).loader() as loader, pytest.raises(ps.PlanError, match="set_epoch"):
        loader.set_epoch(epoch)


# ---------------------------------------------------------------------- start


@every_layout
def test_started_twice_is_started_once(layout):
    with pipeline_on(layout).loader() as loader:
        assert loader.start() is loader
        loader.start()
        assert list(loader) == epoch_of(0)
        loader.start()
        loader.start()
        assert list(loader) == epoch_of(1)


def test_start_begins_before_the_first_iteration():
    begun = threading.Event()
    with ps.from_sequence(range(3)).map(lambda s: begun.set() or s, workers=1).loader() as loader:
        loader.start()
        await_event(begun, "the first call")
        assert list(loader) == [0, 1, 2]


@every_layout
def test_start_during_an_epoch_does_not_end_it(layout):
    with pipeline_on(layout).loader() as loader:
        batches = iter(loader)
        next(batches)
        loader.start()
        assert list(batches) == epoch_of(0)[1:]


def test_a_loader_can_be_started_and_never_read():
    with pipeline_on("four threads").loader() as loader:
        loader.start()


# ---------------------------------------------------------------------- epochs(n), steps(n)


@every_layout
def test_epochs_gives_numbers_and_batches(layout):
    with pipeline_on(layout).loader() as loader:
        seen = [(number, list(batches)) for number, batches in loader.epochs(3)]
        assert seen == [(number, epoch_of(number)) for number in range(3)]
        assert [number for number, batches in loader.epochs(2) if list(batches)] == [3, 4]


def test_epochs_go_on_after_a_break_inside_one():
    with pipeline_on("four threads").loader() as loader:
        first = []
        for _, batches in loader.epochs(3):
            for batch in batches:
                first.append(batch)
                break
        assert first == [(0, 0), (1, 0), (2, 0)]


@every_layout
def test_an_epoch_that_the_next_one_has_ended_is_refused_when_it_is_read(layout):
    with pipeline_on(layout).loader() as loader:
        (_, first), (_, second), (_, third) = loader.epochs(3)
        for old in (first, second):
            with pytest.raises(ps.PenstockError, match=r"epoch \d was ended .* inside the loop"):
                next(old)
        assert list(third) == epoch_of(2)
        (_, half), *rest = ((number, (next(batches), batches)) for number, batches in loader.epochs(2))
        with pytest.raises(ps.PenstockError, match="epoch 3 was ended"):
            list(half[1])
        assert len(rest) == 1


def test_epochs_that_are_broken_off_or_read_by_next_warn_of_nothing():
    with pipeline_on("four threads").loader() as loader:
        for _, batches in loader.epochs(3):
            next(batches)
            break
        assert next(iter(loader)) == (1, 0)
        number, batches = next(loader.epochs(1))
        assert (number, list(batches)) == (2, epoch_of(2))


@every_layout
def test_a_loop_that_was_broken_off_or_read_to_its_end_warns_of_nothing(layout):
    with pipeline_on(layout, n=3).loader() as loader:
        for _ in loader:
            break
        next(iter(loader))
        iter(loader)  # dropped before it was read
        by_count = iter(loader)
        assert [next(by_count) for _ in range(len(loader))] == epoch_of(3, 3)
        to_the_end = iter(loader)
        assert list(to_the_end) == epoch_of(4, 3)
        try:
            for _ in loader:
                raise LookupError
        except LookupError as caught:
            kept = caught  # and with it the frames of the loop
        assert list(loader) == epoch_of(6, 3)
        assert kept


def test_an_iterator_that_is_held_and_was_never_read_warns_too():
    with pipeline_on("one thread").loader() as loader:
        held = iter(loader)
        with pytest.warns(RuntimeWarning, match="epoch 0 after 0 batches"):
            assert list(loader) == epoch_of(1)
        with pytest.warns(RuntimeWarning, match="epoch 2"):
            assert list(zip(loader, loader, strict=False)) == []
        assert list(held) == []


def test_an_epoch_that_is_not_read_still_counts():
    with pipeline_on("four threads").loader() as loader:
        assert [number for number, _ in loader.epochs(3)] == [0, 1, 2]
        assert list(loader) == epoch_of(3)


@every_layout
def test_steps_run_across_epochs(layout):
    with pipeline_on(layout, n=3).loader() as loader:
        steps = list(loader.steps(8))
    assert [step for step, _ in steps] == list(range(8))
    assert [batch for _, batch in steps] == (epoch_of(0, 3) + epoch_of(1, 3) + epoch_of(2, 3))[:8]


@every_layout
def test_steps_go_on_where_the_last_ones_ended(layout):
    stream = [sample for number in range(5) for sample in epoch_of(number, 3)]
    with pipeline_on(layout, n=3).loader() as loader:
        seen = []
        for n in (2, 0, 1, 1, 4, 3):
            seen += loader.steps(n)
        assert seen == list(enumerate(stream[:11]))
        for step, _ in loader.steps(100):
            if step == 12:
                break
        assert list(loader.steps(1)) == [(13, stream[13])]


@every_layout
def test_chunks_of_many_samples_are_gone_on_with_too(layout):
    with pipeline_on(layout, n=5000).loader() as loader:
        seen = [batch for n in (1, 700, 33, 3000, 2000) for _, batch in loader.steps(n)]
    assert seen == (epoch_of(0, 5000) + epoch_of(1, 5000))[:5734]


@pytest.mark.parametrize("isolate", [False, True])
def test_a_state_saved_between_two_steps_is_exact(isolate):
    pipeline = ps.from_sequence(range(7)).shuffle().batch(2)
    with pipeline.loader(isolate=isolate) as loader:
        whole = [(step, batch.tolist()) for step, batch in loader.steps(14)]
    for cut in range(10):
        with pipeline.loader() as loader:
            seen = [(step, batch.tolist()) for step, batch in loader.steps(cut)]
            state = loader.state_dict()
            seen += [(step, batch.tolist()) for step, batch in loader.steps(14 - cut)]
        assert seen == whole
        with pipeline.loader(state=state) as loader:
            assert [(step, batch.tolist()) for step, batch in loader.steps(14 - cut)] == whole[cut:]


def test_a_new_epoch_ends_the_one_that_steps_was_in():
    with pipeline_on("four threads").loader() as loader:
        list(loader.steps(3))
        assert list(loader) == epoch_of(1)
        assert list(loader.steps(1)) == [(23, (2, 0))]
        loader.set_epoch(3)
        assert list(loader.steps(1)) == [(24, (3, 0))]
        loader.set_epoch(7)
        assert list(loader.steps(2)) == [(25, (7, 0)), (26, (7, 1))]
        for _ in loader:
            break
        assert list(loader.steps(1)) == [(28, (9, 0))]


def test_two_iterators_of_steps_share_what_one_of_them_has_read_ahead():
    with ps.from_sequence(range(7)).map(str).loader(inline=True) as loader:  # chunks of 1, 2 and 4 samples
        one, other = loader.steps(4), loader.steps(3)
        found = [next(one), next(other), next(one), next(other), next(one), next(other), next(one)]
    assert found == list(enumerate("0123456"))


def test_two_iterators_of_steps_share_one_stream():
    with pipeline_on("four threads", n=3).loader() as loader:
        one, other = loader.steps(3), loader.steps(2)
        found = [next(one), next(other), next(one), *other, *one]
    assert found == list(enumerate(epoch_of(0, 3) + epoch_of(1, 3)))[:5]


@every_layout
def test_a_failure_is_met_by_the_steps_that_reach_it(layout):
    pipeline = ps.from_sequence(range(6)).map(fail_at(3), **placed(layout))
    with pipeline.loader() as loader:
        assert [batch for _, batch in loader.steps(3)] == [0, 1, 2]
        with pytest.raises(ValueError):
            list(loader.steps(1))


def test_steps_of_a_loader_that_is_dropped_leave_no_cycle():
    loader = pipeline_on("four threads").loader()
    list(loader.steps(3))
    gone = weakref.ref(loader)
    gc.disable()
    try:
        del loader
        assert gone() is None
    finally:
        gc.enable()


def test_iterators_have_a_length():
    with pipeline_on("four threads", n=5).batch(2, collate=list).loader(epochs=4) as loader:
        epochs = loader.epochs()
        assert len(epochs) == 4
        _, batches = next(epochs)
        assert (len(epochs), len(batches)) == (3, 3)
        next(batches)
        assert len(batches) == 2
        state = loader.state_dict()
        assert len(list(batches)) == 2
        assert len(batches) == 0
        steps = loader.steps(5)
        assert len(steps) == 5
        next(steps)
        assert len(steps) == 4
        loader.load_state_dict(state)
        ((_, rest),) = loader.epochs(1)
        assert len(rest) == len(list(rest)) == 2
    with ps.from_sequence(range(5)).filter(bool).loader() as loader:
        ((_, batches),) = loader.epochs(1)
        with pytest.raises(TypeError):
            len(batches)
        assert list(batches) == [1, 2, 3, 4]


@for_each("n", [0, 3, 6])
def test_steps_end_exactly_at_the_number_asked_for(n):
    with pipeline_on("one thread", n=3).loader() as loader:
        assert len(list(loader.steps(n))) == n


def test_steps_of_an_empty_pipeline_say_that_they_never_come():
    with ps.from_sequence([]).loader() as loader, pytest.raises(ps.PlanError, match="no samples"):
        list(loader.steps(1))


@for_each("n", [-1, 1.5, True, None])
def test_epochs_and_steps_refuse_what_is_no_number(n):
    with ps.from_sequence([1]).loader() as loader:
        with pytest.raises(ps.PlanError):
            loader.epochs(n)
        with pytest.raises(ps.PlanError):
            loader.steps(n)


@for_each("arguments", [{"epochs": 0}, {"epochs": True}, {"epochs": 1.5}, {"seed": "x"}, {"seed": True}])
def test_a_loader_refuses_what_is_no_number(arguments):
    with pytest.raises(ps.PlanError):
        ps.from_sequence([1]).loader(**arguments)


# ---------------------------------------------------------------------- the next epoch, begun early


class Seen:
    """Which epochs a function has been called for, and a wait for the first call of one."""

    def __init__(self, epoch):
        self.epochs = set()
        self.awaited = epoch
        self.came = threading.Event()

    def __call__(self, sample, info):
        self.epochs.add(info.epoch)
        if info.epoch == self.awaited:
            self.came.set()
        return sample


def test_the_next_epoch_is_begun_early():
    seen = Seen(epoch=1)
    with ps.from_sequence(range(4)).map(seen, workers=2, info=True).loader() as loader:
        list(loader)
        await_event(seen.came, "the next epoch")
        assert seen.epochs == {0, 1}


@for_each("workers", [1, 4])
def test_no_epoch_is_begun_past_the_last(workers):
    seen = Seen(epoch=None)
    with ps.from_sequence(range(4)).map(seen, workers=workers, info=True).loader(epochs=2) as loader:
        list(loader)
        list(loader)
        list(loader.stats())
    assert seen.epochs == {0, 1}


@for_each("workers", [1, 4])
def test_epochs_n_begins_none_past_its_last(workers):
    seen = Seen(epoch=None)
    with ps.from_sequence(range(4)).map(seen, workers=workers, info=True).loader() as loader:
        for _, batches in loader.epochs(2):
            list(batches)
    assert seen.epochs == {0, 1}


def test_for_in_pipeline_begins_no_second_epoch():
    seen = Seen(epoch=None)
    assert list(ps.from_sequence(range(4)).map(seen, workers=2, info=True)) == [0, 1, 2, 3]
    assert seen.epochs == {0}


def test_after_epochs_n_more_epochs_can_be_read():
    with pipeline_on("four threads").loader() as loader:
        for _, batches in loader.epochs(1):
            list(batches)
        assert list(loader) == epoch_of(1)
        assert [number for number, _ in loader.epochs(2)] == [2, 3]


def second_epoch_begun():
    """A loader that has read epoch 0 of 6 samples, while epoch 1 was begun and made to its bound."""
    reached = threading.Event()

    def sometimes(sample, info):
        if info.epoch == 1 and sample == 3:
            reached.set()
        if sample == 2:
            raise ValueError(f"epoch {info.epoch}")
        return sample

    data = ps.from_sequence(range(6)).map(sometimes, workers=1, info=True, on_error="skip").prefetch(6)
    loader = data.loader()
    assert list(loader) == [0, 1, 3, 4, 5]
    await_event(reached, "sample 3 of the next epoch")
    return loader


def test_errors_and_counters_of_an_early_epoch_appear_when_it_is_entered():
    with second_epoch_begun() as loader:
        assert [record.epoch for record in loader.errors()] == [0]
        stats = loader.stats()
        assert (stats["errors"], stats["samples"], stats["batches"], stats["epoch"]) == (1, 5, 5, 0)
        list(loader)
        assert [record.epoch for record in loader.errors()] == [0, 1]
        assert loader.stats()["samples"] == 10


def test_errors_of_an_early_epoch_that_is_never_entered_never_appear():
    with second_epoch_begun() as loader:
        loader.set_epoch(9)
        list(loader)
        assert [record.epoch for record in loader.errors()] == [0, 9]


def test_an_early_epoch_does_not_fail_the_one_being_read():
    failing = fail_at(2)
    gate = Gate("early")

    def later(sample, info):
        if info.epoch == 1:
            gate.reached["early"].set()
            return failing(sample)
        return sample

    with ps.from_sequence(range(4)).map(later, workers=2, info=True).loader() as loader:
        assert list(loader) == [0, 1, 2, 3]
        gate.await_reached("early")
        got = []
        with pytest.raises(ValueError, match="bad 2"):
            for sample in loader:
                got.append(sample)
        assert got == [0, 1]
        with pytest.raises(ValueError, match="bad 2"):
            loader.set_epoch(1)
            list(loader)


def test_a_stream_is_opened_once_per_epoch_and_not_early():
    opened = []

    def records():
        opened.append(1)
        yield from range(3)

    with ps.from_iterable(records).map(str, workers=2).loader() as loader:
        assert list(loader) == ["0", "1", "2"]
        assert len(opened) == 1
        assert list(loader) == ["0", "1", "2"]
        assert len(opened) == 2


@for_each("layout", ["background", "four threads"])
def test_a_thousand_samples_come_in_order_over_several_workers(layout):
    with pipeline_on(layout, n=1000).loader() as loader:
        assert list(loader) == epoch_of(0, 1000)


def test_two_loaders_of_one_pipeline_are_independent():
    data = pipeline_on("four threads")
    with data.loader() as one, data.loader() as other:
        left, right = iter(one), iter(other)
        together = [(next(left), next(right)) for _ in range(N)]
        assert together == [(sample, sample) for sample in epoch_of(0)]
        assert list(one) == epoch_of(1)
        other.set_epoch(5)
        assert list(other) == epoch_of(5)
        assert one.epoch == 1
