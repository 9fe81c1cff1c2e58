"""A script that is forked runs and ends as one in an interpreter of its own does."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest
from tests import nursery
from tests.cases import for_each

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it needs Linux")

SCRIPTS = {
    "what it prints": "import sys; print(__name__, sys.argv[1:], sys.flags.optimize); print('oh', file=sys.stderr)",
    "an exception": "def f():\n    raise ValueError('mine')\nf()",
    "an exit code": "import sys; sys.exit(3)",
    "a message": "import sys; sys.exit('no')",
    "a kill": "import os; os.kill(os.getpid(), 9)",
    "an interrupt": "raise KeyboardInterrupt",
    "what exit functions print": "import atexit; atexit.register(print, 'bye')",
    "a thread that prints last": (
        "import threading, time; threading.Thread(target=lambda: time.sleep(0.05) or print('late')).start()"
    ),
    "a warning": "import warnings; warnings.warn('careful')",
    "a namespace without our names": "print(sorted(name for name in globals() if not name.startswith('__')))",
    "no input": "import os; print(os.read(0, 9), flush=True)",
}


@for_each("what", SCRIPTS)
def test_a_fork_prints_and_ends_as_an_interpreter_of_its_own(what):
    command = [sys.executable, "-W", "error", "-c", SCRIPTS[what], "one", "2"]
    own = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    forked = nursery.run(SCRIPTS[what], "one", 2)
    assert (forked.returncode, forked.stdout, forked.stderr) == (own.returncode, own.stdout, own.stderr)


def test_its_first_fork_server_is_its_child_and_knows_nothing_of_the_script():
    code = """
    import os, sys
    import penstock as ps
    import tests.runtime.process_helpers as helpers

    mark = sys.modules["only_here"] = sys
    assert len(helpers.children()) == 1  # what becomes the server
    with ps.from_sequence(range(3)).map(lambda _: (os.getpid(), os.getppid(), "only_here" in sys.modules),
                                        on="process", workers=1).loader() as loader:
        ((pid, server, known),) = set(loader)
        assert helpers.children() == [server] and helpers.children(server) == [pid]
    assert not known
    assert helpers.children() == []
    assert list(ps.from_sequence([1]).map(str, on="process")) == ["1"]  # another one
    """
    done = nursery.run(textwrap.dedent(code))
    assert (done.returncode, done.stderr) == (0, "")


def test_a_script_that_starts_no_process_leaves_none():
    running = nursery.Forked("import os; print(os.getpid())")
    try:
        assert int(running.line(60)) == running.pid
        assert running.ended(60)[0] == 0
        with pytest.raises(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
    finally:
        running.kill()
        running.close()
