"""Whatever happens to worker processes: every sample comes once, in order, or an error says why it cannot."""

import array
import ctypes
import fcntl
import os
import re
import resource
import signal
import sys
import termios
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tests.random_examples import seeds
from tests.runtime.helpers import begin_with, until_error
from tests.runtime.process_helpers import (
    Killer,
    await_true,
    children,
    first_time,
    kill,
    meet,
    met,
    nth_time,
    release,
    run_alone,
    script,
    spend,
    state,
    workers,
)

import penstock as ps
from penstock.executors import servers
from penstock.executors.startup import keep_warm
from penstock.memory import block as block_module
from penstock.program.sizing import Sizer
from penstock.remote.connection import Connection
from penstock.testing.leaks import leaks_since, snapshot

pytestmark = pytest.mark.usefixtures("warm_processes")


#: long for a call that only returns its sample, short for a test
LATE_S = 0.5


def indices(loader):
    return [record.index for record in loader.errors()]


# ---------------------------------------------------------------------- random kills


def plain(sample):
    """Arrays as lists, so that samples can be compared."""
    if isinstance(sample, dict):
        return {key: plain(value) for key, value in sample.items()}
    return sample.tolist() if isinstance(sample, np.ndarray) else sample


def survives(pipeline, kills, epochs=1, lost=()):
    """Kill workers at random all through the epochs; the stream is that of a run without faults."""
    want = [plain(sample) for sample in pipeline.loader(inline=True)]
    with pipeline.loader(timeout_s=60) as loader:
        for epoch in range(epochs):
            killer = Killer(seeds(epoch + 1)[epoch], kills, len(want))
            assert [plain(sample) for sample in killer.through(loader)] == want
            assert killer.kills == kills
        assert indices(loader) == list(lost)


def rows(source, width):
    return source.map(lambda x: {"i": x, "x": np.full(width, x)}, on="process", workers=2)


def test_random_kills_change_nothing():
    survives(rows(ps.from_sequence(range(500)), 9), 2)


@pytest.mark.soak
def test_a_hundred_random_kills_during_20_000_samples_change_nothing():
    survives(rows(ps.from_sequence(range(20_000)), 9), 110)


def test_random_kills_change_nothing_in_batches():
    survives(rows(ps.from_sequence(range(1000)).shuffle(), 300).batch(32), 2)


@pytest.mark.soak
def test_a_hundred_random_kills_during_20_000_samples_in_batches_change_nothing():
    survives(rows(ps.from_sequence(range(20_000)).shuffle(), 300).batch(32), 110)


def test_random_kills_change_nothing_in_a_stream():
    def load(x):
        spend(0.0002)
        return {"i": x, "x": np.full(9, x)}

    survives(ps.from_iterable(lambda: iter(range(300))).map(load, on="process", workers=2), 2)


@pytest.mark.soak
def test_random_kills_change_nothing_in_a_stream_of_large_samples():
    def records():
        for number in range(100):
            yield np.full(8000, number)

    def load(x):
        spend(0.001)
        return {"x": x + 1}

    survives(ps.from_iterable(records).map(load, on="process", workers=2), 2)


def test_random_kills_change_nothing_where_one_sample_becomes_many():
    def many(x):
        for number in range(50):
            spend(0.0004)
            yield x, number

    survives(ps.from_sequence(range(5)).flat_map(many, on="process", workers=2), 2)


def test_random_kills_change_nothing_with_a_filter_and_a_cache():
    def load(x):
        spend(0.0003)
        return x * 2

    pipeline = ps.from_sequence(range(150)).map(load, on="process", workers=2)
    survives(pipeline.filter(lambda x: x % 3).cache().map(lambda x: spend(0.0003) or x + 1), 1, epochs=2)


def test_random_kills_change_nothing_in_two_stages_of_processes():
    def load(x):
        spend(0.0003)
        return x + 1

    pipeline = ps.from_sequence(range(150)).map(load, on="process", workers=2)
    survives(pipeline.shuffle(64, seed=1).map(load, on="process", workers=1).batch(5), 2)


def test_random_kills_change_nothing_where_samples_are_skipped():
    def picky(x):
        spend(0.0003)
        if x % 7 == 0:
            raise ValueError(x)
        return x

    pipeline = ps.from_sequence(range(150)).map(picky, on="process", workers=2, on_error="skip").batch(8)
    survives(pipeline, 2, lost=range(0, 150, 7))


# ---------------------------------------------------------------------- kills at chosen moments


def test_a_kill_before_the_first_result(tmp_path):
    def begin(x):
        meet(tmp_path)
        return x

    with ps.from_sequence(range(50)).map(begin, on="process", workers=1).loader(timeout_s=60) as loader:
        loader.start()
        kill(met(tmp_path))
        assert list(loader) == list(range(50))
        assert loader.stats()["deaths"] == 1


def test_a_kill_before_it_has_its_program():
    pool = ps.Processes(1)
    with pool:
        for _ in range(3):
            (pid,) = ps.from_sequence([0]).map(lambda _: os.getpid(), on=pool)
            kill(pid, signal.SIGSTOP)
            await_true(lambda pid=pid: state(pid) == "T", "the stop")
            with ps.from_sequence(range(50)).map(str, on=pool).loader(timeout_s=60) as loader:
                loader.start()
                kill(pid)
                assert list(loader) == [str(x) for x in range(50)]


def test_a_kill_while_it_writes_a_block(tmp_path):
    def large(x):
        return {"a": np.full(100_000, x), "b": Waits(x, tmp_path)}

    class Waits:
        """Pickled while the chunk is laid out, after its arrays are known and before they are sent."""

        def __init__(self, x, folder):
            self.x, self.folder = x, folder

        def __reduce__(self):
            if self.x == 3:
                meet(self.folder)
            return int, (self.x,)

    with ps.from_sequence(range(20)).map(large, on="process", workers=2).loader(timeout_s=60) as loader:
        loader.start()
        kill(met(tmp_path))
        got = list(loader)
        assert [sample["b"] for sample in got] == list(range(20))
        assert all((sample["a"] == number).all() for number, sample in enumerate(got))


def in_the_middle_of_a_message(loader, monkeypatch):
    """Have the worker stand in the middle of a message; its pid. The parent does not read on before `go` is set."""
    reached, go = threading.Event(), threading.Event()
    wait = Connection.wait

    def waits(line, *args):
        found = wait(line, *args)
        waiting = array.array("i", [0])
        fcntl.ioctl(line.process.socket, termios.FIONREAD, waiting)
        if waiting[0] > 10_000:
            reached.set()
            assert go.wait(60)
        return found

    monkeypatch.setattr(Connection, "wait", waits)
    loader.start()
    assert reached.wait(60)
    (pid,) = workers()
    return pid, go


def test_a_kill_while_it_sends_a_large_message(monkeypatch):
    monkeypatch.setattr(block_module, "_MOST_BLOCKS", 0)  # so that it goes through the socket
    pipeline = ps.from_sequence(range(6)).map(lambda x: np.full(1_000_000, x), on="process", workers=1)
    with pipeline.loader(timeout_s=60) as loader:
        pid, go = in_the_middle_of_a_message(loader, monkeypatch)
        kill(pid)
        go.set()
        assert [(len(x), x[0], x[-1]) for x in loader] == [(1_000_000, n, n) for n in range(6)]
        assert loader.stats()["deaths"] == 1


def test_a_kill_while_idle():
    with ps.from_sequence(range(40)).map(lambda x: x + 1, on="process", workers=2).loader(timeout_s=60) as loader:
        for _ in range(3):
            assert list(loader) == list(range(1, 41))
            for pid in workers():
                kill(pid)


def test_a_kill_at_close(tmp_path):
    def begin(x):
        meet(tmp_path)
        return x

    with ps.from_sequence(range(50)).map(begin, on="process", workers=2).loader() as loader:
        loader.start()
        met(tmp_path)
        for pid in workers():
            kill(pid)
    assert workers() == []


def test_a_kill_of_the_fork_server_loses_nothing(monkeypatch):
    monkeypatch.setattr(Sizer, "record", lambda *_: None)  # tickets of one sample, so that some are left to be run
    # A server of its own, without what only tests need: that of the other tests stays.
    monkeypatch.setattr(servers, "PRELOAD", ("cloudpickle", "penstock.remote.serving"))
    with ps.Processes(2, env={"PENSTOCK_TEST": "server"}) as pool:
        others = set(children())
        slowly = ps.from_sequence(range(300)).map(lambda x: time.sleep(0.002) or x * 2, on=pool)
        with slowly.loader(timeout_s=60) as loader:
            got = []
            for x in loader:
                got.append(x)
                if x == 100:
                    for server in set(children()) - others:
                        kill(server)
            assert got == list(range(0, 600, 2))
            assert loader.errors() == []
            assert loader.stats()["deaths"] >= 1
            assert list(loader) == got


# ---------------------------------------------------------------------- the parent is killed

STUCK = {
    "a loop that holds the interpreter lock": "sys.setswitchinterval(1000)\n    while True: pass",
    "a regular expression": "re.match(r'(a+)+$', 'a' * 64 + 'b')",
    "sleep": "time.sleep(1000)",
    "a nested pipeline": "list(ps.from_sequence(range(2)).map(deeper, on='process', workers=2))",
}

STUCK_SCRIPT = """
import os, re, sys, time
import numpy as np, penstock as ps

def deeper(x):
    os.write(1, b"in\\n")
    time.sleep(1000)

def stuck(x):
    os.write(1, b"in\\n")
    {stuck}

loader = ps.from_sequence(range(100)).map(stuck, on={on!r}, workers=2).loader({isolate})
loader.start()
for x in loader: pass
"""


def soak(*values):
    """A case that is like one of the others, or takes long."""
    return pytest.param(*values, marks=pytest.mark.soak)


@pytest.mark.parametrize(
    ("stuck", "isolate"),
    [
        ("a loop that holds the interpreter lock", ""),
        soak("a nested pipeline", "isolate=True"),
        soak("a loop that holds the interpreter lock", "isolate=True"),
        soak("a nested pipeline", ""),
        soak("a regular expression", ""),
        soak("sleep", ""),
    ],
)
def test_when_the_parent_is_killed_its_workers_end(stuck, isolate):
    code = STUCK_SCRIPT.format(stuck=STUCK[stuck], on="process", isolate=isolate)
    with script(code) as running:
        for _ in range(4 if "nested" in stuck else 2):
            assert running.line() == "in"
        assert len(running.members()) >= 4
        kill(running.pid)
        await_true(lambda: not running.members(), "the end of all workers")


@pytest.mark.parametrize("start", [soak("spawn"), "fork"])
def test_when_the_parent_is_killed_workers_of_every_start_method_are_gone(start):
    code = STUCK_SCRIPT.format(stuck="while True: pass", on="process", isolate="")
    code = code.replace("on='process', workers=2", f"on=ps.Processes(2, start={start!r})")
    with script(code) as running:
        assert [running.line(), running.line()] == ["in", "in"]
        kill(running.pid)
        await_true(lambda: not running.members(), "the end of all workers")


def test_when_the_whole_group_is_killed_nothing_is_left():
    before = set(os.listdir("/dev/shm"))
    code = """
    import numpy as np, penstock as ps
    kept = []
    for x in ps.from_sequence(range(10**9)).map(lambda x: np.full(100_000, x), on="process", workers=2).loader():
        kept = [*kept[-5:], x]
        print("in", flush=True)
    """
    with script(code) as running:
        for _ in range(20):
            running.line()
        os.killpg(running.pid, signal.SIGKILL)
        await_true(lambda: not running.members(), "the end of all")
    assert set(os.listdir("/dev/shm")) <= before


# ---------------------------------------------------------------------- ends of all kinds

DEATHS = {
    "os._exit": (lambda: os._exit(3), "exited with code 3"),
    "a segmentation fault": (lambda: ctypes.string_at(0), "SIGSEGV"),
    "SIGKILL": (lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL"),
    "abort": (lambda: os.abort(), "SIGABRT"),
}


def dies_at(bad, die):
    def maybe(x):
        if x in bad:
            die()
        return x

    return maybe


@pytest.mark.parametrize("death", ["os._exit", "a segmentation fault", soak("SIGKILL"), soak("abort")])
def test_a_sample_that_kills_is_named(death):
    die, how = DEATHS[death]
    with (
        ps.from_sequence(range(30)).map(dies_at([17], die), on="process", workers=2).loader(timeout_s=60) as loader
    ):
        got, exc = until_error(loader)
        assert got == list(range(17))
        assert type(exc) is ps.WorkerDied
        told = " ".join([str(exc), *getattr(exc, "__notes__", [])])
        assert how in told
        assert re.search(r"map\(maybe\) at .*test_process_faults\.py:\d+", told)
        assert str(exc).count("sample 17") == 1  # its place is told once
        assert str(exc).endswith("; on_error='skip' leaves such samples out")
        assert indices(loader) == [17]


@pytest.mark.parametrize("death", [soak("a segmentation fault"), "SIGKILL"])
def test_a_sample_that_kills_is_left_out_and_the_rest_comes(death):
    die, how = DEATHS[death]
    pipeline = ps.from_sequence(range(30)).map(dies_at([17], die), on="process", workers=2, on_error="skip")
    with pipeline.loader(timeout_s=60) as loader:
        assert list(loader) == [x for x in range(30) if x != 17]
        (record,) = loader.errors()
        assert (record.index, record.epoch, type(record.exception)) == (17, 0, ps.WorkerDied)
        assert record.op == "map(maybe)"
        assert how in str(record.exception)
        assert "leaves such samples out" not in str(record.exception)  # it was


def test_a_sample_that_closes_the_descriptors_of_its_worker_ends_in_an_error():
    maybe = dies_at([17], lambda: os.closerange(3, 100))
    with ps.from_sequence(range(30)).map(maybe, on="process", workers=2).loader(timeout_s=60) as loader:
        got, exc = until_error(loader)
        assert got == list(range(len(got)))
        assert type(exc) is ps.WorkerDied


@pytest.mark.parametrize("layout", ["shuffle", "filter before", soak("stream"), soak("batch"), soak("no batch")])
def test_several_samples_that_kill_are_left_out_and_no_other(layout):
    bad = [3, 4, 40]
    source = ps.from_iterable(lambda: iter(range(50))) if layout == "stream" else ps.from_sequence(range(50))
    if layout == "shuffle":
        source = source.shuffle(seed=4)
    if layout == "filter before":
        source = source.filter(lambda x: x % 2 == 0, on="process", workers=2)
    pipeline = source.map(dies_at(bad, lambda: os._exit(3)), on="process", workers=2, on_error="skip")
    if layout in ("batch", "shuffle"):
        pipeline = pipeline.batch(16)
    with pipeline.loader(timeout_s=60, seed=1) as loader:
        got = list(loader)
        got = np.concatenate(got).tolist() if layout in ("batch", "shuffle") else got
        want = [x for x in range(50) if x not in bad and (layout != "filter before" or x % 2 == 0)]
        assert (sorted(got) if layout == "shuffle" else got) == want
        assert sorted(indices(loader)) == [x for x in bad if layout != "filter before" or x % 2 == 0]


def test_samples_that_kill_among_those_made_of_one():
    # Two of the same input: the search for killers must not stop at the first.
    bad = [(3, 1), (3, 4), (9, 0)]
    pipeline = ps.from_sequence(range(20)).flat_map(lambda x: [(x, n) for n in range(6)], on="process", workers=1)
    with pipeline.map(dies_at(bad, lambda: os._exit(3)), on_error="skip").loader(timeout_s=60) as loader:
        assert list(loader) == [(x, n) for x in range(20) for n in range(6) if (x, n) not in bad]
        assert indices(loader) == [3, 3, 9]


def test_a_sample_that_kills_inside_flat_map_is_left_out():
    def many(x):
        yield x, 0
        if x == 5:
            os._exit(3)
        yield x, 1

    pipeline = ps.from_sequence(range(20)).flat_map(many, on="process", workers=2, on_error="skip")
    with pipeline.loader(timeout_s=60) as loader:
        got = list(loader)
        assert [one for one in got if one[0] != 5] == [(x, n) for x in range(20) if x != 5 for n in range(2)]
        assert [one for one in got if one[0] == 5] in ([], [(5, 0)])
        assert indices(loader) == [5]


def test_a_sample_that_kills_while_it_is_read_is_named():
    class Rows:
        def __len__(self):
            return 30

        def __getitem__(self, number):
            if number == 17:
                os._exit(3)
            return number

    with ps.from_sequence(Rows()).map(lambda x: x, on="process", workers=2).loader(timeout_s=60) as loader:
        got, exc = until_error(loader)
        assert got == list(range(17))
        assert type(exc) is ps.WorkerDied
        assert "exited with code 3" in str(exc)
        assert "sample 17" in str(exc)
        assert "from_sequence" in str(exc)
        assert indices(loader) == [17]


@pytest.mark.parametrize("batches", [1, soak(4)])
def test_a_batch_that_kills_in_collate_is_an_error_at_its_place(batches, monkeypatch):
    def collate(samples):
        if 17 in samples:
            os._exit(3)
        return samples

    begin_with(monkeypatch, batches)
    pipeline = ps.from_sequence(range(32)).map(lambda x: x, on="process", workers=2, on_error="skip")
    with pipeline.batch(8, collate=collate).loader(timeout_s=60) as loader:
        got, exc = until_error(loader)
        assert got == [list(range(8)), list(range(8, 16))]
        assert type(exc) is ps.WorkerDied
        assert "exited with code 3" in str(exc)
        assert indices(loader) == [16]


@pytest.mark.parametrize("batches", [soak(1), 4])
def test_a_batch_that_kills_behind_batch_is_skipped_alone(batches, monkeypatch):
    def kills(batch):
        if 17 in batch:
            os._exit(3)
        return batch.tolist()

    begin_with(monkeypatch, batches)
    pipeline = ps.from_sequence(range(32)).batch(8).map(kills, on="process", workers=2, on_error="skip")
    with pipeline.loader(timeout_s=60) as loader:
        assert list(loader) == [list(range(start, start + 8)) for start in (0, 8, 24)]
        assert indices(loader) == [16]


def test_on_death_raise_raises_at_once(tmp_path):
    def once(x):
        if x == 5 and first_time(tmp_path / "died"):
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    pool = ps.Processes(1, on_death="raise")
    with pool, ps.from_sequence(range(30)).map(once, on=pool).loader(timeout_s=60) as loader:
        got, exc = until_error(loader)
        assert got == list(range(len(got)))  # nothing is run again, so what was made with sample 5 is lost
        assert type(exc) is ps.WorkerDied
        assert "sample 5" in str(exc)
        assert loader.stats()["deaths"] == 1
        assert list(loader) == list(range(30))


def test_many_deaths_of_one_ticket_at_different_samples_condemn_nobody(tmp_path):
    # Two deaths, the probe of all eight samples, then three deaths each at another sample.
    def unlucky(x):
        if nth_time(tmp_path) in (3, 7, 17, 20, 24):
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    with ps.from_sequence(range(8)).map(unlucky, on="process", workers=1).batch(8).loader(timeout_s=60) as loader:
        assert [batch.tolist() for batch in loader] == [list(range(8))]
        assert loader.stats()["deaths"] == 5


def test_a_sample_lost_once_is_told_once_though_its_ticket_is_begun_again(tmp_path):
    def many(x):
        if x % 2:
            raise ValueError(x)
        yield x
        if x % 100 == 50:
            time.sleep(0.03)  # so that what there is, is handed in
            yield -x
            time.sleep(0.03)
            if first_time(tmp_path / str(x)):
                os._exit(3)
            yield -x

    want = [y for x in range(0, 300, 2) for y in ([x, -x, -x] if x % 100 == 50 else [x])]
    pipeline = ps.from_sequence(range(300)).flat_map(many, on="process", workers=1, on_error="skip")
    with pipeline.loader(timeout_s=60) as loader:
        assert list(loader) == want
        assert indices(loader) == list(range(1, 300, 2))


# ---------------------------------------------------------------------- stuck and stopped


def spin():
    while True:
        pass


def doze():
    time.sleep(1000)


HANGS = {
    "a loop": spin,
    "a C call": lambda: re.match(r"(a+)+$", "a" * 64 + "b"),
    "a stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
}


@pytest.mark.parametrize("hang", [soak("a loop"), "a C call", "a stop"])
def test_a_call_that_does_not_return_is_ended_and_its_sample_left_out(hang):
    maybe = dies_at([6], HANGS[hang])
    pipeline = ps.from_sequence(range(20)).map(maybe, on="process", workers=2, timeout_s=LATE_S, on_error="skip")
    with pipeline.loader(timeout_s=60) as loader:
        assert list(loader) == [x for x in range(20) if x != 6]
        (record,) = loader.errors()
        assert record.index == 6
        assert isinstance(record.exception, (ps.StageTimeout, ps.WorkerDied))


def test_a_call_that_does_not_return_raises_stage_timeout():
    pipeline = ps.from_sequence(range(20)).map(dies_at([6], doze), on="process", workers=2, timeout_s=LATE_S)
    with pipeline.loader(timeout_s=60) as loader:
        got, exc = until_error(loader)
        assert got == list(range(6))
        assert type(exc) is ps.StageTimeout
        assert any("map(maybe)" in note and "sample 6" in note for note in exc.__notes__)
        assert indices(loader) == [6]


def test_a_call_that_does_not_return_is_retried(tmp_path):
    def once(x):
        if x == 6 and first_time(tmp_path / "stuck"):
            doze()
        return x

    retry = ps.Retry(2, backoff_s=0)
    pipeline = ps.from_sequence(range(20)).map(once, on="process", workers=2, timeout_s=LATE_S, on_error=retry)
    with pipeline.loader(timeout_s=60) as loader:
        assert list(loader) == list(range(20))
        assert loader.errors() == []


@pytest.mark.parametrize("hang", [soak("a loop"), soak("a C call"), "a stop"])
def test_the_loaders_timeout_names_what_holds_a_batch_up(hang, tmp_path):
    def hangs():
        (tmp_path / "hangs").touch()
        HANGS[hang]()

    maybe = dies_at([6], hangs)
    with ps.from_sequence(range(20)).map(maybe, on="process", workers=2).loader(timeout_s=1) as loader:
        loader.start()
        await_true((tmp_path / "hangs").exists, "the call that hangs")
        got, exc = until_error(loader)
        assert got == list(range(len(got)))
        assert type(exc) is ps.StageTimeout
        assert "map(maybe)" in str(exc)
        assert "sample 6" in str(exc)


def test_a_worker_that_is_stopped_between_two_calls_does_not_hold_up_a_call_with_a_timeout():
    with ps.Processes(1) as pool:
        (pid,) = ps.from_sequence([0]).map(lambda _: os.getpid(), on=pool)
        kill(pid, signal.SIGSTOP)
        await_true(lambda: state(pid) == "T", "the stop")
        with ps.from_sequence(range(3)).map(lambda x: x, on=pool, timeout_s=LATE_S).loader(timeout_s=60) as loader:
            assert list(loader) == [0, 1, 2]


# ---------------------------------------------------------------------- crash loops


def deadly():
    parent = os.getpid()

    class Deadly:
        """Ends the process that unpickles it, unless that is this one."""

        def __reduce__(self):
            return end_elsewhere, (parent,)

        def __call__(self, x):
            return x

    def end_elsewhere(pid):
        if os.getpid() != pid:
            os._exit(3)
        return Deadly()

    return Deadly()


LOOPS = {
    "a factory that exits": lambda: ps.per_worker(lambda: os._exit(3)),
    "a function whose arrival kills": deadly,
    "every sample kills": lambda: lambda x: os._exit(3),
}


@pytest.mark.parametrize(
    ("loop", "on_error"),
    [
        ("a function whose arrival kills", "raise"),
        soak("a factory that exits", "raise"),
        soak("a factory that exits", "skip"),
        soak("every sample kills", "raise"),
        soak("every sample kills", "skip"),  # some hundred deaths
    ],
)
def test_a_crash_loop_ends_in_an_error(loop, on_error):
    pipeline = ps.from_sequence(range(100_000)).map(LOOPS[loop](), on="process", workers=2, on_error=on_error)
    with pipeline.batch(64).loader(timeout_s=60) as loader:
        got, exc = until_error(loader)
        assert got == []
        assert type(exc) is ps.WorkerDied
        assert "exited with code 3" in str(exc)


# ---------------------------------------------------------------------- memory and descriptors


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_every_batch_of_an_epoch_can_be_kept():
    with (
        ps.from_sequence(range(2000))
        .map(lambda x: np.full(2_500, x, np.int32), on="process", workers=2)
        .batch(4)
        .loader(timeout_s=60) as loader
    ):
        iterator = iter(loader)
        kept = [next(iterator) for _ in range(50)]
        many = descriptors()
        kept += iterator
        assert descriptors() - many < 300  # one per block, and blocks are bounded
        again = list(loader)
        assert descriptors() - many < 300
        for epoch in (kept, again):
            assert len(epoch) == 500
            for number, batch in enumerate(epoch):
                assert (batch == np.arange(4 * number, 4 * number + 4)[:, None]).all()
        kept.clear(), again.clear()
        batch = epoch = None
        assert len(list(loader)) == 500


def test_many_batches_with_few_descriptors():
    code = """
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    import os, numpy as np, penstock as ps
    pipeline = ps.from_sequence(range(2000)).map(lambda x: np.full(2500, x), on="process", workers=2).batch(2)
    kept, most = [], 0
    for number, batch in enumerate(pipeline.loader(timeout_s=60)):
        assert (batch == [[2 * number], [2 * number + 1]]).all()
        if number % 4 == 0:
            kept.append((number, batch))
            most = max(most, len(os.listdir("/proc/self/fd")))
    assert number == 999
    assert all((batch == [[2 * number], [2 * number + 1]]).all() for number, batch in kept)
    assert most < 128, most
    """
    assert run_alone(code, timeout_s=120) == (0, "", "")


SMALL = """
import os, numpy as np, penstock as ps
assert os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize == 1 << 20
for options in {}, {"isolate": True}:
    pipeline = ps.from_sequence(range(10)).map(lambda x: np.full(500_000, x), on="process", workers=1)
    kept = list(pipeline.loader(timeout_s=60, **options))
    assert all((x == n).all() for n, x in enumerate(kept)) and len(kept) == 10
"""


@pytest.mark.soak  # tests/memory/test_block.py has the same law without processes
def test_a_small_dev_shm_does_not_matter(tmp_path):
    if os.system("unshare -rm sh -c 'mount -t tmpfs -o size=1m none /dev/shm' 2>/dev/null"):
        pytest.skip("no user namespaces here")
    (tmp_path / "small.py").write_text(SMALL)
    mounted = 'mount -t tmpfs -o size=1m none /dev/shm && exec "$0" "$1"'
    command = ["unshare", "-rm", "sh", "-c", mounted, sys.executable, str(tmp_path / "small.py")]
    assert run_alone(f"import os; os.execvp('unshare', {command!r})") == (0, "", "")


LIMITS = {
    # name: what is limited, to how much more than is used, the size of a sample
    "files": "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000,) * 2)",
    "memory": "resource.setrlimit(resource.RLIMIT_AS, (used() + 60_000_000,) * 2)",
}


@pytest.mark.parametrize(("limit", "isolate"), [("files", ""), ("memory", ""), soak("files", "isolate=True")])
def test_too_little_memory_in_the_parent_is_an_error(limit, isolate):
    code = f"""
    import resource, numpy as np, penstock as ps
    def used():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * 4096
    loader = ps.from_sequence(range(1000)).map(lambda x: np.full(20_000_000, x % 250, np.uint8)
        if x > 5 else np.zeros(1), on="process", workers=2).loader(timeout_s=60, {isolate})
    iterator = iter(loader)
    kept = [next(iterator) for _ in range(3)]
    {LIMITS[limit]}
    try:
        for sample in iterator:
            kept.append(sample)
    except (ps.PenstockError, MemoryError) as exc:
        assert not isinstance(exc, ps.StageTimeout), exc
        assert not isinstance(exc, ps.WorkerDied), exc
        print(type(exc).__name__, len(kept) < 100)
    loader.close()
    """
    returncode, out, err = run_alone(code)
    assert (returncode, err) == (0, "")
    assert out in ("PenstockError True\n", "MemoryError True\n")


def test_a_users_memory_error_in_a_worker_is_the_users():
    def limited():
        used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (used + 60_000_000,) * 2)

        def greedy(x):
            return len(bytearray(300_000_000)) if x == 20 else x

        return greedy

    with (
        ps.from_sequence(range(40))
        .map(ps.per_worker(limited), on="process", workers=2)
        .loader(timeout_s=60) as loader
    ):
        got, exc = until_error(loader)
        assert got == list(range(20))
        assert type(exc) is MemoryError
        assert any("sample 20" in note for note in exc.__notes__)


def test_a_worker_without_memory_for_its_answer_says_so(capfd):
    def limited():
        used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (used + 60_000_000,) * 2)
        return lambda x: np.ones(40_000_000, np.uint8) if x == 20 else x

    with (
        ps.from_sequence(range(40))
        .map(ps.per_worker(limited), on="process", workers=2)
        .loader(timeout_s=60) as loader
    ):
        got, exc = until_error(loader)
        assert got == list(range(20))
        assert isinstance(exc, (MemoryError, ps.PenstockError))
        assert not isinstance(exc, ps.StageTimeout)
        told = " ".join([str(exc), *getattr(exc, "__notes__", [])])
        assert "sample 20" in told
    assert capfd.readouterr().err == ""


def test_many_small_arrays_go_through_the_socket_where_there_is_no_block(monkeypatch):
    monkeypatch.setattr(block_module, "_MOST_BLOCKS", 0)

    def records():
        for number in range(5):
            yield [np.full(1500, number, np.uint8) for _ in range(1500)]

    with ps.from_iterable(records).map(np.stack, on="process", workers=1).loader(timeout_s=60) as loader:
        got = list(loader)
        assert [(x.shape, x.min(), x.max()) for x in got] == [((1500, 1500), n, n) for n in range(5)]
        assert loader.stats()["deaths"] == 0


def test_a_worker_that_could_not_be_replaced_is_replaced_later():
    code = """
    import os, resource, signal, time, penstock as ps
    loader = ps.from_sequence(range(5000)).map(lambda x: os.getpid(), on="process", workers=1).loader(timeout_s=60)
    iterator = iter(loader)
    pid = next(iterator)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, 4096))
    os.kill(pid, signal.SIGKILL)
    try:
        print(len(list(iterator)))
    except ps.WorkerDied as exc:
        print("Too many open files" in str(exc))
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096))
    print(len(list(loader)))
    loader.close()
    """
    assert run_alone(code) == (0, "True\n5000\n", "")


# ---------------------------------------------------------------------- again and again


def test_break_and_iterate_again():
    with (
        ps.from_sequence(range(1000))
        .map(lambda x: x + 1, on="process", workers=2)
        .batch(4)
        .loader(timeout_s=60) as loader
    ):
        for number in range(20):
            for batch in loader:
                if batch[0] > 4 * number % 40:
                    break
        assert [x for batch in loader for x in batch] == list(range(1, 1001))


def test_break_and_iterate_again_where_one_sample_becomes_many():
    def many(x):
        for number in range(100):
            time.sleep(0.0005)
            yield x, number

    with ps.from_sequence(range(50)).flat_map(many, on="process", workers=2).loader(timeout_s=60) as loader:
        for number in range(15):
            for sample in loader:
                if sample == (0, 10 * number % 50):
                    break
        iterator = iter(loader)
        assert [next(iterator) for _ in range(150)] == [(x, n) for x in range(2) for n in range(100)][:150]


def test_two_loaders_at_once():
    a = ps.from_sequence(range(100)).map(lambda x: x + 1, on="process", workers=1)
    b = ps.from_sequence(range(100)).map(lambda x: x * 2, on="process", workers=1).batch(3)
    with a.loader(timeout_s=60) as one, b.loader(timeout_s=60) as two:
        for _ in range(20):
            pairs = list(zip(one, two, strict=False))
            assert [x for x, _ in pairs] == list(range(1, 35))
            assert [x for _, batch in pairs for x in batch] == list(range(0, 200, 2))


def test_nested_pools():
    def nesting():
        warm = keep_warm()
        warm.__enter__()

        def nested(x):
            pipeline = ps.from_sequence(range(x, x + 3)).map(lambda y: y * 2, on="process", workers=2)
            with pipeline.loader() as loader:
                return sum(loader)

        nested.warm = warm  # as long as the worker lives
        return nested

    with (
        ps.from_sequence(range(4))
        .map(ps.per_worker(nesting), on="process", workers=1)
        .loader(timeout_s=60) as loader
    ):
        assert list(loader) == [6 * (x + 1) for x in range(4)]


def test_a_pool_shared_by_training_and_validation():
    with ps.Processes(2) as pool:
        train = ps.from_sequence(range(60)).shuffle().map(lambda x: x + 1, on=pool).batch(8).loader(timeout_s=60)
        check = ps.from_sequence(range(20)).map(lambda x: -x, on=pool).loader(timeout_s=60)
        for _ in range(20):
            seen = []
            for number, batch in enumerate(train):
                seen += batch.tolist()
                if number == 3:
                    assert list(check) == [-x for x in range(20)]
            assert sorted(seen) == list(range(1, 61))
        train.close(), check.close()


def test_a_break_in_one_loader_takes_nothing_from_another_on_the_same_pool(tmp_path):
    # One process: a ticket of the first loader is paused in it while it runs one of the second, which is left.
    def many(x):
        for number in range(6):
            spend(0.011)
            yield x, number

    def stays(x):
        meet(tmp_path)
        return x

    pool = ps.Processes(1)
    with (
        pool,
        ps.from_sequence(range(4)).flat_map(many, on=pool).loader(timeout_s=60) as one,
        ps.from_sequence(range(100)).map(stays, on=pool).loader(timeout_s=60) as two,
    ):
        iterator = iter(one)
        got = [next(iterator)]
        left = iter(two.start())
        met(tmp_path)
        with pytest.warns(RuntimeWarning, match="ends the one under way"):
            iter(two)
        release(tmp_path)
        got += iterator
        assert got == [(x, n) for x in range(4) for n in range(6)]
        assert list(left) == []


def test_a_fork_of_a_parent_with_threads_and_processes_disturbs_neither():
    code = """
    import os, sys, penstock as ps
    a = ps.from_sequence(range(600)).map(lambda x: x + 1, on="process", workers=2).batch(4).loader(timeout_s=60)
    b = ps.from_sequence(range(600)).map(lambda x: x + 2, workers=2).loader(timeout_s=60)
    ia, ib = iter(a), iter(b)
    got_a, got_b = [], []
    for number in range(6):
        got_a += next(ia).tolist()
        got_b.append(next(ib))
        pid = os.fork()
        if pid == 0:
            if number == 5:
                assert list(ps.from_sequence(range(3)).map(lambda x: x * 2, on="process", workers=1)) == [0, 2, 4]
            if number % 2:
                sys.exit(7)
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    for batch in ia:
        got_a += batch.tolist()
    got_b += ib
    assert got_a == list(range(1, 601)) and got_b == list(range(2, 602))
    a.close(), b.close()
    """
    assert run_alone(code, timeout_s=120) == (0, "", "")


@pytest.mark.parametrize("start", ["fork", soak("spawn")])
def test_other_ways_to_start_survive_deaths_too(start):
    before = set(children())
    maybe = dies_at([7], lambda: os._exit(3))
    pool = ps.Processes(1, start=start)
    with pool, ps.from_sequence(range(1000)).map(maybe, on=pool, on_error="skip").loader(timeout_s=60) as loader:
        got = []
        for x in loader:
            got.append(x)
            if x == 100:
                for pid in set(children()) - before:
                    kill(pid)
        assert got == [x for x in range(1000) if x != 7]
        assert indices(loader) == [7]


# ---------------------------------------------------------------------- what cannot be sent


def test_a_result_that_cannot_be_sent_is_named():
    for bad, word in ((lambda: iter(x for x in ()), "generator"), (threading.Lock, "lock")):
        with (
            ps.from_sequence(range(10))
            .map(lambda x, bad=bad: bad() if x == 5 else x, on="process", workers=2)
            .loader(timeout_s=60) as loader
        ):
            got, exc = until_error(loader)
            assert got == list(range(5))
            assert isinstance(exc, ps.PenstockError)
            assert word in str(exc)
            assert "map(lambda)" in str(exc)
            assert "sample 5" in str(exc)
            assert indices(loader) == [5]


def test_a_result_for_a_cache_that_cannot_be_sent_is_named(capfd):
    pipeline = ps.from_sequence(range(10)).map(lambda x: threading.Lock() if x == 5 else x, on="process", workers=2)
    with pipeline.cache().loader(timeout_s=60) as loader:
        got, exc = until_error(loader)
        assert got == list(range(5))
        assert isinstance(exc, ps.PenstockError)
        assert not isinstance(exc, ps.WorkerDied)
        assert "lock" in str(exc)
        assert loader.stats()["deaths"] == 0
    assert capfd.readouterr().err == ""


def fails():
    raise ValueError("cannot be made again")


class Unmakeable:
    def __reduce__(self):
        return fails, ()


@pytest.mark.parametrize("kind", ["map", "cache", "batch", "isolate"])
def test_a_result_that_arrives_and_cannot_be_made_again_is_an_error(kind):
    place = {"workers": 2} if kind == "isolate" else {"on": "process", "workers": 2}
    pipeline = ps.from_sequence(range(10)).map(lambda x: Unmakeable() if x == 5 else x, **place)
    pipeline = pipeline.cache() if kind == "cache" else pipeline.batch(2) if kind == "batch" else pipeline
    with pipeline.loader(timeout_s=30, isolate=kind == "isolate") as loader:
        _, exc = until_error(loader)
        assert "cannot be made again" in str(exc)
        assert not isinstance(exc, ps.StageTimeout)
        _, exc = until_error(loader)  # the workers are well
        assert "cannot be made again" in str(exc)


@pytest.mark.parametrize("bad", [threading.Lock, lambda: iter(x for x in ())])
def test_a_sample_that_cannot_be_sent_to_a_worker_is_named(bad):
    def records():
        for number in range(10):
            yield bad() if number == 5 else number

    with ps.from_iterable(records).map(str, on="process", workers=2).loader(timeout_s=60) as loader:
        got, exc = until_error(loader)
        assert exc is not None
        assert not isinstance(exc, ps.WorkerDied)
        assert got == ["0", "1", "2", "3", "4"]
        told = " ".join([str(exc), *getattr(exc, "__notes__", [])])
        assert "map(str)" in told
        assert "sample 5" in told


def test_a_list_with_what_cannot_be_sent_is_named_before_anything_starts():
    with pytest.raises(ps.PlanError, match=r"item 2 is a _thread\.lock"):
        ps.from_sequence([0, 1, threading.Lock()]).map(str, on="process", workers=2).loader()
    lock = threading.Lock()
    with pytest.raises(ps.PlanError, match=r"map\(lambda\) at .*test_process_faults\.py"):
        ps.from_sequence(range(3)).map(lambda x: (x, lock), on="process", workers=2).loader()


class Owned(Exception):
    """Its constructor takes what its args do not hold, and it holds what cannot be sent."""

    def __init__(self, code, where):
        super().__init__(f"{code} at {where}")
        self.code, self.where, self.lock = code, where, threading.Lock()


@pytest.mark.parametrize("isolate", [False, True])
def test_exceptions_arrive_as_themselves(isolate):
    class Local(LookupError):
        pass

    def bad(x):
        if x == 3:
            raise Owned(42, "here")
        if x == 4:
            try:
                raise Local("inner")
            except Local as exc:
                raise ExceptionGroup("both", [exc, OSError(2, "none", "a.txt")]) from exc
        return x

    place = {"workers": 2} if isolate else {"on": "process", "workers": 2}
    for skipped, kind in ((0, Owned), (1, ExceptionGroup)):
        source = ps.from_sequence([0, 1, 2, 3, 4] if not skipped else [0, 1, 2, 4])
        with source.map(bad, **place).loader(timeout_s=60, isolate=isolate) as loader:
            got, exc = until_error(loader)
            assert got == [0, 1, 2]
            assert type(exc) is kind
            assert any("map(bad) at" in note and "sample 3" in note for note in exc.__notes__)
            if kind is Owned:
                assert (exc.code, exc.where, str(exc)) == (42, "here", "42 at here")
            else:
                assert type(exc.exceptions[0]) is Local
                assert exc.exceptions[1].filename == "a.txt"
                assert type(exc.__cause__) is Local


MAIN = """
import penstock as ps
from dataclasses import dataclass
from functools import lru_cache, partial

@dataclass
class Point:
    x: int

class Fault(Exception):
    def __init__(self, a, b):
        super().__init__(a)
        self.b = b

OFFSET = 10

def shifted(p):
    return Point(p.x + OFFSET)

@lru_cache
def again(x):
    return again(x - 1) + 1 if x else 0

def bad(x):
    raise Fault(1, 2)

def run(place, **options):
    class Local:
        def __init__(self, x): self.x = x
        def __eq__(self, other): return self.x == other.x
    factor = 3
    def out(pipeline):
        return list(pipeline.loader(**options))
    points = ps.from_iterable(lambda: (Point(n) for n in range(5)))
    numbers = ps.from_sequence(range(5))
    locals_ = points.map(shifted, **place).map(lambda p: Local(p.x * factor))
    assert out(locals_) == [Local(3 * n + 30) for n in range(5)]
    assert out(numbers.map(again, **place).map(partial(pow, 2))) == [1, 2, 4, 8, 16]
    try:
        out(numbers.map(bad, **place))
    except Fault as exc:
        assert exc.b == 2
    else:
        raise AssertionError

run({"workers": 1}, isolate=True)
print("fine")
"""


def test_what_main_defines_works_in_an_isolated_loader_without_a_guard():
    # As a notebook or `python -i` does: statement by statement, in the names of __main__.
    code = f"import ast\nfor one in ast.parse({MAIN!r}).body:\n"
    code += "    exec(compile(ast.Module([one], []), '<input>', 'exec'), globals())"
    assert run_alone(code) == (0, "fine\n", "")


def test_deaths_leave_nothing_behind():
    before = snapshot()
    for _ in range(2):
        with (
            ps.from_sequence(range(30))
            .map(dies_at([3, 9], lambda: os._exit(3)), on="process", workers=2, on_error="skip")
            .loader(timeout_s=60) as loader
        ):
            kept = list(loader)
        assert len(kept) == 28
        assert leaks_since(before) == []
