"""``penstock measure`` and ``penstock diagnose``, as real commands over a module of the user's."""

import json
from pathlib import Path

import pytest

TRAIN = """
import time
import penstock as ps

def decode(x):
    time.sleep(0.002)
    return x

def breaks(x):
    raise ValueError("bad pixel \\x1b[2J")

def leaves(x):
    raise SystemExit(0)

class Odd(Exception):
    def __str__(self):
        raise RuntimeError

def is_odd(x):
    raise Odd

left = ps.from_sequence(range(10)).map(leaves).batch(2)
odd = ps.from_sequence(range(10)).map(is_odd).batch(2)
data = ps.from_sequence(range(100_000)).map(decode, workers=2).batch(4)
free = ps.from_sequence(range(100_000)).map(decode).batch(4)
broken = ps.from_sequence(range(10)).map(breaks).batch(2)
empty = ps.from_sequence([])
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "fails.py").write_text("import penstock\nvalue = {}['gone']\n")
    return tmp_path


def test_measure_prints_rates_and_a_table(cli, project):
    done = cli("measure", "train:data", "--seconds", "0.3")
    assert (done.returncode, done.stderr) == (0, "")
    assert "samples/s" in done.stdout
    assert "decode+batch" in done.stdout
    assert "\x1b" not in done.stdout


def test_measure_as_json(cli_here, project):
    done = cli_here("measure", "train:data", "--steps", "10", "--json")
    found = json.loads(done.stdout)
    assert (found["batches"], found["samples"]) == (10, 40)
    assert found["stages"][0]["workers"] == 2


def test_steps_take_the_time_that_they_are_said_to_take(cli_here, project):
    found = json.loads(cli_here("diagnose", "train:data", "--steps", "6", "--step-ms", "20", "--json").stdout)
    assert found["samples_per_s"] < 4 / 0.02


def test_diagnose_prints_the_verdict_first(cli, project):
    done = cli("diagnose", "train:data", "--seconds", "0.3")
    assert (done.returncode, done.stderr) == (0, "")
    assert "decode+batch limits" in done.stdout.splitlines()[0]


def test_workers_and_place_may_be_given(cli_here, project):
    done = cli_here("measure", "train:free", "--steps", "5", "--workers", "3", "--on", "thread", "--json")
    assert json.loads(done.stdout)["stages"][0]["workers"] == 3


def test_a_terminal_shows_progress_and_marks_what_limits(terminal, project):
    screen = terminal("measure", "train:data", "--seconds", "0.6")
    screen.read_until("measuring [")
    code, text = screen.finish()
    assert code == 0
    assert "\x1b[33m> decode+batch" in text


def test_an_error_of_the_users_function_is_told_without_a_traceback(cli, project):
    done = cli("measure", "train:broken")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "penstock measure: ValueError: bad pixel ?[2J\n" in done.stderr
    assert "train.py:10, in breaks" in done.stderr
    assert "sample 0" in done.stderr
    assert "--debug" in done.stderr


def test_a_function_that_ends_the_program_is_named_and_is_no_success(cli_here, project):
    done = cli_here("measure", "train:left")
    assert done.returncode == 1
    assert "penstock measure: the pipeline's own code ended the program, by sys.exit(0)" in done.stderr
    assert "train.py:13, in leaves" in done.stderr


def test_an_error_without_a_message_that_can_be_printed_is_told_all_the_same(cli_here, project):
    done = cli_here("measure", "train:odd")
    assert done.returncode == 1
    assert "penstock measure: Odd: (its message cannot be printed)" in done.stderr
    assert "train.py:20, in is_odd" in done.stderr


def test_a_module_that_fails_is_named(cli_here, project):
    done = cli_here("measure", "fails:data")
    assert done.returncode == 1
    assert "KeyError: 'gone'" in done.stderr
    assert "fails.py:2" in done.stderr


def test_debug_shows_the_traceback(cli, project):
    done = cli("diagnose", "train:broken", "--debug")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "bad pixel" in done.stderr


def test_what_cannot_be_measured_says_why(cli_here, project):
    done = cli_here("measure", "train:empty")
    assert done.returncode == 1
    assert "has no samples" in done.stderr
    assert cli_here("measure", "train:data", "--seconds", "0").returncode == 2
