"""evaluate: a function over all batches, and its results as one."""

import io
import math
from collections import namedtuple

import numpy as np
import pytest
from tests.cases import for_each
from tests.helpers import BACKGROUND, FOUR, INLINE, TWO_PROCESSES

import penstock as ps
from penstock import bar, evaluation

pytestmark = [pytest.mark.usefixtures("warm_processes"), pytest.mark.usefixtures("warm_pool")]

X = np.random.default_rng(0).normal(size=(103, 4))
Y = np.arange(103)
Scores = namedtuple("Scores", "loss counts")

LAYOUTS = [INLINE, BACKGROUND, FOUR, TWO_PROCESSES]


def batches(layout=BACKGROUND, size=10):
    return ps.from_arrays({"x": X, "y": Y}).map(abs_x, **layout.place).batch(size)


def abs_x(sample):
    return {"x": np.abs(sample["x"]), "y": sample["y"]}


def everything(batch):
    return {
        "loss": batch["x"].mean(),
        "pair": (float(batch["y"].mean()), batch["x"].mean(axis=0)),
        "scores": Scores(batch["x"][:, 0].mean(), np.float32(1.0)),
    }


@for_each("layout", LAYOUTS)
def test_a_mean_is_that_over_all_samples_though_the_last_batch_is_short(layout):
    found = ps.evaluate(batches(layout), everything, **layout.loader)
    assert math.isclose(found["loss"], np.abs(X).mean(), rel_tol=1e-12)
    assert isinstance(found["pair"], tuple)
    assert found["pair"][0] == 51.0
    assert np.allclose(found["pair"][1], np.abs(X).mean(axis=0), rtol=1e-12)
    assert type(found["scores"]) is Scores
    assert found["scores"].counts == 1.0


@for_each("layout", LAYOUTS)
def test_rows_are_joined_in_order(layout):
    found = ps.evaluate(batches(layout), lambda batch: (batch["y"] * 2, batch["x"]), "concat", **layout.loader)
    assert np.array_equal(found[0], Y * 2)
    assert np.array_equal(found[1], np.abs(X))


def test_sums_of_integers_are_exact_and_stay_integers():
    data = ps.from_sequence([2**60 + number for number in range(9)]).batch(2, collate=list)
    assert ps.evaluate(data, sum, "sum") == sum(2**60 + number for number in range(9))
    counts = ps.evaluate(batches(), lambda batch: np.bincount(batch["y"] % 3, minlength=3), "sum")
    assert (counts.dtype, counts.tolist()) == (np.int64, [35, 34, 34])
    right = ps.evaluate(batches(), lambda batch: (batch["y"] < 50).sum(dtype=np.uint8), "sum")
    assert right == 50
    assert ps.evaluate(batches(), lambda batch: np.array([True, False]), "sum").tolist() == [11, 0]


def test_sums_of_floats_lose_nothing():
    values = [1e16, 1.0, -1e16, 1.0] * 50
    data = ps.from_sequence(values).batch(1)
    assert ps.evaluate(data, lambda batch: float(batch[0]), "sum") == 100.0
    assert ps.evaluate(data, lambda batch: np.array([batch[0], -batch[0]]), "sum").tolist() == [100.0, -100.0]
    assert ps.evaluate(data, lambda batch: float(batch[0])) == 0.5
    tenths = ps.from_sequence([0.1] * 1000).batch(1)
    assert ps.evaluate(tenths, lambda batch: float(batch[0]), "sum") == math.fsum([0.1] * 1000)
    assert ps.evaluate(tenths, lambda batch: batch, "sum")[0] == math.fsum([0.1] * 1000)


def test_infinity_and_nan_go_through():
    data = ps.from_sequence([1.0, math.inf]).batch(1)
    assert ps.evaluate(data, lambda batch: batch, "sum")[0] == math.inf
    assert math.isnan(
        ps.evaluate(ps.from_sequence([math.inf, -math.inf]).batch(1), lambda batch: float(batch[0]), "sum")
    )
    assert math.isnan(ps.evaluate(ps.from_sequence([1.0, math.nan]).batch(1), lambda batch: float(batch[0])))


@for_each(
    "data, mean",
    [
        (ps.from_sequence(range(7)), 3.0),  # samples, each of which counts once
        (ps.from_sequence(range(7)).batch(3).unbatch(), 3.0),
        (ps.from_sequence([np.full(n + 1, n) for n in range(4)]), 1.5),
        (ps.from_sequence(range(7)).batch(3), 3.0),
        (ps.from_sequence(range(7)).batch(3, collate=list), 3.0),
        (ps.from_sequence("abc").map(ord).batch(2), 98.0),
    ],
)
def test_a_batch_counts_by_its_samples_and_a_sample_once(data, mean):
    assert ps.evaluate(data, lambda batch: float(np.mean(batch))) == mean


def test_the_user_may_say_how_much_a_batch_counts():
    data = ps.from_iterable(lambda: iter([np.array([1.0]), np.array([2.0, 2.0, 2.0])]))
    assert ps.evaluate(data, np.mean, weight=len) == 1.75
    assert ps.evaluate(data, np.mean) == 1.5


def test_the_function_can_run_in_the_calling_thread():
    seen = []  # would stay empty if it ran in another process

    def count(batch):
        seen.append(len(batch["y"]))
        return float(len(batch["y"]))

    data = batches(TWO_PROCESSES)
    assert ps.evaluate(data, count, "sum", in_workers=False) == 103
    assert seen == [10] * 10 + [3]


def test_lists_and_other_objects_are_joined_as_lists():
    data = ps.from_sequence("abcde").batch(2, collate=list)
    assert ps.evaluate(data, list, "concat") == list("abcde")
    assert ps.evaluate(data, "".join, "concat") == ["ab", "cd", "e"]
    assert ps.evaluate(data, len, "concat").tolist() == [2, 2, 1]


def test_tensors_are_put_together_too():
    torch = pytest.importorskip("torch")
    data = ps.from_arrays(torch.arange(7, dtype=torch.float32)).batch(3)
    rows = ps.evaluate(data, lambda x: x * 2, "concat")
    assert isinstance(rows, torch.Tensor)
    assert rows.tolist() == [0, 2, 4, 6, 8, 10, 12]
    assert ps.evaluate(data, lambda x: x.mean().requires_grad_()) == 3.0
    assert ps.evaluate(data, lambda x: x.sum().to(torch.bfloat16), "sum") == 21.0


@for_each(
    "fn, reduce, said",
    [
        (lambda batch: batch["y"], "mean", r"the result of batch 10: its shape is \(3,\), .* first was \(10,\)"),
        (
            lambda batch: batch["y"] if len(batch["y"]) < 10 else 1.0,
            "mean",
            r"the result of batch 10: its shape is \(3,\), and the first was a single number",
        ),
        (lambda batch: "text", "mean", "neither a number nor an array of numbers; use reduce='concat'"),
        (
            lambda batch: {"a": 1} if batch["y"][0] else {"b": 1},
            "sum",
            "batch 1 gave the fields a, and the first one b",
        ),
        (lambda batch: {"a": None}, "sum", "neither a number"),
    ],
)
def test_results_that_do_not_fit_together_say_why(fn, reduce, said):
    with pytest.raises(ValueError, match=said):
        ps.evaluate(batches(), fn, reduce)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ps.PlanError, match="reduce is one of mean, sum, concat, got 'max'"):
        ps.evaluate(batches(), len, "max")
    with pytest.raises(ValueError, match="delivered no batch"):
        ps.evaluate(ps.from_sequence([]).batch(2), len)
    with pytest.raises(ValueError, match="count 0, so there is no mean"):
        ps.evaluate(batches(), lambda batch: 1.0, weight=lambda batch: 0)
    uneven = ps.from_sequence(range(4)).batch(2, collate=lambda some: {"a": some, "b": [*some, 0]})
    with pytest.raises(ValueError, match=r"lengths \['2', '3'\] does not say how many samples"):
        ps.evaluate(uneven, lambda batch: 1.0)
    assert ps.evaluate(uneven, lambda batch: 1, "sum") == 2
    with pytest.raises(ps.PlanError, match="evaluate reads one epoch, and that of this pipeline is endless"):
        ps.evaluate(batches().repeat(), len)


def test_an_error_of_the_function_arrives_as_itself():
    with pytest.raises(ZeroDivisionError) as caught:
        ps.evaluate(batches(), lambda batch: 1 / 0)
    assert "map(lambda) at test_evaluation.py:" in caught.value.__notes__[0]


# ---------------------------------------------------------------------- the bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_bar_is_shown_on_a_terminal_only_and_only_if_wanted(monkeypatch):
    for screen, progress, shown in (
        (Terminal(), True, True),
        (Terminal(), False, False),
        (io.StringIO(), True, False),
    ):
        monkeypatch.setattr(evaluation.sys, "stderr", screen)
        ps.evaluate(batches(), lambda batch: 1, "sum", progress=progress)
        assert ("11/11 batches" in screen.getvalue()) == shown
        assert bool(screen.getvalue()) == shown


def test_the_bar_shows_what_is_known(monkeypatch):
    monkeypatch.setattr(bar, "_REFRESH_S", 0.0)
    screen = Terminal()
    monkeypatch.setattr(evaluation.sys, "stderr", screen)
    ps.evaluate(ps.from_iterable(lambda: iter(range(3))), float, "sum")
    lines = screen.getvalue().split("\r")
    assert [line.split(",")[0] for line in lines] == ["", "1 batches", "2 batches", "3 batches", "3 batches"]
    assert lines[-1].endswith("\n")
    with pytest.raises(ZeroDivisionError):
        ps.evaluate(ps.from_sequence(range(3)), lambda x: 1 / x, in_workers=False)
    assert screen.getvalue().endswith("\n")
