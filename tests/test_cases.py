"""Many cases in one test: all of them run, and a failure names its own."""

import pytest
from tests.cases import for_each
from tests.helpers import TWO_PROCESSES


def test_every_combination_runs_once_and_fixtures_are_passed_on():
    seen = []

    @for_each("a, b", [(1, 2), (3, 4)])
    @for_each("c", "xy")
    def check(fixture, a, b, c):
        seen.append((fixture, a, b, c))

    check(fixture="f")
    assert seen == [("f", 1, 2, "x"), ("f", 1, 2, "y"), ("f", 3, 4, "x"), ("f", 3, 4, "y")]


def test_a_failure_names_its_case():
    @for_each("a", [1, 2])
    @for_each("b", ["x", "y"])
    def check(a, b):
        assert (a, b) != (2, "y")

    with pytest.raises(AssertionError) as caught:
        check()
    assert caught.value.__notes__ == ["in the case b='y'", "in the case a=2"]


def test_it_is_skipped_only_if_all_cases_are():
    seen = []

    @for_each("a", [1, 2, 3])
    def check(a, most):
        if a <= most:
            pytest.skip("not here")
        seen.append(a)

    check(most=2)
    assert seen == [3]
    with pytest.raises(pytest.skip.Exception):
        check(most=3)


def test_an_argument_that_the_test_does_not_take_is_refused_where_it_is_written():
    with pytest.raises(AssertionError, match="has no b"):

        @for_each("b", [1])
        def check(a):
            pass


def test_cases_on_processes_share_warm_ones():
    @for_each("layout", [TWO_PROCESSES])
    def check(layout):
        pass

    assert [mark.args for mark in check.pytestmark] == [("warm_pool",)]
