"""The system gives fewer threads than were asked for."""

import sys
import time

import pytest
from tests import nursery

import penstock as ps
from penstock.executors import executor
from penstock.executors.threads import ThreadExecutor

LIMITED = """
import resource, threading, warnings
import penstock as ps
from penstock import *  # while there is memory for it

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
        done = nursery.run(code, server=False)
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


class TestStartingFails:
    """An executor that does not start its n-th worker."""

    @pytest.fixture
    def failing(self, monkeypatch):
        def register(nth: int, exc: BaseException) -> None:
            class Failing(ThreadExecutor):
                kind = "failing"
                asked = 0

                def start(self, work, name):
                    Failing.asked += 1
                    if Failing.asked == nth:
                        time.sleep(0.1)  # long enough for those that were started to have nothing left to do
                        raise exc
                    return super().start(work, name)

            monkeypatch.setitem(executor.OWN, "failing", Failing)

        return register

    @pytest.mark.parametrize("once", [True, False])
    def test_the_ticket_goes_to_a_worker_that_has_nothing_to_do(self, failing, once):
        failing(2, RuntimeError("no more"))
        pipeline = ps.from_sequence(range(2)).filter(lambda x: x == 1, on="failing", workers=2)
        loader = pipeline if once else pipeline.loader(epochs=1)
        with pytest.warns(RuntimeWarning, match="only 1 failing workers could be started: no more"):
            found = list(loader)
        assert found == [1]
        if not once:
            loader.close()

    @pytest.mark.parametrize("nth", [1, 3])
    def test_after_ctrl_c_the_loader_can_be_read_again(self, failing, nth):
        failing(nth, KeyboardInterrupt())
        with ps.from_sequence(range(50)).map(lambda x: x, on="failing", workers=8).loader() as loader:
            with pytest.raises(KeyboardInterrupt):
                for _ in range(3):
                    list(loader)
            assert list(loader) == list(range(50))
