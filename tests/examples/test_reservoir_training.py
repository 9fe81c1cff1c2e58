"""Training with a reservoir and without reaches the same accuracy, and says how often samples were served."""

import contextlib
import importlib.util
import io
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "reservoir_training.py"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("reservoir_training", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by its name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    module.TEST = 300  # to draw a digit takes half a millisecond
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def quick(example, tmp_path_factory):
    """The lines that a quick run prints, and the plot that it writes."""
    plot = tmp_path_factory.mktemp("plot") / "accuracy.svg"
    with contextlib.redirect_stdout(io.StringIO()) as said:
        example.main(["--quick", "--noise", "0.15", "--svg", str(plot)])
    return said.getvalue().splitlines(), plot


def cells(lines, name):
    """One line of the table, by the heads of its columns."""
    heads = re.split(r"\s{2,}", next(line for line in lines if "reuse" in line).strip())
    found = re.split(r"\s{2,}", next(line for line in lines if line.startswith(name)).strip())
    return dict(zip(heads, found[1:], strict=True))


@pytest.mark.parametrize("name", ["no reservoir", "reservoir(512)"])
def test_both_trainings_reach_the_accuracy(quick, name):
    row = cells(quick[0], name)
    assert re.fullmatch(r"\d+\.\d s", row["to 80 %"])
    assert re.fullmatch(r"\d+\.\d s", row["to 90 %"])
    assert int(row["steps"]) > 0


def test_it_says_how_often_a_sample_was_served(quick):
    assert cells(quick[0], "no reservoir")["reuse"] == "1.0"
    # Reading is four times too slow, on a machine that does nothing else.
    assert float(cells(quick[0], "reservoir(512)")["reuse"]) > 1


def test_the_plot_has_a_line_for_each_training_and_says_what_is_what(quick):
    root = ElementTree.parse(quick[1]).getroot()
    lines = [line.get("points").split() for line in root.iter(f"{SVG}polyline")]
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert root.tag == f"{SVG}svg"
    assert len(lines) == 2
    assert {"wall time, s", "accuracy on the test set, %", "no reservoir", "reservoir(512)"} <= set(texts)
    for line in lines:
        xs, ys = zip(*(map(float, point.split(",")) for point in line), strict=True)
        assert list(xs) == sorted(xs)
        # Downwards in the picture is upwards in numbers: the accuracy has grown.
        assert ys[-1] < ys[0]


def test_the_digits_are_the_same_every_time_and_differ_from_one_another(example):
    images, labels = example.make_digits(20, seed=1)
    again, _ = example.make_digits(20, seed=1)
    np.testing.assert_array_equal(images, again)
    assert images.shape == (20, example.SIDE, example.SIDE)
    assert labels.tolist() == [*range(10), *range(10)]
    assert len({image.tobytes() for image in images}) == 20


def test_an_accuracy_is_reached_at_the_first_test_that_has_it(example):
    points = [example.Point(0, 0.0, 0.1), example.Point(10, 1.0, 0.9), example.Point(20, 2.0, 0.95)]
    run = example.Run(points, reuse_mean=1.0, wait_share=0.0)
    assert run.reached(0.8) == points[1]
    assert run.reached(0.95) == points[2]
    assert run.reached(0.99) is None


def test_a_training_that_does_not_get_there_ends_in_time_and_says_never(example, capsys):
    setting = example.Setting(slower=1, step_s=0.001, target=1.1, limit_s=0.2)
    found = example.compare(setting, None)
    assert not found["no_reservoir"]["reached"]
    assert not found["reservoir"]["reached"]
    assert cells(capsys.readouterr().out.splitlines(), "reservoir(512)")["to 110 %"] == "never"


def test_the_sweep_divides_by_the_time_without_a_reservoir(example, capsys, monkeypatch):
    def train(setting, reservoir, max_reuse):
        seconds = {(False, None): 8.0, (True, None): 2.0, (True, 4): 4.0}[reservoir, max_reuse]
        # One of three runs does not get there: the median is still that of the others.
        accuracy = 0.5 if setting.seed == 2 and reservoir else 1.0
        return example.Run([example.Point(10, seconds, accuracy)], 3.0, 0.0)

    monkeypatch.setattr(example, "train", train)
    rows = example.sweep(example.Setting(), seeds=3)
    lines = capsys.readouterr().out.splitlines()[3:]
    assert [row.seconds for row in rows] == [8.0, 2.0, 4.0] * len(example.SWEEP)
    assert [row.gain for row in rows] == [1.0, 4.0, 2.0] * len(example.SWEEP)
    assert [line.split()[-1] for line in lines] == ["1.00", "4.00", "2.00"] * len(example.SWEEP)
