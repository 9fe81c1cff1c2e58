import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock import machine
from penstock.testing.leaks import leaks_since, no_leaks, snapshot

needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="without /proc only threads are seen")
WAIT_FOR_STDIN = "import sys; sys.stdin.read()"


@contextmanager
def a_thread(daemon=False):
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="forgotten", daemon=daemon)
    thread.start()
    yield "thread 'forgotten'"
    release.set()
    thread.join()


@contextmanager
def a_process():
    with subprocess.Popen([sys.executable, "-c", WAIT_FOR_STDIN], stdin=subprocess.PIPE) as process:
        yield f"process {process.pid}:"


@contextmanager
def a_process_of_a_process():
    code = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {WAIT_FOR_STDIN!r}])"
    code += "; print(p.pid, flush=True); p.wait()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield f"process {process.stdout.readline().strip()}:"
        process.stdin.close()


@contextmanager
def a_process_nobody_waits_for():
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    yield f"process {process.pid}: ended, but nobody has waited for it"
    process.wait()


@contextmanager
def a_descriptor():
    descriptor = os.open(os.devnull, os.O_RDONLY)
    yield f"descriptor {descriptor}: {os.devnull}"
    os.close(descriptor)


@contextmanager
def a_memfd():
    descriptor = os.memfd_create("forgotten")
    yield f"descriptor {descriptor}: /memfd:forgotten"
    os.close(descriptor)


@contextmanager
def a_shared_memory_file():
    path = Path(f"/dev/shm/forgotten-{os.getpid()}")
    path.write_bytes(b"x")
    yield f"shared memory {path}"
    path.unlink()


@contextmanager
def a_thread_to_release():
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="kept")
    yield thread.start
    release.set()
    thread.join()


LEAKS = [
    pytest.param(a_thread, id="thread"),
    pytest.param(lambda: a_thread(daemon=True), id="daemon thread"),
    pytest.param(a_process, id="process", marks=needs_proc),
    pytest.param(a_process_of_a_process, id="grandchild", marks=needs_proc),
    pytest.param(a_process_nobody_waits_for, id="zombie", marks=needs_proc),
    pytest.param(a_descriptor, id="descriptor", marks=needs_proc),
    pytest.param(a_memfd, id="memfd", marks=needs_proc),
    pytest.param(a_shared_memory_file, id="shared memory", marks=needs_proc),
]


@pytest.mark.parametrize("leak", LEAKS)
def test_what_is_left_behind_is_named_and_is_gone_once_closed(leak):
    before = snapshot()
    with leak() as expected:
        assert any(text.startswith(expected) for text in leaks_since(before, grace_s=0))
    assert leaks_since(before) == []


@pytest.mark.parametrize("leak", LEAKS)
def test_what_was_there_before_is_not_a_leak(leak):
    with leak():
        assert leaks_since(snapshot(), grace_s=0) == []


@needs_proc
@pytest.mark.parametrize("leak", [a_process, a_process_of_a_process, a_process_nobody_waits_for])
def test_processes_are_found_where_the_kernel_does_not_list_children(leak, monkeypatch):
    monkeypatch.setattr(machine, "_lists_children", lambda root, pid: False)
    before = snapshot()
    with leak() as expected:
        assert any(text.startswith(expected) for text in leaks_since(before, grace_s=0))
        assert leaks_since(snapshot(), grace_s=0) == []
    assert leaks_since(before) == []


@needs_proc
def test_a_process_that_another_thread_started_is_a_leak():
    before, asked, leave, texts = snapshot(), threading.Event(), threading.Event(), []

    def start():
        with a_process() as text:
            texts.append(text)
            asked.set()
            leave.wait()

    thread = threading.Thread(target=start)
    thread.start()
    asked.wait()
    found = leaks_since(before, grace_s=0)
    leave.set()
    thread.join()
    assert any(text.startswith(texts[0]) for text in found)


@needs_proc
def test_a_descriptor_with_the_number_of_one_that_was_there_is_a_leak(tmp_path):
    first = os.open(os.devnull, os.O_RDONLY)
    before = snapshot()
    with open(tmp_path / "file", "w") as file:
        os.dup2(file.fileno(), first)
    assert leaks_since(before, grace_s=0) == [f"descriptor {first}: {tmp_path / 'file'}"]
    os.close(first)


USES_SHARED_MEMORY = """
import mmap, os, sys
path, memory = "/dev/shm/of-another-" + sys.argv[1], None
if sys.argv[2] == "a file":
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR)
    os.truncate(descriptor, 1)
    memory = mmap.mmap(descriptor, 1)
else:
    import _multiprocessing
    memory = _multiprocessing.SemLock(1, 1, 1, "/of-another-" + sys.argv[1], False)
print(os.getpid(), flush=True)
sys.stdin.read()
"""


@needs_proc
@pytest.mark.parametrize("what", ["a file", "a semaphore"])
def test_shared_memory_that_another_program_uses_is_not_a_leak(what):
    before, number = snapshot(), str(os.getpid())
    files = [Path(f"/dev/shm/{prefix}of-another-{number}") for prefix in ("", "sem.")]
    # A process that nobody here has started: its parent, which ours was, has ended.
    start = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', *sys.argv[1:]])"
    command = [sys.executable, "-c", start, USES_SHARED_MEMORY, number, what]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        parent.wait()
        try:
            assert any(file.exists() for file in files)
            found = leaks_since(before, grace_s=0, allow=["pipe:"])
        finally:
            os.kill(pid, 9)
            for file in files:
                file.unlink(missing_ok=True)
    assert found == []


@needs_proc
def test_an_open_file_that_is_deleted_meanwhile_is_not_a_leak(tmp_path):
    path = tmp_path / "file"
    with path.open("w"):
        before = snapshot()
        path.unlink()
        assert leaks_since(before, grace_s=0) == []


def test_a_leaked_thread_is_shown_with_the_place_where_it_stands():
    before = snapshot()
    with a_thread():
        [text] = leaks_since(before, grace_s=0)
        assert f"at {threading.__file__}:" in text


def test_what_ends_within_the_grace_is_not_a_leak():
    before = snapshot()
    threading.Timer(0.05, lambda: None).start()
    assert leaks_since(before) == []


@needs_proc
def test_garbage_is_collected_before_anything_is_reported():
    class Holder:
        def __init__(self):
            self.myself = self
            self.descriptor = os.open(os.devnull, os.O_RDONLY)

        def __del__(self):
            os.close(self.descriptor)

    before = snapshot()
    Holder()
    assert leaks_since(before, grace_s=0) == []


def test_allowed_leaks_are_left_out_and_others_are_not():
    before = snapshot()
    with a_thread():
        assert leaks_since(before, grace_s=0, allow=["'forgotten'"]) == []
        assert len(leaks_since(before, grace_s=0, allow=["another"])) == 1


def test_no_leaks_raises_with_the_name_of_the_leak():
    named = pytest.raises(AssertionError, match="left behind:\n  thread 'kept'")
    with a_thread_to_release() as start, named, no_leaks(grace_s=0):
        start()


def test_no_leaks_passes_the_exception_of_its_block_unchanged():
    with a_thread_to_release() as start, pytest.raises(KeyError, match="mine"), no_leaks(grace_s=0):
        start()
        raise KeyError("mine")


@needs_proc
def test_the_resource_tracker_is_not_a_leak():
    code = """
from multiprocessing.shared_memory import SharedMemory
from penstock.testing.leaks import no_leaks
with no_leaks(grace_s=0):  # starts the tracker: this interpreter had none
    memory = SharedMemory(create=True, size=1)
    memory.close()
    memory.unlink()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
