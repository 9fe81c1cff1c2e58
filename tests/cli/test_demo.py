"""``penstock demo``: in a terminal, in a pipe, without Pillow, and ended by Ctrl-C."""

import os
import re
from pathlib import Path

import pytest
from tests import nursery
from tests.cases import for_each

from penstock.cli.main import main

pytest.importorskip("PIL")

TINY = ("demo", "--images", "8", "--seconds", "0.3", "--batch", "4", "--workers", "2")
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
CTRL_C = b"\x03"


def test_a_pipe_gets_whole_lines_without_escapes(cli):
    done = cli(*TINY)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert "\r" not in done.stdout
    check_the_story(done.stdout)


def test_a_terminal_gets_bars_that_are_redrawn_and_its_cursor_back(terminal):
    code, text = terminal(*TINY).finish()
    assert code == 0, text
    assert "\x1b[2F" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1
    assert text.index("\x1b[?25l") < text.index("\x1b[?25h")
    check_the_story(ESCAPE.sub("", text))


@pytest.mark.parametrize("setting", [{"NO_COLOR": "1"}, pytest.param({"TERM": "dumb"}, marks=pytest.mark.soak)])
def test_a_terminal_that_wants_no_colours_gets_no_escapes(terminal, setting):
    code, text = terminal(*TINY, **setting).finish()
    assert code == 0, text
    assert "\x1b" not in text
    check_the_story(text)


def test_an_output_without_unicode_gets_bars_of_plain_characters(cli):
    done = cli(*TINY, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    before_explain = done.stdout.partition("print(data.explain())")[0]
    assert before_explain.isascii()
    assert "####" in before_explain
    assert "?" not in before_explain


def check_the_story(text: str) -> None:
    assert "8 JPEG photos" in text
    assert re.search(r"plain loop +\S+ +\d+ batches +\d+\.\d s", text)
    assert re.search(r"penstock +\S+ +\d+ batches +\d+\.\d s", text)
    assert re.search(r"(\d+\.\d [×x] faster|No gain): \d+ batches in \d+\.\d s instead of \d+\.\d s", text)
    assert len(re.findall(r"(?:plain loop|penstock) +\S+ +\d+%", text)) == 2
    assert "Where the time went" in text
    assert re.search(r"load\S* +[×x]2 .* +\d+% +\d+% +\d+%", text)
    # Which stage, and why, depends on the machine; lines are broken at any blank.
    assert re.search(r"\w limits[:,]\s", text)
    story = text.partition("print(data.explain())")[0]
    assert max(len(line) for line in story.splitlines()) <= 80
    assert "load" in text.partition("print(data.explain())")[2]


@pytest.mark.parametrize(
    ("moment", "images"), [("JPEG photos", "100000"), ("batches   ", "24")], ids=["making photos", "training"]
)
def test_ctrl_c_ends_it_with_130_a_free_cursor_and_no_files(terminal, tmp_path: Path, moment, images):
    opened = terminal("demo", "--images", images, "--seconds", "300", "--batch", "8", TMPDIR=str(tmp_path))
    opened.read_until(moment)
    assert os.listdir(tmp_path)
    opened.press(CTRL_C)
    code, text = opened.finish()
    assert code == 130, text
    assert "Traceback" not in text
    assert text.rstrip().endswith("penstock: stopped")
    assert text.rfind("\x1b[?25h") >= text.rfind("\x1b[?25l")
    assert os.listdir(tmp_path) == []


def test_ctrl_c_while_penstock_feeds_the_loop_leaves_no_worker_behind(monkeypatch, capsys):
    # The leak check around every test sees threads that stay; the interruption comes at a known step.
    from penstock.cli.showcase.scoreboard import Scoreboard

    update = Scoreboard.update

    def interrupted(self: Scoreboard, which: int, share: float, steps: int, elapsed_s: float) -> None:
        update(self, which, share, steps, elapsed_s)
        if which == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Scoreboard, "update", interrupted)
    assert main(["demo", "--images", "16", "--seconds", "0.5", "--batch", "4"]) == 130
    assert capsys.readouterr().err == "penstock: stopped\n"


def test_without_pillow_it_says_what_to_install(tmp_path: Path):
    program = "import sys; sys.modules['PIL'] = None; from penstock.cli.main import main; sys.exit(main(['demo']))"
    done = nursery.run(program, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert 'pip install "penstock[demo]"' in done.stderr


@for_each("option", ["--images", "--seconds", "--workers", "--batch"])
@for_each("value", ["0", "-1", "many"])
def test_numbers_that_make_no_sense_are_refused(capsys, option, value):
    with pytest.raises(SystemExit) as ended:
        main(["demo", f"{option}={value}"])
    assert ended.value.code == 2
    assert option in capsys.readouterr().err


def test_more_photos_in_a_batch_than_there_are_photos_is_one_short_batch(cli):
    done = cli("demo", "--images", "3", "--seconds", "0.2", "--batch", "8", "--workers", "1")
    assert done.returncode == 0, done.stderr
