"""Processes start quickly, are what their parent is, and end when they should. Real processes, real signals."""

import gc
import json
import os
import random
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
from tests.cases import for_each
from tests.runtime.process_helpers import await_true

from penstock.errors import PenstockError, WorkerDied
from penstock.executors import servers, startup
from penstock.executors.ending import Exit
from penstock.executors.startup import Process, StartOptions, keep_warm
from penstock.testing import leaks

ROOT = str(Path(__file__).parents[2])
METHODS = ["forkserver", "spawn", "fork"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@pytest.fixture(autouse=True)
def _quick_server(request, monkeypatch):
    """Servers that load nothing, as entries.py needs nothing: they start in a tenth of the time."""
    if "_whole_server" not in request.fixturenames:
        monkeypatch.setattr(servers, "PRELOAD", ())


@pytest.fixture
def _whole_server():
    """For tests of what a server has loaded."""


@pytest.fixture
def _one_server():
    """A server that lives for the whole test, so that each of its processes does not wait for another."""
    with keep_warm():
        yield


@pytest.fixture
def start():
    """Start a process with an entry of entries.py; all are closed after the test."""
    made = []

    def start(entry, name="w0", **options):
        made.append(Process(f"tests.executors.entries:{entry}", name, StartOptions(**options)))
        return made[-1]

    yield start
    for process in made:
        process.close()


def asked(process, word=b"hello"):
    process.socket.sendall(word)
    return process.socket.recv(100)


def told(process):
    data = b""
    while more := process.socket.recv(65536):
        data += more
    return json.loads(data)


def is_alive(pid):
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def await_end_of(pids):
    """They end by themselves: at once, but a busy machine may take its time."""
    await_true(lambda: not [pid for pid in pids if is_alive(pid)], "the end of all processes")


_others: set[int] = set()


@pytest.fixture(autouse=True)
def _know_the_others():
    """Whatever an earlier test has left running is none of ours, such as multiprocessing's tracker."""
    _others.clear()
    _others.update(child.pid for child in psutil.Process().children())


def children():
    return [child.pid for child in psutil.Process().children() if child.pid not in _others]


# --------------------------------------------------------------------------------------------- the way it ends


@pytest.mark.parametrize("method", METHODS)
def test_a_process_answers_and_ends_when_its_entry_returns(start, method):
    process = start("echo", method=method)
    assert asked(process) == b"hello"
    assert process.exit(0) is None
    assert is_alive(process.pid)
    process.socket.close()
    assert process.exit(60).code == 0
    assert process.exit(0).code == 0


@pytest.mark.usefixtures("_one_server")
@for_each("method", METHODS)
@for_each(
    "name, code, signum, said",
    [
        ("return", 0, None, "exited with code 0"),
        ("exit 3", 3, None, "exited with code 3"),
        ("leave with words", 1, None, "exited with code 1"),
        ("raise", 1, None, "exited with code 1"),
        ("_exit 7", 7, None, "exited with code 7"),
        (f"signal {int(signal.SIGSEGV)}", None, signal.SIGSEGV, "segmentation fault (SIGSEGV)"),
        (f"signal {int(signal.SIGKILL)}", None, signal.SIGKILL, "killed by SIGKILL after using "),
        (f"signal {int(signal.SIGUSR1)}", None, signal.SIGUSR1, "killed by SIGUSR1"),
    ],
)
def test_the_parent_is_told_how_it_ended(start, capfd, method, name, code, signum, said):
    process = start("end", name, method=method)
    exit = process.exit(60)
    assert (exit.code, exit.signal) == (code, signum)
    # A spawned process that needs less memory than its parent did: Linux cannot tell.
    assert str(exit).startswith(said.removesuffix(" after using ") if method == "spawn" else said)
    err = capfd.readouterr().err
    assert ("ValueError: this is why" in err) == (name == "raise")
    assert ("words" in err) == (name == "leave with words")


@pytest.mark.parametrize("method", METHODS)
def test_exit_functions_run_and_output_is_written(start, capfd, method):
    process = start("end", "at exit", method=method)
    assert process.socket.recv(100) == b"at exit"
    assert process.exit(60).code == 0
    assert capfd.readouterr().out == "kept back"


def test_an_entry_that_does_not_exist_is_named_on_standard_error(start, capfd):
    process = start("nonesuch")
    assert process.exit(60).code == 1
    assert "nonesuch" in capfd.readouterr().err


@pytest.mark.parametrize("method", METHODS)
def test_the_peak_of_memory_is_told(start, method):
    process = start("hoard", method=method)
    assert process.socket.recv(100) == b"200000000"
    exit = process.exit(60)
    # Linux counts what a process was started from; where that is more, it is not known.
    mine = psutil.Process().memory_info().rss
    most = 300e6 + (0 if method == "forkserver" else mine)
    assert exit.peak_bytes == 0 or 200e6 < exit.peak_bytes < most
    assert exit.peak_bytes or method == "spawn"


def test_an_end_that_nobody_knows_is_said_to_be_unknown():
    assert "nobody can say how" in str(Exit(None, None, 0))
    assert str(Exit(None, 64, 0)) == "killed by SIGRTMAX"
    assert str(Exit(None, 9, 150_000_000)).startswith("killed by SIGKILL after using 150 MB")


@pytest.mark.parametrize("method", METHODS)
def test_the_end_shows_on_a_descriptor_and_nothing_before_it(start, method):
    process = start("echo", method=method)
    poll = select.poll()
    poll.register(process.ended_fileno(), select.POLLIN)
    assert asked(process) == b"hello"
    assert poll.poll(0) == []
    process.kill()
    assert poll.poll(5000)
    assert process.exit(60).signal == signal.SIGKILL


# ----------------------------------------------------------------------------------------------------- killing


@pytest.mark.parametrize("method", METHODS)
def test_kill_ends_a_loop_that_never_lets_go(start, method):
    process = start("spin", method=method)
    assert process.socket.recv(1) == b"!"
    process.kill()
    assert process.exit(60).signal == signal.SIGKILL
    process.kill()


@pytest.mark.parametrize("method", METHODS)
def test_kill_before_the_birth_is_known_means_that_its_entry_does_not_run(start, method):
    process = start("spin", method=method)
    process.kill()
    exit = process.exit(60)
    assert exit.code is None
    assert exit.signal in (None, signal.SIGKILL)


@pytest.mark.parametrize("method", METHODS)
def test_close_kills_and_may_be_called_again(start, method):
    process = start("spin", method=method)
    pid = process.pid
    process.close()
    assert not is_alive(pid)
    process.close()
    process.kill()
    assert process.exit(0).signal == signal.SIGKILL
    assert children() == []


@pytest.mark.parametrize("method", METHODS)
def test_a_process_that_nobody_holds_is_ended(method):
    pid = Process("tests.executors.entries:spin", "w0", StartOptions(method=method)).pid
    gc.collect()
    assert not is_alive(pid)
    assert children() == []


@pytest.mark.parametrize("method", METHODS)
def test_interrupts_and_sigterm_are_left_to_the_parent(start, method):
    process = start("echo", method=method)
    assert asked(process) == b"hello"
    others = children()
    for signum in (signal.SIGINT, signal.SIGTERM):
        for pid in {process.pid, *others}:
            os.kill(pid, signum)
    assert asked(process) == b"hello"


PARENT = """
import os, sys
sys.path.insert(0, {root!r})
from penstock.executors.startup import Process, StartOptions

made = [
    Process("tests.executors.entries:" + entry, f"w{{i}}", StartOptions(method=method))
    for i, (entry, method) in enumerate({wanted!r})
]
for process, (entry, method) in zip(made, {wanted!r}):
    if entry == "spin":
        process.socket.recv(1)
    else:
        process.socket.sendall(b"hello")
        assert process.socket.recv(10) == b"hello"
    print(process.pid)
print("up", flush=True)
{then}
"""


def parent_script(wanted, then):
    return PARENT.format(root=ROOT, wanted=wanted, then=then)


@pytest.mark.parametrize("method", METHODS)
def test_nothing_outlives_a_parent_that_is_killed(method):
    script = parent_script([("spin", method), ("spin", method), ("echo", method)], "import time; time.sleep(60)")
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        for line in parent.stdout:
            if line == "up\n":
                break
        family = [child.pid for child in psutil.Process(parent.pid).children(recursive=True)]
        assert len(family) == (4 if method == "forkserver" else 3)
        parent.kill()
    await_end_of(family)


def test_nothing_outlives_a_parent_that_is_killed_after_its_server():
    script = parent_script([("spin", None), ("echo", None)], "import time; time.sleep(60)")
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        pids = [int(parent.stdout.readline()) for _ in range(2)]
        assert parent.stdout.readline() == "up\n"
        (server,) = psutil.Process(parent.pid).children()
        server.kill()
        assert all(is_alive(pid) for pid in pids)
        parent.kill()
    await_end_of([*pids, server.pid])


@pytest.mark.parametrize(
    "then", ["raise ValueError", *(pytest.param(then, marks=pytest.mark.soak) for then in ("", "os._exit(3)"))]
)
def test_a_parent_that_ends_without_closing_leaves_nothing_and_says_nothing(then):
    script = parent_script([("spin", method) for method in METHODS], then)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", script], capture_output=True, text=True, timeout=90
    )
    pids = [int(line) for line in done.stdout.split() if line.isdigit()]
    assert len(pids) == 3
    await_end_of(pids)
    last = done.stderr.strip().splitlines()[-1:]
    assert last == (["ValueError"] if "raise" in then else [])


# -------------------------------------------------------------------------------------------------- the server


def test_a_killed_server_is_replaced_and_its_orphans_are_ended(start):
    first, idle = start("echo"), start("spin")
    assert asked(first) == b"hello"
    assert idle.socket.recv(1) == b"!"
    pids = [first.pid, idle.pid]
    (server,) = children()
    os.kill(server, signal.SIGKILL)
    assert first.exit(60) == idle.exit(60) == Exit(None, signal.SIGKILL, 0)
    await_end_of(pids)
    second = start("echo")
    assert asked(second) == b"hello"
    assert len(children()) == 1
    assert children() != [server]


def test_a_start_that_the_server_did_not_live_to_do_is_said_to_have_failed(start):
    with keep_warm():
        (server,) = children()
        os.kill(server, signal.SIGSTOP)
        process = start("echo")
        os.kill(server, signal.SIGKILL)
        with pytest.raises(WorkerDied, match="w0 could not be started"):
            process.pid  # noqa: B018
        assert process.exit(60) == Exit(None, signal.SIGKILL, 0)
        assert asked(start("echo")) == b"hello"


def test_the_server_ends_with_its_last_process_unless_it_is_kept_warm(start):
    with keep_warm(), keep_warm():
        (server,) = children()
        process = start("echo")
        assert asked(process) == b"hello"
        process.close()
        assert children() == [server]
        again = start("echo")
        assert asked(again) == b"hello"
    assert children() == [server]
    again.close()
    assert children() == []


@pytest.mark.usefixtures("_whole_server")
def test_the_server_has_no_threads_and_processes_none_of_its_descriptors(start):
    made = [start("echo") for _ in range(3)]
    assert [asked(process) for process in made] == [b"hello"] * 3
    (server,) = children()
    assert psutil.Process(server).num_threads() == 1
    names = set(told(start("tell"))["fds"].values())
    kinds = sorted(name.partition(":")[0] for name in names if name.startswith(("socket:", "pipe:", "anon")))
    assert kinds.count("socket") <= 2 + 2  # its own two; standard output and error may be sockets
    ours = {f"socket:[{os.fstat(process.socket.fileno()).st_ino}]" for process in made}
    assert not ours & names


def test_variables_that_libraries_read_when_loaded_have_their_own_server(start):
    plain, other = start("echo"), start("echo", env=(("OMP_NUM_THREADS", "2"),))
    assert asked(plain) == asked(other) == b"hello"
    assert len(children()) == 2
    environ = {psutil.Process(pid).environ()["OMP_NUM_THREADS"] for pid in children()}
    assert environ == {"1", "2"}


# ------------------------------------------------------------------------------------------ what the child sees


@pytest.mark.parametrize("method", METHODS)
def test_a_process_has_what_its_parent_has_at_the_moment_of_its_start(start, monkeypatch, tmp_path, method):
    with keep_warm(StartOptions(method=method)):
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path / "later"))
        monkeypatch.setenv("SET_LATER", "ü\udcff")
        monkeypatch.delenv("HOME", raising=False)
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        monkeypatch.setattr(sys, "argv", ["prog", "--flag"])
        monkeypatch.syspath_prepend(ROOT)
        process = start("tell", "me", method=method, env=(("EXTRA", "x"),))
        seen = told(process)
    assert (seen["name"], seen["pid"]) == ("me", process.pid)
    assert seen["cwd"] == str(tmp_path)
    assert seen["path"] == [str(path) for path in sys.path]
    assert seen["argv"] == ["prog", "--flag"]
    assert seen["environ"]["SET_LATER"] == "ü\udcff"
    assert seen["environ"]["EXTRA"] == "x"
    assert seen["environ"]["OMP_NUM_THREADS"] == "1"
    assert seen["environ"]["CUDA_VISIBLE_DEVICES"] == ""
    assert "HOME" not in seen["environ"]
    assert seen["main"] == []
    assert seen["stdin"] == ""
    assert seen["blocking"]


@pytest.mark.parametrize("method", METHODS)
def test_what_the_user_set_wins(start, monkeypatch, method):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("MKL_NUM_THREADS", "5")
    extra = (("MKL_NUM_THREADS", "7"), ("CUDA_VISIBLE_DEVICES", "0"))
    environ = told(start("tell", method=method, env=extra))["environ"]
    assert environ["OMP_NUM_THREADS"] == "3"
    assert environ["MKL_NUM_THREADS"] == "7"
    assert environ["OPENBLAS_NUM_THREADS"] == "1"
    assert environ["CUDA_VISIBLE_DEVICES"] == "0"


@pytest.mark.usefixtures("_whole_server")
@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_global_generators_differ_between_processes(start, method):
    random.seed(0)
    np.random.seed(0)
    draws = [told(start("tell", method=method))["random"] for _ in range(3)]
    assert len({draw[0] for draw in draws}) == 3
    assert len({draw[1] for draw in draws}) == 3


def test_an_environment_larger_than_any_buffer_arrives(start, monkeypatch):
    for i in range(8):
        monkeypatch.setenv(f"LARGE_{i}", str(i) * 100_000)
    environ = told(start("tell"))["environ"]
    assert all(environ[f"LARGE_{i}"] == str(i) * 100_000 for i in range(8))


@pytest.mark.parametrize("method", METHODS)
def test_output_goes_where_the_parent_writes_at_that_moment(start, capfd, method):
    with keep_warm(StartOptions(method=method)):
        capfd.readouterr()
        for name in ("a", "b"):
            assert start("shout", name, method=method).exit(60).code == 0
            assert capfd.readouterr() == (f"out of {name}\n", f"err of {name}\n")


# ---------------------------------------------------------------------------------------- where the parent runs

SCRIPT = f"""
import sys
print("main runs")
sys.path.insert(0, {ROOT!r})
from penstock.executors.startup import Process
process = Process("tests.executors.entries:echo", "w0")
process.socket.sendall(b"hello")
print(process.socket.recv(10).decode())
process.close()
"""


@pytest.mark.parametrize("how", ["stdin", "module", "beside a file named like a library"])
def test_a_main_module_without_a_guard_runs_once(tmp_path, how):
    (tmp_path / "train.py").write_text(SCRIPT)
    arguments = {"stdin": ["-"], "command": ["-c", SCRIPT], "module": ["-m", "train"]}.get(how, ["train.py"])
    cwd = tmp_path
    if how.startswith("beside"):
        cwd = tmp_path / "data"
        cwd.mkdir()
        for name in ("socket", "random", "numpy", "marshal", "signal"):
            (cwd / f"{name}.py").write_text("raise SystemError('not this one')")
        arguments = ["../train.py"]
    done = subprocess.run(
        [sys.executable, *arguments],
        input=SCRIPT if how == "stdin" else None,
        stdin=None if how == "stdin" else subprocess.DEVNULL,
        capture_output=True, text=True, cwd=cwd, timeout=90,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("main runs\nhello\n", "")


def test_a_process_starts_with_signals_blocked_and_standard_streams_closed():
    script = f"""
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
for fd in (0, 1, 2):
    os.close(fd)
import sys
sys.path.insert(0, {ROOT!r})
from penstock.executors.startup import Process
process = Process("tests.executors.entries:echo", "w0")
process.socket.sendall(b"hello")
ok = process.socket.recv(10) == b"hello"
process.kill()
ok = ok and process.exit(60).signal == signal.SIGKILL
process.close()
os._exit(0 if ok else 1)
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=90).returncode == 0


@pytest.mark.parametrize("method", METHODS)
def test_an_interrupt_from_the_terminal_hits_nothing_that_is_being_born(method):
    script = f"""
import os, signal, sys, time
sys.path.insert(0, {ROOT!r})
from penstock.executors.startup import Process, StartOptions
signal.signal(signal.SIGINT, lambda *_: None)
process = Process("tests.executors.entries:echo", "w0", StartOptions(method={method!r}))
for _ in range(100):
    os.killpg(0, signal.SIGINT)
    time.sleep(0.001)
process.socket.sendall(b"hello")
print(process.socket.recv(10).decode())
process.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=90, start_new_session=True
    )
    assert (done.stdout, done.stderr) == ("hello\n", "")


# ------------------------------------------------------------------------------------------- threads and forks


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_several_threads_may_start_processes_at_once(method):
    answers, barrier = [], threading.Barrier(8)

    def one(number):
        barrier.wait()
        process = Process("tests.executors.entries:echo", f"w{number}", StartOptions(method=method))
        answers.append(asked(process, b"%d" % number))
        process.close()

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [b"%d" % number for number in range(8)]
    assert children() == []


def test_a_close_in_one_thread_ends_a_wait_in_another(start):
    process = start("spin")
    ended = []
    waiter = threading.Thread(target=lambda: ended.append(process.exit(150)))
    waiter.start()
    process.close()
    waiter.join(60)
    assert not waiter.is_alive()


@pytest.mark.parametrize("method", METHODS)
def test_a_wait_is_never_for_another_file_that_got_the_number(start, monkeypatch, method):
    process = start("spin", method=method)
    assert process.pid
    waits, closed = threading.Event(), threading.Event()
    ended = []
    waiter = threading.Thread(target=lambda: ended.append(process.exit(150)))
    readable = startup.readable

    def readable_later(fd, timeout_s):
        if threading.current_thread() is waiter:
            waits.set()
            closed.wait(60)
        return readable(fd, timeout_s)

    monkeypatch.setattr(startup, "readable", readable_later)
    waiter.start()
    assert waits.wait(60)
    process.close()
    others = [fd for _ in range(4) for fd in os.pipe()]
    closed.set()
    waiter.join(60)
    for fd in others:
        os.close(fd)
    assert [end.signal for end in ended] == [signal.SIGKILL]


@pytest.mark.parametrize("method", METHODS)
def test_a_fork_of_the_parent_can_neither_use_nor_disturb_its_processes(start, method):
    process = start("echo", method=method)
    assert asked(process) == b"hello"
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            process.kill()
            process.close()
            assert process.socket.fileno() == -1
            with pytest.raises(PenstockError, match="belongs to another process"):
                process.exit(0)
            own = Process("tests.executors.entries:echo", "own")
            assert asked(own) == b"hello"
            own.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert asked(process) == b"hello"


def test_processes_die_with_their_parent_although_a_fork_of_it_lives_on():
    then = "import time\nif pid := os.fork(): print(pid, flush=True), os.kill(os.getpid(), 9)\ntime.sleep(180)"
    script = parent_script([("spin", None), ("spin", "spawn")], then)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        *pids, _, fork = [parent.stdout.readline() for _ in range(4)]
        pids = list(map(int, pids))
        parent.wait()
        await_end_of(pids)
        assert is_alive(int(fork))
        os.kill(int(fork), signal.SIGKILL)


# -------------------------------------------------------------------------------------------------------- leaks


def test_a_process_costs_three_descriptors_which_no_other_program_gets(start):
    with keep_warm():
        for method in METHODS:
            before = leaks.snapshot()
            process = start("echo", method=method)
            assert asked(process) == b"hello"
            held = [leak for leak in leaks.leaks_since(before, grace_s=0) if leak.startswith("descriptor")]
            assert len(held) <= 3
            assert not any(os.get_inheritable(int(leak.split()[1].rstrip(":"))) for leak in held)
            process.close()


def test_many_starts_leave_nothing():
    with keep_warm():
        server = psutil.Process(children()[0])
        asked(first := Process("tests.executors.entries:echo", "w"))
        assert server.num_fds() == 3 + 3 + 2  # standard, control and waking; status and lifeline
        first.close()
        with leaks.no_leaks():
            for number in range(30):
                process = Process("tests.executors.entries:echo", f"w{number}")
                if number % 2:
                    assert asked(process) == b"hello"
                process.close()
        asked(last := Process("tests.executors.entries:echo", "w"))
        assert server.num_fds() == 3 + 3 + 2
        last.close()


def test_a_start_that_fails_leaves_nothing(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nonesuch/python")
    for method in ("forkserver", "spawn"):
        with pytest.raises(WorkerDied, match="w0 could not be started: No such file"):
            Process("tests.executors.entries:echo", "w0", StartOptions(method=method))
    with pytest.raises(PenstockError, match="no start method 'thread'; there are: forkserver, spawn, fork"):
        Process("tests.executors.entries:echo", "w0", StartOptions(method="thread"))
    assert servers._servers == {}
