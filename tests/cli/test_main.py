"""The command as a whole: choosing a command, and what every command has in common."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.main import COMMANDS


def test_help_names_every_command_with_its_summary(cli):
    done = cli("--help")
    assert done.returncode == 0
    text = " ".join(done.stdout.split())
    for name, command in COMMANDS.items():
        assert f"{name} {command.SUMMARY}" in text


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_of_its_own(cli, name):
    done = cli(name, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: penstock {name}")


def test_version_is_that_of_the_installed_package(cli):
    done = cli("--version")
    assert (done.returncode, done.stdout) == (0, f"penstock {importlib.metadata.version('penstock')}\n")


@pytest.mark.parametrize("args", [(), ("no-such-command",), ("demo", "--images", "none")])
def test_a_wrong_command_line_ends_with_2_and_a_usage_line(cli, args):
    done = cli(*args)
    assert done.returncode == 2
    assert "usage: penstock" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_installed_script_runs_main():
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="penstock")
    assert script.value == "penstock.cli.main:main"


def test_help_does_not_wait_for_what_only_the_demo_needs(tmp_path):
    program = (
        "import sys\n"
        "from penstock.cli.main import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit:\n    pass\n"
        "found = {'PIL', 'penstock.cli.showcase.race'} & set(sys.modules)\n"
        "sys.exit(f'imported: {found}' if found else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=150
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_leaves_early_causes_no_traceback(tmp_path: Path):
    (tmp_path / "train.py").write_text("import penstock as ps\ndata = ps.from_sequence([1, 2]).batch(2)\n")
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "penstock.cli.main", "explain", "train:data"],
            cwd=tmp_path,
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=99,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_character_that_the_output_cannot_show_is_no_error(cli, tmp_path: Path):
    (tmp_path / "train.py").write_text("import penstock as ps\ndata = ps.from_sequence(['é']).map(str.upper)\n")
    done = cli("explain", "train:data", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
