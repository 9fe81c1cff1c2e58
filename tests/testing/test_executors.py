"""check_executor accepts our executors, and finds those that break the contract."""

import threading

import pytest
from tests.cases import for_each

import penstock as ps
from penstock.executors.threads import ThreadExecutor, ThreadWorker
from penstock.testing import check_executor, executors


# "inline" and "thread" are checked by the examples in its docstring.
@pytest.mark.usefixtures("warm_processes")
@for_each("kind", ["async", "process"])
def test_our_own_executors_pass(kind, monkeypatch):
    monkeypatch.setattr(executors, "_PIPELINES", executors._PIPELINES[2:])  # the last one holds the first ones
    check_executor(kind)


class Own(ThreadExecutor):
    """A class that is registered nowhere."""

    kind = "own"


def test_a_class_that_is_not_registered_is_tried_by_its_own_name(monkeypatch):
    monkeypatch.setattr(executors, "_PIPELINES", executors._PIPELINES[:1])
    check_executor(Own)
    with pytest.raises(ps.PlanError, match="no executor called 'own'"):
        list(ps.from_sequence(range(3)).map(str, on="own"))


def test_a_name_that_nobody_has_registered_is_an_error():
    with pytest.raises(ps.PlanError, match="no executor called 'nowhere'"):
        check_executor("nowhere")


class ForgetfulWorker(ThreadWorker):
    """Forgets a wake-up that comes before it waits."""

    def __init__(self, work, name):
        self.condition = threading.Condition()
        super().__init__(work, name)

    def park(self):
        with self.condition:
            self.condition.wait(12)

    def unpark(self):
        with self.condition:
            self.condition.notify()


class Forgetful(Own):
    def start(self, work, name):
        return ForgetfulWorker(work, name)


class HastyWorker(ThreadWorker):
    """Says that it has ended while it runs."""

    def join(self, timeout_s):
        super().join(timeout_s)
        return True


class Hasty(Own):
    def start(self, work, name):
        return HastyWorker(work, name)


def test_a_lost_wake_up_is_found(monkeypatch):
    monkeypatch.setattr("penstock.testing.executors._PATIENCE_S", 0.2)
    monkeypatch.setattr(ForgetfulWorker, "join", lambda self, timeout_s: _wake(self, timeout_s))
    with pytest.raises(AssertionError, match="check-0 lost an unpark that came before its park"):
        check_executor(Forgetful)


def _wake(worker, timeout_s):
    worker.unpark()
    return ThreadWorker.join(worker, timeout_s)


def test_a_join_that_does_not_wait_is_found():
    with pytest.raises(AssertionError, match=r"join\(\) of check-0 must be False while its loop runs"):
        check_executor(Hasty)
