"""scikit-learn and tqdm with a loader: the recipes of docs/devices.md, as they are."""

import io
import re
from pathlib import Path

import numpy as np
import pytest

import penstock as ps

pytestmark = pytest.mark.integrations

PAGE = (Path(__file__).parents[2] / "docs" / "devices.md").read_text(encoding="utf-8")


def recipe(heading):
    """The first block below a heading of the page."""
    return re.search(rf"^## {heading}\n.*?^```\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[1]


def numbers():
    return ps.from_sequence(range(50)).shuffle().batch(8)


@pytest.fixture
def tqdm(monkeypatch):
    """tqdm without its thread, which would outlive the test, and without its output."""
    found = pytest.importorskip("tqdm").tqdm
    monkeypatch.setattr(found, "monitor_interval", 0)
    return lambda iterable, **options: found(iterable, file=io.StringIO(), **options)


def test_the_recipe_for_partial_fit_learns():
    linear_model = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(0)
    y = np.arange(600) % 3
    x = np.array([[0.0, 3.0], [-3.0, -2.0], [3.0, -2.0]])[y] + rng.normal(size=(600, 2))
    names = {"sklearn": type("sklearn", (), {"linear_model": linear_model}), "ps": ps, "x": x, "y": y}
    names["classes"] = np.unique(y)
    exec(recipe("scikit-learn"), names)
    assert names["model"].t_ == 1 + 5 * 480  # samples that it has seen
    assert names["accuracy"] > 0.9


def test_the_recipe_for_tqdm_shows_totals(tqdm):
    bars, seen = [], []

    def noted(iterable, **options):
        bars.append(tqdm(iterable, **options))
        return bars[-1]

    with numbers().loader(epochs=3) as loader:
        exec(recipe("Progress bars"), {"tqdm": noted, "loader": loader, "step": seen.append})
    assert [(bar.total, bar.n) for bar in bars] == [(3, 3), (7, 7), (7, 7), (7, 7)]
    assert len(seen) == 21


@pytest.mark.parametrize(
    "view", [lambda loader: loader, lambda loader: loader.steps(12), lambda loader: loader.torch()]
)
def test_tqdm_knows_the_total_of_loaders_and_steps(tqdm, view):
    with numbers().loader() as loader:
        bar = tqdm(view(loader))
        assert sum(1 for _ in bar) == bar.n == bar.total


def test_tqdm_counts_what_is_left_after_a_resume(tqdm):
    with numbers().loader(seed=1) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        state = loader.state_dict()
        batches.close()
    with numbers().loader(seed=1, epochs=1, state=state) as loader:
        for _, rest in loader.epochs():
            bar = tqdm(rest)
            assert bar.total == 4
            assert sum(1 for _ in bar) == bar.n == 4
    with numbers().loader(seed=1, state=state) as loader:
        bar = tqdm(loader, initial=loader.batch_index)
        assert sum(1 for _ in bar) == 4
        assert bar.n == bar.total == 7


def test_tqdm_shows_no_total_where_the_length_is_not_known(tqdm):
    with ps.from_sequence(range(9)).filter(lambda x: x % 2).loader() as loader:
        bar = tqdm(loader)
        assert bar.total is None
        assert list(bar) == [1, 3, 5, 7]
