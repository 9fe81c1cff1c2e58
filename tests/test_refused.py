"""What cannot be meant is refused at the line that says it, with what to write instead."""

import itertools
import sys

import pytest

import penstock as ps

HUGE = 10**30
DATA = ps.from_sequence([1, 2])

WRITTEN = {
    "map on": (
        lambda: DATA.map(str, on="processes"),
        "no executor called 'processes'.*async, inline, process, thread",
    ),
    "loader on": (lambda: DATA.loader(on="processes"), "no executor called 'processes'"),
    "fingerprint on": (lambda: DATA.fingerprint(on="threads"), "no executor called 'threads'"),
    "share above 1": (
        lambda: DATA.loader(max_errors=1.5),
        "max_errors= takes a count such as 10, or a share below 1",
    ),
    "no number": (lambda: DATA.loader(max_errors=float("nan")), "max_errors"),
    "repeat": (lambda: DATA.repeat(HUGE), rf"repeat\(times\) takes a whole number, at most {sys.maxsize}, got 10+"),
    "take": (lambda: DATA.take(HUGE), "at most"),
    "epoch": (lambda: DATA.epoch(HUGE), "at most"),
    "resample": (lambda: DATA.resample([1, 1], n=HUGE), "at most"),
    "interleave": (lambda: DATA.flat_map(list, interleave=HUGE), "at most"),
    "workers": (lambda: DATA.map(str, workers=HUGE), "at most"),
    "fake": (lambda: ps.fake(((2,), "uint8"), HUGE), "at most"),
    "range": (lambda: ps.from_sequence(range(10**20)), "from_sequence: a range of more than.*from_iterable"),
    "arrays": (lambda: ps.from_arrays(range(10**20)), "from_arrays: a range of more than"),
}


@pytest.mark.parametrize("what", WRITTEN)
def test_what_cannot_be_meant_is_refused_where_it_is_written(what):
    written, said = WRITTEN[what]
    with pytest.raises(ps.PlanError, match=said):
        written()


@pytest.mark.parametrize("run", [len, iter, ps.Pipeline.explain, ps.Pipeline.loader], ids=lambda run: run.__name__)
def test_more_samples_than_can_be_counted_are_refused_before_anything_runs(run):
    with pytest.raises(ps.PlanError, match=r"repeat\(\d+\) makes \d+ samples of 2, more than can be counted"):
        run(DATA.repeat(sys.maxsize))


def test_what_is_just_possible_is_done():
    assert next(iter(ps.from_sequence([7]).repeat(sys.maxsize))) == 7
    assert list(DATA.take(sys.maxsize)) == [1, 2]
    assert list(DATA.shuffle(seed=HUGE).loader(seed=HUGE, max_errors=2.0, inline=True)) in ([1, 2], [2, 1])
    assert list(itertools.islice(ps.from_iterable(range(10**20)), 3)) == [0, 1, 2]


def forgot_to_return():
    list(range(3))


@pytest.mark.parametrize(("factory", "found"), [(forgot_to_return, "None"), (lambda: 3, "int")])
@pytest.mark.parametrize("inline", [True, False])
def test_a_factory_that_gives_no_iterable_is_named_with_its_line(factory, found, inline):
    said = rf"\(\w+ at test_refused.py:\d+\) must return an iterable, or yield the samples; it gave {found}"
    with ps.from_iterable(factory).loader(inline=inline) as loader, pytest.raises(ps.PlanError, match=said):
        list(loader)
