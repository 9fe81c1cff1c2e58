"""The system gives fewer threads than were asked for."""

import subprocess
import sys

import pytest

LIMITED = """
import resource, threading, warnings
import penstock as ps

def twice(x):
    return 2 * x

used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
threading.stack_size(256 << 20)
resource.setrlimit(resource.RLIMIT_AS, (used + {spare}, used + {spare}))
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    try:
        with ps.from_sequence(range(1000)).map(twice, workers=50).loader() as loader:
            right = list(loader) == [2 * x for x in range(1000)]
            (workers,) = [value for key, value in loader.stats().items() if key.endswith(".workers")]
            print(right, 0 < workers < 50)
    except ps.PenstockError as exc:
        print(exc)
print(*[one.message for one in told])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space, as Linux does")
class TestLimited:
    def said(self, spare: int) -> list[str]:
        code = LIMITED.format(spare=spare)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def test_those_that_could_be_started_do_all_the_work(self):
        stream, warned = self.said(spare=1 << 30)
        assert stream == "True True"
        assert "thread workers could be started" in warned

    def test_without_a_single_one_it_says_so(self):
        (said, *_) = self.said(spare=100 << 20)
        assert said.startswith("not one thread worker could be started")
        assert "ulimit" in said
