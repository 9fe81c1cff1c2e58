"""Patterns: what they stand for, without a file system."""

import pytest
from tests.cases import for_each

from penstock.errors import PlanError
from penstock.storage.paths import braced, has_magic, matcher


@for_each(
    "pattern, names",
    [
        ("a", ["a"]),
        ("{a,b}", ["a", "b"]),
        ("{b,a}-{1..2}", ["b-1", "b-2", "a-1", "a-2"]),
        ("{08..11}", ["08", "09", "10", "11"]),
        ("{3..1}", ["3", "2", "1"]),
        ("{0..10..5}", ["0", "5", "10"]),
        ("x{a,{b,c}d}y", ["xay", "xbdy", "xcdy"]),
        ("{a,}", ["a", ""]),
        ("a{b", ["a{b"]),
        ("{000..002}.{tar,idx}", ["000.tar", "000.idx", "001.tar", "001.idx", "002.tar", "002.idx"]),
    ],
)
def test_braces_stand_for_their_names_in_the_order_in_which_they_are_written(pattern, names):
    assert braced(pattern) == names


@for_each("pattern", ["{a}", "{}", "{1..}", "{a..c}", "{0..10000000}", "{1..999}{1..999}{1..999}"])
def test_braces_that_mean_nothing_or_too_much_are_refused_by_name(pattern):
    with pytest.raises(PlanError) as caught:
        braced(pattern)
    assert repr(pattern) in str(caught.value)


@for_each(
    "pattern, yes, no",
    [
        ("*", ["a", "a.b"], [".a", "a/b"]),
        ("*.jpg", ["a.jpg", "a\nb.jpg"], [".jpg", "a.jpgx", "x/a.jpg"]),
        ("a?c", ["abc"], ["ac", "a/c"]),
        ("[a-c]x", ["ax", "cx"], ["dx"]),
        ("[!a-c]x", ["dx"], ["ax", "/x"]),
        ("[]]x", ["]x"], ["ax"]),
        ("[!]a]x", ["bx"], ["ax", "]x"]),
        ("[[&~|^]x", ["[x", "^x", "|x"], ["ax"]),
        ("[a", ["[a"], ["a"]),
        ("**", ["a", "a/b/c"], [".a", "a/.b"]),
        ("**/*", ["a", "a/b/c"], [".a", "a/.b", ".a/b"]),
        ("**/x/*.t", ["x/a.t", "p/q/x/a.t"], ["x/y/a.t", "a.t"]),
        ("a/**/b", ["a/b", "a/x/y/b"], ["ab", "a/.x/b"]),
        (".*", [".a"], ["a"]),
        ("*.a+b(c)|$", ["x.a+b(c)|$"], ["x.aab"]),
        ("\udcff*", ["\udcffx"], ["x"]),
    ],
)
def test_a_glob_matches_as_the_page_says(pattern, yes, no):
    match = matcher(pattern)
    assert [name for name in yes if not match(name)] == []
    assert [name for name in no if match(name)] == []


def test_a_pattern_that_cannot_be_understood_is_refused_by_name():
    with pytest.raises(PlanError, match=r"pattern '\[z-a\]\*' cannot be understood: bad character range"):
        matcher("[z-a]*")


def test_a_question_mark_in_an_http_address_is_no_pattern():
    assert not has_magic("https://host/a?token=1")
    assert has_magic("https://host/{0..9}?token=1")
