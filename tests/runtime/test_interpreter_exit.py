"""The interpreter ends cleanly and silently, whatever a loader is doing."""

import json

import pytest
from tests.runtime.helpers import run_script

PRELUDE = """
import asyncio, gc, itertools, sys, threading
import penstock as ps

def f(sample):
    return sample

async def fetch(sample):
    await asyncio.sleep(0)
    return sample

LONG = ps.from_sequence(range(100_000))
ENDLESS = ps.from_iterable(lambda: itertools.count())
"""

STATES = {
    "never started": "loader = LONG.map(f, workers=2).loader()",
    "started and never read": "loader = LONG.map(f, workers=2).loader().start()",
    "in the middle of an epoch": "loader = LONG.map(f, workers=2).loader(); it = iter(loader); next(it)",
    "between epochs": "loader = ps.from_sequence([1, 2]).map(f, workers=2).loader(); list(loader)",
    "closed": "loader = LONG.map(f, workers=2).loader(); next(iter(loader)); loader.close()",
    "inline": "loader = LONG.map(f).loader(inline=True); it = iter(loader); next(it)",
    "async": "loader = LONG.map(fetch, workers=4).loader(); it = iter(loader); next(it)",
    "async, then a plain function": (
        "loader = LONG.map(fetch, workers=4).map(f).batch(2).loader(); it = iter(loader); next(it)"
    ),
    "an endless source": "loader = ENDLESS.map(f, workers=2).loader(); it = iter(loader); next(it)",
    "an iterator of the pipeline": "it = iter(LONG.map(f, workers=2)); next(it)",
    "a shared pool": ("pool = ps.Threads(2); loader = LONG.map(f, on=pool).loader(); it = iter(loader); next(it)"),
    "a pool and two loaders": (
        "pool = ps.Threads(1); a = LONG.map(f, on=pool).loader(); b = ENDLESS.map(f, on=pool).loader();"
        "ia = iter(a); ib = iter(b); next(ia); next(ib)"
    ),
    "in a reference cycle": (
        "class T: pass\n"
        "t = T(); t.t = t; t.loader = LONG.map(f, workers=2).loader(); t.it = iter(t.loader); next(t.it)"
    ),
    "held by a module that outlives most": (
        "loader = LONG.map(f, workers=2).loader(); it = iter(loader); next(it); sys.kept = (loader, it)"
    ),
    "in a traceback": """
def train():
    loader = LONG.map(f, workers=2).loader()
    for sample in loader:
        raise ZeroDivisionError
try:
    train()
except ZeroDivisionError as exc:
    kept = exc
""",
    "a worker blocked in a call": """
reached = threading.Event()
def stuck(sample):
    reached.set()
    threading.Event().wait()
loader = LONG.map(stuck, workers=2).loader().start()
reached.wait(60)
""",
    "a worker blocked in the source": """
reached = threading.Event()
def records():
    yield 1
    reached.set()
    threading.Event().wait()
loader = ps.from_iterable(records).map(f, workers=2).loader(); it = iter(loader); next(it)
reached.wait(60)
""",
    "a coroutine that waits for ever": """
reached = threading.Event()
async def forever(sample):
    reached.set()
    await asyncio.Event().wait()
loader = LONG.map(forever, workers=4).loader().start()
reached.wait(60)
""",
    "a reader blocked in another thread": """
reached = threading.Event()
def stuck(sample):
    reached.set()
    threading.Event().wait()
loader = LONG.map(stuck, workers=1).loader()
threading.Thread(target=lambda: list(loader), daemon=True).start()
reached.wait(60)
""",
    "a reader that waits in a nested pipeline": """
reached = threading.Event()
def stuck(sample):
    reached.set()
    threading.Event().wait()
def nested(sample):
    return list(ps.from_sequence([1]).map(stuck, workers=1))
loader = LONG.map(nested, workers=1).loader().start()
reached.wait(60)
""",
    "workers that print": """
def noisy(sample):
    print(sample, end="")
    return sample
loader = LONG.map(noisy, workers=2).loader(); it = iter(loader); next(it)
""",
    "sys.exit inside the loop": """
loader = LONG.map(f, workers=2).loader()
for sample in loader:
    sys.exit(0)
""",
}


# One interpreter imports all there is and forks one child per state, which runs to its own end as a script does.
FORKED = """
import json, os, tempfile

def begin(states):
    running = {}
    for state, code in states.items():
        errors = tempfile.TemporaryFile()
        if (pid := os.fork()) == 0:
            os.dup2(errors.fileno(), 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            for file in [errors, *(file for _, file in running.values())]:
                file.close()
            return code
        running[state] = pid, errors
    for state, (pid, errors) in running.items():
        exitcode = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        errors.seek(0)
        ends[state] = exitcode, errors.read().decode()
        errors.close()
    return "os.write(1, json.dumps(ends).encode())"

ends = {}
exec(begin(json.loads(sys.argv[1])), globals())
"""


def test_the_interpreter_exits_cleanly_and_silently():
    done = run_script(PRELUDE + FORKED, json.dumps(STATES))
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {state: [0, ""] for state in STATES}


@pytest.mark.integrations
@pytest.mark.parametrize("end", ["", "loader.close()"])
def test_an_iterator_that_torch_keeps_alive_until_modules_are_gone_ends_silently(end):
    pytest.importorskip("torch")
    code = "import torch\nloader = LONG.map(f, workers=2).loader(); it = iter(loader); next(it)\n"
    done = run_script(PRELUDE + code + end)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_exception_of_the_training_loop_is_all_that_is_printed():
    done = run_script(
        PRELUDE + "for sample in LONG.map(f, workers=2).loader():\n    raise ZeroDivisionError('mine')"
    )
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("ZeroDivisionError: mine")
    assert done.stderr.count("Traceback") == 1


def test_an_exception_of_a_worker_is_printed_once_with_its_note():
    done = run_script(
        PRELUDE + "def bad(sample):\n    raise KeyError('mine')\nlist(LONG.map(bad, workers=2).loader())"
    )
    assert done.returncode == 1
    assert "KeyError: 'mine'" in done.stderr
    assert "map(bad)" in done.stderr
    assert done.stderr.count("Traceback") == 1


def test_a_loader_is_not_inherited_by_a_forked_child():
    done = run_script(
        PRELUDE
        + """
import os
loader = ps.from_sequence(range(10)).map(f, workers=2).loader(); it = iter(loader); next(it)
pid = os.fork()
if pid == 0:
    try:
        next(iter(loader))
    except ps.PenstockError as exc:
        assert "process" in str(exc)
        assert list(ps.from_sequence(range(3)).map(f, workers=2)) == [0, 1, 2]
        sys.exit(7)
    sys.exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
assert list(it) == list(range(1, 10))
"""
    )
    assert (done.returncode, done.stderr) == (0, "")
