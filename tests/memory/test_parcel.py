"""Programs that are sent to workers: what arrives, what is shared, and what is told when it cannot be."""

import dataclasses
import functools
import gc
import importlib.util
import io
import os
import pickle
import queue
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import types
import warnings
import weakref
from collections import OrderedDict, namedtuple
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
from tests.cases import for_each
from tests.helpers import in_threads
from tests.memory.parcel_worker import Worker
from tests.runtime.helpers import SOON_S, run_script

from penstock import PenstockError, PlanError
from penstock.memory import parcel as module
from penstock.memory import segment
from penstock.memory.parcel import pack, unpack

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="looks at the process through /proc")

LARGE = 1_000_000


def opened(parcel):
    """What a worker gets, in this process."""
    return unpack(parcel.data, [os.dup(block.fd) for block in parcel.blocks])


def through(value):
    return opened(pack(value, "the program"))


def sample(shape=(500, 1000), dtype="f8"):
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


# Arrays.

ARRAYS = {
    "matrix": sample(),
    "Fortran order": np.asfortranarray(sample()),
    "strided": sample((1000, 1000))[::2, ::3],
    "backwards": sample()[::-1],
    "transposed": sample((100, 50, 200)).transpose(2, 0, 1),
    "records": np.zeros(200_000, [("a", "i2"), ("b", "f8"), ("c", "S3"), ("d", "f4", (2,))]),
    "padded records": np.ones(200_000, np.dtype([("a", "i1"), ("b", "f8")], align=True)),
    "dates": np.arange(500_000).astype("M8[s]"),
    "bool": np.arange(2 * LARGE) % 3 == 0,
    "big endian": sample(dtype=">i4"),
    "half": np.ones((2000, 1000), "f2"),
    "strings": np.full(100_000, "abc"),
    "one very large item": np.array(b"x" * LARGE, f"S{LARGE}"),
    "read-only": np.broadcast_to(np.arange(LARGE), (1, LARGE)),
}


@for_each("array", ARRAYS.values())
def test_a_large_array_arrives_through_shared_memory(array):
    parcel = pack({"array": array}, "the program")
    there = opened(parcel)["array"]
    assert type(there) is np.ndarray
    assert there.dtype == array.dtype
    assert there.shape == array.shape
    assert there.tobytes() == array.tobytes()
    assert there.flags.writeable == array.flags.writeable
    assert there.flags.f_contiguous == array.flags.f_contiguous
    assert parcel.shared_bytes == array.nbytes
    assert parcel.nbytes < 1500
    assert len(parcel.blocks) == 1


@for_each(
    "array",
    [np.arange(10), np.array(5), np.zeros((0, 3)), np.zeros((0, LARGE), "f8"), np.array([{}, None] * LARGE)],
)
def test_other_arrays_are_pickled(array):
    parcel = pack([array], "the program") if array.nbytes < LARGE else _quietly([array])
    assert parcel.blocks == []
    assert parcel.shared_bytes == 0
    assert np.array_equal(opened(parcel)[0], array)


def _quietly(value):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return pack(value, "the program")


def test_a_subclass_of_array_arrives_as_itself():
    records = np.zeros(200_000, [("a", "f8")]).view(np.recarray)
    records.a[:] = 7
    there = through(records)
    assert type(there) is np.recarray
    assert (there.a == 7).all()
    masked = np.ma.masked_less(sample(), 5)
    assert through(masked).mask.sum() == 5


def test_an_array_that_is_met_twice_is_one_array_there_too():
    array = sample()
    parcel = pack({"a": array, "f": lambda: array}, "the program")
    there = opened(parcel)
    assert there["f"]() is there["a"]
    assert parcel.shared_bytes == array.nbytes


def test_views_of_the_same_memory_share_it():
    array = sample()
    parcel = pack([array, array.T, array.reshape(-1)], "the program")
    a, b, c = opened(parcel)
    assert parcel.shared_bytes == array.nbytes
    c[1] = -1
    assert a[0, 1] == b[1, 0] == -1


def test_a_read_only_array_may_be_opened_to_writing_as_one_may_in_the_parent():
    array = sample()
    array.flags.writeable = False
    there = through(array)
    with pytest.raises(ValueError, match="read-only"):
        there[0] = 1
    there.flags.writeable = True
    there[0] = 1


def test_what_is_written_stays_with_the_writer():
    array = sample()
    parcel = pack(array, "the program")
    first, second = opened(parcel), opened(parcel)
    first[:] = -1
    array[:] = -2
    assert np.array_equal(second, sample())
    assert np.array_equal(opened(parcel), sample())


def test_a_parcel_of_many_arrays_has_one_descriptor():
    arrays = [np.full(LARGE, n % 251, np.uint8) for n in range(60)]
    before = len(os.listdir("/proc/self/fd"))
    parcel = pack(arrays, "the program")
    assert len(os.listdir("/proc/self/fd")) == before + 1
    assert all((there == n % 251).all() for n, there in enumerate(opened(parcel)))


def test_large_buffers_of_other_objects_are_shared_too():
    class Table:
        def __init__(self, buffer):
            self.buffer = buffer

        def __reduce_ex__(self, protocol):
            return Table, (pickle.PickleBuffer(self.buffer),)

    parcel = pack([Table(b"x" * LARGE), Table(bytearray(LARGE)), Table(b"small")], "the program")
    read_only, writable, small = (memoryview(table.buffer) for table in opened(parcel))
    assert (parcel.shared_bytes, bytes(small)) == (2 * LARGE, b"small")
    assert read_only.readonly
    assert bytes(read_only) == b"x" * LARGE
    writable[0] = 1


def test_where_descriptors_cannot_be_sent_arrays_are_pickled(monkeypatch):
    monkeypatch.setattr(module, "SENDABLE", False)
    parcel = pack(ARRAYS["matrix"], "the program")
    assert parcel.blocks == []
    assert np.array_equal(opened(parcel), ARRAYS["matrix"])


def test_blocks_that_are_not_those_of_the_parcel_are_refused_and_closed():
    parcel, other = pack(sample(), "the program"), pack(np.ones(LARGE, np.uint8), "the program")
    before = len(os.listdir("/proc/self/fd"))
    for fds in ([], [os.dup(other.blocks[0].fd)]):
        with pytest.raises(PenstockError, match="not those it was packed with"):
            unpack(parcel.data, fds)
    assert len(os.listdir("/proc/self/fd")) == before


def test_arrays_that_do_not_fit_into_shared_memory_are_a_plan_error(monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(segment, "_STEP_BYTES", 1)
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(PlanError, match=r"arrays of the program, 4\.0 MB, do not fit .*No space left.*np.load"):
        pack(sample(), "the program")


# Copies that are used again.


def test_parcels_that_live_at_the_same_time_share_their_copies():
    array, other = sample(), sample()
    first = pack(array, "one")
    second = pack([array, other], "two")
    assert second.blocks[0] is first.blocks[0]
    assert len(second.blocks) == 2
    del first
    assert np.array_equal(opened(second)[0], array)


def test_an_array_that_was_changed_since_is_copied_anew():
    array = sample()
    first = pack(array, "one")
    array[3] = -1
    second = pack(array, "two")
    assert second.blocks != first.blocks
    assert np.array_equal(opened(second), array)
    assert np.array_equal(opened(first), sample())


def test_nothing_is_left_of_a_parcel_that_is_dropped():
    gc.collect()
    array, before = sample(), len(os.listdir("/proc/self/fd"))
    parcel = pack(array, "one")
    del parcel
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
    assert not module._copies


def test_threads_may_pack_the_same_at_once():
    array, parcels = sample(), []
    in_threads(lambda number: parcels.append(pack([number, array, lambda: number], "one")), 8)
    assert len({id(parcel.blocks[0]) for parcel in parcels}) == 1
    assert sorted(opened(parcel)[2]() for parcel in parcels) == list(range(8))


def test_a_child_that_forked_while_another_thread_packs_may_pack():
    done = run_script(
        """
import os, sys, threading, warnings
from penstock.memory.parcel import pack

warnings.simplefilter("ignore")  # of forks beside threads
inside, go = threading.Event(), threading.Event()
class Slow:
    def __reduce__(self):
        inside.set(); go.wait(); return Slow, ()
thread = threading.Thread(target=pack, args=(Slow(), "one"))
thread.start()
inside.wait()
pid = os.fork()
if pid == 0:
    pack(lambda: 1, "two")
    os._exit(7)
go.set()
thread.join()
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
"""
    )
    assert done.returncode == 0, done.stderr


# Arrays of files.


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "data.bin"
    sample((1000, 500), "f4").tofile(path)
    return path


VIEWS = {
    "whole": lambda a: a,
    "rows": lambda a: a[100:900],
    "a small row": lambda a: a[3],
    "strided": lambda a: a[::-2, 1::3],
    "transposed": lambda a: a.T,
    "plain array": np.asarray,
    "view of a plain array": lambda a: np.asarray(a)[10:].view("i4"),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_a_mapped_file_is_opened_again_and_not_copied(path, mode, view):
    array = view(np.memmap(path, "f4", mode, offset=4 * 500, shape=(999, 500)))
    parcel = pack(array, "the program")
    there = opened(parcel)
    assert (parcel.blocks, parcel.nbytes < 1000) == ([], True)
    assert type(there) is type(array)
    assert np.array_equal(there, array)
    assert there.flags.writeable == array.flags.writeable == (mode != "r")
    if mode != "r":
        there[...] = -1
        assert np.array_equal(np.fromfile(path, "f4"), sample((1000, 500), "f4").ravel())
    del there, array


def test_a_file_is_opened_once_for_all_its_views(path):
    rows = list(np.memmap(path, "f4", "r", shape=(1000, 500)))
    there = through(rows)
    assert np.array_equal(np.stack(there), np.stack(rows))
    assert Path("/proc/self/maps").read_text().count(str(path)) == 2


def test_a_mapped_file_may_be_sent_on_from_where_it_arrived(path):
    array = np.memmap(path, "f4", "r", shape=(1000, 500))
    assert np.array_equal(through(through(array[5:])), array[5:])


def test_values_that_are_not_in_the_file_are_copied(path):
    array = np.memmap(path, "f4", "c", shape=(1000, 500))
    array[7] = -1
    assert np.array_equal(through(array), array)
    assert type(through(array[7])) is np.ndarray


def test_a_file_that_is_gone_is_copied(path):
    array = np.memmap(path, "f4", "r", shape=(1000, 500))
    path.unlink()
    assert np.array_equal(through(array), sample((1000, 500), "f4"))
    assert np.array_equal(through(array[3]), sample((1000, 500), "f4")[3])


def test_numpy_load_with_a_map_mode(tmp_path):
    np.save(tmp_path / "a.npy", sample())
    array = np.load(tmp_path / "a.npy", mmap_mode="r")
    parcel = pack(array, "the program")
    assert parcel.blocks == []
    assert np.array_equal(opened(parcel), sample())


# Tensors.


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool", "complex64"])
def test_large_tensors_are_shared(dtype):
    torch = pytest.importorskip("torch")
    tensor = torch.arange(LARGE).reshape(1000, 1000).to(getattr(torch, dtype))
    parcel = pack([tensor, tensor, tensor.T], "the program")
    there, same, turned = opened(parcel)
    assert there is same
    assert torch.equal(there, tensor)
    assert torch.equal(turned, tensor.T)
    assert parcel.nbytes < 1500
    there[0, 0] = 1


def test_tensors_keep_what_they_are():
    torch = pytest.importorskip("torch")
    leaf = torch.ones(LARGE, requires_grad=True)
    parameter = torch.nn.Parameter(torch.ones(LARGE))
    sparse = torch.eye(10).to_sparse()
    parcel = pack([leaf, parameter, sparse, torch.ones(3), torch.ones(LARGE)[:5]], "the program")
    there = opened(parcel)
    assert parcel.nbytes < 5000
    assert there[0].requires_grad
    assert there[0].is_leaf
    assert type(there[1]) is torch.nn.Parameter
    assert torch.equal(there[2].to_dense(), torch.eye(10))
    assert [len(tensor) for tensor in there[3:]] == [3, 5]


def test_tensors_of_every_dtype_are_sent():
    torch = pytest.importorskip("torch")
    names = ("uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2")
    tensors = {name: torch.arange(6).reshape(2, 3).to(getattr(torch, name)) for name in names}
    tensors |= {f"{name} empty": torch.empty(0, 3, dtype=getattr(torch, name)) for name in names}
    tensors["parameter"] = torch.nn.Parameter(tensors["float8_e5m2"], requires_grad=False)
    there = opened(pack(tensors, "the program"))
    for name, tensor in tensors.items():
        found = there[name]
        assert (type(found), found.dtype, found.shape) == (type(tensor), tensor.dtype, tensor.shape)
        assert torch.equal(found.view(torch.uint8), tensor.view(torch.uint8))


def test_a_tensor_on_another_device_is_refused():
    torch = pytest.importorskip("torch")
    device = "cuda" if torch.cuda.is_available() else "mps"
    try:
        tensor = torch.ones(3, device=device)
    except Exception:
        pytest.skip("there is no other device")
    with pytest.raises(PlanError, match=rf"its item 'a' is a tensor on {device}.*; move it to the CPU, with .cpu"):
        pack({"a": tensor}, "the program")


# Other processes.


def own_kb():
    """Memory of the segments that only this process has."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name = line.split()[0]
        if not name.endswith(":"):
            inside = "penstock" in line
        elif inside and name == "Anonymous:":
            total += int(line.split()[1])
    return total


def test_a_worker_has_no_copy_of_an_array_but_of_the_pages_it_writes_to():
    array = np.ones(16 * LARGE, np.uint8)

    def check():
        figures = [int(array.sum()), own_kb()]
        array[: 10 * 4096] = 0
        return [*figures, own_kb(), int(array.sum())]

    with Worker() as worker:
        read, before, after, left = worker.call(check)
    assert (read, left) == (16 * LARGE, 16 * LARGE - 10 * 4096)
    assert before == 0
    assert after == 40
    assert array.all()


def test_a_worker_unmaps_what_its_program_no_longer_has():
    array = np.ones(LARGE, np.uint8)

    def mapped():
        gc.collect()
        return Path("/proc/self/maps").read_text().count("penstock"), len(os.listdir("/proc/self/fd"))

    with Worker() as worker:
        nothing = worker.call(mapped)
        assert worker.call(lambda: (mapped(), len(array))[0]) == (nothing[0] + 1, nothing[1])
        assert worker.call(mapped) == nothing


@functools.lru_cache
def cached(x):
    return x + 1


def test_functions_of_every_kind_work_there():
    @functools.lru_cache(maxsize=7)
    def local(x):
        return 2 * x

    @functools.cache
    def fibonacci(n):
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    class Adder:
        def __init__(self, n):
            self.n = n

        def add(self, x):
            return x + self.n

        @classmethod
        def make(cls):
            return cls(5)

    with Worker() as worker:
        assert worker.call(lambda: local(4)) == 8
        assert worker.call(lambda: local.cache_info().maxsize) == 7
        assert worker.call(lambda: cached(4)) == 5
        assert worker.call(lambda: local.__name__) == "local"
        assert worker.call(lambda: (fibonacci(50), fibonacci.cache_info().hits)) == (12586269025, 48)
        assert worker.call(functools.partial(Adder(3).add, 4)) == 7
        assert worker.call(lambda: Adder.make().add(1)) == 6
        assert worker.call(functools.partial(sorted, [3, 1])) == [1, 3]


MAIN = """
import functools, pickle, socket, struct, subprocess, sys
from dataclasses import dataclass
import numpy as np
from tests.memory.parcel_worker import Worker

class Bad(Exception):
    def __init__(self, code, where):
        super().__init__(code, where)
        self.code = code

@dataclass
class Point:
    x: int

TABLE = np.arange(300_000.0)

@functools.cache
def half(x):
    return TABLE[x] / 2

def fail():
    raise Bad(3, "here")

def local():
    @dataclass
    class Local:
        x: int
    return Local

Local, method = local(), Point.__eq__
with Worker(fork=False) as worker:
    bad, point, made = worker.call(fail), worker.call(lambda: Point(3)), worker.call(lambda: Local(4))
    assert worker.call(lambda: half(3)) == 1.5
assert type(bad) is Bad and bad.code == 3
assert type(point) is Point and point == Point(3)
assert type(made) is Local and made == Local(4)
print("done")
"""


@pytest.mark.parametrize("how", ["stdin", "file"])
def test_what_main_defines_works_there_and_comes_back_as_the_same_class(how, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(MAIN)
    command = {"-c": ["-c", MAIN], "stdin": ["-"], "file": [str(script)]}[how]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, *command],
        input=MAIN if how == "stdin" else None,
        capture_output=True,
        text=True,
        timeout=SOON_S,
        env=environment,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


# Modules that a worker could not import.

CODE = """
import math
FACTOR = 3
class Kept:
    pass
def scale(x):
    return math.floor(x * FACTOR)
"""


@pytest.fixture
def modules(tmp_path):
    """Modules of each kind, by name."""
    (tmp_path / "elsewhere.py").write_text(CODE)
    spec = importlib.util.spec_from_file_location("loaded_from_a_file", tmp_path / "elsewhere.py")
    loaded = importlib.util.module_from_spec(spec)
    made, inner = types.ModuleType("made_at_run_time"), types.ModuleType("made_at_run_time.inner")
    hides = types.ModuleType("cloudpickle.compat")
    hides.__file__ = str(tmp_path / "elsewhere.py")
    spec.loader.exec_module(loaded)
    found = {"loaded": loaded, "made": made, "inner": inner, "hides": hides}
    before = {one.__name__: sys.modules.get(one.__name__) for one in found.values()}
    for one in found.values():
        if one is not loaded:
            exec(CODE, vars(one))
        sys.modules[one.__name__] = one
    yield found
    for name, old in before.items():
        if old is None:
            del sys.modules[name]
        else:
            sys.modules[name] = old


@pytest.mark.parametrize("name", ["loaded", "made", "inner", "hides"])
def test_a_module_that_a_worker_could_not_import_is_sent_by_value(modules, name):
    one = modules[name]
    with Worker() as worker:
        assert worker.call(functools.partial(one.scale, 2)) == 6
        assert worker.call(lambda: one.scale(2)) == 6
        assert type(worker.call(one.Kept)) is one.Kept
    assert cloudpickle.list_registry_pickle_by_value() == set()


def test_what_the_user_registered_stays_registered(modules):
    cloudpickle.register_pickle_by_value(modules["made"])
    try:
        pack(modules["made"].scale, "the program")
        assert cloudpickle.list_registry_pickle_by_value() == {"made_at_run_time"}
    finally:
        cloudpickle.unregister_pickle_by_value(modules["made"])


@for_each("name", ["numpy", "numpy.linalg", "penstock", "penstock.ops.map", "os.path", "json.decoder"])
def test_installed_modules_are_sent_by_name(name):
    assert module.importable(importlib.import_module(name))


def test_modules_that_a_package_in_c_makes_are_sent_by_name():
    pytest.importorskip("torch")
    assert module.importable(sys.modules["torch._C._nn"])


# What cannot be sent.

LOCK = threading.Lock()
QUEUE = queue.Queue()
CONFIG = {"db": {"lock": LOCK}}
Pair = namedtuple("Pair", "a b")


class Holder:
    def __init__(self, **attributes):
        vars(self).update(attributes)

    def get(self, x):
        return x


class Picky(Holder):
    """Leaves its lock out, and has another thing that is not to be sent."""

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name != "lock"}


class Slotted:
    __slots__ = ("held",)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    kept: object


def slotted(value):
    out = Slotted()
    out.held = value
    return out


def by_value(function):
    """As a function of a script: sent with its globals."""
    return types.FunctionType(function.__code__, {**globals(), "__name__": "__main__"}, function.__name__)


def helper(x):
    with LOCK:
        return x


def closed_over(value):
    return lambda x: value


def has_a_name_as_an_attribute(value):
    """There is a global of that name, which it does not use."""
    return lambda x: (x.CONFIG, value)


def cyclic():
    first, second = Holder(), Holder()
    first.other, second.other = second, first
    first.lock = LOCK
    return second


WAYS = {
    "its global 'LOCK' is a _thread.lock; make it inside the function, or use ps.per_worker": by_value(helper),
    "its global 'QUEUE' is a queue.Queue": by_value(lambda: QUEUE),
    "its global CONFIG['db']['lock'] is": by_value(lambda: [CONFIG for _ in range(3)]),
    "its variable 'value' is": closed_over(LOCK),
    "its variable 'value.a' is": closed_over(Pair(LOCK, 1)),
    "its self.lock is a _thread.lock; make it where it is first used": Holder(lock=LOCK).get,
    "the global 'LOCK' of its function 'helper' is": functools.lru_cache(by_value(helper)),
    "its argument 0 is": functools.partial(max, LOCK),
    "its argument 'key' is": functools.partial(max, key=LOCK),
    "the variable 'value' of its function '<lambda>' is": functools.partial(closed_over(LOCK), 1),
    "its item 'a' is": {"a": LOCK},
    "its item 1 is": [1, LOCK],
    "its item 'a'[700]['b'] is": {"a": [{}] * 700 + [{"b": LOCK}]},
    "its variable 'value' is a _thread.lock; make": has_a_name_as_an_attribute(LOCK),
    "its attribute 'a.b[0]' is": Holder(a=Holder(b=(LOCK,))),
    "its attribute 'held' is": slotted(LOCK),
    "its attribute 'kept' is": Frozen(LOCK),
    "its attribute 'other' is": Picky(lock=LOCK, other=threading.Lock()),
    "its attribute 'other.lock' is": cyclic(),
    "its item 'a' is a _thread.lock": OrderedDict(a=LOCK),
    "the global 'LOCK' of its variable 'value' is": closed_over(by_value(helper)),
    "it is a _thread.lock; make it inside": LOCK,
}


@for_each("told", WAYS)
def test_the_way_to_what_cannot_be_sent_is_told(told):
    with pytest.raises(PlanError) as caught:
        pack([WAYS[told]], "the program", [("map(decode) at train.py:41", WAYS[told])])
    assert str(caught.value).startswith(f"map(decode) at train.py:41 cannot be sent to a worker process: {told}")
    assert isinstance(caught.value.__cause__, TypeError)
    assert "per_worker" in str(caught.value)


KINDS = {
    "an open file (/etc/hosts); open it": functools.partial(open, "/etc/hosts"),
    "an open file (/etc/hosts); open it inside": functools.partial(open, "/etc/hosts", "rb"),
    "an open file (in memory)": lambda: io.TextIOWrapper(io.BytesIO()),
    "a generator; give a function that makes it": lambda: (n for n in range(3)),
    "a socket.socket; open it inside": socket.socket,
    "a sqlite3.Connection; open it inside": lambda: sqlite3.connect(":memory:"),
    "a threading.Event; make it": threading.Event,
    "an open file (": tempfile.TemporaryFile,
}


@for_each("told", KINDS)
def test_what_it_is_and_what_to_do_is_told(told):
    thing = KINDS[told]()
    try:
        with pytest.raises(PlanError) as caught:
            pack(closed_over(thing), "map(f)")
        assert f"its variable 'value' is {told}" in str(caught.value)
        # An attribute of a dataset, say: there is no function to open it in.
        with pytest.raises(PlanError) as caught:
            pack(Holder(held=thing), "a dataset")
        assert "inside the function" not in str(caught.value)
        assert ("open it where it is first used" in str(caught.value)) == ("open" in told)
    finally:
        getattr(thing, "close", list)()
        del caught


def test_an_object_of_h5py_is_to_be_opened_in_the_worker(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file, pytest.raises(PlanError, match="open for writing"):
        pack(closed_over(file), "map(f)")


def test_an_exception_of_the_users_own_pickling_is_chained():
    class Odd:
        def __getstate__(self):
            raise ZeroDivisionError("not today")

    told = "its attribute 'odd' is a .*Odd, and pickling it raised ZeroDivisionError: not today"
    with pytest.raises(PlanError, match=told) as caught:
        pack(Holder(odd=Odd()), "map(f)")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_what_is_nested_too_deeply_is_a_plan_error():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(PlanError, match=r"map\(f\) cannot be sent .* nested too deeply"):
        pack({"deep": deep}, "the program", [("map(g)", 1), ("map(f)", deep)])
    while deep:  # its own deletion is deep too
        deep = deep[0]


def test_the_part_at_fault_is_named_and_otherwise_the_program():
    with pytest.raises(PlanError, match=r"^map\(b\) cannot be sent .*: its item 0 is a _thread"):
        pack([[], [LOCK]], "the program", [("map(a)", []), ("map(b)", [LOCK])])
    with pytest.raises(PlanError, match=r"^the program cannot be sent .*: its item 1\[0\] is a _thread"):
        pack([[], [LOCK]], "the program", [("map(a)", [])])


def test_nothing_is_copied_when_something_cannot_be_sent():
    with pytest.raises(PlanError):
        pack([sample(), LOCK], "the program")
    assert not module._copies


def test_running_out_of_memory_is_not_the_users_mistake():
    class Greedy:
        def __reduce__(self):
            raise MemoryError

    with pytest.raises(MemoryError):
        pack(Greedy(), "the program")


# What is large.


def test_a_large_program_warns_and_names_what_makes_it_large():
    vocabulary = {f"{n:0100d}": n for n in range(110_000)}
    fn = by_value(helper)
    fn.__globals__.update(LOCK=vocabulary)
    told = (
        r"map\(f\) at a.py:1 is 1\d.\d MB pickled, most of it its global 'LOCK' "
        r"\(a dict, 1\d.\d MB\), .*; make it an array, .* or read it in the worker with ps.per_worker"
    )
    with pytest.warns(RuntimeWarning, match=told) as caught:
        pack([fn, 1], "the program", [("map(g)", 1), ("map(f) at a.py:1", fn)])
    assert len(caught) == 1


def test_a_program_that_is_large_all_over_is_named_as_a_whole():
    with pytest.warns(RuntimeWarning, match="^the program is 15.0 MB pickled, and each worker"):
        pack([bytes([n]) * 5_000_000 for n in range(3)], "the program")


def test_arrays_in_shared_memory_do_not_make_a_program_large():
    pack([sample((2000, 1000)), np.zeros(3)], "the program")


def test_a_parcel_tells_what_it_holds_and_not_its_bytes():
    assert repr(pack(sample(), "the program")).endswith("4000000 in 1 blocks>")


def test_nothing_that_was_packed_is_kept_until_garbage_is_collected():
    array = np.zeros(500_000)
    dead = weakref.ref(array)
    gc.disable()
    try:
        parcel = pack({"array": array}, "the program")
        del array
        assert dead() is None
    finally:
        gc.enable()
    assert parcel.shared_bytes == 4_000_000
