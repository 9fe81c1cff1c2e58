"""``loader(isolate=True)``: the same stream from a process of its own, and nothing lost when that dies."""

import _thread
import gc
import os
import random
import select
import signal
import threading
import time
from contextlib import suppress

import numpy as np
import pytest
from tests.runtime.helpers import SOON_S, Clock, await_main_thread, in_thread, until_error
from tests.runtime.interrupts import Interrupts, descendants, descriptors
from tests.runtime.process_helpers import (
    await_true,
    children,
    first_time,
    kill,
    meet,
    met,
    release,
    run_alone,
    script,
    spend,
    state,
    workers,
)

import penstock as ps
from penstock.remote import connection as connection_module
from penstock.remote import isolated
from penstock.remote.wire import Wire

pytestmark = pytest.mark.usefixtures("warm_processes")


@pytest.fixture
def clock(monkeypatch):
    """The clock of the loader, and not of its process."""
    return Clock(monkeypatch, isolated, connection_module)


def plain(sample):
    return sample.tolist() if isinstance(sample, np.ndarray) else sample


def odd_fails(x):
    if x % 3 == 1:
        raise ValueError(f"bad {x}")
    return x


NUMBERS = ps.from_sequence(range(60))
PIPELINES = {
    "map": NUMBERS.map(lambda x: x + 1, workers=2),
    "nothing placed": NUMBERS.map(lambda x: x + 1),
    "batches": NUMBERS.map(lambda x: np.full(5000, x), workers=2).batch(7),
    "filter": NUMBERS.map(lambda x: x, workers=2).filter(lambda x: x % 3).batch(4),
    "skip": NUMBERS.map(odd_fails, workers=2, on_error="skip"),
    "a skip that replans": NUMBERS.map(odd_fails, workers=2, on_error="skip").batch(4),
    "shuffle": NUMBERS.shuffle(seed=5).map(lambda x: x, workers=2).batch(4),
    "window shuffle": NUMBERS.map(lambda x: x, workers=2).shuffle(8, seed=2),
    "stream": ps.from_iterable(lambda: iter(range(60))).map(lambda x: x * 2, workers=2).batch(3),
    "flat_map": NUMBERS.flat_map(lambda x: [x] * (x % 4), workers=2),
    "random numbers": NUMBERS.map(lambda x, rng: float(rng.random()), rng=True, workers=2),
    "zip": ps.zip(NUMBERS, NUMBERS.map(lambda x: -x, workers=1)),
    "repeat": NUMBERS.map(lambda x: x, workers=2).repeat(2).batch(25),
    "empty": ps.from_sequence([]).map(lambda x: x, workers=1),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_the_stream_is_that_of_threads(name):
    def seen(**options):
        with PIPELINES[name].loader(seed=3, timeout_s=20, **options) as loader:
            whole = [[plain(sample) for sample in batches] for _, batches in loader.epochs(2)]
            stats = loader.stats()
            for sample in loader:
                whole.append(plain(sample))
                break
            whole.append([plain(sample) for sample in loader])
            told = [(r.op, r.index, r.epoch, type(r.exception), str(r.exception)) for r in loader.errors()]
            counted = [stats[key] for key in ("samples", "batches", "epoch", "errors")]
            return whole, [one for one in told if one[2] != 2], loader.epoch, counted

    assert seen(isolate=True) == seen()


def test_an_early_start_is_the_same_stream():
    with NUMBERS.map(lambda x: x + 1, workers=2).loader(isolate=True, timeout_s=20) as loader:
        assert list(loader.start()) == list(range(1, 61))
        assert list(loader.start().start()) == list(range(1, 61))
        loader.set_epoch(7)
        assert list(loader) == list(range(1, 61))
        assert loader.epoch == 7


def test_no_thread_of_ours_runs_in_the_training_process():
    before = threading.active_count()
    with NUMBERS.map(lambda x: x, workers=4).loader(isolate=True, timeout_s=20) as loader:
        iterator = iter(loader)
        next(iterator)
        assert threading.active_count() == before
        iterator.close()


def test_batches_can_be_kept():
    with (
        ps.from_sequence(range(400))
        .map(lambda x: np.full(20_000, x), workers=2)
        .loader(isolate=True, timeout_s=20) as loader
    ):
        kept = list(loader)
    assert [(x.min(), x.max()) for x in kept] == [(n, n) for n in range(400)]
    kept[0][:] = 1  # the user's own


def test_a_loop_that_breaks_off_again_and_again():
    pipeline = ps.from_sequence(range(200)).map(lambda x: np.full(20_000, x), workers=2)
    with pipeline.loader(isolate=True, timeout_s=20) as loader:
        for number in range(8):
            for sample in loader:
                if sample[0] == number % 7:
                    break
        assert [sample[0] for sample in loader] == list(range(200))


# ---------------------------------------------------------------------- failures


def test_the_users_exception_is_the_users_exception():
    class Mine(Exception):
        def __init__(self, a, b):
            super().__init__(a)
            self.b = b

    def bad(x):
        if x == 5:
            raise Mine("a", "b")
        return x

    with NUMBERS.map(bad, workers=2).loader(isolate=True, timeout_s=20) as loader:
        for _ in range(2):
            got, exc = until_error(loader)
            assert got == list(range(5))
            assert type(exc) is Mine
            assert (exc.args, exc.b) == (("a",), "b")
            assert any("map(bad) at" in note and "sample 5" in note for note in exc.__notes__)
        assert [record.index for record in loader.errors()] == [5, 5]


def test_max_errors_ends_the_run():
    with NUMBERS.map(odd_fails, on_error="skip", workers=2).loader(
        isolate=True, max_errors=3, timeout_s=20
    ) as loader:
        got, exc = until_error(loader)
        assert isinstance(exc, ps.TooManyErrors)
        assert got == [0, 2, 3, 5, 6, 8, 9]


def test_a_result_that_cannot_be_sent_is_named():
    with NUMBERS.map(lambda x: threading.Lock() if x == 5 else x, workers=2).loader(
        isolate=True, timeout_s=20
    ) as loader:
        got, exc = until_error(loader)
        assert got == list(range(5))
        assert "map(lambda)" in str(exc)
        assert "sample 5" in str(exc)


def test_a_timeout_names_the_sample(clock, tmp_path):
    def stuck(x):
        if x == 5:
            meet(tmp_path)
        return x

    with NUMBERS.map(stuck, workers=2).loader(isolate=True, timeout_s=SOON_S) as loader:
        with clock.runs_out("Isolated.read", after=lambda: met(tmp_path)):
            got, exc = until_error(loader)
        release(tmp_path)
        assert got == list(range(len(got)))
        assert type(exc) is ps.StageTimeout
        assert "map(stuck)" in str(exc)
        assert "sample 5" in str(exc)


def test_a_stopped_child_is_a_timeout(clock, monkeypatch):
    monkeypatch.setattr(isolated, "_WORD_S", 0.5)
    with NUMBERS.map(lambda x: spend(0.001) or x, workers=1).loader(isolate=True, timeout_s=SOON_S) as loader:
        iterator = iter(loader)
        next(iterator)
        (pid,) = workers()
        kill(pid, signal.SIGSTOP)
        await_true(lambda: state(pid) == "T", "the stop")
        with clock.runs_out("Isolated.read", after=bool):
            got, exc = until_error(iterator)
        assert got == list(range(1, len(got) + 1))
        assert type(exc) is ps.StageTimeout
        assert "does not answer" in str(exc)
        kill(pid, signal.SIGCONT)
        assert list(loader) == list(range(60))


@pytest.mark.parametrize("many", [pytest.param(1, marks=pytest.mark.soak), 3])
def test_what_comes_while_a_timeout_is_explained_is_not_lost(many, tmp_path, clock, monkeypatch):
    # A batch is late, but comes while the child is asked what holds it up. The next epoch must be whole.
    def late(x):
        if x == 3:
            meet(tmp_path)
        if x == 4 and many == 1 and first_time(tmp_path / "4"):
            time.sleep(0.5)
        return np.full(50_000, x)

    holding = isolated.Isolated._holding

    def slowly(self):
        release(tmp_path)
        select.select([self._connection.process.socket], [], [], 20)
        return holding(self)

    with NUMBERS.map(late, workers=1).loader(isolate=True, timeout_s=SOON_S) as loader:
        with monkeypatch.context() as patch, clock.runs_out("Isolated.read", after=lambda: met(tmp_path)):
            patch.setattr(isolated.Isolated, "_holding", slowly)
            _, exc = until_error(loader)
        assert type(exc) is ps.StageTimeout
        for _ in range(3):
            assert [(x.min(), x.max()) for x in loader] == [(n, n) for n in range(60)]


@pytest.mark.parametrize(
    "name",
    [
        "batches",
        "a skip that replans",
        "stream",
        *(pytest.param(name, marks=pytest.mark.soak) for name in ("flat_map", "map", "filter", "shuffle")),
    ],
)
def test_a_killed_child_is_replaced_and_the_stream_goes_on(name):
    want = [plain(sample) for sample in PIPELINES[name].loader(seed=3, inline=True)]
    with PIPELINES[name].loader(isolate=True, seed=3, timeout_s=20) as loader:
        got, deaths = [], 0
        for sample in loader:
            got.append(plain(sample))
            if len(got) % 5 == 1:
                for pid in workers():
                    kill(pid)
                    deaths += 1
        assert got == want
        assert deaths
        again = [plain(sample) for sample in loader]  # the next epoch, whatever its order
        assert len(again) == len(want)
        failed = [record.index for record in loader.errors() if record.epoch == 0]
        assert failed == ([x for x in range(60) if x % 3 == 1] if "skip" in name else [])
        assert 0 < loader.stats()["deaths"] <= deaths


def test_a_child_killed_before_its_first_batch_is_replaced(tmp_path):
    def begin(x):
        meet(tmp_path)
        return x

    with NUMBERS.map(begin, workers=1).loader(isolate=True, timeout_s=20) as loader:
        loader.start()
        kill(met(tmp_path))
        assert list(loader) == list(range(60))


def test_a_child_killed_while_idle_is_replaced():
    with NUMBERS.map(lambda x: x, workers=1).loader(isolate=True, timeout_s=20) as loader:
        for _ in range(3):
            assert list(loader) == list(range(60))
            for pid in workers():
                kill(pid)


@pytest.mark.parametrize(("bad", "how"), [(0, "map"), (30, "batch")])
def test_a_sample_that_always_kills_ends_in_an_error(bad, how):
    # Behind samples that come every time the epoch is run again.
    def deadly(x):
        if x == bad:
            os._exit(3)
        return x

    pipeline = NUMBERS.map(deadly, workers=1)
    pipeline = pipeline.batch(3) if how == "batch" else pipeline
    with pipeline.loader(isolate=True, timeout_s=60) as loader:
        _, exc = until_error(loader)
        assert type(exc) is ps.WorkerDied
        assert "exited with code 3" in str(exc)


def deadly(x):
    if x == 3:
        os._exit(3)
    return x


def test_a_sample_that_always_kills_is_named_and_nothing_before_it_is_lost():
    with NUMBERS.map(deadly, workers=2).loader(isolate=True, timeout_s=20) as loader:
        got, exc = until_error(loader)
        assert type(exc) is ps.WorkerDied
        assert got == [0, 1, 2]
        assert "map(deadly)" in str(exc)
        assert "sample 3" in str(exc)


def test_on_error_decides_what_becomes_of_a_sample_that_always_kills():
    with NUMBERS.map(deadly, workers=2, on_error="skip").loader(isolate=True, timeout_s=20) as loader:
        assert list(loader) == [x for x in range(60) if x != 3]
        assert [(r.index, type(r.exception)) for r in loader.errors()] == [(3, ps.WorkerDied)]


def test_a_process_that_dies_is_replaced_from_the_same_server():
    # Another server would have to load numpy first. A script has none that is kept warm.
    code = """
        import time
        import penstock as ps
        from tests.runtime.process_helpers import children, kill, workers

        def slow(x):
            time.sleep(0.02)  # so that some is left to be made when a process is killed
            return x

        seen = set()
        with ps.from_sequence(range(20)).map(slow, workers=1).loader(isolate=True, timeout_s=20) as loader:
            for x in loader:
                seen.update(children())
                if x in (3, 8):
                    for pid in workers():
                        kill(pid)
            assert loader.stats()["deaths"] > 0
        assert len(seen) == 1, seen
    """
    assert run_alone(code) == (0, "", "")


def test_deaths_far_apart_are_no_crash_loop(tmp_path):
    def unlucky(x):
        if x % 10 == 5 and first_time(tmp_path / str(x)):
            os._exit(3)
        return x

    with NUMBERS.map(unlucky, workers=1).loader(isolate=True, timeout_s=20) as loader:
        assert list(loader) == list(range(60))
        assert loader.stats()["deaths"] == 6


def test_a_stream_without_order_goes_on_after_deaths_with_every_sample_once():
    pipeline = NUMBERS.map(lambda x: spend(0.002) or x, workers=2, ordered=False)
    with pipeline.loader(isolate=True, timeout_s=20) as loader:
        got = []
        for sample in loader:
            got.append(sample)
            if len(got) in (1, 20, 40):
                for pid in workers():
                    kill(pid)
        assert sorted(got) == list(range(60))
        assert sorted(loader) == list(range(60))


def test_epochs_that_keep_their_place_keep_it_after_deaths():
    with ps.from_iterable(range(7)).epoch(5).loader(isolate=True, timeout_s=20) as loader:
        got = []
        for _, samples in loader.epochs(3):
            for sample in samples:
                got.append(sample)
                if len(got) in (2, 5, 8, 9):
                    for pid in workers():
                        kill(pid)
        assert got == [*range(7), *range(7), 0]


# ---------------------------------------------------------------------- a process that does not answer


@pytest.mark.timeout(20)
def test_a_stopped_process_that_is_asked_for_a_state_is_an_error_that_says_so(monkeypatch):
    # Of the last sample of a chunk the state is here, of all others the process is asked.
    data = ps.from_iterable(lambda: [range(30), range(30, 60)]).flat_map(lambda numbers: list(numbers), workers=1)
    with data.loader(isolate=True, timeout_s=20) as loader:
        iterator = iter(loader)
        got = [next(iterator) for _ in range(5)]
        (pid,) = workers()
        kill(pid, signal.SIGSTOP)
        monkeypatch.setattr(isolated, "_ANSWER_S", 0.05)
        for _ in range(3):
            with pytest.raises(ps.PenstockError, match=rf"process {pid} .* not answered .* where the epoch stands"):
                loader.state_dict()
        loader.stats(), loader.diagnose(), loader.errors()
        kill(pid, signal.SIGCONT)
        got += [next(iterator) for _ in range(5)]
        monkeypatch.undo()
        state = loader.state_dict()  # and not what was asked for before
        assert got + list(iterator) == list(range(60))
        loader.load_state_dict(state)
        assert list(loader) == list(range(10, 60))


@pytest.mark.timeout(20)
def test_a_stopped_process_that_is_asked_for_what_goes_on_between_epochs_is_an_error_that_says_so(monkeypatch):
    with ps.from_iterable(range(7)).epoch(5).loader(isolate=True, timeout_s=20) as loader:
        iterator = iter(loader)
        next(iterator)
        (pid,) = workers()
        kill(pid, signal.SIGSTOP)
        monkeypatch.setattr(isolated, "_ANSWER_S", 0.05)
        with pytest.raises(ps.PenstockError, match=rf"process {pid} .* not answered"):
            loader.set_epoch(3)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("ended", [False, True], ids=["reading", "between epochs"])
def test_close_ends_a_stopped_process(ended):
    loader = NUMBERS.map(lambda x: x, workers=1).loader(isolate=True, timeout_s=20)
    iterator = iter(loader)
    next(iterator)
    if ended:
        list(iterator)
    (pid,) = workers()
    kill(pid, signal.SIGSTOP)
    loader.close()
    assert state(pid) == ""


# ---------------------------------------------------------------------- interrupts


@pytest.fixture
def default_ctrl_c():
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, handler)


def test_a_signal_that_interrupts_no_wait_is_noticed(tmp_path, default_ctrl_c):
    os.mkfifo(fifo := str(tmp_path / "fifo"))
    noticed, in_time, opened = threading.Event(), [], []

    def first_waits(x):
        if x == 0:
            open(fifo).close()  # returns when somebody opens it to write
        return x

    def interrupt():
        await_main_thread("Connection.wait")
        _thread.interrupt_main()
        in_time.append(noticed.wait(SOON_S))
        opened.append(os.open(fifo, os.O_RDWR))

    with NUMBERS.map(first_waits, workers=1).loader(isolate=True) as loader:
        sender = threading.Thread(target=interrupt)
        with pytest.raises(KeyboardInterrupt):
            sender.start()
            list(loader)
        noticed.set()
        sender.join()
    os.close(*opened)
    assert in_time == [True]


def interrupting(monkeypatch, said, when):
    """Ctrl-C, once, right before or after this is said to the process."""
    send, due = Wire.send, [said]

    def interrupted(wire, head, *rest, **options):
        hit = head[0] in due
        if hit:
            due.clear()
        if hit and when == "before":
            raise KeyboardInterrupt
        send(wire, head, *rest, **options)
        if hit:
            raise KeyboardInterrupt

    monkeypatch.setattr(Wire, "send", interrupted)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("said", ["engine", "credit", "enter", "attach", "grant"])
def test_a_loader_goes_on_after_an_interrupt_in_the_middle_of_talk(said, when, monkeypatch):
    large = ps.from_sequence(range(9)).map(lambda x: np.full(50_000, x), workers=1)
    with large.loader(isolate=True, timeout_s=20) as loader:
        interrupting(monkeypatch, said, when)
        with pytest.raises(KeyboardInterrupt):
            list(loader)
        for _ in range(2):
            assert [int(x[0]) for x in loader] == list(range(9))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_loader_goes_on_after_an_interrupt_in_the_middle_of_leaving(when, monkeypatch):
    with NUMBERS.map(lambda x: x, workers=1).loader(isolate=True, timeout_s=20) as loader:
        left = iter(loader)
        next(left)
        interrupting(monkeypatch, "leave", when)
        with pytest.raises(KeyboardInterrupt), pytest.warns(RuntimeWarning, match="new iteration"):
            iter(loader)
        assert list(loader) == list(range(60))


def test_a_loader_goes_on_after_an_interrupt_between_hearing_and_answering(monkeypatch):
    large = ps.from_sequence(range(9)).map(lambda x: np.full(50_000, x), workers=1)
    receive, due = Wire.receive, ["need", "chunk"]

    def interrupted(wire, *args, **options):
        message = receive(wire, *args, **options)
        if message.head[0] in due:
            due.remove(message.head[0])
            raise KeyboardInterrupt
        return message

    monkeypatch.setattr(Wire, "receive", interrupted)
    with large.loader(isolate=True, timeout_s=20) as loader:
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                list(loader)
        assert [int(x[0]) for x in loader] == list(range(9))


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_epoch_goes_on_after_an_interrupt_while_its_state_is_asked_for(when, monkeypatch):
    # Of the last sample of a chunk the state is here, of all others the process is asked.
    data = ps.from_iterable(lambda: [range(30), range(30, 60)]).flat_map(lambda numbers: list(numbers), workers=1)
    with data.loader(isolate=True, timeout_s=20) as loader:
        iterator = iter(loader)
        got = [next(iterator) for _ in range(5)]
        interrupting(monkeypatch, "standing", when)
        with pytest.raises(KeyboardInterrupt):
            loader.state_dict()
        got += [next(iterator) for _ in range(25)]
        state = loader.state_dict()
        assert got + list(iterator) == list(range(60))
        loader.load_state_dict(state)
        assert list(loader) == list(range(30, 60))


SMALL = ps.from_sequence(range(8)).map(lambda x: np.full(50_000, x), workers=1).batch(2)


def interrupted_run(*lines):
    """Read an epoch and close, with Ctrl-C at these lines. All that was started must have ended with `close`."""
    before, open_before = {pid for pid, _ in descendants()}, descriptors()
    loader = SMALL.loader(isolate=True, timeout_s=20)
    pressed = Interrupts(*lines)
    try:
        with pressed, loader:
            for _ in loader:
                pass
    except KeyboardInterrupt:
        loader.close()  # the traceback still holds all that was in hand
        left = {(pid, state) for pid, state in descendants() if pid not in before}
        assert not left, f"interrupted at {pressed.where}, left {left}"
    del loader
    gc.collect()
    left = {(pid, state) for pid, state in descendants() if pid not in before}
    assert not left, f"interrupted at {pressed.where}, left {left}"
    assert descriptors() == open_before, f"interrupted at {pressed.where}"
    return pressed


def test_two_interrupts_at_any_line_leave_no_process_after_close(default_ctrl_c):
    # A few lines; `make soak` has all of them.
    length = interrupted_run().lines
    for line in (length // 4, length // 2, 3 * length // 4):
        interrupted_run(line, line + 20)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("gap", [None, 3, 20, 60])
def test_two_interrupts_at_every_line_leave_no_process_after_close(default_ctrl_c, gap):
    rng = random.Random(0)
    for first in range(1, interrupted_run().lines):
        interrupted_run(first, *([] if gap is None else [first + rng.randint(1, gap)]))


def interrupted_save(*lines):
    """Ask for a state in the middle of an epoch, with Ctrl-C at these lines. No sample may be lost by that."""
    with NUMBERS.map(lambda x: x, workers=1).loader(isolate=True, timeout_s=20) as loader:
        iterator = iter(loader)
        got = [next(iterator) for _ in range(5)]
        pressed = Interrupts(*lines)
        with suppress(KeyboardInterrupt), pressed:
            loader.state_dict()
        assert got + list(iterator) == list(range(60)), f"interrupted at {pressed.where}"
        return pressed.lines


def test_an_interrupt_while_a_state_is_saved_loses_no_sample(default_ctrl_c):
    length = interrupted_save()
    for line in (length // 3, 2 * length // 3):
        interrupted_save(line)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_an_interrupt_at_every_line_while_a_state_is_saved_loses_no_sample(default_ctrl_c):
    for line in range(1, 2 * interrupted_save()):
        interrupted_save(line)


CTRL_C_TWICE = """
    import os, sys, signal
    import penstock as ps
    from tests.runtime.interrupts import descendants, descriptors

    data = ps.from_sequence(range(1000)).map(lambda x: x, workers=1).batch(2)
    before = descriptors()
    loader = data.loader(isolate=True, timeout_s=20)
    print("ready", flush=True)
    def run():
        with loader:
            while True:
                for _ in loader:
                    pass
    pressed = 0
    try:
        try:
            run()
        finally:
            loader.close()
    except KeyboardInterrupt:
        pressed = 1
    # The second may come as late as this.
    while True:
        try:
            loader.close()
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            break
        except KeyboardInterrupt:
            pass
    left = descendants()
    del loader
    print(pressed, left, descriptors() - before, flush=True)
"""


def pressed_twice(first_s, second_s):
    with script(CTRL_C_TWICE, server=False) as running:  # it counts descriptors
        assert running.line() == "ready"
        for wait_s in (first_s, second_s):
            time.sleep(wait_s)
            os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to children, too
        assert running.line() == "1 set() 0"
        assert running.ended()[0] == 0
        assert running.members() == []


def test_ctrl_c_pressed_twice_leaves_no_process():
    pressed_twice(0.2, 0.001)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_ctrl_c_pressed_twice_at_many_moments_leaves_no_process():
    rng = random.Random(0)
    for _ in range(200):
        pressed_twice(rng.uniform(0, 1.0), rng.choice([0, rng.uniform(0, 0.005), rng.uniform(0, 0.3)]))


# ---------------------------------------------------------------------- layout


def test_shared_pools_are_refused():
    for pool in (ps.Threads(2), ps.Processes(2)):
        with pytest.raises(ps.PlanError, match=r"isolate=True.* map\(str\)"):
            NUMBERS.map(str, on=pool).loader(isolate=True)
        with pytest.raises(ps.PlanError, match="isolate"):
            NUMBERS.map(str).loader(isolate=True, on=pool)


def test_inline_and_isolate_exclude_each_other():
    with pytest.raises(ps.PlanError, match="inline"):
        NUMBERS.loader(isolate=True, inline=True)


def test_what_cannot_be_sent_is_named_before_anything_starts():
    lock = threading.Lock()
    with pytest.raises(ps.PlanError, match=r"map\(lambda\) at .*test_isolate\.py"):
        NUMBERS.map(lambda x: (x, lock)).loader(isolate=True)


def test_processes_inside_of_the_process():
    def own(x):
        if x == 7:
            os._exit(3)
        return x * 2

    pipeline = NUMBERS.map(own, on="process", workers=2, on_error="skip").map(lambda x: x + 1, workers=2)
    with pipeline.loader(isolate=True, timeout_s=20) as loader:
        for _ in range(2):
            assert list(loader) == [2 * x + 1 for x in range(60) if x != 7]
        assert [(r.index, type(r.exception)) for r in loader.errors()] == [(7, ps.WorkerDied)] * 2
        assert loader.stats()["deaths"] >= 6
    await_true(lambda: not workers(), "the end of all processes")


@pytest.mark.parametrize("visible", ["0,2", "", None])
def test_the_isolated_process_sees_the_gpus_that_the_user_lets_it_see_and_its_workers_none(visible, monkeypatch):
    def seen(_):
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with ps.from_sequence([0]).map(seen).loader(isolate=True, timeout_s=20) as loader:
        assert list(loader) == [visible]
    if visible:
        with ps.from_sequence([0]).map(seen, on="process", workers=1).loader(isolate=True, timeout_s=20) as loader:
            assert list(loader) == [""]


def test_stats_come_over_and_with_them_the_workers_that_were_found():
    with NUMBERS.map(odd_fails, on_error="skip", workers="auto").loader(isolate=True, timeout_s=20) as loader:
        list(loader)
        stats = loader.stats()
        assert (stats["samples"], stats["errors"], stats["deaths"], stats["stuck"]) == (40, 20, 0, 0)
        assert stats["stage.odd_fails.samples"] >= 40  # the next epoch is begun early
        assert all(isinstance(value, (int, float)) for value in stats.values())
        code = f'.map(odd_fails, workers={stats["stage.odd_fails.workers"]}, on_error="skip")'
        assert code in str(loader.explain())


# ---------------------------------------------------------------------- ending


@pytest.mark.parametrize("isolate", [False, True])
def test_close_while_another_thread_waits_is_an_error_there(isolate, tmp_path):
    def stays(x):
        if x == 3:
            meet(tmp_path)
        return x

    loader = NUMBERS.map(stays, workers=1).loader(isolate=isolate)
    found = []
    reader = threading.Thread(target=lambda: found.append(until_error(loader)), daemon=True)
    reader.start()
    pid = met(tmp_path)
    if not isolate:
        release(tmp_path)
    loader.close()
    reader.join(60)
    assert not reader.is_alive()
    ((got, exc),) = found
    assert got == list(range(len(got)))
    assert isinstance(exc, ps.PenstockError), "an epoch that was cut short looks like a whole one"
    if isolate:
        await_true(lambda: pid not in workers(), "the end of the process")
        assert workers() == [], "a new process was started after close"


def test_close_ends_a_stuck_child_soon(tmp_path):
    def stays(x):
        meet(tmp_path)
        while True:
            pass

    loader = NUMBERS.map(stays, workers=1).loader(isolate=True).start()
    met(tmp_path)
    release(tmp_path)
    in_thread(loader.close)
    assert workers() == []


def test_a_closed_loader_says_so():
    loader = NUMBERS.map(str, workers=1).loader(isolate=True)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    loader.close()
    with pytest.raises(ps.PenstockError, match="closed"):
        list(loader)
    with pytest.raises(ps.PenstockError, match="closed"):
        list(iterator)


def test_a_loader_that_nobody_holds_ends_its_process():
    loader = NUMBERS.map(lambda x: x, workers=1).loader(isolate=True)
    iterator = iter(loader)
    next(iterator)
    assert len(workers()) == 1
    del loader, iterator
    gc.collect()
    await_true(lambda: not workers(), "the end of the process")


def test_a_loader_that_was_never_read_starts_nothing():
    before = children()
    with NUMBERS.map(lambda x: x, workers=1).loader(isolate=True):
        assert workers() == []
    assert children() == before


def test_a_forked_child_cannot_read_it():
    with NUMBERS.map(lambda x: x, workers=1).loader(isolate=True, timeout_s=20) as loader:
        iterator = iter(loader)
        next(iterator)
        pid = os.fork()
        if pid == 0:
            try:
                next(iterator)
            except ps.PenstockError as exc:
                loader.close()
                os._exit(7 if "process" in str(exc) else 8)
            finally:
                os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert list(iterator) == list(range(1, 60))


ISOLATED_WITH_WORKERS = """
    import os, signal
    import penstock as ps

    loader = (
        ps.from_sequence(range(1000))
        .map(lambda x: x, on="process", workers=1)
        .map(lambda x: x, workers=1)
        .loader(isolate=True, timeout_s=20)
    )
    iterator = iter(loader)
    next(iterator)
    forked = os.fork()
    if forked == 0:
        signal.pause()
    print(forked, flush=True)
    signal.pause()
"""


def test_nothing_outlives_a_parent_that_is_killed_but_what_the_user_forked():
    with script(ISOLATED_WITH_WORKERS) as running:
        forked = int(running.line())
        # The parent, its server, the isolated process, the server of that, a worker, and the user's fork.
        assert len(running.members()) == 6
        kill(running.pid)
        await_true(lambda: running.members() == [forked], "the end of all others")


def test_a_loader_with_workers_that_nobody_holds_ends_them_too():
    kept = descendants()
    loader = NUMBERS.map(lambda x: x, on="process", workers=1).loader(isolate=True, timeout_s=20)
    iterator = iter(loader)
    next(iterator)
    # The server that is kept warm, unless it was there; the process, the server of that, a worker, and templates.
    assert len(descendants() - kept) >= 3
    del loader, iterator
    gc.collect()
    await_true(lambda: len(descendants()) <= len(kept) + 1, "the end of all of them")


def test_close_ends_a_stopped_process_and_its_workers():
    kept = descendants()
    loader = NUMBERS.map(lambda x: x, on="process", workers=1).loader(isolate=True, timeout_s=20)
    known = set(workers())
    next(iter(loader))
    (pid,) = set(workers()) - known
    kill(pid, signal.SIGSTOP)
    loader.close()
    assert state(pid) == ""
    await_true(lambda: len(descendants()) <= len(kept) + 1, "the end of its workers")


def test_many_isolated_loaders_at_once():
    loaders = [NUMBERS.map(lambda x, n=n: x + n, workers=1).loader(isolate=True, timeout_s=20) for n in range(4)]
    for together in zip(*loaders, strict=True):
        assert [x - together[0] for x in together] == [0, 1, 2, 3]
    assert in_thread(lambda: [x for loader in loaders for x in loader][:60]) == list(range(60))
    for loader in loaders:
        loader.close()
