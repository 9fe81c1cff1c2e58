"""Two pipelines that one training loop reads at different rates: few samples with labels, many without.

Each step takes one batch with labels and three without. `steps()` goes from epoch to epoch without a pause, so the
30 samples with labels are in their 20th epoch when the 3 000 others are in their third. One checkpoint holds the
states of both loaders; a second run continues from it and ends with the same model.

    python examples/two_rates.py
"""

from __future__ import annotations

from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

import penstock as ps

CENTRES = np.array([[0.0, 2.0], [-2.0, -1.0], [2.0, -1.0]])
LABELLED = 30
UNLABELLED = 3_000
STEPS = 60
SAVE_AT = 40
#: batches without labels, for each one with labels
RATE = 3

Array = npt.NDArray[np.float64]


class Summary(TypedDict):
    """What ``main`` returns."""

    labelled_epoch: int
    unlabelled_epoch: int
    accuracy: float
    same_model: bool


def draw(n: int, seed: int) -> tuple[Array, npt.NDArray[np.int64]]:
    """Points around three centres, and which centre each belongs to."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % len(CENTRES)
    return CENTRES[labels] + rng.normal(0, 0.7, (n, 2)), labels


def jitter(point: Array, rng: np.random.Generator) -> Array:
    return point + rng.normal(0, 0.1, 2)


def labelled_data() -> ps.Pipeline[Any]:
    points, labels = draw(LABELLED, seed=1)
    return ps.from_arrays({"x": points, "y": labels}).shuffle().map(jitter, key="x", rng=True).batch(10)


def unlabelled_data() -> ps.Pipeline[Any]:
    points, _ = draw(UNLABELLED, seed=2)
    return ps.from_arrays(points).shuffle().batch(40)


def nearest(means: Array, points: Array) -> npt.NDArray[np.int64]:
    """Which of the means is nearest to each point."""
    distances = np.linalg.norm(points[:, None] - means, axis=2)
    found: npt.NDArray[np.int64] = distances.argmin(axis=1)
    return found


def pull(means: Array, points: Array, labels: npt.NDArray[np.int64], rate: float) -> None:
    """Move the mean of each class towards the points of that class, in place."""
    for label in np.unique(labels):
        means[label] += rate * (points[labels == label].mean(axis=0) - means[label])


def train(start: dict[str, Any], steps: int) -> dict[str, Any]:
    """Train from one checkpoint to the next: the model, and the states of both loaders."""
    means = np.array(start["means"])
    with (
        labelled_data().loader(seed=1, state=start["labelled"]) as labelled,
        unlabelled_data().loader(seed=2, state=start["unlabelled"]) as unlabelled,
    ):
        more = unlabelled.steps(RATE * steps)
        for _, batch in labelled.steps(steps):
            pull(means, batch["x"], batch["y"], rate=0.1)
            for _ in range(RATE):
                _, points = next(more)
                pull(means, points, nearest(means, points), rate=0.1)
        return {
            "means": means.tolist(),
            "labelled": labelled.state_dict(),
            "unlabelled": unlabelled.state_dict(),
            "epochs": (labelled.epoch, unlabelled.epoch),
        }


def main() -> Summary:
    """Train without a stop, then with one, and compare the models."""
    start = {"means": np.zeros((len(CENTRES), 2)), "labelled": None, "unlabelled": None}
    whole = train(start, STEPS)
    stopped = train(start, SAVE_AT)
    resumed = train(stopped, STEPS - SAVE_AT)
    points, labels = draw(600, seed=3)
    accuracy = float((nearest(np.array(whole["means"]), points) == labels).mean())
    same = whole["means"] == resumed["means"]
    labelled_epoch, unlabelled_epoch = whole["epochs"]
    print(f"after {STEPS} steps: epoch {labelled_epoch} with labels, epoch {unlabelled_epoch} without")
    print(f"{accuracy:.0%} right; stopped after {SAVE_AT} steps and resumed, the same model: {same}")
    return Summary(
        labelled_epoch=labelled_epoch, unlabelled_epoch=unlabelled_epoch, accuracy=accuracy, same_model=same
    )


if __name__ == "__main__":
    main()
