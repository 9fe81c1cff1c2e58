"""What a program refers to is imported and unpickled once, in a template, and workers are forked from that."""

import importlib
import os
import sys
import textwrap
from pathlib import Path

import pytest
from tests.runtime.helpers import SOON_S
from tests.runtime.process_helpers import (
    await_text,
    await_true,
    children,
    kill,
    run_alone,
    script,
    state,
    templates,
    workers,
)

import penstock as ps
from penstock.executors.startup import keep_warm
from penstock.program.sizing import Sizer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there are templates on Linux only")


@pytest.fixture(autouse=True, scope="module")
def _warm():
    with keep_warm():
        yield


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module that can be imported here and in workers. It notes the pid of everyone who imports it."""
    made = []

    def module(body):
        name = f"penstock_test_{len(made)}_{tmp_path.name.replace('-', '_')}"
        noted = f"import os\nwith open({str(tmp_path / 'imports')!r}, 'a') as log: print(os.getpid(), file=log)\n"
        (tmp_path / f"{name}.py").write_text(noted + textwrap.dedent(body))
        made.append(name)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    monkeypatch.syspath_prepend(str(tmp_path))
    yield module
    for name in made:
        sys.modules.pop(name, None)


def importers(tmp_path):
    """Who has imported the module, without this process."""
    return [pid for pid in map(int, (tmp_path / "imports").read_text().split()) if pid != os.getpid()]


def who(x):
    return x, os.getpid()


# ---------------------------------------------------------------------- once


def test_a_module_is_imported_once_for_all_workers(module, tmp_path):
    mod = module("def who(x): return x, os.getpid()")
    with ps.from_sequence(range(400)).map(mod.who, on="process", workers=4).loader(timeout_s=30) as loader:
        got = list(loader)
        (template,) = templates()
        assert importers(tmp_path) == [template]
        pids = {pid for _, pid in got}
        assert template not in pids
        assert pids <= set(workers())
        assert "by itself" not in loader.explain()
    assert [x for x, _ in got] == list(range(400))
    assert templates() == workers() == []


def test_a_large_object_is_unpickled_once_for_all_workers(tmp_path):
    class Held:
        def __init__(self):
            self.table = [{"number": number} for number in range(150_000)]

        def __setstate__(self, state):
            vars(self).update(state)
            with open(tmp_path / "unpickled", "a") as file:
                file.write(f"{os.getpid()}\n")

        def __call__(self, x):
            return self.table[x]["number"], os.getpid()

    with ps.from_sequence(range(100)).map(Held(), on="process", workers=3).loader(timeout_s=30) as loader:
        assert [x for x, _ in loader] == list(range(100))
        assert list(map(int, (tmp_path / "unpickled").read_text().split())) == templates()


def test_what_functions_import_when_they_are_called_is_imported_once(module, tmp_path):
    mod = module("def who(x): return x, os.getpid()")
    name = mod.__name__
    body = f"def late(x):\n    import {name}\n    return {name}.who(x)\n"
    scope = {"__name__": "__main__"}
    exec(body, scope)
    pipeline = ps.from_sequence(range(50)).map(scope["late"], on="process", workers=3)
    with pipeline.loader(timeout_s=30) as loader:
        assert [x for x, _ in loader] == list(range(50))
        assert importers(tmp_path) == templates()


def test_small_programs_have_no_template():
    with ps.from_sequence(range(10)).map(lambda x: x + 1, on="process", workers=2).loader(timeout_s=30) as loader:
        assert list(loader) == list(range(1, 11))
        assert templates() == []


def test_a_pool_keeps_its_template_and_a_replaced_worker_has_all_programs(module, tmp_path):
    one, two = module("def who(x): return x, os.getpid()"), module("def minus(x): return -x, os.getpid()")
    with ps.Processes(1) as pool:
        first = ps.from_sequence(range(5)).map(one.who, on=pool).loader(timeout_s=30)
        assert [x for x, _ in first] == list(range(5))
        second = ps.from_sequence(range(5)).map(two.minus, on=pool).loader(timeout_s=30)
        (worker,) = {pid for _, pid in second}
        assert importers(tmp_path) == [*templates(), worker]
        kill(worker)
        for _ in range(2):  # the next epoch of each may have been made before the kill
            assert [x for x, _ in second] == [0, -1, -2, -3, -4]
            assert [x for x, _ in first] == list(range(5))
        new = set(templates()) - {importers(tmp_path)[0]}
        assert importers(tmp_path)[2:] == [*new, *new]
        first.close(), second.close()
    assert templates() == []


# ---------------------------------------------------------------------- random numbers


def test_generators_without_a_seed_draw_other_numbers_in_every_worker(module):
    mod = module("""
        import random
        import numpy as np
        unseeded = [random.Random(), np.random.default_rng(), np.random.RandomState()]
        seeded = [random.Random(1), np.random.default_rng(2**127 + 1), np.random.RandomState(1)]
        first = {}
        def draw(x):
            first.setdefault("u", [float(g.random()) for g in unseeded])
            first.setdefault("s", [float(g.random()) for g in seeded])
            return os.getpid(), tuple(first["u"]), tuple(first["s"])
    """)
    with ps.from_sequence(range(300)).map(mod.draw, on="process", workers=3).loader(timeout_s=30) as loader:
        drawn = {pid: (unseeded, seeded) for pid, unseeded, seeded in loader}
    assert len({seeded for _, seeded in drawn.values()}) == 1
    for place in range(3):
        assert len({unseeded[place] for unseeded, _ in drawn.values()}) == len(drawn)


# ---------------------------------------------------------------------- what a fork would break


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()", "1 thread,"),
        ("file = open(__file__)", ".py (descriptor"),
        ("import socket; pair = socket.socketpair()", "socket:["),
        ("if first(): raise ValueError('not here')", "ValueError: not here"),
    ],
    ids=["thread", "file", "socket", "exception"],
)
def test_where_a_fork_would_break_something_workers_load_the_program_themselves(module, tmp_path, body, reason):
    helper = f"""
def first():
    try:
        os.close(os.open({str(tmp_path / "first")!r}, os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False
if os.getpid() != {os.getpid()}:
    {body}
def who(x): return x, os.getpid()
"""
    mod = module(helper)
    with ps.from_sequence(range(200)).map(mod.who, on="process", workers=2).loader(timeout_s=30) as loader:
        got = list(loader)
        assert reason in loader.explain()
        assert "note: stage 1: each worker process imports and unpickles" in loader.explain()
        assert {pid for _, pid in got} < set(importers(tmp_path))
    assert [x for x, _ in got] == list(range(200))


def test_a_memmap_is_no_open_file(module, tmp_path):
    import numpy as np

    mod = module("def double(x): return 2 * x")
    np.save(tmp_path / "x.npy", np.arange(1000))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    with ps.from_arrays(mapped).map(mod.double, on="process", workers=2).loader(timeout_s=30) as loader:
        assert list(loader) == list(range(0, 2000, 2))
        assert "by itself" not in loader.explain()


# ---------------------------------------------------------------------- ends


def test_a_template_that_is_killed_is_replaced_and_nothing_is_lost(module, tmp_path, monkeypatch):
    monkeypatch.setattr(Sizer, "record", lambda *_: None)  # tickets of one sample, so that some are left to be run
    mod = module("def who(x): return x, os.getpid()")
    with ps.from_sequence(range(300)).map(mod.who, on="process", workers=2).loader(timeout_s=30) as loader:
        got, killed = [], []
        for x, _ in loader:
            got.append(x)
            if len(killed) < 2 and (
                new := [pid for pid in importers(tmp_path) if pid in set(templates()) - set(killed)]
            ):
                for pid in new:
                    kill(pid)
                killed += new
        assert got == list(range(300))
        assert loader.errors() == []
        assert importers(tmp_path)[:2] == killed
        assert len(importers(tmp_path)) >= 3
        assert set(importers(tmp_path)).isdisjoint(workers())


def test_a_template_that_dies_twice_while_it_loads_is_not_tried_again(module, tmp_path):
    mod = module(f"""
        import signal
        tries = {str(tmp_path / "tries")!r}
        if os.getpid() != {os.getpid()}:
            with open(tries, "a") as log: log.write("x")
            if os.path.getsize(tries) <= 2:
                os.kill(os.getpid(), signal.SIGKILL)
        def who(x): return x, os.getpid()
    """)
    with ps.from_sequence(range(100)).map(mod.who, on="process", workers=1).loader(timeout_s=30) as loader:
        assert [x for x, _ in loader] == list(range(100))
        assert "died twice" in loader.explain()


@pytest.mark.parametrize("how", ["close", "drop"])
def test_a_loader_that_ends_while_its_template_loads_does_not_wait_for_it(module, tmp_path, how):
    mod = module(f"""
        import time
        if os.getpid() != {os.getpid()}:
            with open({str(tmp_path / "loading")!r}, "w") as log: log.write(str(os.getpid()))
            time.sleep(1000)
        def who(x): return x
    """)
    loader = ps.from_sequence(range(100)).map(mod.who, on="process", workers=2).loader()
    loader.start()
    template = int(await_text(tmp_path / "loading"))
    if how == "close":
        loader.close()
    del loader
    await_true(lambda: not state(template) or state(template) == "Z", "the end of the template")
    await_true(lambda: not workers() and not templates(), "the end of all workers")


@pytest.mark.parametrize("when", ["while it loads", "when it has loaded"])
def test_when_the_parent_is_killed_its_templates_and_their_workers_are_gone(tmp_path, when):
    (tmp_path / "penstock_test_gone.py").write_text(
        textwrap.dedent(f"""
        import os, time
        parent = {str(tmp_path / "parent")!r}
        if os.path.exists(parent) and open(parent).read() != str(os.getpid()):
            open({str(tmp_path)!r} + f"/pid.{{os.getpid()}}", "w").close()
            if {when == "while it loads"}:
                time.sleep(1000)
        def stay(x):
            open({str(tmp_path)!r} + f"/pid.{{os.getpid()}}", "w").close()
            if sum(name.startswith("pid.") for name in os.listdir({str(tmp_path)!r})) == 3:
                os.kill(int(open(parent).read()), 9)
            time.sleep(1000)
        """)
    )
    code = f"""
    import os, sys, signal, threading, time
    sys.path.insert(0, {str(tmp_path)!r})
    open({str(tmp_path / "parent")!r}, "w").write(str(os.getpid()))
    import penstock_test_gone, penstock as ps
    loader = ps.from_sequence(range(10)).map(penstock_test_gone.stay, on="process", workers=2).loader().start()
    if {when == "while it loads"}:
        while not [name for name in os.listdir({str(tmp_path)!r}) if name.startswith("pid.")]:
            time.sleep(0.01)
        os.kill(os.getpid(), 9)
    next(iter(loader))
    """
    with script(code) as running:
        running.ended(SOON_S)
        await_true(lambda: not running.members(), "the end of what the killed parent has started")
    pids = [int(path.suffix[1:]) for path in Path(tmp_path).glob("pid.*")]
    assert len(pids) == (1 if when == "while it loads" else 3)
    await_true(lambda: all(state(pid) in ("", "Z") for pid in pids), "the end of all processes")


# ---------------------------------------------------------------------- no endless starts

RECURSIVE = """
import penstock as ps
def double(x): return 2 * x
data = ps.from_sequence(range(5)).map(double, on="process", workers=1)
got = list(data{how})
"""


COMMAND = "from penstock.cli.main import main; sys.exit(main(['explain', 'penstock_test_runs:data']))"


@pytest.mark.parametrize(
    ("how", "code"),
    [("", "import penstock_test_runs"), (".loader(isolate=True)", "import penstock_test_runs"), ("", COMMAND)],
    ids=["processes", "isolate", "penstock explain"],
)
def test_a_module_that_runs_a_pipeline_when_a_worker_imports_it_is_refused(tmp_path, how, code):
    (tmp_path / "penstock_test_runs.py").write_text(RECURSIVE.format(how=how))
    code = f"""
    import sys
    sys.path.insert(0, {str(tmp_path)!r})
    {code}
    """
    exit, _, err = run_alone(code, timeout_s=40)
    assert exit > 0
    assert "penstock_test_runs.py:5" in err.replace("\n", " ")
    assert 'under: if __name__ == "__main__":' in err


def test_the_same_file_runs_as_a_script(tmp_path):
    assert run_alone(RECURSIVE.format(how="") + "print(got)", timeout_s=40) == (0, "[0, 2, 4, 6, 8]\n", "")


def test_a_function_that_imports_such_a_module_in_a_worker_is_refused_too(tmp_path, monkeypatch):
    (tmp_path / "penstock_test_later.py").write_text(RECURSIVE.format(how=""))
    monkeypatch.syspath_prepend(str(tmp_path))

    def late(x):
        import penstock_test_later

        return penstock_test_later.got

    with (
        ps.from_sequence(range(3)).map(late, on="process", workers=1).loader(timeout_s=30) as loader,
        pytest.raises(ps.PlanError, match="penstock_test_later at "),
    ):
        list(loader)


def test_a_pipeline_of_threads_may_run_while_a_worker_imports_its_module(module):
    mod = module("""
        import penstock as ps
        got = list(ps.from_sequence(range(3)).map(lambda x: x + 1, workers=2))
        def add(x): return x + sum(got)
    """)
    assert list(ps.from_sequence(range(3)).map(mod.add, on="process", workers=1)) == [6, 7, 8]
    assert children() != []
