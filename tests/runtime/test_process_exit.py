"""The interpreter exits silently, soon and with all its worker processes, whatever these are doing."""

import os
import signal

import pytest
from tests.cases import for_each
from tests.runtime.process_helpers import await_true, script

# The limits within which an end is awaited before it is forced are longer than a test: an exit that waits for one
# of them does not end.
PRELUDE = """
import atexit, gc, itertools, os, signal, sys, threading, time
import numpy as np
import penstock as ps
from penstock.executors import servers, startup
from penstock.remote import front, isolated
assert min(servers._END_S, startup._END_S, front._GRACE_S, isolated._GRACE_S) > 0
servers._END_S = startup._END_S = front._GRACE_S = isolated._GRACE_S = 1000

def ready():
    os.write(1, b"ready\\n")

def f(x):
    return x

def large(x):
    return np.full(50_000, x)

LONG = ps.from_sequence(range(100_000))
ENDLESS = ps.from_iterable(lambda: itertools.count())

def stuck(x):
    os.write(1, b"in\\n")
    {how}
"""

STATES = {
    "never started": "loader = LONG.map(f, on='process', workers=2).loader()",
    "started and never read": "loader = LONG.map(f, on='process', workers=2).loader().start()",
    "in the middle of an epoch": "it = iter(LONG.map(f, on='process', workers=2).loader()); next(it)",
    "between epochs": "loader = ps.from_sequence([1, 2]).map(f, on='process', workers=2).loader(); list(loader)",
    "with batches held": """
loader = LONG.map(large, on='process', workers=2).batch(2).loader()
kept = [batch for batch, _ in zip(loader, range(20))]
""",
    "a stream": "loader = ENDLESS.map(large, on='process', workers=2).loader(); it = iter(loader); next(it)",
    "paused in a generator": """
def many(x):
    for n in range(10_000):
        time.sleep(0.001)
        yield n
loader = LONG.flat_map(many, on='process', workers=2).loader(); it = iter(loader); next(it)
""",
    "a shared pool and two loaders": """
pool = ps.Processes(2)
a, b = iter(LONG.map(f, on=pool).loader()), iter(LONG.map(large, on=pool).loader())
next(a), next(b)
""",
    "an iterator of the pipeline": "it = iter(LONG.map(f, on='process', workers=2)); next(it)",
    "after a death": """
loader = LONG.map(lambda x: os.getpid(), on='process', workers=2).loader(); it = iter(loader)
os.kill(next(it), signal.SIGKILL)
for _ in range(20_000): next(it)
""",
    "a worker that was just killed": """
loader = LONG.map(lambda x: os.getpid(), on='process', workers=2).loader(); it = iter(loader)
os.kill(next(it), signal.SIGKILL)
""",
    "after an error": """
def bad(x): raise KeyError(x)
loader = LONG.map(bad, on='process', workers=2).loader()
try: list(loader)
except KeyError as exc: kept = exc
""",
    "isolated, in the middle of an epoch": """
loader = LONG.map(large, workers=2).loader(isolate=True); it = iter(loader); kept = next(it)
""",
    "isolated, between epochs": """
loader = ps.from_sequence([1, 2]).map(f, workers=2).loader(isolate=True); list(loader)
""",
    "isolated, with processes of its own": """
loader = LONG.map(f, on='process', workers=2).loader(isolate=True); it = iter(loader); next(it)
""",
    "other ways to start": """
pools = [ps.Processes(1, start='fork'), ps.Processes(1, start='spawn')]
its = [iter(LONG.map(f, on=pool).loader()) for pool in pools]
[next(it) for it in its]
""",
    "sys.exit inside the loop": """
for x in LONG.map(f, on='process', workers=2).loader():
    ready()
    sys.exit(0)
""",
    "a reader blocked in another thread": """
loader = LONG.map(stuck, on='process', workers=1).loader()
threading.Thread(target=lambda: list(loader), daemon=True).start()
""",
    "stuck in a call": "loader = LONG.map(stuck, on='process', workers=2).loader().start()",
    "isolated and stuck in a call": "loader = LONG.map(stuck, workers=2).loader(isolate=True).start()",
}

FEW_STATES = [
    "with batches held",
    "paused in a generator",
    "a shared pool and two loaders",
    "isolated, with processes of its own",
    "other ways to start",
    "stuck in a call",
]

#: for how many workers to wait until they are inside their call
STUCK = {"a reader blocked in another thread": 1, "stuck in a call": 2, "isolated and stuck in a call": 2}


def ends(running, code=0):
    """It ends without waiting for a limit, and leaves no process. What it has printed as an error."""
    returncode, _, err = running.ended()
    assert (returncode, running.members()) == (code, [])
    return err


@for_each("state", FEW_STATES)
def test_the_exit_is_silent_and_soon(state):
    check_exit(state)


@pytest.mark.soak
@for_each("state", STATES)
def test_the_exit_is_silent_and_soon_in_every_state(state):
    check_exit(state)


def check_exit(state):
    code = PRELUDE.replace("{how}", "while True: pass") + STATES[state]
    code += "\nready()\n" if state not in STUCK else "\nsys.stdin.readline()\n"
    with script(code) as running:
        if state in STUCK:
            for _ in range(STUCK[state]):
                assert running.line() == "in"
            running.process.write("\n")
        else:
            assert running.line() == "ready"
        assert ends(running) == ""


@for_each("place", ["on='process'", "workers=1"])
def test_an_exception_of_the_training_loop_is_all_that_is_printed(place):
    options = "" if "process" in place else "isolate=True"
    code = PRELUDE.replace("{how}", "pass") + (
        f"for x in LONG.map(f, {place}).loader({options}):\n    ready()\n    raise ZeroDivisionError('mine')"
    )
    with script(code) as running:
        assert running.line() == "ready"
        err = ends(running, 1)
        assert err.rstrip().endswith("ZeroDivisionError: mine")
        assert err.count("Traceback") == 1


@for_each(
    "loader",
    [
        "LONG.map(stuck, on='process', workers=2).loader()",
        "LONG.map(stuck, on='process', workers=2).loader(isolate=True)",
    ],
)
def test_an_interrupt_of_the_whole_group_is_one_keyboard_interrupt(loader):
    code = PRELUDE.replace("{how}", "time.sleep(1000)") + f"for x in {loader}: pass"
    with script(code) as running:
        assert [running.line(), running.line()] == ["in", "in"]
        os.killpg(running.pid, signal.SIGINT)
        err = ends(running, -signal.SIGINT)
        assert err.rstrip().endswith("KeyboardInterrupt")
        assert err.count("Traceback") == 1


def test_the_processes_of_a_pool_are_not_replaced_at_the_end():
    code = (
        PRELUDE.replace("{how}", "pass")
        + STATES["a shared pool and two loaders"]
        + """
from penstock.executors.startup import Process
started = Process.__init__
def told(self, *args):
    os.write(2, b"a process was started\\n")
    started(self, *args)
Process.__init__ = told
ready()
"""
    )
    with script(code) as running:
        assert running.line() == "ready"
        assert ends(running) == ""


def test_a_loader_goes_on_after_an_interrupt(tmp_path):
    code = (
        PRELUDE
        + """
def slow(x):
    if x == 5 and not os.path.exists(met):
        open(met, "w").close()
        os.write(1, b"in\\n")
        while not os.path.exists(go_on): time.sleep(0.001)
    return large(x)
for isolate in True, False:
    met, go_on = (os.path.join(sys.argv[1], f"{name} {isolate}") for name in ("met", "go on"))
    place = {"workers": 1} if isolate else {"on": "process", "workers": 2}
    loader = ps.from_sequence(range(50)).map(slow, **place).loader(isolate=isolate, timeout_s=60)
    try:
        for x in loader: pass
    except KeyboardInterrupt:
        os.write(1, b"interrupted\\n")
        open(go_on, "w").close()
    got = [int(x[0]) for x in loader]
    assert got == list(range(50)), got
    loader.close()
ready()
"""
    )
    with script(code.replace("{how}", "pass"), tmp_path) as running:
        for _ in range(2):
            assert running.line() == "in"
            os.killpg(running.pid, signal.SIGINT)
            assert running.line() == "interrupted"
        assert running.line() == "ready"
        assert ends(running) == ""


def test_sigterm_ends_all():
    code = PRELUDE.replace("{how}", "while True: pass") + "list(LONG.map(stuck, on='process', workers=2).loader())"
    with script(code) as running:
        assert [running.line(), running.line()] == ["in", "in"]
        os.killpg(running.pid, signal.SIGTERM)
        running.process.wait(60)
        await_true(lambda: not running.members(), "the end of all")


def test_a_killed_server_at_exit_is_no_trouble():
    code = (
        PRELUDE.replace("{how}", "pass")
        + """
loader = LONG.map(f, on='process', workers=2).loader(); it = iter(loader); next(it)
from tests.runtime.process_helpers import children
for pid in children():
    os.kill(pid, signal.SIGKILL)
ready()
"""
    )
    with script(code) as running:
        assert running.line() == "ready"
        assert ends(running) == ""


def test_what_workers_print_comes_out():
    code = (
        PRELUDE.replace("{how}", "pass")
        + """
def noisy(x):
    print("worker", x)
    return x
list(ps.from_sequence(range(3)).map(noisy, on='process', workers=1))
list(ps.from_sequence(range(3)).map(noisy, workers=1).loader(isolate=True, epochs=1))
"""
    )
    with script(code) as running:
        returncode, out, err = running.ended()
        assert (returncode, err) == (0, "")
        assert sorted(out.split("\n")) == sorted(["", *["worker 0", "worker 1", "worker 2"] * 2])
