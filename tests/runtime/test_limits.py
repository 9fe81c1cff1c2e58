"""Bounds and time limits as a user sees them: what may run ahead, what may wait, and what is given up."""

import os
import sys
import threading

import pytest
from tests.runtime.helpers import SOON_S

import penstock as ps
from penstock.program.sizing import Sizer
from penstock.remote import isolated

#: how long a reader waits for what does not come yet; what comes does so at once
WAIT_S = 1.0


class Gate:
    """A function that waits until it has been called so often at once, or is opened."""

    def __init__(self, calls):
        self.calls = calls
        self.inside = 0
        self.open = threading.Event()
        self.lock = threading.Lock()

    def __call__(self, sample):
        with self.lock:
            self.inside += 1
            if self.inside >= self.calls:
                self.open.set()
        self.open.wait(SOON_S)
        return sample


def test_prefetch_does_not_limit_the_work_in_flight():
    gate = Gate(calls=16)
    with ps.from_sequence(range(64)).map(gate, workers=16).prefetch(2).loader(timeout_s=WAIT_S) as loader:
        try:
            next(iter(loader))
        finally:
            gate.open.set()
    assert gate.inside >= 16


def test_a_late_call_does_not_stop_the_other_workers():
    gate = Gate(calls=1000)
    done = []

    def first_is_late(sample):
        if sample == 0:
            return gate(sample)
        done.append(sample)
        if len(done) > 100:
            gate.open.set()
        return sample

    # Tickets of one sample: a call takes longer than a ticket is meant to.
    data = ps.from_sequence(range(400)).map(first_is_late, workers=8)
    with pytest.MonkeyPatch.context() as patch, data.loader(timeout_s=WAIT_S) as loader:
        patch.setattr(Sizer, "record", lambda *_: None)
        try:
            assert list(loader) == list(range(400))
        finally:
            gate.open.set()


def calls_for(n, monkeypatch):
    """How many calls penstock makes for `n` samples of two bins, behind one that waits in a third to the end."""
    monkeypatch.setattr(Sizer, "record", lambda *_: None)
    lengths = [100] + [1, 11] * (n // 2)
    data = ps.from_sequence(lengths).map(abs).bucket(abs, [10, 20], size=4)
    count = 0

    def counted(frame, event, arg):
        nonlocal count
        count += event in ("call", "c_call")

    with data.loader(inline=True) as loader:
        sys.setprofile(counted)
        try:
            for _ in loader:
                pass
        finally:
            sys.setprofile(None)
    return count


def test_the_work_of_a_bucket_with_a_rare_bin_is_linear(monkeypatch):
    few, many = calls_for(200, monkeypatch), calls_for(800, monkeypatch)
    assert many < 4.2 * few


def test_a_flat_map_that_does_not_yield_in_time_is_skipped():
    opened = threading.Event()

    def stuck(sample):
        yield sample
        if sample == 2:
            opened.wait(SOON_S)
            yield sample

    data = ps.from_sequence(range(4)).flat_map(stuck, workers=1, timeout_s=WAIT_S / 4, on_error="skip")
    with data.loader(timeout_s=WAIT_S) as loader:
        try:
            # What the function had yielded before may have been passed on.
            assert [sample for sample in loader if sample != 2] == [0, 1, 3]
        finally:
            opened.set()
        assert [(record.index, type(record.exception)) for record in loader.errors()] == [(2, ps.StageTimeout)]


def ends_its_process(sample):
    if sample == 5:
        os._exit(3)
    return sample


@pytest.mark.usefixtures("warm_processes")
class TestIsolated:
    data = ps.from_sequence(range(8))

    @pytest.fixture(autouse=True)
    def _few_deaths(self, monkeypatch):
        monkeypatch.setattr(isolated, "DEATHS_RUNNING_ISOLATED", 8)

    def test_a_sample_that_ends_its_process_is_skipped_and_named(self):
        data = self.data.map(ends_its_process, workers=1, on_error="skip")
        with data.loader(isolate=True) as loader:
            assert list(loader) == [0, 1, 2, 3, 4, 6, 7]
            assert [(record.index, type(record.exception)) for record in loader.errors()] == [(5, ps.WorkerDied)]

    def test_what_comes_before_a_sample_that_ends_its_process_is_delivered(self):
        got = []
        data = self.data.map(ends_its_process, workers=1)
        with data.loader(isolate=True) as loader, pytest.raises(ps.WorkerDied) as caught:
            for sample in loader:
                got.append(sample)
        assert got == [0, 1, 2, 3, 4]
        assert "sample 5" in "".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
