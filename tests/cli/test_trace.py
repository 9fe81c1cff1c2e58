"""``penstock trace``: a trace of a pipeline that a module names."""

import json

import pytest
from tests.views.test_trace import events_of, made

TRAIN = """
import penstock as ps

def double(x):
    return 2 * x

data = ps.from_sequence(range(40)).map(double, workers=2).batch(4)
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def test_it_writes_the_steps_that_were_asked_for(cli_here, project):
    done = cli_here("trace", "train:data", "-o", "run.json", "--steps", "5", "--step-ms", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "run.json: 5 steps" in done.stdout
    assert "ui.perfetto.dev" in done.stdout
    events, _, _ = events_of(project / "run.json")
    assert made(events, "double+batch") >= 5


def test_what_was_written_is_plain_data_too(cli_here, project):
    done = cli_here("trace", "train:data", "-o", "run.json", "--steps", "5", "--json")
    found = json.loads(done.stdout)
    assert (found["output"], found["steps"]) == ("run.json", 5)
    assert found["bytes"] == (project / "run.json").stat().st_size


def test_a_folder_that_is_not_there_is_an_error_without_a_traceback(cli_here, project):
    done = cli_here("trace", "train:data", "-o", "no/run.json")
    assert done.returncode == 1
    assert done.stderr.startswith("penstock trace: trace('no/run.json'): there is no folder 'no'")


def test_a_folder_in_place_of_a_file_is_refused_before_anything_runs(cli_here, project):
    done = cli_here("trace", "train:data", "-o", ".")
    assert done.returncode == 1
    assert done.stderr.startswith(
        "penstock trace: trace('.'): this is a folder; name a file in it, as 'trace.json'"
    )


@pytest.mark.parametrize("argument", ["--steps=0", "--step-ms=-1", "--steps=many", "--step-ms=x", "--seed=1.5"])
def test_numbers_that_make_no_sense_are_refused(cli_here, project, argument):
    done = cli_here("trace", "train:data", argument)
    assert done.returncode == 2
    assert "must be" in done.stderr
    assert "invalid" not in done.stderr
