"""``penstock explain``: what it finds, and what it says when it does not."""

import json
from pathlib import Path

import pytest
from tests.cases import for_each

TRAIN = """
from dataclasses import dataclass

import penstock as ps

def double(x):
    return 2 * x

data = ps.from_sequence(range(10)).map(double, workers=2).batch(5)

def make():
    return data

def make_with_default(size=3):
    return ps.from_sequence(range(10)).batch(size)

def validation() -> "ps.Pipeline[int]":
    return data

def needs(size) -> "ps.Pipeline[int]":
    return data

def wrong():
    return [1, 2]

class config:
    train = data

number = 3
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def explanation(project: Path) -> str:
    namespace: dict[str, object] = {}
    exec(compile(TRAIN, str(project / "train.py"), "exec"), namespace)
    return str(namespace["data"].explain())  # type: ignore[attr-defined]


@for_each("target", ["train:data", "train:make", "train:config.train"])
def test_a_pipeline_is_found_by_its_name_or_made_by_a_function(cli_here, project, target):
    done = cli_here("explain", target)
    assert (done.returncode, done.stderr) == (0, "")
    assert "double" in done.stdout
    assert done.stdout.rstrip("\n").count("\n") == explanation(project).rstrip("\n").count("\n")


def test_a_function_whose_arguments_all_have_defaults_will_do(cli_here, project):
    assert cli_here("explain", "train:make_with_default").returncode == 0


def test_json_is_the_explanation_as_a_program_reads_it(cli, project):
    done = cli("explain", "train:data", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    assert "double" in done.stdout
    assert done.stdout == json.dumps(found, indent=2) + "\n"


def test_a_module_in_a_package_of_the_current_directory_is_found(cli_here, project):
    package = project / "recipes"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "vision.py").write_text(TRAIN)
    assert cli_here("explain", "recipes.vision:data").returncode == 0


@for_each(
    "target, says",
    [
        ("train", ["expected module:name, got 'train'", "train:data"]),
        (":data", ["expected module:name"]),
        ("train:", ["expected module:name"]),
        ("train.py:data", ["'train.py' is a file", "train:data"]),
        ("./train.py:data", ["'./train.py' is a file", "name: train:data"]),
        ("sub/train.py:data", ["is a file", "name: sub.train:data"]),
        ("/elsewhere/train.py:data", ["is a file", "in the folder '/elsewhere': train:data"]),
        (".train:data", ["'.train' is relative", "package.train:data"]),
        ("..:data", ["'..' is relative", "package:data"]),
        ("trian:data", ["no module 'trian'", "did you mean train?"]),
        ("unheard_of_module:data", ["no module 'unheard_of_module'", "install it"]),
        ("train.deeper:data", ["no module 'train.deeper'"]),
        ("train:dota", ["'train' has no 'dota'", "did you mean data?"]),
        ("train:zzzzzz", ["'train' has no 'zzzzzz'", "its pipelines: data, validation"]),
        ("train:dataclas", ["'train' has no 'dataclas'", "did you mean data?"]),
        ("train:config.trian", ["'config' has no 'trian'", "did you mean train?"]),
        ("train:number", ["train:number is an int, not a Pipeline"]),
        ("train:wrong", ["train:wrong returns a list, not a Pipeline"]),
        ("train:needs", ["train:needs needs the argument size"]),
    ],
)
def test_what_cannot_be_explained_ends_with_2_the_fact_and_the_next_step(cli_here, project, target, says):
    done = cli_here("explain", target)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("penstock explain: ")
    assert done.stderr.count("\n") == 1
    for part in says:
        assert part in done.stderr


def test_an_exception_of_the_users_module_stays_the_users_exception(cli, project):
    (project / "broken.py").write_text("import a_module_that_is_not_there\n")
    done = cli("explain", "broken:data")
    assert done.returncode == 1
    assert "broken.py" in done.stderr
    assert "No module named 'a_module_that_is_not_there'" in done.stderr


def test_an_exception_that_the_standard_library_raised_is_shown_in_the_users_code(cli_here, project):
    (project / "reads.py").write_text("import json\n\ndata = json.loads('{')\n")
    done = cli_here("explain", "reads:data")
    assert done.returncode == 1
    assert "reads.py:3, in <module>" in done.stderr


def test_a_module_that_ends_the_program_while_it_is_imported_is_named(cli, project):
    (project / "script.py").write_text("import sys\nsys.exit(3)\n")
    done = cli("explain", "script:data")
    assert done.returncode == 2
    assert done.stderr.startswith(
        "penstock explain: 'script' ended the program while it was imported, by sys.exit(3)"
    )
    assert "__main__" in done.stderr


def test_what_penstock_refuses_ends_with_1_and_its_message_alone(cli_here, project):
    (project / "refused.py").write_text(
        "import penstock as ps\ndef data():\n    return ps.from_sequence([1]).batch(0)\n"
    )
    done = cli_here("explain", "refused:data")
    assert done.returncode == 1
    assert done.stderr.startswith("penstock explain: ")
    assert "Traceback" not in done.stderr
