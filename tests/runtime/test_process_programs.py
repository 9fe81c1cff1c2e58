"""What worker processes are sent: functions from anywhere; what cannot be sent is named before anything starts."""

import os
import socket
import sqlite3
import subprocess
import sys
import textwrap
import threading
import types
import warnings

import numpy as np
import pytest
from tests import nursery

import penstock as ps
from penstock.testing.leaks import leaks_since, snapshot

TWO = {"on": "process", "workers": 2}


def parcel_of(pipeline):
    """What the (only) stage on processes sends to each worker."""
    with pipeline.loader() as loader:
        (parcel,) = [lane.parcel for lane in loader._engine.lanes.values() if lane.remote]
        return parcel


# ---------------------------------------------------------------------- what is in the pickle


def test_a_large_array_of_a_closure_is_shared_and_not_in_the_pickle():
    table, small = np.zeros((1000, 1000)), np.zeros(10)
    parcel = parcel_of(ps.from_sequence(range(10)).map(lambda x: table[x, x] + small[x], **TWO))
    assert parcel.nbytes < 20_000
    assert parcel.shared_bytes == table.nbytes


def test_an_array_source_is_shared_and_an_array_met_twice_is_there_once():
    rows = np.zeros((1000, 1000))
    pipeline = ps.from_arrays({"x": rows, "again": rows}).map(lambda row: row["x"][0] + rows[0, 0], **TWO)
    parcel = parcel_of(pipeline)
    assert parcel.nbytes < 20_000
    assert parcel.shared_bytes == rows.nbytes


def test_a_long_list_is_not_in_the_pickle():
    names = [f"name-{number}" for number in range(100_000)]
    assert parcel_of(ps.from_sequence(names).shuffle().map(len, **TWO)).nbytes < 20_000


def test_a_later_stage_is_not_sent_what_the_first_one_reads():
    rows = np.zeros((1000, 1000))
    pipeline = ps.from_arrays(rows).map(lambda row: row.sum(), workers=1).map(abs, **TWO)
    parcel = parcel_of(pipeline)
    assert parcel.nbytes < 20_000
    assert parcel.shared_bytes == 0


def test_a_program_of_more_than_10_mb_warns_and_names_what_makes_it_so(monkeypatch):
    monkeypatch.setitem(globals(), "WORDS", {number: f"{number:0200d}" for number in range(60_000)})

    def look_up(x):
        return WORDS[x]  # noqa: F821

    pipeline = ps.from_sequence(range(5)).map(look_up, **TWO)
    with pytest.warns(RuntimeWarning) as caught:
        pipeline.loader().close()
    (warning,) = caught
    text = str(warning.message)
    assert text.startswith("map(look_up) at test_process_programs.py:")
    assert " MB pickled, most of it its global 'WORDS' (a dict, " in text
    assert "make it an array, which all workers share, or read it in the worker with ps.per_worker" in text


def test_a_program_below_that_does_not_warn():
    words = [str(number) for number in range(100_000)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ps.from_sequence(range(5)).map(lambda x: words[x], **TWO).loader().close()


# ---------------------------------------------------------------------- what cannot be sent


class Connection:
    def __init__(self):
        self.settings = {"lock": threading.Lock()}

    def method(self, x):
        return x


class Dataset(Connection):
    def __len__(self):
        return 3

    def __getitem__(self, number):
        return number


#: as in a script or a notebook: no worker could import it
CELL = """
def use_global(x):
    with LOCK:
        return x


def deeper(x):
    return use_global(x)
"""


def generator():
    yield 1


def unsendable():
    """By name: a pipeline, and what must be said of it."""
    lock, file, rows = threading.Lock(), open(os.devnull), generator()  # noqa: SIM115
    connection, sock = sqlite3.connect(":memory:"), socket.socket()
    source = ps.from_sequence(range(3))
    cell = {"__name__": "a_cell", "LOCK": lock}
    exec(CELL, cell)
    here = r"at test_process_programs\.py:\d+ cannot be sent to a worker process: "
    cases = {
        "closure": (
            source.map(lambda x: lock, **TWO),
            rf"map\(lambda\) {here}its variable 'lock' is a _thread\.lock",
        ),
        "global": (
            source.map(cell["use_global"], **TWO),
            r"map\(use_global\) .*: its global 'LOCK' is a _thread\.lock; make it inside the function",
        ),
        "global of a global": (
            source.map(cell["deeper"], **TWO),
            r"map\(deeper\) .*: the global 'LOCK' of its global 'use_global' is a _thread\.lock",
        ),
        "open file": (
            source.map(lambda x: file, **TWO),
            rf"{here}its variable 'file' is an open file \({os.devnull}\)",
        ),
        "generator": (
            source.filter(lambda x: rows, **TWO),
            rf"filter\(lambda\) {here}its variable 'rows' is a generator",
        ),
        "database": (
            source.map(lambda x: connection, **TWO),
            "sqlite3.Connection; open it inside the function, or use",
        ),
        "socket": (
            source.map(lambda x: sock, **TWO),
            "socket.socket; open it inside the function, or use ps.per_worker",
        ),
        "method": (
            source.map(Connection().method, **TWO),
            r"map\(method\) .*: its self\.settings\['lock'\] is a _thread\.lock",
        ),
        "default": (source.map(lambda x, held=lock: x, **TWO), "its default 0 is a _thread.lock"),
        "collate": (
            source.map(abs, **TWO).batch(2, collate=lambda rows: lock),
            r"batch\(2, collate=lambda\) .*'lock'",
        ),
        "factory": (
            source.map(ps.per_worker(lambda: lock), **TWO),
            r"map\(lambda\) .*variable 'lock'.* is a _thread",
        ),
        "tap": (source.tap(lambda x: lock, **TWO), r"tap\(lambda\) "),
        "flat_map": (source.flat_map(lambda x: [lock], **TWO), r"flat_map\(lambda\) "),
        "dataset": (
            ps.from_sequence(Dataset()).map(abs, **TWO),
            r"from_sequence\(Dataset of 3\) cannot be sent to a worker process: .*settings\['lock'\]",
        ),
        "second stage": (source.map(abs, workers=1).map(lambda x: lock, **TWO), r"map\(lambda\) .*'lock'"),
        "part of a zip": (ps.zip(source, source.map(lambda x: lock, **TWO)), r"map\(lambda\) .*'lock'"),
        "by the loader": (source.map(lambda x: lock), r"map\(lambda\) .*'lock'"),
        "many ops": (source.map(abs, **TWO).map(lambda x: lock).filter(bool), r"map\(lambda\) .*'lock'"),
    }
    return cases, (file, connection, sock)


@pytest.fixture
def cases():
    found, opened = unsendable()
    yield found
    for one in opened:
        one.close()


def test_what_cannot_be_sent_is_named_with_its_op_before_anything_starts(cases):
    before = snapshot()
    for name, (pipeline, said) in cases.items():
        with pytest.raises(ps.PlanError, match=said):
            pipeline.loader(**(TWO if name == "by the loader" else {}))
        assert leaks_since(before) == []


def test_what_cannot_be_sent_stays_usable_on_threads(cases):
    for name in ("closure", "global", "method", "dataset"):
        pipeline, _ = cases[name]
        with pipeline.loader(inline=True) as loader:
            assert len(list(loader)) == 3


def test_a_parent_only_op_may_hold_anything():
    lock = threading.Lock()

    def guarded(x):
        with lock:
            return x + 1

    pipeline = ps.from_sequence(range(5)).map(abs, **TWO).map(guarded, workers=1)
    assert list(pipeline) == [1, 2, 3, 4, 5]
    stream = ps.from_iterable(lambda: (guarded(x) for x in range(5))).map(abs, **TWO)
    assert list(stream) == [1, 2, 3, 4, 5]


# ---------------------------------------------------------------------- where functions come from


def test_functions_of_a_module_that_no_worker_can_import_are_sent_as_they_are():
    module = types.ModuleType("made_up_here")
    code = """
    import numpy as np
    FACTOR = 3
    def helper(x):
        return np.int64(x) * FACTOR
    def triple(x):
        return helper(x)
    """
    exec(textwrap.dedent(code), vars(module))
    sys.modules["made_up_here"] = module
    try:
        assert list(ps.from_sequence(range(4)).map(module.triple, **TWO)) == [0, 3, 6, 9]
    finally:
        del sys.modules["made_up_here"]


def test_functions_of_code_that_was_executed_are_sent_as_they_are():
    space = {"__name__": "nowhere"}
    code = """
    OFFSET = 5
    def plus(x):
        return x + OFFSET
    class Adder:
        def __call__(self, x):
            return plus(x)
    """
    exec(textwrap.dedent(code), space)
    assert list(ps.from_sequence(range(3)).map(space["plus"], **TWO)) == [5, 6, 7]
    assert list(ps.from_sequence(range(3)).map(space["Adder"](), **TWO)) == [5, 6, 7]


def test_a_module_beside_the_script_is_imported_by_the_workers(tmp_path, monkeypatch):
    (tmp_path / "beside_the_script.py").write_text("import os\nPID = os.getpid()\ndef where(x):\n    return PID\n")
    monkeypatch.syspath_prepend(tmp_path)
    import beside_the_script

    pids = set(ps.from_sequence(range(20)).map(beside_the_script.where, **TWO))
    assert os.getpid() not in pids
    del sys.modules["beside_the_script"]


SCRIPT = """
import collections, dataclasses, enum, functools, os, random
import numpy as np
import penstock as ps

with open(LOG, "a") as file:
    file.write("ran ")                    # once: no worker runs the script again

CONFIG = {"scale": 10}
calls = 0

class Colour(enum.Enum):
    RED = 1

@dataclasses.dataclass
class Record:
    x: int
    data: np.ndarray
    colour: Colour = Colour.RED

Point = collections.namedtuple("Point", "x y")

class OwnError(Exception):
    def __init__(self, x, *, why):
        super().__init__(f"{x}: {why}")
        self.x, self.why = x, why

class Base:
    def run(self, x):
        return x + 1

class Derived(Base):
    def run(self, x):
        return super().run(x) * CONFIG["scale"]
    __call__ = run
    @staticmethod
    def still(x):
        return x - 1
    @classmethod
    def of_class(cls, x):
        return cls.__name__, x

def helper(x):
    return x * CONFIG["scale"]

def even(x):
    return x == 0 or odd(x - 1)

def odd(x):
    return x != 0 and even(x - 1)

@functools.lru_cache
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

def logged(fn):
    @functools.wraps(fn)
    def call(*args):
        return fn(*args)
    return call

@logged
def decorated(x):
    return helper(x) + 1

def counted(x):
    global calls
    calls += 1
    return os.getpid()

def fails(x):
    raise OwnError(x, why="on purpose")

def closure(n):
    def inner(x):
        return lambda: (x + n) * CONFIG["scale"]
    return lambda x: inner(x)()

def several(x):
    for number in range(x):
        yield Point(x, number)

with ps.Processes(2) as pool:
    def mapped(fn, n=5):
        return list(ps.from_sequence(range(n)).map(fn, on=pool))

    assert mapped(lambda x: x * CONFIG["scale"]) == [0, 10, 20, 30, 40]
    assert mapped(helper) == [0, 10, 20, 30, 40]
    assert mapped(even) == [True, False, True, False, True]
    assert mapped(fib, 10)[-1] == 34
    assert mapped(decorated) == [1, 11, 21, 31, 41]
    assert mapped(closure(3)) == [30, 40, 50, 60, 70]
    assert mapped(functools.partial(max, 2)) == [2, 2, 2, 3, 4]
    assert mapped(Derived()) == mapped(Derived().run) == [10, 20, 30, 40, 50]
    assert mapped(Derived.still) == [-1, 0, 1, 2, 3]
    assert mapped(Derived.of_class, 1) == [("Derived", 0)]
    assert mapped(np.sqrt, 2) == [0.0, 1.0] and mapped(str, 2) == ["0", "1"]
    assert os.getpid() not in mapped(counted) and calls == 0

    records = mapped(lambda x: Record(x, np.full(3, x)))
    assert all(type(one) is Record and one.colour is Colour.RED for one in records)
    assert [one.data.tolist() for one in records] == [[one.x] * 3 for one in records]
    again = list(ps.from_iterable(records).map(lambda one: (one, isinstance(one, Record)), on=pool))
    assert all(type(one) is Record and known for one, known in again)
    batches = list(ps.from_sequence(range(4)).map(lambda x: Record(x, np.full(3, x)), on=pool).batch(2))
    assert type(batches[0]) is Record and batches[1].x.tolist() == [2, 3]
    points = list(ps.from_sequence(range(4)).flat_map(several, on=pool))
    assert points[-1] == Point(3, 2) and type(points[0]) is Point
    stages = ps.from_sequence(range(4)).map(lambda x: Record(x, np.zeros(2)), on="process").filter(
        lambda one: one.x % 2, on="process")
    assert [one.x for one in stages] == [1, 3]

    try:
        mapped(fails)
    except OwnError as exc:
        assert (exc.x, exc.why, str(exc)) == (0, "on purpose", "0: on purpose")
    else:
        raise AssertionError("no error came")

    CONFIG["scale"] = 100                  # a new loader sends what is there now
    assert mapped(helper, 2) == [0, 100]
print("all is well")
"""


def python(*arguments, cwd, stdin=None):
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
        check=False,
    )


@pytest.mark.parametrize(
    "way",
    ["script", "notebook", *(pytest.param(way, marks=pytest.mark.soak) for way in ("stdin", "-c", "-m", "runpy"))],
)
def test_all_that_main_defines_works_without_a_main_guard(way, tmp_path):
    log = tmp_path / "log"
    script = f"LOG = {str(log)!r}\n" + SCRIPT
    (tmp_path / "program.py").write_text(script)
    cells = """
    import linecache, pathlib
    text = pathlib.Path("program.py").read_text()
    # one cell, under a name that is no file, as notebooks run theirs
    linecache.cache["<ipython-input-1>"] = (len(text), None, text.splitlines(True), "<ipython-input-1>")
    exec(compile(text, "<ipython-input-1>", "exec"), globals())
    """
    done = {
        "script": lambda: python("program.py", cwd=tmp_path),
        "stdin": lambda: python("-", cwd=tmp_path, stdin=script),
        "-c": lambda: python("-c", script, cwd=tmp_path),
        "-m": lambda: python("-m", "program", cwd=tmp_path),
        "notebook": lambda: nursery.run(textwrap.dedent(cells), cwd=tmp_path),
        "runpy": lambda: python(
            "-c", "import runpy; runpy.run_path('program.py', run_name='__main__')", cwd=tmp_path
        ),
    }[way]()
    assert done.returncode == 0, done.stderr
    assert done.stdout == "all is well\n"
    assert done.stderr == ""
    assert log.read_text() == "ran "


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="only Linux has this kind of scheduling")
def test_workers_do_not_take_a_core_at_once_from_what_runs_there():
    assert set(ps.from_sequence(range(4)).map(lambda _: os.sched_getscheduler(0), on="process", workers=1)) == {
        os.SCHED_BATCH
    }
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
