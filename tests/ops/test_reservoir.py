"""The reservoir: the training loop never waits, and every sample is served before it is served again."""

import gc
import json
import os
import signal
import threading
import time
import weakref
from collections import Counter

import numpy as np
import pytest
from tests.cases import for_each
from tests.helpers import TWO_PROCESSES
from tests.runtime.helpers import SOON_S, Gate
from tests.runtime.process_helpers import await_true

import penstock as ps
from penstock.testing import check_resume


def same(x):
    return x


def reserved(loader):
    return {name[10:]: value for name, value in loader.stats().items() if name.startswith("reservoir.")}


def await_batch(loader):
    """Until the next batch is ready, or there will be none: then whoever reads does not wait."""

    def ready():
        run = loader._engine.current
        return run is None or run.root.outlet.ready or run.root.over

    await_true(ready, "a batch")


def at_leisure(loader, batches):
    """A training loop that is slower than what comes before."""
    out = []
    await_batch(loader)
    for batch in batches:
        out.append(batch)
        await_batch(loader)
    return out


class Tap:
    """A function that lets so many samples through, and stops until it is opened further."""

    def __init__(self, count=0):
        self.lock = threading.Condition()
        self.count = count

    def __call__(self, sample):
        with self.lock:
            assert self.lock.wait_for(lambda: self.count > 0, SOON_S), "the tap was not opened"
            self.count -= 1
        time.sleep(0.002)  # as long as a ticket is to take, so that each is one sample
        return sample

    def open(self, count):
        with self.lock:
            self.count += count
            self.lock.notify_all()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.open(1_000_000)


# ---------------------------------------------------------------------- faster than the draws


@for_each("size", [1, 7, 30, 100, 500])
def test_a_fast_upstream_is_shuffled_and_served_once(size):
    pipeline = ps.from_sequence(range(100)).map(same, workers=2).reservoir(size).batch(10)
    with pipeline.loader(epochs=3) as loader:
        loader.start()
        await_batch(loader)
        epochs = [np.concatenate(at_leisure(loader, batches)).tolist() for _, batches in loader.epochs(3)]
        assert reserved(loader)["fresh_share"] == 1
        assert reserved(loader)["reuse_max"] == 1
    assert [sorted(epoch) for epoch in epochs] == [list(range(100))] * 3
    if size > 1:
        assert epochs[0] != list(range(100))
        assert epochs[0] != epochs[1]


def test_inline_nothing_is_ever_served_twice():
    pipeline = ps.from_sequence(range(100)).map(same).reservoir(30).batch(10)
    with pipeline.loader(inline=True, seed=3) as loader:
        epochs = [np.concatenate(list(loader)).tolist() for _ in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(100))] * 3
    with pipeline.loader(inline=True, seed=4) as loader:
        assert np.concatenate(list(loader)).tolist() != epochs[0]


def test_the_upstream_waits_while_nothing_was_served():
    read = []

    def load(x):
        read.append(x)
        time.sleep(0.002)
        return x

    pipeline = ps.from_sequence(range(1000)).map(load, workers=2).reservoir(20).batch(5)
    with pipeline.loader() as loader:
        batches = iter(loader)
        next(batches)
        time.sleep(0.5)
        # 20 in the reservoir, 5 delivered, 15 drawn ahead and 5 for the next batch, one or two that wait, and 16
        # tickets that are kept ready.
        assert len(read) <= 63
        assert reserved(loader)["fill"] == 20


def test_the_last_epoch_begins_no_pass_that_it_does_not_need():
    read = []
    pipeline = ps.from_sequence(range(50)).map(lambda x: read.append(x) or x).reservoir(10)
    with pipeline.loader(epochs=1, inline=True) as loader:
        assert sorted(loader) == list(range(50))
    assert sorted(read) == list(range(50))


# ---------------------------------------------------------------------- slower than the draws


def test_draws_go_on_while_the_upstream_stands_still():
    tap = Tap(20)
    pipeline = ps.from_sequence(range(1000)).map(tap, workers=2).reservoir(20, min_fill=20, draws=400).batch(5)
    with pipeline.loader(timeout_s=SOON_S) as loader, tap:
        for _ in range(3):
            batches = [batch.tolist() for batch in loader]
            counts = Counter(x for batch in batches for x in batch)
            assert set(counts.values()) == {20}
            assert all(len(set(batch)) == 5 for batch in batches)
        found = reserved(loader)
    assert found["fill"] == found["reuse_mean"] * 20 / 60 == 20
    assert found["reuse_max"] == 60
    assert found["fresh_share"] == 20 / 1200
    assert found["waits"] == 0
    assert found["age_draws"] > 300


def test_uniform_within_a_tenth():
    """Over a long run every sample is drawn as often, although the reservoir holds only half of them."""
    counts = Counter()

    def slow(x):
        time.sleep(0.0005)
        return x

    pipeline = ps.from_sequence(range(20)).shuffle().map(slow, workers=2).reservoir(10, draws=10_000).batch(20)
    with pipeline.loader(timeout_s=SOON_S) as loader:
        for batch in loader:
            counts.update(batch.tolist())
            time.sleep(0.002)
        assert reserved(loader)["reuse_mean"] > 1.1
    assert len(counts) == 20
    assert max(counts.values()) < 1.1 * 500
    assert min(counts.values()) > 0.9 * 500


def test_what_arrives_is_served_next():
    tap = Tap(10)
    pipeline = ps.from_sequence(range(100)).map(tap, workers=1).reservoir(10, draws=100).batch(5)
    with pipeline.loader(timeout_s=SOON_S) as loader, tap:
        batches = iter(loader)
        for _ in range(8):
            assert max(next(batches)) < 10
        tap.open(3)
        await_true(lambda: loader.stats()["stage.Tap.samples"] == 13, "so many samples")
        some = np.concatenate([next(batches) for _ in range(4)]).tolist()  # some were ready before
        assert {10, 11, 12} <= set(some)


def test_it_grows_to_its_size_and_no_further():
    tap = Tap(4)
    pipeline = ps.from_sequence(range(1000)).map(tap, workers=2).reservoir(12, min_fill=2, draws=600).batch(3)
    fills = []
    with pipeline.loader(timeout_s=SOON_S) as loader, tap:
        for number, _ in enumerate(loader):
            fills.append(reserved(loader)["fill"])
            if number % 10 == 0:
                tap.open(1)
        tap.open(1000)
        for _ in loader:
            fills.append(reserved(loader)["fill"])
    assert fills[0] >= 2
    assert fills == sorted(fills)
    assert fills[-1] == max(fills) == 12


def test_a_loader_of_a_second_slows_no_later_epoch():
    tap = Tap(20)
    pipeline = ps.from_sequence(range(20)).map(tap, workers=4).reservoir(20, min_fill=20).batch(5)
    with pipeline.loader(timeout_s=SOON_S) as loader, tap:
        for _ in range(10):  # the upstream gives nothing at all after its first pass
            assert sorted(np.concatenate(list(loader)).tolist()) == list(range(20))


def test_nothing_is_drawn_before_min_fill():
    tap = Tap(7)
    pipeline = ps.from_sequence(range(100)).map(tap, workers=1).reservoir(10, min_fill=8).batch(2)
    with pipeline.loader() as loader, tap:
        loader.start()
        await_true(lambda: loader.stats()["stage.Tap.samples"] == 7, "so many samples")
        time.sleep(0.05)
        assert reserved(loader)["draws"] == 0
        tap.open(1)
        assert len(next(iter(loader))) == 2


def test_max_reuse_makes_it_wait_and_the_wait_is_counted():
    tap = Tap(10)
    pipeline = (
        ps.from_sequence(range(100)).map(tap, workers=1).reservoir(10, min_fill=10, max_reuse=3, draws=100).batch(5)
    )
    with pipeline.loader(timeout_s=1) as loader, tap:
        seen = []
        with pytest.raises(ps.StageTimeout, match="Tap"):
            for batch in loader:
                seen += batch.tolist()
        assert Counter(seen) == dict.fromkeys(range(10), 3)
        assert 1 <= reserved(loader)["waits"] <= 2  # for what rests, and for new ones
        tap.open(5)
        seen += next(iter(loader)).tolist()
        assert reserved(loader)["wait_s"] > 0.2
        assert set(seen[-5:]) <= {10, 11, 12, 13, 14}
        assert max(Counter(seen).values()) == 3


def test_waits_are_those_of_the_loop_not_of_single_samples():
    def slow(x):
        time.sleep(0.004)
        return x

    pipeline = ps.from_sequence(range(60)).map(slow, workers=2).reservoir(20, max_reuse=1).batch(12)
    with pipeline.loader(timeout_s=SOON_S) as loader:
        assert len(list(loader)) == 5
        found = reserved(loader)
    assert 1 <= found["waits"] <= 5
    assert 0 < found["wait_s"] < 10


def test_with_max_reuse_a_batch_is_not_filled_with_copies():
    tap = Tap(40)
    pipeline = ps.from_sequence(range(1000)).map(tap, workers=1).reservoir(40, max_reuse=4, draws=10_000).batch(10)
    with pipeline.loader(timeout_s=SOON_S) as loader, tap:
        batches = iter(loader)
        for _ in range(12):
            next(batches)
        for number in range(20):
            tap.open(4)
            batch = next(batches).tolist()
            assert number < 5 or len(set(batch)) == 10, batch


# ---------------------------------------------------------------------- small sources, failing ones


@for_each("make", [lambda p: p, lambda p: p.shuffle(), lambda p: p.shuffle(window=5)])
def test_a_source_smaller_than_the_reservoir_is_there_once(make):
    pipeline = make(ps.from_sequence(range(15))).map(same, workers=2).reservoir(100).batch(5)
    with pipeline.loader(timeout_s=SOON_S) as loader:
        for _ in range(30):
            batches = [batch.tolist() for batch in loader]
            assert sorted(x for batch in batches for x in batch) == list(range(15))
            assert reserved(loader)["fill"] == 15


def test_several_pipelines_as_one_fill_it_no_further_than_a_pass():
    mixed = ps.mix([ps.from_sequence(range(8)), ps.from_sequence(range(100, 108))]).map(same, workers=2)
    with mixed.reservoir(100).batch(4).loader(timeout_s=SOON_S) as loader:
        for _ in range(10):
            assert len(list(loader)) == 4
            assert reserved(loader)["fill"] <= 16


@for_each("layout", [{"workers": 2}, {"workers": 1}])
def test_a_sample_that_fails_is_left_out_of_every_epoch(layout):
    def load(x):
        if x == 7:
            raise OSError("unreadable")
        return x

    pipeline = ps.from_sequence(range(20)).map(load, on_error="skip", **layout).reservoir(30)
    with pipeline.loader(timeout_s=SOON_S) as loader:
        for _ in range(50):
            assert sorted(loader) == [x for x in range(20) if x != 7]
        errors = loader.errors()
    assert errors
    assert {record.index for record in errors} == {7}
    assert loader.stats()["errors"] == len(errors)


def test_a_failure_reaches_the_training_loop_and_the_next_epoch_goes_on():
    bad = {30}

    def load(x):
        if x in bad:
            raise OSError("unreadable")
        return x

    pipeline = ps.from_sequence(range(50)).map(load, workers=2).reservoir(10).batch(5)
    with pipeline.loader(timeout_s=SOON_S) as loader:
        with pytest.raises(OSError, match="unreadable") as caught:
            for _ in range(20):
                at_leisure(loader, loader)
        assert "sample 30" in "".join(caught.value.__notes__)
        bad.clear()
        assert len(list(loader)) == 10


def test_a_stream_of_unknown_length_makes_its_first_epoch_a_pass():
    pipeline = ps.from_sequence(range(90)).filter(lambda x: x % 3 == 0, workers=2).reservoir(10)
    with pipeline.loader(timeout_s=SOON_S) as loader:
        assert sorted(loader) == list(range(0, 90, 3))
        assert [len(list(loader)) for _ in range(3)] == [30, 30, 30]
    assert "first pass serves every sample once" in str(pipeline.explain())


def test_a_generator_is_begun_again_pass_after_pass():
    opened = []

    def records():
        opened.append(1)
        yield from range(12)

    with ps.from_iterable(records).reservoir(40).loader(timeout_s=SOON_S) as loader:
        assert [sorted(loader) for _ in range(4)] == [list(range(12))] * 4
    assert len(opened) >= 2


def test_what_is_made_of_the_batches_of_a_stream_cannot_be_told_apart():
    batches = ps.from_iterable(lambda: range(12)).filter(lambda x: x % 3).batch(4)
    pipeline = batches.flat_map(lambda batch: batch.tolist()).reservoir(30)
    with pipeline.loader(timeout_s=SOON_S) as loader:
        assert sorted(loader) == [1, 2, 4, 5, 7, 8, 10, 11]
        assert [len(list(loader)) for _ in range(3)] == [8, 8, 8]


def test_without_a_sample_an_epoch_is_empty():
    with ps.from_sequence([]).reservoir(5).loader() as loader:
        assert list(loader) == []
    with ps.from_sequence(range(5)).filter(lambda x: False).reservoir(5).loader(timeout_s=SOON_S) as loader:
        assert list(loader) == list(loader) == []


# ---------------------------------------------------------------------- epochs, loaders, ends


def test_an_epoch_is_as_many_draws_as_asked_for():
    pipeline = ps.from_sequence(range(10)).reservoir(4, draws=25)
    assert len(pipeline.batch(10).loader()) == 3
    with pipeline.loader(timeout_s=SOON_S) as loader:
        assert [len(list(loader)) for _ in range(3)] == [25, 25, 25]


@for_each(
    "place, size, draws, batch",
    [
        *(({}, *case) for case in [(8, None, 8), (3, 1, 2), (20, 7, 8)]),
        ({"inline": True}, 20, 7, 8),
        ({"isolate": True}, 20, 7, 8),
    ],
)
def test_a_last_epoch_of_less_than_a_batch(place, size, draws, batch):
    pipeline = ps.from_sequence(range(5)).map(same, workers=2).reservoir(size, draws=draws).batch(batch)
    with pipeline.loader(timeout_s=SOON_S, **place) as loader:
        for _, batches in loader.epochs(3):
            assert sum(map(len, batches)) == (draws or 5)


def test_an_isolated_epoch_is_asked_for_before_it_is_begun():
    pipeline = ps.from_sequence(range(5)).map(same, workers=4).reservoir(20, min_fill=1, draws=7).batch(8)
    with pipeline.loader(timeout_s=SOON_S, isolate=True) as loader:
        for _ in range(30):
            assert sum(map(len, loader)) == 7


def test_a_closed_loader_keeps_no_sample():
    alive = []

    class Sample:
        pass

    def make(x):
        sample = Sample()
        alive.append(weakref.ref(sample))
        return sample

    with ps.from_sequence(range(50)).map(make).reservoir(20, draws=60).loader(timeout_s=SOON_S) as loader:
        for _ in loader:
            pass
        del _
    gc.collect()
    assert not any(one() for one in alive)
    assert 10 <= reserved(loader)["fill"] <= 20


def test_samples_that_come_and_go_are_let_go_of():
    alive = []

    class Sample:
        pass

    def sometimes(x, rng):
        if rng.random() < 0.5:
            raise ps.Skip
        sample = Sample()
        alive.append(weakref.ref(sample))
        return sample

    pipeline = ps.from_sequence(range(50)).map(sometimes, rng=True, on_error="skip").reservoir(60, draws=60)
    with pipeline.loader(timeout_s=SOON_S) as loader:
        for _ in range(30):
            for _ in loader:
                pass
        gc.collect()
        assert sum(one() is not None for one in alive) < 200


def test_after_a_break_in_a_first_pass_of_unknown_length_epochs_have_its_number():
    pipeline = ps.from_iterable(lambda: range(40)).reservoir(10)
    with pipeline.loader(timeout_s=SOON_S) as loader:
        for _ in zip(range(15), loader, strict=False):
            pass
        assert [len(list(loader)) for _ in range(2)] == [40, 40]


def test_a_timeout_says_what_the_reservoir_waits_for():
    tap = Tap(4)
    stream = ps.from_iterable(lambda: map(tap, range(100)))
    told = pytest.raises(ps.StageTimeout, match=r"from_iterable|reservoir\(8, min_fill=8\)")
    with stream.reservoir(8, min_fill=8).loader(timeout_s=0.2) as loader, tap, told:
        list(loader)


def test_the_content_stays_after_a_break():
    tap = Tap(10)
    pipeline = ps.from_sequence(range(100)).map(tap, workers=1).reservoir(10, draws=20).batch(5)
    with pipeline.loader(timeout_s=SOON_S) as loader, tap:
        for _ in range(5):
            for batch in loader:
                assert max(batch) < 10
                break
        assert len(list(loader)) == 4
        assert loader.epoch == 5


def test_two_loaders_are_independent():
    pipeline = ps.from_sequence(range(60)).map(same, workers=2).reservoir(20).batch(6)
    with pipeline.loader() as one, pipeline.loader(seed=1) as other:
        first = iter(one)
        for _ in range(4):
            next(first)
        assert reserved(other)["draws"] == reserved(other)["fill"] == 0
        second = iter(other.start())
        rest = np.concatenate(at_leisure(other, second)).tolist()
        assert sorted(rest) == list(range(60))
        assert len(list(first)) == 6


def test_close_reaches_the_upstream():
    closed = threading.Event()

    def records():
        try:
            yield from range(1000)
        finally:
            closed.set()

    with ps.from_iterable(records).reservoir(5).batch(5).loader() as loader:
        next(iter(loader))
        for _ in zip(range(3), loader, strict=False):
            pass
    assert closed.wait(SOON_S)


def test_in_a_process_of_its_own():
    tap_pipeline = ps.from_sequence(range(40)).map(nap, workers=2).reservoir(20).batch(4)
    with tap_pipeline.loader(isolate=True, timeout_s=SOON_S) as loader:
        for _ in range(2):
            out = []
            for batch in loader:
                out += batch.tolist()
                time.sleep(0.02)
            assert len(out) == 40
        assert reserved(loader)["draws"] == 80
        assert reserved(loader)["fill"] == 20


def nap(x):
    time.sleep(0.002)
    return x


# ---------------------------------------------------------------------- what is handed out


def test_arrays_are_read_only_and_batches_are_not():
    arrays = ps.from_sequence(range(10)).map(lambda x: {"x": np.full(3, x), "tags": [x]}).reservoir(5, draws=30)
    with arrays.loader(timeout_s=SOON_S) as loader:
        for sample in loader:
            assert not sample["x"].flags.writeable
            sample["tags"].append("mine")
            assert len(sample["tags"]) == 2
    with arrays.batch(5).loader(timeout_s=SOON_S) as loader:
        for batch in loader:
            batch["x"] += 1


@for_each("layout", [TWO_PROCESSES])
def test_samples_of_processes_stay_whole(layout):
    pipeline = ps.from_sequence(range(60)).map(image, **layout.place).reservoir(20, draws=300)
    with pipeline.loader(timeout_s=SOON_S) as loader:
        kept = [sample for _ in range(2) for sample in loader]
        assert reserved(loader)["fill"] == 20
    for sample in kept:
        assert (sample == sample.flat[0]).all()
        assert not sample.flags.writeable


def image(x):
    return np.full((64, 64, 3), x, np.uint8)


@pytest.mark.usefixtures("warm_processes")
def test_a_killed_worker_is_replaced():
    source = ps.from_sequence(range(40)).map(with_pid, on="process", workers=2)
    pipeline = source.reservoir(15, draws=200).batch(10)
    with pipeline.loader(timeout_s=SOON_S) as loader:
        seen, killed = set(), set()
        while len(seen) < 40 or len(killed) < 3:
            for batch in loader:
                seen.update(batch[0].tolist())
                if len(killed) * 10 < len(seen):
                    alive = set(batch[1].tolist()) - killed
                    for victim in alive:
                        killed.add(victim)
                        os.kill(victim, signal.SIGKILL)
        assert loader.stats()["deaths"] >= 3
        assert loader.errors() == []


def with_pid(x):
    time.sleep(0.003)
    return x, os.getpid()


def test_random_ops_behind_it_draw_anew_for_every_serve():
    tap = Tap(4)
    pipeline = (
        ps.from_sequence(range(100))
        .map(tap, workers=1)
        .reservoir(4, min_fill=4, draws=40)
        .map(lambda x, rng: (x, float(rng.random())), rng=True)
    )
    with pipeline.loader(timeout_s=SOON_S) as loader, tap:
        seen = list(loader)
    assert {x for x, _ in seen} == {0, 1, 2, 3}
    assert len({draw for _, draw in seen}) == 40


# ---------------------------------------------------------------------- memory


def test_more_than_the_memory_allows_is_an_error_with_both_numbers():
    pipeline = ps.from_sequence(range(100)).map(lambda x: np.zeros(100_000, np.uint8), workers=2).reservoir(50)
    told = r"reservoir\(50\) holds 2,\d00,000 bytes .* memory=2,000,000"
    with pipeline.loader(memory="2MB", timeout_s=SOON_S) as loader, pytest.raises(ps.PlanError, match=told):
        list(loader)


def test_what_it_holds_counts_as_memory():
    pipeline = ps.from_sequence(range(100)).map(lambda x: np.zeros(100_000, np.uint8), workers=2).reservoir(50)
    with pipeline.batch(2).loader(memory="20MB", timeout_s=SOON_S) as loader:
        for _ in range(3):
            for _ in loader:
                pass
        budget = loader._engine.budget
        assert 5_000_000 <= budget.peak <= 20_000_000 + 2 * budget.portion  # one chunk per worker comes on top
        loader.close()
        assert budget.used == 0


# ---------------------------------------------------------------------- where it stands


def versioned(x, info):
    return info.epoch, x


def test_a_state_is_approximate_and_goes_on_with_the_next_samples():
    pipeline = ps.from_sequence(range(300)).map(same, workers=2).reservoir(20, draws=120).batch(10)
    with pipeline.loader() as loader:
        before = []
        loader.start()
        await_batch(loader)
        for batch in loader:
            before += batch.tolist()
            await_batch(loader)
            if len(before) == 50:
                break
        state = json.loads(json.dumps(loader.state_dict()))
    assert state["approximate"] is True
    assert len(json.dumps(state)) < 2000
    with pipeline.loader(state=state, workers=1) as loader:
        loader.start()
        after = np.concatenate(at_leisure(loader, loader)).tolist()
        assert loader.epoch == 0
        assert loader.batch_index == 12
        assert len(after) == 70
        assert len(set(after)) == 70
        assert not set(after) & set(before)


@for_each("whole", [False, True])
def test_no_sample_is_served_too_often_after_a_resume(whole):
    pipeline = (
        ps.from_sequence(range(60)).map(versioned, info=True, workers=2).reservoir(10, max_reuse=2, draws=100)
    )
    served = Counter()
    state = None
    for _ in range(4):
        with pipeline.loader(state=state, timeout_s=SOON_S) as loader:
            for number, sample in enumerate(loader):
                served[sample] += 1
                if number == 47 and not whole:
                    break
            state = json.loads(json.dumps(loader.state_dict()))
        assert max(served.values()) <= 2


def test_a_loader_that_loads_a_state_forgets_its_content():
    pipeline = ps.from_sequence(range(60)).map(versioned, info=True).reservoir(10, max_reuse=1, draws=30)
    with pipeline.loader(inline=True) as loader:
        first = list(loader)
        state = loader.state_dict()
        list(loader)
        loader.load_state_dict(state)
        assert not set(first) & set(loader)
        assert reserved(loader)["fill"] == 10


def test_an_endless_upstream_makes_an_endless_epoch_that_can_be_resumed():
    pipeline = ps.from_sequence(range(7)).repeat().reservoir(3).batch(4)
    with pipeline.loader(timeout_s=SOON_S) as loader:
        for _ in zip(range(30), loader, strict=False):
            pass
        state = json.loads(json.dumps(loader.state_dict(), allow_nan=False))
    with pipeline.loader(timeout_s=SOON_S, state=state) as loader:
        for _ in zip(range(30), loader, strict=False):
            pass
        assert (loader.epoch, loader.batch_index) == (0, 60)


def test_a_stream_of_unknown_length_keeps_its_length_in_the_state():
    pipeline = ps.from_sequence(range(60)).filter(lambda x: x % 2 == 0).reservoir(10)
    with pipeline.loader(inline=True) as loader:
        assert len(list(loader)) == 30
        state = json.loads(json.dumps(loader.state_dict()))
    with pipeline.loader(inline=True, state=state) as loader:
        assert [len(list(loader)) for _ in range(2)] == [30, 30]


@for_each(
    "behind",
    [
        lambda p: p.shuffle(window=8).batch(4),
        lambda p: p.bucket(lambda x: x, [50], size=4),
        lambda p: p.filter(lambda x: x % 3).batch(4),
        lambda p: p.map(same, workers=2, ordered=False).batch(4),
        lambda p: p.batch(3).unbatch().batch(4),
    ],
)
def test_it_can_be_resumed_with_ops_behind_it(behind):
    pipeline = behind(ps.from_sequence(range(100)).map(same, workers=2).reservoir(12, draws=60))
    with pipeline.loader(timeout_s=SOON_S) as loader:
        for number, _ in enumerate(loader):
            state = json.loads(json.dumps(loader.state_dict()))
            if number == 3:
                break
    with pipeline.loader(state=state, timeout_s=SOON_S) as loader:
        rest = list(loader)
        assert loader.epoch == 0
        assert 1 <= len(rest) <= 20
        assert len(list(loader)) >= 9


# ---------------------------------------------------------------------- what is refused


@for_each(
    "kwargs, told",
    [
        ({"size": 0}, "size"),
        ({"size": 2.5}, "size"),
        ({"size": 5, "min_fill": 6}, "min_fill=6"),
        ({"size": 5, "min_fill": 0}, "min_fill"),
        ({"size": 5, "max_reuse": 0}, "max_reuse"),
        ({"size": 5, "draws": 0}, "draws"),
    ],
)
def test_arguments_that_make_no_sense(kwargs, told):
    with pytest.raises(ps.PlanError, match=told):
        ps.from_sequence(range(10)).reservoir(**kwargs)


def test_what_can_only_be_exact_is_refused():
    pipeline = ps.from_sequence(range(10)).reservoir(5)
    with pytest.raises(ps.PlanError, match=r"fingerprint\(\): .* reservoir\(5\) depends on who is faster"):
        pipeline.fingerprint()
    with pytest.raises(ps.PlanError, match=r"reservoir\(5\) is resumed only approximately"):
        check_resume(pipeline)


def test_shard_belongs_before_it():
    with pytest.raises(ps.PlanError, match=r"put shard\(.*\) before reservoir\(5\)"):
        ps.from_sequence(range(10)).reservoir(5).shard(0, 2).loader()
    with ps.from_sequence(range(10)).shard(0, 2).reservoir(5).loader(timeout_s=SOON_S) as loader:
        assert set(loader) <= {0, 2, 4, 6, 8}


def test_parts_of_a_mix_have_reservoirs_of_their_own():
    slow = ps.from_sequence(range(10)).reservoir(5)
    mixed = ps.mix({"a": slow, "b": ps.from_sequence(range(100, 110))}, stop="first")
    with mixed.loader(timeout_s=SOON_S) as loader:
        for _ in range(3):
            assert len(list(loader)) == 20
        assert loader.stats()["a/reservoir.draws"] >= 30


def test_peek_fills_it_and_draws():
    assert sorted(ps.from_sequence(range(6)).reservoir(3).peek(6)) == list(range(6))


def test_a_gate_in_the_upstream_holds_up_no_draw():
    gate = Gate(13)
    pipeline = ps.from_sequence(range(40)).map(gate, workers=3).reservoir(12, min_fill=6, draws=60).batch(6)
    with pipeline.loader(timeout_s=SOON_S) as loader:
        for _ in range(4):
            assert len(list(loader)) == 10
        # The other two workers go on: nobody waits for 13 to come in its turn.
        await_true(lambda: loader.stats()["stage.Gate.samples"] > 20, "so many samples")
        gate.release()


def weights_from_a_pipeline(epoch):
    """Reads a pipeline, whose workers need the lock of all loaders."""
    return list(ps.from_sequence([1.0, 1.0]).map(float, workers=1))


@pytest.mark.usefixtures("warm_processes")
@pytest.mark.parametrize("place", [{"workers": 2}, {"on": "process", "workers": 1}], ids=["threads", "process"])
def test_weights_before_a_reservoir_may_come_from_a_pipeline(place):
    drawn = ps.from_sequence([0, 1]).resample(weights_from_a_pipeline).repeat(20)
    with drawn.map(abs, **place).reservoir(4).loader(seed=1, epochs=1, timeout_s=20) as loader:
        got = list(loader)
    assert len(got) == 40
    assert set(got) <= {0, 1}  # which of them are served again depends on who is faster
