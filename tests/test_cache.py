"""cache: what has been made once is served again."""

import time
from collections import Counter

import numpy as np
import pytest
from tests.cases import for_each
from tests.helpers import (
    BACKGROUND,
    INLINE,
    PROCESSES,
    any_layout,
    any_threads,
    any_workers,
    few_layouts,
    plain,
    until_error,
    with_layouts,
)

import penstock as ps


@any_layout
def test_ops_before_it_run_once_per_sample_of_the_source(layout, counted):
    fn = counted()
    pipeline = ps.from_sequence(range(50)).map(layout.fn(fn), **layout.place).cache()
    assert layout.epochs(pipeline, 4) == [list(range(0, 500, 10))] * 4
    assert fn.calls == Counter(range(50))


@any_workers
def test_a_sample_that_is_still_being_made_is_not_made_again_for_the_next_epoch(layout, counted):
    fn = counted(lambda x: time.sleep(0.05) or x)
    assert layout.epochs(ps.from_sequence([5]).map(fn, **layout.place).cache(), 3) == [[5]] * 3
    assert fn.calls == Counter([5])


@any_layout
def test_ops_behind_it_run_in_every_epoch(layout, counted):
    fn = counted()
    pipeline = ps.from_sequence(range(20)).map(str).cache().map(int).map(layout.fn(fn), **layout.place)
    assert layout.epochs(pipeline, 3) == [list(range(0, 200, 10))] * 3
    assert fn.calls == Counter(dict.fromkeys(range(20), 3))


@any_workers
@for_each("where", ["before", "behind", "both"])
def test_a_shuffle_still_gives_a_new_order_every_epoch(layout, where, counted):
    fn = counted()
    pipeline = ps.from_sequence(range(50))
    pipeline = pipeline.shuffle() if where != "behind" else pipeline
    pipeline = pipeline.map(fn, **layout.place).cache()
    pipeline = pipeline.shuffle() if where != "before" else pipeline
    epochs = layout.epochs(pipeline, 3)
    assert all(sorted(epoch) == list(range(0, 500, 10)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 3
    assert fn.calls == Counter(range(50))


@any_workers
def test_the_stream_with_a_cache_is_the_stream_without(layout):
    def build(cached):
        pipeline = ps.from_sequence(range(100)).shuffle().map(lambda x: x * 3, **layout.place)
        pipeline = pipeline.filter(lambda x: x % 2).flat_map(lambda x: [x, -x])
        return (pipeline.cache() if cached else pipeline).batch(7)

    assert plain(layout.epochs(build(True), 3)) == plain(layout.epochs(build(False), 3))


@any_workers
def test_filter_and_flat_map_before_it_run_once(layout, counted):
    keep, spread = counted(lambda x: x % 2), counted(lambda x: [x, -x])
    pipeline = ps.from_sequence(range(20)).filter(keep, **layout.place).flat_map(spread).cache()
    expected = [y for x in range(1, 20, 2) for y in (x, -x)]
    assert layout.epochs(pipeline, 3) == [expected] * 3
    assert keep.calls == Counter(range(20))
    assert spread.calls == Counter(range(1, 20, 2))


@any_workers
def test_random_ops_before_it_draw_once(layout):
    pipeline = ps.from_sequence(range(20)).map(lambda x, rng: rng.random(), rng=True, **layout.place).cache()
    first, second, third = layout.epochs(pipeline, 3)
    assert first == second == third
    assert len(set(first)) == 20


@any_workers
def test_random_ops_behind_it_draw_anew(layout):
    pipeline = ps.from_sequence(range(20)).map(lambda x: x, **layout.place).cache()
    pipeline = pipeline.map(lambda x, rng: rng.random(), rng=True)
    assert len({value for epoch in layout.epochs(pipeline, 3) for value in epoch}) == 60


@few_layouts
def test_repeat_and_epoch_behind_it_are_served_from_it(layout, counted):
    fn = counted()
    source = ps.from_sequence(range(5)).map(fn, **layout.place).cache()
    assert layout.run(source.repeat(3)) == [0, 10, 20, 30, 40] * 3
    assert layout.epochs(source.epoch(3), 3) == [[0, 10, 20], [30, 40, 0], [10, 20, 30]]
    if layout in (INLINE, BACKGROUND):  # several workers may come by a sample that is still in the making
        assert fn.calls == Counter(dict.fromkeys(range(5), 2))  # once per loader


@any_workers
def test_passes_of_a_repeat_are_served_the_same_draws(layout):
    pipeline = (
        ps.from_sequence(range(6)).map(lambda x, rng: rng.random(), rng=True, **layout.place).cache().repeat(3)
    )
    for _ in range(10):
        samples = layout.run(pipeline)
        assert samples[:6] == samples[6:12] == samples[12:]


# ---------------------------------------------------------------------- what comes out


def nested(x):
    return {"a": np.full(3, x), "b": (np.full(2, x), [np.full(1, x)])}


def arrays_of(sample):
    return sample["a"], sample["b"][0], sample["b"][1][0]


@any_threads
def test_arrays_come_out_read_only(layout):
    pipeline = ps.from_sequence(range(5)).map(nested, **layout.place).cache()
    for epoch in layout.epochs(pipeline, 2):
        for sample in epoch:
            for array in arrays_of(sample):
                with pytest.raises(ValueError, match="read-only"):
                    array += 1


@with_layouts(*PROCESSES)
def test_arrays_that_come_from_processes_are_copies_of_what_is_kept(layout):
    with ps.from_sequence(range(5)).map(nested, **layout.place).cache().loader(**layout.loader) as loader:
        for _ in range(3):
            for number, sample in enumerate(loader):
                for array in arrays_of(sample):
                    assert (array == number).all()
                    array += 1


@any_workers
def test_a_function_behind_it_cannot_change_what_is_kept(layout):
    def add(sample):
        for array in arrays_of(sample):
            array += 1
        return sample

    with ps.from_sequence(range(5)).map(nested, **layout.place).cache().map(add).loader(**layout.loader) as loader:
        for _ in range(3):
            assert until_error(loader, ValueError)[0] == []


@any_workers
def test_batches_made_from_it_are_writable_and_do_not_reach_it(layout):
    pipeline = ps.from_sequence(range(6)).map(lambda x: np.full(2, x), **layout.place).cache().batch(3)
    with pipeline.loader(**layout.loader) as loader:
        for _ in range(3):
            batches = list(loader)
            assert plain(batches) == [[[0, 0], [1, 1], [2, 2]], [[3, 3], [4, 4], [5, 5]]]
            for batch in batches:
                batch += 100


@any_workers
def test_changing_a_dict_or_list_that_came_out_does_not_change_what_is_kept(layout):
    pipeline = ps.from_sequence(range(3)).map(lambda x: {"x": x, "tags": ["a"]}, **layout.place).cache()
    with pipeline.loader(**layout.loader) as loader:
        for _ in range(3):
            samples = list(loader)
            assert samples == [{"x": x, "tags": ["a"]} for x in range(3)]
            for sample in samples:
                sample["x"] = None
                sample["tags"].append("b")


# ---------------------------------------------------------------------- failures


@any_workers
def test_a_sample_that_failed_is_tried_again_and_kept_once_it_succeeds(layout, counted):
    note = counted()

    def flaky(x):
        note(x)
        if x == 5 and note.calls[x] < 3:
            raise TimeoutError
        return x

    pipeline = ps.from_sequence(range(10)).map(flaky, on_error="skip", **layout.place).cache()
    without = [x for x in range(10) if x != 5]
    assert layout.epochs(pipeline, 4) == [without, without, list(range(10)), list(range(10))]
    assert note.calls == Counter({x: 3 if x == 5 else 1 for x in range(10)})


@any_workers
def test_an_error_comes_at_its_place_though_later_samples_are_kept(layout, counted):
    note = counted()

    def fails_later(x):
        note(x)
        if x == 5:
            raise ps.Skip if note.calls[x] == 1 else ValueError
        return x

    with ps.from_sequence(range(10)).map(fails_later, **layout.place).cache().loader(**layout.loader) as loader:
        ((_, first),) = ((epoch, list(samples)) for epoch, samples in loader.epochs(1))  # begins no other early
        assert first == [x for x in range(10) if x != 5]
        seen, _ = until_error(loader, ValueError)
        assert seen == [0, 1, 2, 3, 4]


@any_workers
def test_after_an_error_the_samples_before_it_are_kept(layout, counted):
    fn = counted(lambda x: 1 // (x - 8) and x)
    with ps.from_sequence(range(10)).map(fn, **layout.place).cache().loader(**layout.loader) as loader:
        for _ in range(3):
            assert len(until_error(loader, ZeroDivisionError)[0]) == 8
    assert all(fn.calls[x] == 1 for x in range(8))


# ---------------------------------------------------------------------- bounds


@any_workers
def test_what_does_not_fit_is_made_again_every_time(layout, counted):
    fn = counted(lambda x: np.full(100, x, "uint8"))
    pipeline = ps.from_sequence(range(10)).map(fn, **layout.place).cache(max_bytes=450)
    for epoch in layout.epochs(pipeline, 3):
        assert [int(row[0]) for row in epoch] == list(range(10))
    assert Counter(fn.calls.values()) == {1: 4, 3: 6}


def test_a_cache_without_room_is_no_cache(counted):
    fn = counted()
    with ps.from_sequence(range(5)).map(fn).cache(max_bytes=0).loader(epochs=2) as loader:
        assert [list(loader), list(loader)] == [[0, 10, 20, 30, 40]] * 2
    assert set(fn.calls.values()) == {2}


@for_each("size", [-1, 1.5, "big", True])
def test_a_size_that_is_no_number_of_bytes_is_refused(size):
    with pytest.raises(ps.PlanError, match="max_bytes"):
        ps.from_sequence([1]).cache(max_bytes=size)


# ---------------------------------------------------------------------- streams and batches


@any_workers
def test_a_stream_is_read_once_and_replayed(layout):
    opened = []

    def stream():
        opened.append(1)
        yield from range(30)

    pipeline = ps.from_iterable(stream).map(lambda x: x + 1, **layout.place).cache()
    assert layout.epochs(pipeline, 4) == [list(range(1, 31))] * 4
    assert len(opened) == 1


@few_layouts
def test_a_stream_that_was_broken_off_is_read_again(layout):
    opened = []

    def stream():
        opened.append(1)
        yield from range(30)

    with ps.from_iterable(stream).cache().loader(**layout.loader) as loader:
        assert next(iter(loader)) == 0
        for _ in range(3):
            assert list(loader) == list(range(30))
    assert len(opened) == 2


@few_layouts
def test_a_stream_that_failed_is_read_again(layout):
    opened = []

    def stream():
        opened.append(1)
        yield from range(5)
        if len(opened) == 1:
            raise ConnectionError

    with ps.from_iterable(stream).cache().loader(**layout.loader) as loader:
        assert until_error(loader, ConnectionError)[0] == list(range(5))
        assert [list(loader), list(loader)] == [list(range(5))] * 2
    assert len(opened) == 2


@few_layouts
def test_a_stream_that_does_not_fit_is_read_every_time(layout):
    opened = []

    def stream():
        opened.append(1)
        yield from (np.zeros(100, "uint8") for _ in range(5))

    for epoch in layout.epochs(ps.from_iterable(stream).cache(max_bytes=250), 3):
        assert len(epoch) == 5
    assert len(opened) == 3


@any_workers
def test_batches_are_kept_and_replayed_as_they_were(layout, counted):
    fn = counted()
    pipeline = ps.from_sequence(range(50)).map(fn, **layout.place).batch(4).cache()
    expected = [[x * 10 for x in range(s, min(s + 4, 50))] for s in range(0, 50, 4)]
    assert plain(layout.epochs(pipeline, 4)) == [expected] * 4
    assert fn.calls == Counter(range(50))


@any_workers
def test_what_a_window_mixed_is_replayed_as_it_was(layout, counted):
    fn = counted()
    pipeline = ps.from_sequence(range(50)).map(fn, **layout.place).shuffle(window=10).cache()
    first, *others = layout.epochs(pipeline, 4)
    assert others == [first] * 3
    assert fn.calls == Counter(range(50))


@any_workers
def test_zipped_pipelines_are_kept_too(layout, counted):
    fn = counted()
    pipeline = ps.zip(
        ps.from_sequence(range(20)).map(fn, **layout.place), ps.from_iterable(lambda: range(20))
    ).cache()
    assert layout.epochs(pipeline, 3) == [[(10 * x, x) for x in range(20)]] * 3
    assert fn.calls == Counter(range(20))


@any_workers
def test_two_caches_in_one_pipeline(layout, counted):
    first, second = counted(), counted(lambda x: x + 1)
    pipeline = ps.from_sequence(range(20)).map(first, **layout.place).cache().map(second).cache()
    assert layout.epochs(pipeline, 3) == [[10 * x + 1 for x in range(20)]] * 3
    assert first.calls == Counter(range(20))
    assert set(second.calls.values()) == {1}


# ---------------------------------------------------------------------- loaders


@few_layouts
def test_each_loader_has_a_cache_of_its_own(layout, counted):
    fn = counted()
    pipeline = ps.from_sequence(range(10)).map(fn, **layout.place).cache()
    expected = list(range(0, 100, 10))
    with pipeline.loader(epochs=2, **layout.loader) as one, pipeline.loader(epochs=2, **layout.loader) as other:
        assert [list(one), list(other), list(one), list(other)] == [expected] * 4
    assert set(fn.calls.values()) == {2}


def test_a_cache_keeps_the_length():
    assert len(ps.from_sequence(range(10)).cache()) == 10
    assert len(ps.from_sequence(range(10)).batch(3).cache()) == 4


@any_workers
def test_an_epoch_that_was_broken_off_is_not_kept_though_workers_went_on_to_its_end(layout):
    drawn = ps.from_iterable(lambda: range(6)).map(
        lambda x, rng: int(rng.integers(1 << 40)), rng=True, **layout.place
    )
    with drawn.cache().loader(seed=1, **layout.loader) as loader:
        for epoch in range(3):
            for _ in loader:
                break
            assert loader.epoch == epoch
        whole = list(loader)
        assert list(loader) == whole
    # What is kept is drawn as in epoch 0, whichever it was recorded in: a loader that resumes gets the same.
    with drawn.loader(seed=1, **layout.loader) as plain:
        assert list(plain) == whole


@any_workers
def test_passes_of_a_repeat_play_what_the_first_has_recorded(layout):
    reads = []

    def records():
        reads.append(1)
        return range(3)

    drawn = ps.from_iterable(records).map(lambda x, rng: int(rng.integers(1 << 40)), rng=True, **layout.place)
    with drawn.cache().repeat(3).loader(epochs=1, **layout.loader) as loader:
        first, *_ = samples = list(loader)
    assert samples == samples[:3] * 3
    assert len(reads) == 1
    assert first != samples[1]


def test_what_was_lost_before_it_is_reported_at_its_place():
    def fails(sample):
        if sample == (1, 0):
            raise ValueError(sample)
        return sample

    data = ps.from_sequence(range(3)).flat_map(lambda x: [(x, part) for part in range(3)])
    data = data.map(fails, on_error="skip").cache()
    with data.loader(inline=True) as loader:
        reported = [(sample, len(loader.errors())) for sample in loader]
    assert reported[2:5] == [((0, 2), 0), ((1, 1), 1), ((1, 2), 1)]
