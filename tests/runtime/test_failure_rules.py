"""What becomes of a sample whose call failed, as a table."""

import pytest
from tests.cases import for_each

import penstock as ps
from penstock.program.failure import ErrorLimit, Verdict, add_note, decide

RETRY = ps.Retry(2, backoff_s=0.5)


@for_each(
    "on_error, exc, attempt, expected",
    [
        ("raise", ValueError(), 0, Verdict("raise")),
        ("skip", ValueError(), 0, Verdict("skip")),
        ("skip", ValueError(), 7, Verdict("skip")),
        (RETRY, ValueError(), 0, Verdict("retry", 0.5)),
        (RETRY, ValueError(), 1, Verdict("retry", 1.0)),
        (RETRY, ValueError(), 2, Verdict("skip")),
        (ps.Retry(1, 0, then="raise"), ValueError(), 0, Verdict("retry", 0.0)),
        (ps.Retry(1, 0, then="raise"), ValueError(), 1, Verdict("raise")),
    ],
)
def test_on_error_decides_what_becomes_of_an_exception(on_error, exc, attempt, expected):
    assert decide(on_error, exc, attempt) == expected


@for_each("on_error", ["raise", "skip", RETRY, ps.Retry(1, 0, then="raise")])
def test_skip_drops_the_sample_whatever_on_error_says(on_error):
    assert decide(on_error, ps.Skip("why"), 0) == Verdict("skip")


@for_each("on_error", ["raise", "skip", RETRY])
@for_each("exc", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
def test_what_is_no_exception_always_ends_the_run(on_error, exc):
    assert decide(on_error, exc, 0) == Verdict("raise")


def test_the_note_names_op_place_sample_and_worker():
    exc = ValueError("bad")
    add_note(exc, "map(load)", "train.py:41", 123, "w.3")
    (note,) = exc.__notes__
    for part in ("map(load)", "train.py:41", "123", "w.3"):
        assert part in note


@for_each(
    "limit, errors, samples, too_many",
    [
        (None, 10**6, 0, False),
        (3, 2, 0, False),
        (3, 3, 0, False),
        (3, 4, 10**6, True),
        (0, 0, 10, False),
        (0, 1, 10, True),
        (0.1, 9, 91, False),
        (0.1, 10, 90, False),
        (0.1, 11, 89, True),
        (0.0, 1, 999, True),
    ],
)
def test_a_limit_is_passed_only_above_its_count_or_share(limit, errors, samples, too_many):
    found = ErrorLimit(limit).check(errors, samples)
    assert isinstance(found, ps.TooManyErrors) == too_many
    if too_many:
        assert str(errors) in str(found)
        assert "max_errors" in str(found)


def test_a_share_of_few_samples_is_judged_at_the_end_of_the_epoch_only():
    limit = ErrorLimit(0.1)
    assert limit.check(1, 0) is None
    assert limit.check(2, 8) is None
    assert isinstance(limit.check(2, 8, ended=True), ps.TooManyErrors)
    assert limit.check(1, 9, ended=True) is None


@for_each("limit", [-1, -0.5, True, "many", [1]])
def test_what_is_no_limit_is_refused_before_anything_starts(limit):
    with pytest.raises(ps.PlanError, match="max_errors"):
        ps.from_sequence([1]).loader(max_errors=limit)


@for_each("arguments", [{"times": 0}, {"times": True}, {"backoff_s": -1}, {"then": "ignore"}])
def test_a_retry_that_makes_no_sense_is_refused(arguments):
    with pytest.raises(ps.PlanError, match="Retry"):
        ps.Retry(**arguments)
