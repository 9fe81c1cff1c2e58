"""ps.measure, pipeline.constant, ps.compare and loader(report_s=), over real runs."""

import fcntl
import json
import logging
import os
import pickle
import pty
import struct
import termios
import time

import numpy as np
import pytest
from tests.cases import for_each

import penstock as ps
from penstock.bar import Bar
from penstock.core.reporting import report
from penstock.measuring.compare import judged
from penstock.measuring.measure import at_rate
from penstock.stats.history import Snapshot

NUMBERS = ps.from_sequence(range(1_000_000))


def sleepy(x):
    time.sleep(0.002)
    return x


# ---------------------------------------------------------------------- measure


def test_what_was_read_is_counted_and_weighed():
    found = ps.measure(ps.fake({"x": ((16,), "float32")}, 100).batch(10), steps=25)
    assert (found.batches, found.samples) == (25, 250)  # two and a half epochs
    assert found.bytes_per_s / found.samples_per_s == pytest.approx(64)
    assert found.samples_per_s == pytest.approx(10 * found.batches_per_s)
    assert found.gb_per_s == found.bytes_per_s / 1e9
    assert found.first_batch_s > 0
    assert found.seconds > 0
    assert found.cores >= 0


def test_the_seconds_end_it():
    found = ps.measure(NUMBERS.map(sleepy, workers=2).batch(2), seconds=0.2)
    assert found.seconds >= 0.2
    assert [stage.label for stage in found.stages] == ["sleepy+batch"]
    assert found.diagnosis.limiting == "sleepy+batch"


def test_it_takes_the_options_of_a_loader():
    found = ps.measure(NUMBERS.map(sleepy).batch(2), steps=5, workers=3)
    assert found.stages[0].workers == 3


def test_a_step_is_called_with_every_batch():
    seen = []
    found = ps.measure(NUMBERS.batch(4), steps=6, step=lambda batch: seen.append(batch[0]), step_ms=1)
    assert seen == [0, 4, 8, 12, 16]
    assert found.diagnosis.loop_capacity < 4 / 0.001


@pytest.mark.usefixtures("warm_processes")
def test_the_memory_of_workers_is_counted():
    alone = ps.measure(NUMBERS.batch(4), steps=2).rss_bytes
    found = ps.measure(NUMBERS.map(abs, on="process", workers=1).batch(4), steps=50).rss_bytes
    assert found > alone > 1_000_000


def test_a_report_and_plain_data():
    found = ps.measure(ps.fake(((8,), "float32")).batch(5), steps=10)
    text = str(found)
    assert "samples/s" in text
    assert "batches/s" in text
    assert "training loop" in text
    data = json.loads(json.dumps(found.to_dict()))
    assert data["samples"] == 50
    assert data["stages"][0]["label"] == "batch"
    assert data["diagnosis"]["samples"] == found.diagnosis.samples


@for_each("seconds", [0, -1, "2"])
def test_a_time_that_is_none_is_refused(seconds):
    with pytest.raises(ps.PlanError, match="must be positive"):
        ps.measure(NUMBERS, seconds)


def test_an_empty_pipeline_is_an_error_that_says_so():
    with pytest.raises(ps.PlanError, match="has no samples"):
        ps.measure(ps.from_sequence([]))


class Screen:
    """A terminal that keeps what is written."""

    def __init__(self, live):
        self.live = live
        self.text = ""

    def isatty(self):
        return self.live

    def write(self, text):
        self.text += text

    def flush(self):
        pass


def test_a_bar_is_drawn_on_a_terminal_and_leaves_no_trace():
    screen = Screen(live=True)
    bar = Bar("measuring", out=screen)
    bar.show(0.5, lambda: at_rate(10, 2.0))
    assert "measuring [############            ] 10 batches, 5/s" in screen.text
    bar.erase()
    assert screen.text.endswith("\r\x1b[K")


def test_a_bar_is_no_longer_than_a_line_of_the_terminal():
    own, ends = pty.openpty()
    fcntl.ioctl(ends, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    with os.fdopen(ends, "w") as screen:
        Bar("measuring", out=screen).show(1.0, lambda: at_rate(1_000_000, 2.0))
    drawn = os.read(own, 1000).decode()
    os.close(own)
    assert drawn == f"\rmeasuring [{'#' * 24}] 10\x1b[K"


def test_no_bar_is_drawn_anywhere_else():
    screen = Screen(live=False)
    bar = Bar("measuring", out=screen)
    bar.show(0.5, lambda: at_rate(10, 2.0))
    bar.erase()
    assert screen.text == ""


# ---------------------------------------------------------------------- constant


def test_one_real_batch_is_served_for_an_epoch():
    data = ps.from_arrays(np.arange(10)).shuffle().batch(4)
    first = data.peek(1)[0].tolist()
    assert [batch.tolist() for batch in data.constant()] == [first] * 3
    assert len(data.constant()) == 3


def test_it_is_endless_where_the_length_is_not_known():
    data = ps.from_iterable(lambda: iter(range(5))).batch(2).constant()
    with data.loader() as loader:
        assert [batch.tolist() for _, batch in loader.steps(20)] == [[0, 1]] * 20
    with pytest.raises(ps.LengthUnknown):
        len(data)


def test_the_batch_is_made_once_and_nothing_is_copied():
    calls = []
    data = ps.from_arrays(np.ones((4, 2))).map(lambda x: calls.append(1) or x).batch(2).constant()
    assert not calls  # nothing runs until it is iterated
    one, another = data
    assert len(calls) == 2
    assert one is another
    with pytest.raises(ValueError, match="read-only"):
        one[0] = 3


@pytest.mark.usefixtures("warm_processes")
def test_it_can_be_sent_to_a_process():
    data = pickle.loads(pickle.dumps(NUMBERS.take(4).batch(2).constant()))
    assert [batch.tolist() for batch in data] == [[0, 1], [0, 1]]
    with data.loader(on="process", workers=1) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 1], [0, 1]]


def test_nothing_cannot_be_served_again():
    with pytest.raises(ps.PlanError, match="delivers nothing"):
        next(iter(ps.from_sequence([]).batch(2).constant()))


# ---------------------------------------------------------------------- compare


def verdict(loader, step, together):
    diagnosis = ps.measure(NUMBERS.batch(4), steps=2).diagnosis
    return judged(loader, step, together, diagnosis)


def test_the_slower_one_limits_and_by_how_much():
    found = verdict(100.0, 400.0, 98.0)
    assert (found.limiting, found.gain) == ("loader", 4.0)
    assert "4 times" in found.advice
    found = verdict(400.0, 100.0, 98.0)
    assert (found.limiting, found.gain) == ("step", 4.0)
    assert "The step limits" in str(found)


def test_two_that_stand_in_each_others_way_are_told():
    found = verdict(100.0, 120.0, 50.0)
    assert (found.limiting, found.gain) == ("both", 2.0)
    assert "isolate=True" in found.advice


def test_a_slow_step_and_a_slow_loader_are_told_apart():
    slow, quick = NUMBERS.map(sleepy, workers=1).batch(8), NUMBERS.batch(8)
    found = ps.compare(slow, lambda batch: None, 0.1)
    assert found.loader_per_s < found.step_per_s
    found = ps.compare(quick, lambda batch: time.sleep(0.02), 0.1)
    assert found.loader_per_s > found.step_per_s
    json.dumps(found.to_dict())


def test_a_step_that_cannot_be_called_is_refused():
    with pytest.raises(ps.PlanError, match="function that is called with each batch"):
        ps.compare(NUMBERS, 3)


def test_a_factor_has_no_exponent():
    assert "5210 times" in verdict(5210.0, 1.0, 1.0).advice


@for_each(
    "call, says",
    [
        (lambda: ps.measure([1, 2]), "takes a Pipeline, got list; ps.watch"),
        (lambda: ps.compare(5, print), "takes a Pipeline, got int"),
        (lambda: ps.measure(NUMBERS, step=3), "measure(step=)"),
        (lambda: ps.measure(NUMBERS, step_ms=-1), "measure(step_ms=) must be positive, got -1"),
        (lambda: ps.measure(NUMBERS, step_ms="x"), "measure(step_ms=)"),
    ],
)
def test_what_cannot_be_measured_is_refused(call, says):
    with pytest.raises(ps.PlanError) as caught:
        call()
    assert says in str(caught.value)


def test_figures_of_a_short_run_are_not_to_be_relied_on():
    assert "too short a time to rely on" in str(ps.measure(NUMBERS.batch(4), steps=2))


# ---------------------------------------------------------------------- loader(report_s=)


def lines_of(caplog, data, step_s, **options):
    with caplog.at_level(logging.INFO, logger="penstock"), data.loader(**options) as loader:
        for _ in loader:
            time.sleep(step_s)
    return [record.getMessage() for record in caplog.records if record.name == "penstock"]


def test_a_loop_that_waits_is_reported(caplog):
    told = lines_of(caplog, NUMBERS.map(sleepy, workers=1).take(400).batch(4), 0, report_s=0.2)
    assert told
    assert "the training loop waited" in told[0]
    assert "sleepy" in told[0]
    assert "\n" not in told[0]


def test_a_loop_that_is_fed_is_not(caplog):
    pipeline = NUMBERS.map(sleepy, workers=1).batch(4)
    counted = {"samples": 400, "batches": 100, "epoch": 0, "running_s": 10.0, "stage.sleepy+batch.working_s": 5.0}
    plan = pipeline.explain().plan
    for wait_s in (0.4, 4.0):
        report(plan, Snapshot(0.0, {}), Snapshot(10.0, {**counted, "wait_s": wait_s}))
    (line,) = [record.getMessage() for record in caplog.records]
    assert "waited 40 % of the last 10 s" in line


def test_without_it_nothing_is_logged(caplog):
    assert not lines_of(caplog, NUMBERS.map(sleepy, workers=1).take(100).batch(4), 0)


def test_a_report_every_no_seconds_is_refused():
    with pytest.raises(ps.PlanError, match=r"loader\(report_s=\)"):
        NUMBERS.loader(report_s=0)
