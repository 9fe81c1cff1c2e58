"""``penstock top``: a running loader seen from another process, in a terminal and behind a pipe."""

import io
import json
import os
import socket
import threading

import pytest
from tests.cases import for_each
from tests.views.conftest import runtime

import penstock as ps
from penstock.cli.board import board
from penstock.cli.screen import _ASCII, Screen
from penstock.dashboard.client import look
from penstock.dashboard.notices import Notice

__all__ = ["runtime"]

pytestmark = pytest.mark.usefixtures("runtime")


def double(x):
    return 2 * x


@pytest.fixture
def loader():
    """A loader that stands in the middle of an epoch."""
    with ps.from_sequence(range(40)).map(double, workers=2).batch(4).loader(dashboard=True) as loader:
        for _ in loader.steps(5):
            pass
        yield loader


def test_behind_a_pipe_it_prints_plain_lines(cli, loader):
    done = cli("top", "--once")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert f"process {os.getpid()}" in done.stdout
    assert "20 samples" in done.stdout
    assert "double+batch" in done.stdout
    assert "training loop" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_json_is_what_the_page_gets(cli_here, loader):
    done = cli_here("top", "--once", "--json")
    found = json.loads(done.stdout)
    assert (found["samples"], found["pid"], found["stages"][0]["label"]) == (20, os.getpid(), "double+batch")


def test_without_a_loader_it_says_how_to_make_one_visible(cli_here):
    for arguments in ([], ["--once"], ["--json"], ["--web"], ["--pid", "1"]):
        done = cli_here("top", *arguments)
        assert done.returncode == 1
        assert "loader(dashboard=True)" in done.stderr
        assert "PENSTOCK_DASHBOARD=1" in done.stderr


def test_web_prints_the_address_of_the_newest(cli_here, loader):
    with ps.from_sequence(range(4)).loader(dashboard=True) as newest:
        assert cli_here("top", "--web").stdout.strip() == newest.dashboard_url
    assert cli_here("top", "--web").stdout.strip() == loader.dashboard_url


def test_a_look_goes_on_until_the_last_loader_ends(cli_here, loader, monkeypatch):
    waits = []

    def ends_at_the_second(seconds):
        waits.append(seconds)
        if len(waits) == 2:
            loader.close()

    monkeypatch.setattr("penstock.cli.top.time.sleep", ends_at_the_second)
    done = cli_here("top", "--json", "--every", "7")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 2
    assert waits == [7.0, 7.0]


def test_several_loaders_are_shown_and_can_be_chosen(cli_here, loader):
    with ps.from_sequence(range(4)).loader(dashboard=True):
        assert len(cli_here("top", "--once", "--json").stdout.splitlines()) == 2
        assert len(cli_here("top", "--once", "--json", "--pid", str(os.getpid())).stdout.splitlines()) == 2
        assert cli_here("top", "--once", "--pid", "1").returncode == 1


@for_each("key", [b"q", b"\x03"])
def test_in_a_terminal_it_follows_the_loader_until_a_key_ends_it(key, terminal, loader):
    opened = terminal("top", "--every", "0.05")
    before = loader.stats()["samples"]
    opened.read_until(f"{before} samples")
    for _ in loader.steps(1):
        pass
    opened.read_until(f"{before + 4} samples")
    opened.press(key)
    code, text = opened.finish()
    assert code == 0
    assert text.count("\x1b[?1049h") == text.count("\x1b[?1049l") == 1, "the terminal is as it was before"
    assert text.count("\x1b[?7l") == text.count("\x1b[?7h") == 1, "a narrow terminal cuts lines, until the end"
    assert "\x1b[?25h" in text.rpartition("\x1b[?25l")[2]
    assert "double+batch" in text.rpartition("\x1b[?1049l")[2], "the last picture stays"


def test_arrow_keys_do_not_end_it(terminal, loader):
    opened = terminal("top", "--every", "0.05")
    before = loader.stats()["samples"]
    opened.read_until(f"{before} samples")
    opened.press(b"\x1b[A")
    for _ in loader.steps(1):
        pass
    opened.read_until(f"{before + 4} samples")
    opened.press(b"\x1b[B")
    for _ in loader.steps(1):
        pass
    opened.read_until(f"{before + 8} samples")
    opened.press(b"\x1b")
    assert opened.finish()[0] == 0


@for_each("answer", [b"5", b"[]", b"null", b"{", b""])
def test_a_program_that_has_taken_over_the_port_is_not_shown(answer):
    with socket.create_server(("127.0.0.1", 0)) as server:
        notice = Notice(os.getpid(), socket.gethostname(), server.getsockname()[1], "x" * 20, "train.py", 0.0)
        thread = threading.Thread(target=_answers, args=(server, answer))
        thread.start()
        assert look(notice) is None
        thread.join()


def _answers(server, body):
    connection, _ = server.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + body)


def test_in_a_terminal_it_waits_for_a_loader_to_come(terminal):
    opened = terminal("top", "--every", "0.05")
    opened.read_until("PENSTOCK_DASHBOARD=1")
    with ps.from_sequence(range(4)).map(double, workers=1).loader(dashboard=True):
        opened.read_until("training loop")
    opened.press(b"q")
    assert opened.finish()[0] == 0


def test_what_does_not_go_together_is_refused(cli_here):
    assert cli_here("top", "--web", "--json").returncode == 2


@for_each("state, bar", [("running", "#" * 16), ("idle", " " * 16)])
def test_a_loop_that_does_not_read_neither_works_nor_waits(state, bar, loader):
    shot = loader._dashboard.feed.snapshot() | {"state": state, "wait_share": 0.0}
    (loop,) = [line for line in board(Screen(io.StringIO(), False, 80, _ASCII), shot) if "training loop  " in line]
    assert f"  {bar}  " in loop
    assert ("#" in loop) is (state == "running")


def test_a_narrow_screen_without_unicode_still_shows_names_and_advice(loader):
    shot = loader._dashboard.feed.snapshot()
    shot["stages"][0] |= {"label": "decode+augment"}
    shot["verdict"] |= {"advice": "2 → 4 workers"}
    text = "\n".join(board(Screen(io.StringIO(), False, 60, _ASCII), shot))
    assert "decode+augment" in text
    assert "training loop" in text
    assert "2 -> 4 workers" in text


def test_on_a_screen_too_narrow_for_the_table_the_verdict_can_be_read(loader, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    shot = loader._dashboard.feed.snapshot()
    shot["verdict"] |= {"advice": "decode limits: " + "its workers are at work all of the time, " * 5}
    text = io.StringIO()
    verdict = [line for line in board(Screen.of(text), shot) if "at work" in line]
    assert len(verdict) == 5
    assert max(map(len, verdict)) <= 40


@for_each("width", [60, 75, 76, 80, 100])
def test_no_line_is_wider_than_the_screen_and_none_has_an_escape_of_the_users(width, loader):
    shot = loader._dashboard.feed.snapshot()
    shot["stages"][0] |= {"label": "a\x1b[2J" + "very_long_name" * 9, "capacity": None, "limits": True}
    shot["title"] = "train" * 40
    shot["errors"], shot["deaths"], shot["stuck"] = 10**7, 3, 2
    error = {"op": "map", "sample": "3", "type": "ValueError", "message": "\x1b]0;owned\x07" + "x" * 300}
    shot["recent_errors"] = [error]
    screen = Screen(io.StringIO(), False, width, Screen.of(io.StringIO()).glyphs)
    lines = board(screen, shot)
    assert max(map(len, lines)) <= width
    assert all(line.isprintable() for line in lines)
