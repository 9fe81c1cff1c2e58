"""Bars and colours: how many columns they take, and when they are escapes."""

import io

import pytest
from tests.cases import for_each

from penstock.cli.screen import Glyphs, Screen

ASCII = Glyphs("#", ".", "#", "-", ".", "-", "x", "->")


def screen(*, live: bool = False) -> Screen:
    return Screen(io.StringIO(), live, 80, ASCII)


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def terminal(encoding: str = "utf-8") -> Terminal:
    return Terminal(io.BytesIO(), encoding=encoding)


@for_each("share, bar", [(0, "...."), (0.5, "##.."), (1, "####"), (2, "####"), (-1, "....")])
def test_a_bar_fills_its_share_of_the_columns(share, bar):
    assert screen().bar(share, 4, "green") == bar


@for_each("eighths", range(33))
def test_a_fine_bar_always_takes_the_same_columns(eighths):
    fine = Screen.of(terminal(), {"NO_COLOR": "1"})
    assert len(fine.bar(eighths / 32, 4, "green")) == 4


@for_each("shares", [(0.2, 0.3, 0.5), (1 / 3, 1 / 3, 1 / 3), (1, 0, 0), (0.01, 0.98, 0.01), (0, 0, 0)])
def test_stacked_shares_take_exactly_the_columns_of_the_bar(shares):
    parts = list(zip(shares, "#-.", ("green", "yellow", "blue"), strict=True))
    assert len(screen().stack(parts, 31)) == 31


def test_stacked_shares_stand_in_their_order():
    parts = [(0.5, "#", "green"), (0.25, "-", "yellow"), (0.25, ".", "blue")]
    assert screen().stack(parts, 8) == "####--.."


def test_colours_are_escapes_only_on_a_live_screen():
    assert screen(live=True).paint("x", "green") == "\x1b[32mx\x1b[0m"
    assert screen(live=False).paint("x", "green") == "x"


@for_each(
    "environ, live",
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_a_terminal_is_live_unless_its_user_says_otherwise(environ, live):
    assert Screen.of(terminal(), environ).live is live


def test_a_file_is_never_live():
    assert not Screen.of(io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), {}).live


def test_an_output_that_cannot_show_blocks_gets_plain_characters():
    assert Screen.of(terminal("ascii"), {}).bar(1, 3, "green") == "\x1b[32m###\x1b[0m"


@for_each("width, longest", [(45, 45), (80, 80), (300, 100)])
def test_sentences_are_wrapped_at_words_on_a_terminal_and_nowhere_else(width, longest, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    words = "word " * 60
    for out, lines in ((terminal(), -(-300 // longest)), (io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), 1)):
        Screen.of(out, {}).say(words.strip(), "")
        written = out.buffer.getvalue().decode().splitlines()
        assert len(written) == lines
        assert lines == 1 or max(map(len, written)) <= longest


def test_the_cursor_comes_back_when_the_block_fails():
    out = io.StringIO()

    def fails() -> None:
        with Screen(out, True, 80, ASCII).without_cursor():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fails()
    assert out.getvalue() == "\x1b[?25l\x1b[?25h"
