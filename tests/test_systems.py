"""What happens where the operating system lacks a call or refuses it. Scripts take it away before they import."""

import textwrap

import pytest
from tests.runtime.process_helpers import run_alone

from penstock.executors.startup import StartOptions

#: what a system without fork and without Unix sockets does not have
WITHOUT_UNIX = """
import mmap, os, select, signal, socket
for module, names in {
    os: ["fork", "forkpty", "register_at_fork", "memfd_create", "posix_fallocate", "sched_getaffinity", "sysconf",
         "wait4", "waitid", "pidfd_open"],
    socket: ["CMSG_SPACE", "CMSG_LEN", "SCM_RIGHTS", "send_fds", "recv_fds"],
    signal: ["SIGKILL", "SIGSTOP", "SIGCHLD", "pthread_sigmask", "pidfd_send_signal"],
    select: ["poll", "epoll"],
    mmap: ["PROT_READ", "PROT_WRITE", "MAP_SHARED", "MAP_PRIVATE"],
}.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
import penstock as ps
"""


def test_threads_coroutines_and_inline_work_without_fork_and_without_unix_sockets():
    code = (
        WITHOUT_UNIX
        + """
from penstock import *
data = ps.from_sequence(range(20)).shuffle()
async def double(x):
    return 2 * x
expected = sorted(range(0, 40, 2))
assert sorted(data.map(lambda x: 2 * x)) == expected
assert sorted(data.map(lambda x: 2 * x, workers=2)) == expected
assert sorted(data.map(double, workers=2)) == expected
with data.batch(4).loader(inline=True) as loader:
    assert len(list(loader)) == 5
    loader.diagnose(), loader.state_dict()
"""
    )
    assert run_alone(code) == (0, "", "")


def test_processes_are_refused_with_the_next_step_where_there_are_no_unix_sockets():
    code = (
        WITHOUT_UNIX
        + """
data = ps.from_sequence(range(3))
for written in [
    lambda: data.map(str, on="process").explain(),
    lambda: data.map(str, on="process").loader(),
    lambda: data.map(str, on=ps.Processes(2)).loader(),
    lambda: data.loader(on="process", workers=2),
    lambda: data.loader(isolate=True),
]:
    try:
        written()
    except ps.PlanError as exc:
        print(str(exc).replace("\\n", " "))
"""
    )
    code, out, err = run_alone(code)
    assert (code, err) == (0, "")
    assert out.count("\n") == out.count("worker processes need; use threads (on='thread')") == 5


@pytest.mark.parametrize(("refused", "start"), [("ENOSYS", "forkserver"), ("EPERM", "spawn")])
def test_a_system_that_refuses_memory_files_has_worker_processes_all_the_same(refused, start):
    code = f"""
    import errno, os
    def refused(*_):
        raise OSError(errno.{refused}, os.strerror(errno.{refused}))
    os.memfd_create = refused
    import numpy as np, penstock as ps
    with ps.Processes(1, start="{start}") as pool:
        got = list(ps.from_sequence(range(3)).map(lambda x: np.full(100_000, x), on=pool).loader(timeout_s=20))
    assert [(len(x), x.min(), x.max()) for x in got] == [(100_000, n, n) for n in range(3)]
    # The standard library's watcher over shared memory ends a moment after this process, if nobody waits for it.
    from multiprocessing import resource_tracker
    resource_tracker._resource_tracker._stop()
    """
    assert run_alone(code) == (0, "", "")


def test_a_start_without_descriptors_left_names_the_limit():
    code = """
    import os, resource, warnings, penstock as ps
    warnings.simplefilter("ignore")
    data = ps.from_sequence(range(5)).map(lambda x: x, on="process", workers=1)
    with data.loader(timeout_s=20) as loader:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")), 4096))
        try:
            next(iter(loader))
        except ps.PenstockError as exc:
            print(exc)
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096))
    """
    code, out, _ = run_alone(code)
    assert code == 0
    assert "could not be started: Too many open files; raise the limit on open files with `ulimit -n`" in out


@pytest.mark.parametrize(("platform", "method"), [("linux", "forkserver"), ("darwin", "spawn")])
def test_macos_starts_processes_as_new_interpreters(monkeypatch, platform, method):
    monkeypatch.setattr("sys.platform", platform)
    assert StartOptions().chosen() == method


def test_kills_of_the_fork_server_count_as_kills():
    """Ten workers that end before they begin end a run, and a killer from outside may take sixty."""
    code = """
    import os, signal, penstock as ps
    from penstock.executors import servers
    order, left = servers.Server.order, [25]
    def killed_after_the_order(server, fds):
        order(server, fds)
        if left[0]:
            left[0] -= 1
            os.kill(server._popen.pid, signal.SIGKILL)
    servers.Server.order = killed_after_the_order
    with ps.from_sequence(range(5)).map(lambda x: x, on="process", workers=1).loader(timeout_s=30) as loader:
        assert list(loader) == list(range(5))
        assert loader.stats()["deaths"] == 25, loader.stats()
    """
    assert run_alone(textwrap.dedent(code)) == (0, "", "")


def test_faults_of_the_fork_server_do_not_count_as_kills():
    code = """
    import os, signal, penstock as ps
    from penstock.executors import servers
    order = servers.Server.order
    def failed_after_the_order(server, fds):
        order(server, fds)
        os.kill(server._popen.pid, signal.SIGSEGV)
    servers.Server.order = failed_after_the_order
    with ps.from_sequence(range(5)).map(lambda x: x, on="process", workers=1).loader(timeout_s=30) as loader:
        try:
            list(loader)
        except ps.WorkerDied as exc:
            print(exc)
        assert 10 <= loader.stats()["deaths"] < 40, loader.stats()
    """
    code, out, err = run_alone(textwrap.dedent(code))
    assert (code, err) == (0, "")
    assert "before any work was begun" in out
