"""What a pipeline on worker processes does, op by op, where the tests of the ops cannot see it from here."""

import asyncio
import os
import pickle
import random
import signal
import threading
import time
from collections import Counter
from itertools import islice

import numpy as np
import pytest
from tests.cases import for_each
from tests.helpers import POOL
from tests.logs import Log
from tests.random_examples import TIMES
from tests.runtime.helpers import in_thread
from tests.runtime.process_helpers import await_true, children

import penstock as ps
from penstock.executors import servers
from penstock.program.sizing import Sizer

pytestmark = pytest.mark.usefixtures("warm_pool")

TWO = {"on": POOL}
#: processes of its own, where their start or end matters
OWN = {"on": "process", "workers": 2}


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path / "log")


def epochs(pipeline, n, **arguments):
    with pipeline.loader(epochs=n, **arguments) as loader:
        return [list(samples) for _, samples in loader.epochs(n)]


def same_as_inline(pipeline, n=2, **arguments):
    """The epochs, which must be those of an inline run."""
    found, expected = epochs(pipeline, n, seed=3, **arguments), epochs(pipeline, n, seed=3, inline=True)
    assert found == expected
    return found


# ---------------------------------------------------------------------- what a function is given


def test_info_tells_the_number_in_the_source_the_place_and_the_epoch():
    pipeline = (
        ps.from_sequence(range(100, 140), indices=range(39, -1, -2))
        .shuffle()
        .map(lambda x, info: (x - 100, info.index, info.place, info.epoch), info=True, **TWO)
    )
    for epoch, samples in enumerate(same_as_inline(pipeline, 3)):
        assert all(own == index for own, index, _, _ in samples)
        assert [place for _, _, place, _ in samples] == list(range(20))
        assert {told for *_, told in samples} == {epoch}


def test_info_is_the_same_in_a_later_stage_of_processes():
    def told(sample, info):
        return sample, info.index, info.place, info.epoch, info.rng.random()

    pipeline = (
        ps.from_sequence(range(30))
        .shuffle()
        .map(told, info=True, **TWO)
        .filter(lambda sample: sample[1] % 3, on="process", workers=1)
        .flat_map(lambda sample: [sample] * 2)
        .map(told, info=True, name="told-again", **TWO)
    )
    for samples in same_as_inline(pipeline):
        assert all(first[1] == index for first, index, *_ in samples)


def test_key_star_and_the_number_in_a_stream():
    stream = ps.from_iterable(lambda: ({"x": x, "y": (x, 1)} for x in range(20)))
    pipeline = stream.map(lambda y, info: (*y, info.index), key="y", info=True, **TWO)
    assert same_as_inline(pipeline)[0][7] == {"x": 7, "y": (7, 1, 7)}
    starred = ps.from_iterable(lambda: zip(range(20), range(20), strict=True)).map(
        lambda a, b: a * b, star=True, **TWO
    )
    assert same_as_inline(starred)[0] == [x * x for x in range(20)]


def draw_globally(x):
    return x, random.random(), float(np.random.random())


@for_each("workers", [1, 2, 3])
def test_global_generators_may_be_drawn_from_by_several_processes(workers):
    pipeline = ps.from_sequence(range(30)).map(draw_globally, rng="global", on="process", workers=workers)
    first, second = same_as_inline(pipeline)
    assert len({value for sample in first + second for value in sample[1:]}) == 120


def test_draws_do_not_depend_on_the_worker_or_on_what_came_before():
    def draw(x, rng):
        return x, rng.random(), rng.integers(1 << 40)

    pipeline = (
        ps.from_sequence(range(60)).shuffle().map(draw, rng=True, **TWO).shuffle(window=8).map(draw, rng=True)
    )
    same_as_inline(pipeline, 3)
    values = [sample[1] for sample in epochs(ps.from_sequence([0] * 200).map(draw, rng=True, **TWO), 1)[0]]
    assert len(set(values)) == 200


# ---------------------------------------------------------------------- once per worker


def whole_factory(log):
    def factory():
        log("made")
        return lambda x: (x, os.getpid())

    return ps.per_worker(factory)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_per_worker_makes_its_function_once_in_each_process(workers, log):
    pipeline = ps.from_sequence(range(100)).map(whole_factory(log), on="process", workers=workers)
    with pipeline.loader() as loader:
        found = [list(loader) for _ in range(4)]
    assert [x for x, _ in found[-1]] == list(range(100))
    assert {pid for samples in found for _, pid in samples} == log.pids()
    assert len(log.lines()) == len(log.pids()) <= workers
    assert os.getpid() not in log.pids()


def test_per_worker_stays_one_call_when_a_skip_changes_the_plan(log):
    def factory():
        log("made")
        return without_seven

    with ps.from_sequence(range(20)).map(ps.per_worker(factory), on="process").batch(5).loader() as loader:
        assert [len(batch) for batch in loader] == [5, 5, 5, 4]
        assert [len(batch) for batch in loader] == [5, 5, 5, 4]
    assert len(log.lines()) == 1


def without_seven(x):
    if x == 7:
        raise ps.Skip("seven")
    return x


def test_a_factory_that_fails_ends_the_run_with_its_own_error():
    def factory():
        raise ConnectionError("no server")

    with pytest.raises(ConnectionError, match="no server"):
        list(ps.from_sequence(range(3)).map(ps.per_worker(factory), **TWO))


def test_state_of_a_function_stays_with_its_worker_from_epoch_to_epoch():
    calls = []

    def numbered(x):
        calls.append(x)
        return len(calls)

    with ps.from_sequence(range(10)).map(numbered, on="process").loader() as loader:
        assert list(loader) == list(range(1, 11))
        assert list(loader) == list(range(11, 21))
    assert calls == []


# ---------------------------------------------------------------------- every sample once


def test_every_sample_is_called_for_once_and_by_the_workers(log):
    def noted(x):
        log(x)
        return x

    with ps.from_sequence(range(300)).shuffle().map(noted, **TWO).batch(7).loader(epochs=2) as loader:
        for _ in range(2):
            assert sorted(x for batch in loader for x in batch.tolist()) == list(range(300))
    assert set(log.numbers().values()) == {2}
    assert os.getpid() not in log.pids()


def test_a_tap_is_called_in_the_process_and_passes_the_sample_on(log):
    pipeline = ps.from_sequence([(x, -x) for x in range(50)]).tap(lambda a, b: log(a, b), star=True, **TWO)
    assert list(pipeline) == [(x, -x) for x in range(50)]
    assert log.numbers() == Counter(range(50))
    assert all(int(a) == -int(b) for _, a, b in log.lines())
    assert os.getpid() not in log.pids()


def test_a_retry_that_succeeds_leaves_no_trace(log):
    def flaky(x):
        log(x)
        if x % 3 == 0 and log.numbers()[x] < 3:
            raise TimeoutError("busy")
        return x

    pipeline = ps.from_sequence(range(12)).map(flaky, on_error=ps.Retry(2, 0), **TWO)
    with pipeline.loader(epochs=1) as loader:
        assert list(loader) == list(range(12))
        assert loader.errors() == []
    assert log.numbers() == Counter({x: 3 if x % 3 == 0 else 1 for x in range(12)})


def test_after_the_last_retry_the_sample_is_skipped(log):
    def failing(x):
        log(x)
        if x % 10 == 7:
            raise ValueError(f"bad {x}")
        return x

    pipeline = ps.from_sequence(range(20)).map(failing, on_error=ps.Retry(3, 0), **TWO).batch(3)
    with pipeline.loader(epochs=1) as loader:
        assert [b.tolist() for b in loader] == [[0, 1, 2], [3, 4, 5], [6, 8, 9], [10, 11, 12], [13, 14, 15],
                                                [16, 18, 19]]  # fmt: skip
        assert [(record.index, str(record.exception)) for record in loader.errors()] == [
            (7, "bad 7"),
            (17, "bad 17"),
        ]
        assert loader.stats()["errors"] == 2
    assert (log.numbers()[7], log.numbers()[17], log.numbers()[8]) == (4, 4, 1)


def test_a_retry_waits_no_longer_once_the_loader_closes(log):
    def failing(x):
        log(x)
        raise ValueError

    loader = ps.from_sequence(range(3)).map(failing, on_error=ps.Retry(5, backoff_s=1000), on="process").loader()
    loader.start()
    await_true(log.lines, "the first failure")
    in_thread(loader.close)


def test_generators_are_closed_when_the_reader_stops(log):
    def shard(x):
        log("open", x)
        try:
            while True:
                yield x
        finally:
            log("close", x)

    with ps.from_sequence(range(3)).flat_map(shard, **OWN).loader() as loader:
        assert list(islice(iter(loader), 5)) == [0] * 5
    words = Counter(word for _, word, _ in log.lines())
    assert words["open"] == words["close"] > 0


def test_a_generator_of_a_million_is_not_materialised(log):
    def million(x):
        for number in range(1_000_000):
            if number % 1000 == 0:
                log(number)
            yield number

    with ps.from_sequence([0]).flat_map(million, on="process").loader() as loader:
        assert list(islice(iter(loader), 100)) == list(range(100))
    assert max(log.numbers()) < 500_000


# ---------------------------------------------------------------------- skipping


@for_each("workers", [1, 3])
def test_batches_are_cut_anew_from_the_first_sample_that_is_skipped(workers):
    def thin(x, info):
        if x % 7 == 3 or (info.epoch == 1 and x == 50):
            raise ps.Skip(f"no {x}")
        return x, np.full(3, x)

    pipeline = (
        ps.from_sequence(range(100))
        .shuffle()
        .map(thin, info=True, on="process", workers=workers)
        .batch(8)
        .prefetch(4)
    )
    with pipeline.loader(seed=3) as loader, pipeline.loader(seed=3, inline=True) as inline:
        for epoch in range(3):
            found = [(x.tolist(), y.tolist()) for x, y in loader]
            assert found == [(x.tolist(), y.tolist()) for x, y in inline]
            assert {len(x) for x, _ in found[:-1]} == {8}
            dropped = [record for record in loader.errors() if record.epoch == epoch]
            assert len(dropped) == 14 + (epoch == 1)
            assert [record.index for record in dropped] == [
                record.index for record in inline.errors() if record.epoch == epoch
            ]


@for_each("limit, raised", [(3, True), (10, False), (0.05, True), (0.5, False)])
def test_max_errors_counts_what_processes_skip(limit, raised):
    def bad(x):
        if x % 20 == 7:
            raise ValueError(x)
        return x

    pipeline = ps.from_sequence(range(200)).map(bad, on_error="skip", **TWO)

    def run(**arguments):
        got = []
        with pipeline.loader(max_errors=limit, epochs=1, **arguments) as loader:
            try:
                for sample in loader:
                    got.append(sample)
            except ps.TooManyErrors as exc:
                return got, type(exc), len(loader.errors())
        return got, None, len(loader.errors())

    found = run()
    assert found == run(inline=True)
    assert (found[1] is not None) == raised


def test_a_call_past_its_timeout_is_skipped_and_its_process_replaced(log):
    def slow(x):
        if x == 5:
            log("stuck")
            time.sleep(1000)
        return x

    pipeline = ps.from_sequence(range(10)).map(slow, timeout_s=1, on_error="skip", **OWN)
    with pipeline.loader(epochs=1) as loader:
        assert list(loader) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
        (record,) = loader.errors()
    assert (record.index, type(record.exception)) == (5, ps.StageTimeout)
    (stuck,) = log.pids()
    with pytest.raises(ProcessLookupError):
        os.kill(stuck, 0)


def test_a_batch_that_does_not_come_in_time_names_the_op_and_the_sample(log):
    def slow(x):
        if x == 0:
            log("stuck")
            time.sleep(1000)
        return x

    with ps.from_sequence(range(10)).map(slow, on="process").loader(timeout_s=1) as loader:
        loader.start()
        await_true(log.lines, "the call that hangs")
        with pytest.raises(ps.StageTimeout, match=r"map\(slow\).*sample 0"):
            list(loader)


def test_a_batch_that_waits_for_processes_to_start_says_so():
    list(ps.from_sequence(range(3)).map(str, on="process", workers=1))  # so that the fork server is there
    servers = children()
    for server in servers:
        os.kill(server, signal.SIGSTOP)
    try:
        with ps.from_sequence(range(9)).map(str, on="process", workers=1).loader(timeout_s=0.3) as loader:
            with pytest.raises(ps.StageTimeout, match="held up by 1 worker process that is still being started"):
                list(loader)
            for server in servers:
                os.kill(server, signal.SIGCONT)
    finally:
        for server in servers:
            os.kill(server, signal.SIGCONT)


# ---------------------------------------------------------------------- stages one after the other


def where(sample):
    return (*sample, os.getpid()) if isinstance(sample, tuple) else (sample, os.getpid())


def test_two_stages_of_processes_do_not_share_their_processes():
    samples = list(ps.from_sequence(range(40)).map(where, **OWN).map(where, **OWN))
    first, second = {sample[1] for sample in samples}, {sample[2] for sample in samples}
    assert [sample[0] for sample in samples] == list(range(40))
    assert not first & second
    assert os.getpid() not in first | second


def test_a_thread_stage_between_two_stages_of_processes():
    def here(sample):
        return (*sample, os.getpid(), threading.current_thread().name != "MainThread")

    pipeline = (
        ps.from_sequence(range(60))
        .shuffle()
        .map(lambda x: np.full(5000, x), **TWO)
        .map(lambda array: (int(array.sum()), array), workers=2)
        .map(here, workers=2)
        .map(lambda total, array, *rest: (total, int(array.sum()), *rest, os.getpid()), star=True, **TWO)
        .batch(7, collate=list)
    )
    samples = [sample for batch in pipeline for sample in batch]
    assert sorted(total // 5000 for total, *_ in samples) == list(range(60))
    assert all(total == again for total, again, *_ in samples)
    assert {sample[2] for sample in samples} == {os.getpid()}
    assert os.getpid() not in {sample[-1] for sample in samples}


def test_an_async_def_behind_processes_runs_here():
    loops = set()

    async def fetch(sample):
        loops.add(asyncio.get_running_loop())
        return where(sample)

    pipeline = ps.from_sequence(range(40)).map(where, **TWO).map(fetch).map(where)
    samples = list(pipeline)
    assert [sample[0] for sample in samples] == list(range(40))
    assert all(remote != here == os.getpid() == again for _, remote, here, again in samples)
    assert len(loops) == 1


def test_the_loader_places_what_has_no_place():
    pipeline = ps.from_sequence(range(40)).map(where).filter(lambda sample: sample[0] % 2).map(where)
    with pipeline.loader(**TWO) as loader:
        samples = list(loader)
        assert loader.stats()["stage.where+lambda.workers"] <= 2
    assert [sample[0] for sample in samples] == list(range(1, 40, 2))
    assert all(first == second != os.getpid() for _, first, second in samples)


def test_an_op_on_threads_stays_here_when_the_loader_says_processes():
    pipeline = ps.from_sequence(range(40)).map(where, workers=2).map(where)
    with pipeline.loader(**TWO) as loader:
        assert {pid for sample in loader for pid in sample[1:]} == {os.getpid()}


def test_unordered_processes_give_the_same_multiset():
    pipeline = ps.from_sequence(range(300)).map(lambda x: x % 50, ordered=False, **TWO)
    assert Counter(pipeline) == Counter(x % 50 for x in range(300))
    spread = ps.from_sequence(range(60)).flat_map(lambda x: [x] * (x % 4), ordered=False, **TWO).batch(5)
    assert Counter(x for batch in spread for x in batch.tolist()) == Counter(
        x for x in range(60) for _ in range(x % 4)
    )


def test_joined_pipelines_on_processes_of_their_own():
    def build():
        left = ps.from_sequence(range(30)).shuffle().map(lambda x: x * 2, **TWO)
        right = ps.from_iterable(lambda: range(40)).map(lambda x, rng: (x, rng.random()), rng=True, **TWO)
        both = ps.zip(left, right).map(lambda a, b: (a, *b), star=True, on="process", workers=1)
        return ps.concat(both, ps.from_sequence("abc").map(str.upper, **TWO)).batch(4, collate=list)

    (first, _) = same_as_inline(build())
    assert [sample for batch in first for sample in batch][-3:] == ["A", "B", "C"]


def test_an_error_in_the_second_stage_names_the_number_in_the_source():
    def bad(x):
        if x % 10 == 7:
            raise ValueError(f"bad {x}")
        return x

    pipeline = ps.from_sequence(range(50)).shuffle().map(abs, **TWO).map(bad, on_error="skip", **TWO)
    with pipeline.loader() as loader:
        list(loader)
        assert sorted(record.index for record in loader.errors()) == [7, 17, 27, 37, 47]


def test_the_note_names_op_line_sample_and_worker():
    def bad(x):
        return 1 // (x - 13)

    with pytest.raises(ZeroDivisionError) as caught:
        list(ps.from_sequence(range(50)).shuffle().map(bad, **TWO))
    (note,) = caught.value.__notes__
    for part in ("map(bad) at ", "test_process_streams.py:", "sample 13", "worker "):
        assert part in note
    frames = []
    trace = caught.value.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert frames[-1] == "bad"


# ---------------------------------------------------------------------- pools


def test_a_pool_is_shared_by_pipelines_and_its_processes_stay():
    with ps.Processes(2) as pool:
        pids = [{pid for _, pid in ps.from_sequence(range(40)).map(where, on=pool)} for _ in range(3)]
        assert set.union(*pids) == pids[0] or len(set.union(*pids)) <= 2
        with ps.from_sequence(range(40)).map(where, on=pool).loader() as loader:
            assert {pid for _, pid in loader} <= set.union(*pids)


def test_workers_on_a_pool_are_a_cap_within_it(tmp_path):
    inside = Log(tmp_path / "inside")

    def noted(x):
        inside("in", x)
        time.sleep(0.002)
        inside("out", x)
        return x

    with ps.Processes(3) as pool:
        assert list(ps.from_sequence(range(40)).map(noted, on=pool, workers=1)) == list(range(40))
    words = [line[1] for line in inside.lines()]
    assert words == ["in", "out"] * 40


def test_a_pool_of_one_serves_two_stages_and_two_loaders():
    with ps.Processes(1) as pool:
        pipeline = ps.from_sequence(range(50)).map(str, on=pool).shuffle(window=5).map(int, on=pool).batch(4)
        with pipeline.loader(epochs=2) as one, pipeline.loader(epochs=2) as other:
            for _ in range(2):
                assert all((a == b).all() for a, b in zip(one, other, strict=True))


def test_a_pool_pickles_as_its_description():
    pool = ps.Processes(3, on_death="raise", start="spawn", env={"A": "1"}, mallopt=False)
    twin = pickle.loads(pickle.dumps(pool))
    assert (twin.workers, twin.on_death, twin.start, dict(twin.env), twin.mallopt) == (
        3,
        "raise",
        "spawn",
        {"A": "1"},
        False,
    )
    with ps.Processes(2) as used:
        assert list(ps.from_sequence(range(3)).map(abs, on=used)) == [0, 1, 2]
        twin = pickle.loads(pickle.dumps(used))
        assert twin.workers == 2
        assert twin.live is None
        pipeline = ps.from_sequence(range(3)).map(abs, on=used)
        assert pipeline.ops[0].on is used


def test_a_function_may_read_a_pipeline_on_processes_of_its_own():
    def inner(x):
        return sum(ps.from_sequence(range(x)).map(abs, on="process"))

    assert list(ps.from_sequence([2, 3]).map(inner, on="process")) == [1, 3]


def test_the_environment_of_a_pool_reaches_its_processes(monkeypatch):
    monkeypatch.setattr(servers, "PRELOAD", ("cloudpickle", "penstock.remote.serving"))
    with ps.Processes(1, env={"PENSTOCK_TEST": "yes"}) as pool:
        names = ps.from_sequence(["PENSTOCK_TEST", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"])
        assert list(names.map(lambda name: os.environ[name], on=pool)) == ["yes", "1", ""]


# ---------------------------------------------------------------------- bounds, epochs


def settled(log):
    """The number of lines, once there have been none for a moment."""
    before, deadline = -1, time.monotonic() + 60
    while before != (now := len(log.lines())) or not now:
        assert time.monotonic() < deadline
        before = now
        time.sleep(0.1)
    return now


@pytest.mark.parametrize("ready", [1, 8])
def test_prefetch_bounds_what_processes_make_ahead(ready, log, monkeypatch):
    monkeypatch.setattr(Sizer, "record", lambda *_: None)  # every ticket is one sample

    def noted(x):
        log(x)
        return x

    one = {"on": "process", "workers": 1}
    with ps.from_sequence(range(2000)).map(noted, **one).prefetch(ready).loader(epochs=1).start() as loader:
        # Beside what is ready, a process may have begun with one more, and one waits behind that.
        assert settled(log) <= ready + 3
        batches = iter(loader)
        for _ in range(10):
            next(batches)
        assert settled(log) <= 10 + ready + 4


@pytest.mark.parametrize("source", ["indexed", "stream"])
def test_memory_bounds_what_processes_make_ahead(source, log):
    def large(x):
        log(x)
        return np.full(1_000_000, x, np.uint8)

    data = ps.from_sequence(range(200)) if source == "indexed" else ps.from_iterable(lambda: range(200))
    with data.map(large, **TWO).prefetch(100).loader(epochs=1, memory="6MB").start() as loader:
        # six fit, and one chunk per worker comes on top
        assert settled(log) <= 6 + 2
        for number, sample in enumerate(loader):
            assert sample[0] == sample[-1] == number % 256
            assert len(sample) == 1_000_000
    assert log.numbers() == Counter(range(200))


def test_an_epoch_may_be_broken_off_again_and_again():
    def large(x):
        return np.full(50_000, x)

    numbers = ps.from_sequence(range(100)).shuffle()
    with (
        numbers.map(large, **TWO).batch(5).loader(seed=3) as loader,
        numbers.batch(5).loader(seed=3, inline=True) as inline,
    ):
        for epoch in range(10):
            expected = list(inline)
            for number, batch in enumerate(loader):
                assert (batch[:, 0] == expected[number]).all()
                if number == epoch:
                    break


@pytest.mark.fuzz
def test_a_cached_stream_may_be_broken_off_and_read_again_without_a_hang():
    """Who looks for a ticket may open stages of another crew; if that was just looking, it has to look again."""
    pipeline = ps.from_iterable(lambda: range(6)).map(lambda x: x + 1).cache()
    for _ in range(8 * TIMES):
        with pipeline.loader(on="process", workers=3, timeout_s=60) as loader:
            for _ in range(3):
                assert next(iter(loader)) == 1
            assert list(loader) == list(loader) == [1, 2, 3, 4, 5, 6]


def test_set_epoch_and_start_find_their_place():
    pipeline = ps.from_sequence(range(30)).shuffle().map(lambda x, info: (x, info.epoch), info=True, **TWO)
    expected = same_as_inline(pipeline, 4)
    with pipeline.loader(seed=3).start() as loader:
        assert list(loader) == expected[0]
        for epoch in (2, 0, 3, 3, 1):
            loader.set_epoch(epoch)
            assert list(loader) == expected[epoch]


def test_two_loaders_at_once_do_not_disturb_each_other():
    pipeline = ps.from_sequence(range(100)).shuffle().map(lambda x: x, **TWO).batch(8)
    with pipeline.loader(seed=1) as one, pipeline.loader(seed=2) as other, pipeline.loader(seed=1) as twin:
        for _ in range(2):
            pairs = list(zip(one, other, twin, strict=True))
            assert all((a == c).all() for a, _, c in pairs)
            assert any((a != b).any() for a, b, _ in pairs)
