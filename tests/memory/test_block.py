"""Shared memory that is lent and used again."""

import gc
import mmap
import os
import random
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import numpy as np
import pytest
from tests import nursery
from tests.cases import for_each
from tests.helpers import in_threads
from tests.runtime.helpers import SOON_S, run_script

from penstock import PenstockError
from penstock.memory import block as module
from penstock.memory import segment
from penstock.memory.block import Blocks, single_block
from penstock.memory.block_map import BlockMap

pytestmark = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks at the process through /proc")

MB = 1_000_000
BATCH_BYTES = 64 * 224 * 224 * 3


@pytest.fixture(params=["memfd", "shared memory module"])
def kind(request, monkeypatch):
    """The two ways in which a segment is made."""
    if request.param == "memfd" and not hasattr(os, "memfd_create"):
        pytest.skip("this system has no memfd")
    monkeypatch.setattr(segment, "_MEMFD", request.param == "memfd")
    return request.param


@pytest.fixture
def blocks(kind):
    with Blocks(limit_bytes=64 * MB) as blocks:
        yield blocks


def address(array):
    return array.__array_interface__["data"][0]


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def mapped():
    """How many segments of ours the process maps."""
    gc.collect()
    return sum("memfd:penstock" in line for line in Path("/proc/self/maps").read_text().splitlines())


def page_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def torch_view(name):
    return lambda array: getattr(pytest.importorskip("torch"), name)(array)


LOOKS = {
    "a row": lambda a: a[3],
    "a view of a view": lambda a: a[:, 1][2:],
    "another type": lambda a: a.T.view("int8"),
    "memoryview": memoryview,
    "a DLPack capsule": lambda a: a.__dlpack__(),
    "numpy.from_dlpack": np.from_dlpack,
    "torch.from_numpy": torch_view("from_numpy"),
    "torch.from_dlpack": torch_view("from_dlpack"),
    "a view of a tensor": lambda a: pytest.importorskip("torch").from_numpy(a)[1:].T,
    "numpy of a tensor": lambda a: pytest.importorskip("torch").from_numpy(a).numpy()[5],
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_a_block_is_out_until_the_last_view_of_its_array_dies(look, blocks):
    first = blocks.acquire(256 * 1024)
    array = first.array()[: 256 * 1024].reshape(256, 1024)
    array[...] = 7
    where, view = address(array), look(array)
    del array
    gc.collect()
    other = blocks.acquire(256 * 1024)
    other.view()[:] = 9
    assert other is not first
    if type(view).__name__ != "PyCapsule":
        assert (np.asarray(view) == 7).all()
    del view
    again = blocks.acquire(256 * 1024)
    assert again is first
    assert address(again.view()) == where


def test_an_array_that_dies_in_a_cycle_or_in_another_thread_returns_its_block(blocks):
    block = blocks.acquire(1000)
    cycle = [block.array()]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert blocks.acquire(1000) is block

    kept = [block.array()]
    thread = threading.Thread(target=kept.clear)
    thread.start()
    thread.join()
    assert blocks.acquire(1000) is block


def test_memory_is_aligned_writable_and_large_enough(blocks):
    for nbytes in (0, 1, 4095, 4096, 4097, 100_000, 5 * MB):
        array = blocks.acquire(nbytes).array()
        assert len(array) >= nbytes
        assert address(array) % 64 == 0
        assert len(array) % mmap.PAGESIZE == 0
        array[:] = 1
        assert array.flags.writeable


def test_a_view_alone_does_not_return_the_block_and_release_does(blocks):
    block = blocks.acquire(1000)
    block.view()[:] = 1
    assert blocks.acquire(1000) is not block
    block.release()
    assert blocks.acquire(1000) is block


def test_release_leaves_a_block_to_its_array(blocks):
    block = blocks.acquire(1000)
    array = block.array()
    block.release()
    assert blocks.acquire(1000) is not block
    del array
    assert blocks.acquire(1000) is block


def test_a_block_has_one_array_per_use(blocks):
    block = blocks.acquire(1000)
    array = block.array()
    with pytest.raises(RuntimeError, match="has an array already"):
        block.array()
    del array
    assert blocks.acquire(1000) is block
    block.array()[:] = 1


def test_the_end_of_an_earlier_use_does_not_end_this_one(blocks):
    block = blocks.acquire(1000)
    earlier = block.generation
    block.release()
    block.release()  # one too many
    assert blocks.acquire(1000) is block
    assert blocks.stats()["bytes_out"] == block.size
    blocks._returned.put((block.number, earlier))  # a finalizer that is late
    assert blocks.acquire(1000) is not block


def test_with_all_blocks_out_there_is_none_until_one_returns(kind):
    with Blocks(limit_bytes=3 * MB) as blocks:
        kept = [blocks.acquire(MB - 100_000).array() for _ in range(3)]
        assert blocks.acquire(MB - 100_000) is None
        assert blocks.acquire(4 * MB) is None
        kept.pop()
        assert blocks.acquire(MB - 100_000) is not None
        assert blocks.stats()["bytes"] <= 3 * MB


def test_the_block_freed_last_is_lent_first(blocks):
    """Its memory is still in the cache."""
    held = [blocks.acquire(1000) for _ in range(3)]
    for block in (held[2], held[0], held[1]):
        block.release()
    assert [blocks.acquire(1000) for _ in range(3)] == [held[1], held[0], held[2]]


def test_batches_of_slightly_different_size_share_blocks(blocks):
    for nbytes in range(900_000, 1_000_000, 1_000):
        blocks.acquire(nbytes).array()[:nbytes] = 1
    assert blocks.stats()["blocks"] <= 3


@for_each("nbytes", [1, 4097, 65_537, MB, BATCH_BYTES, 2**30 + 1])
def test_at_most_an_eighth_of_a_block_is_unused(nbytes):
    assert nbytes <= module._size_for(nbytes) <= nbytes * 9 / 8 + mmap.PAGESIZE


def test_a_large_block_serves_a_small_batch_only_when_there_is_no_room_for_a_small_one():
    with Blocks(limit_bytes=9 * MB) as blocks:
        large = blocks.acquire(4 * MB)
        large.release()
        small = blocks.acquire(MB)
        assert small is not large
        other = blocks.acquire(2_900_000)
        assert other is large
        large.release()
        held = blocks.acquire(4 * MB), blocks.acquire(3 * MB)
        assert held[0] is large
        large.release()
        assert blocks.acquire(MB) is large


def test_idle_blocks_that_are_too_small_make_room(blocks):
    small = [blocks.acquire(MB) for _ in range(50)]
    for block in small:
        block.release()
    assert blocks.acquire(60 * MB).size >= 60 * MB
    assert blocks.stats()["bytes"] <= 64 * MB


def test_threads_never_share_memory(blocks):
    wrong, refused = [], []

    def use(mark):
        for _ in range(500):
            block = blocks.acquire(20_000)
            if block is None:
                refused.append(mark)
                continue
            array = block.array()
            array[::512] = mark
            if not np.all(array[::512] == mark):
                wrong.append(mark)

    in_threads(use, 4)
    assert not wrong
    assert not refused
    assert blocks.stats()["blocks"] <= 8
    assert blocks.stats()["blocks_out"] == 0


def test_a_block_that_is_used_again_costs_no_page_faults(blocks):
    pages = BATCH_BYTES // mmap.PAGESIZE
    blocks.acquire(BATCH_BYTES).array()[:] = 1
    before = page_faults()
    blocks.acquire(BATCH_BYTES).array()[:] = 2
    assert page_faults() - before < pages / 20
    assert blocks.stats()["blocks"] == 1


# Giving back.


def test_idle_blocks_beyond_what_was_out_lately_are_given_back(blocks):
    many = [blocks.acquire(MB) for _ in range(10)]
    for block in many:
        block.release()
    few = [blocks.acquire(MB) for _ in range(2)]
    for _ in range(3 * module._SPAN):
        blocks.acquire(MB).array()[0] = 1
    assert blocks.stats()["blocks"] == 3
    assert {block.number for block in few} <= set(blocks._blocks)


def test_blocks_in_steady_use_are_kept(blocks):
    for _ in range(module._SPAN):
        batches = [blocks.acquire(MB).array() for _ in range(5)]
        del batches
    before = set(blocks._blocks)
    assert len(before) == 5
    for _ in range(module._SPAN):
        batches = [blocks.acquire(MB).array() for _ in range(5)]
        del batches
    assert set(blocks._blocks) == before


def test_what_is_given_back_is_free_at_once_even_where_a_worker_maps_it(blocks):
    block, handed = blocks.acquire(MB), BlockMap()
    watch = os.dup(block.fd)
    try:
        handed.attach(block.number, os.dup(block.fd), block.size)
        handed.view(block.number)[:] = 1
        assert os.fstat(watch).st_blocks * 512 == block.size
        block.release()
        blocks.close()
        assert os.fstat(watch).st_blocks == 0
        assert not handed.view(block.number).any()
    finally:
        os.close(watch)


def test_close_leaves_arrays_valid_and_nothing_behind_when_they_die():
    segments, open_before = mapped(), descriptors()
    blocks = Blocks(64 * MB)
    kept = [blocks.acquire(MB).array()[10:20] for _ in range(5)]
    for number, view in enumerate(kept):
        view[:] = number
    blocks.acquire(MB).release()
    blocks.close()
    blocks.close()
    assert descriptors() == open_before
    assert mapped() == segments + 5
    assert [view[3] for view in kept] == [0, 1, 2, 3, 4]
    assert blocks.acquire(MB) is None
    del kept, view
    assert mapped() == segments
    assert blocks.stats() == {"blocks": 0, "blocks_out": 0, "bytes": 0, "bytes_out": 0}


def test_idle_blocks_keep_to_the_room_that_a_bound_leaves_them():
    allowed, elsewhere = 8 * MB, SimpleNamespace(used=0)

    def spare(out):
        return max(allowed - max(elsewhere.used, out), 0)

    rng, held = random.Random(0), []
    with Blocks(64 * MB, spare, filled=0.8) as blocks:
        for _ in range(500):
            elsewhere.used = rng.randrange(2 * allowed)
            if rng.random() < 0.5:
                held.append(blocks.acquire(round(1000 * 2000 ** rng.random())))
            else:
                if held:
                    held.pop(rng.randrange(len(held))).release()
                blocks.trim()
            stats = blocks.stats()
            out = sum(block.size for block in held)
            # Nothing is refused, and nothing is idle beyond what is left of the bound.
            assert stats["bytes_out"] == out
            assert stats["bytes"] <= out + spare(out)
            assert blocks.peak_bytes >= blocks.nbytes == stats["bytes"]


def test_with_a_bound_a_block_is_not_lent_for_much_less_than_it_holds():
    with Blocks(64 * MB, lambda out: 64 * MB, filled=0.8) as blocks:
        large = blocks.acquire(10 * MB)
        large.release()
        assert blocks.acquire(5 * MB) is not large
        assert blocks.acquire(9 * MB) is large


def test_a_descriptor_to_send_is_one_of_its_own_and_none_once_the_block_is_closed(blocks):
    block = blocks.acquire(MB)
    fd = blocks.descriptor(block)
    assert os.path.sameopenfile(fd, block.fd)
    assert fd != block.fd
    os.close(fd)
    blocks.close()
    assert block.closed
    assert blocks.descriptor(block) is None


def test_blocks_that_are_dropped_without_close_leave_nothing_behind():
    segments, open_before = mapped(), descriptors()
    blocks = Blocks(64 * MB)
    block, idle = blocks.acquire(MB), blocks.acquire(MB)
    view = block.array()[:10]
    idle.release()
    del blocks, block, idle
    assert descriptors() == open_before
    assert mapped() == segments + 1
    view[:] = 1
    del view
    assert mapped() == segments


def test_close_from_inside_acquire_neither_waits_nor_leaks(monkeypatch):
    """As when the garbage collector finds a loader there."""
    segments, open_before = mapped(), descriptors()
    blocks, new_segment = Blocks(64 * MB), module.new_segment

    def closing(size):
        blocks.close()
        return new_segment(size)

    monkeypatch.setattr(module, "new_segment", closing)
    assert blocks.acquire(MB) is None
    assert (descriptors(), mapped()) == (open_before, segments)


STATES = """
import os, sys, threading
import numpy as np
from penstock.memory import block as module
from penstock.memory.block_map import BlockMap
from penstock.memory import segment
from penstock.memory.block import Blocks, single_block
from penstock.memory.block_map import BlockMap

def made(then):
    blocks = Blocks(10_000_000)
    then(blocks)
    return blocks

segment._MEMFD = MEMFD
never_used, closed = Blocks(100), made(Blocks.close)
idle, out = made(lambda blocks: blocks.acquire(100).array()), Blocks(10_000_000)
batch, open_use = out.acquire(100).array(), out.acquire(100)
closed_with_a_view = Blocks(10_000_000)
view = closed_with_a_view.acquire(100).array()[1:]
closed_with_a_view.close()
cycle = [cyclic := Blocks(10_000_000), cyclic.acquire(100).array()]
cycle.append(cycle)
late = Blocks(10_000_000)
sys.outlives_most = late, late.acquire(100).array(), late.acquire(9), single_block(9)
handed = BlockMap()
handed.attach(1, os.dup(open_use.fd), open_use.size)
handed_view = handed.view(1)
"""


def test_the_interpreter_exits_silently_whatever_state_blocks_are_in(kind):
    done = run_script(STATES.replace("= MEMFD", f"= {kind == 'memfd'}"))
    assert (done.returncode, done.stderr) == (0, "")


def test_the_interpreter_exits_silently_while_a_thread_acquires():
    done = run_script("""
import threading
from penstock.memory.block import Blocks

blocks, begun = Blocks(10_000_000), threading.Event()

def run():
    while True:
        begun.set()
        batches = [blocks.acquire(1_000_000).array() for _ in range(3)]

threading.Thread(target=run, daemon=True).start()
begun.wait()
""")
    assert (done.returncode, done.stderr) == (0, "")


# Other processes. The worker fills blocks that it is handed, and answers with its number of descriptors.

WORKER = """
import os, socket, struct, sys
from penstock.memory.block_map import BlockMap

link, blocks = socket.socket(fileno=int(sys.argv[1])), BlockMap()
while True:
    message, fds, _, _ = socket.recv_fds(link, 1024, 8, socket.MSG_CMSG_CLOEXEC)
    if not message:
        break
    number, size, mark = struct.unpack("qqq", message)
    if fds:
        blocks.attach(number, fds[0], size)
    view = blocks.view(number)
    before = int(view[0])
    view[:] = mark
    link.send(struct.pack("qq", before, len(os.listdir("/proc/self/fd"))))
"""


class Worker:
    def __init__(self):
        self.link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.link.settimeout(SOON_S)
        self.process = nursery.Forked(WORKER, fds=[theirs.fileno()], server=False)
        theirs.close()
        self.known = set()

    def fill(self, block, mark):
        """What the worker found in the block, and how many descriptors it has open."""
        fds = [] if block.number in self.known else [block.fd]
        self.known.add(block.number)
        socket.send_fds(self.link, [struct.pack("qqq", block.number, block.size, mark)], fds)
        return struct.unpack("qq", self.link.recv(1024))

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.link.close()
        self.process.wait(SOON_S)
        self.process.close()


def test_a_block_is_handed_over_once_and_to_a_worker_that_starts_later_too(blocks):
    held = [blocks.acquire(100_000) for _ in range(20)]
    with Worker() as first:
        open_before = first.fill(held[0], 1)[1]
        for _ in range(3):
            for mark, block in enumerate(held):
                assert first.fill(block, mark)[1] == open_before
        assert [set(block.view().tolist()) for block in held] == [{mark} for mark in range(20)]
        first.process.kill()
    with Worker() as second:
        assert [second.fill(block, 99)[0] for block in held] == list(range(20))
    arrays = [block.array() for block in held]
    assert all(np.all(array == 99) for array in arrays)


def test_the_block_of_a_killed_worker_is_released_and_used_again(blocks):
    block = blocks.acquire(100_000)
    with Worker() as worker:
        worker.fill(block, 1)
        worker.process.kill()
    block.release()
    assert blocks.acquire(100_000) is block
    block.array()[:] = 2


def test_nothing_is_left_in_shared_memory_when_owner_and_worker_are_killed(kind):
    before = set(os.listdir("/dev/shm"))
    script = f"""
import os, signal
from penstock.memory import block as module
from penstock.memory.block_map import BlockMap
from penstock.memory import segment
segment._MEMFD = {kind == "memfd"}
blocks = module.Blocks(100_000_000)
out = [blocks.acquire(1_000_000) for _ in range(10)]
fds = [os.dup(block.fd) for block in out]
if os.fork() == 0:
    held = BlockMap()
    for block, fd in zip(out, fds):
        held.attach(block.number, fd, block.size)
    signal.pause()
print(len(os.listdir("/dev/shm")), flush=True)
os.killpg(0, signal.SIGKILL)
"""
    done = nursery.run(script, server=False)
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, "")
    assert int(done.stdout) == len(before)
    assert set(os.listdir("/dev/shm")) == before


def test_a_name_is_gone_before_the_block_is_lent(blocks):
    before = set(os.listdir("/dev/shm"))
    block = blocks.acquire(MB)
    array = block.array()
    array[:] = 1
    assert set(os.listdir("/dev/shm")) == before


def test_a_map_closes_descriptors_and_drops_what_it_is_told_to(blocks):
    held, handed = [blocks.acquire(1000) for _ in range(3)], BlockMap()
    open_before = descriptors()
    for block in held:
        block.view()[:] = block.number % 100
        handed.attach(block.number, os.dup(block.fd), block.size)
    assert descriptors() == open_before
    assert all(block.number in handed for block in held)
    last = held[-1].number
    view = handed.view(last)
    handed.drop(last)
    handed.drop(last)
    assert len(handed) == 2
    assert (view == last % 100).all()
    with pytest.raises(KeyError):
        handed.view(last)
    handed.close()
    assert len(handed) == 0


def test_a_first_write_to_a_block_that_was_handed_over_costs_no_page_faults(blocks):
    block, handed = blocks.acquire(BATCH_BYTES), BlockMap()
    handed.attach(block.number, os.dup(block.fd), block.size)
    before = page_faults()
    handed.view(block.number)[:] = 1
    assert page_faults() - before < block.size // mmap.PAGESIZE / 20


def test_a_segment_that_is_too_small_is_refused_rather_than_a_bus_error(blocks):
    block, handed = blocks.acquire(1000), BlockMap()
    open_before = descriptors()
    with pytest.raises(PenstockError, match="bytes, and not the"):
        handed.attach(block.number, os.dup(block.fd), block.size + 1)
    assert descriptors() == open_before
    assert block.number not in handed


def test_without_descriptors_to_send_there_are_no_blocks(monkeypatch):
    monkeypatch.setattr(module, "SENDABLE", False)
    monkeypatch.setattr(segment, "SENDABLE", False)
    with Blocks(MB) as blocks:
        assert blocks.acquire(10) is None
    with pytest.raises(PenstockError, match="cannot hand descriptors"):
        single_block(3)


# Forks, each in an interpreter of its own.

FORK = """
import os, pathlib, resource, sys
import numpy as np
import penstock as ps
from penstock.memory.block import Blocks, single_block
from penstock.memory.block_map import BlockMap

def in_child(check):
    pid = os.fork()
    if pid == 0:
        try:
            check()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        sys.exit(7)   # as a child ends that was not written for us: all its objects die
    return pid

def ended_well(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
"""


def test_a_forked_child_owns_no_blocks_and_returns_none():
    done = run_script(
        FORK
        + """
fds_before = len(os.listdir("/proc/self/fd"))
blocks = Blocks(10_000_000)
block, idle, filled = blocks.acquire(1000), blocks.acquire(1000), blocks.acquire(1000)
array = filled.array()
array[:] = 5
idle.release()
numbers = set(blocks._blocks)

def check():
    global array
    assert len(os.listdir("/proc/self/fd")) == fds_before
    assert (array == 5).all()
    try:
        blocks.acquire(1000)
    except ps.PenstockError as exc:
        assert "another process" in str(exc)
    else:
        raise AssertionError("lent by a child")
    try:
        block.view()
    except ps.PenstockError as exc:
        assert "another process" in str(exc)
    block.release()
    del array
    assert set(blocks._blocks) == set()
    blocks.close()
    with Blocks(10_000_000) as own:
        own.acquire(1000).array()[:] = 1

for _ in range(3):
    assert ended_well(in_child(check))
assert set(blocks._blocks) == numbers
assert blocks.stats()["blocks_out"] == 2
assert blocks.acquire(1000) is idle
assert (array == 5).all()
block.view()[:] = 1
"""
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_fork_while_another_thread_is_inside_acquire():
    done = run_script(
        FORK
        + """
import threading, warnings
from penstock.memory import block as module
from penstock.memory.block_map import BlockMap
from penstock.memory import segment

warnings.simplefilter("ignore")  # of forking with threads: it is what this is about
inside, go_on, new_segment = threading.Event(), threading.Event(), module.new_segment

def slow(size):
    inside.set()
    go_on.wait()
    return new_segment(size)

blocks = Blocks(10_000_000)
blocks.acquire(1000)
module.new_segment = slow
thread = threading.Thread(target=blocks.acquire, args=(1000,))
thread.start()
inside.wait()

def check():
    module.new_segment = new_segment
    blocks.close()
    assert blocks.stats()["blocks"] == 0

pid = in_child(check)
go_on.set()
thread.join()
assert ended_well(pid)
assert blocks.stats()["blocks_out"] == 2
"""
    )
    assert (done.returncode, done.stderr) == (0, "")


# Limits of the process, each in an interpreter of its own. A memfd is not counted by RLIMIT_AS until it is
# mapped, and by no other limit on memory; RLIMIT_FSIZE is one on the reserving itself.

REFUSALS = {
    "RLIMIT_FSIZE": ("resource.RLIMIT_FSIZE, 3_000_000", "File too large"),
    "RLIMIT_AS": ("resource.RLIMIT_AS, used + 12_000_000", "Cannot allocate memory"),
}

USED = """
used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
"""


@for_each("limit", REFUSALS)
def test_memory_that_is_refused_is_an_error_with_a_next_step_and_no_signal(limit):
    setting, why = REFUSALS[limit]
    done = run_script(
        FORK
        + f"""
blocks = Blocks(1_000_000_000)
small, zeros = blocks.acquire(1_000_000).array(), np.zeros(50_000_000, np.uint8){USED}
before = len(os.listdir("/proc/self/fd"))
resource.setrlimit(({setting})[0], ({setting})[1:] * 2)
for make in (lambda: blocks.acquire(200_000_000), lambda: single_block(zeros.nbytes)):
    try:
        make()
    except ps.PenstockError as exc:
        message = str(exc)
    else:
        raise AssertionError("not refused")
    assert "{why}" in message and "prefetch fewer batches" in message and "loader(memory=)" in message, message
assert len(os.listdir("/proc/self/fd")) == before
small[:] = 1
blocks.acquire(1_000_000).array()[:] = 2
"""
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_idle_blocks_are_given_back_before_memory_is_said_to_be_refused():
    done = run_script(
        FORK
        + f"""
blocks = Blocks(1_000_000_000)
idle = [blocks.acquire(10_000_000) for _ in range(10)]
for block in idle:
    block.release(){USED}
resource.setrlimit(resource.RLIMIT_AS, (used + 20_000_000, used + 20_000_000))
blocks.acquire(80_000_000).array()[:] = 1
assert blocks.stats()["blocks"] == 1
"""
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_memory_that_is_refused_to_a_worker_is_an_error_there():
    done = run_script(
        FORK
        + f"""
blocks, handed = Blocks(1_000_000_000), BlockMap()
block = blocks.acquire(100_000_000){USED}
resource.setrlimit(resource.RLIMIT_AS, (used + 20_000_000, used + 20_000_000))
fd = os.dup(block.fd)
try:
    handed.attach(block.number, fd, block.size)
except ps.PenstockError as exc:
    assert "Cannot allocate memory" in str(exc)
else:
    raise AssertionError("not refused")
assert not os.path.exists(f"/proc/self/fd/{{fd}}")
"""
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_ten_thousand_batches_with_256_descriptors_of_which_many_are_kept():
    done = run_script(
        FORK
        + """
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
before = len(os.listdir("/proc/self/fd"))
owners, kept, copies = [Blocks(1_000_000_000) for _ in range(4)], [], 0
for n in range(10_000):
    block = owners[n % 4].acquire(5000)
    if block is None:
        copies += 1
        array = np.empty(5000, np.uint8)
    else:
        array = block.array()
    array[:] = n % 251
    if n % 10 == 0:
        kept.append(array)
assert copies
assert len(os.listdir("/proc/self/fd")) - before <= 32
assert all((array == 10 * n % 251).all() for n, array in enumerate(kept))
del kept, array
assert all(owner.acquire(5000) for owner in owners)
"""
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_without_a_descriptor_left_there_is_no_block_rather_than_an_error():
    done = run_script(
        FORK
        + """
blocks = Blocks(1_000_000)
blocks.acquire(5000).array()[:] = 1
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
try:
    while True:
        taken.append(os.dup(0))
except OSError:
    pass
array = blocks.acquire(5000).array()
assert blocks.acquire(5000) is None
for fd in taken:
    os.close(fd)
assert blocks.acquire(5000) is not None
"""
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_small_shared_memory_folder_does_not_matter_or_is_an_error_but_no_signal():
    script = """
import numpy as np
import penstock as ps
from penstock.memory import block as module
from penstock.memory.block_map import BlockMap
from penstock.memory import segment

with module.Blocks(100_000_000) as blocks:
    kept = [blocks.acquire(5_000_000).array() for _ in range(5)]
    for array in kept:
        array[:] = 1
segment._MEMFD = False
with module.Blocks(100_000_000) as blocks:
    blocks.acquire(100_000).array()[:] = 1
    try:
        blocks.acquire(5_000_000)
    except ps.PenstockError as exc:
        assert "No space left on device" in str(exc)
    else:
        raise AssertionError("not refused")
print("done")
"""
    prepare = "mount -t tmpfs -o size=1m tmpfs /dev/shm || exit 77"
    command = ["unshare", "-Urm", "sh", "-c", f'{prepare}; exec "$0" -W error -c "$1"', sys.executable, script]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SOON_S)
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("user namespaces are not allowed here")
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_frequent_signals_do_not_keep_memory_from_being_reserved():
    """Older kernels undo what an interrupted call has reserved: in one step, a large segment never came."""
    ticks = []
    old = signal.signal(signal.SIGALRM, lambda *_: ticks.append(1))
    remaining = signal.setitimer(signal.ITIMER_REAL, 0.004, 0.004)
    try:
        with Blocks(limit_bytes=600 * MB) as blocks:
            block = blocks.acquire(256 * MB)
            assert os.fstat(block.fd).st_blocks * 512 == block.size
    finally:
        signal.setitimer(signal.ITIMER_REAL, *remaining)
        signal.signal(signal.SIGALRM, old)
    assert ticks


# Copies of arrays.

ARRAYS = {
    "matrix": np.arange(60_000, dtype="f4").reshape(200, 300),
    "Fortran order": np.asfortranarray(np.arange(12).reshape(3, 4)),
    "strided": np.arange(100)[::7],
    "empty": np.zeros((0, 3)),
    "no dimension": np.array(5),
    "dates": np.array(["2020-01-01", "2021-01-01"], "M8[D]"),
    "records": np.array([(1, 2.5, b"x")], [("a", "i2"), ("b", "f8"), ("c", "S3")]),
    "strings": np.array(["a", "bcd"]),
    "big endian": np.arange(5, dtype=">i4"),
    "bool": np.array([True, False]),
}


# Blocks as a worker sees them.


def test_a_worker_is_told_when_the_last_view_of_a_lent_block_has_died(blocks):
    block, handed, returned = blocks.acquire(1000), BlockMap(), SimpleQueue()
    handed.attach(block.number, os.dup(block.fd), block.size)
    array = handed.array(block.number, 5, returned)
    again = handed.array(block.number, 6, returned)
    array[:10] = 3
    row = array[3:7]
    del array
    gc.collect()
    assert returned.empty()
    handed.drop(block.number)
    assert (row == 3).all()
    del row
    assert returned.get_nowait() == (block.number, 5)
    del again
    assert returned.get_nowait() == (block.number, 6)
    assert (block.view()[:10] == 3).all()
    with pytest.raises(KeyError):
        handed.array(block.number, 7, returned)


def test_what_is_written_to_a_private_mapping_stays_there(blocks):
    block = blocks.acquire(MB)
    block.view()[:] = 1
    private = np.asarray(segment.Mapping(block.fd, block.size, private=True))
    private[:10] = 2
    assert (block.view() == 1).all()
    assert (private[:11] == [2] * 10 + [1]).all()
